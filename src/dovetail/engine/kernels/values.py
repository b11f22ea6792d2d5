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
