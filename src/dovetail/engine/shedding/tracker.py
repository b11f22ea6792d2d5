"""A roster that grows, is copied and is stored: one way to decide what goes, followed through event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    BUCKETS,
    CLOCK,
    FIFO,
    FREE_KEY,
    FREE_PLACE,
    FREE_QUEUE,
    NONE,
    OUTPUT,
    Held,
    Incoming,
    Keys,
    Queues,
    Roster,
    Sample,
    Shed,
    Uses,
    insert_keys,
)
from dovetail.engine.kernels.shedding import enqueue_all, forget, narrow, release, take_in
from dovetail.errors import StateError

EVERYTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
ALL = Sample(EVERYTHING, 1.0, False)
_NOTHING = Shed(*np.empty((3, 0), np.int64))
_FIRST_PLACES = 64
_LONG_AGO = -(1 << 62)
_LARGEST = 1 << 30
"""Places are numbered with 32 bits."""


class Tracker:
    """What windows hold if tuples go as `rank` says."""

    def __init__(
        self, uses: Uses, rank: int, seed: int, *, patterns: bool = False, places: int = _FIRST_PLACES
    ) -> None:
        """Start with nothing; `patterns`: note existence patterns although tuples are not ranked by them."""
        self.rank, self._seed = rank, np.uint64(seed)
        self._patterns = patterns or rank == ARRIVAL_ORDER
        self.roster = _empty(uses, rank, places, patterns=self._patterns)
        self._spare: Roster | None = None
        """The last copy."""

    @property
    def places(self) -> int:
        return len(self.roster.held.row)

    @property
    def alive(self) -> int:
        """Tuples that are held."""
        return int(self.roster.alive.sum())

    @property
    def clock(self) -> int:
        return int(self.roster.at[CLOCK])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in arrays_of(self.roster))

    def take_in(self, incoming: Incoming, moving: Int64Array, sample: Sample = ALL) -> Shed:
        """Let tuples arrive; return what was shed."""
        self._make_room(len(incoming.ts))
        shed = Shed(*np.empty((3, len(incoming.ts)), np.int64))
        _, count = take_in(self.roster, incoming, moving, self.rank, sample, self._seed, shed)
        return Shed(*(values[:count] for values in shed))

    def fill(self, incoming: Incoming, moving: Int64Array) -> int:
        """Let tuples arrive while there is room; return how many have."""
        self._make_room(len(incoming.ts))
        arrived, _ = take_in(self.roster, incoming, moving, self.rank, ALL, self._seed, _NOTHING)
        return int(arrived)

    def release(self) -> None:
        """Let go of what no later tuple can need."""
        release(self.roster, NONE, self.rank)

    def rows(self, window: int) -> Int64Array:
        """Row numbers of a window's tuples."""
        held = self.roster.held
        rows: Int64Array = held.row[(held.row >= 0) & (held.window == window)]
        return rows

    def renumber(self, window: int, first: int, numbers: Int64Array) -> None:
        """Tuples of a window get the numbers that stand in `numbers` at their old ones, counted from `first`."""
        held = self.roster.held
        own = np.flatnonzero((held.row >= 0) & (held.window == window))
        held.row[own] = numbers[held.row[own] - first]

    def forget(self, window: int, first: int, alive: BoolArray) -> None:
        """Let go of a window's tuples that are not alive; `alive` begins with row `first`."""
        forget(self.roster, window, first, alive, self.rank)

    def narrow(self, limit: np.uint64) -> None:
        """Keep only tuples of keys whose hash is below `limit`, as long as they are inside their windows."""
        narrow(self.roster, limit, self._seed, self.rank)

    def ranked_by(self, rank: int, statistics: Roster | None = None) -> None:
        """Go on with another way to rank, and what was counted of patterns elsewhere."""
        self.rank = rank
        if statistics is not None:
            self.roster.given[:], self.roster.seen[:] = statistics.given, np.maximum(statistics.seen, 1)
        queues = _queues(self.roster.uses, rank, self.places, self.roster.keys, patterns=self.roster.given.shape[1])
        self.roster = self.roster._replace(queues=queues)
        self.roster.at[FREE_QUEUE] = 0
        self.roster.held.queue[:] = NONE
        enqueue_all(self.roster, rank)

    # -- arrays -----------------------------------------------------------------------------------------------------------------

    def _make_room(self, count: int) -> None:
        caps = self.roster.uses.cap
        self.reserve(min(self.alive + count, int(np.minimum(caps, _LARGEST).sum()) + 1))

    def reserve(self, needed: int) -> None:
        """Have room for so many tuples, and one more."""
        places = self.places
        while needed >= places:
            places *= 2
        if places > self.places:
            self.roster = _grown(self.roster, self.rank, places, patterns=self._patterns)

    def copy(self) -> Roster:
        """What it knows now, to go back to."""
        pairs = (
            list(zip(arrays_of(self._spare), arrays_of(self.roster), strict=True)) if self._spare is not None else []
        )
        if self._spare is None or any(old.shape != new.shape for (_, old), (_, new) in pairs):
            self._spare = _copied(self.roster)
        else:  # into memory that is there: pages that are new cost more than what is written to them
            for (_, old), (_, new) in pairs:
                np.copyto(old, new)
        return self._spare

    def go_back(self, roster: Roster) -> None:
        self.roster, self._spare = roster, None

    def to_arrays(self) -> dict[str, Array]:
        """Everything, by name."""
        return dict(arrays_of(self.roster))

    def restore(self, stored: Mapping[str, Array]) -> None:
        """Go on from what `to_arrays` gave."""
        places = len(stored["held.row"])
        if places < 1 or places & (places - 1) or places > _LARGEST:
            raise StateError(f"what is known for shedding has room for {places} tuples")
        roster = _empty(self.roster.uses, self.rank, places, patterns=self._patterns)
        for name, array in arrays_of(roster):
            found = stored.get(name)
            if found is None or found.shape != array.shape or found.dtype != array.dtype:
                raise StateError(f"what is known for shedding has {name!r} of another shape")
            array[...] = found
        _check(roster)
        self.roster = roster


