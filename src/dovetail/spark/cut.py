"""The first Python stage: cut each stream's Arrow batches by shard.

Spark then moves a few large rows instead of many small ones: one per task, stream and shard, holding tuples as Arrow IPC bytes. At
its end each task also sends every shard one row with the largest event time it saw, so that all shards are called and know how
far every stream has come, tuples or none. A tuple without an event time belongs to no window: it is counted and dropped, because
raising would replay it for ever.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.intake import usable
from dovetail.engine.keys import codes_of, combine, coordinates
from dovetail.engine.progress import LATEST, Observed, partition_heads, too_far
from dovetail.query.expressions import Column, cast
from dovetail.schema import sql_type
from dovetail.spark.layout import Layout, Placement, ShardGroup
from dovetail.spark.memory import give_back
from dovetail.spark.stages import CLOCK, FRAME_BYTES, FRAME_ROWS, UNPLACED

_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("stream", pa.int32()),
        ("firsts", pa.int64()),
        ("segment", pa.binary()),
        ("report", pa.string()),
    ]
)
_LARGEST_PIECE = 1 << 20
"""Bytes of tuples that a task holds before it cuts them. Spark copies a row several times, into buffers that fit the largest."""
_SENT_WITHOUT_FILLERS = 8 << 20

Batches = Iterator[pa.RecordBatch]


class Cut:
    """One task: a part of one stream."""

    def __init__(self, layout: Layout, stream: int, shard_ids: list[int]) -> None:
        self._layout = layout
        self._stream = stream
        self._schema = layout.streams[stream]
        self._ids = shard_ids
        self._seen = Observed()
        self._now: int | None = None
        self._sent: Counter[int] = Counter()

    def run(self, batches: Batches) -> Batches:
        held: list[pa.Table] = []
        size = 0
        for batch in batches:
            held.append(self._admit(batch))
            size += held[-1].nbytes
            if size > _LARGEST_PIECE:
                yield from self._pieces(pa.concat_tables(held))
                held, size = [], 0
        if size:
            yield from self._pieces(pa.concat_tables(held))
            held.clear()
        if self._seen.arrived:
            yield self._reports()
        give_back()

    def _admit(self, batch: pa.RecordBatch) -> pa.Table:
        """The tuples whose time is usable, after a look at it."""
        columns = [_conform(batch.column(field.name), field.type) for field in self._schema.columns]
        table = pa.Table.from_arrays(columns, schema=self._schema.columns)
        if CLOCK in batch.schema.names and batch.num_rows:
            self._now = batch.column(CLOCK)[0].as_py()
        seen = Observed(table.num_rows)
        table = self._usable(table, seen)
        if table.num_rows:
            ts = self._times(table)
            seen.largest = int(ts.max())
            if self._schema.progress_by is not None:
                seen.heads = partition_heads(ts, table.column(self._schema.progress_by).combine_chunks())
        self._seen.add(seen)
        return table

    def _usable(self, table: pa.Table, seen: Observed) -> pa.Table:
        """Leave out, and count, tuples without a time, with one out of range, or too far ahead of the clock."""
        times = table.column(self._schema.event_time)
        if times.null_count:
            table = table.filter(times.is_valid())
            seen.refused = seen.arrived - table.num_rows
        limit = too_far(self._schema, self._now)
        ts = self._times(table)
        if len(ts) and (int(ts.min()) < -LATEST or int(ts.max()) > limit):
            table = table.filter(pa.array(usable(ts, limit, seen)))
        return table

    def _times(self, table: pa.Table) -> Int64Array:
        numbers: Int64Array = table.column(self._schema.event_time).cast(pa.int64()).to_numpy()
        return numbers

    def _pieces(self, table: pa.Table) -> Batches:
        table = table.combine_chunks()
        sent = np.zeros(table.num_rows, np.bool_)
        shards: list[int] = []
        firsts: list[int] = []
        sink, offsets = pa.BufferOutputStream(), [0]
        for group in self._layout.groups:
            cells, rows = _cells(group, self._schema.name, table)
            first = _first_copies(rows, sent)
            # Cells in order, in each a tuple's first copies before the others: small numbers are sorted by counting.
            order = np.argsort((2 * cells + ~first).astype(np.uint16), kind="stable")
            ends = np.searchsorted(cells[order], np.arange(group.grid.shards), side="right")
            for cell, (start, stop) in enumerate(pairwise([0, *ends])):
                if stop > start:
                    shards.append(self._ids[group.first + cell])
                    firsts.append(int(np.count_nonzero(first[order[start:stop]])))
                    write_ipc(table.take(pa.array(rows[order[start:stop]])), sink)
                    offsets.append(sink.tell())
        reports: list[str | None] = [None] * len(shards)
        if not sent.all():  # keys that are NULL: such tuples are in no result, but may be late like any other
            write_ipc(table.select([self._schema.event_time]).filter(pa.array(~sent)), sink)
            offsets.append(sink.tell())
            shards, firsts, reports = [*shards, self._ids[0]], [*firsts, 0], [*reports, UNPLACED]
        content = pa.BinaryArray.from_buffers(
            pa.binary(), len(shards), [None, pa.py_buffer(np.array(offsets, np.int32)), sink.getvalue()]
        )
        yield self._rows(shards, firsts, content, reports)
        for shard, (start, stop) in zip(shards, pairwise(offsets), strict=True):
            self._sent[shard] += stop - start
            if self._sent[shard] > _SENT_WITHOUT_FILLERS:
                yield self._fillers(shard, self._sent.pop(shard))

    def _fillers(self, shard: int, sent: int) -> pa.RecordBatch:
        """Rows that end a shard's frame in time.

        Spark's limit of a frame's bytes makes it add up what it has written after every tuple that the cut reads, which takes as long
        as all else; so `session` lifts it and leaves the limit of rows, which knows nothing of their size.
        """
        rows = FRAME_ROWS * sent // FRAME_BYTES
        return self._rows([shard] * rows, [0] * rows, pa.nulls(rows, pa.binary()), [None] * rows)

    def _reports(self) -> pa.RecordBatch:
        """What this task observed, to every shard; only the first is given what must be counted once."""
        seen = self._seen
        common = {"largest": seen.largest, "heads": list(seen.heads.items()), "now": self._now}
        counted = common | {"arrived": seen.arrived, "ahead": seen.ahead, "refused": seen.refused}
        others = len(self._ids) - 1
        reports = [json.dumps(counted)] + [json.dumps(common)] * others
        return self._rows(self._ids, [0] * len(self._ids), pa.nulls(len(self._ids), pa.binary()), reports)

    def _rows(
        self, shards: list[int], firsts: list[int], segments: pa.Array, reports: Sequence[str | None]
    ) -> pa.RecordBatch:
        columns = [
            pa.array(shards, pa.int32()),
            pa.array([self._stream] * len(shards), pa.int32()),
            pa.array(firsts, pa.int64()),
            segments,
            pa.array(reports, pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _conform(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Spark's Arrow column as the layout declares it: time zones are labels, encodings are taken off."""
    return values if values.type == dtype else values.cast(dtype)


