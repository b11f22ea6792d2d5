"""The tuple table of shedding: the tuples that windows hold, in order of arrival, with the codes of their keys.

Shedding decides before anything is joined. For each key and each input of a join the table counts the tuples inside the input's
window. These are AMJoin's bit vectors with counts for bits, so that a bit is cleared when the last tuple of a key leaves. The inputs
whose count is not zero when a tuple arrives are its existence pattern (Kwon et al., definition 1). The product of the counts of the
other inputs is the number of results that the tuple completes.

Policies rank queues of equivalent tuples. Tuples of a window are equivalent if they have the same pattern, or the same key, for every
reader of the window. A queue holds them in order of arrival. The worth of a queue is a sum of terms, one for each reader that sees
its tuples; a term belongs to a reader and a pattern, or to a key. When the value of a term changes, the queues that have it move.

Each tuple, key and queue is a record, followed in memory by the records and numbers that its policy needs, so that adding or removing
a tuple touches few cache lines. What a policy does not need has no memory: all entries of such an array are the same one. Tuples, keys
and queues are addressed by index; free ones are linked. `NONE` stands for no tuple, key, queue or term.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dovetail._typing import Float64Array, Int32Array, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.index import GOLDEN
from dovetail.engine.kernels.key_history import KeyHistory

Records: TypeAlias = "np.recarray[Any, np.dtype[np.record]]"
"""Arrays of records; what belongs to one tuple, key or queue is adjacent in memory."""

NONE = -1
ARRIVAL_ORDER, FREQUENCY, FREQUENCY_OWN, OUTPUT, RANDOM, FIFO = range(6)
"""Policy codes."""
UNSEEN = -2
"""History entry of a tuple for a reader that does not see it."""
IN_DEAD_LIST = -2
"""The queue of a dead tuple."""
(
    FREE_TUPLE,
    FREE_KEY,
    FREE_QUEUE,
    CLOCK,
    SERIAL,
    SHED_COUNT,
    NEXT_LEAVE,
    USED_TUPLES,
    USED_KEYS,
    USED_QUEUES,
    EPOCH_END,
) = range(11)
"""Entries of `TupleTable.counters`. `FREE_*`: the first free record. `USED_*`: high-water marks; memory beyond them is untouched.
`NEXT_LEAVE`: no tuple leaves the window of a reader up to this time. `EPOCH_END`: when the next epoch of the history begins."""


class WindowReaders(NamedTuple):
    """The readers of windows. A reader is one input of a join that reads a window; the readers of a window are consecutive.

    In kernels `reader` is an index over all readers, and `local` an index among the readers of one window.
    """

    first: Int64Array
    """By window: its first reader; the last entry is the number of readers."""
    key_table: Int64Array
    """By reader: the key table that counts its keys; `NONE` if it has no key."""
    slot: Int64Array
    """By reader: its slot in the key table."""
    span: Int64Array
    """By reader: the length of its window in microseconds."""
    width: Int64Array
    """By key table: its number of readers."""
    by_slot: Int64Array
    """By key table and slot: the reader."""
    pool: Int64Array
    """By window: its pool; the windows of a pool share a cap."""
    cap: Int64Array
    """By pool."""
    retention: Int64Array
    """How long tuples may be needed. Each row has a window, microseconds, and a bit for each stream to wait for."""
    lateness: Int64Array
    """By window."""
    window: Int64Array
    """By reader."""
    join: Int64Array
    """By reader: its join's position among those with a key history; `NONE` without one."""
    inputs: Int64Array
    """By join with a key history: its number of inputs."""
    epoch: Int64Array
    """By join with a key history: the length of an epoch in microseconds."""


TUPLE = np.dtype(
    [
        ("row", np.int64),
        ("ts", np.int64),
        ("serial", np.int32),  # in order of arrival, see `serial_of`
        ("older", np.int32),  # in the window
        ("newer", np.int32),
        ("window", np.int16),
    ]
)
"""A tuple."""
LINK = np.dtype(
    [
        ("before", np.int32),  # in the queue
        ("after", np.int32),
        ("queue", np.int32),  # or `IN_DEAD_LIST`; under `RANDOM` the position among the pool's tuples
    ]
)
"""A tuple in its queue."""
MEMBERSHIP = np.dtype(
    [
        ("pattern", np.int16),
        ("key", np.int32),  # `NONE` if the reader does not see the tuple, or the tuple has left its window
    ]
)
"""A tuple in the window of one reader."""
PARTNER = np.dtype([("before", np.int32), ("after", np.int32)])
"""A tuple among those of the same key and reader."""
CHAIN = np.dtype(
    [
        ("entry", np.int32),  # of the key in the history; `NONE` without one, `UNSEEN` if not seen or no longer inside
        ("link", np.int32),  # the next one of the entry's chain; `NONE` at the end
    ]
)
"""A tuple among those whose keys die together."""
KEY = np.dtype(
    [
        ("code", np.uint64),
        ("next", np.int32),  # key in the same bucket
        ("total", np.int32),  # tuples inside their windows, over all readers
        ("key_table", np.int16),
    ]
)
"""A key of AMJoin's table; one array holds the keys of all key tables."""
QUEUE = np.dtype(
    [
        ("first", np.int32),  # tuple
        ("last", np.int32),
        ("position", np.int32),  # in the heap, or the level
        ("before", np.int32),  # queue of the same level
        ("after", np.int32),
        ("window", np.int16),
    ]
)
"""A queue of equivalent tuples."""
TERM = np.dtype([("term", np.int64), ("before", np.int32), ("after", np.int32)])
"""A queue's term for one reader of its window, and its neighbours among the queues with the same term."""
HEAP_ENTRY = np.dtype([("worth", np.float64), ("tie", np.int64), ("queue", np.int32)], align=True)
"""A queue in the heap; of two queues with equal worth the one with the smaller `tie` is shed from first."""
LEVEL = np.dtype([("first", np.int32), ("last", np.int32)], align=True)
"""A list of queues with about the same worth."""


