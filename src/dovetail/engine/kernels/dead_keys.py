"""Dead keys: where a key occurs at most once in each input of a join, a tuple whose partner was shed or has expired is of no use.

A key dies when one of its tuples is shed or leaves its window, and when it has been seen in all inputs, for then its result has been
given. Its tuples leave their queues for the list of dead tuples, which are shed first, and tuples of a dead key are shed on arrival if
there is no room. A key that is seen twice in one input repeats: it comes back to life, and does not die again.

All of this happens while hardly any key repeats. Where keys do repeat, arrivals are counted and nothing else is done.
"""

from __future__ import annotations

import numpy as np

from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.key_history import (
    DEAD,
    EPOCHS,
    IS_ON,
    NOW,
    PARTNERS,
    REPEATED,
    REPEATS,
    SINCE,
    advance,
    arrived,
    entry_of,
    entry_to_replace,
    find_entry,
    first_link,
    is_complete,
    set_entry,
    set_first_link,
    start_entry,
)
from dovetail.engine.kernels.queues import dequeue, enqueue
from dovetail.engine.kernels.roster import CLOCK, EPOCH_END, IN_DEAD_LIST, NONE, UNSEEN, Incoming, KeySample, Roster

NEVER = (1 << 62) - 1
"""The epoch since which keys have not been repeating, if they are."""
_LEAST, _PER_REPEAT = 64, 64
"""Keys count as not repeating with so many partners, and so many partners for each repeat."""
_FADING = 63 / 64
"""With each epoch: so counts forget over four windows."""


@inlined
def is_dead(roster: Roster, place: int) -> bool:
    """Whether a tuple's key is dead in every use that sees the tuple."""
    uses, window, found = roster.uses, roster.held[place].window, False
    for use in range(uses.first[window], uses.first[window + 1]):
        entry = int(roster.marks[place, use - uses.first[window]].entry)
        if entry == UNSEEN:
            continue
        if entry == NONE or not roster.history.state[uses.join[use], IS_ON]:
            return False
        if not entry_of(roster.history, entry) & DEAD:
            return False
        found = True
    return found


@inlined
def _bury(roster: Roster, place: int) -> None:
    """Append a tuple that is in no queue to the dead ones."""
    held, history = roster.held, roster.history
    pool = roster.uses.pool[held[place].window]
    last = int(history.last[pool])
    held[place].queue, held[place].before, held[place].after = IN_DEAD_LIST, last, NONE
    history.last[pool] = place
    if last >= 0:
        held[last].after = place
    else:
        history.first[pool] = place


@inlined
def withdraw(roster: Roster, place: int, rank: int) -> None:
    """Take a tuple out of its queue, or from the dead ones."""
    held, history = roster.held, roster.history
    if held[place].queue != IN_DEAD_LIST:
        dequeue(roster, place, rank)
        return
    pool = roster.uses.pool[held[place].window]
    before, after = int(held[place].before), int(held[place].after)
    if before >= 0:
        held[before].after = after
    else:
        history.first[pool] = after
    if after >= 0:
        held[after].before = before
    else:
        history.last[pool] = before
    held[place].queue = NONE


@inlined
def settle(roster: Roster, place: int, rank: int) -> None:
    """Put a tuple that is in no queue where it belongs."""
    if is_dead(roster, place):
        _bury(roster, place)
    else:
        enqueue(roster, place, rank)


@inlined
def _die(roster: Roster, join: int, entry: int, rank: int) -> None:
    """Let a key die."""
    history, most = roster.history, roster.marks.shape[1]
    set_entry(history, entry, entry_of(history, entry) | DEAD)
    link = first_link(history, entry) if history.state[join, IS_ON] else NONE
    while link >= 0:
        place = link // most
        if roster.held[place].queue != IN_DEAD_LIST and is_dead(roster, place):
            withdraw(roster, place, rank)
            _bury(roster, place)
        link = int(roster.marks[place, link % most].link)


@inlined
def _unchain(roster: Roster, entry: int, rank: int) -> None:
    """Forget which tuples have a key; those that were dead come back to life."""
    history, most = roster.history, roster.marks.shape[1]
    link = first_link(history, entry)
    set_first_link(history, entry, NONE)
    while link >= 0:
        place = link // most
        mark = roster.marks[place, link % most]
        mark.entry = NONE
        if roster.held[place].queue == IN_DEAD_LIST:
            withdraw(roster, place, rank)
            enqueue(roster, place, rank)
        link = int(mark.link)


@inlined
def _note_arrival(roster: Roster, use: int, code: np.uint64, rank: int) -> int:
    """Note that a key has arrived in a use; return its entry."""
    history, join, slot = roster.history, roster.uses.join[use], roster.uses.slot[use]
    entry = find_entry(history, join, code)
    if entry < 0:
        entry = entry_to_replace(history, join, code)
        _unchain(roster, entry, rank)
        start_entry(history, join, entry, code, slot)
        return entry
    bits = entry_of(history, entry)
    if not bits >> slot & 1:
        history.counts[join, PARTNERS] += 1.0
    else:
        history.counts[join, REPEATED] += 1.0
        if not bits & REPEATS:
            bits = (bits | REPEATS) & ~DEAD
            _unchain(roster, entry, rank)
    set_entry(history, entry, arrived(history, join, bits, slot))
    return entry


