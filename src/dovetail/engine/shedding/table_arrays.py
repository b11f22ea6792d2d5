"""The arrays of a tuple table: layout, growth, compressed copies, and checks of restored ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import Array
from dovetail.engine.kernels.dead_keys import NEVER
from dovetail.engine.kernels.key_history import NOW, SINCE, SLOTS, KeyHistory
from dovetail.engine.kernels.levels import LEVELS, WORDS
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    CLOCK,
    EPOCH_END,
    FREE_KEY,
    FREE_QUEUE,
    FREE_TUPLE,
    HEAP_ENTRY,
    IN_DEAD_LIST,
    KEY,
    LEVEL,
    MEMBERSHIP,
    NONE,
    OUTPUT,
    QUEUE,
    RANDOM,
    SLOT,
    TERM,
    TUPLE,
    UNSEEN,
    USED_KEYS,
    USED_QUEUES,
    USED_TUPLES,
    QueueRanking,
    Records,
    TupleTable,
    WindowReaders,
    rehash_keys,
)
from dovetail.errors import StateError

MAX_CAPACITY = 1 << 30
"""Tuples have 32-bit indexes."""
_LONG_AGO = -(1 << 62)
_LINE = 64
"""Bytes of a cache line."""


def arrays_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a table by name, a field of records is one; the layout determines the others."""
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields"):
            if name != "readers":
                yield from arrays_of(value, f"{name}.")
        elif isinstance(value, np.recarray):
            for field in value.dtype.names or ():
                yield f"{prefix}{name}.{field}", value[field]
        elif isinstance(value, np.ndarray) and name != "start":
            yield prefix + name, value


def empty_table(readers: WindowReaders, policy: int, capacity: int, *, patterns: bool, has_weights: bool) -> TupleTable:
    """Return an empty table; `has_weights`: tuples may take more than one unit of the cap."""
    windows, inputs, key_tables = len(readers.pool), len(readers.key_table), len(readers.width)
    readers_per_window, width = _readers_per_window(readers), max(1, int(readers.width.max(initial=0)))
    tuples, memberships = _records(capacity, TUPLE, MEMBERSHIP, readers_per_window)
    count = capacity * readers_per_window if key_tables else 2
    bits = max(1, (count - 1).bit_length())
    keys, slots = _records(count, KEY, SLOT, width)
    pattern_count = 1 << width if patterns else 1
    counters = np.zeros(1 + EPOCH_END, np.int64)
    counters[[FREE_TUPLE, FREE_KEY, FREE_QUEUE]], counters[[CLOCK, EPOCH_END]] = NONE, _LONG_AGO
    return TupleTable(
        readers,
        tuples,
        memberships,
        keys,
        slots,
        np.full(1 << bits, NONE, np.int32),
        np.uint64(64 - bits),
        empty_ranking(readers, policy, capacity, width, patterns=pattern_count),
        np.zeros((inputs, pattern_count)),
        np.zeros((inputs, pattern_count)),
        np.full(windows, NONE, np.int32),
        np.full(windows, NONE, np.int32),
        np.zeros(len(readers.cap), np.int64),
        np.full(inputs, NONE, np.int32),
        np.zeros(inputs, np.int64),
        np.full(windows, _LONG_AGO, np.int64),
        np.ones(capacity if has_weights else 1, np.int32),
        np.zeros(key_tables),
        empty_history(readers),
        counters,
    )


def empty_ranking(readers: WindowReaders, policy: int, capacity: int, width: int, *, patterns: int) -> QueueRanking:
    """Return a ranking without queues; its capacity is one queue per tuple or pattern, or nearly none if the policy has no queues."""
    readers_per_window, count = _readers_per_window(readers), capacity if policy <= OUTPUT else 2
    if policy == ARRIVAL_ORDER and readers_per_window == 1:
        count = max(2, min(count, len(readers.key_table) * patterns))
    queues, terms = _records(count, QUEUE, TERM, readers_per_window)
    by_pattern, pools = policy == ARRIVAL_ORDER, len(readers.cap)
    sizes = np.ones(pools, np.int64)
    if by_pattern or policy == RANDOM:
        sizes += np.minimum(readers.cap, count if by_pattern else capacity)
    total = int(sizes.sum())
    leveled = pools if ARRIVAL_ORDER < policy <= OUTPUT else 0
    levels = np.zeros(max(2, leveled * LEVELS), LEVEL).view(np.recarray)
    levels.first, levels.last = NONE, NONE
    return QueueRanking(
        queues,
        terms,
        np.zeros(total if by_pattern else 2, HEAP_ENTRY).view(np.recarray),
        np.zeros(total if policy == RANDOM else 2, np.int32),
        levels,
        np.zeros(max(1, leveled * WORDS), np.uint64),
        np.full(max(1, len(readers.key_table)) * patterns if by_pattern else 1, NONE, np.int32),
        ((patterns if by_pattern else width) - 1).bit_length(),
        np.cumsum(sizes) - sizes,
        np.zeros(pools, np.int64),
    )