class QueueRanking(NamedTuple):
    """Queues of equivalent tuples and, by pool, their order: a heap with the first to be shed in front, or levels."""

    queues: Records
    """By queue: `QUEUE`."""
    terms: Records
    """By queue and reader of the window: `TERM`."""
    heap: Records
    """`HEAP_ENTRY`."""
    members: Int32Array
    """By pool, under `RANDOM`: all of its tuples."""
    levels: Records
    """By pool and level: `LEVEL`."""
    nonempty: UInt64Array
    """By pool and 64 levels: a bit for each level that has queues."""
    by_pattern: Int32Array
    """By reader and pattern: the first queue that has it."""
    term_bits: int
    """The low bits of a term are a pattern, above them a reader; or a slot, above it a key. This is the number of low bits."""
    start: Int64Array
    """By pool: where its heap, or its `members`, begins."""
    size: Int64Array
    """By pool."""


class TupleTable(NamedTuple):
    """Arrays of tuples, keys and queues."""

    readers: WindowReaders
    tuples: Records
    """By tuple: `TUPLE`."""
    links: Records
    """By tuple, if it has a queue: `LINK`."""
    memberships: Records
    """By tuple and reader of its window, if keys are counted: `MEMBERSHIP`."""
    partners: Records
    """By tuple and reader of its window, under `ARRIVAL_ORDER`: `PARTNER`."""
    chains: Records
    """By tuple and reader of its window, with a key history: `CHAIN`."""
    keys: Records
    """By key: `KEY`."""
    counts: Int32Array
    """By key and slot: the number of tuples inside the window of a reader."""
    first_tuples: Int32Array
    """By key and slot, under `ARRIVAL_ORDER`: the first of these tuples."""
    first_queues: Int32Array
    """By key and slot, if queues hold the tuples of a key: the first queue of the key."""
    key_results: Float64Array
    """By key, under `OUTPUT`: results that its tuples have been part of; else a single entry."""
    buckets: Int32Array
    """By hash: the first key of a list."""
    shift: np.uint64
    """Low bits of a hash that are dropped."""
    ranking: QueueRanking
    pattern_results: Float64Array
    """By reader and pattern: results that its tuples have been part of (r of definition 2)."""
    pattern_tuples: Float64Array
    """By reader and pattern: tuples that arrived (n of definition 2)."""
    oldest: Int32Array
    newest: Int32Array
    """By window."""
    used_units: Int64Array
    """By pool: the part of the cap that its tuples take."""
    oldest_inside: Int32Array
    """By reader: the oldest tuple that has not left its window."""
    last_left: Int64Array
    """By reader: the serial number of the last tuple that has left its window."""
    max_event_times: Int64Array
    """By window."""
    units: Int32Array
    """By tuple: how much of the cap it takes; a single entry if each takes one unit."""
    results: Float64Array
    """By key table: results so far."""
    history: KeyHistory
    counters: Int64Array
    """See `FREE_TUPLE`."""


class KeySample(NamedTuple):
    """A sample of keys by hash."""

    limit: np.uint64
    """Keys with a smaller hash are sampled."""
    skips_others: bool
    """Whether tuples of other keys are left out."""


class TupleBatch(NamedTuple):
    """Tuples in event-time order."""

    window: Int64Array
    row: Int64Array
    """Row number in the window; negative if no query sees the tuple."""
    ts: Int64Array
    codes: UInt64Array
    """By reader of the window: the code of the tuple's key."""
    seen: Int64Array
    """A bit for each reader of the window that sees the tuple."""
    units: Int32Array
    """How much of the cap each takes: more than one unit if long texts are counted."""


