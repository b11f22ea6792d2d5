"""The arrays of a tuple table: layout, growth, and checks of restored ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dovetail._typing import Array
from dovetail.engine.kernels.key_history import NEVER, NOW, SAMPLE_BITS, SINCE, SLOTS, KeyHistory
from dovetail.engine.kernels.levels import LEVELS, WORDS
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    CHAIN,
    CLOCK,
    EPOCH_END,
    FREE_KEY,
    FREE_QUEUE,
    FREE_TUPLE,
    FREQUENCY,
    HEAP_ENTRY,
    IN_DEAD_LIST,
    KEY,
    LEVEL,
    LINK,
    MEMBERSHIP,
    NONE,
    OUTPUT,
    PARTNER,
    QUEUE,
    RANDOM,
    TERM,
    TUPLE,
    UNSEEN,
    USED_KEYS,
    USED_QUEUES,
    USED_TUPLES,
    QueueRanking,
    TupleTable,
    WindowReaders,
    rehash_keys,
)
from dovetail.errors import StateError

MAX_CAPACITY = 1 << 30
"""Tuples have 32-bit indexes."""
_LONG_AGO = -(1 << 62)
SAMPLED_FROM = 1 << 12
"""Buckets from which on a key history follows a sample of the keys while they repeat."""
_INT32: np.dtype[Any] = np.dtype(np.int32)
_LINE = 64
"""Bytes of a cache line."""


class TableParts(NamedTuple):
    """Parts of a table that have memory."""

    queues: bool = True
    """Whether the policy has queues."""
    queues_by_key: bool = True
    results_by_key: bool = True
    patterns: bool = True
    partners: bool = True
    weights: bool = False
    """Whether tuples may take more than one unit of the cap."""
    all_keys: bool = False
    """Whether the key history follows all keys, however large it is."""

    def of_policy(self, policy: int) -> TableParts:
        """Return these parts, with the lists that a policy needs."""
        return self._replace(
            queues=policy <= RANDOM, queues_by_key=FREQUENCY <= policy <= OUTPUT, partners=policy == ARRIVAL_ORDER
        )


def has_memory(array: Array) -> bool:
    """Whether the entries of an array are different ones."""
    return array.ndim == 0 or array.strides[0] > 0


def arrays_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a table by name, a field of records is one; the layout determines the others."""
    for name in group._fields:
        value = getattr(group, name)
        if hasattr(value, "_fields"):
            if name != "readers":
                yield from arrays_of(value, f"{name}.")
        elif isinstance(value, np.ndarray) and not has_memory(value):
            continue
        elif isinstance(value, np.recarray):
            for field in value.dtype.names or ():
                yield f"{prefix}{name}.{field}", value[field]
        elif isinstance(value, np.ndarray) and name != "start":
            yield prefix + name, value


def empty_table(readers: WindowReaders, policy: int, capacity: int, parts: TableParts) -> TupleTable:
    """Return an empty table."""
    windows, inputs, key_tables = len(readers.pool), len(readers.key_table), len(readers.width)
    readers_per_window, width = _readers_per_window(readers), max(1, int(readers.width.max(initial=0)))
    history = empty_history(readers, all_keys=parts.all_keys)
    has_keys, has_chains = key_tables > 0, len(readers.epoch) > 0 and not history.sample_bits
    tuples, links, memberships, partners, chains = _adjacent(
        capacity,
        (TUPLE, 0, True),
        (LINK, 0, parts.queues or has_chains),
        (MEMBERSHIP, readers_per_window, has_keys),
        (PARTNER, readers_per_window, has_keys and parts.partners),
        (CHAIN, readers_per_window, has_chains),
    )
    count = capacity * readers_per_window if has_keys else 2
    bits = max(1, (count - 1).bit_length())
    keys, counts, first_tuples, first_queues = _adjacent(
        count,
        (KEY, 0, True),
        (_INT32, width, True),
        (_INT32, width, parts.partners),
        (_INT32, width, parts.queues_by_key),
    )
    pattern_count = 1 << width if parts.patterns else 1
    counters = np.zeros(1 + EPOCH_END, np.int64)
    counters[[FREE_TUPLE, FREE_KEY, FREE_QUEUE]], counters[[CLOCK, EPOCH_END]] = NONE, _LONG_AGO
    return TupleTable(
        readers,
        tuples,
        links,
        memberships,
        partners,
        chains,
        keys,
        counts,
        first_tuples,
        first_queues,
        np.zeros(count if parts.results_by_key else 1),
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
        np.ones(capacity if parts.weights else 1, np.int32),
        np.zeros(key_tables),
        history,
        counters,
    )


