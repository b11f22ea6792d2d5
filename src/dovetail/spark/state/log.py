"""A shard's state: the log of the tuples that its windows still need, and the manifest that says what is in it.

Both are in one map of Spark's, since each state that a shard declares costs every batch milliseconds: segments are Arrow IPC bytes
under numbers from 0, the manifest is JSON under `MANIFEST`. All else (indexes, flags, count windows) is derived,
so no change of plan invalidates a checkpoint. Segments are only ever read by the numbers that the manifest names, never by
iterating over the map, whose iterator has been seen to end early without an error. A segment that is missing, whose digest differs or
that has another number of tuples is an error, never an empty window; so is a manifest that is not as it was written.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int64Array
from dovetail.errors import StateError
from dovetail.schema import NUMBER, StreamSchema
from dovetail.spark.wire import from_ipc, to_ipc

VERSION = 1
MANIFEST = -1
MOST_SEGMENTS = 8
"""Small segments of a stream, beyond which they are put together."""
SMALL_BYTES = 1 << 20
UNCOUNTED = dict.fromkeys(("arrived", "late", "ahead", "refused", "late_by"), 0)
"""Counters of a shard that begins while others have counted already."""
_LARGEST = ("late_by",)
"""Of these counters the largest counts, not the sum."""
FIRST_NUMBER = 1 << 60
"""Of tuples that are numbered when they come."""
CODEC = "zstd"
ENTRY_BYTES = 4 << 20
"""Larger values take longer, byte by byte."""
RESTORE = "restore the checkpoint directory from a copy, or start with a new one"


class SegmentMap(Protocol):
    """What the log needs of Spark's map state."""

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None: ...  # noqa: N802

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None: ...  # noqa: N802

    def removeKey(self, key: tuple[int]) -> None: ...  # noqa: N802


@dataclass(slots=True)
class Segment:
    """One entry of the log."""

    number: int
    stream: str
    rows: int
    size: int
    oldest: int
    newest: int
    digest: str
    batch: int = 0
    """The number of the batch that its tuples came with; if there were several, of the last."""
    span: tuple[int, int] | None = None
    """The first and the last number of its tuples, if they have numbers."""


@dataclass(slots=True)
class Stored:
    """Bytes that are no tuples, in entries of the map of their own."""

    entries: list[int]
    size: int
    packed: int
    """Bytes as they are read, and as they lie in the map."""
    digest: str


