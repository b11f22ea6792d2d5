"""Progress of streams in event time: watermarks, late tuples and idle streams.

`max_event_time` is the largest event time of a stream in *earlier* batches; with `progress_by` it is the smallest over the stream's
partitions. An idle stream takes it from the streams it is joined with, and `advance` sets it. The watermark is `max_event_time -
lateness`. A tuple is late if and only if its event time is below the watermark. All tuples of a batch are compared with the same
watermark, so their order within the batch does not matter, and no tuple of a later batch is accepted below it. Progress never moves
backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.keys import codes_of
from dovetail.query.expressions import Column, cast
from dovetail.schema import StreamSchema, sql_type

PartitionValue = str | int | None
LATEST = 1 << 61
"""Largest event time, in microseconds; sums of times and windows stay in range."""


@dataclass(slots=True)
class ArrivalStats:
    """Arrival counts and largest event times of one stream in one batch."""

    arrived: int = 0
    late: int = 0
    """Tuples below the watermark."""
    ahead: int = 0
    """Tuples more than `max_ahead` after the clock."""
    refused: int = 0
    """Tuples without a usable event time: NULL or out of range."""
    late_by: int = 0
    """Largest delay of a late tuple behind `max_event_time`, in microseconds: with this lateness none would have been late."""
    max_event_time: int = LONG_AGO
    partition_max_times: dict[PartitionValue, int] = field(default_factory=dict)
    """Largest event time of each partition, if the stream has `progress_by`."""

    def add(self, other: ArrivalStats) -> None:
        """Add another part of the same batch."""
        self.arrived += other.arrived
        self.late += other.late
        self.ahead += other.ahead
        self.refused += other.refused
        self.late_by = max(self.late_by, other.late_by)
        self.max_event_time = max(self.max_event_time, other.max_event_time)
        for value, time in other.partition_max_times.items():
            self.partition_max_times[value] = max(time, self.partition_max_times.get(value, LONG_AGO))


_COUNTERS = ("moved_at", "arrived", "late", "ahead", "refused", "late_by")
_ALL = ("max_event_time", "partition_max_times", *_COUNTERS)
_values_of = attrgetter(*_ALL)
BATCH_COUNTS = {"arrivals": "arrived", "late": "late", "ahead": "ahead", "refused": "refused"}
"""Counters that `added_since` compares, by their names in metrics."""


@dataclass(slots=True)
class StreamProgress:
    """Largest event time of one stream, and its arrival counts."""

    schema: StreamSchema
    max_event_time: int = LONG_AGO
    partition_max_times: dict[PartitionValue, int] = field(default_factory=dict)
    moved_at: int | None = None
    """Clock reading when `max_event_time` last grew."""
    arrived: int = 0
    late: int = 0
    ahead: int = 0
    refused: int = 0
    late_by: int = 0
    """Lateness, in microseconds, that would have kept every tuple."""

    def save(self) -> tuple[Any, ...]:
        """Return everything but the schema, for `rollback`."""
        values: tuple[Any, ...] = _values_of(self)
        return values

    def added_since(self, values: tuple[Any, ...]) -> dict[str, int]:
        """Return what has been counted since `save` returned `values`."""
        before = dict(zip(_ALL, values, strict=True))
        return {name: getattr(self, counter) - before[counter] for name, counter in BATCH_COUNTS.items()}

    def rollback(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(_ALL, values, strict=True):
            setattr(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the schema."""
        return {
            "head": self.max_event_time,
            **{name: getattr(self, name) for name in _COUNTERS},
            "partition_heads": list(self.partition_max_times.items()),
        }

    def restore(self, serialized: Mapping[str, Any]) -> None:
        """Set everything but the schema from the output of `to_json`."""
        values = {"late_by": 0, **serialized}  # earlier releases did not write late_by
        for name in _COUNTERS:
            setattr(self, name, values[name])
        self.max_event_time, self.partition_max_times = serialized["head"], dict(serialized["partition_heads"])

    @property
    def watermark(self) -> int:
        """Earliest event time that a later batch may hold."""
        return self.max_event_time - self.schema.lateness if self.max_event_time > LONG_AGO else LONG_AGO

    def on_time(
        self, ts: Int64Array, stats: ArrivalStats, counted: int | None = None, smallest: int = LONG_AGO
    ) -> BoolArray | None:
        """Return a mask of the tuples that are on time, or None if all are; count the late ones in `stats`.

        Both sessions decide here what is late. `counted`: number of leading tuples to count, all by default; on Spark a tuple can have
        copies in several shards, of which one counts it. `smallest`: a lower bound of `ts`, which often spares a look at each tuple.
        """
        if smallest >= self.watermark > LONG_AGO:
            return None
        on_time: BoolArray = ts >= self.watermark
        if on_time.all():
            return None
        late = ts[:counted][~on_time[:counted]]
        if len(late):
            stats.late += len(late)
            stats.late_by = max(stats.late_by, self.max_event_time - int(late.min()))
        return on_time

    def observe(self, stats: ArrivalStats, now: int | None) -> None:
        """Add the arrivals of a batch and advance to its event time."""
        self.arrived += stats.arrived
        self.late += stats.late
        self.ahead += stats.ahead
        self.refused += stats.refused
        self.late_by = max(self.late_by, stats.late_by)
        self.advance(self.max_event_time_after(stats), now)
        if stats.partition_max_times:
            self.partition_max_times = self._partition_max_times_after(stats)

    def max_event_time_after(self, stats: ArrivalStats) -> int:
        """Return `max_event_time` as it is once a batch has been observed."""
        if self.schema.progress_by is None:
            return max(self.max_event_time, stats.max_event_time)
        return max(self.max_event_time, min(self._partition_max_times_after(stats).values(), default=LONG_AGO))

    def _partition_max_times_after(self, stats: ArrivalStats) -> dict[PartitionValue, int]:
        times = dict(self.partition_max_times)
        for value, time in stats.partition_max_times.items():
            times[value] = max(time, times.get(value, LONG_AGO))
        return times

    def advance(self, time: int, now: int | None = None) -> None:
        """Move `max_event_time` forward to `time`; an earlier time changes nothing."""
        if now is not None and (time > self.max_event_time or self.moved_at is None):
            self.moved_at = now
        self.max_event_time = max(self.max_event_time, time)

    def is_idle(self, now: int | None) -> bool:
        """Whether the stream has made no progress for longer than `idle_after`."""
        if self.schema.idle_after is None or now is None or self.moved_at is None:
            return False
        return now - self.moved_at > self.schema.idle_after


