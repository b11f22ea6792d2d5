"""Prefetch what the next tuples and the next victims need: waiting for memory would take most of the time of shedding."""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined, prefetch
from dovetail.engine.kernels.key_history import SLOTS, bucket_of
from dovetail.engine.kernels.queues import pseudo_random
from dovetail.engine.kernels.tuple_table import (
    ARRIVAL_ORDER,
    FIFO,
    FREQUENCY,
    IN_DEAD_LIST,
    NONE,
    RANDOM,
    SHED_COUNT,
    TupleBatch,
    TupleTable,
    prefetch_bucket,
    prefetch_key,
    prefetch_partners,
    prefetch_queues,
)

_FAR, _NEAR, _NEXT = 12, 6, 3
"""How many tuples ahead buckets, keys, and their tuples are prefetched."""


@inlined
def prefetch_arrivals(table: TupleTable, incoming: TupleBatch, arrival: int, policy: int) -> None:
    """Prefetch what the next tuples of a batch need."""
    readers, last = table.readers, len(incoming.ts) - 1
    for ahead in (_FAR, _NEAR, _NEXT):
        window = incoming.window[min(arrival + ahead, last)]
        reader = readers.first[window]
        if reader == readers.first[window + 1]:
            continue
        code = incoming.codes[min(arrival + ahead, last), 0]
        if ahead == _FAR and readers.join[reader] >= 0:
            prefetch(table.history.lines, bucket_of(table.history, readers.join[reader], code))
        if readers.key_table[reader] >= 0:
            if ahead == _FAR:
                prefetch_bucket(table, readers.key_table[reader], code)
            elif ahead == _NEAR:
                prefetch_key(table, readers.key_table[reader], code)
            else:
                prefetch_partners(table, readers.key_table[reader], readers.slot[reader], code, policy)


@inlined
def _next_victim(table: TupleTable, index: int, policy: int) -> int:
    """Return the tuple to shed after another, if nothing changes; `NONE` if it is unknown."""
    if index < 0:
        return NONE
    shed = table.links[index]
    if policy == FIFO and shed.queue != IN_DEAD_LIST:
        return int(table.tuples[index].newer)
    if shed.after >= 0 or policy == ARRIVAL_ORDER or shed.queue < 0:
        return int(shed.after)
    queues = table.ranking.queues
    queue = int(queues[shed.queue].after)
    if queue < 0:
        return NONE
    if queues[queue].after >= 0:
        prefetch(queues, queues[queue].after)
    return int(queues[queue].first)


@inlined
def prefetch_victims(table: TupleTable, index: int, pool: int, policy: int, seed: np.uint64) -> None:
    """Prefetch what the next victims need: the tuples behind the current one, or, under `RANDOM`, those drawn next."""
    tuples, keys = table.tuples, table.keys
    if policy == RANDOM and table.links[index].queue != IN_DEAD_LIST:
        members, first, size, sheds = (
            table.ranking.members,
            table.ranking.start[pool],
            table.ranking.size[pool],
            table.counters[SHED_COUNT],
        )
        prefetch(members, first + pseudo_random(sheds + 4, size, seed))
        prefetch(tuples, int(members[first + pseudo_random(sheds + 3, size, seed)]))
        after_next = int(members[first + pseudo_random(sheds + 2, size, seed)])
        upcoming = int(members[first + pseudo_random(sheds + 1, size, seed)])
    else:
        upcoming = _next_victim(table, index, policy)
        after_next = _next_victim(table, upcoming, policy)
        last = _next_victim(table, after_next, policy)
        if last >= 0:
            prefetch(tuples, last)
    if after_next >= 0 and table.memberships[after_next, 0].key >= 0:
        prefetch(keys, table.memberships[after_next, 0].key)
    if upcoming >= 0:
        if table.chains[upcoming, 0].entry >= 0:
            prefetch(table.history.lines, table.chains[upcoming, 0].entry // SLOTS)
        if tuples[upcoming].older >= 0:
            prefetch(tuples, tuples[upcoming].older)
        if tuples[upcoming].newer >= 0:
            prefetch(tuples, tuples[upcoming].newer)
        key = int(table.memberships[upcoming, 0].key)
        if key >= 0:
            prefetch_bucket(table, keys[key].key_table, keys[key].code)
            if policy == FREQUENCY:
                prefetch_queues(table, key)
