"""Columns of strings and binary values."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, ByteArray, Int64Array
from dovetail.engine.kernels.gather import ByteValues, ColumnAddresses, gather_bytes, gather_lengths, write_extents
from dovetail.engine.storage.buffers import address_of, byte_values, is_large
from dovetail.engine.storage.columns.base import NullableColumn
from dovetail.engine.storage.rows import OVERSIZED, Rows, shrunk_capacity, tight_capacity

_LARGEST_OFFSET = np.iinfo(np.int32).max
_SMALL_OFFSET, _LARGE_OFFSET = np.dtype(np.int32), np.dtype(np.int64)
_SMALLEST_HEAP = 1 << 14
_ROWS_AT_A_TIME = 1 << 12
_LARGE_HEAP = 1 << 20
"""Bytes up to which a heap with enough room is not checked for shrinking."""
NOT_COPIED = (0, 0, 0, 0, 0)
"""What `reserve_text` returns for values that cannot be copied as they are."""


class BytesColumn(NullableColumn):
    """Strings and binary values: a start and a length per row, and a heap of bytes.

    The heap moves forward like the rows. `position`: 1 if there are NULLs, the heap positions of the first byte and after the last,
    and the heap's capacity.
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
        self.limit: int | None = None
        """Length up to which the heap stays half empty; from there on it grows only if texts do not fit."""
        self._offset = ctypes.c_int64 if self._large else ctypes.c_int32
        self.width = ctypes.sizeof(self._offset)
        self._heap: ByteArray = rows.arena.allocate(self._heap_name, np.uint8, _SMALLEST_HEAP)

    @property
    def position(self) -> list[int]:
        return [int(self.has_nulls), self._heap_base, self._heap_end, len(self._heap)]

    def resume(self, position: Sequence[int]) -> None:
        nulls, self._heap_base, self._heap_end, capacity = position
        self._resume_validity(nulls)
        if not 0 <= self._heap_base <= self._heap_end <= self._heap_base + capacity:
            self._reject(position)
        super().resume(position)

    @property
    def live_bytes(self) -> dict[str, tuple[int, int]]:
        return {self._heap_name: (0, self._heap_end - self._heap_base)}

    @property
    def values(self) -> ByteValues:
        """Heap position and length of each row's bytes, and the heap."""
        arrays = self.rows.arrays
        return ByteValues(arrays[self._starts], arrays[self._lengths], self._heap_base, self._heap)

    @property
    def live_lengths(self) -> Int64Array:
        """Bytes of the live rows' values."""
        rows = self.rows
        return rows.arrays[self._lengths][rows.tail - rows.base : rows.head - rows.base]

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        offsets, data = byte_values(values, large=self._large)
        size = len(data)
        self._make_room(size, stop - first)
        begin = self._heap_end - self._heap_base
        self._heap[begin : begin + size] = data
        arrays = self.rows.arrays
        write_extents(offsets, self._heap_end, arrays[self._starts], arrays[self._lengths], first)
        self._heap_end += size
        if self.has_nulls or values.null_count:
            self._append_validity(values, first, stop)

    def rewrite(self, values: pa.Array) -> None:
        self._make_room(
            len(byte_values(values, large=self._large)[1]), 0
        )  # keeps the old bytes until all rows have new ones
        super().rewrite(values)

    def reserve_text(self, values: pa.Array) -> tuple[int, int, int, int, int]:
        """Reserve heap space for values that can be copied as is.

        Return `NOT_COPIED` if `append` must write them. Otherwise return the addresses of offsets, reserved space and source bytes,
        the number of bytes, and their heap position.
        """
        if self.has_nulls or values.null_count:
            return NOT_COPIED
        _, offset_buffer, data = values.buffers()
        offsets = offset_buffer.address + values.offset * self.width
        first = self._offset.from_address(offsets).value
        size = self._offset.from_address(offsets + len(values) * self.width).value - first
        self._make_room(size, len(values))
        end = self._heap_end
        self._heap_end = end + size
        return offsets, address_of(self._heap) + end - self._heap_base, data.address + first if size else 0, size, end

    def has_room(self, count: int) -> bool:
        """Whether `count` more bytes fit without moving the existing ones."""
        return self._heap_end - self._heap_base + count <= len(self._heap)

    def _make_room(self, count: int, appended: int) -> None:
        """Make room for `count` bytes of the last `appended` rows, and shrink the heap if it is oversized."""
        fits = self.has_room(count)
        if fits and len(self._heap) <= _LARGE_HEAP:
            return
        older = self.rows.tail < self.rows.head - appended
        oldest = int(self.values.starts[self.rows.tail - self.rows.base]) if older else self._heap_end
        live = self._heap[oldest - self._heap_base : self._heap_end - self._heap_base]
        size, needed = len(self._heap), len(live) + count
        limit, is_tight = self.limit, self.rows.is_tight
        if size > max(OVERSIZED * needed, _LARGE_HEAP):
            size = shrunk_capacity(size, needed, _SMALLEST_HEAP)
        elif fits:
            return
        if is_tight:
            size = tight_capacity(size, needed, _SMALLEST_HEAP)
        while not is_tight and needed > size // 2 and (limit is None or size < limit or needed > limit):
            size *= 2
        target = self._heap if size == len(self._heap) else self.rows.arena.allocate(self._heap_name, np.uint8, size)
        self.rows.is_moving = True
        target[: len(live)] = live
        self._heap = target
        self._heap_base = oldest
        self.rows.version += 1
        self.rows.is_moving = False

    def take(self, indices: Int64Array) -> pa.Array:
        offsets: Array = np.empty(len(indices) + 1, _LARGE_OFFSET if self._large else _SMALL_OFFSET)
        total = gather_lengths(self.values.lengths, indices, 0, offsets)
        self.check_length(total)
        data = np.empty(total, np.uint8)
        gather_bytes(*self.values, indices, 0, data)
        buffers = self.finish_buffers([None, pa.py_buffer(offsets), pa.py_buffer(data)], indices)
        return pa.Array.from_buffers(self.type, len(indices), buffers)

    def check_length(self, total: int) -> None:
        """Raise an `OverflowError` if one Arrow array cannot hold `total` bytes."""
        if total > _LARGEST_OFFSET and not self._large:
            raise OverflowError(f"{total} bytes of strings do not fit one Arrow array")

    @property
    def addresses(self) -> ColumnAddresses:
        starts, lengths, base, heap = self.values
        return ColumnAddresses(address_of(starts), address_of(lengths), address_of(heap), base, len(heap))

    @property
    def allocated(self) -> int:
        return len(self._heap)

    def before_compact(self, alive: BoolArray) -> None:
        rows = self.rows
        indices = np.flatnonzero(alive) + (rows.tail - rows.base)
        offsets, values = np.empty(len(indices) + 1, np.int64), self.values
        total = int(gather_lengths(values.lengths, indices, 0, offsets))
        shrink = tight_capacity if rows.is_tight else shrunk_capacity
        size = min(len(self._heap), shrink(len(self._heap), total, _SMALLEST_HEAP))
        if size < len(self._heap):
            self._heap = rows.arena.allocate(self._heap_name, np.uint8, size)
        for first in range(
            0, len(indices), _ROWS_AT_A_TIME
        ):  # values only move forward, so a part overwrites no later one
            part = indices[first : first + _ROWS_AT_A_TIME]
            data = np.empty(offsets[first + len(part)] - offsets[first], np.uint8)
            gather_bytes(*values, part, 0, data)
            self._heap[offsets[first] : offsets[first] + len(data)] = data
        self._heap_base, self._heap_end = 0, total
        values.starts[indices] = offsets[:-1]

    def remove(self) -> None:
        super().remove()
        for name in (self._starts, self._lengths):
            self.rows.remove(name)
        self.rows.arena.free(self._heap_name)
