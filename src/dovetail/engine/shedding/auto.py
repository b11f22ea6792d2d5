"""`auto`: follow the policy that keeps most, as seen on a sample of the keys.

Every policy is tried all the time, on a hash-sampled share of the keys with the same share of the memory: a miniature of the
windows in which it decides alone. Which one completes most results there is what the data says about repeating values, skewed
patterns and late partners together, without a rule for each. Looked at after every so many tuples, which do not depend on how batches
are cut; the windows go over to another policy when that is ahead by more than chance. Nothing is lost by that at once: tuples only
stand in other queues. But what has been shed is gone, and a policy that comes too late does not find what it would have kept, so what
is followed first matters.

Where a query has no common key results cannot be counted by key, and the oldest tuples go.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from dovetail._typing import Int64Array, UInt64Array
from dovetail.config import Shedding
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    FIFO,
    FREQUENCY,
    OUTPUT,
    RANDOM,
    Incoming,
    KeySample,
    Roster,
)
from dovetail.engine.shedding.room import Room
from dovetail.engine.shedding.shape import RosterShape
from dovetail.engine.shedding.tracker import EVERYTHING, Tracker
from dovetail.errors import StateError
from dovetail.plan.sheddable import MAX_ARRIVAL_INPUTS

_TRIED = (FIFO, ARRIVAL_ORDER, FREQUENCY, OUTPUT, RANDOM)
_MINIATURE = 256
"""Tuples that a miniature of a window holds at least."""
_AHEAD = 0.02
"""How much more another policy must have completed; and more than one standard deviation of such counts."""
_MEMORY = 0.75
"""What was completed weighs so much less with each look."""
_MANY = 32
"""So many results of held tuples say something."""


class Choice:
    """Which policy to follow."""

    def __init__(self, shape: RosterShape, room: Room, shedding: Shedding) -> None:
        self.rank = FIFO
        caps, seed = room.caps, shedding.seed
        total = min(sum(caps), 1 << 30)
        halvings = max(0, (total // len(shape.streams) // _MINIATURE).bit_length() - 1)
        self.every = max(128, total // 4)
        """Tuples from one look to the next."""
        self._until = self.every
        narrow = all(
            sum(use.table == table for use in shape.uses) <= MAX_ARRIVAL_INPUTS for table in range(len(shape.tables))
        )
        tried = [rank for rank in _TRIED if rank != ARRIVAL_ORDER or narrow] if shape.is_common else []
        uses, self._halved = (
            shape.arrays(room.pools, [max(1, cap >> times) for cap in caps], dead_keys_first=shedding.dead_keys_first)
            for times in (halvings, halvings + 1)
        )
        self.tracked = {rank: Tracker(uses, rank, seed, weighed=room.weighed) for rank in tried}
        self._seed, self._weighed = seed, room.weighed
        self._scores = np.zeros(len(tried))
        self._before = np.zeros(len(tried))
        self._sample = KeySample(EVERYTHING >> np.uint64(halvings), True)
        self.needs_patterns = ARRIVAL_ORDER in self.tracked

    @property
    def until(self) -> int:
        """Tuples to the next look."""
        return self._until

    def begin(self, held: Incoming, moving: Int64Array) -> None:
        """Begin with tuples that windows hold, and with the policy that would have kept most of their results in half the memory.

        Where nothing tells them apart that is `frequency`: results are few then, and what it keeps for long takes long to come again.
        `fifo` is what windows have done so far, so it goes on as it did, while others first live on what it has kept. If it would have
        kept half of the results or more, partners come soon, and it stays.
        """
        kept = {}
        for rank, tracker in self.tracked.items():
            tracker.take_in(held, moving, self._sample)
            tried = Tracker(self._halved, rank, self._seed, weighed=self._weighed)
            tried.take_in(held, moving, self._sample)
            kept[rank] = float(tried.roster.results.sum())
        if kept and kept[FIFO] < max(_MANY, self.tracked[FIFO].roster.results.sum() / 2):
            self.rank = max(kept, key=lambda rank: (kept[rank], rank == FREQUENCY))

    def take_in(self, incoming: Incoming, moving: Int64Array, least: UInt64Array) -> None:
        """Try all policies on at most `until` tuples, whose hashes are `least`."""
        for tracker in self.tracked.values():
            tracker.take_in(incoming, moving, self._sample, least)
        self._until -= len(incoming.ts)

    def look(self) -> Roster | None:
        """After `until` tuples: change to a policy that is ahead; return what it knows, if there is one."""
        self._until = self.every
        if not self.tracked:
            return None
        ranks = list(self.tracked)
        results = np.array([tracker.roster.results.sum() for tracker in self.tracked.values()])
        self._scores = self._scores * _MEMORY + results - self._before
        self._before = results
        best = int(self._scores.argmax())
        most, own = float(self._scores[best]), float(self._scores[ranks.index(self.rank)])
        if most - own <= max(_AHEAD * own, sqrt(most + own)):
            return None
        self.rank = ranks[best]
        return self.tracked[self.rank].roster

    # -- state ------------------------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> list[list[float]]:
        return [[float(self.rank), float(self._until)], self._scores.tolist(), self._before.tolist()]

    def restore(self, figures: Sequence[Sequence[float]]) -> None:
        """Go on from what `figures` gave."""
        if [len(values) for values in figures] != [2, len(self._scores), len(self._before)]:
            raise StateError("the shedding state is corrupt: it has scores of other policies than are tried")
        rank, until = int(figures[0][0]), int(figures[0][1])
        if not (rank == FIFO or rank in self.tracked) or not 1 <= until <= self.every:
            raise StateError(f"the shedding state is corrupt: policy {rank}, to be judged after {until} tuples")
        self.rank, self._until = rank, until
        self._scores, self._before = np.array(figures[1], float), np.array(figures[2], float)
