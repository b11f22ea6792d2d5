"""Tuples leave: the windows of those who see them, and then those that hold them, when no later tuple can need them."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import borrowing, inlined
from dovetail.engine.kernels.queues import changed, dequeue, enqueue, key_changed
from dovetail.engine.kernels.roster import (
    CLOCK,
    FREE_PLACE,
    FREQUENCY,
    FREQUENCY_OWN,
    LEAVING,
    NONE,
    RANDOM,
    Roster,
    Watch,
    forget_key,
)

NOW = -(1 << 63)
_NEVER = (1 << 63) - 1


@inlined
def leave_key(roster: Roster, place: int, use: int, rank: int) -> None:
    """A tuple no longer counts for its key in a use of its window; it has left its queue."""
    held, keys = roster.held, roster.keys
    key = int(held.key[place, use])
    of_all = roster.uses.first[held.window[place]] + use
    slot = roster.uses.slot[of_all]
    keys.tuples[key, slot] -= 1
    keys.total[key] -= 1
    before, after = held.key_before[place, use], held.key_after[place, use]
    if before >= 0:
        held.key_after[before, use] = after
    else:
        keys.first[key, slot] = after
    if after >= 0:
        held.key_before[after, use] = before
    held.key[place, use] = NONE
    if keys.total[key] == 0:
        forget_key(roster, key)
    elif rank == FREQUENCY:
        key_changed(roster, key, rank)
    elif rank == FREQUENCY_OWN:
        changed(roster, key * keys.tuples.shape[1] + slot, use, rank)


@inlined
def remove(roster: Roster, place: int, rank: int) -> None:
    """A tuple is held no more."""
    held, uses, at = roster.held, roster.uses, roster.at
    window = int(held.window[place])
    pool = uses.pool[window]
    dequeue(roster, place, rank)
    for use in range(uses.first[window], uses.first[window + 1]):
        if held.key[place, use - uses.first[window]] >= 0:
            leave_key(roster, place, use - uses.first[window], rank)
        if roster.inside[use] == place:
            newer = held.newer[place]
            roster.inside[use] = newer
            if newer >= 0:
                at[LEAVING] = min(at[LEAVING], held.ts[newer] + uses.span[use])
    older, newer = held.older[place], held.newer[place]
    if older >= 0:
        held.newer[older] = newer
    else:
        roster.oldest[window] = newer
    if newer >= 0:
        held.older[newer] = older
    else:
        roster.newest[window] = older
    roster.alive[pool] -= 1
    if rank == RANDOM:
        members, first = roster.queues.heap, roster.queues.start[pool]
        last = members[first + roster.alive[pool]]
        members[first + held.member[place]] = last
        held.member[last] = held.member[place]
    held.row[place] = NONE
    held.newer[place] = at[FREE_PLACE]
    at[FREE_PLACE] = place


@inlined
def leave_windows(roster: Roster, rank: int) -> None:
    """Let time reach all uses: tuples whose window has passed no longer count."""
    held, uses, clock = roster.held, roster.uses, roster.at[CLOCK]
    leaving = np.int64(_NEVER)
    for window in range(len(uses.pool)):
        for use in range(uses.first[window], uses.first[window + 1]):
            place = int(roster.inside[use])
            while place >= 0 and held.ts[place] + uses.span[use] < clock:
                roster.passed[use] = held.serial[place]
                if held.key[place, use - uses.first[window]] >= 0:
                    dequeue(roster, place, rank)
                    leave_key(roster, place, use - uses.first[window], rank)
                    if rank < RANDOM:
                        enqueue(roster, place, rank)
                place = int(held.newer[place])
            roster.inside[use] = place
            if place >= 0:
                leaving = min(leaving, held.ts[place] + uses.span[use])
    roster.at[LEAVING] = leaving


@inlined
def _release(roster: Roster, window: int, rank: int) -> None:
    """Let go of what no later tuple can need in a window."""
    uses, held = roster.uses, roster.held
    bound = np.int64(1 << 62)
    for kept in range(len(uses.kept)):
        if uses.kept[kept, 0] == window:
            for other in range(len(uses.pool)):
                if uses.kept[kept, 2] >> other & 1:
                    bound = min(bound, roster.heads[other] - uses.lateness[other] - uses.kept[kept, 1])
    place = int(roster.oldest[window])
    while place >= 0 and held.ts[place] < bound:
        newer = int(held.newer[place])
        remove(roster, place, rank)
        place = newer


@borrowing
def release(roster: Roster, rank: int) -> None:
    """Let go of what no later tuple can need."""
    for window in range(len(roster.uses.pool)):
        _release(roster, window, rank)


@inlined
def wait(roster: Roster, watch: Watch, window: int) -> None:
    """Find a stream that has to move on before the oldest tuple of a window can go: that which has furthest to go."""
    uses, furthest = roster.uses, np.int64(-1)
    place = int(roster.oldest[window])
    watch.stream[window], watch.time[window] = NONE, _NEVER
    if place < 0:
        return
    for kept in range(len(uses.kept)):
        if uses.kept[kept, 0] == window:
            for other in range(len(uses.pool)):
                if uses.kept[kept, 2] >> other & 1:
                    until = roster.held.ts[place] + uses.kept[kept, 1] + uses.lateness[other]
                    if until - roster.heads[other] > furthest:
                        furthest = until - roster.heads[other]
                        watch.stream[window], watch.time[window] = other, until
    if furthest >= 0:
        stream = watch.stream[window]
        watch.alarm[stream] = min(watch.alarm[stream], watch.time[window])
    else:
        look_at(watch, window)


@inlined
def look_at(watch: Watch, window: int) -> None:
    """A window has to be looked at when the next tuple comes."""
    watch.stream[window], watch.time[window] = NONE, NOW
    for other in range(len(watch.alarm)):
        watch.alarm[other] = NOW


@inlined
def release_over(roster: Roster, watch: Watch, rank: int) -> None:
    """Let go of what is over in windows whose stream to wait for has moved on."""
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
