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
    """Values that can only be selected, in Arrow chunks; each row knows its place in the whole of the chunks ever added.

    `position`: that place after the last chunk, then the first place of each chunk.
    """

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._places = f"place:{name}"
        rows.add(self._places, np.int64)
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
            self._refuse(position)

    def _chunk_name(self, start: int) -> str:
        return f"{self.rows.prefix}.chunk {start}:{self._name}"

    @property
    def _first(self) -> int:
        return self._chunk_starts[0] if self._chunks else self._end

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        self.rows[self._places][first:stop] = np.arange(self._end, self._end + len(values))
        if len(self._chunks) == _MOST_CHUNKS:
            self._merge(len(values))
        self._add_chunk(values, self._end)

    def _add_chunk(self, values: pa.Array, start: int) -> None:
        chunk, end = self.rows.arena.put(self._chunk_name(start), values), start + len(values)
        # Without a call in between: an interrupt finds all of it done, or nothing.
        self._chunks, self._chunk_starts, self._end = [*self._chunks, chunk], [*self._chunk_starts, start], end

    def _merge(self, appended: int) -> None:
        rows = self.rows
        older = rows.tail < rows.head - appended
        oldest = max(int(rows[self._places][rows.tail - rows.base]), self._first) if older else self._end
        alive = pa.chunked_array(self._chunks, self.type).slice(oldest - self._first)
        self._replace(pa.concat_arrays(alive.chunks) if alive.num_chunks else pa.array([], self.type), oldest)

    def _replace(self, values: pa.Array, start: int) -> None:
        moving, self.rows.moving = self.rows.moving, True
        self._free_chunks()
        self._chunks, self._chunk_starts, self._end = [], [], start
        if len(values):  # the next chunk will have the name of an empty one
            self._add_chunk(values, start)
        self.rows.moving = moving

    def _free_chunks(self) -> None:
        for start in self._chunk_starts:
            self.rows.arena.free(self._chunk_name(start))

    def take(self, places: Int64Array) -> pa.Array:
        if self._end == self._first:
            return pa.nulls(len(places), self.type)
        # Rows older than the column itself are asked for only to be carried along; any value will do.
        positions = np.maximum(self.rows[self._places].take(places) - self._first, 0)
        taken = pa.chunked_array(self._chunks, self.type).take(positions)
        return pa.concat_arrays(taken.chunks) if taken.num_chunks else pa.array([], self.type)

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self._chunks)

    def before_keep(self, alive: BoolArray) -> None:
        rows = self.rows
        places = np.flatnonzero(alive) + (rows.tail - rows.base)
        values = self.take(places)
        start = self._end
        self._replace(values, start)
        rows[self._places][places] = np.arange(start, start + len(places))

    def remove(self) -> None:
        self.rows.remove(self._places)
        self._free_chunks()
