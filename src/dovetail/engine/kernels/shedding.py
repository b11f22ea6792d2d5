"""Advance a tuple table through event time: add tuples, expire them, and shed the least valuable ones."""

from __future__ import annotations

import numpy as np

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined
from dovetail.engine.kernels.dead_keys import (
    advance_epochs,
    dies_on_arrival,
    enqueue_or_mark_dead,
    mark_complete_keys,
    record_arrival,
)
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.key_history import needs_resize
from dovetail.engine.kernels.queues import enqueue, pseudo_random, queue_to_shed_from, update_queues
from dovetail.engine.kernels.shed_expiry import (
    ALWAYS_DUE,
    expire_due,
    force_check,
    leave_windows,
    remove_tuple,
    set_deadline,
)
from dovetail.engine.kernels.shed_prefetch import prefetch_arrivals, prefetch_victims
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    CLOCK,
    EPOCH_END,
    FREE_TUPLE,
    IN_DEAD_LIST,
    NEXT_LEAVE,
    NONE,
    RANDOM,
    SERIAL,
    SHED_COUNT,
    UNSEEN,
    USED_TUPLES,
    ExpiryDeadline,
    KeySample,
    ShedTuples,
    TupleBatch,
    TupleTable,
    find_or_add_key,
    serial_of,
    units_of,
    wrapped,
)

_LAST = (1 << 63) - 1
"""A serial number after all others."""


@inlined
def choose_victim(table: TupleTable, pool: int, policy: int, seed: np.uint64) -> int:
    """Return the tuple to shed: one that has left all windows, else one with a dead key, else by policy.

    Of patterns with equal worth, the one with the oldest tuple is chosen; of keys, the one whose queue entered its level first.
    """
    readers, ranking = table.readers, table.ranking
    oldest, stale, oldest_serial, stale_serial = NONE, NONE, _LAST, _LAST
    for window in range(len(readers.pool)):
        index = int(table.oldest[window])
        if readers.pool[window] != pool or index < 0:
            continue
        serial = serial_of(table, index)
        if serial < oldest_serial:
            oldest, oldest_serial = index, serial
        if serial < stale_serial:
            has_left = True
            for reader in range(readers.first[window], readers.first[window + 1]):
                has_left = has_left and serial <= table.last_left[reader]
            if has_left:
                stale, stale_serial = index, serial
    if stale >= 0:
        return stale
    if table.history.first_dead[pool] >= 0:
        return int(table.history.first_dead[pool])
    if policy == RANDOM:
        return int(
            ranking.members[ranking.start[pool] + pseudo_random(table.counters[SHED_COUNT], ranking.size[pool], seed)]
        )
    queue = queue_to_shed_from(table, pool, policy) if policy < RANDOM else NONE
    return int(ranking.queues[queue].first) if queue >= 0 else oldest


@inlined
def _count_results(table: TupleTable, index: int, local: int, policy: int) -> None:
    """Count the results that a new tuple completes, for all tuples that are part of them (procedure Join of section 3.2)."""
    readers, counts = table.readers, table.counts
    key = int(table.memberships[index, local].key)
    reader = readers.first[table.tuples[index].window] + local
    key_table, own_slot = readers.key_table[reader], readers.slot[reader]
    results = 1.0
    for slot in range(readers.width[key_table]):
        if slot != own_slot:
            results *= counts[key, slot]
    if results == 0.0:
        return
    table.results[key_table] += results
    if len(table.key_results) > 1:
        table.key_results[key] += results
    if policy == ARRIVAL_ORDER:
        table.pattern_results[reader, int(table.memberships[index, local].pattern)] += results
        for slot in range(readers.width[key_table]):
            if slot != own_slot:
                other = readers.by_slot[key_table, slot]
                other_local = other - readers.first[readers.window[other]]
                results_each = results / counts[key, slot]
                partner = int(table.first_tuples[key, slot])
                while partner >= 0:
                    pattern = int(table.memberships[partner, other_local].pattern)
                    table.pattern_results[other, pattern] += results_each
                    update_queues(table, other << table.ranking.term_bits | pattern, other_local, policy)
                    partner = int(table.partners[partner, other_local].after)


@inlined
def _link_partner(table: TupleTable, index: int, local: int) -> None:
    """Prepend a tuple to those of its key and reader."""
    key, reader = table.memberships[index, local].key, table.readers.first[table.tuples[index].window] + local
    slot = table.readers.slot[reader]
    after = table.first_tuples[key, slot]
    table.partners[index, local].before, table.partners[index, local].after = NONE, after
    if after >= 0:
        table.partners[after, local].before = index
    table.first_tuples[key, slot] = index