@inlined
def remember(roster: Roster, place: int, local: int, code: np.uint64, rank: int) -> None:
    """Note that a tuple, which is in no queue, has arrived in a use of its window."""
    history, use = roster.history, roster.uses.first[roster.held[place].window] + local
    join, mark = roster.uses.join[use], roster.marks[place, local]
    mark.entry = NONE
    if join < 0:
        return
    entry = _note_arrival(roster, use, code, rank)
    if history.state[join, SINCE] == NEVER or entry_of(history, entry) & REPEATS:
        return
    mark.entry, mark.link = entry, first_link(history, entry)
    set_first_link(history, entry, place * roster.marks.shape[1] + local)


@inlined
def complete_keys(roster: Roster, place: int, rank: int) -> None:
    """Let the keys die that a tuple has completed by its arrival."""
    uses, window = roster.uses, roster.held[place].window
    for use in range(uses.first[window], uses.first[window + 1]):
        entry = int(roster.marks[place, use - uses.first[window]].entry)
        if entry >= 0:
            bits = entry_of(roster.history, entry)
            if is_complete(bits, uses.inputs[uses.join[use]]) and not bits & DEAD:
                _die(roster, uses.join[use], entry, rank)


@inlined
def forget(roster: Roster, place: int, local: int, rank: int) -> None:
    """Note that a tuple leaves a use of its window: its key dies, unless that repeats."""
    history, most, mark = roster.history, roster.marks.shape[1], roster.marks[place, local]
    entry, own = int(mark.entry), place * most + local
    mark.entry = UNSEEN
    if entry < 0:
        return
    link = first_link(history, entry)
    if link == own:
        set_first_link(history, entry, int(mark.link))
    else:
        while roster.marks[link // most, link % most].link != own:
            link = int(roster.marks[link // most, link % most].link)
        roster.marks[link // most, link % most].link = mark.link
    if not entry_of(history, entry) & DEAD:
        _die(roster, roster.uses.join[roster.uses.first[roster.held[place].window] + local], entry, rank)


@inlined
def dies_on_arrival(
    roster: Roster, incoming: Incoming, number: int, rank: int, sample: KeySample, seed: np.uint64
) -> bool:
    """Whether the keys of a tuple are dead in every use that sees it; if so, note that they have arrived."""
    uses, history, window, found = roster.uses, roster.history, incoming.window[number], False
    for noting in (False, True):
        for use in range(uses.first[window], uses.first[window + 1]):
            code = incoming.codes[number, use - uses.first[window]]
            if not incoming.seen[number] >> (use - uses.first[window]) & 1:
                continue
            if sample.alone and spread(code, seed) >= sample.limit:
                continue
            if noting:
                _note_arrival(roster, use, code, rank)
                continue
            join = uses.join[use]
            if join < 0 or not history.state[join, IS_ON]:
                return False
            entry = find_entry(history, join, code)
            if entry < 0 or not entry_of(history, entry) & DEAD or entry_of(history, entry) >> uses.slot[use] & 1:
                return False
            found = True
        if not found:
            return False
    return True


@inlined
def _judge(roster: Roster, join: int, rank: int) -> None:
    """Decide whether keys repeat; they must not have for a whole window."""
    history, now = roster.history, roster.history.state[join, NOW]
    partners, repeated = history.counts[join, PARTNERS], history.counts[join, REPEATED]
    if partners >= max(_LEAST, _PER_REPEAT * repeated):
        history.state[join, SINCE] = min(history.state[join, SINCE], now)
        if now - history.state[join, SINCE] >= EPOCHS:
            history.state[join, IS_ON] = 1
        return
    history.state[join, SINCE], history.state[join, IS_ON] = NEVER, 0
    for pool in range(len(history.first)):
        place = int(history.first[pool])
        while place >= 0:
            after = int(roster.held[place].after)
            if not is_dead(roster, place):
                withdraw(roster, place, rank)
                enqueue(roster, place, rank)
            place = after


@inlined
def advance_epochs(roster: Roster, rank: int) -> None:
    """Advance the history of keys to the clock, after all tuples have left the windows of uses that had to."""
    history, uses, at = roster.history, roster.uses, roster.at
    at[EPOCH_END] = NEVER
    for join in range(len(uses.epoch)):
        now = at[CLOCK] // uses.epoch[join]
        steps = now - history.state[join, NOW]
        if steps > 0:
            advance(history, join, now)
            for kind in (PARTNERS, REPEATED):
                history.counts[join, kind] *= _FADING ** float(min(steps, 1 << 20))
            _judge(roster, join, rank)
        at[EPOCH_END] = min(at[EPOCH_END], (now + 1) * uses.epoch[join])
