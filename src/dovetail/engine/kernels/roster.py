"""The tuple table of shedding: the tuples that windows hold, in event-time order, with the codes of their keys.

Shedding needs no join. A table of keys counts, for each key and each input of a join, the tuples that are inside their windows:
AMJoin's bit-vector table, with counts in the place of bits, so that a bit goes out when the last tuple leaves. Which counts are not
zero when a tuple arrives is its existence pattern (Kwon et al., definition 1), and their product over the other inputs is the number
of results that it completes.

Tuples of a window that are worth the same in every respect are *alike*: they have the same pattern, or the same key, in every use of
the window. They stand in one queue, oldest first, and queues are ranked by what their tuples are worth: the sum, over those who
see them, of a part's value. A part is a use's pattern, or a use's key. When a part's value changes, the queues that have it move.

What is known of one tuple, key or queue is a record, and one for each use that sees it lies behind it, so that a tuple that comes or
goes takes few cache lines. A tuple has a place; places, keys and queues that are free are chained. `NONE` stands for no place, key,
queue or part.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dovetail._typing import Float64Array, Int32Array, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.index import GOLDEN
from dovetail.engine.kernels.key_history import KeyHistory

Records: TypeAlias = "np.recarray[Any, np.dtype[np.record]]"
"""Arrays of records; what belongs to one place, key or queue begins at one line of memory."""

NONE = -1
ARRIVAL_ORDER, FREQUENCY, FREQUENCY_OWN, OUTPUT, RANDOM, FIFO = range(6)
"""By what tuples are ranked."""
UNSEEN = -2
"""The entry of a tuple in a use that does not see it."""
IN_DEAD_LIST = -2
"""The queue of a dead tuple."""
FREE_PLACE, FREE_KEY, FREE_QUEUE, CLOCK, SERIAL, SHEDS, LEAVING, USED_PLACES, USED_KEYS, USED_QUEUES, EPOCH_END = range(
    11
)
"""Entries of `Roster.at`. `FREE_*`: the first of those that are free again. `USED_*`: so many have been used; memory behind them has
never been touched, so room for many takes little of it. `LEAVING`: no tuple leaves the window of a use up to this time. `EPOCH_END`:
when the next epoch of the history begins."""


class Uses(NamedTuple):
    """The uses of windows. A use is one input of a join that reads a window; the uses of a window are consecutive."""

    first: Int64Array
    """By window: its first use; then how many there are."""
    table: Int64Array
    """By use: the table of its key; `NONE` if it has none."""
    slot: Int64Array
    """By use: its place in the table."""
    span: Int64Array
    """By use: microseconds that a tuple takes part."""
    width: Int64Array
    """By table: how many uses it has."""
    of: Int64Array
    """By table and slot: the use."""
    pool: Int64Array
    """By window: with which others it shares a cap."""
    cap: Int64Array
    """By pool."""
    kept: Int64Array
    """How long tuples may be needed: a row for each retention, of a window, microseconds, and a bit for each stream to wait for."""
    lateness: Int64Array
    """By window."""
    window: Int64Array
    """By use."""
    join: Int64Array
    """By use: the join that remembers its keys; `NONE` if none does."""
    inputs: Int64Array
    """By join that remembers keys: its number of inputs."""
    epoch: Int64Array
    """By join that remembers keys: the length of an epoch, microseconds."""


HELD = np.dtype(
    [
        ("row", np.int64),
        ("ts", np.int64),
        ("serial", np.int32),  # numbers in order of arrival, see `serial_of`
        ("older", np.int32),  # in the window
        ("newer", np.int32),
        ("before", np.int32),  # in the queue
        ("after", np.int32),
        ("queue", np.int32),  # where any tuple may go: its number among the pool's tuples; or `IN_DEAD_LIST`
        ("window", np.int16),
    ]
)
"""A tuple. It is packed, so that with the mark of one use it takes one cache line."""
MARK = np.dtype(
    [
        ("pattern", np.int16),
        ("key", np.int32),  # `NONE` when it is not seen, or no longer inside
        ("before", np.int32),  # among tuples of the same key and use
        ("after", np.int32),
        (
            "entry",
            np.int32,
        ),  # of the key in the history; `NONE` without one, `UNSEEN` when it is not seen, or no longer inside
        ("link", np.int32),  # the next one of the entry's chain; `NONE` at the end
    ]
)
"""A tuple in a use of its window."""
KEY = np.dtype(
    [
        ("code", np.uint64),
        ("results", np.float64),  # that tuples of the key have given
        ("following", np.int32),  # of the same hash
        ("total", np.int32),  # tuples inside, over all uses
        ("table", np.int16),
    ],
    align=True,
)
"""A key of AMJoin's table, for all tables."""
SLOT = np.dtype([("tuples", np.int32), ("first", np.int32), ("queue", np.int32)], align=True)
"""A key's tuples inside a use: how many, one of them, from which others follow, and a queue of them."""
QUEUE = np.dtype(
    [
        ("first", np.int32),  # tuples
        ("last", np.int32),
        ("at", np.int32),  # its place in the heap, or its level
        ("before", np.int32),  # queues of the same level
        ("after", np.int32),
        ("window", np.int16),
    ],
    align=True,
)
"""Tuples that are alike."""
PART = np.dtype([("part", np.int64), ("before", np.int32), ("after", np.int32)], align=True)
"""A queue's part in a use of its window, and its neighbours among queues with the same part."""
RANKED = np.dtype([("worth", np.float64), ("tie", np.int64), ("queue", np.int32)], align=True)
"""A place of the heap; of two queues that are worth the same that with the smaller `tie` goes first."""
LEVEL = np.dtype([("first", np.int32), ("last", np.int32)], align=True)
"""Queues that are worth about the same."""