@inlined
def _insert(
    table: TupleTable, incoming: TupleBatch, arrival: int, policy: int, sample: KeySample, seed: np.uint64
) -> None:
    """Add a tuple to its window (procedure Insertion of section 3.2, parts b and c), and count the results that it completes."""
    tuples, readers, keys, counters = table.tuples, table.readers, table.keys, table.counters
    window = incoming.window[arrival]
    index = int(counters[FREE_TUPLE])
    if index < 0:
        index = int(counters[USED_TUPLES])
        counters[USED_TUPLES] += 1
    else:
        counters[FREE_TUPLE] = tuples[index].newer
    new = tuples[index]
    counters[SERIAL] += 1
    new.window, new.row, new.ts, new.serial = (
        window,
        incoming.row[arrival],
        incoming.ts[arrival],
        wrapped(counters[SERIAL]),
    )
    older = table.newest[window]
    new.older, new.newer = older, NONE
    table.links[index].queue, table.links[index].before, table.links[index].after = NONE, NONE, NONE
    table.newest[window] = index
    if older >= 0:
        tuples[older].newer = index
    else:
        table.oldest[window] = index
    if len(table.units) > 1:
        table.units[index] = incoming.units[arrival]
    table.used_units[readers.pool[window]] += units_of(table, index)
    for local in range(table.memberships.shape[1]):
        table.memberships[index, local].key, table.chains[index, local].entry = NONE, UNSEEN
    for reader in range(readers.first[window], readers.first[window + 1]):
        local = reader - readers.first[window]
        if table.oldest_inside[reader] < 0:
            table.oldest_inside[reader] = index
            counters[NEXT_LEAVE] = min(counters[NEXT_LEAVE], tuples[index].ts + readers.span[reader])
        key_table, code = readers.key_table[reader], incoming.codes[arrival, local]
        if not incoming.seen[arrival] >> local & 1 or (sample.skips_others and spread(code, seed) >= sample.limit):
            continue
        record_arrival(table, index, local, code, policy)
        if key_table < 0:
            continue
        key, slot = find_or_add_key(table, key_table, code), readers.slot[reader]
        membership = table.memberships[index, local]
        table.counts[key, slot] += 1
        keys[key].total += 1
        membership.key = key
        if policy == ARRIVAL_ORDER:
            _link_partner(table, index, local)
        if table.pattern_results.shape[1] > 1:
            pattern = 0
            for other in range(readers.width[key_table]):
                pattern |= int(table.counts[key, other] > 0) << other
            membership.pattern = pattern
            table.pattern_tuples[reader, pattern] += 1.0
        _count_results(table, index, local, policy)
        if policy == ARRIVAL_ORDER:
            update_queues(table, reader << table.ranking.term_bits | membership.pattern, local, policy)
    mark_complete_keys(table, index, policy)
    if table.links[index].queue != IN_DEAD_LIST:
        enqueue_or_mark_dead(table, index, policy)


@inlined
def _shed_tuple(table: TupleTable, deadline: ExpiryDeadline, index: int, policy: int) -> None:
    """Remove a tuple that is shed; if an older one, out of order, becomes the window's oldest, it may have expired."""
    window = int(table.tuples[index].window)
    remove_tuple(table, index, policy)
    oldest = int(table.oldest[window])
    if oldest >= 0 and table.tuples[oldest].ts < table.tuples[index].ts:
        force_check(deadline, window)


