"""A shard's log in Spark's state store: segments of tuples that windows need, and their manifest.

Both are in one map state, because every further state costs milliseconds per batch: segments are Arrow IPC bytes under numbers from
0, the manifest is JSON under `MANIFEST`. Indexes, flags and count windows are derived, so no change of plan invalidates a checkpoint.
Segments are read by the numbers in the manifest, never by iterating over the map: Spark's iterator has been seen to end early without
an error. A segment that is missing, has another digest or another number of tuples is an error, never an empty window; so is a
manifest whose digest does not match.
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
from dovetail.schema import NUMBER_COLUMN, StreamSchema
from dovetail.spark.wire import from_ipc, to_ipc

VERSION = 1
MANIFEST = -1
MAX_SMALL_SEGMENTS = 8
"""Number of a stream's small segments above which they are merged."""
SMALL_SEGMENT_BYTES = 1 << 20
ZERO_COUNTERS = dict.fromkeys(("arrived", "late", "ahead", "refused", "late_by"), 0)
"""Counters of a shard that starts later than others."""
_MAX_COUNTERS = ("late_by",)
"""Counters that combine by maximum instead of sum."""
FIRST_TUPLE_NUMBER = 1 << 60
"""First number of tuples that are numbered on arrival."""
CODEC = "zstd"
MAX_ENTRY_BYTES = 4 << 20
"""Larger map values take longer per byte."""
_JSON_NAMES = {
    "next_segment": "next", "next_batch": "batches", "backfill_from": "reach", "next_tuple_numbers": "numbers",
}  # fmt: skip
"""Fields of a manifest that have another name in JSON; the JSON names are part of the stored format."""
RESTORE_HINT = "restore the checkpoint directory from a copy, or start with a new one"


class SegmentMap(Protocol):
    """The methods of Spark's map state that the log uses."""

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None: ...  # noqa: N802

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None: ...  # noqa: N802

    def removeKey(self, key: tuple[int]) -> None: ...  # noqa: N802


@dataclass(slots=True)
class Segment:
    """One entry of the log: tuples of one stream."""

    number: int
    """Its key in the map."""
    stream: str
    rows: int
    size: int
    oldest: int
    newest: int
    digest: str
    batch: int = 0
    """Batch in which its tuples arrived; the last one, if there were several."""
    span: tuple[int, int] | None = None
    """First and last number of its tuples, if they are numbered."""


@dataclass(slots=True)
class Blob:
    """Compressed bytes other than tuples, split over several entries of the map."""

    entries: list[int]
    size: int
    """Bytes before compression."""
    packed: int
    """Bytes in the map."""
    digest: str


