"""What windows hold, tuple by tuple in event-time order, over codes alone: who arrives, who leaves, and who is shed.

No join is needed for that. A table of keys counts, for each key and each input of a join, the tuples that are inside their windows:
AMJoin's bit-vector table, with counts in the place of bits, so that a bit goes out when the last tuple leaves. Which counts are not
zero when a tuple arrives is its existence pattern (Kwon et al., definition 1), and their product over the other inputs is the number
of results that it completes.

Tuples of a window that are worth the same in every respect are *alike*: they have the same pattern, or the same key, in every use of
the window. They stand in one queue, oldest first, and queues stand in a heap by what their tuples are worth: the sum, over those who
see them, of a part's value. A part is a use's pattern, or a use's key. When a part's value changes, the queues that have it move.

Everything lies in arrays, and the groups of arrays are arguments with names. What is known of one tuple, key or queue lies beside
each other: arrays of a group are the columns of one table, so that a tuple that comes or goes takes few cache lines. A tuple has
a place; places, keys and queues that are free are chained. `NONE` stands for no place, key, queue or part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.index import GOLDEN

Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
FloatArray = NDArray[np.float64]

NONE = -1
ARRIVAL_ORDER, FREQUENCY, FREQUENCY_OWN, OUTPUT, RANDOM, FIFO = range(6)
"""By what tuples are ranked."""
FREE_PLACE, FREE_KEY, FREE_QUEUE, CLOCK, SERIAL, SHEDS, LEAVING = range(7)
"""Places in `Roster.at`; `LEAVING`: no tuple leaves the window of a use up to this time."""
MISSING = 0.05
"""What a partner that is not there counts for in `Roster.promise`."""
BUCKETS = 32
"""Into how many parts sampled keys are divided, to see how much they differ."""


class Uses(NamedTuple):
    """Who sees the windows, and for how long. A use is one input of a join; the uses of a window follow each other."""

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


class Held(NamedTuple):
    """Tuples, by place."""

    row: Int64Array
    ts: Int64Array
    serial: Int64Array
    """Numbers in order of arrival."""
    older: Int32Array
    newer: Int32Array
    """In the window."""
    before: Int32Array
    after: Int32Array
    """In the queue."""
    queue: Int32Array
    member: Int32Array
    """Its number among the pool's tuples, where any of them may go."""
    key: Int32Array
    """By use of the window; `NONE` when it is not seen, or no longer inside."""
    key_before: Int32Array
    key_after: Int32Array
    """By use of the window: among tuples of the same key and use."""
    pattern: Int16Array
    """By use of the window."""
    window: Int16Array


class Keys(NamedTuple):
    """AMJoin's table, for all tables."""

    code: UInt64Array
    results: FloatArray
    """That tuples of the key have given."""
    following: Int32Array
    total: Int32Array
    """Tuples inside, over all uses."""
    tuples: Int32Array
    """By slot: tuples inside."""
    first: Int32Array
    """By slot: one of them, from which others follow."""
    table: Int16Array
    head: Int32Array
    """By hash: a key, from which others follow."""
    shift: np.uint64


class Queues(NamedTuple):
    """Tuples that are alike, and by pool a heap of their queues."""

    part: Int64Array
    """By use of the window."""
    part_before: Int32Array
    part_after: Int32Array
    """Among queues with the same part."""
    first: Int32Array
    last: Int32Array
    at: Int32Array
    """Its place in the heap."""
    window: Int16Array
    of_part: Int32Array
    """By part: a queue that has it."""
    worth: FloatArray
    """By place in the heap."""
    tie: Int64Array
    """By place in the heap: of two that are worth the same the smaller goes first."""
    heap: Int32Array
    """Queues, the first to go in front; where any tuple may go, all tuples."""
    start: Int64Array
    """By pool: where its heap begins."""
    size: Int64Array
    """By pool."""