class Ranks(NamedTuple):
    """Queues of equivalent tuples and, by pool, their order: a heap with the first to be shed in front, or levels."""

    queues: Records
    """By queue: `QUEUE`."""
    parts: Records
    """By queue and use of the window: `PART`."""
    heap: Records
    """`RANKED`."""
    members: Int32Array
    """By pool, where any tuple may go: all of its tuples."""
    levels: Records
    """By pool and level: `LEVEL`."""
    filled: UInt64Array
    """By pool and 64 levels: a bit for each that has queues."""
    of_pattern: Int32Array
    """By use and pattern: a queue that has it."""
    bits: int
    """A part is a use and a pattern, or a key and a slot: so many bits are the latter's."""
    start: Int64Array
    """By pool: where its heap, or its `members`, begins."""
    size: Int64Array
    """By pool."""


class Roster(NamedTuple):
    """The tuple table: arrays of tuples, keys and queues."""

    uses: Uses
    held: Records
    """By place: `HELD`."""
    marks: Records
    """By place and use of the window: `MARK`."""
    keys: Records
    """By key: `KEY`."""
    slots: Records
    """By key and slot: `SLOT`."""
    buckets: Int32Array
    """By hash: a key, from which others follow."""
    shift: np.uint64
    """Bits of a hash that are left out."""
    ranks: Ranks
    given: Float64Array
    """By use and pattern: results that tuples have been part of (r of definition 2)."""
    seen: Float64Array
    """By use and pattern: tuples (n of definition 2)."""
    oldest: Int32Array
    newest: Int32Array
    """By window."""
    alive: Int64Array
    """By pool: what its tuples take of the cap."""
    inside: Int32Array
    """By use: the oldest tuple that has not left."""
    passed: Int64Array
    """By use: the serial number of the last that has."""
    heads: Int64Array
    """By window: the largest event time so far."""
    units: Int32Array
    """By place: how much of the cap the tuple takes; a single entry if each takes one."""
    results: Float64Array
    """By table: results so far."""
    history: KeyHistory
    at: Int64Array


class KeySample(NamedTuple):
    """A sample of keys by hash."""

    limit: np.uint64
    """Those whose hash is below; all if it is the largest number."""
    alone: bool
    """Whether tuples of others are left out."""


class Incoming(NamedTuple):
    """New tuples in event-time order."""

    window: Int64Array
    row: Int64Array
    ts: Int64Array
    codes: UInt64Array
    """By use of the window."""
    seen: Int64Array
    """A bit for each use of the window."""
    units: Int32Array
    """How much of the cap each takes: more than one if texts are counted and its texts are long."""


class ExpiryDeadline(NamedTuple):
    """Deadlines before which nothing can expire, so that expiry is checked only then. Kernels update them.

    The oldest tuple of a window expires when all streams that it waits for have advanced. It is enough to watch one of them.
    """

    stream: Int64Array
    """By window: whose stream is watched; `NONE` if the window has to be looked at."""
    time: Int64Array
    """By window: until when nothing of it can go."""
    alarm: Int64Array
    """By window whose stream may be watched: the smallest of those times."""


