"""Chained hash indexes: `head[slot]` leads to the newest row of a chain, `links[row - base]` to the one before it.

Row numbers along a chain only fall, so a walk ends at the first row that is too old to matter, and expiry never touches the index.

What leads to a row also tells what may be found from there on: above the row number each key of the chain has set one of sixteen
bits. A probe whose bit is missing is turned away without touching a row, and a walk ends with the last row of its key but for one
in sixteen. Bits of keys that have expired stay until the whole chain has; 0 leads nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import inlined, kernel, prefetch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TAG_AT = 47
ROWS = (1 << _TAG_AT) - 1
"""The bits of a row number."""
AHEAD = 8
"""How many steps before it is needed something is fetched from memory."""


class Chain(NamedTuple):
    """The chains of one key."""

    head: Int64Array
    links: Int64Array
    shift: np.uint64
    """A slot is the uppermost bits of a hash: what is left when it is shifted so far."""


@inlined
def tag(hashed: np.uint64, shift: np.uint64) -> int:
    """The bit of a hash: which one, the four bits after those of its slot say."""
    return 1 << (_TAG_AT + int((hashed >> (shift - np.uint64(4))) & np.uint64(15)))


@inlined
def led_to(link: int, own: int) -> int:
    """The row that a link leads to; -1 if no row from there on has the tag `own`."""
    return link & ROWS if link & own else -1


@kernel
def insert(
    head: Int64Array, links: Int64Array, shift: np.uint64,
    code: UInt64Array, base: int, oldest: int, first: int, stop: int,
) -> None:  # fmt: skip
    """Put rows `first` to `stop` (exclusive) on top of their chains; rows before `oldest` have expired."""
    for row in range(first, stop):
        place = row - base
        if row + AHEAD < stop:
            prefetch(head, int((code[place + AHEAD] * GOLDEN) >> shift))
        hashed = code[place] * GOLDEN
        slot = np.int64(hashed >> shift)
        before = head[slot]
        if before & ROWS < oldest:
            before = 0
        links[place] = before
        head[slot] = ((before | tag(hashed, shift)) & ~ROWS) | row


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