@dataclass(slots=True)
class ShardManifest:
    """Content of a shard's state, and the progress of its streams."""

    layout: str
    token: str | None = None
    next_segment: int = 0
    """The number of the next entry of the map."""
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stream, as `StreamProgress.to_json` gives it."""
    segments: list[Segment] = field(default_factory=list)
    next_batch: int = 0
    """The batch after the last one that the state contains."""
    epoch: int | None = None
    """Start of the streaming query that wrote it; None if resharding wrote it, or a release without epochs."""
    kept_from: dict[str, int] = field(default_factory=dict)
    """By stream: the log is complete from this event time on."""
    backfill_from: dict[str, dict[str, int]] = field(default_factory=dict)
    """By start batch of a query with backfill and by stream: the earliest event time that the query sees."""
    next_tuple_numbers: dict[str, int] = field(default_factory=dict)
    """By stream whose tuples are numbered: the next number."""
    shedding: Blob | None = None
    """State of the shedder."""
    version: int = VERSION

    def to_json(self) -> str:
        content = {_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(content | {"digest": _digest_of(content)})

    @classmethod
    def from_json(cls, text: bytes, layout: str) -> ShardManifest:
        try:
            return cls._read(json.loads(text), layout)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"a shard's manifest is damaged: {type(error).__name__}: {error}", RESTORE_HINT) from None

    @classmethod
    def _read(cls, serialized: dict[str, Any], layout: str) -> ShardManifest:
        digest = serialized.pop("digest", None)  # checkpoints of earlier releases have none
        if serialized.get("version") != VERSION:
            raise StateError(
                f"the checkpoint has state version {serialized.get('version')}; this release reads version {VERSION}"
            )
        if digest is not None and digest != _digest_of(serialized):
            raise StateError("a shard's manifest is damaged: its digest does not match", RESTORE_HINT)
        if serialized["layout"] != layout:
            raise StateError(
                "the checkpoint belongs to other streams, queries or another number of shards",
                "start with a new checkpoint directory and new sinks, or with the session that wrote this one",
            )
        serialized.pop("plan", None)  # checkpoints of earlier releases have it instead of the epoch
        shedding = Blob(**serialized["shedding"]) if serialized.get("shedding") else None
        segments = [Segment(**segment) for segment in serialized["segments"]]
        names = {json_name: name for name, json_name in _JSON_NAMES.items()}
        content = {names.get(json_name, json_name): value for json_name, value in serialized.items()}
        return cls(**{**content, "segments": segments, "shedding": shedding})


class ShardLog:
    """The manifest and segments of one shard.

    If tuples may be shed, the log is *numbered*: one more column gives each tuple of a stream a number, in order of arrival.
    """

    def __init__(self, segments: SegmentMap, layout: str, streams: Mapping[str, StreamSchema] | None = None) -> None:
        """Read the manifest; `streams` gives the columns of tuples, whatever they were written with."""
        self._segments = segments
        self.is_numbered = False
        self._streams = streams or {}
        entry = segments.getValue((MANIFEST,))
        self.manifest = ShardManifest.from_json(bytes(entry[0]), layout) if entry else ShardManifest(layout)

    def save(self) -> None:
        """Write the manifest."""
        self._segments.updateValue((MANIFEST,), (self.manifest.to_json().encode(),))

    def clear(self) -> None:
        """Remove all segments and the manifest."""
        self._remove_shedder()
        for segment in self.manifest.segments:
            self._segments.removeKey((segment.number,))
        if self._segments.getValue((MANIFEST,)) is not None:
            self._segments.removeKey((MANIFEST,))

    def append(self, stream: StreamSchema, table: pa.Table, batch: int) -> None:
        """Add tuples that arrived with a batch."""
        content = to_ipc(table)
        times = pc.min_max(event_times(table, stream.event_time)).as_py()
        span = tuple(pc.min_max(table.column(NUMBER_COLUMN)).as_py().values()) if self.is_numbered else None
        self.manifest.segments.append(
            Segment(
                self._add_entry(content),
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

    def _add_entry(self, content: bytes) -> int:
        """Add an entry to the map and return its number."""
        number = self.manifest.next_segment
        self._segments.updateValue((number,), (content,))
        self.manifest.next_segment = number + 1
        return number

    def number_tuples(self, stream: str, table: pa.Table) -> pa.Table:
        """Return new tuples of a stream with a column of their numbers."""
        first = self.manifest.next_tuple_numbers.get(stream, FIRST_TUPLE_NUMBER)
        self.manifest.next_tuple_numbers[stream] = first + table.num_rows
        return table.append_column(NUMBER_COLUMN, pa.array(np.arange(first, first + table.num_rows)))

    def remove_older(self, stream: str, oldest: int | None) -> None:
        """Remove a stream's segments whose tuples are all older than `oldest`; None removes all of them."""
        remaining = []
        for segment in self.manifest.segments:
            if segment.stream == stream and (oldest is None or segment.newest < oldest):
                self._segments.removeKey((segment.number,))
            else:
                remaining.append(segment)
        self.manifest.segments = remaining

    def read_all(self, boundaries: Sequence[int] = (0,)) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        """Yield all tuples by stream, in parts between `boundaries` (see `compact`), each with its last batch."""
        parts: dict[int, list[Segment]] = {}
        for segment in self.manifest.segments:
            parts.setdefault(bisect(boundaries, segment.batch), []).append(segment)
        for _, segments in sorted(parts.items()):
            tables: dict[str, list[pa.Table]] = {}
            for segment in segments:
                tables.setdefault(segment.stream, []).append(self._read(segment))
            last = max(segment.batch for segment in segments)
            yield last, {stream: pa.concat_tables(pieces) for stream, pieces in tables.items()}

    def rewrite_sparse(self, stream: StreamSchema, numbers: Int64Array) -> None:
        """Rewrite segments with fewer than half of their tuples in `numbers` (sorted), without the others."""
        for segment in [segment for segment in self.manifest.segments if segment.stream == stream.name]:
            first, last = segment.span or _implied_numbers(segment)[[0, -1]]
            alive = int(np.searchsorted(numbers, last, "right") - np.searchsorted(numbers, first))
            if 2 * alive < segment.rows:
                table = select_numbers(self._read(segment), numbers) if alive else None
                self._segments.removeKey((segment.number,))
                self.manifest.segments.remove(segment)
                if table is not None and table.num_rows:
                    self.append(stream, table, segment.batch)

    def save_shedder(self, content: bytes) -> None:
        """Replace the serialized state of the shedder."""
        self._remove_shedder()
        packed = pa.compress(content, codec=CODEC, asbytes=True)
        parts = [packed[at : at + MAX_ENTRY_BYTES] for at in range(0, len(packed), MAX_ENTRY_BYTES)]
        entries = [self._add_entry(part) for part in parts]
        self.manifest.shedding = Blob(entries, len(content), len(packed), _digest(packed))

    def read_shedder(self) -> pa.Buffer | None:
        """Return the serialized state of the shedder, or None if there is none."""
        blob = self.manifest.shedding
        if blob is None:
            return None
        values = [self._segments.getValue((number,)) for number in blob.entries]
        packed = b"".join(bytes(value[0]) for value in values if value is not None)
        if None in values or _digest(packed) != blob.digest:
            raise StateError("the state of the shedder is missing from the checkpoint, or damaged", RESTORE_HINT)
        return pa.decompress(packed, blob.size, codec=CODEC)

    def stop_shedding(self, streams: Mapping[str, StreamSchema], numbers: Mapping[str, Int64Array] | None) -> None:
        """Rewrite a numbered log without numbers and without shed tuples: those not in `numbers`, by stream."""
        self._remove_shedder()
        self.is_numbered, segments, self.manifest.segments = True, self.manifest.segments, []
        tables = [self._read(segment) for segment in segments]
        self.is_numbered = False
        for segment, table in zip(segments, tables, strict=True):
            self._segments.removeKey((segment.number,))
            selected = None if numbers is None else numbers.get(segment.stream)
            remaining = table if selected is None else select_numbers(table, selected)
            if remaining.num_rows:
                self.append(streams[segment.stream], _without_numbers(remaining), segment.batch)

    def _remove_shedder(self) -> None:
        for number in self.manifest.shedding.entries if self.manifest.shedding is not None else ():
            self._segments.removeKey((number,))
        self.manifest.shedding = None

    def compact(
        self, stream: StreamSchema, oldest: int, boundaries: Sequence[int] = (0,), numbers: Int64Array | None = None
    ) -> None:
        """Merge a stream's small segments if there are too many.

        Tuples older than `oldest` or not in `numbers` are dropped. A merged segment does not span any of `boundaries`: batches in
        which queries start, and first batches of added columns.
        """
        small = [s for s in self.manifest.segments if s.stream == stream.name and s.size < SMALL_SEGMENT_BYTES]
        for part in {bisect(boundaries, segment.batch) for segment in small}:
            segments = [segment for segment in small if bisect(boundaries, segment.batch) == part]
            if len(segments) > MAX_SMALL_SEGMENTS:
                self._merge(stream, segments, oldest, numbers)

    def _merge(
        self, stream: StreamSchema, segments: Sequence[Segment], oldest: int, numbers: Int64Array | None
    ) -> None:
        table = pa.concat_tables([self._read(segment) for segment in segments])
        if numbers is not None:
            table = select_numbers(table, numbers)
        for segment in segments:
            self._segments.removeKey((segment.number,))
        merged = {segment.number for segment in segments}
        self.manifest.segments = [s for s in self.manifest.segments if s.number not in merged]
        recent = drop_older(table, stream.event_time, oldest)
        if recent.num_rows:
            self.append(stream, recent, max(segment.batch for segment in segments))

    def _read(self, segment: Segment) -> pa.Table:
        value = self._segments.getValue((segment.number,))
        table = decode_segment(segment, None if value is None else bytes(value[0]))
        numbers = None
        if self.is_numbered:
            has_numbers = NUMBER_COLUMN in table.column_names
            numbers = table.column(NUMBER_COLUMN) if has_numbers else pa.chunked_array([_implied_numbers(segment)])
        if segment.stream in self._streams:
            table = _with_columns(table, self._streams[segment.stream])
        return table if numbers is None else _without_numbers(table).append_column(NUMBER_COLUMN, numbers)


