"""Queues of equally valuable tuples, ranked by worth: in a heap for patterns, by levels for keys.

By keys, a queue may stand too low: when its tuples come to be worth more it stays, and moves when it comes to be the first to go. It
moves at once when they come to be worth less. So its level is never above what it is worth.
"""

from __future__ import annotations

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.heap import move, put, take_out
from dovetail.engine.kernels.levels import level_of, lowest, put_in, take_off
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    FREE_QUEUE,
    FREQUENCY,
    FREQUENCY_OWN,
    NONE,
    RANDOM,
    USED_QUEUES,
    Roster,
    serial_of,
)

FIRST_TO_GO = -1e-300
"""The value of a pattern in which all bits are set: 0 by definition 3, and dropped before all others by section 3.2."""
_NOBODY = -2


@inlined
def _value(roster: Roster, part: int, rank: int) -> float:
    whose, place = part >> roster.ranks.bits, part & ((1 << roster.ranks.bits) - 1)
    if rank == ARRIVAL_ORDER:
        if place == (1 << roster.uses.width[roster.uses.table[whose]]) - 1:
            return FIRST_TO_GO
        return float(roster.given[whose, place] / roster.seen[whose, place])
    if rank == FREQUENCY:
        return float(roster.keys[whose].total)
    if rank == FREQUENCY_OWN:
        return float(roster.slots[whose, place].tuples)
    return float(roster.keys[whose].results)


@inlined
def _queue_of(roster: Roster, part: int, rank: int) -> int:
    """A queue that has a part; `NONE` if there is none."""
    whose, place = part >> roster.ranks.bits, part & ((1 << roster.ranks.bits) - 1)
    if rank == ARRIVAL_ORDER:
        return int(roster.ranks.of_pattern[part])
    return int(roster.slots[whose, place].queue)


@inlined
def _lead_to(roster: Roster, part: int, queue: int, rank: int) -> None:
    """Let a part lead to a queue that has it."""
    whose, place = part >> roster.ranks.bits, part & ((1 << roster.ranks.bits) - 1)
    if rank == ARRIVAL_ORDER:
        roster.ranks.of_pattern[part] = queue
    else:
        roster.slots[whose, place].queue = queue


@inlined
def _worth(roster: Roster, queue: int, rank: int) -> float:
    """What the tuples of a queue are worth now."""
    parts, worth = roster.ranks.parts, 0.0
    for use in range(parts.shape[1]):
        part = parts[queue, use].part
        if part >= 0:
            worth += _value(roster, part, rank)
    return worth


@inlined
def _reckon(roster: Roster, queue: int) -> None:
    """Let a pattern's queue stand in the heap by what it is worth now."""
    ranks, own = roster.ranks, roster.ranks.queues[queue]
    pool = roster.uses.pool[own.window]
    place = ranks.heap[ranks.start[pool] + own.at]
    place.worth, place.tie = _worth(roster, queue, ARRIVAL_ORDER), serial_of(roster, own.first)
    move(ranks, pool, queue)


@inlined
def changed(roster: Roster, part: int, use: int, rank: int) -> None:
    """A part has another value, of a key a smaller one: queues that have it move. `use`: of which use of its window it is."""
    ranks, queue = roster.ranks, _queue_of(roster, part, rank)
    while queue >= 0:
        if rank == ARRIVAL_ORDER:
            _reckon(roster, queue)
        else:
            level, pool = level_of(_worth(roster, queue, rank)), roster.uses.pool[ranks.queues[queue].window]
            if level < ranks.queues[queue].at:
                take_off(ranks, pool, queue)
                put_in(ranks, pool, queue, level)
        queue = int(ranks.parts[queue, use].after)


@inlined
def first_queue(roster: Roster, pool: int, rank: int) -> int:
    """The queue whose tuples go first; `NONE` if there is none."""
    ranks = roster.ranks
    if rank == ARRIVAL_ORDER:
        return int(ranks.heap[ranks.start[pool]].queue) if ranks.size[pool] else NONE
    queue = lowest(ranks, pool)
    while queue >= 0:
        level = level_of(_worth(roster, queue, rank))
        if level == ranks.queues[queue].at:
            break
        take_off(ranks, pool, queue)
        put_in(ranks, pool, queue, level)
        queue = lowest(ranks, pool)
    return queue


@inlined
def key_changed(roster: Roster, key: int, rank: int) -> None:
    """All uses' parts of a key have another value."""
    uses, table = roster.uses, roster.keys[key].table
    for slot in range(uses.width[table]):
        use = uses.of[table, slot]
        changed(roster, key << roster.ranks.bits | slot, use - uses.first[uses.window[use]], rank)


@inlined
def _part(roster: Roster, place: int, use: int, rank: int) -> int:
    """What a tuple is judged by in a use of its window; `NONE` if that does not see it."""
    key = int(roster.marks[place, use].key)
    if key < 0:
        return NONE
    of_all = roster.uses.first[roster.held[place].window] + use
    if rank == ARRIVAL_ORDER:
        return int(of_all << roster.ranks.bits | roster.marks[place, use].pattern)
    return int(key << roster.ranks.bits | roster.uses.slot[of_all])


