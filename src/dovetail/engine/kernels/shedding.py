"""Tuples come, leave their windows, and are shed: a roster brought from one event time to the next."""

from __future__ import annotations

import numpy as np

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined, kernel, prefetch
from dovetail.engine.kernels.leaving import NOW, leave_key, leave_windows, look_at, release_over, remove, wait
from dovetail.engine.kernels.queues import changed, dequeue, enqueue, key_changed
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    BUCKETS,
    CLOCK,
    FIFO,
    FREE_PLACE,
    FREQUENCY,
    FREQUENCY_OWN,
    LEAVING,
    MISSING,
    NONE,
    OUTPUT,
    RANDOM,
    SERIAL,
    SHEDS,
    Held,
    Incoming,
    Roster,
    Sample,
    Shed,
    Watch,
    expect_entry,
    expect_key,
    find_key,
    spread,
)

_TRIES = 16
"""How often any queue is looked at to find one of those that are worth least; then the first of the heap is taken."""


_FAR, _NEAR = 12, 6
"""How many tuples ahead keys, and entries of keys, are fetched."""


@inlined
def first_to_go(roster: Roster, pool: int, rank: int, seed: np.uint64) -> int:
    """The place of the tuple that goes first: one that is only held for tuples that have not come, or as the policy says.

    Of patterns that are worth the same the one with the oldest tuple goes, of keys that are any of them.
    """
    held, uses = roster.held, roster.uses
    oldest, stale = NONE, NONE
    for window in range(len(uses.pool)):
        place = int(roster.oldest[window])
        if uses.pool[window] != pool or place < 0:
            continue
        if oldest < 0 or held.serial[place] < held.serial[oldest]:
            oldest = place
        over = True
        for use in range(uses.first[window], uses.first[window + 1]):
            over = over and held.serial[place] <= roster.passed[use]
        if over and (stale < 0 or held.serial[place] < held.serial[stale]):
            stale = place
    if stale >= 0:
        return stale
    if rank == RANDOM:
        number = spread(np.uint64(roster.at[SHEDS]), seed) % np.uint64(roster.alive[pool])
        return int(roster.queues.heap[roster.queues.start[pool] + np.int64(number)])
    queues = roster.queues
    if rank == FIFO or queues.size[pool] == 0:
        return oldest
    first = queues.start[pool]
    alone = True  # whether no other queue is worth as little: such ones follow each other from the first of the heap on
    for child in range(1, min(3, queues.size[pool])):
        alone = alone and queues.worth[first + child] > queues.worth[first]
    for attempt in range(_TRIES if rank != ARRIVAL_ORDER and not alone else 0):
        number = spread(np.uint64(roster.at[SHEDS] * _TRIES + attempt), seed) % np.uint64(queues.size[pool])
        if queues.worth[first + np.int64(number)] == queues.worth[first]:
            return int(queues.first[queues.heap[first + np.int64(number)]])
    return int(queues.first[queues.heap[first]])


@inlined
def _credit(roster: Roster, place: int, use: int, rank: int, sample: Sample, seed: np.uint64) -> None:
    """Count the results that a new tuple completes, for all tuples that are part of them (procedure Join of section 3.2)."""
    held, uses, keys = roster.held, roster.uses, roster.keys
    key = int(held.key[place, use])
    of_all = uses.first[held.window[place]] + use
    table, own = uses.table[of_all], uses.slot[of_all]
    made, promise = 1.0, 1.0
    for slot in range(uses.width[table]):
        if slot != own:
            made *= keys.tuples[key, slot]
            promise *= max(MISSING, keys.tuples[key, slot])
    roster.promise[table] += promise
    if made == 0.0:
        return
    roster.results[table] += made
    hashed = spread(keys.code[key], seed)
    if hashed < sample.limit:
        roster.sampled[table, np.int64(hashed % np.uint64(BUCKETS))] += made * sample.weight
    keys.results[key] += made
    if rank == OUTPUT:
        key_changed(roster, key, rank)
    patterns = roster.given.shape[1]
    if patterns > 1:
        pattern = int(held.pattern[place, use])
        roster.given[of_all, pattern] += made
        if rank == ARRIVAL_ORDER:
            changed(roster, of_all * patterns + pattern, use, rank)
        for slot in range(uses.width[table]):
            if slot != own:
                other = uses.of[table, slot]
                local = other - uses.first[uses.window[other]]
                each = made / keys.tuples[key, slot]
                partner = int(keys.first[key, slot])
                while partner >= 0:
                    pattern = int(held.pattern[partner, local])
                    roster.given[other, pattern] += each
                    if rank == ARRIVAL_ORDER:
                        changed(roster, other * patterns + pattern, local, rank)
                    partner = int(held.key_after[partner, local])