def decode_segment(segment: Segment, content: bytes | None) -> pa.Table:
    """Return the tuples of a segment from the bytes under its number (None if there are none); check both."""
    if content is None:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} is missing from the checkpoint", RESTORE_HINT
        )
    if _digest(content) != segment.digest:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} is damaged: its digest does not match", RESTORE_HINT
        )
    table = from_ipc(content)
    if table.num_rows != segment.rows:
        raise StateError(
            f"segment {segment.number} of stream {segment.stream!r} holds {table.num_rows} tuples; "
            f"its manifest says {segment.rows}",
            RESTORE_HINT,
        )
    return table


def _with_columns(table: pa.Table, stream: StreamSchema) -> pa.Table:
    """Return tuples with the columns of their stream; columns added after they arrived are NULL."""
    if table.schema.names == stream.columns.names:
        return table
    present = set(table.schema.names)
    columns = [
        table.column(column.name) if column.name in present else pa.nulls(table.num_rows, column.type)
        for column in stream.columns
    ]
    return pa.table(columns, schema=stream.columns)


def _without_numbers(table: pa.Table) -> pa.Table:
    return table.drop_columns([NUMBER_COLUMN]) if NUMBER_COLUMN in table.column_names else table


def _implied_numbers(segment: Segment) -> Int64Array:
    """Return numbers for tuples logged without: below `FIRST_TUPLE_NUMBER`, in order of arrival."""
    return np.arange(segment.rows) + (segment.number << 32)


