"""Dead keys: if each key occurs at most once per input, a tuple whose partner was shed or has expired is useless.

A key is marked dead when one of its tuples is shed or leaves its window, and when it has been seen in all inputs, because its
result is then complete. Its tuples move from their queues to the list of dead tuples, which are shed before the policy decides.
When the cap is reached, a new tuple of a dead key is shed on arrival. A key that is seen twice in one input repeats: its mark is
removed, and it is not marked again.

All of this happens only while hardly any key repeats. Otherwise arrivals are counted and nothing else is done.
"""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.key_history import (
    DEAD,
    EPOCHS,
    IS_ON,
    NEVER,
    NOW,
    PARTNERS,
    REPEATED,
    REPEATS,
    SINCE,
    advance,
    bits_after_arrival,
    entry_of,
    entry_to_replace,
    find_entry,
    first_link,
    is_complete,
    is_followed,
    set_entry,
    set_first_link,
    start_entry,
)
from dovetail.engine.kernels.queues import dequeue, enqueue
from dovetail.engine.kernels.tuple_table import (
    CLOCK,
    EPOCH_END,
    IN_DEAD_LIST,
    NONE,
    UNSEEN,
    KeySample,
    TupleBatch,
    TupleTable,
)

_MIN_PARTNERS, _MIN_PARTNERS_PER_REPEAT = 64, 64
"""Keys count as not repeating from this many partners on, and this many partners for each repeat."""
_DECAY = 63 / 64
"""Factor of the counts with each epoch: they decay over four windows."""


@inlined
def is_inside(table: TupleTable, index: int, local: int) -> bool:
    """Whether a reader sees a tuple that has not left its window; False where leaving has no effect."""
    return bool(table.memberships[index, local].key >= 0 or table.chains[index, local].entry != UNSEEN)


@inlined
def is_dead(table: TupleTable, index: int) -> bool:
    """Whether a tuple's key is dead for every reader that sees the tuple."""
    readers, window, is_seen = table.readers, table.tuples[index].window, False
    for reader in range(readers.first[window], readers.first[window + 1]):
        entry = int(table.chains[index, reader - readers.first[window]].entry)
        if entry == UNSEEN:
            continue
        if entry == NONE or not table.history.state[readers.join[reader], IS_ON]:
            return False
        if not entry_of(table.history, entry) & DEAD:
            return False
        is_seen = True
    return is_seen


@inlined
def _append_dead(table: TupleTable, index: int) -> None:
    """Append a tuple that is in no queue to the list of dead tuples."""
    links, history = table.links, table.history
    pool = table.readers.pool[table.tuples[index].window]
    last = int(history.last_dead[pool])
    links[index].queue, links[index].before, links[index].after = IN_DEAD_LIST, last, NONE
    history.last_dead[pool] = index
    if last >= 0:
        links[last].after = index
    else:
        history.first_dead[pool] = index


@inlined
def remove_from_queue(table: TupleTable, index: int, policy: int) -> None:
    """Remove a tuple from its queue, or from the list of dead tuples."""
    links, history = table.links, table.history
    if links[index].queue != IN_DEAD_LIST:
        dequeue(table, index, policy)
        return
    pool = table.readers.pool[table.tuples[index].window]
    before, after = int(links[index].before), int(links[index].after)
    if before >= 0:
        links[before].after = after
    else:
        history.first_dead[pool] = after
    if after >= 0:
        links[after].before = before
    else:
        history.last_dead[pool] = before
    links[index].queue = NONE


@inlined
def enqueue_or_mark_dead(table: TupleTable, index: int, policy: int) -> None:
    """Append a tuple that is in no queue to the list of dead tuples if it is dead, else to its queue."""
    if is_dead(table, index):
        _append_dead(table, index)
    else:
        enqueue(table, index, policy)


@inlined
def _mark_dead(table: TupleTable, join: int, entry: int, policy: int) -> None:
    """Mark a key dead, and move its tuples to the list of dead tuples."""
    history, width = table.history, table.chains.shape[1]
    set_entry(history, entry, entry_of(history, entry) | DEAD)
    link = first_link(history, entry) if history.state[join, IS_ON] else NONE
    while link >= 0:
        index = link // width
        if table.links[index].queue != IN_DEAD_LIST and is_dead(table, index):
            remove_from_queue(table, index, policy)
            _append_dead(table, index)
        link = int(table.chains[index, link % width].link)


@inlined
def _release_chain(table: TupleTable, entry: int, policy: int) -> None:
    """Unlink the tuples of a key, and return dead ones to their queues."""
    history, width = table.history, table.chains.shape[1]
    link = first_link(history, entry)
    set_first_link(history, entry, NONE)
    while link >= 0:
        index = link // width
        chain = table.chains[index, link % width]
        chain.entry = NONE
        if table.links[index].queue == IN_DEAD_LIST:
            remove_from_queue(table, index, policy)
            enqueue(table, index, policy)
        link = int(chain.link)


@inlined
def _record_key_arrival(table: TupleTable, reader: int, code: np.uint64, policy: int) -> int:
    """Record that a key has arrived for a reader; return its entry."""
    history, join, slot = table.history, table.readers.join[reader], table.readers.slot[reader]
    entry = find_entry(history, join, code)
    if entry < 0:
        entry = entry_to_replace(history, join, code)
        _release_chain(table, entry, policy)
        start_entry(history, join, entry, code, slot)
        return entry
    bits = entry_of(history, entry)
    if not bits >> slot & 1:
        history.counts[join, PARTNERS] += 1.0
    else:
        history.counts[join, REPEATED] += 1.0
        if not bits & REPEATS:
            bits = (bits | REPEATS) & ~DEAD
            _release_chain(table, entry, policy)
    set_entry(history, entry, bits_after_arrival(history, join, bits, slot))
    return entry