class ExpiryDeadline(NamedTuple):
    """Deadlines before which nothing can expire, so that expiry is checked only then. Kernels update them.

    The oldest tuple of a window expires when all streams that it waits for have advanced. It is enough to watch one of them.
    """

    stream: Int64Array
    """By window: the stream that is watched; `NONE` if the window has to be checked."""
    time: Int64Array
    """By window: no tuple expires until the watched stream is later than this."""
    earliest: Int64Array
    """By window whose stream may be watched: the smallest of those times."""


class ShedTuples(NamedTuple):
    """Output: the tuples that were shed."""

    window: Int64Array
    row: Int64Array
    end: Int64Array
    """The last instant at which the tuple is part of results."""


@inlined
def wrapped(serial: int) -> int:
    """Return a serial number as a tuple stores it: the lower 32 bits."""
    return (serial + (1 << 31)) % (1 << 32) - (1 << 31)


@inlined
def serial_of(table: TupleTable, index: int) -> int:
    """Return a tuple's serial number, which is less than 2^32 below the newest."""
    newest = table.counters[SERIAL]
    return int(newest - (newest - table.tuples[index].serial) % (1 << 32))


@inlined
def units_of(table: TupleTable, index: int) -> int:
    """Return how much of the cap a tuple takes."""
    return int(table.units[index]) if len(table.units) > 1 else 1


@inlined
def _bucket(table: TupleTable, key_table: int, code: np.uint64) -> np.int64:
    return np.int64(((code + np.uint64(key_table)) * GOLDEN) >> table.shift)


@inlined
def find_or_add_key(table: TupleTable, key_table: int, code: np.uint64) -> int:
    """Return the index of a key, which is added if it is missing."""
    keys, counters = table.keys, table.counters
    bucket = _bucket(table, key_table, code)
    key = int(table.buckets[bucket])
    while key >= 0:
        if keys[key].code == code and keys[key].key_table == key_table:
            return key
        key = int(keys[key].next)
    key = int(counters[FREE_KEY])
    if key < 0:
        key = int(counters[USED_KEYS])
        counters[USED_KEYS] += 1
    else:
        counters[FREE_KEY] = keys[key].next
    keys[key].code, keys[key].key_table = code, key_table
    keys[key].total = 0
    if len(table.key_results) > 1:
        table.key_results[key] = 0.0
    for other in range(table.counts.shape[1]):
        table.counts[key, other] = 0
        table.first_tuples[key, other] = NONE
        table.first_queues[key, other] = NONE
    keys[key].next = table.buckets[bucket]
    table.buckets[bucket] = key
    return key


@inlined
def free_key(table: TupleTable, key: int) -> None:
    """Remove a key without tuples."""
    keys, counters = table.keys, table.counters
    bucket = _bucket(table, keys[key].key_table, keys[key].code)
    other = int(table.buckets[bucket])
    if other == key:
        table.buckets[bucket] = keys[key].next
    else:
        while keys[other].next != key:
            other = int(keys[other].next)
        keys[other].next = keys[key].next
    keys[key].next = counters[FREE_KEY]
    counters[FREE_KEY] = key


@inlined
def prefetch_bucket(table: TupleTable, key_table: int, code: np.uint64) -> None:
    """Prefetch the bucket of a key."""
    prefetch(table.buckets, int(_bucket(table, key_table, code)))


@inlined
def prefetch_key(table: TupleTable, key_table: int, code: np.uint64) -> None:
    """Prefetch the first key of a bucket."""
    key = int(table.buckets[_bucket(table, key_table, code)])
    if key >= 0:
        prefetch(table.keys, key)


@inlined
def prefetch_partners(table: TupleTable, key_table: int, slot: int, code: np.uint64, policy: int) -> None:
    """Prefetch one tuple of a key for each reader, and the key's queue for a slot, if the key is the first of its bucket."""
    key = int(table.buckets[_bucket(table, key_table, code)])
    if key < 0 or table.keys[key].code != code:
        return
    if policy == ARRIVAL_ORDER:
        for other in range(table.counts.shape[1]):
            if table.first_tuples[key, other] >= 0:
                prefetch(table.tuples, table.first_tuples[key, other])
    if table.first_queues[key, slot] >= 0:
        prefetch(table.ranking.queues, table.first_queues[key, slot])


@inlined
def prefetch_queues(table: TupleTable, key: int) -> None:
    """Prefetch the queues of a key."""
    for slot in range(table.counts.shape[1]):
        if table.first_queues[key, slot] >= 0:
            prefetch(table.ranking.queues, table.first_queues[key, slot])


@borrowing
def rehash_keys(table: TupleTable, used: Int64Array) -> None:
    """Insert keys into empty buckets."""
    keys = table.keys
    for key in used:
        bucket = _bucket(table, keys[key].key_table, keys[key].code)
        keys[key].next = table.buckets[bucket]
        table.buckets[bucket] = key
