"""Expire tuples of the tuple table: first from the windows of readers, then, when no reader needs them, from the table."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.dead_keys import enqueue_or_mark_dead, is_dead, is_inside, record_leave, remove_from_queue
from dovetail.engine.kernels.queues import dequeue, update_queues, update_queues_of_key
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    CLOCK,
    FREE_TUPLE,
    FREQUENCY,
    FREQUENCY_OWN,
    IN_DEAD_LIST,
    NEXT_LEAVE,
    NONE,
    RANDOM,
    ExpiryDeadline,
    TupleTable,
    free_key,
    prefetch_queues,
    serial_of,
    units_of,
)

ALWAYS_DUE = -(1 << 63)
"""A deadline that has always passed."""
_NEVER = (1 << 63) - 1


@inlined
def leave_key(table: TupleTable, index: int, local: int, policy: int) -> None:
    """Stop counting a tuple for its key in the window of one reader; the tuple is in no queue."""
    keys, membership = table.keys, table.memberships[index, local]
    key = int(membership.key)
    slot = table.readers.slot[table.readers.first[table.tuples[index].window] + local]
    table.counts[key, slot] -= 1
    keys[key].total -= 1
    if policy == ARRIVAL_ORDER:
        before, after = table.partners[index, local].before, table.partners[index, local].after
        if before >= 0:
            table.partners[before, local].after = after
        else:
            table.first_tuples[key, slot] = after
        if after >= 0:
            table.partners[after, local].before = before
    membership.key = NONE
    if keys[key].total == 0:
        free_key(table, key)
    elif policy == FREQUENCY:
        update_queues_of_key(table, key, policy)
    elif policy == FREQUENCY_OWN:
        update_queues(table, key << table.ranking.term_bits | slot, local, policy)


@inlined
def remove_tuple(table: TupleTable, index: int, policy: int) -> None:
    """Remove a tuple from the table."""
    tuples, readers, counters = table.tuples, table.readers, table.counters
    window = int(tuples[index].window)
    pool = readers.pool[window]
    remove_from_queue(table, index, policy)
    for reader in range(readers.first[window], readers.first[window + 1]):
        if table.memberships[index, reader - readers.first[window]].key >= 0:
            leave_key(table, index, reader - readers.first[window], policy)
        record_leave(table, index, reader - readers.first[window], policy)
        if table.oldest_inside[reader] == index:
            newer = tuples[index].newer
            table.oldest_inside[reader] = newer
            if newer >= 0:
                counters[NEXT_LEAVE] = min(counters[NEXT_LEAVE], tuples[newer].ts + readers.span[reader])
    remove_from_queue(table, index, policy)  # in a self-join its departure may have marked its own key dead
    removed = tuples[index]
    older, newer = removed.older, removed.newer
    if older >= 0:
        tuples[older].newer = newer
    else:
        table.oldest[window] = newer
    if newer >= 0:
        tuples[newer].older = older
    else:
        table.newest[window] = older
    table.used_units[pool] -= units_of(table, index)
    removed.row = NONE
    removed.newer = counters[FREE_TUPLE]
    counters[FREE_TUPLE] = index


@inlined
def _prefetch_leaving(table: TupleTable, index: int, local: int, policy: int) -> None:
    """Prefetch the data of the tuple that leaves next, and of the two after it."""
    if index < 0:
        return
    if policy == FREQUENCY and table.memberships[index, local].key >= 0:
        prefetch_queues(table, int(table.memberships[index, local].key))
    following = int(table.tuples[index].newer)
    if following >= 0:
        if table.memberships[following, local].key >= 0:
            prefetch(table.keys, table.memberships[following, local].key)
        if table.tuples[following].newer >= 0:
            prefetch(table.tuples, table.tuples[following].newer)


@inlined
def _leave_reader(table: TupleTable, index: int, local: int, policy: int) -> None:
    """Remove a tuple from the window of one reader; it stays in the table for other readers, or for late tuples."""
    link, membership = table.links[index], table.memberships[index, local]
    moves = policy < RANDOM and membership.key >= 0 and link.queue != IN_DEAD_LIST
    if moves:
        dequeue(table, index, policy)
    if membership.key >= 0:
        leave_key(table, index, local, policy)
    record_leave(table, index, local, policy)
    if link.queue != IN_DEAD_LIST and (moves or is_dead(table, index)):
        remove_from_queue(table, index, policy)
        enqueue_or_mark_dead(table, index, policy)


@inlined
def leave_windows(table: TupleTable, policy: int) -> None:
    """Advance all readers to the clock: tuples that have left a reader's window no longer count for it."""
    tuples, readers, clock = table.tuples, table.readers, table.counters[CLOCK]
    leaving = np.int64(_NEVER)
    for window in range(len(readers.pool)):
        for reader in range(readers.first[window], readers.first[window + 1]):
            index = int(table.oldest_inside[reader])
            while index >= 0 and tuples[index].ts + readers.span[reader] < clock:
                table.last_left[reader] = serial_of(table, index)
                _prefetch_leaving(table, int(tuples[index].newer), reader - readers.first[window], policy)
                if is_inside(table, index, reader - readers.first[window]):
                    _leave_reader(table, index, reader - readers.first[window], policy)
                index = int(tuples[index].newer)
            table.oldest_inside[reader] = index
            if index >= 0:
                leaving = min(leaving, tuples[index].ts + readers.span[reader])
    table.counters[NEXT_LEAVE] = leaving


