"""Columns of a window: values go in as Arrow arrays, come out gathered by row, as Arrow arrays of the same type.

Values of fixed width and byte strings lie in plain arrays, so that a gather is one pass and the arrays can be mapped from files.
Nested values, which can only be selected, stay in Arrow chunks.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, ByteArray, Int64Array
from dovetail.engine.buffers import (
    address_of,
    byte_values,
    fixed_values,
    is_fixed_width,
    is_large,
    storage_dtype,
    valid_mask,
)
from dovetail.engine.kernels.gather import ByteValues, gather_bytes, gather_lengths, write_extents
from dovetail.engine.rows import Rows
from dovetail.errors import StateError

_LARGEST_OFFSET = np.iinfo(np.int32).max
_SMALL_OFFSET, _LARGE_OFFSET = np.dtype(np.int32), np.dtype(np.int64)
_MOST_CHUNKS = 16
_SMALLEST_HEAP = 1 << 14


def column_for(rows: Rows, name: str, dtype: pa.DataType) -> StoredColumn:
    """A column fit for `dtype`, its arrays added to `rows`."""
    types = pa.types
    if types.is_string(dtype) or types.is_binary(dtype) or types.is_large_string(dtype) or types.is_large_binary(dtype):
        return BytesColumn(rows, name, dtype)
    if is_fixed_width(dtype):
        return FixedColumn(rows, name, dtype)
    return NestedColumn(rows, name, dtype)


class StoredColumn(ABC):
    """Values of one column for every living row. Rows are appended together with the window's other arrays."""

    width = 0
    """Bytes of a value, or of an offset if `is_text`; 0 where values do not lie in plain arrays."""
    is_text = False
    """Whether values are bytes of any length."""
    is_odd = False
    """Whether gathered values have to be `finished`."""
    is_kept = True
    """Whether values that come have to be written."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        self.rows = rows
        self._name = name
        self._values = f"value:{name}"
        self.type = dtype

    @abstractmethod
    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Write the values of the newest rows, places `first` to `stop`."""

    @abstractmethod
    def take(self, places: Int64Array) -> pa.Array:
        """Gather values by place (row number minus base)."""

    @property
    def extent(self) -> tuple[int, ...]:
        """Where values lie, as `kernels.gather` wants it: from `VALUES` on; nothing where they do not lie in plain arrays."""
        return ()

    def finished(self, buffers: Sequence[Any], places: Int64Array) -> list[Any]:  # noqa: ARG002
        """The buffers of an Arrow array whose values, of rows at `places`, were gathered; the first, for NULLs, is None so far."""
        return list(buffers)

    def check_length(self, total: int) -> None:  # noqa: B027
        """Raise an `OverflowError` if one array cannot hold so many bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes held outside the window's per-row arrays."""
        return 0

    @property
    def allocated(self) -> int:
        """The same, room for more included."""
        return self.nbytes

    @property
    def position(self) -> list[int]:
        """What another column needs, beside the arrays, to go on."""
        return []

    def resume(self, position: Sequence[int]) -> None:
        """Go on where another column was that had the same arrays."""
        if list(position) != self.position:
            self._refuse(position)

    def _refuse(self, position: Sequence[int]) -> None:
        raise StateError(f"column {self._name!r} of window {self.rows.prefix!r} cannot be at {position}")

    @property
    def living(self) -> dict[str, tuple[int, int]]:
        """The bytes in use of arrays that have room for more, by name in the arena; per-row arrays are known to the rows."""
        return {}

    def before_keep(self, alive: BoolArray) -> None:  # noqa: B027
        """Prepare for `Rows.keep`."""

    @abstractmethod
    def remove(self) -> None:
        """Give the column's arrays back."""


