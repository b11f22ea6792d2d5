"""Chained hash indexes: `head[slot]` is the newest row of a chain, `links[row - base]` the one before it.

Row numbers along a chain only fall, so a walk ends at the first row that is too old to matter, and expiry never touches the index.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import inlined, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Chain(NamedTuple):
    """The chains of one key."""

    head: Int64Array
    links: Int64Array
    shift: np.uint64
    """A slot is the uppermost bits of a hash: what is left when it is shifted so far."""


@kernel
def insert(
    head: Int64Array, links: Int64Array, shift: np.uint64, code: UInt64Array, base: int, first: int, stop: int
) -> None:
    """Put rows `first` to `stop` (exclusive) on top of their chains."""
    for row in range(first, stop):
        place = row - base
        slot = np.int64((code[place] * GOLDEN) >> shift)
        links[place] = head[slot]
        head[slot] = row


@kernel
def hash_bytes(offsets: Int64Array, data: ByteArray, out: UInt64Array) -> None:
    """Hash byte strings to 64 bits, eight bytes at a time."""
    for i in range(len(out)):
        position = offsets[i] - offsets[0]
        end = offsets[i + 1] - offsets[0]
        state = np.uint64(end - position) * GOLDEN
        while position < end:
            word = np.uint64(0)
            for offset in range(min(8, end - position)):
                word |= np.uint64(data[position + offset]) << np.uint64(8 * offset)
            state = (state ^ word) * np.uint64(0xFF51AFD7ED558CCD)
            state ^= state >> np.uint64(32)
            position += 8
        out[i] = state


@inlined
def mixed(left: np.uint64, right: np.uint64) -> np.uint64:
    """Combine two codes into one; order matters."""
    state = (left ^ (left >> np.uint64(31))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (state ^ right) * GOLDEN


@kernel
def mix(left: UInt64Array, right: UInt64Array, out: UInt64Array) -> None:
    """Combine codes in pairs."""
    for i in range(len(out)):
        out[i] = mixed(left[i], right[i])