def empty_ranking(readers: WindowReaders, policy: int, capacity: int, width: int, *, patterns: int) -> QueueRanking:
    """Return a ranking without queues; its capacity is one queue per tuple or pattern, or nearly none if the policy has no queues."""
    readers_per_window, count = _readers_per_window(readers), capacity if policy <= OUTPUT else 2
    if policy == ARRIVAL_ORDER and readers_per_window == 1:
        count = max(2, min(count, len(readers.key_table) * patterns))
    queues, terms = _adjacent(count, (QUEUE, 0, True), (TERM, readers_per_window, True))
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


def empty_history(readers: WindowReaders, *, all_keys: bool) -> KeyHistory:
    """Return an empty key history; it has two entries for each tuple that the caps allow, however large the table is.

    Unless `all_keys`, a large history has room for a sample of the keys only.
    """
    joins, pools, buckets = len(readers.epoch), len(readers.cap), 1
    while joins and buckets * joins * SLOTS < 2 * int(readers.cap.sum()) * _readers_per_window(readers):
        buckets *= 2
    may_sample = buckets >= SAMPLED_FROM
    sample_bits = SAMPLE_BITS if may_sample and not all_keys else 0
    buckets >>= sample_bits
    lines = _align_to_line(np.zeros(joins * buckets * _LINE + _LINE, np.uint8)).view(np.uint32).reshape(-1, 2 * SLOTS)
    state = np.zeros((joins, 3), np.int64)
    state[:, NOW], state[:, SINCE] = _LONG_AGO, NEVER
    first, last = np.full((2, pools), NONE, np.int32)
    return KeyHistory(lines, buckets, sample_bits, may_sample, state, np.zeros((joins, 2)), first, last)


def _readers_per_window(readers: WindowReaders) -> int:
    """Return the largest number of readers of a window."""
    return max(1, int(np.diff(readers.first).max(initial=0)))


