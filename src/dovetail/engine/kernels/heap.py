"""A binary heap of queues, least valuable first, for patterns: few queues with arbitrary worths."""

from __future__ import annotations

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.tuple_table import QueueRanking


@inlined
def restore_order(ranking: QueueRanking, pool: int, queue: int) -> None:
    """Restore the heap order of a queue after its worth or its tie has changed."""
    heap, start, size = ranking.heap, ranking.start[pool], ranking.size[pool]
    position = int(ranking.queues[queue].position)
    worth, tie = heap[start + position].worth, heap[start + position].tie
    start_position = position
    while position > 0:
        above = (position - 1) >> 1
        other = heap[start + above].worth
        if worth > other or (worth == other and tie >= heap[start + above].tie):
            break
        write_entry(ranking, start, position, other, heap[start + above].tie, heap[start + above].queue)
        position = above
    while True:
        below = 2 * position + 1
        if below >= size:
            break
        least = heap[start + below].worth
        if below + 1 < size:
            other = heap[start + below + 1].worth
            if other < least or (other == least and heap[start + below + 1].tie < heap[start + below].tie):
                below, least = below + 1, other
        if least > worth or (least == worth and heap[start + below].tie >= tie):
            break
        write_entry(ranking, start, position, least, heap[start + below].tie, heap[start + below].queue)
        position = below
    if position != start_position:
        write_entry(ranking, start, position, worth, tie, queue)


@inlined
def write_entry(ranking: QueueRanking, start: int, position: int, worth: float, tie: int, queue: int) -> None:
    """Write a queue to an entry of a heap."""
    entry = ranking.heap[start + position]
    entry.worth, entry.tie, entry.queue = worth, tie, queue
    ranking.queues[queue].position = position


@inlined
def remove_from_heap(ranking: QueueRanking, pool: int, queue: int) -> None:
    """Remove a queue from its heap."""
    ranking.size[pool] -= 1
    start = ranking.start[pool]
    end = ranking.heap[start + ranking.size[pool]]
    last = int(end.queue)
    if last != queue:
        write_entry(ranking, start, ranking.queues[queue].position, end.worth, end.tie, last)
        restore_order(ranking, pool, last)
