"""Copying and comparing values of variable length."""

from __future__ import annotations

from dovetail._typing import ByteArray, Int64Array
from dovetail.engine.kernels.compile import copy_bytes, kernel


@kernel
def write_extents(offsets: Int64Array, end: int, starts: Int64Array, lengths: Int64Array, place: int) -> None:
    """Write where values lie once their bytes are put at heap position `end`, from `place` on."""
    shift = end - offsets[0]
    for i in range(len(offsets) - 1):
        starts[place + i] = offsets[i] + shift
        lengths[place + i] = offsets[i + 1] - offsets[i]


@kernel
def gather_lengths(lengths: Int64Array, places: Int64Array, offsets: Int64Array) -> int:
    """Write where each gathered value starts (one more entry than values); return the total length."""
    total = 0
    for i in range(len(places)):
        offsets[i] = total
        total += lengths[places[i]]
    offsets[len(places)] = total
    return total


@kernel
def gather_bytes(
    starts: Int64Array, lengths: Int64Array, shift: int, data: ByteArray, places: Int64Array, out: ByteArray
) -> None:
    """Copy the gathered values one after another; `shift` is the heap position of `data[0]`."""
    position = 0
    for i in range(len(places)):
        length = lengths[places[i]]
        copy_bytes(out, position, data, starts[places[i]] - shift, length)
        position += length


@kernel
def mark_equal_bytes(
    partial: Int64Array,
    count: int,
    left: int,
    left_base: int,
    left_starts: Int64Array,
    left_lengths: Int64Array,
    left_shift: int,
    left_data: ByteArray,
    right: int,
    right_base: int,
    right_starts: Int64Array,
    right_lengths: Int64Array,
    right_shift: int,
    right_data: ByteArray,
    marks: Int64Array,
) -> None:
    """Set the mark of each partial result whose two values are the same bytes; clear the others."""
    for k in range(count):
        a = partial[k, left] - left_base
        b = partial[k, right] - right_base
        length = left_lengths[a]
        same = length == right_lengths[b]
        if same:
            i = left_starts[a] - left_shift
            j = right_starts[b] - right_shift
            for offset in range(length):
                if left_data[i + offset] != right_data[j + offset]:
                    same = False
                    break
        marks[k] = 1 if same else 0
