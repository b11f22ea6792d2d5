"""Remove expired tuples from the roster: from each use's window, and at last from the store's window."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.dead_keys import forget, is_dead, settle, withdraw
from dovetail.engine.kernels.queues import changed, dequeue, key_changed
from dovetail.engine.kernels.roster import (
    CLOCK,
    FREE_PLACE,
    FREQUENCY,
    FREQUENCY_OWN,
    IN_DEAD_LIST,
    LEAVING,
    NONE,
    RANDOM,
    UNSEEN,
    ExpiryDeadline,
    Roster,
    expect_queues,
    forget_key,
    serial_of,
    units_of,
)

NOW = -(1 << 63)
_NEVER = (1 << 63) - 1


@inlined
def leave_key(roster: Roster, place: int, use: int, rank: int) -> None:
    """Stop counting a tuple for its key in one use of its window; the tuple is in no queue."""
    keys, marks, own = roster.keys, roster.marks, roster.marks[place, use]
    key = int(own.key)
    slot = roster.uses.slot[roster.uses.first[roster.held[place].window] + use]
    inside = roster.slots[key, slot]
    inside.tuples -= 1
    keys[key].total -= 1
    before, after = own.before, own.after
    if before >= 0:
        marks[before, use].after = after
    else:
        inside.first = after
    if after >= 0:
        marks[after, use].before = before
    own.key = NONE
    if keys[key].total == 0:
        forget_key(roster, key)
    elif rank == FREQUENCY:
        key_changed(roster, key, rank)
    elif rank == FREQUENCY_OWN:
        changed(roster, key << roster.ranks.bits | slot, use, rank)


@inlined
def remove(roster: Roster, place: int, rank: int) -> None:
    """Remove a tuple from the roster."""
    held, uses, at = roster.held, roster.uses, roster.at
    window = int(held[place].window)
    pool = uses.pool[window]
    withdraw(roster, place, rank)
    for use in range(uses.first[window], uses.first[window + 1]):
        if roster.marks[place, use - uses.first[window]].key >= 0:
            leave_key(roster, place, use - uses.first[window], rank)
        forget(roster, place, use - uses.first[window], rank)
        if roster.inside[use] == place:
            newer = held[place].newer
            roster.inside[use] = newer
            if newer >= 0:
                at[LEAVING] = min(at[LEAVING], held[newer].ts + uses.span[use])
    withdraw(roster, place, rank)  # in a self-join its key may have died by its own leaving
    own = held[place]
    older, newer = own.older, own.newer
    if older >= 0:
        held[older].newer = newer
    else:
        roster.oldest[window] = newer
    if newer >= 0:
        held[newer].older = older
    else:
        roster.newest[window] = older
    roster.alive[pool] -= units_of(roster, place)
    own.row = NONE
    own.newer = at[FREE_PLACE]
    at[FREE_PLACE] = place


@inlined
def _expect_leaving(roster: Roster, place: int, use: int, rank: int) -> None:
    """Prefetch the data of the tuple that leaves next, and of the two after it."""
    if place < 0:
        return
    if rank == FREQUENCY and roster.marks[place, use].key >= 0:
        expect_queues(roster, int(roster.marks[place, use].key))
    then = int(roster.held[place].newer)
    if then >= 0:
        if roster.marks[then, use].key >= 0:
            prefetch(roster.keys, roster.marks[then, use].key)
        if roster.held[then].newer >= 0:
            prefetch(roster.held, roster.held[then].newer)


@inlined
def _leave_use(roster: Roster, place: int, use: int, rank: int) -> None:
    """Let a tuple leave one use of its window; the tuple stays for other uses, or because its results may still come."""
    own, mark = roster.held[place], roster.marks[place, use]
    moves = rank < RANDOM and mark.key >= 0 and own.queue != IN_DEAD_LIST
    if moves:
        dequeue(roster, place, rank)
    if mark.key >= 0:
        leave_key(roster, place, use, rank)
    forget(roster, place, use, rank)
    if own.queue != IN_DEAD_LIST and (moves or is_dead(roster, place)):
        withdraw(roster, place, rank)
        settle(roster, place, rank)


@inlined
def leave_windows(roster: Roster, rank: int) -> None:
    """Advance all uses to the clock: tuples whose window has passed no longer count."""
    held, uses, clock = roster.held, roster.uses, roster.at[CLOCK]
    leaving = np.int64(_NEVER)
    for window in range(len(uses.pool)):
        for use in range(uses.first[window], uses.first[window + 1]):
            place = int(roster.inside[use])
            while place >= 0 and held[place].ts + uses.span[use] < clock:
                roster.passed[use] = serial_of(roster, place)
                _expect_leaving(roster, int(held[place].newer), use - uses.first[window], rank)
                if roster.marks[place, use - uses.first[window]].entry != UNSEEN:
                    _leave_use(roster, place, use - uses.first[window], rank)
                place = int(held[place].newer)
            roster.inside[use] = place
            if place >= 0:
                leaving = min(leaving, held[place].ts + uses.span[use])
    roster.at[LEAVING] = leaving


@inlined
def _release(roster: Roster, window: int, rank: int) -> None:
    """Remove the tuples of one window that no later tuple can need."""
    uses, held = roster.uses, roster.held
    bound = np.int64(1 << 62)
    for kept in range(len(uses.kept)):
        if uses.kept[kept, 0] == window:
            for other in range(len(uses.pool)):
                if uses.kept[kept, 2] >> other & 1:
                    bound = min(bound, roster.heads[other] - uses.lateness[other] - uses.kept[kept, 1])
    place = int(roster.oldest[window])
    while place >= 0 and held[place].ts < bound:
        newer = int(held[place].newer)
        remove(roster, place, rank)
        place = newer


@borrowing
def release(roster: Roster, rank: int) -> None:
    """Remove all tuples that no later tuple can need."""
    for window in range(len(roster.uses.pool)):
        _release(roster, window, rank)


@inlined
def wait(roster: Roster, watch: ExpiryDeadline, window: int) -> None:
    """Set the deadline of a window: the stream that must advance furthest before its oldest tuple expires."""
    uses, furthest = roster.uses, np.int64(-1)
    place = int(roster.oldest[window])
    watch.stream[window], watch.time[window] = NONE, _NEVER
    if place < 0:
        return
    for kept in range(len(uses.kept)):
        if uses.kept[kept, 0] == window:
            for other in range(len(uses.pool)):
                if uses.kept[kept, 2] >> other & 1:
                    until = roster.held[place].ts + uses.kept[kept, 1] + uses.lateness[other]
                    if until - roster.heads[other] > furthest:
                        furthest = until - roster.heads[other]
                        watch.stream[window], watch.time[window] = other, until
    if furthest >= 0:
        stream = watch.stream[window]
        watch.alarm[stream] = min(watch.alarm[stream], watch.time[window])
    else:
        look_at(watch, window)


@inlined
def look_at(watch: ExpiryDeadline, window: int) -> None:
    """Set the deadline of a window to the next tuple of any stream."""
    watch.stream[window], watch.time[window] = NONE, NOW
    for other in range(len(watch.alarm)):
        watch.alarm[other] = NOW


@inlined
def release_over(roster: Roster, watch: ExpiryDeadline, rank: int) -> None:
    """Remove expired tuples of the windows whose deadline has passed."""
    heads = roster.heads
    for window in range(len(watch.alarm)):
        watch.alarm[window] = _NEVER
    for window in range(len(watch.alarm)):
        stream, time = watch.stream[window], watch.time[window]
        if time == _NEVER:
            continue
        if stream >= 0 and heads[stream] <= time:
            watch.alarm[stream] = min(watch.alarm[stream], time)
            continue
        _release(roster, window, rank)
        wait(roster, watch, window)
