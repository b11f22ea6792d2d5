"""Workloads: generated streams that belong together, the same in whatever parts they are generated.

Event time is divided into blocks of a fixed length. Each block has a random generator seeded by the workload's seed, the stream's name
and the block's number. So the same settings and seed give the same tuples, in any number of partitions, files or batches, on any
machine, and after any restart.

A *range* of a workload holds the tuples that arrive from its begin until before its end, in order of arrival. Such tuples belong to
blocks that begin at most the stream's *reach* earlier; these blocks are generated again, or come from a cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
from itertools import count
from math import log2
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

from dovetail.errors import ConfigError, listed
from dovetail.schema import TIMESTAMP, StreamSchema, type_name
from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND, Arrivals
from dovetail.workloads.columns import Copied, GeneratedColumn, Values
from dovetail.workloads.delays import Delay, lags, longest_lag
from dovetail.workloads.orders import Orders

START = 1_767_225_600 * SECOND
"""Default event time of the first tuple: midnight of 2026-01-01, UTC."""
BLOCK_ROWS = 1 << 14
"""Approximate number of tuples of the fastest stream in a block."""
_BLOCK_KEYS = 1 << 32
EVENT_TIME = "ts"
KEY = "key"

Events: TypeAlias = dict[str, Values]
Batch: TypeAlias = dict[str, pa.Table]


@dataclass(frozen=True)
class Follows:
    """Events that follow tuples of another stream, after an exponential lag, and may copy their columns."""

    stream: str
    share: float
    """Fraction of the other stream's tuples that are followed."""
    mean: float
    """Mean lag in seconds; no lag exceeds eight times the mean."""

    def __post_init__(self) -> None:
        checks.within(f"follows {self.stream!r}: share", self.share, 0, 1)
        checks.above(f"follows {self.stream!r}: mean", self.mean)


@dataclass(frozen=True)
class Appears:
    """Events that are appearances of keys in this stream; streams with the same `orders` share their keys."""

    orders: Orders


@dataclass(frozen=True)
class Stream:
    """Settings of one generated stream."""

    name: str
    events: Arrivals | Follows | Appears
    columns: Mapping[str, GeneratedColumn]
    """Columns besides the event time, `ts`."""
    delay: Delay = field(default_factory=Delay)


