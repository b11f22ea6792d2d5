"""Queues of tuples that are worth the same, in a heap by what they are worth."""

from __future__ import annotations

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    FREE_QUEUE,
    FREQUENCY,
    FREQUENCY_OWN,
    NONE,
    Queues,
    Roster,
)

FIRST_TO_GO = -1e-300
"""The value of a pattern in which all bits are set: 0 by definition 3, and dropped before all others by section 3.2."""
_UNSEEN = -2


@inlined
def _value(roster: Roster, part: int, rank: int) -> float:
    if rank == ARRIVAL_ORDER:
        patterns = roster.given.shape[1]
        use, pattern = part // patterns, part % patterns
        if pattern == (1 << roster.uses.width[roster.uses.table[use]]) - 1:
            return FIRST_TO_GO
        return float(roster.given[use, pattern] / roster.seen[use, pattern])
    width = roster.keys.tuples.shape[1]
    key, slot = part // width, part % width
    if rank == FREQUENCY:
        return float(roster.keys.total[key])
    if rank == FREQUENCY_OWN:
        return float(roster.keys.tuples[key, slot])
    return float(roster.keys.results[key])


@inlined
def _move(queues: Queues, pool: int, queue: int) -> None:
    """Let a queue find its place in the heap after its worth or its tie has changed."""
    start, at, size = queues.start[pool], int(queues.at[queue]), queues.size[pool]
    worth, tie = queues.worth[start + at], queues.tie[start + at]
    began = at
    while at > 0:
        above = (at - 1) >> 1
        other = queues.worth[start + above]
        if worth > other or (worth == other and tie >= queues.tie[start + above]):
            break
        _put(queues, start, at, other, queues.tie[start + above], queues.heap[start + above])
        at = above
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        least = queues.worth[start + below]
        if below + 1 < size:
            other = queues.worth[start + below + 1]
            if other < least or (other == least and queues.tie[start + below + 1] < queues.tie[start + below]):
                below, least = below + 1, other
        if least > worth or (least == worth and queues.tie[start + below] >= tie):
            break
        _put(queues, start, at, least, queues.tie[start + below], queues.heap[start + below])
        at = below
    if at != began:
        _put(queues, start, at, worth, tie, queue)


@inlined
def _put(queues: Queues, start: int, at: int, worth: float, tie: int, queue: int) -> None:
    """Put a queue at a place of a heap."""
    queues.worth[start + at], queues.tie[start + at], queues.heap[start + at] = worth, tie, queue
    queues.at[queue] = at


@inlined
def _reckon(roster: Roster, queue: int, rank: int) -> None:
    """Find out again what the tuples of a queue are worth."""
    queues, worth = roster.queues, 0.0
    for use in range(queues.part.shape[1]):
        if queues.part[queue, use] >= 0:
            worth += _value(roster, queues.part[queue, use], rank)
    pool = roster.uses.pool[queues.window[queue]]
    place = queues.start[pool] + queues.at[queue]
    queues.worth[place] = worth
    if rank == ARRIVAL_ORDER:
        queues.tie[place] = roster.held.serial[queues.first[queue]]
    _move(queues, pool, queue)


@inlined
def changed(roster: Roster, part: int, use: int, rank: int) -> None:
    """A part has another value: all queues that have it move. `use`: of which use of its window it is."""
    queue = int(roster.queues.of_part[part])
    while queue >= 0:
        _reckon(roster, queue, rank)
        queue = int(roster.queues.part_after[queue, use])


@inlined
def key_changed(roster: Roster, key: int, rank: int) -> None:
    """All uses' parts of a key have another value."""
    uses, width = roster.uses, roster.keys.tuples.shape[1]
    table = roster.keys.table[key]
    for slot in range(uses.width[table]):
        use = uses.of[table, slot]
        changed(roster, key * width + slot, use - uses.first[uses.window[use]], rank)


