"""Queues of equally valuable tuples, ranked by worth: in a heap for patterns, by levels for keys.

A queue may sit below its true level: an increase of worth is applied when the queue reaches the front, a decrease at once. Heaps are
exact.
"""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.heap import remove_from_heap, restore_order, write_entry
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.levels import append_to_level, level_of, lowest_queue, remove_from_level
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FREE_QUEUE,
    FREQUENCY,
    FREQUENCY_OWN,
    NONE,
    RANDOM,
    USED_QUEUES,
    TupleTable,
    serial_of,
)

_SHED_FIRST = -1e-300
"""Value of a pattern in which all bits are set: 0 by definition 3, and shed before all others by section 3.2."""
_NO_READER = -2
"""No reader sees the tuple any more, so it has no queue."""


@inlined
def _term_value(table: TupleTable, term: int, policy: int) -> float:
    """Return what a policy expects of tuples with a term: results, or tuples of the key."""
    owner, detail = term >> table.ranking.term_bits, term & ((1 << table.ranking.term_bits) - 1)
    if policy == ARRIVAL_ORDER:
        if detail == (1 << table.readers.width[table.readers.key_table[owner]]) - 1:
            return _SHED_FIRST
        return float(table.pattern_results[owner, detail] / table.pattern_tuples[owner, detail])
    if policy == FREQUENCY:
        return float(table.keys[owner].total)
    if policy == FREQUENCY_OWN:
        return float(table.counts[owner, detail])
    return float(table.key_results[owner])


@inlined
def _first_queue(table: TupleTable, term: int, policy: int) -> int:
    """Return the first queue with a term; `NONE` if there is none."""
    owner, detail = term >> table.ranking.term_bits, term & ((1 << table.ranking.term_bits) - 1)
    if policy == ARRIVAL_ORDER:
        return int(table.ranking.by_pattern[term])
    return int(table.first_queues[owner, detail])


@inlined
def _set_first_queue(table: TupleTable, term: int, queue: int, policy: int) -> None:
    """Set the first queue with a term."""
    owner, detail = term >> table.ranking.term_bits, term & ((1 << table.ranking.term_bits) - 1)
    if policy == ARRIVAL_ORDER:
        table.ranking.by_pattern[term] = queue
    else:
        table.first_queues[owner, detail] = queue


@inlined
def _worth(table: TupleTable, queue: int, policy: int) -> float:
    """Return the current worth of a queue: the sum of its terms."""
    terms, worth = table.ranking.terms, 0.0
    for local in range(terms.shape[1]):
        term = terms[queue, local].term
        if term >= 0:
            worth += _term_value(table, term, policy)
    return worth


@inlined
def _update_heap_entry(table: TupleTable, queue: int) -> None:
    """Update the worth and the tie of a queue in the heap."""
    ranking, record = table.ranking, table.ranking.queues[queue]
    pool = table.readers.pool[record.window]
    entry = ranking.heap[ranking.start[pool] + record.position]
    entry.worth, entry.tie = _worth(table, queue, ARRIVAL_ORDER), serial_of(table, record.first)
    restore_order(ranking, pool, queue)


@inlined
def update_queues(table: TupleTable, term: int, local: int, policy: int) -> None:
    """Move the queues with a term of a reader whose value has changed; queues of keys move only to lower levels."""
    ranking, queue = table.ranking, _first_queue(table, term, policy)
    while queue >= 0:
        if policy == ARRIVAL_ORDER:
            _update_heap_entry(table, queue)
        else:
            level, pool = level_of(_worth(table, queue, policy)), table.readers.pool[ranking.queues[queue].window]
            if level < ranking.queues[queue].position:
                remove_from_level(ranking, pool, queue)
                append_to_level(ranking, pool, queue, level)
        queue = int(ranking.terms[queue, local].after)


@inlined
def queue_to_shed_from(table: TupleTable, pool: int, policy: int) -> int:
    """Return the queue to shed from; `NONE` if there is none."""
    ranking = table.ranking
    if policy == ARRIVAL_ORDER:
        return int(ranking.heap[ranking.start[pool]].queue) if ranking.size[pool] else NONE
    queue = lowest_queue(ranking, pool)
    while queue >= 0:
        level = level_of(_worth(table, queue, policy))
        if level == ranking.queues[queue].position:
            break
        remove_from_level(ranking, pool, queue)
        append_to_level(ranking, pool, queue, level)
        queue = lowest_queue(ranking, pool)
    return queue


@inlined
def update_queues_of_key(table: TupleTable, key: int, policy: int) -> None:
    """Move the queues of a key whose value has changed for all readers."""
    readers, key_table = table.readers, table.keys[key].key_table
    for slot in range(readers.width[key_table]):
        reader = readers.by_slot[key_table, slot]
        update_queues(
            table, key << table.ranking.term_bits | slot, reader - readers.first[readers.window[reader]], policy
        )


@inlined
def _term_of(table: TupleTable, index: int, local: int, policy: int) -> int:
    """Return a tuple's term for a reader of its window; `NONE` if the reader does not see it."""
    key = int(table.memberships[index, local].key)
    if key < 0:
        return NONE
    reader = table.readers.first[table.tuples[index].window] + local
    if policy == ARRIVAL_ORDER:
        return int(reader << table.ranking.term_bits | table.memberships[index, local].pattern)
    return int(key << table.ranking.term_bits | table.readers.slot[reader])