@inlined
def _insert(roster: Roster, incoming: Incoming, number: int, rank: int, sample: Sample, seed: np.uint64) -> None:
    """A tuple enters its window (procedure Insertion of section 3.2, parts b and c), and completes results."""
    held, uses, keys, at = roster.held, roster.uses, roster.keys, roster.at
    window = incoming.window[number]
    place = int(at[FREE_PLACE])
    at[FREE_PLACE] = held.newer[place]
    at[SERIAL] += 1
    held.window[place], held.row[place], held.ts[place] = window, incoming.row[number], incoming.ts[number]
    held.serial[place] = at[SERIAL]
    older = roster.newest[window]
    held.older[place], held.newer[place], held.queue[place] = older, NONE, NONE
    roster.newest[window] = place
    if older >= 0:
        held.newer[older] = place
    else:
        roster.oldest[window] = place
    pool = uses.pool[window]
    if rank == RANDOM:
        roster.queues.heap[roster.queues.start[pool] + roster.alive[pool]] = place
        held.member[place] = roster.alive[pool]
    roster.alive[pool] += 1
    for use in range(held.key.shape[1]):
        held.key[place, use] = NONE
    for use in range(uses.first[window], uses.first[window + 1]):
        local = use - uses.first[window]
        if roster.inside[use] < 0:
            roster.inside[use] = place
            at[LEAVING] = min(at[LEAVING], held.ts[place] + uses.span[use])
        table = uses.table[use]
        if table < 0 or not incoming.seen[number] >> local & 1:
            continue
        code = incoming.codes[number, local]
        if sample.alone and spread(code, seed) >= sample.limit:
            continue
        key, slot = find_key(roster, table, code), uses.slot[use]
        keys.tuples[key, slot] += 1
        keys.total[key] += 1
        after = keys.first[key, slot]
        held.key[place, local], held.key_before[place, local], held.key_after[place, local] = key, NONE, after
        if after >= 0:
            held.key_before[after, local] = place
        keys.first[key, slot] = place
        if roster.given.shape[1] > 1:
            pattern = 0
            for other in range(uses.width[table]):
                pattern |= int(keys.tuples[key, other] > 0) << other
            held.pattern[place, local] = pattern
            roster.seen[use, pattern] += 1.0
            if rank == ARRIVAL_ORDER:
                changed(roster, use * roster.given.shape[1] + pattern, local, rank)
        if rank == FREQUENCY:
            key_changed(roster, key, rank)
        elif rank == FREQUENCY_OWN:
            changed(roster, key * keys.tuples.shape[1] + slot, local, rank)
        _credit(roster, place, local, rank, sample, seed)
    if rank < RANDOM:
        enqueue(roster, place, rank)


@borrowing
def least_hashes(codes: UInt64Array, seen: Int64Array, seed: np.uint64, least: UInt64Array) -> None:
    """Write the smallest hash of those codes of each tuple that somebody sees; the largest number if nobody does."""
    for number in range(len(seen)):
        smallest = np.uint64(0xFFFFFFFFFFFFFFFF)
        for local in range(codes.shape[1]):
            if seen[number] >> local & 1:
                smallest = min(smallest, spread(codes[number, local], seed))
        least[number] = smallest


