"""A workload: streams that belong together, drawn so that it does not matter who draws which part.

Event time is cut into blocks of a fixed length, and all that begins in a block is drawn from a generator of its own, seeded by the
workload's seed, the stream's name and the block's number. So the same settings and the same seed give the same tuples, however many
partitions, files or batches they are asked for in, on whatever machine, and after any restart.

A *range* of a workload is one of arrival times: it holds the tuples that arrive from its beginning until before its end, in order of
arrival. What arrives in a range may have begun some blocks earlier, by no more than the stream's *reach*; these are drawn again, or
remembered from the range before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
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
"""Event time of the first tuple, unless a workload says otherwise: midnight of 2026-01-01, UTC."""
BLOCK_ROWS = 1 << 14
"""Tuples of the fastest stream in a block, about."""
_BLOCK_KEYS = 1 << 32
EVENT_TIME = "ts"
KEY = "key"

Events: TypeAlias = dict[str, Values]
Batch: TypeAlias = dict[str, pa.Table]


@dataclass(frozen=True)
class Follows:
    """Tuples that follow some of another stream's: later by an exponentially distributed time, and with columns copied from them."""

    stream: str
    share: float
    """Of the other stream's tuples that are followed."""
    mean: float
    """Seconds in between; at most eight times that."""

    def __post_init__(self) -> None:
        checks.within(f"follows {self.stream!r}: share", self.share, 0, 1)
        checks.above(f"follows {self.stream!r}: mean", self.mean)


@dataclass(frozen=True)
class Appears:
    """Tuples that are a key's appearances in this stream; streams with the same `orders` share the keys."""

    orders: Orders


@dataclass(frozen=True)
class Stream:
    """How the tuples of one stream are made."""

    name: str
    events: Arrivals | Follows | Appears
    columns: Mapping[str, GeneratedColumn]
    """Besides the event time, `ts`."""
    delay: Delay = field(default_factory=Delay)


