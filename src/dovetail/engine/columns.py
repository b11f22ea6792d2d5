"""Columns of a window: values go in as Arrow arrays, come out gathered by row, as Arrow arrays of the same type.

Values of fixed width and byte strings lie in plain arrays, so that a gather is one pass and the arrays can be mapped from files.
Nested values, which can only be selected, stay in Arrow chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, ByteArray, Int64Array
from dovetail.engine.arena import Arena
from dovetail.engine.kernels.values import gather_bytes, gather_lengths
from dovetail.engine.rows import Rows

_LARGEST_OFFSET = np.iinfo(np.int32).max
_MOST_CHUNKS = 16


def column_for(rows: Rows, arena: Arena, name: str, dtype: pa.DataType, *, attach: bool = False) -> Column:
    """A column fit for `dtype`, its arrays added to `rows`."""
    types = pa.types
    if types.is_string(dtype) or types.is_binary(dtype) or types.is_large_string(dtype) or types.is_large_binary(dtype):
        return BytesColumn(rows, arena, name, dtype, attach=attach)
    if is_fixed_width(dtype):
        return FixedColumn(rows, name, dtype, attach=attach)
    return NestedColumn(rows, arena, name, dtype, attach=attach)


def is_fixed_width(dtype: pa.DataType) -> bool:
    types = pa.types
    if types.is_fixed_size_binary(dtype):
        return bool(dtype.byte_width > 0)
    return bool(types.is_primitive(dtype) or types.is_decimal(dtype) or types.is_boolean(dtype))


def storage_dtype(dtype: pa.DataType) -> np.dtype[np.generic]:
    """The NumPy type that holds the bits of a fixed-width Arrow type."""
    if pa.types.is_boolean(dtype):
        return np.dtype(np.uint8)
    if pa.types.is_decimal(dtype) or pa.types.is_fixed_size_binary(dtype):
        return np.dtype(f"V{dtype.bit_width // 8}")
    if pa.types.is_floating(dtype):
        return np.dtype(f"f{dtype.bit_width // 8}")
    return np.dtype(f"i{dtype.bit_width // 8}")


def fixed_values(values: pa.Array) -> Array:
    """The bits of a fixed-width array, without a copy where Arrow does not pack them."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    dtype = storage_dtype(values.type)
    buffer = values.buffers()[1]
    if buffer is None:
        return np.zeros(len(values), dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def byte_values(values: pa.Array) -> tuple[Int64Array, Int64Array, ByteArray]:
    """Starts, lengths and bytes of a string or binary array; starts point into the bytes."""
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype, len(values) + 1, values.offset * dtype.itemsize).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return offsets[:-1] - offsets[0], np.diff(offsets), data[offsets[0] : offsets[-1]]


def valid_mask(values: pa.Array) -> BoolArray | None:
    """True where a value is not NULL; None when none is."""
    if values.null_count == 0:
        return None
    mask: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return mask