@inlined
def _new_queue(roster: Roster, place: int, rank: int) -> int:
    ranks, at = roster.ranks, roster.at
    queue = int(at[FREE_QUEUE])
    if queue < 0:
        queue = int(at[USED_QUEUES])
        at[USED_QUEUES] += 1
    else:
        at[FREE_QUEUE] = ranks.queues[queue].first
    own = ranks.queues[queue]
    window = int(roster.held[place].window)
    own.window, own.first, own.last = window, NONE, NONE
    for use in range(ranks.parts.shape[1]):
        part = _part(roster, place, use, rank)
        ranks.parts[queue, use].part = part
        ranks.parts[queue, use].before, ranks.parts[queue, use].after = NONE, NONE
        if part >= 0:
            following = _queue_of(roster, part, rank)
            ranks.parts[queue, use].after = following
            if following >= 0:
                ranks.parts[following, use].before = queue
            _lead_to(roster, part, queue, rank)
    pool = roster.uses.pool[window]
    if rank == ARRIVAL_ORDER:
        put(ranks, ranks.start[pool], ranks.size[pool], 0.0, serial_of(roster, place), queue)
        ranks.size[pool] += 1
    else:
        put_in(ranks, pool, queue, level_of(_worth(roster, queue, rank)))
    return queue


@inlined
def _end_queue(roster: Roster, queue: int, rank: int) -> None:
    ranks, at = roster.ranks, roster.at
    own = ranks.queues[queue]
    if rank == ARRIVAL_ORDER:
        take_out(ranks, roster.uses.pool[own.window], queue)
    else:
        take_off(ranks, roster.uses.pool[own.window], queue)
    for use in range(ranks.parts.shape[1]):
        part = ranks.parts[queue, use].part
        if part >= 0:
            before, after = ranks.parts[queue, use].before, ranks.parts[queue, use].after
            if before >= 0:
                ranks.parts[before, use].after = after
            else:
                _lead_to(roster, part, after, rank)
            if after >= 0:
                ranks.parts[after, use].before = before
    own.first = at[FREE_QUEUE]
    at[FREE_QUEUE] = queue


@inlined
def _matching_queue(roster: Roster, place: int, rank: int) -> int:
    """The queue of tuples like this one; `NONE` if there is none, `_NOBODY` if nobody sees the tuple any more."""
    queues, window = roster.ranks.queues, roster.held[place].window
    count = roster.uses.first[window + 1] - roster.uses.first[window]
    for use in range(count):
        part = _part(roster, place, use, rank)
        if part < 0:
            continue
        queue = _queue_of(roster, part, rank)
        while queue >= 0:
            same = queues[queue].window == window
            for other in range(count):
                same = same and roster.ranks.parts[queue, other].part == _part(roster, place, other, rank)
            if same:
                return queue
            queue = int(roster.ranks.parts[queue, use].after)
        return NONE
    return _NOBODY


@inlined
def enqueue(roster: Roster, place: int, rank: int) -> None:
    """Put a tuple behind those that are like it, or, where any tuple may go, among all others."""
    held, queues, ranks = roster.held, roster.ranks.queues, roster.ranks
    held[place].queue = NONE
    if rank == RANDOM:
        pool = roster.uses.pool[held[place].window]
        ranks.members[ranks.start[pool] + ranks.size[pool]] = place
        held[place].queue = ranks.size[pool]
        ranks.size[pool] += 1
    if rank >= RANDOM:
        return
    queue = _matching_queue(roster, place, rank)
    if queue == _NOBODY:
        return
    if queue < 0:
        queue = _new_queue(roster, place, rank)
    last = queues[queue].last
    held[place].queue, held[place].before, held[place].after = queue, last, NONE
    queues[queue].last = place
    if last >= 0:
        held[last].after = place
        return
    queues[queue].first = place
    if rank == ARRIVAL_ORDER:
        _reckon(roster, queue)


@inlined
def dequeue(roster: Roster, place: int, rank: int) -> None:
    """Take a tuple out of its queue, if it stands in one."""
    held, queues, ranks = roster.held, roster.ranks.queues, roster.ranks
    queue = int(held[place].queue)
    if queue < 0:
        return
    if rank == RANDOM:
        pool = roster.uses.pool[held[place].window]
        ranks.size[pool] -= 1
        last = ranks.members[ranks.start[pool] + ranks.size[pool]]
        ranks.members[ranks.start[pool] + queue] = last
        held[last].queue = queue
        held[place].queue = NONE
        return
    before, after = held[place].before, held[place].after
    if after >= 0:
        held[after].before = before
    else:
        queues[queue].last = before
    if before >= 0:
        held[before].after = after
    elif after >= 0:
        queues[queue].first = after
        if rank == ARRIVAL_ORDER:
            _reckon(roster, queue)
    else:
        _end_queue(roster, queue, rank)
    held[place].queue = NONE
