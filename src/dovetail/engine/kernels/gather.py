"""Values of rows, gathered: those of fixed width, and those of variable length, which lie in a heap of bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Array, ByteArray, Int64Array
from dovetail.engine.kernels.compile import copy_bytes, inlined, kernel
from dovetail.engine.kernels.memory import SHORT, copy, copy_short, halves, octets, quarters, words

WIDTH, SOURCE, BASE, ROOM, VALUES, LENGTHS, HEAP, HEAP_BASE, HEAP_ROOM = range(9)
"""Columns of a table of what is to be gathered: bytes of a value, or of an offset if lengths vary; the source whose rows are gathered,
the number of its first row, and how many rows it has room for; the address of values. If lengths vary: the addresses of where values
begin (`VALUES`), of their lengths (else 0) and of the heap, the heap's first position, and its bytes."""
COLUMNS = HEAP_ROOM + 1
ALIGNED = 64
"""Gathered columns begin at multiples of it."""
_WORD, _HALF, _QUARTER, _BYTE = 8, 4, 2, 1


class ByteValues(NamedTuple):
    """Values of variable length in a heap of bytes."""

    starts: Int64Array
    """The heap position of each."""
    lengths: Int64Array
    base: int
    """The heap position of `data[0]`."""
    data: ByteArray


@kernel
def write_extents(offsets: Int64Array, end: int, starts: Int64Array, lengths: Int64Array, place: int) -> None:
    """Write where values lie once their bytes are put at heap position `end`, from `place` on."""
    shift = end - offsets[0]
    for i in range(len(offsets) - 1):
        starts[place + i] = offsets[i] + shift
        lengths[place + i] = offsets[i + 1] - offsets[i]


@kernel
def gather_lengths(lengths: Int64Array, rows: Int64Array, base: int, offsets: Int64Array) -> int:
    """Write where the value of each row starts (one more entry than rows); return the total length."""
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
    """Copy the values of rows one after another; return how many bytes those are."""
    position = 0
    for i in range(len(rows)):
        place = np.uint64(rows[i] - base)
        length = lengths[place]
        copy_bytes(out, position, data, starts[place] - heap, length)
        position += length
    return position


@kernel
def gather_columns(table: Int64Array, rows: Int64Array, count: int, out: int, laid: Int64Array) -> int:
    """Gather columns for `count` rows, whose numbers begin at the address of their source in `rows`, one behind another from `out` on.

    Where lengths vary these are the offsets. `laid` says where each column was put: how far behind `out`, how many bytes; for
    `gather_texts`, where its bytes will be, and how many. Returned is the room that it needs for all, 0 if there are none.
    """
    at = texts = 0
    for number in range(len(table)):
        told = table[number]
        width, room, base, own = told[WIDTH], told[ROOM], told[BASE], words(rows[told[SOURCE]], count)
        size = count * width
        length = 0
        if told[LENGTHS] != 0:
            size += width
            if width == _WORD:
                length = gather_lengths(words(told[LENGTHS], room), own, base, words(out + at, count + 1))
            else:
                length = gather_lengths(words(told[LENGTHS], room), own, base, halves(out + at, count + 1))
        elif width == _WORD:
            _gather(words(told[VALUES], room), own, base, words(out + at, count))
        elif width == _HALF:
            _gather(halves(told[VALUES], room), own, base, halves(out + at, count))
        elif width == _QUARTER:
            _gather(quarters(told[VALUES], room), own, base, quarters(out + at, count))
        elif width == _BYTE:
            _gather(octets(told[VALUES], room), own, base, octets(out + at, count))
        else:
            values, gathered = octets(told[VALUES], room * width), octets(out + at, size)
            for i in range(count):
                copy_bytes(gathered, i * width, values, (own[i] - base) * width, width)
        laid[number, 0], laid[number, 1], laid[number, 2], laid[number, 3] = at, size, texts, length
        at += _aligned(size)
        texts += _aligned(length)
    return texts + SHORT if texts else 0


@kernel
def gather_texts(table: Int64Array, rows: Int64Array, count: int, out: int, laid: Int64Array) -> None:
    """Copy the bytes of columns whose lengths vary, from `out` on, to where they were laid; what is behind them may be overwritten."""
    for number in range(len(table)):
        told = table[number]
        if laid[number, 3] != 0:
            starts, lengths = words(told[VALUES], told[ROOM]), words(told[LENGTHS], told[ROOM])
            own, base, at = words(rows[told[SOURCE]], count), told[BASE], out + laid[number, 2]
            heap, last = told[HEAP] - told[HEAP_BASE], told[HEAP_BASE] + told[HEAP_ROOM] - SHORT
            for i in range(count):
                place = np.uint64(own[i] - base)
                size, start = lengths[place], starts[place]
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
    """A size in bytes, with what is left until the next column may begin."""
    return (size + ALIGNED - 1) // ALIGNED * ALIGNED
