"""A binary heap of queues, least valuable first, for patterns: few queues with arbitrary worths."""

from __future__ import annotations

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.roster import Ranks


@inlined
def move(ranks: Ranks, pool: int, queue: int) -> None:
    """Restore the heap order of a queue after its worth or its tie has changed."""
    heap, start, size = ranks.heap, ranks.start[pool], ranks.size[pool]
    at = int(ranks.queues[queue].at)
    worth, tie = heap[start + at].worth, heap[start + at].tie
    began = at
    while at > 0:
        above = (at - 1) >> 1
        other = heap[start + above].worth
        if worth > other or (worth == other and tie >= heap[start + above].tie):
            break
        put(ranks, start, at, other, heap[start + above].tie, heap[start + above].queue)
        at = above
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        least = heap[start + below].worth
        if below + 1 < size:
            other = heap[start + below + 1].worth
            if other < least or (other == least and heap[start + below + 1].tie < heap[start + below].tie):
                below, least = below + 1, other
        if least > worth or (least == worth and heap[start + below].tie >= tie):
            break
        put(ranks, start, at, least, heap[start + below].tie, heap[start + below].queue)
        at = below
    if at != began:
        put(ranks, start, at, worth, tie, queue)


@inlined
def put(ranks: Ranks, start: int, at: int, worth: float, tie: int, queue: int) -> None:
    """Write a queue to an entry of a heap."""
    entry = ranks.heap[start + at]
    entry.worth, entry.tie, entry.queue = worth, tie, queue
    ranks.queues[queue].at = at


@inlined
def take_out(ranks: Ranks, pool: int, queue: int) -> None:
    """Remove a queue from its heap."""
    ranks.size[pool] -= 1
    start = ranks.start[pool]
    end = ranks.heap[start + ranks.size[pool]]
    last = int(end.queue)
    if last != queue:
        put(ranks, start, ranks.queues[queue].at, end.worth, end.tie, last)
        move(ranks, pool, last)