@borrowing
def add_tuples(
    table: TupleTable,
    incoming: TupleBatch,
    min_hashes: UInt64Array,
    advancing: Int64Array,
    policy: int,
    sample: KeySample,
    seed: np.uint64,
    deadline: ExpiryDeadline,
    shed: ShedTuples,
) -> tuple[int, int]:
    """Add tuples in order; return how many were added and how many were shed, which are written to `shed`.

    `min_hashes`: from `smallest_hashes`, needed only if the sample skips other tuples. `advancing`: by window, whether its tuples
    advance the time of their stream. If `shed` has no room, nothing can be shed, and tuples are added only while they fit the caps.
    Also stop when the key history has to be resized.
    """
    readers, counters, count = table.readers, table.counters, 0
    for window in range(len(readers.pool)):
        force_check(deadline, window)
    counters[NEXT_LEAVE] = ALWAYS_DUE
    for arrival in range(len(incoming.ts)):
        window, ts = incoming.window[arrival], incoming.ts[arrival]
        if advancing[window]:
            table.max_event_times[window] = max(table.max_event_times[window], ts)
        counters[CLOCK] = max(counters[CLOCK], ts)
        # At every tuple, not only when the cap is reached: which tuples expire, and in which order, must not depend on batches.
        if table.max_event_times[window] > deadline.earliest[window]:
            expire_due(table, deadline, policy)
        if incoming.row[arrival] < 0 or (sample.skips_others and min_hashes[arrival] >= sample.limit):
            continue
        if not sample.skips_others:
            prefetch_arrivals(table, incoming, arrival, policy)
        if counters[CLOCK] > counters[NEXT_LEAVE]:
            leave_windows(table, policy)
        if counters[CLOCK] >= counters[EPOCH_END]:
            advance_epochs(table, policy)
            if needs_resize(table.history):
                return arrival, count
        pool, units = readers.pool[window], incoming.units[arrival]
        if table.used_units[pool] + units > readers.cap[pool] and count < len(shed.row):
            fits = units <= readers.cap[pool]
            if not fits or dies_on_arrival(table, incoming, arrival, policy, sample, seed):
                shed.window[count], shed.row[count] = window, incoming.row[arrival]
                shed.end[count] = (counters[CLOCK] if fits else ts) - 1  # a tuple that never fits is in no result
                count += 1
                counters[SHED_COUNT] += 1
                continue
        while table.used_units[pool] + units > readers.cap[pool]:
            if count == len(shed.row):
                return arrival, count
            index = choose_victim(table, pool, policy, seed)
            shed.window[count] = table.tuples[index].window
            shed.row[count] = table.tuples[index].row
            shed.end[count] = counters[CLOCK] - 1
            count += 1
            counters[SHED_COUNT] += 1
            prefetch_victims(table, index, pool, policy, seed)
            _shed_tuple(table, deadline, index, policy)
        empty = table.oldest[window] < 0
        _insert(table, incoming, arrival, policy, sample, seed)
        if empty:
            set_deadline(table, deadline, window)
    return len(incoming.ts), count


@borrowing
def enqueue_all(table: TupleTable, policy: int) -> None:
    """Rank all tuples of a table that has no queues yet, and link those of a key if the policy needs it."""
    for window in range(len(table.readers.pool)):
        index = int(table.oldest[window])
        while index >= 0:
            if table.links[index].queue != IN_DEAD_LIST:
                enqueue(table, index, policy)
            for local in range(table.memberships.shape[1]):
                if policy == ARRIVAL_ORDER and table.memberships[index, local].key >= 0:
                    _link_partner(table, index, local)
            index = int(table.tuples[index].newer)


@borrowing
def renumber(table: TupleTable, window: int, first: int, alive: BoolArray, numbers: Int64Array, policy: int) -> None:
    """Remove a window's tuples that are not `alive`, and renumber the rest; new `numbers` exceed all old ones.

    Both arrays begin with row `first`.
    """
    tuples, dead = table.tuples, False
    for index in range(table.counters[USED_TUPLES]):  # in memory order, which is faster than along the window
        if tuples[index].row >= 0 and tuples[index].window == window:
            if alive[tuples[index].row - first]:
                tuples[index].row = numbers[tuples[index].row - first]
            else:
                dead = True
    index = int(table.oldest[window]) if dead else NONE
    while index >= 0:
        newer = int(tuples[index].newer)
        if tuples[index].row < first + len(alive):
            remove_tuple(table, index, policy)
        index = newer


@borrowing
def list_rows(table: TupleTable, window: int, rows: Int64Array) -> int:
    """Write the row numbers of a window's tuples, at most as many as `rows` holds; return their number."""
    tuples, count = table.tuples, 0
    for index in range(table.counters[USED_TUPLES]):
        if tuples[index].row >= 0 and tuples[index].window == window and count < len(rows):
            rows[count] = tuples[index].row
            count += 1
    return count


@borrowing
def rows_in_order(table: TupleTable) -> bool:
    """Whether row numbers ascend in order of arrival in every window; those of initial tuples need not."""
    tuples = table.tuples
    for window in range(len(table.oldest)):
        index = int(table.oldest[window])
        while index >= 0:
            newer = int(tuples[index].newer)
            if newer >= 0 and tuples[newer].row < tuples[index].row:
                return False
            index = newer
    return True