def arrays_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """The arrays of a roster by name, those of its uses left out."""
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields"):
            if name != "uses":
                yield from arrays_of(value, f"{name}.")
        elif isinstance(value, np.ndarray):
            yield prefix + name, value


def _empty(uses: Uses, rank: int, places: int, *, patterns: bool) -> Roster:
    """A roster of nothing, with room for so many tuples."""
    windows, inputs, tables = len(uses.pool), len(uses.table), len(uses.width)
    most = max(1, int(np.diff(uses.first).max(initial=0)))
    width = max(1, int(uses.width.max(initial=0)))
    single = {"window": np.int32, "row": np.int64, "ts": np.int64, "serial": np.int64}
    held = Held(
        *(np.full(places, NONE, single.get(name, np.int32)) for name in Held._fields[:10]),
        *(np.full((places, most), NONE, np.int32) for _ in Held._fields[10:]),
    )
    held.newer[:] = _chain(0, places)
    count = places * most
    bits = max(1, (count - 1).bit_length())
    keys = Keys(
        np.full(1 << bits, NONE, np.int32),
        np.uint64(64 - bits),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int32),
        _chain(0, count),
        np.zeros(count, np.int32),
        np.zeros(count),
        np.zeros((count, width), np.int32),
        np.full((count, width), NONE, np.int32),
    )
    shapes = 1 << width if patterns else 1
    at = np.zeros(6, np.int64)
    at[CLOCK] = _LONG_AGO
    return Roster(
        uses,
        held,
        keys,
        _queues(uses, rank, places, keys, patterns=shapes),
        np.zeros((inputs, shapes)),
        np.zeros((inputs, shapes)),
        np.full(windows, NONE, np.int32),
        np.full(windows, NONE, np.int32),
        np.zeros(len(uses.cap), np.int64),
        np.full(inputs, NONE, np.int32),
        np.zeros(inputs, np.int64),
        np.full(windows, _LONG_AGO, np.int64),
        np.zeros(tables),
        np.zeros(tables),
        np.zeros((tables, BUCKETS)),
        at,
    )