class Shed(NamedTuple):
    """Output: the tuples that were shed."""

    window: Int64Array
    row: Int64Array
    end: Int64Array
    """The last instant of its life."""


@inlined
def wrapped(serial: int) -> int:
    """Return a serial number as a tuple stores it: the lower 32 bits."""
    return (serial + (1 << 31)) % (1 << 32) - (1 << 31)


@inlined
def serial_of(roster: Roster, place: int) -> int:
    """Return a tuple's serial number, which is less than 2^32 below the newest."""
    newest = roster.at[SERIAL]
    return int(newest - (newest - roster.held[place].serial) % (1 << 32))


@inlined
def units_of(roster: Roster, place: int) -> int:
    """Return how much of the cap a tuple takes."""
    return int(roster.units[place]) if len(roster.units) > 1 else 1


@inlined
def _bucket(roster: Roster, table: int, code: np.uint64) -> np.int64:
    return np.int64(((code + np.uint64(table)) * GOLDEN) >> roster.shift)


@inlined
def find_key(roster: Roster, table: int, code: np.uint64) -> int:
    """The entry of a key, made if it is not there."""
    keys, at = roster.keys, roster.at
    slot = _bucket(roster, table, code)
    key = int(roster.buckets[slot])
    while key >= 0:
        if keys[key].code == code and keys[key].table == table:
            return key
        key = int(keys[key].following)
    key = int(at[FREE_KEY])
    if key < 0:
        key = int(at[USED_KEYS])
        at[USED_KEYS] += 1
    else:
        at[FREE_KEY] = keys[key].following
    keys[key].code, keys[key].table = code, table
    keys[key].total = 0
    keys[key].results = 0.0
    for other in range(roster.slots.shape[1]):
        roster.slots[key, other].tuples = 0
        roster.slots[key, other].first = NONE
        roster.slots[key, other].queue = NONE
    keys[key].following = roster.buckets[slot]
    roster.buckets[slot] = key
    return key


@inlined
def forget_key(roster: Roster, key: int) -> None:
    keys, at = roster.keys, roster.at
    slot = _bucket(roster, keys[key].table, keys[key].code)
    other = int(roster.buckets[slot])
    if other == key:
        roster.buckets[slot] = keys[key].following
    else:
        while keys[other].following != key:
            other = int(keys[other].following)
        keys[other].following = keys[key].following
    keys[key].following = at[FREE_KEY]
    at[FREE_KEY] = key


@inlined
def expect_key(roster: Roster, table: int, code: np.uint64) -> None:
    """Let memory bring where a key is looked for."""
    prefetch(roster.buckets, int(_bucket(roster, table, code)))


@inlined
def expect_entry(roster: Roster, table: int, code: np.uint64) -> None:
    """Let memory bring the first entry at which a key is looked for."""
    key = int(roster.buckets[_bucket(roster, table, code)])
    if key >= 0:
        prefetch(roster.keys, key)


@inlined
def expect_partners(roster: Roster, table: int, slot: int, code: np.uint64) -> None:
    """Let memory bring a tuple of each use with the same key, and their queue in one's own, if the key is the first entry."""
    key = int(roster.buckets[_bucket(roster, table, code)])
    if key < 0 or roster.keys[key].code != code:
        return
    for other in range(roster.slots.shape[1]):
        if roster.slots[key, other].first >= 0:
            prefetch(roster.held, roster.slots[key, other].first)
    if roster.slots[key, slot].queue >= 0:
        prefetch(roster.ranks.queues, roster.slots[key, slot].queue)


@inlined
def expect_queues(roster: Roster, key: int) -> None:
    """Let memory bring the queues of a key."""
    for slot in range(roster.slots.shape[1]):
        if roster.slots[key, slot].queue >= 0:
            prefetch(roster.ranks.queues, roster.slots[key, slot].queue)


@borrowing
def insert_keys(roster: Roster, used: Int64Array) -> None:
    """Put keys into a new table."""
    keys = roster.keys
    for key in used:
        slot = _bucket(roster, keys[key].table, keys[key].code)
        keys[key].following = roster.buckets[slot]
        roster.buckets[slot] = key
