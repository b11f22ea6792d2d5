"""The key history: for each key of the last window, where it was seen, so that shedding recognizes dead keys.

A key has an entry of 32 bits: a fingerprint, the epoch of its last arrival (there are `EPOCHS` in a window), two flags, and a bit for
each input of the join in which the key has been seen. A bucket has eight entries, followed by the first link of each entry's chain of
tuples, and fills one cache line. An arriving key takes an empty or outdated entry of its bucket, or the oldest one.

While keys repeat, a large history has entries for one key of `1 << SAMPLE_BITS` only: enough to notice when they no longer do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Float64Array, Int32Array, Int64Array, UInt32Array
from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.index import spread

SLOTS = 8
"""Entries of a bucket."""
EPOCHS = 16
"""Epochs of a window."""
MOST_INPUTS = 10
"""A join with more inputs has no history."""
REPEATS, DEAD = 1 << 11, 1 << 10
"""Flags of an entry: the key has been seen twice in one input; its tuples produce no more results."""
_INPUTS = DEAD - 1
_EPOCH, _FINGERPRINT = 12, 17
"""The lowest bits of the epoch and of the fingerprint."""
_EPOCHS_COUNTED = 32
SAMPLE_BITS = 4
_SEED = np.uint64(0xA24BAED4963EE407)
"""Hashes of keys here must not depend on those by which keys are sampled."""
NEVER = (1 << 62) - 1
"""An epoch or time later than any: the value of `SINCE` while keys repeat."""
NOW, SINCE, IS_ON = range(3)
"""By join: the epoch; since which one keys have not been repeating, or `NEVER`; whether dead keys are shed first."""
PARTNERS, REPEATED = range(2)
"""By join: arrivals of keys that had been seen in other inputs only, and of keys seen in the same input; both decay."""


class KeyHistory(NamedTuple):
    """The entries of all joins, and the dead tuples."""

    lines: UInt32Array
    """By join and bucket: entries, then the first link of each entry's chain, plus one."""
    buckets: int
    """By join: a power of two."""
    sample_bits: int
    """The hashes of keys that have entries begin with this many zero bits."""
    may_sample: bool
    """Whether the history is large enough to follow a sample of the keys while they repeat."""
    state: Int64Array
    """By join: `NOW`, `SINCE`, `IS_ON`."""
    counts: Float64Array
    """By join: `PARTNERS`, `REPEATED`."""
    first_dead: Int32Array
    """By pool: the tuple that has been dead longest; others follow."""
    last_dead: Int32Array