def _queues(uses: Uses, rank: int, places: int, keys: Keys, *, patterns: int) -> Queues:
    """No queues, and room for one per tuple; none where tuples do not stand in queues."""
    most = max(1, int(np.diff(uses.first).max(initial=0)))
    count = places if rank <= OUTPUT else 1
    parts = len(uses.table) * patterns if rank == ARRIVAL_ORDER else keys.tuples.size
    return Queues(
        np.zeros(count, np.int32),
        _chain(0, count),
        np.full(count, NONE, np.int32),
        np.zeros(count),
        np.zeros(count, np.int64),
        np.zeros(count, np.int32),
        np.full((count, most), NONE, np.int64),
        np.full((count, most), NONE, np.int32),
        np.full((count, most), NONE, np.int32),
        np.full(max(1, parts) if rank <= OUTPUT else 1, NONE, np.int32),
        np.zeros((len(uses.cap), places + 1 if rank != FIFO else 1), np.int32),
        np.zeros(len(uses.cap), np.int64),
    )


def _chain(first: int, stop: int) -> Array:
    """Numbers that each lead to the next; the last to none."""
    links = np.arange(first + 1, stop + 1, dtype=np.int32)
    links[-1] = NONE
    return links


def _grown(old: Roster, rank: int, places: int, *, patterns: bool) -> Roster:
    """The same with room for so many tuples."""
    new = _empty(old.uses, rank, places, patterns=patterns)
    before, after = dict(arrays_of(old)), dict(arrays_of(new))
    for name, array in after.items():
        if name == "queues.heap":
            array[:, : before[name].shape[1]] = before[name]
        elif name != "keys.head":
            array[: len(before[name])] = before[name]
    for free, links, count in (
        (FREE_PLACE, new.held.newer, len(old.held.row)),
        (FREE_KEY, new.keys.following, len(old.keys.code)),
        (FREE_QUEUE, new.queues.first, len(old.queues.first)),
    ):
        if len(links) > count:
            links[-1], new.at[free] = old.at[free], count
    insert_keys(new.keys, np.flatnonzero(new.keys.total > 0))
    return new


def _copied(group: Any) -> Any:
    """The same in arrays of its own, but for its uses."""
    values = []
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields") and name != "uses":
            value = _copied(value)
        values.append(value.copy() if isinstance(value, np.ndarray) else value)
    return type(group)(*values)


def _check(roster: Roster) -> None:
    """Raise `StateError` if something leads out of the arrays."""
    sizes = {
        **dict.fromkeys(("held.older", "held.newer", "held.before", "held.after"), len(roster.held.row)),
        **dict.fromkeys(("held.key_before", "held.key_after", "keys.first", "oldest", "newest"), len(roster.held.row)),
        **dict.fromkeys(("inside", "queues.last"), len(roster.held.row)),
        "queues.first": max(len(roster.held.row), len(roster.queues.first)),
        **dict.fromkeys(("held.key", "keys.head", "keys.following"), len(roster.keys.code)),
        **dict.fromkeys(("held.queue", "queues.part_before", "queues.part_after"), len(roster.queues.first)),
        "queues.of_part": len(roster.queues.first),
        "queues.part": len(roster.queues.of_part),
        "queues.heap": len(roster.held.row),
        "queues.at": roster.queues.heap.shape[1],
        "held.window": len(roster.uses.pool),
        "held.member": roster.queues.heap.shape[1],
        "held.pattern": roster.given.shape[1],
        "keys.table": max(1, len(roster.uses.width)),
        "queues.window": len(roster.uses.pool),
        "queues.size": roster.queues.heap.shape[1] + 1,
    }
    for name, array in arrays_of(roster):
        if name in sizes and array.size and not NONE <= int(array.min()) <= int(array.max()) < sizes[name]:
            raise StateError(f"what is known for shedding leads out of itself in {name!r}")
    free = roster.at[[FREE_PLACE, FREE_KEY, FREE_QUEUE]]
    if (free < NONE).any() or (free >= (len(roster.held.row), len(roster.keys.code), len(roster.queues.first))).any():
        raise StateError("what is known for shedding leads out of itself")
