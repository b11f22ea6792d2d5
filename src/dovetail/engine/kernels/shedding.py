"""Advance a roster through event time: add tuples, expire them, and shed the least valuable ones."""

from __future__ import annotations

import numpy as np

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined, prefetch
from dovetail.engine.kernels.dead_keys import advance_epochs, complete_keys, dies_on_arrival, remember, settle
from dovetail.engine.kernels.index import spread
from dovetail.engine.kernels.key_history import SLOTS, bucket_of
from dovetail.engine.kernels.leaving import NOW, leave_windows, look_at, release_over, remove, wait
from dovetail.engine.kernels.queues import changed, enqueue, first_queue
from dovetail.engine.kernels.roster import (
    ARRIVAL_ORDER,
    CLOCK,
    EPOCH_END,
    FIFO,
    FREE_PLACE,
    FREQUENCY,
    IN_DEAD_LIST,
    LEAVING,
    NONE,
    RANDOM,
    SERIAL,
    SHEDS,
    UNSEEN,
    USED_PLACES,
    ExpiryDeadline,
    Incoming,
    KeySample,
    Roster,
    Shed,
    expect_entry,
    expect_key,
    expect_partners,
    expect_queues,
    find_key,
    serial_of,
    units_of,
    wrapped,
)

_LAST = (1 << 63) - 1
"""A serial number after all others."""
_FAR, _NEAR, _NEXT = 12, 6, 3
"""How many tuples ahead keys, entries of keys, and what those lead to are fetched."""