class Roster(NamedTuple):
    """All that is known of what windows hold."""

    uses: Uses
    held: Held
    keys: Keys
    queues: Queues
    given: FloatArray
    """By use and pattern: results that tuples have been part of (r of definition 2)."""
    seen: FloatArray
    """By use and pattern: tuples (n of definition 2)."""
    oldest: Int32Array
    newest: Int32Array
    """By window."""
    alive: Int64Array
    """By pool: tuples."""
    inside: Int32Array
    """By use: the oldest tuple that has not left."""
    passed: Int64Array
    """By use: the serial number of the last that has."""
    heads: Int64Array
    """By window: the largest event time so far."""
    results: FloatArray
    """By table: results so far."""
    promise: FloatArray
    """By table: the same if a missing partner counted as a small part of one."""
    sampled: FloatArray
    """By table and bucket: results of sampled keys, over the share of keys that were sampled then."""
    at: Int64Array


class Sample(NamedTuple):
    """Which keys are looked at more closely."""

    limit: np.uint64
    """Those whose hash is below; all if it is the largest number."""
    weight: float
    """What one stands for."""
    alone: bool
    """Whether others are left out."""


class Incoming(NamedTuple):
    """New tuples, in order."""

    window: Int64Array
    row: Int64Array
    ts: Int64Array
    codes: UInt64Array
    """By use of the window."""
    seen: Int64Array
    """A bit for each use of the window."""


class Watch(NamedTuple):
    """When something may be over, so that it is looked for only then: written to.

    The oldest tuple of a window goes when all streams that it waits for have moved on. It is enough to watch one that has not.
    """

    stream: Int64Array
    """By window: whose stream is watched; `NONE` if the window has to be looked at."""
    time: Int64Array
    """By window: until when nothing of it can go."""
    alarm: Int64Array
    """By window whose stream may be watched: the smallest of those times."""


class Shed(NamedTuple):
    """What was shed: written to."""

    window: Int64Array
    row: Int64Array
    end: Int64Array
    """The last instant of its life."""


@inlined
def spread(code: np.uint64, seed: np.uint64) -> np.uint64:
    """A hash in which every bit counts."""
    mixed = (code ^ seed) + GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@inlined
def _bucket(keys: Keys, table: int, code: np.uint64) -> np.int64:
    return np.int64(((code + np.uint64(table)) * GOLDEN) >> keys.shift)


@inlined
def find_key(roster: Roster, table: int, code: np.uint64) -> int:
    """The entry of a key, made if it is not there."""
    keys, at = roster.keys, roster.at
    slot = _bucket(keys, table, code)
    key = int(keys.head[slot])
    while key >= 0:
        if keys.code[key] == code and keys.table[key] == table:
            return key
        key = int(keys.following[key])
    key = int(at[FREE_KEY])
    at[FREE_KEY] = keys.following[key]
    keys.code[key], keys.table[key] = code, table
    keys.total[key] = 0
    keys.results[key] = 0.0
    for other in range(keys.tuples.shape[1]):
        keys.tuples[key, other] = 0
        keys.first[key, other] = NONE
    keys.following[key] = keys.head[slot]
    keys.head[slot] = key
    return key


@inlined
def forget_key(roster: Roster, key: int) -> None:
    keys, at = roster.keys, roster.at
    slot = _bucket(keys, keys.table[key], keys.code[key])
    other = int(keys.head[slot])
    if other == key:
        keys.head[slot] = keys.following[key]
    else:
        while keys.following[other] != key:
            other = int(keys.following[other])
        keys.following[other] = keys.following[key]
    keys.following[key] = at[FREE_KEY]
    at[FREE_KEY] = key


@inlined
def expect_key(keys: Keys, table: int, code: np.uint64) -> None:
    """Let memory bring where a key is looked for."""
    prefetch(keys.head, int(_bucket(keys, table, code)))


@inlined
def expect_entry(keys: Keys, table: int, code: np.uint64) -> None:
    """Let memory bring the first entry at which a key is looked for."""
    key = int(keys.head[_bucket(keys, table, code)])
    if key >= 0:
        prefetch(keys.code, key)


@borrowing
def insert_keys(keys: Keys, used: Int64Array) -> None:
    """Put keys into a new table."""
    for key in used:
        slot = _bucket(keys, keys.table[key], keys.code[key])
        keys.following[key] = keys.head[slot]
        keys.head[slot] = key
