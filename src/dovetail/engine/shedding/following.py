"""What is tracked once the cap was reached: the tuples that windows hold, and the miniatures of `auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dovetail._typing import BoolArray, Int32Array, Int64Array
from dovetail.config import Shedding
from dovetail.engine.kernels.roster import ARRIVAL_ORDER, FIFO, RANDOM, Incoming, Shed
from dovetail.engine.shedding import POLICIES
from dovetail.engine.shedding.auto import Choice
from dovetail.engine.shedding.room import Room
from dovetail.engine.shedding.rosters import PackedRoster
from dovetail.engine.shedding.shape import RosterShape, chosen
from dovetail.engine.shedding.tracker import Tracker

UNLIMITED = 1 << 60
_LOG = 2
"""So many times the tuples that there are places for come before all is copied again."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """What was known at some time."""

    rosters: tuple[PackedRoster, ...]
    rank: int
    figures: list[list[float]]


@dataclass(frozen=True, slots=True)
class FollowingMark:
    """Where it stood, to go back to: a copy, and how many changes had come since."""

    copy: _Copy
    changes: int


class _Narrowed:
    """Whole numbers in as few bytes as their range needs."""

    def __init__(self, values: Int64Array | Int32Array) -> None:
        self._least = int(values.min()) if len(values) else 0
        largest = int(values.max()) if len(values) else 0
        self._offsets = (values - self._least).astype(np.min_scalar_type(largest - self._least))

    @property
    def values(self) -> Int64Array:
        return self._offsets.astype(np.int64) + self._least


class _Arrivals:
    """Tuples that have arrived, kept small, and can do so once more."""

    def __init__(self, following: Following, incoming: Incoming, moving: Int64Array) -> None:
        self._following, self._moving = following, moving
        self._window, self._row, self._ts, self._seen, self._units = (
            _Narrowed(values) for values in (incoming.window, incoming.row, incoming.ts, incoming.seen, incoming.units)
        )
        self._codes = incoming.codes if following.has_codes else incoming.codes[:0]

    def __call__(self) -> None:
        ts, codes = self._ts.values, self._codes
        if not self._following.has_codes:
            codes = np.zeros((len(ts), codes.shape[1]), np.uint64)
        units = self._units.values.astype(np.int32)
        incoming = Incoming(self._window.values, self._row.values, ts, codes, self._seen.values, units)
        self._following._take_in(incoming, self._moving)  # noqa: SLF001 - part of it


class Following:
    """Tuples from one event time to the next.

    To go back it takes its last copy, and all that had come since once more, for decisions depend on nothing else: all is copied now
    and then, and not for every batch.
    """

    def __init__(self, shape: RosterShape, room: Room, shedding: Shedding) -> None:
        """Start with empty windows."""
        self.shape = shape
        seed, auto = shedding.seed, shedding.policy == "auto"
        self.choice = Choice(shape, room, shedding) if auto else None
        rank = self.choice.rank if self.choice is not None else POLICIES[shedding.policy].rank
        patterns = self.choice is not None and self.choice.needs_patterns
        by_key = auto or rank not in (FIFO, RANDOM)
        dead_keys_first = shedding.dead_keys_first
        uses = shape.arrays(room.pools, room.caps, by_key=by_key, dead_keys_first=dead_keys_first)
        self.has_codes = by_key or len(uses.epoch) > 0
        """Whether decisions depend on the codes of keys."""
        self.main = Tracker(uses, rank, seed, patterns=patterns, weighed=room.weighed)
        """What windows hold."""
        self._copy: _Copy | None = None
        self._changes: list[Callable[[], object]] = []
        """Since the copy."""
        self._logged = 0
        """Tuples of the changes."""

    @property
    def trackers(self) -> list[Tracker]:
        return [self.main, *(self.choice.tracked.values() if self.choice is not None else ())]

    def begin(self, held: Incoming, heads: Int64Array) -> Shed:
        """Begin with tuples that windows hold, and streams that have come so far.

        Return those that do not fit.
        """
        moving = np.ones(len(heads), np.int64)
        shed = self.main.take_in(held, moving)
        if self.choice is not None:
            self.choice.begin(held, moving)
            self.main.ranked_by(self.choice.rank)
        for tracker in self.trackers:
            tracker.roster.results[:] = 0
            tracker.roster.heads[:] = heads
        return shed

    def learn(self, before: Following) -> None:
        """Take over what was counted of the patterns of the same inputs."""
        old, new = before.main.roster, self.main.roster
        if old.given.shape[1] != new.given.shape[1]:
            return
        known = {(use.step, use.source): place for place, use in enumerate(before.shape.uses)}
        for place, use in enumerate(self.shape.uses):
            if (use.step, use.source) in known:
                new.given[place] += old.given[known[use.step, use.source]]
                new.seen[place] += old.seen[known[use.step, use.source]]
        self.main.ranked_by(self.main.rank)

    def take_in(self, incoming: Incoming, moving: Int64Array) -> Shed:
        """Let tuples arrive; return what windows have shed."""
        self._logged += len(incoming.ts)
        self._changes.append(_Arrivals(self, incoming, moving))
        return self._take_in(incoming, moving)

    def _take_in(self, incoming: Incoming, moving: Int64Array) -> Shed:
        """Do so. Policies are changed after so many tuples, wherever batches are cut."""
        if self.choice is None:
            return self.main.take_in(incoming, moving)
        found, hashes = [Shed(*np.empty((3, 0), np.int64))], self.main.hashes(incoming)
        at, count = 0, len(incoming.ts)
        while at < count:
            some = slice(at, at + self.choice.until)
            now = chosen(incoming, some)
            at = some.stop
            found.append(self.main.take_in(now, moving))
            self.choice.take_in(now, moving, hashes[some])
            if self.choice.until == 0 and (known := self.choice.look()) is not None:
                rank = self.choice.rank
                self.main.ranked_by(rank, known if rank == ARRIVAL_ORDER else None)
        return Shed(*(np.concatenate(values) for values in zip(*found, strict=True)))

    def move(self, heads: Sequence[int]) -> None:
        """Streams have come so far: let go of what is over."""
        self._changes.append(partial(self._move, heads))
        self._move(heads)

    def _move(self, heads: Sequence[int]) -> None:
        for tracker in self.trackers:
            np.maximum(tracker.roster.heads, heads, out=tracker.roster.heads)
            tracker.release()

    def renumber(self, window: int, rows: range, alive: BoolArray) -> None:
        """Let go of those of a window's rows that are not alive; the others are numbered from the end of `rows` on."""
        self._changes.append(partial(self.main.number_anew, window, rows, alive))
        self.main.number_anew(window, rows, alive)

    def mark(self) -> FollowingMark:
        """Where it stands."""
        if self._copy is None or self._logged > _LOG * self.main.places:
            self._copy = None  # until it is there: an interrupt may come before
            rosters = tuple(tracker.copy() for tracker in self.trackers)
            figures = self.choice.figures if self.choice is not None else []
            self._changes, self._logged = [], 0
            self._copy = _Copy(rosters, self.main.rank, figures)
        return FollowingMark(self._copy, len(self._changes))

    def rollback(self, mark: FollowingMark) -> None:
        """Forget what came after a mark, the last one that was made."""
        copy, changes = mark.copy, self._changes[: mark.changes]
        self.main.rank = copy.rank
        for tracker, roster in zip(self.trackers, copy.rosters, strict=True):
            tracker.rollback(roster)
        if self.choice is not None:
            self.choice.restore(copy.figures)
        for change in changes:
            change()
        self._changes = changes
