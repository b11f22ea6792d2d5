"""Columns of nested values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.storage.columns.base import StoredColumn
from dovetail.engine.storage.rows import Rows

_MOST_CHUNKS = 16


class NestedColumn(StoredColumn):
    """Nested values in Arrow chunks; a row stores the offset of its value in all chunks ever added.

    `position`: the offset after the last chunk, then the first offset of each chunk.
    """

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._offsets = f"place:{name}"
        rows.add(self._offsets, np.int64)
        self._end = 0
        self._chunk_starts: list[int] = []
        self._chunks: list[pa.Array] = []

    @property
    def position(self) -> list[int]:
        return [self._end, *self._chunk_starts]

    def resume(self, position: Sequence[int]) -> None:
        self._end, *self._chunk_starts = position
        self._chunks = [self.rows.arena.get(self._chunk_name(start)) for start in self._chunk_starts]
        lengths = [stop - start for start, stop in pairwise((*self._chunk_starts, self._end))]
        if [len(chunk) for chunk in self._chunks] != lengths:
            self._reject(position)

    def _chunk_name(self, start: int) -> str:
        return f"{self.rows.prefix}.chunk {start}:{self._name}"

    @property
    def _first(self) -> int:
        return self._chunk_starts[0] if self._chunks else self._end

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        self.rows[self._offsets][first:stop] = np.arange(self._end, self._end + len(values))
        if len(self._chunks) == _MOST_CHUNKS:
            self._merge(len(values))
        self._add_chunk(values, self._end)

    def _add_chunk(self, values: pa.Array, start: int) -> None:
        chunk, end = self.rows.arena.put(self._chunk_name(start), values), start + len(values)
        # One statement without calls: an interrupt sees all three updated or none.
        self._chunks, self._chunk_starts, self._end = [*self._chunks, chunk], [*self._chunk_starts, start], end

    def _merge(self, appended: int) -> None:
        rows = self.rows
        older = rows.tail < rows.head - appended
        oldest = max(int(rows[self._offsets][rows.tail - rows.base]), self._first) if older else self._end
        alive = pa.chunked_array(self._chunks, self.type).slice(oldest - self._first)
        self._replace(pa.concat_arrays(alive.chunks) if alive.num_chunks else pa.array([], self.type), oldest)

    def _replace(self, values: pa.Array, start: int) -> None:
        moving, self.rows.is_moving = self.rows.is_moving, True
        self._free_chunks()
        self._chunks, self._chunk_starts, self._end = [], [], start
        if len(values):  # an empty chunk would have the same name as the next one
            self._add_chunk(values, start)
        self.rows.is_moving = moving

    def _free_chunks(self) -> None:
        for start in self._chunk_starts:
            self.rows.arena.free(self._chunk_name(start))

    def take(self, indices: Int64Array) -> pa.Array:
        if self._end == self._first:
            return pa.nulls(len(indices), self.type)
        # Rows older than the column are taken only when the window is compacted; any value will do.
        offsets = np.maximum(self.rows[self._offsets].take(indices) - self._first, 0)
        values = pa.chunked_array(self._chunks, self.type).take(offsets)
        return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], self.type)

    @property
    def allocated(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self._chunks)

    def before_compact(self, alive: BoolArray) -> None:
        rows = self.rows
        indices = np.flatnonzero(alive) + (rows.tail - rows.base)
        values = self.take(indices)
        start = self._end
        self._replace(values, start)
        rows[self._offsets][indices] = np.arange(start, start + len(indices))

    def remove(self) -> None:
        self.rows.remove(self._offsets)
        self._free_chunks()
