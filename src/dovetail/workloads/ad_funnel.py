"""An advertising funnel: impressions, some of which are clicked, some of which lead to an order.

Time is simulated. A batch holds the tuples that *arrive* during `batch_seconds`; each arrives a little after its event time, so
batches are out of order and overlap in event time, by less than the declared lateness. A few tuples are delayed longer: a session must
drop and count exactly those. The same seed gives the same tuples, however they are split into batches.

`batch_join` computes the results of the query `funnel` for a finite input with two hash joins, as a check of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.config import reject_unknown_options
from dovetail.schema import StreamSchema
from dovetail.workloads.arrivals import SECOND
from dovetail.workloads.columns import Amounts, Copied, Uniform, Words, Zipf
from dovetail.workloads.files import write_batches
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import START, Batch, Follows, Stream, Workload

SITES = ("blog", "forum", "games", "maps", "news", "shop", "video", "weather")
QUERIES = {
    "funnel": """
    SELECT i.site, i.ad_id, c.user_id, c.ts - i.ts AS clicked_after, o.ts - c.ts AS bought_after, o.amount
    FROM impressions i [RANGE 10 MINUTES], clicks c [RANGE 10 MINUTES], orders o [RANGE 10 MINUTES]
    WHERE c.ad_id = i.ad_id AND c.user_id = i.user_id AND c.ts >= i.ts
      AND o.user_id = c.user_id AND o.ts >= c.ts""",
    "own_clicks": """
    SELECT c.ad_id, c.user_id, i.site, c.ts - i.ts AS after
    FROM impressions i [RANGE 2 MINUTES], clicks c [RANGE 1 SECOND]
    WHERE i.ad_id = c.ad_id AND i.user_id = c.user_id AND c.ts >= i.ts""",
}
"""Two queries: who saw an ad, clicked on it and bought something afterwards; and the clicks alone."""
FUNNEL_SECONDS = 600
"""Length of the windows of `funnel`."""


@reject_unknown_options
@dataclass(frozen=True)
class AdFunnel(Scenario):
    """Settings of the advertising funnel.

    >>> first = next(AdFunnel(seed=7).batches())
    >>> first == next(AdFunnel(seed=7).batches())
    True
    >>> sorted(first)
    ['clicks', 'impressions', 'orders']
    """

    rate: float = 1000.0
    """Impressions per second of event time."""
    click_share: float = 0.05
    """Fraction of impressions that are clicked, after a minute on average, with the same ad and user."""
    order_share: float = 0.10
    """Fraction of clicks that lead to an order of the same user, after two minutes on average."""
    ads: int = 100_000
    users: int = 200_000
    batch_seconds: float = 20.0

    def build(self) -> Workload:
        # With this skew a tenth of all ads get about a third of the impressions.
        impressions = {"ad_id": Zipf(self.ads, 0.5), "user_id": Uniform(self.users), "site": Words(SITES)}
        clicks = {"ad_id": Copied("ad_id"), "user_id": Copied("user_id")}
        orders = {"user_id": Copied("user_id"), "amount": Amounts()}
        sources = (
            Stream("impressions", self.arrival_process(self.rate), impressions, self.delay),
            Stream("clicks", Follows("impressions", self.click_share, 60.0), clicks, self.delay),
            Stream("orders", Follows("clicks", self.order_share, 120.0), orders, self.delay),
        )
        return Workload("ad_funnel", sources, QUERIES, seed=self.seed)

    @property
    def streams(self) -> tuple[StreamSchema, ...]:
        """Schemas of the streams, with lateness and expected rate, to declare in a session."""
        return self.workload.streams

    def batches(self) -> Iterator[Batch]:
        """Yield batches of `batch_seconds`, without end."""
        return self.workload.batches(self.batch_seconds)


COLUMNS: dict[str, pa.Schema] = {stream.name: stream.columns for stream in AdFunnel().streams}


@dataclass
class FunnelSample:
    """Sample of the input for checking a run of `funnel`.

    It has the tuples of every n-th user; all with `every=1`.

    The sample drops late tuples by their definition: more than the lateness behind the largest event time of earlier batches.
    """

    settings: AdFunnel
    every: int = 20
    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    largest: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Mapping[str, pa.Table]) -> None:
        """Add the tuples of a batch that belong to the sample."""
        for stream, table in batch.items():
            times = table["ts"].cast(pa.int64())
            if stream in self.largest:
                watermark = self.largest[stream] - self.settings.lateness_seconds * SECOND
                table = table.filter(pc.greater_equal(times, watermark))  # noqa: PLW2901
            if len(times):
                self.largest[stream] = max(self.largest.get(stream, START), pc.max(times).as_py())
            self.tables[stream].append(self.select(table))

    def select(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table with a sampled user."""
        return table.filter(pa.array(table["user_id"].to_numpy() % self.every == self.every - 1))

    def expected(self) -> pa.Table:
        """Return the results that `funnel` must have produced for the sampled users."""
        return batch_join(**{name: pa.concat_tables(tables) for name, tables in self.tables.items()})


def write_files(funnel: AdFunnel, count: int, folder: Path, sample: FunnelSample | None = None) -> dict[str, int]:
    """Write the first batches as `folder/<stream>/<batch>.parquet`; return the number of tuples by stream."""
    return write_batches(islice(funnel.batches(), count), folder, sample.add if sample is not None else None)


def batch_join(impressions: pa.Table, clicks: pa.Table, orders: pa.Table) -> pa.Table:
    """Return the results of the query `funnel` over these tuples, by two hash joins and filters."""
    bought = clicks.rename_columns({"ts": "clicked"}).join(
        orders.rename_columns({"ts": "bought"}), "user_id", join_type="inner"
    )
    seen = impressions.rename_columns({"ts": "seen"})
    joined = bought.join(seen, ["ad_id", "user_id"], join_type="inner")
    times = [joined[name] for name in ("seen", "clicked", "bought")]
    is_result = pc.and_(pc.less_equal(times[0], times[1]), pc.less_equal(times[1], times[2]))
    took = pc.subtract(times[2].cast(pa.int64()), times[0].cast(pa.int64()))
    joined = joined.filter(pc.and_(is_result, pc.less_equal(took, FUNNEL_SECONDS * SECOND)))
    clicked_after, bought_after = (
        pc.subtract(joined[later], joined[earlier]) for earlier, later in (("seen", "clicked"), ("clicked", "bought"))
    )
    columns = [joined["site"], joined["ad_id"], joined["user_id"], clicked_after, bought_after, joined["amount"]]
    return pa.table(columns, names=["site", "ad_id", "user_id", "clicked_after", "bought_after", "amount"])
