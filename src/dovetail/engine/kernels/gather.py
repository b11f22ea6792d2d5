"""Values of variable length: where their bytes lie, and copying them."""

from __future__ import annotations

from typing import NamedTuple

from dovetail._typing import ByteArray, Int64Array
from dovetail.engine.kernels.compile import copy_bytes, kernel


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
    starts: Int64Array, lengths: Int64Array, base: int, data: ByteArray, places: Int64Array, out: ByteArray
) -> None:
    """Copy the gathered values one after another."""
    position = 0
    for i in range(len(places)):
        length = lengths[places[i]]
        copy_bytes(out, position, data, starts[places[i]] - base, length)
        position += length
