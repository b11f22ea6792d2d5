"""Gather the values of rows: fixed-width values, and variable-length values from a heap of bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Array, ByteArray, Int64Array
from dovetail.engine.kernels.compile import copy_bytes, inlined, kernel
from dovetail.engine.kernels.memory import SHORT, copy, copy_short, int16_at, int32_at, int64_at, uint8_at

WIDTH, SOURCE, BASE, CAPACITY, VALUES, LENGTHS, HEAP, HEAP_BASE, HEAP_SIZE = range(9)
"""Columns of the gather table: bytes per value, or per offset if lengths vary; the source, its first row and its capacity; the address
of the values. If lengths vary: the addresses of the starts (`VALUES`), of the lengths (else 0) and of the heap, the heap's first
position, and its size."""
COLUMNS = HEAP_SIZE + 1
ALIGNED = 64
"""Alignment of gathered columns in bytes."""
_WORD, _HALF, _QUARTER, _BYTE = 8, 4, 2, 1


class ColumnAddresses(NamedTuple):
    """Addresses of the values of a column in a window."""

    values: int
    """Address of the values; if their lengths vary, of their heap positions."""
    lengths: int = 0
    """Address of the lengths; 0 if all are equal."""
    heap: int = 0
    """Address of the heap, the heap position of its first byte, and its size."""
    heap_start: int = 0
    heap_size: int = 0


class ByteValues(NamedTuple):
    """Values of variable length in a heap of bytes."""

    starts: Int64Array
    """Heap position of each value."""
    lengths: Int64Array
    base: int
    """Heap position of `data[0]`."""
    data: ByteArray


@kernel
def write_extents(offsets: Int64Array, end: int, starts: Int64Array, lengths: Int64Array, first: int) -> None:
    """Write starts and lengths, from index `first` on, of values whose bytes are at heap position `end`."""
    shift = end - offsets[0]
    for i in range(len(offsets) - 1):
        starts[first + i] = offsets[i] + shift
        lengths[first + i] = offsets[i + 1] - offsets[i]


@kernel
def gather_lengths(lengths: Int64Array, rows: Int64Array, base: int, offsets: Int64Array) -> int:
    """Write the offset of each row's value (one more entry than rows); return the total length."""
    total = 0
    for i in range(len(rows)):
        offsets[i] = total
        total += lengths[np.uint64(rows[i] - base)]
    offsets[len(rows)] = total
    return total


@kernel
def gather_bytes(
    starts: Int64Array, lengths: Int64Array, heap: int, data: ByteArray, rows: Int64Array, base: int, out: ByteArray
) -> int:
    """Concatenate the values of rows; return the number of bytes."""
    position = 0
    for i in range(len(rows)):
        index = np.uint64(rows[i] - base)
        length = lengths[index]
        copy_bytes(out, position, data, starts[index] - heap, length)
        position += length
    return position


@kernel
def gather_columns(table: Int64Array, rows: Int64Array, count: int, out: int, extents: Int64Array) -> int:
    """Gather the columns of `table` for `count` rows, one column after another from address `out` on.

    `rows` has, for each source, the address of the row numbers. If lengths vary, the gathered values are offsets. `extents` receives
    the position of each column after `out` and its size, and for `gather_texts` the position and size of its bytes. Return the room
    that all bytes need, 0 if there are none.
    """
    at = texts = 0
    for i in range(len(table)):
        column = table[i]
        width, capacity, base = column[WIDTH], column[CAPACITY], column[BASE]
        row_numbers = int64_at(rows[column[SOURCE]], count)
        size = count * width
        length = 0
        if column[LENGTHS] != 0:
            size += width
            lengths = int64_at(column[LENGTHS], capacity)
            if width == _WORD:
                length = gather_lengths(lengths, row_numbers, base, int64_at(out + at, count + 1))
            else:
                length = gather_lengths(lengths, row_numbers, base, int32_at(out + at, count + 1))
        elif width == _WORD:
            _gather(int64_at(column[VALUES], capacity), row_numbers, base, int64_at(out + at, count))
        elif width == _HALF:
            _gather(int32_at(column[VALUES], capacity), row_numbers, base, int32_at(out + at, count))
        elif width == _QUARTER:
            _gather(int16_at(column[VALUES], capacity), row_numbers, base, int16_at(out + at, count))
        elif width == _BYTE:
            _gather(uint8_at(column[VALUES], capacity), row_numbers, base, uint8_at(out + at, count))
        else:
            values, gathered = uint8_at(column[VALUES], capacity * width), uint8_at(out + at, size)
            for k in range(count):
                copy_bytes(gathered, k * width, values, (row_numbers[k] - base) * width, width)
        extents[i, 0], extents[i, 1], extents[i, 2], extents[i, 3] = at, size, texts, length
        at += _aligned(size)
        texts += _aligned(length)
    return texts + SHORT if texts else 0


@kernel
def gather_texts(table: Int64Array, rows: Int64Array, count: int, out: int, extents: Int64Array) -> None:
    """Copy the bytes of variable-length columns to `extents` after `out`; may overwrite bytes behind."""
    for i in range(len(table)):
        column = table[i]
        if extents[i, 3] != 0:
            capacity = column[CAPACITY]
            starts, lengths = int64_at(column[VALUES], capacity), int64_at(column[LENGTHS], capacity)
            row_numbers, base, at = int64_at(rows[column[SOURCE]], count), column[BASE], out + extents[i, 2]
            heap, last = column[HEAP] - column[HEAP_BASE], column[HEAP_BASE] + column[HEAP_SIZE] - SHORT
            for k in range(count):
                index = np.uint64(row_numbers[k] - base)
                size, start = lengths[index], starts[index]
                if (size <= SHORT) & (start <= last):
                    copy_short(at, heap + start)
                else:
                    copy(at, heap + start, size)
                at += size


@inlined
def _gather(values: Array, rows: Int64Array, base: int, out: Array) -> None:
    for i in range(len(rows)):
        out[i] = values[np.uint64(rows[i] - base)]


@inlined
def _aligned(size: int) -> int:
    """Round a size in bytes up to the alignment of columns."""
    return (size + ALIGNED - 1) // ALIGNED * ALIGNED
