"""The first Python stage: cut each stream's Arrow batches by shard.

Spark then moves a few large rows instead of many small ones: one per task, stream and shard, holding tuples as Arrow IPC bytes. At
its end each task also sends every shard one row with the largest event time it saw, so that all shards are called and know how
far every stream has come, tuples or none. A tuple without an event time belongs to no window: it is counted and dropped, because
raising would replay it for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.keys import codes_of, combine, coordinates
from dovetail.engine.window_store import LONG_AGO
from dovetail.query.expressions import Column, cast
from dovetail.schema import sql_type
from dovetail.spark.layout import Layout, Placement, ShardGroup, read_layout

CUT_SCHEMA = "shard int, stream int, segment binary, high bigint, refused bigint"
_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("stream", pa.int32()),
        ("segment", pa.binary()),
        ("high", pa.int64()),
        ("refused", pa.int64()),
    ]
)
_LARGEST_PIECE = 32 << 20
"""Bytes of tuples that a task holds before it cuts them."""

Batches = Iterator[pa.RecordBatch]


def cutter(layout: str, stream: int, shard_ids: list[int]) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`; `shard_ids` are the values that Spark's partitioner spreads evenly."""

    def cut(batches: Batches) -> Batches:
        yield from _Cut(read_layout(layout), stream, shard_ids).run(batches)

    return cut


class _Cut:
    def __init__(self, layout: Layout, stream: int, shard_ids: list[int]) -> None:
        self._layout = layout
        self._stream = stream
        self._schema = layout.streams[stream]
        self._ids = shard_ids
        self._high: int | None = None
        self._refused = 0

    def run(self, batches: Batches) -> Batches:
        held: list[pa.Table] = []
        for batch in batches:
            held.append(self._admit(batch))
            if sum(table.nbytes for table in held) > _LARGEST_PIECE:
                yield self._pieces(pa.concat_tables(held))
                held = []
        if held:
            yield self._pieces(pa.concat_tables(held))
        if self._high is not None or self._refused:
            yield self._progress()

    def _admit(self, batch: pa.RecordBatch) -> pa.Table:
        columns = [_conform(batch.column(field.name), field.type) for field in self._schema.columns]
        table = pa.Table.from_arrays(columns, schema=self._schema.columns)
        times = table.column(self._schema.event_time)
        if times.null_count:
            self._refused += times.null_count
            table = table.filter(times.is_valid())
        if table.num_rows:
            largest = int(np.asarray(self._times(table)).max())
            self._high = largest if self._high is None else max(self._high, largest)
        return table

    def _times(self, table: pa.Table) -> Int64Array:
        numbers: Int64Array = table.column(self._schema.event_time).cast(pa.int64()).to_numpy()
        return numbers

    def _pieces(self, table: pa.Table) -> pa.RecordBatch:
        table = table.combine_chunks()
        shards: list[int] = []
        segments: list[bytes] = []
        for group in self._layout.groups:
            cells, rows = _cells(group, self._schema.name, table)
            order = np.argsort(cells, kind="stable")
            ends = np.searchsorted(cells[order], np.arange(group.grid.shards), side="right")
            for cell, (start, stop) in enumerate(pairwise([0, *ends])):
                if stop > start:
                    shards.append(self._ids[group.first + cell])
                    segments.append(to_ipc(table.take(pa.array(rows[order[start:stop]]))))
        return self._rows(shards, segments)

    def _progress(self) -> pa.RecordBatch:
        refused = [self._refused] + [0] * (len(self._ids) - 1)
        return self._rows(self._ids, [None] * len(self._ids), refused)

    def _rows(
        self, shards: list[int], segments: list[bytes] | list[None], refused: list[int] | None = None
    ) -> pa.RecordBatch:
        count = len(shards)
        # No NULLs: pandas would turn the column into doubles, which do not hold all times.
        high = [self._high if segment is None and self._high is not None else LONG_AGO for segment in segments]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(shards, pa.int32()),
                pa.array([self._stream] * count, pa.int32()),
                pa.array(segments, pa.binary()),
                pa.array(high, pa.int64()),
                pa.array(refused or [0] * count, pa.int64()),
            ],
            schema=_ARROW,
        )


def _conform(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Spark's Arrow column as the layout declares it: time zones are labels, encodings are taken off."""
    return values if values.type == dtype else values.cast(dtype)


def _cells(group: ShardGroup, stream: str, table: pa.Table) -> tuple[Int64Array, Int64Array]:
    """For each copy of a tuple, the cell it goes to and its row."""
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


def to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_ipc(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