def latest_allowed(schema: StreamSchema, now: int | None) -> int:
    """Return the event time beyond which tuples are too far ahead of the clock."""
    return LATEST if now is None or schema.max_ahead is None else min(LATEST, now + schema.max_ahead)


def usable(ts: Int64Array, limit: int, stats: ArrivalStats) -> BoolArray:
    """Return which event times are in range and not after `limit`; count the others in `stats`."""
    in_range = (ts >= -LATEST) & (ts <= LATEST)
    mask: BoolArray = in_range & (ts <= limit)
    stats.ahead += int(np.count_nonzero(in_range & ~mask))
    stats.refused += int(np.count_nonzero(~in_range))
    return mask


class Progress:
    """Progress of all streams."""

    def __init__(self, streams: Mapping[str, StreamSchema]) -> None:
        self.streams = {name: StreamProgress(schema) for name, schema in streams.items()}

    def __getitem__(self, stream: str) -> StreamProgress:
        return self.streams[stream]

    @property
    def watermarks(self) -> dict[str, int]:
        """Watermark of each stream."""
        return {name: progress.watermark for name, progress in self.streams.items()}

    def watermark(self, streams: Iterable[str]) -> int:
        """Return the smallest watermark of some streams."""
        return min([self.streams[stream].watermark for stream in streams])

    def advance_idle_streams(self, now: int | None, related: Mapping[str, set[str]]) -> None:
        """Advance idle streams to the slowest active stream they are joined with.

        So they delay no expiry.

        A tuple that arrives below the new watermark is late, and counted. If tuples expired without advancing the stream, its results
        would be lost silently.
        """
        if now is None:
            return
        for progress in self.streams.values():
            if progress.moved_at is None:
                progress.moved_at = now  # a stream without tuples has been idle since the first batch
        for name, progress in self.streams.items():
            if progress.is_idle(now):
                joined = (self.streams[other] for other in related.get(name, ()) if other != name)
                active = [other.watermark for other in joined if not other.is_idle(now)]
                if active and min(active) > LONG_AGO:
                    time = min(active) + progress.schema.lateness
                    progress.max_event_time = max(progress.max_event_time, time)


def partition_max_times(ts: Int64Array, partitions: pa.Array) -> dict[PartitionValue, int]:
    """Return the largest event time of each partition.

    Its key is the partition's text, or the code of another value: JSON can hold both.
    """
    kind = sql_type(partitions.type)
    values = evaluate(cast(Column("", "p", partitions.type), kind), lambda _: partitions, len(partitions))
    keys = values if pa.types.is_string(kind) else pa.array(codes_of(values), mask=values.is_null().to_numpy(False))
    largest = pa.table({"p": keys, "t": ts}).group_by("p").aggregate([("t", "max")])
    return dict(zip(_values(largest["p"]), largest["t_max"].to_pylist(), strict=True))


def _values(partitions: pa.ChunkedArray) -> list[PartitionValue]:
    try:
        values: list[PartitionValue] = partitions.to_pylist()
    except UnicodeDecodeError:
        read = partitions.cast(pa.binary()).to_pylist()
        return [None if value is None else value.decode(errors="backslashreplace") for value in read]
    return values
