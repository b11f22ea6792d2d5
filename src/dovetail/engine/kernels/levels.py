"""Levels of queues by what their tuples are worth: for keys, whose worth is a number of tuples or of results, and which are many.

Worths below `_EXACT` have a level each, larger ones share one with those that differ by less than 1.6 %. Of a level the queue that
has been in it longest goes first. Each change is a matter of a few lines of memory, however many queues there are.
"""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.roster import NONE, Ranks

_EXACT = 128
_HALF = _EXACT // 2
_LARGEST = 2.0**52
LEVELS = _EXACT + 46 * _HALF
"""A multiple of 64, the bits of a word."""
WORDS = LEVELS // 64


@inlined
def level_of(worth: float) -> int:
    """The level of a worth, which is a whole number."""
    number, octaves = np.int64(min(worth, _LARGEST)), 0
    while number >= _EXACT:
        number, octaves = number >> 1, octaves + 1
    return int(number) + octaves * _HALF


@inlined
def put_in(ranks: Ranks, pool: int, queue: int, level: int) -> None:
    """Put a queue behind the others of a level."""
    own, place = ranks.queues[queue], ranks.levels[pool * LEVELS + level]
    own.at, own.before, own.after = level, place.last, NONE
    if place.last >= 0:
        ranks.queues[place.last].after = queue
    else:
        place.first = queue
        ranks.filled[pool * WORDS + (level >> 6)] |= np.uint64(1) << np.uint64(level & 63)
    place.last = queue


@inlined
def take_off(ranks: Ranks, pool: int, queue: int) -> None:
    """Take a queue out of its level."""
    own = ranks.queues[queue]
    level = int(own.at)
    place = ranks.levels[pool * LEVELS + level]
    if own.before >= 0:
        ranks.queues[own.before].after = own.after
    else:
        place.first = own.after
    if own.after >= 0:
        ranks.queues[own.after].before = own.before
    else:
        place.last = own.before
    if place.first < 0:
        ranks.filled[pool * WORDS + (level >> 6)] &= ~(np.uint64(1) << np.uint64(level & 63))


@inlined
def lowest(ranks: Ranks, pool: int) -> int:
    """The first queue of the lowest level that has one; `NONE` if none has."""
    for word in range(WORDS):
        bits, level = ranks.filled[pool * WORDS + word], word << 6
        if bits:
            while not bits & np.uint64(1):
                bits, level = bits >> np.uint64(1), level + 1
            return int(ranks.levels[pool * LEVELS + level].first)
    return NONE
