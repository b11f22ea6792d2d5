"""Buckets of queues by worth, for keys: many queues whose worths are numbers of tuples or results.

Worths below `_EXACT` have a level each; larger ones share a level with those that differ by less than 1.6 %. Within a level, the queue
that entered first is shed first. Each change touches a few cache lines, however many queues there are.
"""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.tuple_table import NONE, QueueRanking

_EXACT = 128
_HALF = _EXACT // 2
_LARGEST = 2.0**52
LEVELS = _EXACT + 46 * _HALF
"""A multiple of 64, the bits of a word."""
WORDS = LEVELS // 64


@inlined
def level_of(worth: float) -> int:
    """Return the level of a worth, which is an integer."""
    mantissa, octaves = np.int64(min(worth, _LARGEST)), 0
    while mantissa >= _EXACT:
        mantissa, octaves = mantissa >> 1, octaves + 1
    return int(mantissa) + octaves * _HALF


@inlined
def append_to_level(ranking: QueueRanking, pool: int, queue: int, level: int) -> None:
    """Append a queue to a level."""
    entry, bucket = ranking.queues[queue], ranking.levels[pool * LEVELS + level]
    entry.position, entry.before, entry.after = level, bucket.last, NONE
    if bucket.last >= 0:
        ranking.queues[bucket.last].after = queue
    else:
        bucket.first = queue
        ranking.nonempty[pool * WORDS + (level >> 6)] |= np.uint64(1) << np.uint64(level & 63)
    bucket.last = queue


@inlined
def remove_from_level(ranking: QueueRanking, pool: int, queue: int) -> None:
    """Remove a queue from its level."""
    entry = ranking.queues[queue]
    level = int(entry.position)
    bucket = ranking.levels[pool * LEVELS + level]
    if entry.before >= 0:
        ranking.queues[entry.before].after = entry.after
    else:
        bucket.first = entry.after
    if entry.after >= 0:
        ranking.queues[entry.after].before = entry.before
    else:
        bucket.last = entry.before
    if bucket.first < 0:
        ranking.nonempty[pool * WORDS + (level >> 6)] &= ~(np.uint64(1) << np.uint64(level & 63))


@inlined
def lowest_queue(ranking: QueueRanking, pool: int) -> int:
    """Return the first queue of the lowest level that has one; `NONE` if there is none."""
    for word in range(WORDS):
        bits, level = ranking.nonempty[pool * WORDS + word], word << 6
        if bits:
            while not bits & np.uint64(1):
                bits, level = bits >> np.uint64(1), level + 1
            return int(ranking.levels[pool * LEVELS + level].first)
    return NONE