class _NullableColumn(StoredColumn):
    """A column whose validity is an array of its own, made when the first NULL arrives."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._validity = f"valid:{name}"
        self._nulls = False

    def _resume_validity(self, nulls: int) -> None:
        if nulls:
            self.rows.add(self._validity, np.uint8)
            self._nulls = self.is_odd = True

    def _append_validity(self, values: pa.Array, first: int, stop: int) -> None:
        if not self._nulls:
            self.rows.add(self._validity, np.uint8, 1)
            self._nulls = self.is_odd = True
        valid = valid_mask(values)
        self.rows.arrays[self._validity][first:stop] = 1 if valid is None else valid

    def _take_validity(self, places: Int64Array) -> pa.Buffer | None:
        valid = self.rows.arrays[self._validity].take(places)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def finished(self, buffers: Sequence[Any], places: Int64Array) -> list[Any]:
        return [self._take_validity(places) if self._nulls else None, *buffers[1:]]

    def remove(self) -> None:
        if self._nulls:
            self.rows.remove(self._validity)


class FixedColumn(_NullableColumn):
    """Values of fixed width. `position`: whether there are NULLs."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._dtype = storage_dtype(dtype)
        self.width = self._dtype.itemsize
        self._packed = self.is_odd = pa.types.is_boolean(dtype)
        rows.add(self._values, self._dtype, np.zeros((), self._dtype))

    @property
    def position(self) -> list[int]:
        return [int(self._nulls)]

    def resume(self, position: Sequence[int]) -> None:
        self._resume_validity(*position)
        super().resume(position)

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        self.rows.arrays[self._values][first:stop] = fixed_values(values, self._dtype)
        if self._nulls or values.null_count:
            self._append_validity(values, first, stop)

    def source(self, values: pa.Array) -> int:
        """The address of values that can be copied as they are; 0 of others, which are for `append`."""
        if self.is_odd or values.null_count:
            return 0
        first: int = values.buffers()[1].address
        return first + int(values.offset) * self.width

    def take(self, places: Int64Array) -> pa.Array:
        values = self.rows.arrays[self._values].take(places)
        return pa.Array.from_buffers(self.type, len(places), self.finished([None, pa.py_buffer(values)], places))

    @property
    def extent(self) -> tuple[int, ...]:
        return address_of(self.rows.arrays[self._values]), 0, 0, 0, 0

    def finished(self, buffers: Sequence[Any], places: Int64Array) -> list[Any]:
        if self._packed:
            buffers = [None, pa.py_buffer(np.packbits(np.frombuffer(buffers[1], np.uint8), bitorder="little"))]
        return super().finished(buffers, places)

    def remove(self) -> None:
        super().remove()
        self.rows.remove(self._values)


