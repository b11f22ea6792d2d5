"""The arrays of a roster: how they are laid out, grow, are copied and checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail._typing import Array
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
    Keys,
    Queues,
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
    """The arrays of a roster by name, without those that follow from what it is made for."""
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields"):
            if name != "uses":
                yield from arrays_of(value, f"{name}.")
        elif isinstance(value, np.ndarray) and name != "start":
            yield prefix + name, value


def empty(uses: Uses, rank: int, places: int, *, patterns: bool) -> Roster:
    """A roster of nothing, with room for so many tuples."""
    windows, inputs, tables = len(uses.pool), len(uses.table), len(uses.width)
    most, width = _uses_of_a_window(uses), max(1, int(uses.width.max(initial=0)))
    held = Held(
        **_table(
            places,
            dict.fromkeys(("row", "ts", "serial"), np.int64),
            dict.fromkeys(("older", "newer", "before", "after", "queue", "member"), np.int32),
            dict.fromkeys(("key", "key_before", "key_after"), (np.int32, most)),
            {"pattern": (np.int16, most), "window": np.int16},
        )
    )
    for values in held:
        values[:] = NONE
    held.newer[:] = _chain(places)
    count = places * most
    bits = max(1, (count - 1).bit_length())
    columns = _table(
        count,
        {"code": np.uint64, "results": np.float64, "following": np.int32, "total": np.int32},
        {"tuples": (np.int32, width), "first": (np.int32, width), "table": np.int16},
    )
    keys = Keys(**columns, head=np.full(1 << bits, NONE, np.int32), shift=np.uint64(64 - bits))
    keys.following[:], keys.first[:] = _chain(count), NONE
    shapes = 1 << width if patterns else 1
    at = np.zeros(7, np.int64)
    at[CLOCK] = _LONG_AGO
    return Roster(
        uses,
        held,
        keys,
        no_queues(uses, rank, places, keys, patterns=shapes),
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


def no_queues(uses: Uses, rank: int, places: int, keys: Keys, *, patterns: int) -> Queues:
    """No queues, and room for one per tuple; hardly any where tuples do not stand in queues."""
    most, count = _uses_of_a_window(uses), places if rank <= OUTPUT else 2
    parts = len(uses.table) * patterns if rank == ARRIVAL_ORDER else keys.tuples.size
    columns = _table(
        count,
        {"part": (np.int64, most), "part_before": (np.int32, most), "part_after": (np.int32, most)},
        {"first": np.int32, "last": np.int32, "at": np.int32, "window": np.int16},
    )
    for name in ("part", "part_before", "part_after", "last"):
        columns[name][:] = NONE
    columns["first"][:] = _chain(count)
    sizes = np.minimum(uses.cap, places) + 1 if rank != FIFO else np.ones(len(uses.cap), np.int64)
    heaps = _table(max(2, int(sizes.sum())), {"worth": np.float64, "tie": np.int64, "heap": np.int32})
    return Queues(
        **columns,
        **heaps,
        of_part=np.full(max(1, parts) if rank <= OUTPUT else 1, NONE, np.int32),
        start=np.cumsum(sizes) - sizes,
        size=np.zeros(len(uses.cap), np.int64),
    )


def _uses_of_a_window(uses: Uses) -> int:
    return max(1, int(np.diff(uses.first).max(initial=0)))


def _table(count: int, *columns: Any) -> dict[str, Any]:
    """Columns of zeros whose entries for one number lie beside each other: in one line of memory if they fit."""
    fields = [
        (name, *(kind if isinstance(kind, tuple) else (kind,))) for part in columns for name, kind in part.items()
    ]
    fields = [(name, kind, tuple(width)) for name, kind, *width in fields]
    plain = np.dtype(fields, align=True)
    size = plain.itemsize
    if _LINE // 2 < size <= _LINE:
        size = _LINE
    places: Any = {
        "names": list(plain.names or ()),
        "formats": [plain[name] for name in plain.names or ()],
        "offsets": [plain.fields[name][1] for name in plain.names or ()] if plain.fields else [],
        "itemsize": size,
    }
    whole = np.zeros(count * size + _LINE, np.uint8)
    table = _in_line(whole).view(np.dtype(places))
    return {name: table[name] for name in table.dtype.names or ()}


def _in_line(whole: Array) -> Array:
    """The part of some bytes that begins where a line of memory does."""
    first = -whole.ctypes.data % _LINE
    return whole[first : first + len(whole) - _LINE]


def _chain(count: int) -> Array:
    """Numbers that each lead to the next; the last to none."""
    links = np.arange(1, count + 1, dtype=np.int32)
    links[-1] = NONE
    return links


def grown(old: Roster, rank: int, places: int, *, patterns: bool) -> Roster:
    """The same with room for so many tuples."""
    new = empty(old.uses, rank, places, patterns=patterns)
    before, after = dict(arrays_of(old)), dict(arrays_of(new))
    for name, array in after.items():
        if name in ("queues.heap", "queues.worth", "queues.tie"):
            ends = [*old.queues.start[1:], len(before[name])]
            for first, start, end in zip(new.queues.start, old.queues.start, ends, strict=True):
                array[first : first + end - start] = before[name][start:end]
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


def _blocks(roster: Roster) -> list[Array]:
    """The memory that arrays lie in, tables as a whole."""
    found: dict[int, Array] = {}
    for _, array in arrays_of(roster):
        owner = array if array.base is None else array.base
        found[id(owner)] = _in_line(owner) if owner.dtype == np.uint8 else owner
    return list(found.values())


def copied(roster: Roster, rank: int, spare: Roster | None, *, patterns: bool) -> Roster:
    """The same in arrays of its own; in those of `spare` if they fit, for memory that is new costs more than what is written to it."""
    blocks = _blocks(roster)
    if spare is None or [block.shape for block in _blocks(spare)] != [block.shape for block in blocks]:
        spare = empty(roster.uses, rank, len(roster.held.row), patterns=patterns)
    for block, other in zip(blocks, _blocks(spare), strict=True):
        np.copyto(other, block)
    return spare


def check(roster: Roster) -> None:
    """Raise `StateError` if something leads out of the arrays."""
    places = len(roster.held.row)
    longest = max(int(np.diff([*roster.queues.start, len(roster.queues.heap)]).min(initial=places)), 1)
    sizes = {
        **dict.fromkeys(("held.older", "held.newer", "held.before", "held.after"), places),
        **dict.fromkeys(("held.key_before", "held.key_after", "keys.first", "oldest", "newest"), places),
        **dict.fromkeys(("inside", "queues.last"), places),
        "queues.first": max(places, len(roster.queues.first)),
        **dict.fromkeys(("held.key", "keys.head", "keys.following"), len(roster.keys.code)),
        **dict.fromkeys(("held.queue", "queues.part_before", "queues.part_after"), len(roster.queues.first)),
        "queues.of_part": len(roster.queues.first),
        "queues.part": len(roster.queues.of_part),
        "queues.heap": places,
        "queues.at": longest,
        "held.window": len(roster.uses.pool),
        "held.member": longest,
        "held.pattern": roster.given.shape[1],
        "keys.table": max(1, len(roster.uses.width)),
        "queues.window": len(roster.uses.pool),
        "queues.size": longest + 1,
    }
    for name, array in arrays_of(roster):
        if name in sizes and array.size and not NONE <= int(array.min()) <= int(array.max()) < sizes[name]:
            raise StateError(f"what is known for shedding leads out of itself in {name!r}")
    free = roster.at[[FREE_PLACE, FREE_KEY, FREE_QUEUE]]
    if (free < NONE).any() or (free >= (places, len(roster.keys.code), len(roster.queues.first))).any():
        raise StateError("what is known for shedding leads out of itself")
