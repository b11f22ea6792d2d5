"""How far each stream has come, and which tuples are too late or too far ahead.

H is a stream's largest event time in *earlier* batches. A tuple is late if and only if its time is below H - lateness; all tuples of a
batch are judged by the same H, so their order within it never matters. The watermark, H - lateness, is the earliest time that a
tuple of a later batch can have. Time only moves forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.keys import codes_of
from dovetail.query.expressions import Column, cast
from dovetail.schema import StreamSchema, sql_type

PartitionValue = str | int | None
LATEST = 1 << 61
"""The largest event time, in microseconds; sums of times and windows then stay in range."""


@dataclass(slots=True)
class Observed:
    """What one batch of a stream says about its progress, and what was refused of it."""

    arrived: int = 0
    late: int = 0
    ahead: int = 0
    refused: int = 0
    """Tuples without a usable event time."""
    late_by: int = 0
    """How far the last of the late tuples was behind H, in microseconds: a lateness of that would have kept all of them."""
    largest: int = LONG_AGO
    heads: dict[PartitionValue, int] = field(default_factory=dict)
    """The largest event time of each partition, where progress is kept by partition."""

    def add(self, other: Observed) -> None:
        """Take in another part of the same batch."""
        self.arrived += other.arrived
        self.late += other.late
        self.ahead += other.ahead
        self.refused += other.refused
        self.late_by = max(self.late_by, other.late_by)
        self.largest = max(self.largest, other.largest)
        for value, time in other.heads.items():
            self.heads[value] = max(time, self.heads.get(value, LONG_AGO))


_STORED = ("head", "moved_at", "arrived", "late", "ahead", "refused", "late_by")
_ALL = (*_STORED, "partition_heads")
_figures = attrgetter(*_ALL)


@dataclass(slots=True)
class StreamProgress:
    """One stream's H, and what was refused."""

    schema: StreamSchema
    head: int = LONG_AGO
    partition_heads: dict[PartitionValue, int] = field(default_factory=dict)
    moved_at: int | None = None
    """Clock reading when H last moved."""
    arrived: int = 0
    late: int = 0
    ahead: int = 0
    refused: int = 0
    late_by: int = 0
    """The lateness, in microseconds, that would have kept every tuple."""

    def figures(self) -> tuple[Any, ...]:
        """Everything but the declaration, for `rollback`."""
        found: tuple[Any, ...] = _figures(self)
        return found

    def rollback(self, figures: tuple[Any, ...]) -> None:
        for name, value in zip(_ALL, figures, strict=True):
            setattr(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Everything but the declaration."""
        stored: dict[str, Any] = {name: getattr(self, name) for name in _STORED}
        return stored | {"partition_heads": list(self.partition_heads.items())}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave."""
        known = {"late_by": 0, **stored}  # checkpoints of earlier releases do not know it
        for name in _STORED:
            setattr(self, name, known[name])
        self.partition_heads = dict(stored["partition_heads"])

    @property
    def watermark(self) -> int:
        """The earliest event time that a later batch may hold."""
        return self.head - self.schema.lateness if self.head > LONG_AGO else LONG_AGO

    def observe(self, seen: Observed, now: int | None) -> None:
        """Take note of a batch."""
        self.arrived += seen.arrived
        self.late += seen.late
        self.ahead += seen.ahead
        self.refused += seen.refused
        self.late_by = max(self.late_by, seen.late_by)
        self.move(self.head_after(seen), now)
        self.partition_heads = self._partition_heads_after(seen)

    def head_after(self, seen: Observed) -> int:
        """H once a batch has been observed."""
        if self.schema.progress_by is None:
            return max(self.head, seen.largest)
        return max(self.head, min(self._partition_heads_after(seen).values(), default=LONG_AGO))

    def _partition_heads_after(self, seen: Observed) -> dict[PartitionValue, int]:
        heads = dict(self.partition_heads)
        for value, time in seen.heads.items():
            heads[value] = max(time, heads.get(value, LONG_AGO))
        return heads

    def move(self, head: int, now: int | None = None) -> None:
        """Move H forward, if it is."""
        if now is not None and (head > self.head or self.moved_at is None):
            self.moved_at = now
        self.head = max(self.head, head)

    def is_idle(self, now: int | None) -> bool:
        """Whether the stream has stood still for longer than it may."""
        if self.schema.idle_after is None or now is None or self.moved_at is None:
            return False
        return now - self.moved_at > self.schema.idle_after


def too_far(schema: StreamSchema, now: int | None) -> int:
    """The time after which tuples are set aside."""
    return LATEST if now is None or schema.max_ahead is None else min(LATEST, now + schema.max_ahead)


class Progress:
    """The progress of all streams."""

    def __init__(self, streams: Mapping[str, StreamSchema]) -> None:
        self.streams = {name: StreamProgress(schema) for name, schema in streams.items()}

    def __getitem__(self, stream: str) -> StreamProgress:
        return self.streams[stream]

    @property
    def watermarks(self) -> dict[str, int]:
        """By stream."""
        return {name: progress.watermark for name, progress in self.streams.items()}

    def watermark(self, streams: Iterable[str]) -> int:
        """The smallest watermark of some streams."""
        return min([self.streams[stream].watermark for stream in streams])

    def lift_idle(self, now: int | None, related: Mapping[str, set[str]]) -> None:
        """Bring idle streams up to the slowest active one that they are joined with, so that they hold nobody's state.

        A tuple that comes after all and lies behind is then late, and counted: dropping state without moving H would lose
        its results silently.
        """
        if now is None:
            return
        for progress in self.streams.values():
            if progress.moved_at is None:
                progress.moved_at = now  # a stream that never spoke has stood still since the first batch
        for name, progress in self.streams.items():
            if progress.is_idle(now):
                others = (self.streams[other] for other in related.get(name, ()) if other != name)
                active = [other.watermark for other in others if not other.is_idle(now)]
                if active and min(active) > LONG_AGO:
                    progress.head = max(progress.head, min(active) + progress.schema.lateness)


def partition_heads(ts: Int64Array, partitions: pa.Array) -> dict[PartitionValue, int]:
    """The largest event time of each partition: texts by themselves, other values by their codes, which JSON can hold."""
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
