"""Chained hash indexes.

`heads[slot]` links to the newest row of a chain, `links[row - base]` to the next older one. Row numbers decrease along a chain, so a
probe stops at the first row that is too old, and expiry never touches the index.

Each link carries a 16-bit Bloom tag of the keys further down its chain, above the bits of the row number. A probe whose tag bit is
missing reads no row, and a probe stops after the last row of its key unless another key down the chain has the same tag bit, one in
sixteen. Tag bits of expired keys remain until the whole chain has expired. The link 0 ends a chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import inlined, kernel, prefetch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TAG_AT = 47
ROWS = (1 << _TAG_AT) - 1
"""Mask of the row number in a link."""
AHEAD = 8
"""Prefetch distance, in iterations."""


class Chain(NamedTuple):
    """The arrays of one hash index."""

    heads: Int64Array
    links: Int64Array
    shift: np.uint64
    """Right shift that reduces a hash to its slot, the uppermost bits."""


@inlined
def spread(code: np.uint64, seed: np.uint64) -> np.uint64:
    """Mix a code and a seed into a 64-bit hash (the finalizer of SplitMix64)."""
    mixed = (code ^ seed) + GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@inlined
def tag(hashed: np.uint64, shift: np.uint64) -> int:
    """Return the tag bit of a hash; the four hash bits below the slot bits choose it."""
    return 1 << (_TAG_AT + int((hashed >> (shift - np.uint64(4))) & np.uint64(15)))


@inlined
def follow_link(link: int, key_tag: int) -> int:
    """Return the row that a link points to; -1 if no row from there on has the tag `key_tag`."""
    return link & ROWS if link & key_tag else -1


@kernel
def insert(
    heads: Int64Array, links: Int64Array, shift: np.uint64,
    code: UInt64Array, base: int, oldest: int, first: int, stop: int,
) -> None:  # fmt: skip
    """Insert rows `first` to `stop` (exclusive) into their chains; rows before `oldest` have expired."""
    for row in range(first, stop):
        index = row - base
        if row + AHEAD < stop:
            prefetch(heads, int((code[index + AHEAD] * GOLDEN) >> shift))
        hashed = code[index] * GOLDEN
        slot = np.int64(hashed >> shift)
        next_link = heads[slot]
        if next_link & ROWS < oldest:
            next_link = 0
        links[index] = next_link
        heads[slot] = ((next_link | tag(hashed, shift)) & ~ROWS) | row


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
