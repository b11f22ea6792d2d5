"""The arrays of a roster: how they are laid out, grow, are copied and checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import Array
from dovetail.engine.kernels.dead_keys import NEVER
from dovetail.engine.kernels.key_history import NOW, SINCE, SLOTS, KeyHistory
from dovetail.engine.kernels.levels import LEVELS, WORDS
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    CLOCK,
    EPOCH_END,
    FREE_KEY,
    FREE_PLACE,
    FREE_QUEUE,
    HELD,
    IN_DEAD_LIST,
    KEY,
    LEVEL,
    MARK,
    NONE,
    OUTPUT,
    PART,
    QUEUE,
    RANDOM,
    RANKED,
    SLOT,
    UNSEEN,
    USED_KEYS,
    USED_PLACES,
    USED_QUEUES,
    Ranks,
    Records,
    Roster,
    Uses,
    insert_keys,
)
from dovetail.errors import StateError

MOST_PLACES = 1 << 30
"""Places are numbered with 32 bits."""
_LONG_AGO = -(1 << 62)
_LINE = 64
"""Bytes that memory gives at once."""


def arrays_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """The arrays of a roster by name, without those that follow from what it is made for; a field of records is one."""
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields"):
            if name != "uses":
                yield from arrays_of(value, f"{name}.")
        elif isinstance(value, np.recarray):
            for field in value.dtype.names or ():
                yield f"{prefix}{name}.{field}", value[field]
        elif isinstance(value, np.ndarray) and name != "start":
            yield prefix + name, value


def empty(uses: Uses, rank: int, places: int, *, patterns: bool, weighed: bool) -> Roster:
    """A roster of nothing, with room for so many tuples; `weighed`: they may take more than one unit of the cap."""
    windows, inputs, tables = len(uses.pool), len(uses.table), len(uses.width)
    most, width = _uses_of_a_window(uses), max(1, int(uses.width.max(initial=0)))
    held, marks = _records(places, HELD, MARK, most)
    count = places * most if tables else 2
    bits = max(1, (count - 1).bit_length())
    keys, slots = _records(count, KEY, SLOT, width)
    shapes = 1 << width if patterns else 1
    at = np.zeros(1 + EPOCH_END, np.int64)
    at[[FREE_PLACE, FREE_KEY, FREE_QUEUE]], at[[CLOCK, EPOCH_END]] = NONE, _LONG_AGO
    return Roster(
        uses,
        held,
        marks,
        keys,
        slots,
        np.full(1 << bits, NONE, np.int32),
        np.uint64(64 - bits),
        no_ranks(uses, rank, places, width, patterns=shapes),
        np.zeros((inputs, shapes)),
        np.zeros((inputs, shapes)),
        np.full(windows, NONE, np.int32),
        np.full(windows, NONE, np.int32),
        np.zeros(len(uses.cap), np.int64),
        np.full(inputs, NONE, np.int32),
        np.zeros(inputs, np.int64),
        np.full(windows, _LONG_AGO, np.int64),
        np.ones(places if weighed else 1, np.int32),
        np.zeros(tables),
        _no_history(uses),
        at,
    )


def no_ranks(uses: Uses, rank: int, places: int, width: int, *, patterns: int) -> Ranks:
    """No queues, and room for one per tuple, or per pattern; hardly any where tuples do not stand in queues."""
    most, count = _uses_of_a_window(uses), places if rank <= OUTPUT else 2
    if rank == ARRIVAL_ORDER and most == 1:
        count = max(2, min(count, len(uses.table) * patterns))
    queues, parts = _records(count, QUEUE, PART, most)
    by_pattern, pools = rank == ARRIVAL_ORDER, len(uses.cap)
    sizes = np.ones(pools, np.int64)
    if by_pattern or rank == RANDOM:
        sizes += np.minimum(uses.cap, count if by_pattern else places)
    room = int(sizes.sum())
    leveled = pools if ARRIVAL_ORDER < rank <= OUTPUT else 0
    levels = np.zeros(max(2, leveled * LEVELS), LEVEL).view(np.recarray)
    levels.first, levels.last = NONE, NONE
    return Ranks(
        queues,
        parts,
        np.zeros(room if by_pattern else 2, RANKED).view(np.recarray),
        np.zeros(room if rank == RANDOM else 2, np.int32),
        levels,
        np.zeros(max(1, leveled * WORDS), np.uint64),
        np.full(max(1, len(uses.table)) * patterns if by_pattern else 1, NONE, np.int32),
        ((patterns if by_pattern else width) - 1).bit_length(),
        np.cumsum(sizes) - sizes,
        np.zeros(pools, np.int64),
    )


def _no_history(uses: Uses) -> KeyHistory:
    """Nothing remembered, with two entries for each tuple that the caps allow: as many at any time, however arrays grow."""
    joins, pools, buckets = len(uses.epoch), len(uses.cap), 1
    while joins and buckets * joins * SLOTS < 2 * int(uses.cap.sum()) * _uses_of_a_window(uses):
        buckets *= 2
    lines = _in_line(np.zeros(joins * buckets * _LINE + _LINE, np.uint8)).view(np.uint32).reshape(-1, 2 * SLOTS)
    state = np.zeros((joins, 3), np.int64)
    state[:, NOW], state[:, SINCE] = _LONG_AGO, NEVER
    first, last = np.full((2, pools), NONE, np.int32)
    return KeyHistory(lines, buckets, state, np.zeros((joins, 2)), first, last)


def _uses_of_a_window(uses: Uses) -> int:
    return max(1, int(np.diff(uses.first).max(initial=0)))


def _records(count: int, whole: np.dtype[Any], part: np.dtype[Any], parts: int) -> tuple[Records, Records]:
    """Records of zeros, each with so many others behind it: in one line of memory if they fit."""
    *_, (kind, last) = ((field[0], field[1]) for field in (whole.fields or {}).values())
    behind = -(-(last + kind.itemsize) // part.alignment) * part.alignment
    size = behind + parts * part.itemsize
    size = _LINE if _LINE // 2 < size <= _LINE else -(-size // whole.alignment) * whole.alignment
    memory = _in_line(np.zeros(count * size + _LINE, np.uint8))
    first: Any = np.ndarray((count,), whole, memory, 0, (size,))
    others: Any = np.ndarray((count, parts), part, memory, behind, (size, part.itemsize))
    return first.view(np.recarray), others.view(np.recarray)


def _in_line(whole: Array) -> Array:
    """The part of some bytes that begins where a line of memory does."""
    first = -whole.ctypes.data % _LINE
    return whole[first : first + len(whole) - _LINE]


def grown(old: Roster, rank: int, places: int, *, patterns: bool) -> Roster:
    """The same with room for so many tuples."""
    new = empty(old.uses, rank, places, patterns=patterns, weighed=len(old.units) > 1)
    for (memory, used), (target, _) in zip(_records_of(old), _records_of(new), strict=True):
        target[:used] = memory[:used]
    before, after = dict(arrays_of(old)), dict(arrays_of(new))
    for name, array in after.items():
        if name.startswith("ranks.heap.") or name == "ranks.members":
            ends = [*old.ranks.start[1:], len(before[name])]
            for first, start, end in zip(new.ranks.start, old.ranks.start, ends, strict=True):
                array[first : first + end - start] = before[name][start:end]
        elif name != "buckets" and name.partition(".")[0] not in _LAZY and not name.startswith(_LAZY_RANKS):
            array[: len(before[name])] = before[name]
    insert_keys(new, np.flatnonzero(new.keys.total[: new.at[USED_KEYS]] > 0))
    return new


_LAZY = ("held", "marks", "keys", "slots")
_LAZY_RANKS = ("ranks.queues.", "ranks.parts.")
"""Arrays whose memory behind what has been used is not touched."""


def used_of(roster: Roster) -> dict[str, int]:
    """How many entries of records have been used."""
    places, keys, queues = (int(count) for count in roster.at[[USED_PLACES, USED_KEYS, USED_QUEUES]])
    return {"held": places, "marks": places, "keys": keys, "slots": keys, "ranks.queues": queues, "ranks.parts": queues}


def _records_of(roster: Roster) -> list[tuple[Array, int]]:
    """The memory of records, and how many bytes of it have been used."""
    found = []
    for records, name in ((roster.held, "held"), (roster.keys, "keys"), (roster.ranks.queues, "ranks.queues")):
        owner: Any = records
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        found.append((_in_line(owner), used_of(roster)[name] * records.strides[0]))
    return found


def _plain_of(roster: Roster) -> list[Array]:
    """The arrays beside those records."""
    values = [
        *roster,
        *(getattr(roster.ranks, name) for name in roster.ranks._fields if name not in ("queues", "parts")),
        *roster.history,
    ]
    records = [id(getattr(roster, name)) for name in _LAZY]
    return [value for value in values if isinstance(value, np.ndarray) and id(value) not in records]


class PackedRoster:
    """A copy of a roster, compressed: it is hardly ever needed."""

    def __init__(self, roster: Roster) -> None:
        self.places, self._weighed = len(roster.held), len(roster.units) > 1
        self._records = [(pa.compress(memory[:used], "lz4"), used) for memory, used in _records_of(roster)]
        self._plain = [pa.compress(np.ascontiguousarray(array).view(np.uint8), "lz4") for array in _plain_of(roster)]

    def unpack(self, uses: Uses, rank: int, *, patterns: bool) -> Roster:
        """The roster as it was."""
        roster = empty(uses, rank, self.places, patterns=patterns, weighed=self._weighed)
        for (packed, used), (memory, _) in zip(self._records, _records_of(roster), strict=True):
            memory[:used] = np.frombuffer(pa.decompress(packed, used, "lz4"), np.uint8)
        for content, array in zip(self._plain, _plain_of(roster), strict=True):
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(pa.decompress(content, array.nbytes, "lz4"), np.uint8)
        return roster


def check(roster: Roster, rank: int) -> None:
    """Raise `StateError` if something leads out of the arrays."""
    places, queues, ranks = len(roster.held), len(roster.ranks.queues), roster.ranks
    room = len(ranks.members if rank == RANDOM else ranks.heap)
    longest = max(int(np.diff([*ranks.start, room]).min(initial=places)), 1)
    places_used = int(np.clip(roster.at[USED_PLACES], 0, places))
    sizes = {
        **dict.fromkeys(("held.older", "held.newer", "held.before", "held.after"), places),
        **dict.fromkeys(("marks.before", "marks.after", "slots.first", "oldest", "newest"), places),
        **dict.fromkeys(("inside", "ranks.queues.last", "history.first", "history.last"), places),
        "marks.entry": max(1, roster.history.lines.size // 2),
        "marks.link": places * roster.marks.shape[1],
        "ranks.queues.first": max(places, queues),
        **dict.fromkeys(("marks.key", "buckets", "keys.following"), len(roster.keys)),
        **dict.fromkeys(("ranks.parts.before", "ranks.parts.after", "ranks.of_pattern", "slots.queue"), queues),
        **dict.fromkeys(("ranks.queues.before", "ranks.queues.after"), queues),
        **dict.fromkeys(("ranks.levels.first", "ranks.levels.last"), queues),
        "held.queue": longest if rank == RANDOM else queues,
        "ranks.parts.part": (len(roster.keys) if rank != ARRIVAL_ORDER else len(roster.uses.table)) << ranks.bits,
        "ranks.heap.queue": queues,
        "ranks.members": places,
        "ranks.queues.at": longest if rank == ARRIVAL_ORDER else LEVELS,
        "held.window": len(roster.uses.pool),
        "marks.pattern": roster.given.shape[1],
        "keys.table": max(1, len(roster.uses.width)),
        "ranks.queues.window": len(roster.uses.pool),
        "ranks.size": longest + 1,
    }
    for name, array in arrays_of(roster):
        least = {"held.queue": IN_DEAD_LIST, "marks.entry": UNSEEN}.get(name, NONE)
        if name in sizes and array.size and not least <= int(array.min()) <= int(array.max()) < sizes[name]:
            raise StateError(f"what is known for shedding leads out of itself in {name!r}")
    is_held = roster.held.row[:places_used] >= 0
    pools = roster.uses.pool[roster.held.window[:places_used][is_held]]
    units = np.broadcast_to(roster.units, places)[:places_used][is_held]
    counted = np.bincount(pools, units, minlength=len(roster.alive))
    if (roster.units < 1).any() or (counted != roster.alive).any():
        raise StateError("the shedding state is corrupt: it counts other tuples than it holds")
    free, used = roster.at[[FREE_PLACE, FREE_KEY, FREE_QUEUE]], roster.at[[USED_PLACES, USED_KEYS, USED_QUEUES]]
    if (free < NONE).any() or (free >= used).any() or (used > (places, len(roster.keys), queues)).any():
        raise StateError("what is known for shedding leads out of itself")