@dataclass(slots=True)
class ShardManifest:
    """What a shard's state holds, and how far its streams have come."""

    layout: str
    token: str | None = None
    next: int = 0
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stream, as `StreamProgress.to_json` gives it."""
    segments: list[Segment] = field(default_factory=list)
    batches: int = 0
    """How many there were."""
    epoch: int | None = None
    """The start of the streaming query that wrote it; None if a release without epochs did, or resharding."""
    kept_from: dict[str, int] = field(default_factory=dict)
    """By stream: older tuples may have been forgotten."""
    reach: dict[str, dict[str, int]] = field(default_factory=dict)
    """For queries that also see what was there before them, by the batch that they came with and by stream: from which time on."""
    numbers: dict[str, int] = field(default_factory=dict)
    """By stream whose tuples are numbered: the next number."""
    shedding: Stored | None = None
    """What is known for shedding."""
    version: int = VERSION

    def to_json(self) -> str:
        content = asdict(self)
        return json.dumps(content | {"digest": _digest_of(content)})

    @classmethod
    def from_json(cls, text: bytes, layout: str) -> ShardManifest:
        try:
            return cls._read(json.loads(text), layout)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"a shard's manifest is damaged: {type(error).__name__}: {error}", RESTORE) from None

    @classmethod
    def _read(cls, stored: dict[str, Any], layout: str) -> ShardManifest:
        digest = stored.pop("digest", None)  # checkpoints of earlier releases have none
        if stored.get("version") != VERSION:
            raise StateError(
                f"the checkpoint has state version {stored.get('version')}; this release reads version {VERSION}"
            )
        if digest is not None and digest != _digest_of(stored):
            raise StateError("a shard's manifest is damaged: its digest does not match", RESTORE)
        if stored["layout"] != layout:
            raise StateError(
                "the checkpoint belongs to other streams, queries or another number of shards",
                "start with a new checkpoint directory and new sinks, or with the session that wrote this one",
            )
        stored.pop("plan", None)  # in the place of the epoch, in checkpoints of earlier releases
        shedding = Stored(**stored["shedding"]) if stored.get("shedding") else None
        segments = [Segment(**segment) for segment in stored["segments"]]
        return cls(**{**stored, "segments": segments, "shedding": shedding})


class Log:
    """The segments of one shard, behind its manifest.

    Where tuples may be shed they are `numbered`: each has its own number in one more column, and those that came later a larger one.
    """

    def __init__(self, segments: SegmentMap, layout: str, streams: Mapping[str, StreamSchema] | None = None) -> None:
        """Read the manifest; `streams` say which columns tuples are to have, whatever they had when they were added."""
        self._segments = segments
        self.numbered = False
        self._streams = streams or {}
        stored = segments.getValue((MANIFEST,))
        self.manifest = ShardManifest.from_json(bytes(stored[0]), layout) if stored else ShardManifest(layout)

    def save(self) -> None:
        """Keep the manifest as it is now."""
        self._segments.updateValue((MANIFEST,), (self.manifest.to_json().encode(),))

    def clear(self) -> None:
        """Remove everything."""
        self._remove_shedding()
        for segment in self.manifest.segments:
            self._segments.removeKey((segment.number,))
        if self._segments.getValue((MANIFEST,)) is not None:
            self._segments.removeKey((MANIFEST,))

    def append(self, stream: StreamSchema, table: pa.Table, batch: int) -> None:
        """Add tuples that came with a batch."""
        content = to_ipc(table)
        times = pc.min_max(micros(table, stream.event_time)).as_py()
        span = tuple(pc.min_max(table.column(NUMBER)).as_py().values()) if self.numbered else None
        self.manifest.segments.append(
            Segment(
                self._added(content),
                stream.name,
                table.num_rows,
                len(content),
                times["min"],
                times["max"],
                _digest(content),
                batch,
                span,
            )
        )

    def _added(self, content: bytes) -> int:
        """Add an entry to the map; return its number."""
        number = self.manifest.next
        self._segments.updateValue((number,), (content,))
        self.manifest.next = number + 1
        return number

    def number(self, stream: str, table: pa.Table) -> pa.Table:
        """New tuples of a stream with their numbers."""
        first = self.manifest.numbers.get(stream, FIRST_NUMBER)
        self.manifest.numbers[stream] = first + table.num_rows
        return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))

    def tables(self, stream: str) -> Iterator[pa.Table]:
        """The tuples of a stream, in the order they were added."""
        for segment in self.manifest.segments:
            if segment.stream == stream:
                yield self._read(segment)

    def forget(self, stream: str, oldest: int | None) -> None:
        """Remove segments that hold nothing as late as `oldest` (None: that hold nothing needed at all)."""
        kept = []
        for segment in self.manifest.segments:
            if segment.stream == stream and (oldest is None or segment.newest < oldest):
                self._segments.removeKey((segment.number,))
            else:
                kept.append(segment)
        self.manifest.segments = kept

    def held(self, begins: Sequence[int] = (0,)) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        """All tuples, earliest first, each part with the last batch of which some came with; `begins` part them as in `compact`."""
        parts: dict[int, list[Segment]] = {}
        for segment in self.manifest.segments:
            parts.setdefault(bisect(begins, segment.batch), []).append(segment)
        for _, segments in sorted(parts.items()):
            streams = dict.fromkeys(segment.stream for segment in segments)
            tables = {stream: [self._read(each) for each in segments if each.stream == stream] for stream in streams}
            came = max(segment.batch for segment in segments)
            yield came, {stream: pa.concat_tables(found) for stream, found in tables.items()}

    def thin_out(self, stream: StreamSchema, kept: Int64Array) -> None:
        """Write segments again of which less than half is `kept`, by numbers in order."""
        for segment in [each for each in self.manifest.segments if each.stream == stream.name]:
            first, last = segment.span or _numbers_of(segment)[[0, -1]]
            alive = int(np.searchsorted(kept, last, "right") - np.searchsorted(kept, first))
            if 2 * alive < segment.rows:
                table = only(self._read(segment), kept) if alive else None
                self._segments.removeKey((segment.number,))
                self.manifest.segments.remove(segment)
                if table is not None and table.num_rows:
                    self.append(stream, table, segment.batch)

    def keep_shedding(self, content: bytes) -> None:
        """Keep what is known for shedding, in the place of what was."""
        self._remove_shedding()
        packed = pa.compress(content, codec=CODEC, asbytes=True)
        parts = [packed[at : at + ENTRY_BYTES] for at in range(0, len(packed), ENTRY_BYTES)]
        entries = [self._added(part) for part in parts]
        self.manifest.shedding = Stored(entries, len(content), len(packed), _digest(packed))

    def shedding(self) -> pa.Buffer | None:
        """What is known for shedding; None if nothing is."""
        stored = self.manifest.shedding
        if stored is None:
            return None
        values = [self._segments.getValue((number,)) for number in stored.entries]
        packed = b"".join(bytes(value[0]) for value in values if value is not None)
        if None in values or _digest(packed) != stored.digest:
            raise StateError("what is known for shedding is missing from the checkpoint, or damaged", RESTORE)
        return pa.decompress(packed, stored.size, codec=CODEC)

    def end_shedding(self, streams: Mapping[str, StreamSchema], kept: Mapping[str, Int64Array] | None) -> None:
        """From now on nothing is shed: forget what has been, keep the others without numbers, by stream."""
        self._remove_shedding()
        self.numbered, segments, self.manifest.segments = True, self.manifest.segments, []
        tables = [self._read(segment) for segment in segments]
        self.numbered = False
        for segment, table in zip(segments, tables, strict=True):
            self._segments.removeKey((segment.number,))
            left = table if kept is None or segment.stream not in kept else only(table, kept[segment.stream])
            if left.num_rows:
                self.append(streams[segment.stream], _without_numbers(left), segment.batch)

    def _remove_shedding(self) -> None:
        for number in self.manifest.shedding.entries if self.manifest.shedding is not None else ():
            self._segments.removeKey((number,))
        self.manifest.shedding = None

    def compact(
        self, stream: StreamSchema, oldest: int, begins: Sequence[int] = (0,), kept: Int64Array | None = None
    ) -> None:
        """Put small segments of a stream together when there are too many, without what is older than `oldest` or not `kept`.

        `begins` are the batches from which on queries see tuples: what came before one of them stays apart from what came after.
        """
        own = [s for s in self.manifest.segments if s.stream == stream.name and s.size < SMALL_BYTES]
        for era in {bisect(begins, segment.batch) for segment in own}:
            small = [segment for segment in own if bisect(begins, segment.batch) == era]
            if len(small) > MOST_SEGMENTS:
                self._put_together(stream, small, oldest, kept)

    def _put_together(
        self, stream: StreamSchema, small: Sequence[Segment], oldest: int, kept: Int64Array | None
    ) -> None:
        table = pa.concat_tables([self._read(segment) for segment in small])
        if kept is not None:
            table = only(table, kept)
        for segment in small:
            self._segments.removeKey((segment.number,))
        numbers = {segment.number for segment in small}
        self.manifest.segments = [s for s in self.manifest.segments if s.number not in numbers]
        left = since(table, stream.event_time, oldest)
        if left.num_rows:
            self.append(stream, left, max(segment.batch for segment in small))

    def _read(self, segment: Segment) -> pa.Table:
        value = self._segments.getValue((segment.number,))
        table = tuples_of(segment, None if value is None else bytes(value[0]))
        numbers = None
        if self.numbered:
            has = NUMBER in table.column_names
            numbers = table.column(NUMBER) if has else pa.chunked_array([_numbers_of(segment)])
        if segment.stream in self._streams:
            table = _with_columns(table, self._streams[segment.stream])
        return table if numbers is None else _without_numbers(table).append_column(NUMBER, numbers)


def tuples_of(segment: Segment, content: bytes | None) -> pa.Table:
    """The tuples of a segment, whose bytes were found under its number, if any were."""
    if content is None:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} is missing from the checkpoint", RESTORE
        )
    if _digest(content) != segment.digest:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} is damaged: its digest does not match", RESTORE
        )
    table = from_ipc(content)
    if table.num_rows != segment.rows:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} holds {table.num_rows} tuples; "
            f"its manifest says {segment.rows}",
            RESTORE,
        )
    return table


def _with_columns(table: pa.Table, stream: StreamSchema) -> pa.Table:
    """Tuples with the columns that their stream has now; what was not carried when they came is NULL, and nobody sees it."""
    if table.schema.names == stream.columns.names:
        return table
    known = set(table.schema.names)
    columns = [
        table.column(each.name) if each.name in known else pa.nulls(table.num_rows, each.type)
        for each in stream.columns
    ]
    return pa.table(columns, schema=stream.columns)


def _without_numbers(table: pa.Table) -> pa.Table:
    return table.drop_columns([NUMBER]) if NUMBER in table.column_names else table


def _numbers_of(segment: Segment) -> Int64Array:
    """Numbers for tuples that were logged without, before they could be shed: smaller than all others."""
    return np.arange(segment.rows) + (segment.number << 32)


def add_counters(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a stream in two shards together."""
    pairs = {name: (int(left.get(name, 0)), int(right.get(name, 0))) for name in UNCOUNTED}
    return {name: max(pair) if name in _LARGEST else sum(pair) for name, pair in pairs.items()}


def only(table: pa.Table, kept: Int64Array) -> pa.Table:
    """The tuples whose numbers are `kept`, which are in order."""
    numbers = table.column(NUMBER).to_numpy()
    places = np.minimum(np.searchsorted(kept, numbers), max(0, len(kept) - 1))
    return table.filter(pa.array(kept[places] == numbers)) if len(kept) else table.slice(0, 0)


def micros(table: pa.Table, event_time: str) -> pa.ChunkedArray:
    """Event times in microseconds, which is what Spark's timestamps are."""
    return table.column(event_time).cast(pa.int64())


def since(table: pa.Table, event_time: str, oldest: int) -> pa.Table:
    """The tuples as late as `oldest`, or later."""
    kept = pc.greater_equal(micros(table, event_time), oldest)
    return table if pc.all(kept).as_py() else table.filter(kept)


def _digest_of(content: dict[str, Any]) -> str:
    return _digest(json.dumps(content, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
