"""A roster that grows, is copied and is stored: one way to decide what goes, followed through event time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail._typing import Array, BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.batches import least_hashes
from dovetail.engine.kernels.leaving import release
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    FREE_QUEUE,
    IN_DEAD_LIST,
    NONE,
    USED_QUEUES,
    ExpiryDeadline,
    Incoming,
    KeySample,
    Roster,
    Shed,
    Uses,
)
from dovetail.engine.kernels.shedding import (
    enqueue_all,
    list_rows,
    number_anew,
    rows_in_order,
    take_in,
)
from dovetail.engine.shedding.rosters import (
    MOST_PLACES,
    PackedRoster,
    arrays_of,
    check,
    empty,
    grown,
    no_ranks,
    used_of,
)
from dovetail.errors import StateError

EVERYTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
ALL = KeySample(EVERYTHING, False)
_NOTHING = Shed(*np.empty((3, 0), np.int64))
_FIRST_PLACES = 64


class Tracker:
    """What windows hold if tuples go as `rank` says."""

    def __init__(self, uses: Uses, rank: int, seed: int, *, patterns: bool = False, weighed: bool = False) -> None:
        """Start with nothing; `patterns`: note existence patterns although tuples are not ranked by them.

        `weighed`: tuples may take more than one unit of the cap.
        """
        self.rank, self._seed = rank, np.uint64(seed)
        self._patterns = patterns or rank == ARRIVAL_ORDER
        self.roster = empty(uses, rank, _FIRST_PLACES, patterns=self._patterns, weighed=weighed)
        self._watch = ExpiryDeadline(*np.empty((3, len(uses.pool)), np.int64))
        self._in_order: bool | None = None
        """Whether older tuples of a window have smaller row numbers; None if it has to be looked at."""

    @property
    def places(self) -> int:
        return len(self.roster.held)

    @property
    def _is_weighed(self) -> bool:
        """Whether tuples may take more than one unit of the cap."""
        return len(self.roster.units) > 1

    @property
    def alive(self) -> int:
        """What the tuples that are held take of the cap; they are not more."""
        return int(self.roster.alive.sum())

    def take_in(
        self, incoming: Incoming, moving: Int64Array, sample: KeySample = ALL, least: UInt64Array | None = None
    ) -> Shed:
        """Let tuples arrive; return what was shed. `least`: their `hashes`, if they are known already."""
        self._make_room(len(incoming.ts))
        # A tuple may take the place of several lighter ones, and of one otherwise.
        most = len(incoming.ts) + (self.alive if self._is_weighed else 0)
        shed = Shed(*np.empty((3, most), np.int64))
        if least is None:
            least = self.hashes(incoming) if sample.alone else np.empty(0, np.uint64)
        _, count = take_in(self.roster, incoming, least, moving, self.rank, sample, self._seed, self._watch, shed)
        return Shed(*(values[:count] for values in shed))

    def hashes(self, incoming: Incoming) -> UInt64Array:
        """By which tuples are sampled: the smallest hash of each one's codes."""
        least = np.empty(len(incoming.ts), np.uint64)
        least_hashes(incoming.codes, incoming.seen, self._seed, least)
        return least

    def fill(self, incoming: Incoming, moving: Int64Array) -> int:
        """Let tuples arrive while there is room; return how many have."""
        self._make_room(len(incoming.ts))
        least = np.empty(0, np.uint64)
        arrived, _ = take_in(self.roster, incoming, least, moving, self.rank, ALL, self._seed, self._watch, _NOTHING)
        return int(arrived)

    def release(self) -> None:
        """Let go of what no later tuple can need."""
        release(self.roster, self.rank)

    def rows(self, window: int) -> Int64Array:
        """Row numbers of a window's tuples."""
        rows = np.empty(self.places, np.int64)
        return rows[: list_rows(self.roster, window, rows)]

    def first_row(self, window: int) -> int:
        """A row number that none of a window's tuples is below: that of the oldest, where rows are in order; 0 if it is not known."""
        if self._in_order is None:
            self._in_order = rows_in_order(self.roster)
        place = int(self.roster.oldest[window])
        return int(self.roster.held[place].row) if self._in_order and place >= 0 else 0

    def number_anew(self, window: int, rows: range, alive: BoolArray) -> None:
        """Let go of those of a window's rows that are not alive; the others are numbered from the end of `rows` on."""
        numbers = rows.stop - 1 + np.cumsum(alive)
        self._in_order = self._in_order or None  # in order they stay so
        number_anew(self.roster, window, rows.start, alive, numbers, self.rank)

    def ranked_by(self, rank: int, statistics: Roster | None = None) -> None:
        """Go on with another way to rank, and what was counted of patterns elsewhere."""
        self.rank = rank
        if statistics is not None:
            self.roster.given[:], self.roster.seen[:] = statistics.given, np.maximum(statistics.seen, 1)
        width, patterns = self.roster.slots.shape[1], self.roster.given.shape[1]
        self.roster = self.roster._replace(
            ranks=no_ranks(self.roster.uses, rank, self.places, width, patterns=patterns)
        )
        self.roster.at[FREE_QUEUE], self.roster.at[USED_QUEUES] = NONE, 0
        used = used_of(self.roster)
        queue = self.roster.held.queue[: used["held"]]
        queue[queue != IN_DEAD_LIST], self.roster.slots.queue[: used["slots"]] = NONE, NONE
        enqueue_all(self.roster, rank)

    # -- arrays -----------------------------------------------------------------------------------------------------------------

    def _make_room(self, count: int) -> None:
        caps = self.roster.uses.cap
        self.reserve(min(self.alive + count, int(np.minimum(caps, MOST_PLACES).sum()) + 1))

    def reserve(self, needed: int) -> None:
        """Have room for so many tuples, and one more."""
        places = self.places
        while needed >= places:
            places *= 2
        if places > self.places:
            self.roster = grown(self.roster, self.rank, places, patterns=self._patterns)

    def copy(self) -> PackedRoster:
        """What it knows now, to go back to."""
        return PackedRoster(self.roster)

    def rollback(self, copy: PackedRoster) -> None:
        """Go on from a copy, which stays as it is."""
        self.roster = copy.unpack(self.roster.uses, self.rank, patterns=self._patterns)
        self._in_order = None

    def to_arrays(self) -> dict[str, Array]:
        """Everything, by name; of records so many as have been used."""
        used = used_of(self.roster)
        found = {"places": np.array([self.places])}
        for name, array in arrays_of(self.roster):
            found[name] = np.ascontiguousarray(array[: used.get(name.rpartition(".")[0])])
        return found

    def restore(self, stored: Mapping[str, Array]) -> None:
        """Go on from what `to_arrays` gave."""
        stored = dict(stored)
        places = int(stored.pop("places", np.zeros(1))[0])
        if places < 1 or places & (places - 1) or places > MOST_PLACES:
            raise StateError(f"what is known for shedding has room for {places} tuples")
        roster = empty(self.roster.uses, self.rank, places, patterns=self._patterns, weighed=self._is_weighed)
        for name, array in arrays_of(roster):
            found, is_lazy = stored.get(name), name.rpartition(".")[0] in used_of(roster)
            if found is None or found.dtype != array.dtype or found.shape[1:] != array.shape[1:]:
                raise StateError(f"what is known for shedding has {name!r} of another shape")
            if len(found) > len(array) or (len(found) < len(array) and not is_lazy):
                raise StateError(f"what is known for shedding has {name!r} of another shape")
            array[: len(found)] = found
        if any(len(stored[f"{name}.{field}"]) != count for name, field, count in _used_fields(roster)):
            raise StateError("what is known for shedding is cut short")
        check(roster, self.rank)
        self.roster, self._in_order = roster, None


def _used_fields(roster: Roster) -> list[tuple[str, str, int]]:
    """A field of each kind of records, and how many entries it has."""
    used = used_of(roster)
    return [(name, field, used[name]) for name, field in (("held", "ts"), ("keys", "code"), ("ranks.queues", "first"))]