def empty_history(readers: WindowReaders) -> KeyHistory:
    """Return an empty key history with two entries for each tuple that the caps allow, however large the table is."""
    joins, pools, buckets = len(readers.epoch), len(readers.cap), 1
    while joins and buckets * joins * SLOTS < 2 * int(readers.cap.sum()) * _readers_per_window(readers):
        buckets *= 2
    lines = _align_to_line(np.zeros(joins * buckets * _LINE + _LINE, np.uint8)).view(np.uint32).reshape(-1, 2 * SLOTS)
    state = np.zeros((joins, 3), np.int64)
    state[:, NOW], state[:, SINCE] = _LONG_AGO, NEVER
    first, last = np.full((2, pools), NONE, np.int32)
    return KeyHistory(lines, buckets, state, np.zeros((joins, 2)), first, last)


def _readers_per_window(readers: WindowReaders) -> int:
    """Return the largest number of readers of a window."""
    return max(1, int(np.diff(readers.first).max(initial=0)))


def _records(count: int, kind: np.dtype[Any], kind_behind: np.dtype[Any], behind_each: int) -> tuple[Records, Records]:
    """Return records of zeros, each followed in memory by `behind_each` others, in one cache line if they fit."""
    *_, (last_type, last) = ((field[0], field[1]) for field in (kind.fields or {}).values())
    offset = -(-(last + last_type.itemsize) // kind_behind.alignment) * kind_behind.alignment
    size = offset + behind_each * kind_behind.itemsize
    size = _LINE if _LINE // 2 < size <= _LINE else -(-size // kind.alignment) * kind.alignment
    memory = _align_to_line(np.zeros(count * size + _LINE, np.uint8))
    first: Any = np.ndarray((count,), kind, memory, 0, (size,))
    records_behind: Any = np.ndarray((count, behind_each), kind_behind, memory, offset, (size, kind_behind.itemsize))
    return first.view(np.recarray), records_behind.view(np.recarray)


def _align_to_line(whole: Array) -> Array:
    """Return the part of an array that begins at a cache line; the array is one line longer."""
    first = -whole.ctypes.data % _LINE
    return whole[first : first + len(whole) - _LINE]


def with_capacity(old: TupleTable, policy: int, capacity: int, *, patterns: bool) -> TupleTable:
    """Return a copy with capacity for this many tuples."""
    new = empty_table(old.readers, policy, capacity, patterns=patterns, has_weights=len(old.units) > 1)
    for (memory, used), (target, _) in zip(_record_memory(old), _record_memory(new), strict=True):
        target[:used] = memory[:used]
    before, after = dict(arrays_of(old)), dict(arrays_of(new))
    for name, array in after.items():
        if name.startswith("ranking.heap.") or name == "ranking.members":
            ends = [*old.ranking.start[1:], len(before[name])]
            for first, start, end in zip(new.ranking.start, old.ranking.start, ends, strict=True):
                array[first : first + end - start] = before[name][start:end]
        elif name != "buckets" and name.partition(".")[0] not in _RECORDS and not name.startswith(_RANKING_RECORDS):
            array[: len(before[name])] = before[name]
    rehash_keys(new, np.flatnonzero(new.keys.total[: new.counters[USED_KEYS]] > 0))
    return new


_RECORDS = ("tuples", "memberships", "keys", "slots")
_RANKING_RECORDS = ("ranking.queues.", "ranking.terms.")
"""Arrays whose memory beyond the high-water marks is untouched."""


def used_entries(table: TupleTable) -> dict[str, int]:
    """Return the high-water marks of records."""
    tuples, keys, queues = (int(count) for count in table.counters[[USED_TUPLES, USED_KEYS, USED_QUEUES]])
    return {
        "tuples": tuples,
        "memberships": tuples,
        "keys": keys,
        "slots": keys,
        "ranking.queues": queues,
        "ranking.terms": queues,
    }


def _record_memory(table: TupleTable) -> list[tuple[Array, int]]:
    """Return the memory of records, and how many bytes of it are used."""
    memory = []
    for records, name in ((table.tuples, "tuples"), (table.keys, "keys"), (table.ranking.queues, "ranking.queues")):
        owner: Any = records
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        memory.append((_align_to_line(owner), used_entries(table)[name] * records.strides[0]))
    return memory


def _other_arrays(table: TupleTable) -> list[Array]:
    """Return the arrays that are not records."""
    values = [
        *table,
        *(getattr(table.ranking, name) for name in table.ranking._fields if name not in ("queues", "terms")),
        *table.history,
    ]
    records = [id(getattr(table, name)) for name in _RECORDS]
    return [value for value in values if isinstance(value, np.ndarray) and id(value) not in records]


class CompressedTupleTable:
    """A compressed copy of a tuple table, for rollback."""

    def __init__(self, table: TupleTable) -> None:
        self.capacity, self._has_weights = len(table.tuples), len(table.units) > 1
        self._records = [(pa.compress(memory[:used], "lz4"), used) for memory, used in _record_memory(table)]
        self._others = [
            pa.compress(np.ascontiguousarray(array).view(np.uint8), "lz4") for array in _other_arrays(table)
        ]

    def decompress(self, readers: WindowReaders, policy: int, *, patterns: bool) -> TupleTable:
        """Return the table."""
        table = empty_table(readers, policy, self.capacity, patterns=patterns, has_weights=self._has_weights)
        for (packed, used), (memory, _) in zip(self._records, _record_memory(table), strict=True):
            memory[:used] = np.frombuffer(pa.decompress(packed, used, "lz4"), np.uint8)
        for content, array in zip(self._others, _other_arrays(table), strict=True):
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(pa.decompress(content, array.nbytes, "lz4"), np.uint8)
        return table


def check_table(table: TupleTable, policy: int) -> None:
    """Raise `StateError` if an index is out of range, or counts do not match."""
    capacity, queues, ranking = len(table.tuples), len(table.ranking.queues), table.ranking
    total = len(ranking.members if policy == RANDOM else ranking.heap)
    max_size = max(int(np.diff([*ranking.start, total]).min(initial=capacity)), 1)
    tuples_used = int(np.clip(table.counters[USED_TUPLES], 0, capacity))
    sizes = {
        **dict.fromkeys(("tuples.older", "tuples.newer", "tuples.before", "tuples.after"), capacity),
        **dict.fromkeys(("memberships.before", "memberships.after", "slots.first", "oldest", "newest"), capacity),
        **dict.fromkeys(("oldest_inside", "ranking.queues.last", "history.first_dead", "history.last_dead"), capacity),
        "memberships.entry": max(1, table.history.lines.size // 2),
        "memberships.link": capacity * table.memberships.shape[1],
        "ranking.queues.first": max(capacity, queues),
        **dict.fromkeys(("memberships.key", "buckets", "keys.next"), len(table.keys)),
        **dict.fromkeys(("ranking.terms.before", "ranking.terms.after", "ranking.by_pattern", "slots.queue"), queues),
        **dict.fromkeys(("ranking.queues.before", "ranking.queues.after"), queues),
        **dict.fromkeys(("ranking.levels.first", "ranking.levels.last"), queues),
        "tuples.queue": max_size if policy == RANDOM else queues,
        "ranking.terms.term": (len(table.keys) if policy != ARRIVAL_ORDER else len(table.readers.key_table))
        << ranking.term_bits,
        "ranking.heap.queue": queues,
        "ranking.members": capacity,
        "ranking.queues.position": max_size if policy == ARRIVAL_ORDER else LEVELS,
        "tuples.window": len(table.readers.pool),
        "memberships.pattern": table.pattern_results.shape[1],
        "keys.key_table": max(1, len(table.readers.width)),
        "ranking.queues.window": len(table.readers.pool),
        "ranking.size": max_size + 1,
    }
    for name, array in arrays_of(table):
        least = {"tuples.queue": IN_DEAD_LIST, "memberships.entry": UNSEEN}.get(name, NONE)
        if name in sizes and array.size and not least <= int(array.min()) <= int(array.max()) < sizes[name]:
            raise StateError(f"the shedding state is corrupt: {name!r} has indices out of range")
    is_held = table.tuples.row[:tuples_used] >= 0
    pools = table.readers.pool[table.tuples.window[:tuples_used][is_held]]
    units = np.broadcast_to(table.units, capacity)[:tuples_used][is_held]
    counted = np.bincount(pools, units, minlength=len(table.used_units))
    if (table.units < 1).any() or (counted != table.used_units).any():
        raise StateError("the shedding state is corrupt: its counts do not match its tuples")
    free, used = (
        table.counters[[FREE_TUPLE, FREE_KEY, FREE_QUEUE]],
        table.counters[[USED_TUPLES, USED_KEYS, USED_QUEUES]],
    )
    if (free < NONE).any() or (free >= used).any() or (used > (capacity, len(table.keys), queues)).any():
        raise StateError("the shedding state is corrupt: its free lists are out of range")