def validity_buffer(valid: Array | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


class Column(ABC):
    """Values of one column for every living row. Rows are appended together with the window's other arrays."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        self._rows = rows
        self._name = name
        self.type = dtype

    @abstractmethod
    def append(self, values: pa.Array) -> None:
        """Write the values of the newest rows."""

    @abstractmethod
    def take(self, places: Int64Array) -> pa.Array:
        """Gather values by place (row number minus base)."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held outside the window's per-row arrays."""

    def before_keep(self, alive: BoolArray) -> None:  # noqa: B027
        """Prepare for `Rows.keep`."""

    @abstractmethod
    def remove(self) -> None:
        """Give the column's arrays back."""


class _NullableColumn(Column):
    """A column whose validity is an array of its own, made when the first NULL arrives."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._validity = f"{name}?"
        rows.add(self._validity, np.uint8, 1)

    def _append_validity(self, values: pa.Array) -> None:
        valid = valid_mask(values)
        self._rows.new(self._validity, len(values))[:] = 1 if valid is None else valid

    def _take_validity(self, places: Int64Array) -> Array | None:
        valid = np.take(self._rows[self._validity], places)
        return None if valid.all() else valid

    def remove(self) -> None:
        self._rows.remove(self._validity)


class FixedColumn(_NullableColumn):
    """Values of fixed width."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType, *, attach: bool = False) -> None:  # noqa: ARG002
        super().__init__(rows, name, dtype)
        rows.add(name, storage_dtype(dtype), np.zeros((), storage_dtype(dtype)))

    def append(self, values: pa.Array) -> None:
        self._rows.new(self._name, len(values))[:] = fixed_values(values)
        self._append_validity(values)

    def take(self, places: Int64Array) -> pa.Array:
        values = np.take(self._rows[self._name], places)
        if pa.types.is_boolean(self.type):
            values = np.packbits(values, bitorder="little")
        validity = validity_buffer(self._take_validity(places))
        return pa.Array.from_buffers(self.type, len(places), [validity, pa.py_buffer(values)])

    @property
    def nbytes(self) -> int:
        return 0

    def remove(self) -> None:
        super().remove()
        self._rows.remove(self._name)


class BytesColumn(_NullableColumn):
    """Strings and binaries: a start and a length per row, and a heap of bytes that moves forward like the rows."""

    def __init__(self, rows: Rows, arena: Arena, name: str, dtype: pa.DataType, *, attach: bool = False) -> None:
        super().__init__(rows, name, dtype)
        self._arena = arena
        self._starts, self._lengths = f"{name}@", f"{name}#"
        rows.add(self._starts, np.int64)
        rows.add(self._lengths, np.int64)
        self._heap_name = f"{rows._prefix}.{name}.heap"
        if attach:
            self._state = arena.open(f"{self._heap_name}.state", np.int64)
            self._heap = arena.open(self._heap_name, np.uint8)
        else:
            self._state = arena.allocate(f"{self._heap_name}.state", np.int64, 2)
            self._state[:] = 0
            self._heap = arena.allocate(self._heap_name, np.uint8, 1 << 14)

    @property
    def heap(self) -> ByteArray:
        return self._heap

    @property
    def heap_base(self) -> int:
        """The heap position of the first byte of `heap`."""
        return int(self._state[0])

    @property
    def heap_end(self) -> int:
        return int(self._state[1])

    @property
    def starts(self) -> Int64Array:
        return self._rows[self._starts]

    @property
    def lengths(self) -> Int64Array:
        return self._rows[self._lengths]

    def append(self, values: pa.Array) -> None:
        starts, lengths, data = byte_values(values)
        if self.heap_end - self.heap_base + len(data) > len(self._heap):
            self._make_room(len(data), len(values))
        end = self.heap_end
        self._heap[end - self.heap_base : end - self.heap_base + len(data)] = data
        self._rows.new(self._starts, len(values))[:] = starts + end
        self._rows.new(self._lengths, len(values))[:] = lengths
        self._state[1] = end + len(data)
        self._append_validity(values)

    def _make_room(self, count: int, appended: int) -> None:
        older = self._rows.tail < self._rows.head - appended
        oldest = int(self.starts[self._rows.tail - self._rows.base]) if older else self.heap_end
        alive = self._heap[oldest - self.heap_base : self.heap_end - self.heap_base]
        size = len(self._heap)
        while len(alive) + count > size // 2:
            size *= 2
        target = self._heap if size == len(self._heap) else self._arena.allocate(self._heap_name, np.uint8, size)
        target[: len(alive)] = alive
        self._heap = target
        self._state[0] = oldest

    def take(self, places: Int64Array) -> pa.Array:
        offsets = np.empty(len(places) + 1, np.int64)
        total = gather_lengths(self.lengths, places, offsets)
        large = pa.types.is_large_string(self.type) or pa.types.is_large_binary(self.type)
        if total > _LARGEST_OFFSET and not large:
            raise OverflowError(f"{total} bytes of strings do not fit one Arrow array")
        data = np.empty(total, np.uint8)
        gather_bytes(self.starts, self.heap_base, self._heap, places, offsets, data)
        validity = validity_buffer(self._take_validity(places))
        width = np.int64 if large else np.int32
        buffers = [validity, pa.py_buffer(offsets.astype(width, copy=False)), pa.py_buffer(data)]
        return pa.Array.from_buffers(self.type, len(places), buffers)

    @property
    def nbytes(self) -> int:
        return self.heap_end - self.heap_base

    def before_keep(self, alive: BoolArray) -> None:
        rows = self._rows
        places = np.flatnonzero(alive) + (rows.tail - rows.base)
        offsets = np.empty(len(places) + 1, np.int64)
        data = np.empty(gather_lengths(self.lengths, places, offsets), np.uint8)
        gather_bytes(self.starts, self.heap_base, self._heap, places, offsets, data)
        self._heap[: len(data)] = data
        self._state[:] = (0, len(data))
        self.starts[places] = offsets[:-1]

    def remove(self) -> None:
        super().remove()
        for name in (self._starts, self._lengths):
            self._rows.remove(name)
        self._arena.free(self._heap_name)
        self._arena.free(f"{self._heap_name}.state")


class NestedColumn(Column):
    """Values that can only be selected, in Arrow chunks; `_ends` are the row numbers after each chunk."""

    def __init__(self, rows: Rows, arena: Arena, name: str, dtype: pa.DataType, *, attach: bool = False) -> None:
        super().__init__(rows, name, dtype)
        self._arena = arena
        self._chunk_name = f"{rows._prefix}.{name}.chunk"
        rows.add(f"{name}>", np.int64)  # the row's place in the whole of the chunks, from the first one ever
        if attach:
            self._state = arena.open(f"{self._chunk_name}.state", np.int64)
            self._chunks = [arena.get(self._chunk_file(int(start))) for start in self._state[2 : 2 + self._state[0]]]
        else:
            self._state = arena.allocate(f"{self._chunk_name}.state", np.int64, _MOST_CHUNKS + 3)
            self._state[:] = 0
            self._chunks = []

    def _chunk_file(self, start: int) -> str:
        return f"{self._chunk_name}.{start}"

    @property
    def _first(self) -> int:
        return int(self._state[2]) if self._chunks else self._end

    @property
    def _end(self) -> int:
        return int(self._state[1])

    def append(self, values: pa.Array) -> None:
        end = self._end
        self._rows.new(f"{self._name}>", len(values))[:] = np.arange(end, end + len(values))
        if len(self._chunks) == _MOST_CHUNKS:
            self._merge(len(values))
        self._add_chunk(values, end)

    def _add_chunk(self, values: pa.Array, start: int) -> None:
        self._chunks.append(self._arena.put(self._chunk_file(start), values))
        self._state[1 + len(self._chunks)] = start
        self._state[0] = len(self._chunks)
        self._state[1] = start + len(values)

    def _merge(self, appended: int) -> None:
        rows = self._rows
        older = rows.tail < rows.head - appended
        oldest = int(rows[f"{self._name}>"][rows.tail - rows.base]) if older else self._end
        alive = pa.chunked_array(self._chunks, self.type).slice(oldest - self._first)
        self._replace(pa.concat_arrays(alive.chunks) if alive.num_chunks else pa.array([], self.type), oldest)

    def _replace(self, values: pa.Array, start: int) -> None:
        for old in self._state[2 : 2 + len(self._chunks)]:
            self._arena.free(self._chunk_file(int(old)))
        self._chunks = []
        self._add_chunk(values, start)

    def take(self, places: Int64Array) -> pa.Array:
        if self._end == self._first:
            return pa.nulls(len(places), self.type)
        # Rows older than the column itself are asked for only to be carried along; any value will do.
        positions = np.maximum(np.take(self._rows[f"{self._name}>"], places) - self._first, 0)
        taken = pa.chunked_array(self._chunks, self.type).take(positions)
        return pa.concat_arrays(taken.chunks) if taken.num_chunks else pa.array([], self.type)

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self._chunks)

    def before_keep(self, alive: BoolArray) -> None:
        rows = self._rows
        places = np.flatnonzero(alive) + (rows.tail - rows.base)
        values = self.take(places)
        start = self._end
        self._replace(values, start)
        rows[f"{self._name}>"][places] = np.arange(start, start + len(places))

    def remove(self) -> None:
        self._rows.remove(f"{self._name}>")
        for start in self._state[2 : 2 + len(self._chunks)]:
            self._arena.free(self._chunk_file(int(start)))
        self._arena.free(f"{self._chunk_name}.state")
