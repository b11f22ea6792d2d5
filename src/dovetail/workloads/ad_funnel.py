"""An advertising funnel: impressions, some of which are clicked, some of which end in an order.

Time is simulated. A batch holds what *arrives* during `batch_seconds`; each tuple arrives a little after its event time, so a batch is
out of order and reaches into the time of earlier ones, by less than the declared lateness. A few tuples are delayed beyond it: a
session must drop and count precisely those. The same seed gives the same tuples, whoever asks and however they are cut.

`batch_join` says what the query `funnel` must return for a finite input, without windows, state or batches: it is the answer that a
run is checked against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.config import names_checked
from dovetail.schema import StreamSchema
from dovetail.workloads.arrivals import SECOND
from dovetail.workloads.columns import Amounts, Copied, Uniform, Words, Zipf
from dovetail.workloads.files import write_batches
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import START, Batch, Follows, Stream, Workload

SITES = ("blog", "forum", "games", "maps", "news", "shop", "video", "weather")
QUERIES = {
    "funnel": """
    SELECT i.ad_id, i.site, c.user_id, c.ts AS clicked_at, o.ts AS ordered_at, o.amount
    FROM impressions i [RANGE 10 MINUTES], clicks c [RANGE 10 MINUTES], orders o [RANGE 1 HOUR]
    WHERE i.ad_id = c.ad_id AND c.user_id = o.user_id AND o.amount > 10""",
    "own_clicks": """
    SELECT c.ad_id, c.user_id, i.site, c.ts - i.ts AS after
    FROM impressions i [RANGE 2 MINUTES], clicks c [RANGE 1 SECOND]
    WHERE i.ad_id = c.ad_id AND i.user_id = c.user_id AND c.ts >= i.ts""",
}
"""Two queries over the same streams: three streams on two different keys, and two streams on both."""


@names_checked
@dataclass(frozen=True)
class AdFunnel(Scenario):
    """Settings of the generator.

    >>> first = next(AdFunnel(seed=7).batches())
    >>> first == next(AdFunnel(seed=7).batches())
    True
    >>> sorted(first)
    ['clicks', 'impressions', 'orders']
    """

    rate: float = 1000.0
    """Impressions per second of event time."""
    click_share: float = 0.05
    """Of impressions; a click follows its impression by a minute on average, with the same ad and user."""
    order_share: float = 0.10
    """Of clicks; an order follows its click by two minutes on average, by the same user."""
    ads: int = 100_000
    users: int = 200_000
    batch_seconds: float = 20.0

    def made(self) -> Workload:
        # With this skew a tenth of all ads get about a third of the impressions.
        shown = {"ad_id": Zipf(self.ads, 0.5), "user_id": Uniform(self.users), "site": Words(SITES)}
        clicked = {"ad_id": Copied("ad_id"), "user_id": Copied("user_id")}
        ordered = {"user_id": Copied("user_id"), "amount": Amounts()}
        sources = (
            Stream("impressions", self.coming(self.rate), shown, self.delay),
            Stream("clicks", Follows("impressions", self.click_share, 60.0), clicked, self.delay),
            Stream("orders", Follows("clicks", self.order_share, 120.0), ordered, self.delay),
        )
        return Workload("ad_funnel", sources, QUERIES, seed=self.seed)

    @property
    def streams(self) -> tuple[StreamSchema, ...]:
        """The streams to declare, with the rates to expect."""
        return self.workload.streams

    def batches(self) -> Iterator[Batch]:
        """Give batch after batch, without end."""
        return self.workload.batches(self.batch_seconds)


COLUMNS: dict[str, pa.Schema] = {stream.name: stream.columns for stream in AdFunnel().streams}


@dataclass
class FunnelSample:
    """Input kept aside to check a run of `funnel`: all that concerns every n-th ad.

    It judges lateness itself, by the definition: a tuple is late if it lies further than the lateness behind the largest event time
    of earlier batches.
    """

    settings: AdFunnel
    every: int = 20
    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    largest: dict[str, int] = field(default_factory=dict)

    def take(self, batch: Mapping[str, pa.Table]) -> None:
        """Keep what a batch holds of the sampled ads."""
        for stream, table in batch.items():
            times = table["ts"].cast(pa.int64())
            if stream in self.largest:
                bound = self.largest[stream] - self.settings.lateness_seconds * SECOND
                table = table.filter(pc.greater_equal(times, bound))  # noqa: PLW2901
            if len(times):
                self.largest[stream] = max(self.largest.get(stream, START), pc.max(times).as_py())
            self.tables[stream].append(self.of(table) if "ad_id" in table.column_names else table)

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of a table that concern the sampled ads."""
        return table.filter(pa.array(table["ad_id"].to_numpy() % self.every == self.every - 1))

    @property
    def where(self) -> str:
        """What `of` keeps, as a condition in SQL."""
        return f"ad_id % {self.every} = {self.every - 1}"

    def expected(self) -> pa.Table:
        """What `funnel` must have returned for the sampled ads."""
        return batch_join(**{name: pa.concat_tables(tables) for name, tables in self.tables.items()})


def write_files(funnel: AdFunnel, count: int, folder: Path, sample: FunnelSample | None = None) -> dict[str, int]:
    """Write the first batches as Parquet files, `folder/<stream>/<batch>.parquet`; return how many tuples each stream has."""
    return write_batches(islice(funnel.batches(), count), folder, sample.take if sample is not None else None)


def batch_join(impressions: pa.Table, clicks: pa.Table, orders: pa.Table) -> pa.Table:
    """What the query `funnel` must return for these tuples, as two hash joins and a filter."""
    large = orders.filter(pc.greater(orders["amount"], 10)).rename_columns({"ts": "ordered_at"})
    bought = clicks.rename_columns({"ts": "clicked_at"}).join(large, "user_id", join_type="inner")
    bought = _inside(bought, {"clicked_at": 600, "ordered_at": 3600})
    shown = impressions.drop_columns("user_id").rename_columns({"ts": "shown_at"})
    joined = _inside(
        bought.join(shown, "ad_id", join_type="inner"), {"clicked_at": 600, "ordered_at": 3600, "shown_at": 600}
    )
    return joined.select(["ad_id", "site", "user_id", "clicked_at", "ordered_at", "amount"])


def _inside(table: pa.Table, windows: Mapping[str, int]) -> pa.Table:
    """Rows in which every time is at most its window before the latest one."""
    times = {name: table[name].cast(pa.int64()) for name in windows}
    latest = pc.max_element_wise(*times.values())
    inside = pa.chunked_array([pa.repeat(True, len(table))])
    for name, seconds in windows.items():
        inside = pc.and_(inside, pc.greater_equal(times[name], pc.subtract(latest, seconds * SECOND)))
    return table.filter(inside)