@inlined
def _part(roster: Roster, place: int, use: int, rank: int) -> int:
    """What a tuple is judged by in a use of its window; `NONE` if that does not see it."""
    key = int(roster.held.key[place, use])
    if key < 0:
        return NONE
    of_all = roster.uses.first[roster.held.window[place]] + use
    if rank == ARRIVAL_ORDER:
        return int(of_all * roster.given.shape[1] + roster.held.pattern[place, use])
    return int(key * roster.keys.tuples.shape[1] + roster.uses.slot[of_all])


@inlined
def _new_queue(roster: Roster, place: int, rank: int) -> int:
    queues, held, at = roster.queues, roster.held, roster.at
    queue = int(at[FREE_QUEUE])
    at[FREE_QUEUE] = queues.first[queue]
    window = int(held.window[place])
    queues.window[queue], queues.first[queue], queues.last[queue] = window, NONE, NONE
    for use in range(queues.part.shape[1]):
        part = _part(roster, place, use, rank)
        queues.part[queue, use] = part
        queues.part_before[queue, use] = NONE
        if part >= 0:
            following = queues.of_part[part]
            queues.part_after[queue, use] = following
            if following >= 0:
                queues.part_before[following, use] = queue
            queues.of_part[part] = queue
    pool = roster.uses.pool[window]
    _put(queues, queues.start[pool], queues.size[pool], 0.0, held.serial[place], queue)
    queues.size[pool] += 1
    return queue


@inlined
def _end_queue(roster: Roster, queue: int) -> None:
    queues, at = roster.queues, roster.at
    pool = roster.uses.pool[queues.window[queue]]
    queues.size[pool] -= 1
    start = queues.start[pool]
    end = start + queues.size[pool]
    last = int(queues.heap[end])
    if last != queue:
        _put(queues, start, queues.at[queue], queues.worth[end], queues.tie[end], last)
        _move(queues, pool, last)
    for use in range(queues.part.shape[1]):
        part = queues.part[queue, use]
        if part >= 0:
            before, after = queues.part_before[queue, use], queues.part_after[queue, use]
            if before >= 0:
                queues.part_after[before, use] = after
            else:
                queues.of_part[part] = after
            if after >= 0:
                queues.part_before[after, use] = before
    queues.first[queue] = at[FREE_QUEUE]
    at[FREE_QUEUE] = queue


@inlined
def _matching_queue(roster: Roster, place: int, rank: int) -> int:
    """The queue of tuples like this one; `NONE` if there is none, `_UNSEEN` if nobody sees the tuple any more."""
    queues, window = roster.queues, roster.held.window[place]
    count = roster.uses.first[window + 1] - roster.uses.first[window]
    for use in range(count):
        part = _part(roster, place, use, rank)
        if part < 0:
            continue
        queue = int(queues.of_part[part])
        while queue >= 0:
            same = queues.window[queue] == window
            for other in range(count):
                same = same and queues.part[queue, other] == _part(roster, place, other, rank)
            if same:
                return queue
            queue = int(queues.part_after[queue, use])
        return NONE
    return _UNSEEN


@inlined
def enqueue(roster: Roster, place: int, rank: int) -> None:
    """Put a tuple behind those that are like it."""
    held, queues = roster.held, roster.queues
    queue = _matching_queue(roster, place, rank)
    held.queue[place] = NONE
    if queue == _UNSEEN:
        return
    if queue < 0:
        queue = _new_queue(roster, place, rank)
    last = queues.last[queue]
    held.queue[place], held.before[place], held.after[place] = queue, last, NONE
    queues.last[queue] = place
    if last >= 0:
        held.after[last] = place
        return
    queues.first[queue] = place
    _reckon(roster, queue, rank)


@inlined
def dequeue(roster: Roster, place: int, rank: int) -> None:
    held, queues = roster.held, roster.queues
    queue = int(held.queue[place])
    if queue < 0:
        return
    before, after = held.before[place], held.after[place]
    if after >= 0:
        held.before[after] = before
    else:
        queues.last[queue] = before
    if before >= 0:
        held.after[before] = after
    elif after >= 0:
        queues.first[queue] = after
        if rank == ARRIVAL_ORDER:
            _reckon(roster, queue, rank)
    else:
        _end_queue(roster, queue)
    held.queue[place] = NONE