@inlined
def _expire_window(table: TupleTable, window: int, policy: int) -> None:
    """Remove the tuples of one window that no later tuple can need."""
    readers, tuples = table.readers, table.tuples
    bound = np.int64(1 << 62)
    for row in range(len(readers.retention)):
        if readers.retention[row, 0] == window:
            for other in range(len(readers.pool)):
                if readers.retention[row, 2] >> other & 1:
                    bound = min(
                        bound, table.max_event_times[other] - readers.lateness[other] - readers.retention[row, 1]
                    )
    index = int(table.oldest[window])
    while index >= 0 and tuples[index].ts < bound:
        newer = int(tuples[index].newer)
        remove_tuple(table, index, policy)
        index = newer


@borrowing
def expire(table: TupleTable, policy: int) -> None:
    """Remove all tuples that no later tuple can need."""
    for window in range(len(table.readers.pool)):
        _expire_window(table, window, policy)


@inlined
def set_deadline(table: TupleTable, deadline: ExpiryDeadline, window: int) -> None:
    """Set the deadline of a window: the stream that must advance furthest before its oldest tuple expires."""
    readers, furthest = table.readers, np.int64(-1)
    index = int(table.oldest[window])
    deadline.stream[window], deadline.time[window] = NONE, _NEVER
    if index < 0:
        return
    for row in range(len(readers.retention)):
        if readers.retention[row, 0] == window:
            for other in range(len(readers.pool)):
                if readers.retention[row, 2] >> other & 1:
                    until = table.tuples[index].ts + readers.retention[row, 1] + readers.lateness[other]
                    if until - table.max_event_times[other] > furthest:
                        furthest = until - table.max_event_times[other]
                        deadline.stream[window], deadline.time[window] = other, until
    if furthest >= 0:
        stream = deadline.stream[window]
        deadline.earliest[stream] = min(deadline.earliest[stream], deadline.time[window])
    else:
        force_check(deadline, window)


@inlined
def force_check(deadline: ExpiryDeadline, window: int) -> None:
    """Set the deadline of a window to the next tuple of any stream."""
    deadline.stream[window], deadline.time[window] = NONE, ALWAYS_DUE
    for other in range(len(deadline.earliest)):
        deadline.earliest[other] = ALWAYS_DUE


@inlined
def expire_due(table: TupleTable, deadline: ExpiryDeadline, policy: int) -> None:
    """Remove expired tuples of the windows whose deadline has passed."""
    max_event_times = table.max_event_times
    for window in range(len(deadline.earliest)):
        deadline.earliest[window] = _NEVER
    for window in range(len(deadline.earliest)):
        stream, time = deadline.stream[window], deadline.time[window]
        if time == _NEVER:
            continue
        if stream >= 0 and max_event_times[stream] <= time:
            deadline.earliest[stream] = min(deadline.earliest[stream], time)
            continue
        _expire_window(table, window, policy)
        set_deadline(table, deadline, window)