@dataclass(frozen=True)
class Workload:
    """Generated streams that belong together, and queries over them.

    >>> from dovetail.workloads.columns import Uniform
    >>> clicks = Stream("clicks", Arrivals(2, "uniform"), {"ad": Uniform(10)})
    >>> workload = Workload("small", (clicks,), seed=1)
    >>> workload.table("clicks", 0, 3) == pa.concat_tables([workload.table("clicks", 0, 1), workload.table("clicks", 1, 3)])
    True
    """

    name: str
    sources: tuple[Stream, ...]
    queries: Mapping[str, str] = field(default_factory=dict)
    """SQL by name."""
    selectivities: Mapping[str, float] = field(default_factory=dict)
    """Known selectivities of equalities such as `a.k = b.k`."""
    seed: int = 0
    start: int = START
    """Event time of the first tuple, in microseconds since 1970."""

    def __post_init__(self) -> None:
        checks.whole(f"workload {self.name!r}: seed", self.seed, 0)
        earlier: list[str] = []
        for stream in self.sources:
            where = f"workload {self.name!r}: stream {stream.name!r}"
            if stream.name in earlier:
                raise ConfigError(f"{where} is there twice")
            events = stream.events
            if isinstance(events, Follows) and events.stream not in earlier:
                raise ConfigError(f"{where} follows {events.stream!r}; allowed: those before it, {listed(earlier)}")
            if isinstance(events, Appears) and stream.name not in events.orders.streams:
                raise ConfigError(f"{where} is not in its orders, which are of {listed(events.orders.streams)}")
            earlier.append(stream.name)

    def __getstate__(self) -> dict[str, Any]:
        # Without the cache of blocks, which can be generated again.
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}

    @cached_property
    def streams(self) -> tuple[StreamSchema, ...]:
        """Schemas of the streams, with lateness and expected rate, to declare in a session."""
        return tuple(
            StreamSchema(
                stream.name,
                self.columns(stream.name),
                EVENT_TIME,
                round(stream.delay.lateness * SECOND),
                self.rate(stream.name),
            )
            for stream in self.sources
        )

    def columns(self, stream: str) -> pa.Schema:
        """Return the columns of a stream."""
        types = {name: self._column(stream, name).type for name in self._source(stream).columns}
        return pa.schema({EVENT_TIME: TIMESTAMP} | types)

    def sql_columns(self, stream: str) -> str:
        """Return the columns of a stream as a Spark schema text: `ts timestamp, ad_id bigint`."""
        return ", ".join(f"{column.name} {type_name(column.type)}" for column in self.columns(stream))

    def rate(self, stream: str) -> float:
        """Return the expected number of tuples of a stream per second of event time."""
        events = self._source(stream).events
        if isinstance(events, Follows):
            return self.rate(events.stream) * events.share
        return events.orders.keys.rate * events.orders.fraction(stream) if isinstance(events, Appears) else events.rate

    def declare(self, session: Any, source: Callable[[str], Any] | None = None) -> None:
        """Declare streams, selectivities and queries in a session; on Spark, `source` gives a stream's frame."""
        for stream in self.streams:
            lateness = timedelta(microseconds=stream.lateness)
            schema_or_frame = stream.columns if source is None else source(stream.name)
            session.stream(stream.name, schema_or_frame, stream.event_time, lateness, stream.rate)
        for text, selectivity in self.selectivities.items():
            session.selectivity(text, selectivity)
        for name, sql in self.queries.items():
            session.query(name, sql)

    def table(self, stream: str, first: float, last: float) -> pa.Table:
        """Return the tuples that arrive from `first` until before `last`, in seconds, in order of arrival."""
        return self.arrived(stream, round(first * SECOND), round(last * SECOND))

    def batches(self, seconds: float) -> Iterator[Batch]:
        """Yield batches of the tuples that arrive in consecutive spans of `seconds`, without end."""
        checks.above("batches: seconds", seconds)
        for number in count():
            first, last = number * seconds, (number + 1) * seconds
            yield {stream.name: self.table(stream.name, first, last) for stream in self.sources}

    def arrived(self, stream: str, first: int, last: int) -> pa.Table:
        """Return the tuples that arrive in a range, as `table` does, but in microseconds."""
        source = self._source(stream)
        blocks = range(max(0, (first - self._reach(stream)) // self.block), max(0, -(-last // self.block)))
        parts = [self._cache.part(stream, block, first, last) for block in blocks]
        names = (EVENT_TIME, "arrival", *source.columns)
        events = {
            name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, np.int64) for name in names
        }
        order = np.argsort(events["arrival"], kind="stable")
        columns = [pa.array(events[EVENT_TIME][order] + self.start, pa.int64()).cast(TIMESTAMP)]
        columns += [self._column(stream, name).finish(events[name][order]) for name in source.columns]
        return pa.Table.from_arrays(columns, schema=self.columns(stream))

    @cached_property
    def block(self) -> int:
        """Microseconds of a block: a power of two with about `BLOCK_ROWS` tuples of the fastest stream."""
        fastest = max(self.rate(stream.name) for stream in self.sources)
        return 1 << min(40, max(10, round(log2(BLOCK_ROWS / fastest * SECOND))))

    def _source(self, stream: str) -> Stream:
        by_name = {source.name: source for source in self.sources}
        if stream not in by_name:
            raise ConfigError.choice(f"workload {self.name!r}: the stream", stream, by_name)
        return by_name[stream]

    def _column(self, stream: str, name: str) -> GeneratedColumn:
        """Return the generator of a column; for a copied column, that of the original."""
        source = self._source(stream)
        column = source.columns[name]
        if isinstance(column, Copied) and isinstance(source.events, Follows):
            return self._column(source.events.stream, column.name)
        return column

    def _max_event_lag(self, stream: str) -> int:
        """Return the longest time, in microseconds, from the first event of a chain to one in this stream."""
        events = self._source(stream).events
        if isinstance(events, Follows):
            return self._max_event_lag(events.stream) + longest_lag(events.mean)
        return events.orders.reach if isinstance(events, Appears) else 0

    def _reach(self, stream: str) -> int:
        return self._max_event_lag(stream) + self._source(stream).delay.longest

    @cached_property
    def _cache(self) -> _BlockCache:
        sizes = {stream.name: self._reach(stream.name) // self.block + 3 for stream in self.sources}
        return _BlockCache(self, sizes)


class _BlockCache:
    """Generator of blocks that keeps as many recent blocks of each stream as a range may need."""

    def __init__(self, workload: Workload, sizes: Mapping[str, int]) -> None:
        self._workload, self._sizes = workload, sizes
        self._sources = {stream.name: stream for stream in workload.sources}
        self._blocks: dict[str, OrderedDict[int, Events]] = {name: OrderedDict() for name in sizes}

    def part(self, stream: str, block: int, first: int, last: int) -> Events:
        """Return the events of a block that arrive in a range."""
        events = self.events(stream, block)
        arrival = events["arrival"]
        # Shortcut: most blocks lie in the range completely.
        if len(arrival) and arrival.min() >= first and arrival.max() < last:
            return events
        inside = np.flatnonzero((arrival >= first) & (arrival < last))
        return {name: values[inside] for name, values in events.items()}

    def events(self, stream: str, block: int) -> Events:
        """Return all events of a stream's block."""
        blocks = self._blocks[stream]
        if block not in blocks:
            blocks[block] = self._draw(self._sources[stream], block)
        blocks.move_to_end(block)
        while len(blocks) > self._sizes[stream]:
            blocks.popitem(last=False)
        return blocks[block]

    def _draw(self, source: Stream, block: int) -> Events:
        rng = self._generator(source.name, block)
        base = self._event_times(source, rng, block)
        seconds = base[EVENT_TIME] / SECOND
        events = {EVENT_TIME: base[EVENT_TIME]}
        for name, column in source.columns.items():
            if isinstance(column, Copied) and column.name in base:
                events[name] = base[column.name]
            else:
                events[name] = column.draw(rng, seconds)
        events["arrival"] = events[EVENT_TIME] + source.delay.draw(rng, len(seconds))
        return events

    def _event_times(self, source: Stream, rng: np.random.Generator, block: int) -> Events:
        """Return the event times of a block, and the values that columns may copy."""
        events, length = source.events, self._workload.block
        if isinstance(events, Arrivals):
            return {EVENT_TIME: events.times(rng, block * length, (block + 1) * length, self._seeds(source.name))}
        if isinstance(events, Follows):
            followed = self.events(events.stream, block)
            chosen = np.flatnonzero(rng.random(len(followed[EVENT_TIME])) < events.share)
            lag = lags(rng, events.mean, len(chosen))
            copied = {name: values[chosen] for name, values in followed.items()}
            return copied | {EVENT_TIME: followed[EVENT_TIME][chosen] + lag}
        orders = events.orders
        shared_name = "/".join(orders.streams)  # one generator for all streams of these orders
        common = self._generator(shared_name, block)
        starts = orders.keys.times(common, block * length, (block + 1) * length, self._seeds(shared_name))
        positions, times = orders.appearances(common, starts)
        position = positions[:, orders.streams.index(source.name)]
        keys = np.flatnonzero(position >= 0)
        return {EVENT_TIME: times[keys, position[keys]], KEY: block * _BLOCK_KEYS + keys}

    def _seeds(self, name: str) -> tuple[int, int]:
        return self._workload.seed, crc32(name.encode())

    def _generator(self, name: str, block: int) -> np.random.Generator:
        return np.random.default_rng([*self._seeds(name), block])