def _first_copies(rows: Int64Array, sent: BoolArray) -> BoolArray:
    """Which copies are a tuple's first; `sent` remembers them from group to group."""
    first = ~sent[rows]
    first[1:] &= rows[1:] != rows[:-1]
    sent[rows] = True
    return first


def _cells(group: ShardGroup, stream: str, table: pa.Table) -> tuple[Int64Array, Int64Array]:
    """For each copy of a tuple, the cell it goes to and its row: by row, the copies of a row by cell."""
    placements = group.placements(stream)
    found = [_placed(group, placement, table) for placement in placements]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cells, rows = (np.concatenate(part) for part in zip(*found, strict=True))
    if len(placements) > 1:
        pairs = np.unique(rows * group.grid.shards + cells)
        cells, rows = pairs % group.grid.shards, pairs // group.grid.shards
    return cells, rows


def _placed(group: ShardGroup, placement: Placement, table: pa.Table) -> tuple[Int64Array, Int64Array]:
    base = np.zeros(table.num_rows, np.int64)
    offsets = np.zeros(1, np.int64)
    valid = np.ones(table.num_rows, np.bool_)
    for axis, share in zip(placement, group.grid.shares, strict=True):
        base, offsets = base * share, offsets * share
        if isinstance(axis, str):
            offsets = (offsets[:, None] + np.arange(share)[None, :]).ravel()
        elif share > 1 or axis is not None:
            codes, present = _codes(axis, table)
            base += coordinates(codes, share)
            if not group.queries[0].has_count_window:
                valid &= present  # NULL equals nothing; a count window counts it all the same
    rows = np.flatnonzero(valid)
    cells = (base[rows][:, None] + offsets[None, :]).ravel()
    return cells, np.repeat(rows, len(offsets))


def _codes(axis: object, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Codes of one key, or of the whole row, and where they are not NULL."""

    def column(wanted: Column) -> pa.Array:
        values = table.column(wanted.name)
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()

    if axis is None:
        parts = []
        for field in table.schema:
            kind = sql_type(field.type)
            if kind is not None:
                expression = cast(Column("", field.name, field.type), kind)
                parts.append(codes_of(evaluate(expression, column, table.num_rows)))
        return combine(parts), np.ones(table.num_rows, np.bool_)
    values = evaluate(axis, column, table.num_rows)  # type: ignore[arg-type]
    return codes_of(values), values.is_valid().to_numpy(zero_copy_only=False)


def write_ipc(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    write_ipc(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_ipc(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