def _adjacent(count: int, *kinds: tuple[np.dtype[Any], int, bool]) -> list[Any]:
    """Return arrays of `count` rows of zeros; what belongs to one row is adjacent in memory.

    Each has a type, the entries of a row (0: the array has one dimension), and whether it is needed. Otherwise all rows are the same
    one, filled with `NONE`.
    """
    offsets, size = [], 0
    for kind, per_row, is_needed in kinds:
        size = -(-size // 4) * 4 if kind == _INT32 else size
        offsets.append(size)
        size += kind.itemsize * max(1, per_row) * is_needed
    size = -(-size // 4) * 4
    size += 4 * (size == kinds[0][0].itemsize)  # a contiguous array would be another type for Numba
    memory = _align_to_line(np.zeros(count * size + _LINE, np.uint8))
    arrays: list[Any] = []
    for (kind, per_row, is_needed), offset in zip(kinds, offsets, strict=True):
        shape, stride = (count, per_row) if per_row else (count,), size if is_needed else 0
        owner, start = (memory, offset) if is_needed else (np.full(kind.itemsize * max(1, per_row), 0xFF, np.uint8), 0)
        array: Any = np.ndarray(shape, kind, owner, start, (stride, kind.itemsize)[: len(shape)])
        arrays.append(array.view(np.recarray) if kind.names else array)
    return arrays


def _align_to_line(whole: Array) -> Array:
    """Return the part of an array that begins at a cache line; the array is one line longer."""
    first = -whole.ctypes.data % _LINE
    return whole[first : first + len(whole) - _LINE]


def with_capacity(
    old: TupleTable, policy: int, capacity: int, parts: TableParts, *, same_ranking: bool = True
) -> TupleTable:
    """Return a copy with capacity for this many tuples; without queues unless it has the `same_ranking`."""
    new = empty_table(old.readers, policy, capacity, parts)
    before, used = dict(arrays_of(old)), used_entries(old)
    for name, array in arrays_of(new):
        if name.startswith("ranking.") and not same_ranking:
            continue
        if name.startswith("ranking.heap.") or name == "ranking.members":
            ends = [*old.ranking.start[1:], len(before[name])]
            for first, start, end in zip(new.ranking.start, old.ranking.start, ends, strict=True):
                array[first : first + end - start] = before[name][start:end]
        elif name != "buckets":
            values = before.get(name)
            if values is None:  # the tuples had no such lists
                array[: used[record_of(name)]] = NONE
            elif name != "history.lines" or len(values) == len(array):
                count = used.get(record_of(name), len(values))
                array[:count] = values[:count]
    if new.history.sample_bits != old.history.sample_bits:
        new.history.counts[:] *= 2.0 ** (old.history.sample_bits - new.history.sample_bits)
    rehash_keys(new, np.flatnonzero(new.keys.total[: new.counters[USED_KEYS]] > 0))
    return new


def record_of(name: str) -> str:
    """Return the name of the records that an array belongs to, or its own."""
    return name.rpartition(".")[0] or name


def used_entries(table: TupleTable) -> dict[str, int]:
    """Return the high-water marks of records; memory beyond them is untouched."""
    tuples, keys, queues = (int(count) for count in table.counters[[USED_TUPLES, USED_KEYS, USED_QUEUES]])
    return {
        **dict.fromkeys(("tuples", "links", "memberships", "partners", "chains"), tuples),
        **dict.fromkeys(("keys", "counts", "first_tuples", "first_queues"), keys),
        **({"key_results": keys} if len(table.key_results) > 1 else {}),
        **dict.fromkeys(("ranking.queues", "ranking.terms"), queues),
    }


def check_table(table: TupleTable, policy: int) -> None:
    """Raise `StateError` if an index is out of range, or counts do not match."""
    capacity, queues, ranking = len(table.tuples), len(table.ranking.queues), table.ranking
    total = len(ranking.members if policy == RANDOM else ranking.heap)
    max_size = max(int(np.diff([*ranking.start, total]).min(initial=capacity)), 1)
    tuples_used = int(np.clip(table.counters[USED_TUPLES], 0, capacity))
    sizes = {
        **dict.fromkeys(("tuples.older", "tuples.newer", "links.before", "links.after"), capacity),
        **dict.fromkeys(("partners.before", "partners.after", "first_tuples", "oldest", "newest"), capacity),
        **dict.fromkeys(("oldest_inside", "ranking.queues.last", "history.first_dead", "history.last_dead"), capacity),
        "chains.entry": max(1, table.history.lines.size // 2),
        "chains.link": capacity * table.chains.shape[1],
        "ranking.queues.first": max(capacity, queues),
        **dict.fromkeys(("memberships.key", "buckets", "keys.next"), len(table.keys)),
        **dict.fromkeys(("ranking.terms.before", "ranking.terms.after", "ranking.by_pattern", "first_queues"), queues),
        **dict.fromkeys(("ranking.queues.before", "ranking.queues.after"), queues),
        **dict.fromkeys(("ranking.levels.first", "ranking.levels.last"), queues),
        "links.queue": max_size if policy == RANDOM else queues,
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
        least = {"links.queue": IN_DEAD_LIST, "chains.entry": UNSEEN}.get(name, NONE)
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