@inlined
def entry_of(history: KeyHistory, entry: int) -> int:
    """Return an entry's bits."""
    return int(np.int64(history.lines[entry // SLOTS, entry % SLOTS]))


@inlined
def set_entry(history: KeyHistory, entry: int, bits: int) -> None:
    """Write an entry's bits."""
    history.lines[entry // SLOTS, entry % SLOTS] = np.uint32(bits)


@inlined
def first_link(history: KeyHistory, entry: int) -> int:
    """Return the first link of an entry's chain; -1 if the chain is empty."""
    return int(np.int64(history.lines[entry // SLOTS, SLOTS + entry % SLOTS])) - 1


@inlined
def set_first_link(history: KeyHistory, entry: int, link: int) -> None:
    """Set the first link of an entry's chain; -1 empties it."""
    history.lines[entry // SLOTS, SLOTS + entry % SLOTS] = np.uint32(link + 1)


@inlined
def _hash(code: np.uint64) -> np.uint64:
    """Return the hash of a code: the low 15 bits are the fingerprint, the others choose the bucket."""
    return spread(code, _SEED)


@inlined
def bucket_of(history: KeyHistory, join: int, code: np.uint64) -> int:
    """Return the bucket of a key."""
    return join * history.buckets + int(np.int64(_hash(code) >> np.uint64(15)) & (history.buckets - 1))


@inlined
def is_followed(history: KeyHistory, code: np.uint64) -> bool:
    """Whether a key may have an entry."""
    return bool(_hash(code) >> np.uint64(64 - SAMPLE_BITS) == np.uint64(0) or history.sample_bits == 0)


@inlined
def needs_resize(history: KeyHistory) -> bool:
    """Whether the history has to follow all keys now, because none repeat in some join, or a sample again."""
    follows_all = False
    for join in range(len(history.state)):
        follows_all = follows_all or history.state[join, SINCE] != NEVER
    return bool(history.may_sample and follows_all == (history.sample_bits > 0))


@inlined
def _is_recent(history: KeyHistory, join: int, bits: int) -> bool:
    """Whether an entry is in use, and its key arrived within a window."""
    return bits & _INPUTS != 0 and _age(history, join, bits) <= EPOCHS + 1


@inlined
def _age(history: KeyHistory, join: int, bits: int) -> int:
    """Return the number of epochs since the last arrival of an entry's key."""
    return int((history.state[join, NOW] - (bits >> _EPOCH)) % _EPOCHS_COUNTED)


@inlined
def find_entry(history: KeyHistory, join: int, code: np.uint64) -> int:
    """Return the entry of a key that arrived within a window; -1 if there is none."""
    bucket, fingerprint = bucket_of(history, join, code), int(np.int64(_hash(code) & np.uint64(0x7FFF)))
    for slot in range(SLOTS):
        bits = int(np.int64(history.lines[bucket, slot]))
        if bits >> _FINGERPRINT == fingerprint and _is_recent(history, join, bits):
            return bucket * SLOTS + slot
    return -1


@inlined
def entry_to_replace(history: KeyHistory, join: int, code: np.uint64) -> int:
    """Return the entry that a new key takes: one that is not in use, or the oldest."""
    bucket, oldest, found = bucket_of(history, join, code), -1, 0
    for slot in range(SLOTS):
        bits = int(np.int64(history.lines[bucket, slot]))
        if not _is_recent(history, join, bits):
            return bucket * SLOTS + slot
        if _age(history, join, bits) > oldest:
            oldest, found = _age(history, join, bits), slot
    return bucket * SLOTS + found


@inlined
def start_entry(history: KeyHistory, join: int, entry: int, code: np.uint64, slot: int) -> None:
    """Assign an entry with an empty chain to a key that has arrived in an input."""
    fingerprint = int(np.int64(_hash(code) & np.uint64(0x7FFF)))
    set_entry(history, entry, bits_after_arrival(history, join, fingerprint << _FINGERPRINT, slot))
    set_first_link(history, entry, -1)


@inlined
def bits_after_arrival(history: KeyHistory, join: int, bits: int, slot: int) -> int:
    """Return an entry's bits after its key has arrived in an input."""
    epoch = int(history.state[join, NOW] % _EPOCHS_COUNTED)
    return (bits & ~((_EPOCHS_COUNTED - 1) << _EPOCH)) | epoch << _EPOCH | 1 << slot


@inlined
def is_complete(bits: int, width: int) -> bool:
    """Whether a key has been seen in all inputs."""
    return (bits & _INPUTS) == (1 << width) - 1


@inlined
def advance(history: KeyHistory, join: int, now: int) -> None:
    """Enter an epoch. In each one, outdated entries in an eighth of the buckets are cleared, before their ages wrap around."""
    begin, count = join * history.buckets, history.buckets
    if now - history.state[join, NOW] > EPOCHS + SLOTS:
        history.lines[begin : begin + count] = 0
        history.state[join, NOW] = now
    while history.state[join, NOW] < now:
        history.state[join, NOW] += 1
        part = history.state[join, NOW] % SLOTS
        for bucket in range(begin + part * count // SLOTS, begin + (part + 1) * count // SLOTS):
            for slot in range(SLOTS):
                if not _is_recent(history, join, int(np.int64(history.lines[bucket, slot]))):
                    history.lines[bucket, slot] = 0