@inlined
def _shed(roster: Roster, watch: Watch, place: int, rank: int) -> None:
    """Let go of a tuple; if an older one comes to be a window's oldest, that may be over."""
    window = int(roster.held.window[place])
    remove(roster, place, rank)
    oldest = int(roster.oldest[window])
    if oldest >= 0 and roster.held.ts[oldest] < roster.held.ts[place]:
        look_at(watch, window)


@inlined
def _expect(roster: Roster, incoming: Incoming, number: int) -> None:
    """Let memory bring what tuples need that come soon: waiting for it would take most of the time."""
    uses, last = roster.uses, len(incoming.ts) - 1
    for ahead in (_FAR, _NEAR):
        window = incoming.window[min(number + ahead, last)]
        use = uses.first[window]
        if use < uses.first[window + 1] and uses.table[use] >= 0:
            code = incoming.codes[min(number + ahead, last), 0]
            if ahead == _FAR:
                expect_key(roster.keys, uses.table[use], code)
            else:
                expect_entry(roster.keys, uses.table[use], code)


@inlined
def _expect_victims(roster: Roster, place: int, pool: int, rank: int, seed: np.uint64) -> None:
    """The same for tuples that are shed soon: those behind one that is shed now, or, where any may go, those whose turn it will be."""
    held, keys, queues = roster.held, roster.keys, roster.queues
    if rank == RANDOM:
        size = np.uint64(roster.uses.cap[pool])
        first = queues.start[pool]
        prefetch(queues.heap, first + np.int64(spread(np.uint64(roster.at[SHEDS] + 4), seed) % size))
        prefetch(held.row, int(queues.heap[first + np.int64(spread(np.uint64(roster.at[SHEDS] + 3), seed) % size)]))
        following = int(queues.heap[first + np.int64(spread(np.uint64(roster.at[SHEDS] + 2), seed) % size)])
        then = int(queues.heap[first + np.int64(spread(np.uint64(roster.at[SHEDS] + 1), seed) % size)])
    else:
        links = held.newer if rank == FIFO else held.after
        then = int(links[place])
        following = int(links[then]) if then >= 0 else NONE
        if following >= 0 and links[following] >= 0:
            prefetch(held.row, links[following])
    if following >= 0 and held.key[following, 0] >= 0:
        prefetch(keys.code, held.key[following, 0])
    if then >= 0:
        if held.older[then] >= 0:
            prefetch(held.row, held.older[then])
        if held.newer[then] >= 0:
            prefetch(held.row, held.newer[then])
        key = int(held.key[then, 0])
        if key >= 0:
            expect_key(keys, keys.table[key], keys.code[key])


@borrowing
def take_in(
    roster: Roster,
    incoming: Incoming,
    least: UInt64Array,
    moving: Int64Array,
    rank: int,
    sample: Sample,
    seed: np.uint64,
    watch: Watch,
    shed: Shed,
) -> tuple[int, int]:
    """Let tuples arrive one after another; return how many have, and how many were shed, which `shed` has.

    `least`: of `least_hashes`, if others than sampled tuples are left out. `moving`: by window, whether its tuples move its stream's
    time; else `heads` says how far that is. If nothing can be shed, because `shed` has no room, tuples arrive while there is room.
    """
    uses, at, count = roster.uses, roster.at, 0
    for window in range(len(uses.pool)):
        look_at(watch, window)
    at[LEAVING] = NOW
    for number in range(len(incoming.ts)):
        window, ts = incoming.window[number], incoming.ts[number]
        if moving[window]:
            roster.heads[window] = max(roster.heads[window], ts)
        at[CLOCK] = max(at[CLOCK], ts)
        # At every tuple, and not only when there is no room: what is let go, and in which order, must not depend on batches.
        if roster.heads[window] > watch.alarm[window]:
            release_over(roster, watch, rank)
        if incoming.row[number] < 0 or (sample.alone and least[number] >= sample.limit):
            continue
        if not sample.alone:
            _expect(roster, incoming, number)
        if at[CLOCK] > at[LEAVING]:
            leave_windows(roster, rank)
        pool = uses.pool[window]
        while roster.alive[pool] >= uses.cap[pool]:
            if count == len(shed.row):
                return number, count
            place = first_to_go(roster, pool, rank, seed)
            shed.window[count] = roster.held.window[place]
            shed.row[count] = roster.held.row[place]
            shed.end[count] = at[CLOCK] - 1
            count += 1
            at[SHEDS] += 1
            _expect_victims(roster, place, pool, rank, seed)
            _shed(roster, watch, place, rank)
        empty = roster.oldest[window] < 0
        _insert(roster, incoming, number, rank, sample, seed)
        if empty:
            wait(roster, watch, window)
    return len(incoming.ts), count