@inlined
def _any(number: int, count: int, seed: np.uint64) -> int:
    """Any of so many; another one for each number."""
    return int(((spread(np.uint64(number), seed) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@inlined
def first_to_go(roster: Roster, pool: int, rank: int, seed: np.uint64) -> int:
    """The place of the tuple that goes first: one that is only held for tuples that have not come, a dead one, or as the policy says.

    Of patterns that are worth the same the one with the oldest tuple goes, of keys the one that was found to be so first.
    """
    uses, ranks = roster.uses, roster.ranks
    oldest, stale, of_oldest, of_stale = NONE, NONE, _LAST, _LAST
    for window in range(len(uses.pool)):
        place = int(roster.oldest[window])
        if uses.pool[window] != pool or place < 0:
            continue
        serial = serial_of(roster, place)
        if serial < of_oldest:
            oldest, of_oldest = place, serial
        if serial < of_stale:
            over = True
            for use in range(uses.first[window], uses.first[window + 1]):
                over = over and serial <= roster.passed[use]
            if over:
                stale, of_stale = place, serial
    if stale >= 0:
        return stale
    if roster.history.first[pool] >= 0:
        return int(roster.history.first[pool])
    if rank == RANDOM:
        return int(ranks.members[ranks.start[pool] + _any(roster.at[SHEDS], ranks.size[pool], seed)])
    queue = first_queue(roster, pool, rank) if rank < RANDOM else NONE
    return int(ranks.queues[queue].first) if queue >= 0 else oldest


@inlined
def _credit(roster: Roster, place: int, use: int, rank: int) -> None:
    """Count the results that a new tuple completes, for all tuples that are part of them (procedure Join of section 3.2)."""
    held, uses, keys = roster.held, roster.uses, roster.keys
    key = int(roster.marks[place, use].key)
    of_all = uses.first[held[place].window] + use
    table, own = uses.table[of_all], uses.slot[of_all]
    made = 1.0
    for slot in range(uses.width[table]):
        if slot != own:
            made *= roster.slots[key, slot].tuples
    if made == 0.0:
        return
    roster.results[table] += made
    keys[key].results += made
    patterns = roster.given.shape[1]
    if patterns > 1:
        roster.given[of_all, int(roster.marks[place, use].pattern)] += made
        for slot in range(uses.width[table]):
            if slot != own:
                other = uses.of[table, slot]
                local = other - uses.first[uses.window[other]]
                each = made / roster.slots[key, slot].tuples
                partner = int(roster.slots[key, slot].first)
                while partner >= 0:
                    pattern = int(roster.marks[partner, local].pattern)
                    roster.given[other, pattern] += each
                    if rank == ARRIVAL_ORDER:
                        changed(roster, other << roster.ranks.bits | pattern, local, rank)
                    partner = int(roster.marks[partner, local].after)


@inlined
def _insert(roster: Roster, incoming: Incoming, number: int, rank: int, sample: KeySample, seed: np.uint64) -> None:
    """A tuple enters its window (procedure Insertion of section 3.2, parts b and c), and completes results."""
    held, uses, keys, at = roster.held, roster.uses, roster.keys, roster.at
    window = incoming.window[number]
    place = int(at[FREE_PLACE])
    if place < 0:
        place = int(at[USED_PLACES])
        at[USED_PLACES] += 1
    else:
        at[FREE_PLACE] = held[place].newer
    own = held[place]
    at[SERIAL] += 1
    own.window, own.row, own.ts, own.serial = window, incoming.row[number], incoming.ts[number], wrapped(at[SERIAL])
    older = roster.newest[window]
    own.older, own.newer, own.queue, own.before, own.after = older, NONE, NONE, NONE, NONE
    roster.newest[window] = place
    if older >= 0:
        held[older].newer = place
    else:
        roster.oldest[window] = place
    if len(roster.units) > 1:
        roster.units[place] = incoming.units[number]
    roster.alive[uses.pool[window]] += units_of(roster, place)
    for use in range(roster.marks.shape[1]):
        roster.marks[place, use].key, roster.marks[place, use].entry = NONE, UNSEEN
    for use in range(uses.first[window], uses.first[window + 1]):
        local = use - uses.first[window]
        if roster.inside[use] < 0:
            roster.inside[use] = place
            at[LEAVING] = min(at[LEAVING], held[place].ts + uses.span[use])
        table, code = uses.table[use], incoming.codes[number, local]
        if not incoming.seen[number] >> local & 1 or (sample.alone and spread(code, seed) >= sample.limit):
            continue
        remember(roster, place, local, code, rank)
        if table < 0:
            continue
        key, slot = find_key(roster, table, code), uses.slot[use]
        inside, mark = roster.slots[key, slot], roster.marks[place, local]
        inside.tuples += 1
        keys[key].total += 1
        after = inside.first
        mark.key, mark.before, mark.after = key, NONE, after
        if after >= 0:
            roster.marks[after, local].before = place
        inside.first = place
        if roster.given.shape[1] > 1:
            pattern = 0
            for other in range(uses.width[table]):
                pattern |= int(roster.slots[key, other].tuples > 0) << other
            mark.pattern = pattern
            roster.seen[use, pattern] += 1.0
        _credit(roster, place, local, rank)
        if rank == ARRIVAL_ORDER:
            changed(roster, use << roster.ranks.bits | mark.pattern, local, rank)
    complete_keys(roster, place, rank)
    if own.queue != IN_DEAD_LIST:
        settle(roster, place, rank)


@inlined
def _shed(roster: Roster, watch: ExpiryDeadline, place: int, rank: int) -> None:
    """Let go of a tuple; if an older one comes to be a window's oldest, that may be over."""
    window = int(roster.held[place].window)
    remove(roster, place, rank)
    oldest = int(roster.oldest[window])
    if oldest >= 0 and roster.held[oldest].ts < roster.held[place].ts:
        look_at(watch, window)


@inlined
def _expect(roster: Roster, incoming: Incoming, number: int) -> None:
    """Let memory bring what tuples need that come soon: waiting for it would take most of the time."""
    uses, last = roster.uses, len(incoming.ts) - 1
    for ahead in (_FAR, _NEAR, _NEXT):
        window = incoming.window[min(number + ahead, last)]
        use = uses.first[window]
        if use == uses.first[window + 1]:
            continue
        code = incoming.codes[min(number + ahead, last), 0]
        if ahead == _FAR and uses.join[use] >= 0:
            prefetch(roster.history.lines, bucket_of(roster.history, uses.join[use], code))
        if uses.table[use] >= 0:
            if ahead == _FAR:
                expect_key(roster, uses.table[use], code)
            elif ahead == _NEAR:
                expect_entry(roster, uses.table[use], code)
            else:
                expect_partners(roster, uses.table[use], uses.slot[use], code)


@inlined
def _behind(roster: Roster, place: int, rank: int) -> int:
    """The tuple that goes after another, if nothing changes; `NONE` if that is not known."""
    if place < 0:
        return NONE
    own = roster.held[place]
    if rank == FIFO and own.queue != IN_DEAD_LIST:
        return int(own.newer)
    if own.after >= 0 or rank == ARRIVAL_ORDER or own.queue < 0:
        return int(own.after)
    queues = roster.ranks.queues
    queue = int(queues[own.queue].after)
    if queue < 0:
        return NONE
    if queues[queue].after >= 0:
        prefetch(queues, queues[queue].after)
    return int(queues[queue].first)


@inlined
def _expect_victims(roster: Roster, place: int, pool: int, rank: int, seed: np.uint64) -> None:
    """The same for tuples that are shed soon: those behind one that is shed now, or, where any may go, those whose turn it will be."""
    held, keys = roster.held, roster.keys
    if rank == RANDOM and held[place].queue != IN_DEAD_LIST:
        members, first, size, sheds = (
            roster.ranks.members,
            roster.ranks.start[pool],
            roster.ranks.size[pool],
            roster.at[SHEDS],
        )
        prefetch(members, first + _any(sheds + 4, size, seed))
        prefetch(held, int(members[first + _any(sheds + 3, size, seed)]))
        following = int(members[first + _any(sheds + 2, size, seed)])
        then = int(members[first + _any(sheds + 1, size, seed)])
    else:
        then = _behind(roster, place, rank)
        following = _behind(roster, then, rank)
        last = _behind(roster, following, rank)
        if last >= 0:
            prefetch(held, last)
    if following >= 0 and roster.marks[following, 0].key >= 0:
        prefetch(keys, roster.marks[following, 0].key)
    if then >= 0:
        if roster.marks[then, 0].entry >= 0:
            prefetch(roster.history.lines, roster.marks[then, 0].entry // SLOTS)
        if held[then].older >= 0:
            prefetch(held, held[then].older)
        if held[then].newer >= 0:
            prefetch(held, held[then].newer)
        key = int(roster.marks[then, 0].key)
        if key >= 0:
            expect_key(roster, keys[key].table, keys[key].code)
            if rank == FREQUENCY:
                expect_queues(roster, key)


@borrowing
def take_in(
    roster: Roster,
    incoming: Incoming,
    least: UInt64Array,
    moving: Int64Array,
    rank: int,
    sample: KeySample,
    seed: np.uint64,
    watch: ExpiryDeadline,
    shed: Shed,
) -> tuple[int, int]:
    """Add tuples in order; return how many were added and how many were shed, which are written to `shed`.

    `least`: from `least_hashes`, if only sampled tuples are added. `moving`: by window, whether its tuples advance its stream's time;
    otherwise `heads` is the time. If `shed` has no room, nothing can be shed, and tuples are added only while the roster has room.
    """
    uses, at, count = roster.uses, roster.at, 0
    for window in range(len(uses.pool)):
        look_at(watch, window)
    at[LEAVING] = NOW
    for number in range(len(incoming.ts)):
        window, ts = incoming.window[number], incoming.ts[number]
        if moving[window]:
            roster.heads[window] = max(roster.heads[window], ts)
        at[CLOCK] = max(at[CLOCK], ts)
        # At every tuple, and not only when there is no room: what is let go, and in which order, must not depend on batches.
        if roster.heads[window] > watch.alarm[window]:
            release_over(roster, watch, rank)
        if incoming.row[number] < 0 or (sample.alone and least[number] >= sample.limit):
            continue
        if not sample.alone:
            _expect(roster, incoming, number)
        if at[CLOCK] > at[LEAVING]:
            leave_windows(roster, rank)
        if at[CLOCK] >= at[EPOCH_END]:
            advance_epochs(roster, rank)
        pool, units = uses.pool[window], incoming.units[number]
        if roster.alive[pool] + units > uses.cap[pool] and count < len(shed.row):
            fits = units <= uses.cap[pool]
            if not fits or dies_on_arrival(roster, incoming, number, rank, sample, seed):
                shed.window[count], shed.row[count] = window, incoming.row[number]
                shed.end[count] = (at[CLOCK] if fits else ts) - 1  # what never fits is in no result
                count += 1
                at[SHEDS] += 1
                continue
        while roster.alive[pool] + units > uses.cap[pool]:
            if count == len(shed.row):
                return number, count
            place = first_to_go(roster, pool, rank, seed)
            shed.window[count] = roster.held[place].window
            shed.row[count] = roster.held[place].row
            shed.end[count] = at[CLOCK] - 1
            count += 1
            at[SHEDS] += 1
            _expect_victims(roster, place, pool, rank, seed)
            _shed(roster, watch, place, rank)
        empty = roster.oldest[window] < 0
        _insert(roster, incoming, number, rank, sample, seed)
        if empty:
            wait(roster, watch, window)
    return len(incoming.ts), count


@borrowing
def enqueue_all(roster: Roster, rank: int) -> None:
    """Rank all tuples of a roster that has no queues yet."""
    for window in range(len(roster.uses.pool)):
        place = int(roster.oldest[window])
        while place >= 0:
            if roster.held[place].queue != IN_DEAD_LIST:
                enqueue(roster, place, rank)
            place = int(roster.held[place].newer)


@borrowing
def number_anew(roster: Roster, window: int, first: int, alive: BoolArray, numbers: Int64Array, rank: int) -> None:
    """Remove a window's tuples that are not `alive`, and renumber the rest; new `numbers` exceed all old ones.

    Both arrays begin with row `first`.
    """
    held, dead = roster.held, False
    for place in range(roster.at[USED_PLACES]):  # one after another in memory, which a walk along the window is not
        if held[place].row >= 0 and held[place].window == window:
            if alive[held[place].row - first]:
                held[place].row = numbers[held[place].row - first]
            else:
                dead = True
    place = int(roster.oldest[window]) if dead else NONE
    while place >= 0:
        newer = int(held[place].newer)
        if held[place].row < first + len(alive):
            remove(roster, place, rank)
        place = newer


@borrowing
def list_rows(roster: Roster, window: int, rows: Int64Array) -> int:
    """Write the row numbers of a window's tuples, at most as many as `rows` holds; return their number."""
    held, count = roster.held, 0
    for place in range(roster.at[USED_PLACES]):
        if held[place].row >= 0 and held[place].window == window and count < len(rows):
            rows[count] = held[place].row
            count += 1
    return count


@borrowing
def rows_in_order(roster: Roster) -> bool:
    """Whether row numbers ascend in order of arrival in every window; those of initial tuples need not."""
    held = roster.held
    for window in range(len(roster.oldest)):
        place = int(roster.oldest[window])
        while place >= 0:
            newer = int(held[place].newer)
            if newer >= 0 and held[newer].row < held[place].row:
                return False
            place = newer
    return True
