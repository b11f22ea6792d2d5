"""An advertising funnel: impressions, some of which are clicked, some of which end in an order.

Time is simulated. A batch holds what *arrives* during `batch_seconds`; each tuple arrives a little after its event time, so a batch is
out of order and reaches into the time of earlier ones, by less than the declared lateness. A few tuples are delayed beyond it: a
session must drop and count precisely those. The same seed gives the same batches, whoever asks and however many are taken.

`batch_join` says what the query `funnel` must return for a finite input, without windows, state or batches: it is the answer that a
run is checked against.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dovetail.schema import TIMESTAMP, StreamSchema

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
"""Event time of the first tuple: midnight of 2026-01-01, UTC."""
SITES = ("blog", "forum", "games", "maps", "news", "shop", "video", "weather")
COLUMNS: dict[str, pa.Schema] = {
    "impressions": pa.schema({"ts": TIMESTAMP, "ad_id": pa.int64(), "user_id": pa.int64(), "site": pa.string()}),
    "clicks": pa.schema({"ts": TIMESTAMP, "ad_id": pa.int64(), "user_id": pa.int64()}),
    "orders": pa.schema({"ts": TIMESTAMP, "user_id": pa.int64(), "amount": pa.float64()}),
}
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

Events = dict[str, NDArray[Any]]
Batch = dict[str, pa.Table]


@dataclass(frozen=True)
class AdFunnel:
    """Settings of the generator; rates are per second of event time.

    >>> first = next(AdFunnel(seed=7).batches())
    >>> first == next(AdFunnel(seed=7).batches())
    True
    >>> sorted(first)
    ['clicks', 'impressions', 'orders']
    """

    seed: int = 0
    impressions_per_second: int = 1000
    click_share: float = 0.05
    """Of impressions; a click follows its impression by a minute on average, with the same ad and user."""
    order_share: float = 0.10
    """Of clicks; an order follows its click by two minutes on average, by the same user."""
    ads: int = 100_000
    users: int = 200_000
    batch_seconds: int = 20
    lateness_seconds: int = 5
    late_share: float = 0.0005
    """Tuples delayed beyond the lateness."""

    @property
    def streams(self) -> tuple[StreamSchema, ...]:
        """The streams to declare, with the rates to expect."""
        impressions = float(self.impressions_per_second)
        clicks = impressions * self.click_share
        rates = {"impressions": impressions, "clicks": clicks, "orders": clicks * self.order_share}
        lateness = self.lateness_seconds * SECOND
        return tuple(StreamSchema(name, columns, "ts", lateness, rates[name]) for name, columns in COLUMNS.items())

    def batches(self) -> Iterator[Batch]:
        """Give batch after batch, without end."""
        pipes = {name: _Pipe(self) for name in COLUMNS}
        number = 0
        while True:
            rng = np.random.default_rng([self.seed, number])
            shown = self._impressions(rng, number)
            clicked = _followers(rng, shown, self.click_share, 60.0)
            ordered = _followers(rng, clicked, self.order_share, 120.0)
            ordered["amount"] = np.round(rng.lognormal(3.0, 1.0, len(ordered["ts"])), 2)
            end = START + (number + 1) * self.batch_seconds * SECOND
            events = {"impressions": shown, "clicks": clicked, "orders": ordered}
            yield {name: _table(name, pipes[name].pass_on(rng, events[name], end)) for name in COLUMNS}
            number += 1

    def _impressions(self, rng: np.random.Generator, number: int) -> Events:
        count = int(rng.poisson(self.impressions_per_second * self.batch_seconds))
        first = START + number * self.batch_seconds * SECOND
        # Squaring a uniform number makes low ad numbers popular: a tenth of all ads get about a third of the impressions.
        ads = np.floor(self.ads * rng.random(count) ** 2).astype(np.int64)
        return {
            "ts": first + rng.integers(0, self.batch_seconds * SECOND, count),
            "ad_id": ads,
            "user_id": rng.integers(0, self.users, count),
            "site": rng.integers(0, len(SITES), count),
        }


@dataclass
class _Pipe:
    """Holds events back until they arrive."""

    settings: AdFunnel
    waiting: Events = field(default_factory=dict)

    def pass_on(self, rng: np.random.Generator, events: Events, end: int) -> Events:
        """Take in events, give those that have arrived by `end`, in order of arrival."""
        settings, count = self.settings, len(events["ts"])
        lateness = settings.lateness_seconds * SECOND
        delay = np.minimum(rng.exponential(lateness / 5, count).astype(np.int64), lateness - 1)
        too_late = lateness + (1 + rng.random(count)) * settings.batch_seconds * SECOND
        delay = np.where(rng.random(count) < settings.late_share, too_late.astype(np.int64), delay)
        events = {**events, "arrival": events["ts"] + delay}
        known = (
            {name: np.concatenate([self.waiting[name], events[name]]) for name in events} if self.waiting else events
        )
        arrived = known["arrival"] < end
        self.waiting = {name: values[~arrived] for name, values in known.items()}
        order = np.argsort(known["arrival"][arrived], kind="stable")
        return {name: values[arrived][order] for name, values in known.items()}


def _followers(rng: np.random.Generator, events: Events, share: float, mean_seconds: float) -> Events:
    """Events that follow some of the given ones, later by an exponentially distributed time."""
    places = np.flatnonzero(rng.random(len(events["ts"])) < share)
    later = rng.exponential(mean_seconds * SECOND, len(places)).astype(np.int64)
    return {name: values[places] for name, values in events.items() if name != "ts"} | {
        "ts": events["ts"][places] + later
    }


def _table(stream: str, events: Events) -> pa.Table:
    schema = COLUMNS[stream]
    columns = []
    for column in schema:
        values = pa.array(events[column.name])
        if column.name == "site":
            values = pa.array(SITES).take(values)
        columns.append(values.cast(column.type))
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass
class Sample:
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


def write_files(funnel: AdFunnel, count: int, folder: Path, sample: Sample | None = None) -> dict[str, int]:
    """Write the first batches as Parquet files, `folder/<stream>/<batch>.parquet`; return how many tuples each stream has.

    Spark's file source reads the oldest file first, so the files are a second apart whatever the clock of the file system.
    """
    written: Counter[str] = Counter()
    for number, batch in enumerate(islice(funnel.batches(), count)):
        for stream, table in batch.items():
            path = folder / stream / f"{number:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (START // SECOND + number,) * 2)
            written[stream] += table.num_rows
        if sample is not None:
            sample.take(batch)
    return dict(written)


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