@borrowing
def enqueue_all(roster: Roster, rank: int) -> None:
    """Rank all tuples anew; no queue is there yet."""
    for window in range(len(roster.uses.pool)):
        pool = roster.uses.pool[window]
        place = int(roster.oldest[window])
        while place >= 0:
            if rank < RANDOM:
                enqueue(roster, place, rank)
            elif rank == RANDOM:
                roster.queues.heap[roster.queues.start[pool] + roster.queues.size[pool]] = place
                roster.held.member[place] = roster.queues.size[pool]
                roster.queues.size[pool] += 1
            place = int(roster.held.newer[place])


@borrowing
def narrow(roster: Roster, limit: np.uint64, seed: np.uint64, rank: int) -> None:
    """Let go of keys whose hash is not below `limit`, and of tuples that then have none."""
    held, uses, keys = roster.held, roster.uses, roster.keys
    for window in range(len(uses.pool)):
        place = int(roster.oldest[window])
        while place >= 0:
            newer, left = int(held.newer[place]), 0
            for use in range(held.key.shape[1]):
                key = int(held.key[place, use])
                if key >= 0 and spread(keys.code[key], seed) >= limit:
                    dequeue(roster, place, rank)
                    leave_key(roster, place, use, rank)
                left += held.key[place, use] >= 0
            if left == 0:
                remove(roster, place, rank)
            place = newer


@borrowing
def number_anew(roster: Roster, window: int, first: int, alive: BoolArray, numbers: Int64Array, rank: int) -> None:
    """Let go of a window's tuples that are not alive, and give the others their `numbers`; both begin with row `first`."""
    held, dead = roster.held, False
    for place in range(len(held.row)):  # one after another in memory, which a walk along the window is not
        dead = dead or (held.row[place] >= 0 and held.window[place] == window and not alive[held.row[place] - first])
    place = int(roster.oldest[window]) if dead else NONE
    while place >= 0:
        newer = int(held.newer[place])
        if not alive[held.row[place] - first]:
            remove(roster, place, rank)
        place = newer
    for place in range(len(held.row)):
        if held.row[place] >= 0 and held.window[place] == window:
            held.row[place] = numbers[held.row[place] - first]


@borrowing
def list_rows(held: Held, window: int, rows: Int64Array) -> int:
    """Write the row numbers of a window's tuples, of which there are no more than `rows` has room for; return how many there are."""
    count = 0
    for place in range(len(held.row)):
        if held.row[place] >= 0 and held.window[place] == window and count < len(rows):
            rows[count] = held.row[place]
            count += 1
    return count


@kernel
def interleaved(ts: Int64Array, starts: Int64Array) -> Int64Array:
    """The order of event times; `ts` has them part by part, each in order, from `starts` on. Of one time earlier parts come first."""
    order, at = np.empty(len(ts), np.int64), starts[:-1].copy()
    for number in range(len(ts)):
        first = -1
        for part in range(len(at)):
            if at[part] < starts[part + 1] and (first < 0 or ts[at[part]] < ts[at[first]]):
                first = part
        order[number] = at[first]
        at[first] += 1
    return order