@dataclass(frozen=True)
class Workload:
    """Streams that belong together, and queries over them.

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
    """What equalities such as `a.k = b.k` select, where that is known."""
    seed: int = 0
    start: int = START
    """Event time of the first tuple, in microseconds since 1970."""

    def __post_init__(self) -> None:
        checks.whole(f"workload {self.name!r}: seed", self.seed, 0)
        known: list[str] = []
        for stream in self.sources:
            place = f"workload {self.name!r}: stream {stream.name!r}"
            if stream.name in known:
                raise ConfigError(f"{place} is there twice")
            events = stream.events
            if isinstance(events, Follows) and events.stream not in known:
                raise ConfigError(f"{place} follows {events.stream!r}; allowed: those before it, {listed(known)}")
            if isinstance(events, Appears) and stream.name not in events.orders.streams:
                raise ConfigError(f"{place} is not in its orders, which are of {listed(events.orders.streams)}")
            known.append(stream.name)

    def __getstate__(self) -> dict[str, Any]:
        # Without what has been drawn: it can be drawn again.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def streams(self) -> tuple[StreamSchema, ...]:
        """The streams to declare, with the lateness to allow and the rates to expect."""
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
        """The columns of a stream."""
        types = {name: self._column(stream, name).type for name in self._source(stream).columns}
        return pa.schema({EVENT_TIME: TIMESTAMP} | types)

    def sql_columns(self, stream: str) -> str:
        """The columns of a stream as Spark's schemas are written: `ts timestamp, ad_id bigint`."""
        return ", ".join(f"{column.name} {type_name(column.type)}" for column in self.columns(stream))

    def rate(self, stream: str) -> float:
        """How many tuples of a stream are expected per second of event time."""
        events = self._source(stream).events
        if isinstance(events, Follows):
            return self.rate(events.stream) * events.share
        return events.orders.keys.rate * events.orders.share(stream) if isinstance(events, Appears) else events.rate

    def declare(self, session: Any, source: Callable[[str], Any] | None = None) -> None:
        """Declare streams, selectivities and queries in a session; `source` gives each stream's frame on Spark."""
        for stream in self.streams:
            lateness = timedelta(microseconds=stream.lateness)
            given = stream.columns if source is None else source(stream.name)
            session.stream(stream.name, given, stream.event_time, lateness, stream.rate)
        for text, selectivity in self.selectivities.items():
            session.selectivity(text, selectivity)
        for name, sql in self.queries.items():
            session.query(name, sql)

    def table(self, stream: str, first: float, last: float) -> pa.Table:
        """Give the tuples that arrive from `first` until before `last`, in seconds since the start, in order of arrival."""
        return self.arrived(stream, round(first * SECOND), round(last * SECOND))

    def batches(self, seconds: float) -> Iterator[Batch]:
        """Give what arrives in one span of so many seconds after another, without end."""
        checks.above("batches: seconds", seconds)
        number = 0
        while True:
            first, last = number * seconds, (number + 1) * seconds
            yield {stream.name: self.table(stream.name, first, last) for stream in self.sources}
            number += 1

    def arrived(self, stream: str, first: int, last: int) -> pa.Table:
        """Do what `table` does, in microseconds."""
        source = self._source(stream)
        blocks = range(max(0, (first - self._reach(stream)) // self.block), max(0, -(-last // self.block)))
        parts = [self._drawn.part(stream, block, first, last) for block in blocks]
        names = (EVENT_TIME, "arrival", *source.columns)
        found = {
            name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, np.int64) for name in names
        }
        order = np.argsort(found["arrival"], kind="stable")
        columns = [pa.array(found[EVENT_TIME][order] + self.start, pa.int64()).cast(TIMESTAMP)]
        columns += [self._column(stream, name).finish(found[name][order]) for name in source.columns]
        return pa.Table.from_arrays(columns, schema=self.columns(stream))

    @cached_property
    def block(self) -> int:
        """Microseconds of a block: a power of two, so that the fastest stream has about `BLOCK_ROWS` in it."""
        fastest = max(self.rate(stream.name) for stream in self.sources)
        return 1 << min(40, max(10, round(log2(BLOCK_ROWS / fastest * SECOND))))

    def _source(self, stream: str) -> Stream:
        found = [source for source in self.sources if source.name == stream]
        if not found:
            raise ConfigError.choice(
                f"workload {self.name!r}: the stream", stream, [source.name for source in self.sources]
            )
        return found[0]

    def _column(self, stream: str, name: str) -> GeneratedColumn:
        """The kind of a column; of a copied one, that of what it is copied from."""
        source = self._source(stream)
        column = source.columns[name]
        if isinstance(column, Copied) and isinstance(source.events, Follows):
            return self._column(source.events.stream, column.name)
        return column

    def _began(self, stream: str) -> int:
        """Microseconds from the beginning of what is drawn together to an event, at most."""
        events = self._source(stream).events
        if isinstance(events, Follows):
            return self._began(events.stream) + longest_lag(events.mean)
        return events.orders.reach if isinstance(events, Appears) else 0

    def _reach(self, stream: str) -> int:
        return self._began(stream) + self._source(stream).delay.longest

    @cached_property
    def _drawn(self) -> _Drawn:
        kept = {stream.name: self._reach(stream.name) // self.block + 3 for stream in self.sources}
        return _Drawn(self, kept)


class _Drawn:
    """Blocks of streams, drawn when they are asked for; of each stream as many are remembered as a range may need."""

    def __init__(self, workload: Workload, kept: Mapping[str, int]) -> None:
        self._workload, self._kept = workload, kept
        self._sources = {stream.name: stream for stream in workload.sources}
        self._blocks: dict[str, OrderedDict[int, Events]] = {name: OrderedDict() for name in kept}

    def part(self, stream: str, block: int, first: int, last: int) -> Events:
        """What of a block arrives in a range."""
        events = self.events(stream, block)
        arrival = events["arrival"]
        # Most blocks lie in the range as a whole, or not at all.
        if len(arrival) and arrival.min() >= first and arrival.max() < last:
            return events
        inside = np.flatnonzero((arrival >= first) & (arrival < last))
        return {name: values[inside] for name, values in events.items()}

    def events(self, stream: str, block: int) -> Events:
        """All that begins in a block of a stream."""
        kept = self._blocks[stream]
        if block not in kept:
            kept[block] = self._draw(self._sources[stream], block)
        kept.move_to_end(block)
        while len(kept) > self._kept[stream]:
            kept.popitem(last=False)
        return kept[block]

    def _draw(self, source: Stream, block: int) -> Events:
        rng = self._generator(source.name, block)
        given = self._begin(source, rng, block)
        seconds = given[EVENT_TIME] / SECOND
        found = {EVENT_TIME: given[EVENT_TIME]}
        for name, column in source.columns.items():
            found[name] = (
                given[column.name] if isinstance(column, Copied) and column.name in given else column.draw(rng, seconds)
            )
        found["arrival"] = found[EVENT_TIME] + source.delay.draw(rng, len(seconds))
        return found

    def _begin(self, source: Stream, rng: np.random.Generator, block: int) -> Events:
        """When events are, and what may be copied."""
        events, length = source.events, self._workload.block
        if isinstance(events, Arrivals):
            return {EVENT_TIME: events.times(rng, block * length, (block + 1) * length, self._seeds(source.name))}
        if isinstance(events, Follows):
            followed = self.events(events.stream, block)
            chosen = np.flatnonzero(rng.random(len(followed[EVENT_TIME])) < events.share)
            later = lags(rng, events.mean, len(chosen))
            copied = {name: values[chosen] for name, values in followed.items()}
            return copied | {EVENT_TIME: followed[EVENT_TIME][chosen] + later}
        orders = events.orders
        shared = "/".join(orders.streams)  # all its streams draw the same
        common = self._generator(shared, block)
        starts = orders.keys.times(common, block * length, (block + 1) * length, self._seeds(shared))
        places, times = orders.appearances(common, starts)
        place = places[:, orders.streams.index(source.name)]
        there = np.flatnonzero(place >= 0)
        return {EVENT_TIME: times[there, place[there]], KEY: block * _BLOCK_KEYS + there}

    def _seeds(self, name: str) -> tuple[int, int]:
        return self._workload.seed, crc32(name.encode())

    def _generator(self, name: str, block: int) -> np.random.Generator:
        return np.random.default_rng([*self._seeds(name), block])