@inlined
def record_arrival(table: TupleTable, index: int, local: int, code: np.uint64, policy: int) -> None:
    """Record that a tuple, which is in no queue, has arrived for a reader of its window, and link it to its key."""
    history, reader = table.history, table.readers.first[table.tuples[index].window] + local
    join, chain = table.readers.join[reader], table.chains[index, local]
    if history.sample_bits > 0 or len(table.readers.epoch) == 0:
        if join >= 0 and is_followed(history, code):
            _record_key_arrival(table, reader, code, policy)
        return
    chain.entry = NONE
    if join < 0:
        return
    entry = _record_key_arrival(table, reader, code, policy)
    if history.state[join, SINCE] == NEVER or entry_of(history, entry) & REPEATS:
        return
    chain.entry, chain.link = entry, first_link(history, entry)
    set_first_link(history, entry, index * table.chains.shape[1] + local)


@inlined
def mark_complete_keys(table: TupleTable, index: int, policy: int) -> None:
    """Mark the keys dead that a new tuple has completed."""
    readers, window = table.readers, table.tuples[index].window
    for reader in range(readers.first[window], readers.first[window + 1]):
        entry = int(table.chains[index, reader - readers.first[window]].entry)
        if entry >= 0:
            bits = entry_of(table.history, entry)
            if is_complete(bits, readers.inputs[readers.join[reader]]) and not bits & DEAD:
                _mark_dead(table, readers.join[reader], entry, policy)


@inlined
def record_leave(table: TupleTable, index: int, local: int, policy: int) -> None:
    """Record that a tuple leaves the window of a reader: its key is dead, unless the key repeats."""
    history, width, chain = table.history, table.chains.shape[1], table.chains[index, local]
    entry, own_link = int(chain.entry), index * width + local
    chain.entry = UNSEEN
    if entry < 0:
        return
    link = first_link(history, entry)
    if link == own_link:
        set_first_link(history, entry, int(chain.link))
    else:
        while table.chains[link // width, link % width].link != own_link:
            link = int(table.chains[link // width, link % width].link)
        table.chains[link // width, link % width].link = chain.link
    if not entry_of(history, entry) & DEAD:
        _mark_dead(table, table.readers.join[table.readers.first[table.tuples[index].window] + local], entry, policy)


@inlined
def dies_on_arrival(
    table: TupleTable, incoming: TupleBatch, arrival: int, policy: int, sample: KeySample, seed: np.uint64
) -> bool:
    """Whether the keys of a new tuple are dead for every reader that sees it; if so, record their arrival."""
    readers, history, window, is_seen = table.readers, table.history, incoming.window[arrival], False
    for is_recording in (False, True):
        for reader in range(readers.first[window], readers.first[window + 1]):
            code = incoming.codes[arrival, reader - readers.first[window]]
            if not incoming.seen[arrival] >> (reader - readers.first[window]) & 1:
                continue
            if sample.skips_others and spread(code, seed) >= sample.limit:
                continue
            if is_recording:
                _record_key_arrival(table, reader, code, policy)
                continue
            join = readers.join[reader]
            if join < 0 or not history.state[join, IS_ON]:
                return False
            entry = find_entry(history, join, code)
            if entry < 0 or not entry_of(history, entry) & DEAD or entry_of(history, entry) >> readers.slot[reader] & 1:
                return False
            is_seen = True
        if not is_seen:
            return False
    return True


@inlined
def _update_repeat_state(table: TupleTable, join: int, policy: int) -> None:
    """Decide whether keys repeat; dead keys are shed first only after a whole window without repeats."""
    history, now = table.history, table.history.state[join, NOW]
    partners, repeated = history.counts[join, PARTNERS], history.counts[join, REPEATED]
    if partners >= max(_MIN_PARTNERS, _MIN_PARTNERS_PER_REPEAT * repeated):
        history.state[join, SINCE] = min(history.state[join, SINCE], now)
        if now - history.state[join, SINCE] >= EPOCHS:
            history.state[join, IS_ON] = 1
        return
    history.state[join, SINCE], history.state[join, IS_ON] = NEVER, 0
    for pool in range(len(history.first_dead)):
        index = int(history.first_dead[pool])
        while index >= 0:
            after = int(table.links[index].after)
            if not is_dead(table, index):
                remove_from_queue(table, index, policy)
                enqueue(table, index, policy)
            index = after


@inlined
def advance_epochs(table: TupleTable, policy: int) -> None:
    """Advance the history of keys to the clock, after `leave_windows`."""
    history, readers, counters = table.history, table.readers, table.counters
    counters[EPOCH_END] = NEVER
    for join in range(len(readers.epoch)):
        now = counters[CLOCK] // readers.epoch[join]
        steps = now - history.state[join, NOW]
        if steps > 0:
            advance(history, join, now)
            for kind in (PARTNERS, REPEATED):
                history.counts[join, kind] *= _DECAY ** float(min(steps, 1 << 20))
            _update_repeat_state(table, join, policy)
        counters[EPOCH_END] = min(counters[EPOCH_END], (now + 1) * readers.epoch[join])