def add_counters(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, int]:
    """Combine the counters of a stream in two shards."""
    pairs = {name: (int(left.get(name, 0)), int(right.get(name, 0))) for name in ZERO_COUNTERS}
    return {name: max(pair) if name in _MAX_COUNTERS else sum(pair) for name, pair in pairs.items()}


def select_numbers(table: pa.Table, selected: Int64Array) -> pa.Table:
    """Return the tuples whose numbers are among `selected`, which is sorted."""
    if not len(selected):
        return table.slice(0, 0)
    numbers = table.column(NUMBER_COLUMN).to_numpy()
    positions = np.minimum(np.searchsorted(selected, numbers), len(selected) - 1)
    return table.filter(pa.array(selected[positions] == numbers))


def event_times(table: pa.Table, event_time: str) -> pa.ChunkedArray:
    """Return event times in microseconds, the unit of Spark's timestamps."""
    return table.column(event_time).cast(pa.int64())


def drop_older(table: pa.Table, event_time: str, oldest: int) -> pa.Table:
    """Return the tuples from event time `oldest` on."""
    is_recent = pc.greater_equal(event_times(table, event_time), oldest)
    return table if pc.all(is_recent).as_py() else table.filter(is_recent)


def _digest_of(content: dict[str, Any]) -> str:
    return _digest(json.dumps(content, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