@inlined
def _add_queue(table: TupleTable, index: int, policy: int) -> int:
    """Return a new empty queue for tuples that are equivalent to a tuple."""
    ranking, counters = table.ranking, table.counters
    queue = int(counters[FREE_QUEUE])
    if queue < 0:
        queue = int(counters[USED_QUEUES])
        counters[USED_QUEUES] += 1
    else:
        counters[FREE_QUEUE] = ranking.queues[queue].first
    record = ranking.queues[queue]
    window = int(table.tuples[index].window)
    record.window, record.first, record.last = window, NONE, NONE
    for local in range(ranking.terms.shape[1]):
        term = _term_of(table, index, local, policy)
        ranking.terms[queue, local].term = term
        ranking.terms[queue, local].before, ranking.terms[queue, local].after = NONE, NONE
        if term >= 0:
            after = _first_queue(table, term, policy)
            ranking.terms[queue, local].after = after
            if after >= 0:
                ranking.terms[after, local].before = queue
            _set_first_queue(table, term, queue, policy)
    pool = table.readers.pool[window]
    if policy == ARRIVAL_ORDER:
        write_entry(ranking, ranking.start[pool], ranking.size[pool], 0.0, serial_of(table, index), queue)
        ranking.size[pool] += 1
    else:
        append_to_level(ranking, pool, queue, level_of(_worth(table, queue, policy)))
    return queue


@inlined
def _remove_queue(table: TupleTable, queue: int, policy: int) -> None:
    """Remove a queue whose last tuple leaves it."""
    ranking, counters = table.ranking, table.counters
    record = ranking.queues[queue]
    if policy == ARRIVAL_ORDER:
        remove_from_heap(ranking, table.readers.pool[record.window], queue)
    else:
        remove_from_level(ranking, table.readers.pool[record.window], queue)
    for local in range(ranking.terms.shape[1]):
        term = ranking.terms[queue, local].term
        if term >= 0:
            before, after = ranking.terms[queue, local].before, ranking.terms[queue, local].after
            if before >= 0:
                ranking.terms[before, local].after = after
            else:
                _set_first_queue(table, term, after, policy)
            if after >= 0:
                ranking.terms[after, local].before = before
    record.first = counters[FREE_QUEUE]
    counters[FREE_QUEUE] = queue


@inlined
def _equivalent_queue(table: TupleTable, index: int, policy: int) -> int:
    """Return the queue of tuples equivalent to a tuple; `NONE` if there is none, `_NO_READER` if no reader sees the tuple."""
    queues, window = table.ranking.queues, table.tuples[index].window
    count = table.readers.first[window + 1] - table.readers.first[window]
    for local in range(count):
        term = _term_of(table, index, local, policy)
        if term < 0:
            continue
        queue = _first_queue(table, term, policy)
        while queue >= 0:
            same = queues[queue].window == window
            for other in range(count):
                same = same and table.ranking.terms[queue, other].term == _term_of(table, index, other, policy)
            if same:
                return queue
            queue = int(table.ranking.terms[queue, local].after)
        return NONE
    return _NO_READER


@inlined
def pseudo_random(counter: int, count: int, seed: np.uint64) -> int:
    """Return a pseudo-random index below `count`."""
    return int(((spread(np.uint64(counter), seed) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@inlined
def enqueue(table: TupleTable, index: int, policy: int) -> None:
    """Append a tuple to the queue of its equivalents, or, under `RANDOM`, to the members of its pool."""
    tuples, links, queues, ranking = table.tuples, table.links, table.ranking.queues, table.ranking
    links[index].queue = NONE
    if policy == RANDOM:
        pool = table.readers.pool[tuples[index].window]
        ranking.members[ranking.start[pool] + ranking.size[pool]] = index
        links[index].queue = ranking.size[pool]
        ranking.size[pool] += 1
    if policy >= RANDOM:
        return
    queue = _equivalent_queue(table, index, policy)
    if queue == _NO_READER:
        return
    if queue < 0:
        queue = _add_queue(table, index, policy)
    last = queues[queue].last
    links[index].queue, links[index].before, links[index].after = queue, last, NONE
    queues[queue].last = index
    if last >= 0:
        links[last].after = index
        return
    queues[queue].first = index
    if policy == ARRIVAL_ORDER:
        _update_heap_entry(table, queue)


@inlined
def dequeue(table: TupleTable, index: int, policy: int) -> None:
    """Remove a tuple from its queue, if it is in one."""
    links, queues, ranking = table.links, table.ranking.queues, table.ranking
    queue = int(links[index].queue)
    if queue < 0:
        return
    if policy == RANDOM:
        pool = table.readers.pool[table.tuples[index].window]
        ranking.size[pool] -= 1
        last = ranking.members[ranking.start[pool] + ranking.size[pool]]
        ranking.members[ranking.start[pool] + queue] = last
        links[last].queue = queue
        links[index].queue = NONE
        return
    before, after = links[index].before, links[index].after
    if after >= 0:
        links[after].before = before
    else:
        queues[queue].last = before
    if before >= 0:
        links[before].after = after
    elif after >= 0:
        queues[queue].first = after
        if policy == ARRIVAL_ORDER:
            _update_heap_entry(table, queue)
    else:
        _remove_queue(table, queue, policy)
    links[index].queue = NONE