class TimeColumn(StoredColumn):
    """The event time itself, in microseconds: the window's own `ts`, not stored again."""

    width = 8
    is_kept = False

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Nothing to do: the window writes `ts`."""

    def take(self, places: Int64Array) -> pa.Array:
        values = self.rows.arrays["ts"].take(places)
        return pa.Array.from_buffers(self.type, len(places), [None, pa.py_buffer(values)])

    @property
    def extent(self) -> tuple[int, ...]:
        return address_of(self.rows.arrays["ts"]), 0, 0, 0, 0

    def remove(self) -> None:
        """Nothing to do: `ts` stays."""


class BytesColumn(_NullableColumn):
    """Strings and binaries: a start and a length per row, and a heap of bytes that moves forward like the rows.

    `position`: whether there are NULLs, the heap positions of its first byte and after its last, and its capacity.
    """

    is_text = True

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._heap_base = self._heap_end = 0
        self._starts, self._lengths = f"start:{name}", f"length:{name}"
        rows.add(self._starts, np.int64)
        rows.add(self._lengths, np.int64)
        self._heap_name = f"{rows.prefix}.heap:{name}"
        self._large = is_large(dtype)
        self._offset = ctypes.c_int64 if self._large else ctypes.c_int32
        self.width = ctypes.sizeof(self._offset)
        self._heap: ByteArray = rows.arena.allocate(self._heap_name, np.uint8, _SMALLEST_HEAP)

    @property
    def position(self) -> list[int]:
        return [int(self._nulls), self._heap_base, self._heap_end, len(self._heap)]

    def resume(self, position: Sequence[int]) -> None:
        nulls, self._heap_base, self._heap_end, capacity = position
        self._resume_validity(nulls)
        if not 0 <= self._heap_base <= self._heap_end <= self._heap_base + capacity:
            self._refuse(position)
        super().resume(position)

    @property
    def living(self) -> dict[str, tuple[int, int]]:
        return {self._heap_name: (0, self._heap_end - self._heap_base)}

    @property
    def values(self) -> ByteValues:
        """Where the bytes of each row lie."""
        arrays = self.rows.arrays
        return ByteValues(arrays[self._starts], arrays[self._lengths], self._heap_base, self._heap)

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        offsets, data = byte_values(values, large=self._large)
        size = len(data)
        if self._heap_end - self._heap_base + size > len(self._heap):
            self._make_room(size, stop - first)
        begin = self._heap_end - self._heap_base
        self._heap[begin : begin + size] = data
        arrays = self.rows.arrays
        write_extents(offsets, self._heap_end, arrays[self._starts], arrays[self._lengths], first)
        self._heap_end += size
        if self._nulls or values.null_count:
            self._append_validity(values, first, stop)

    def lay(self, values: pa.Array) -> tuple[int, int, int, int, int]:
        """Make room for the bytes of values that can be copied as they are; of others, which are for `append`, there are only zeros.

        Returned are the addresses of their offsets and of where the bytes go and come from, how many they are, and where in the heap.
        """
        if self._nulls or values.null_count:
            return 0, 0, 0, 0, 0
        _, offset_buffer, data = values.buffers()
        offsets = offset_buffer.address + values.offset * self.width
        first = self._offset.from_address(offsets).value
        size = self._offset.from_address(offsets + len(values) * self.width).value - first
        if self._heap_end - self._heap_base + size > len(self._heap):
            self._make_room(size, len(values))
        end = self._heap_end
        self._heap_end = end + size
        return offsets, address_of(self._heap) + end - self._heap_base, data.address + first if size else 0, size, end

    def _make_room(self, count: int, appended: int) -> None:
        older = self.rows.tail < self.rows.head - appended
        oldest = int(self.values.starts[self.rows.tail - self.rows.base]) if older else self._heap_end
        alive = self._heap[oldest - self._heap_base : self._heap_end - self._heap_base]
        size = len(self._heap)
        while len(alive) + count > size // 2:
            size *= 2
        target = self._heap if size == len(self._heap) else self.rows.arena.allocate(self._heap_name, np.uint8, size)
        self.rows.moving = True
        target[: len(alive)] = alive
        self._heap = target
        self._heap_base = oldest
        self.rows.version += 1
        self.rows.moving = False

    def take(self, places: Int64Array) -> pa.Array:
        offsets: Array = np.empty(len(places) + 1, _LARGE_OFFSET if self._large else _SMALL_OFFSET)
        total = gather_lengths(self.values.lengths, places, 0, offsets)
        self.check_length(total)
        data = np.empty(total, np.uint8)
        gather_bytes(*self.values, places, 0, data)
        buffers = self.finished([None, pa.py_buffer(offsets), pa.py_buffer(data)], places)
        return pa.Array.from_buffers(self.type, len(places), buffers)

    def check_length(self, total: int) -> None:
        if total > _LARGEST_OFFSET and not self._large:
            raise OverflowError(f"{total} bytes of strings do not fit one Arrow array")

    @property
    def extent(self) -> tuple[int, ...]:
        starts, lengths, base, heap = self.values
        return address_of(starts), address_of(lengths), address_of(heap), base, len(heap)

    @property
    def nbytes(self) -> int:
        return self._heap_end - self._heap_base

    @property
    def allocated(self) -> int:
        return len(self._heap)

    def before_keep(self, alive: BoolArray) -> None:
        rows = self.rows
        places = np.flatnonzero(alive) + (rows.tail - rows.base)
        offsets = np.empty(len(places) + 1, np.int64)
        values = self.values
        data = np.empty(gather_lengths(values.lengths, places, 0, offsets), np.uint8)
        gather_bytes(*values, places, 0, data)
        self._heap[: len(data)] = data
        self._heap_base, self._heap_end = 0, len(data)
        values.starts[places] = offsets[:-1]

    def remove(self) -> None:
        super().remove()
        for name in (self._starts, self._lengths):
            self.rows.remove(name)
        self.rows.arena.free(self._heap_name)


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
        self.rows.moving = True
        self._free_chunks()
        self._chunks, self._chunk_starts, self._end = [], [], start
        if len(values):  # the next chunk will have the name of an empty one
            self._add_chunk(values, start)
        self.rows.moving = False

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
