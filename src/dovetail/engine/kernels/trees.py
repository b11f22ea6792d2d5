"""A tree of probes in one call: the new tuples of a stream go through the stages of all paths that begin with them.

A node is a stage that several paths may have in common; its partial matches are those of its parent, longer by one row. A partial
match is one row of an int64 matrix:

    a row number for each stage so far | low | bits of the paths that it still serves | high for each class of spans

`low` and `high` are those of `extend`: the latest event time, and the last instant at which all tuples are in their windows. Paths
with other windows have another `high`, so there is one for each *class* of paths that had the same spans so far. A path's bit is
cleared when a row is not in its view or a class's `low <= high` becomes false; a partial match without bits ends. Where a path leaves
the tree, at its end or before a stage that is not for trees, the matches with its bit go to a log, in the join's own columns.

The tree is walked depth first, in chunks of as many partial matches as a stage's matrix holds. When the log is full the walk stops,
and goes on where it was. Windows and codes are known by their addresses, for there are as many as the plan has: see `memory`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import Float64Array, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import borrowing, inlined
from dovetail.engine.kernels.index import GOLDEN, mixed
from dovetail.engine.kernels.memory import peek, peek_code, poke

DEPTH, CHILD, SIBLING, TARGET, OLD, WIDEST, WORD, WORD_END = range(8)
"""Columns of `Tree.nodes`: its stage, its first child and next sibling (-1: none), its window, whether it meets old rows only, the
longest span of its paths, and the words that hold their bits."""
PARTS, VIEWS, SPANS, SLOTS, EXITS = range(8, 18, 2)
"""Columns of `Tree.nodes`: where its rows in other arrays begin; where they end follows."""
BASE, TOP, BOTTOM, TS, PREFIX_MAX, CODE, HEADS, LINKS, SHIFT, FLAGS = range(10)
"""Columns of `Targets.windows`, the last for the first word of flags."""
PHASE, LEVEL, ROW, LOGGED, LEAVING, ADDRESS = range(6)
"""Entries of `Walk.state`: whether matches are leaving, at which depth, the next new tuple, rows in the log, the next that leaves,
and the address of `Walk.stages`."""


class Tree(NamedTuple):
    """What is probed, and for whom. All arrays are of int64."""

    nodes: Int64Array
    """A row per node, parents before children; node 0 is the new tuples."""
    masks: Int64Array
    """Per node, the bits of its paths."""
    parts: Int64Array
    """Per part of a node's key: the stage whose row has the code, and the codes (of `Targets.codes`)."""
    views: Int64Array
    """Per view at a node: its flag's word, and bit."""
    view_masks: Int64Array
    """The bits of its paths."""
    spans: Int64Array
    """Per class at a node: its class at the parent, and its window's microseconds."""
    span_masks: Int64Array
    slots: Int64Array
    """Per group of paths at a node that have had the same views and spans: a bit."""
    exits: Int64Array
    """Per path that leaves at a node: the path, and its bit."""
    paths: Int64Array
    """Per path: the aliases of its join, and its class where it leaves."""
    places: Int64Array
    """Per path and alias of its join: the stage, or -1 while it is not joined."""


class Targets(NamedTuple):
    """Where rows are."""

    windows: Int64Array
    """Per window and key, as the columns above say."""
    codes: Int64Array
    """Per array of codes: its address, and the row number of its first entry."""


class Counters(NamedTuple):
    """What was counted so far."""

    made: Int64Array
    """Per slot: partial matches."""
    came: Int64Array
    """Per node: partial matches that were extended."""
    looked: Int64Array
    """Per node: rows that were looked at."""


class Accounts(NamedTuple):
    """What each path would have done by itself, and what it took: filled after each walk, per slot but for the last three."""

    parents: Int64Array
    """The slot of the same paths at the parent; the root's slots have their own."""
    nodes: Int64Array
    paths: Int64Array
    """How many paths it is of."""
    noted: Int64Array
    """What had been made before."""
    offered: Int64Array
    """Rows that windows held for all that came, together."""
    looked: Float64Array
    """Rows that were looked at for what came."""
    seconds: Float64Array
    """Per path of the slot: its part of the time."""
    came: Int64Array
    """Per node, what had come before."""
    rows: Int64Array
    """Per node, what had been looked at before."""
    shares: Float64Array
    """Per node: room for sums."""


class Walk(NamedTuple):
    """Where a walk is."""

    stages: Int64Array
    """Per depth a matrix of partial matches."""
    counts: Int64Array
    """Per depth: how many there are."""
    nodes: Int64Array
    """Per depth: the node."""
    at: Int64Array
    """Per depth: the partial match of the parent that is extended next."""
    cursors: Int64Array
    """Per depth: the row that it is extended by next; -1: the first."""
    wanted: UInt64Array
    """Per depth, for each partial match of the parent: the code that is looked for."""
    rows: Int64Array
    """The same: the newest row of its chain."""
    state: Int64Array
    log: Int64Array
    """Matches that have left the tree: a row number per alias, low, high."""
    paths: Int64Array
    """The path of each."""


@borrowing
def walk(tree: Tree, targets: Targets, counters: Counters, place: Walk, first: int, stop: int) -> bool:
    """Take the new tuples `first` to `stop` through a tree; False when the log is full: call again when it was emptied."""
    nodes, state = tree.nodes, place.state
    while True:
        depth = state[LEVEL]
        if depth == 0:
            if state[ROW] >= stop:
                return True
            place.counts[0], state[ROW] = _enter(tree, targets, counters, place.stages[0], state[ROW], stop)
            _descend(place, 0, nodes[0, CHILD])
            continue
        node = place.nodes[depth]
        if node < 0:
            state[LEVEL] = depth - 1
            if depth > 1:
                _next(tree, place, depth - 1)
            continue
        if state[PHASE] == 0:
            if place.at[depth] == 0 and place.cursors[depth] < 0:
                _look_up(tree, targets, counters, place, node)
            _extend(tree, targets, counters, place, node, first)
            state[PHASE] = 1
            state[LEAVING] = 0
        if not _leave(tree, place, node):
            return False
        state[PHASE] = 0
        if place.counts[depth] > 0 and nodes[node, CHILD] >= 0:
            _descend(place, depth, nodes[node, CHILD])
        else:
            _next(tree, place, depth)


@inlined
def _descend(place: Walk, depth: int, child: int) -> None:
    """Go on with the first child."""
    place.nodes[depth + 1] = child
    place.at[depth + 1] = 0
    place.cursors[depth + 1] = -1
    place.state[LEVEL] = depth + 1


@inlined
def _next(tree: Tree, place: Walk, depth: int) -> None:
    """Go on with the rest of the parent's partial matches, or with the next sibling."""
    if place.at[depth] >= place.counts[depth - 1]:
        place.nodes[depth] = tree.nodes[place.nodes[depth], SIBLING]
        place.at[depth] = 0
        place.cursors[depth] = -1


@inlined
def _enter(
    tree: Tree, targets: Targets, counters: Counters, out: Int64Array, row: int, stop: int
) -> tuple[int, int]:  # fmt: skip
    """Write new tuples as partial matches; return how many, and the tuple to go on with."""
    nodes, window = tree.nodes, targets.windows[0]
    words = tree.masks.shape[1]
    low = tree.places.shape[1]
    high = low + 1 + words
    written = 0
    while row < stop and written < out.shape[0]:
        place = row - window[BASE]
        t = peek(window[TS], place)
        for w in range(words):
            out[written, low + 1 + w] = tree.masks[0, w]
        for v in range(nodes[0, VIEWS], nodes[0, VIEWS + 1]):
            if (peek(window[FLAGS + tree.views[v, 0]], place) >> tree.views[v, 1]) & 1 == 0:
                for w in range(words):
                    out[written, low + 1 + w] &= ~tree.view_masks[v, w]
        begin = nodes[0, SPANS]
        for s in range(begin, nodes[0, SPANS + 1]):
            out[written, high + s - begin] = t + tree.spans[s, 1]
        alive = 0
        for w in range(words):
            alive |= out[written, low + 1 + w]
        if alive != 0:
            out[written, 0] = row
            out[written, low] = t
            written += 1
        row += 1
    counters.came[0] += written
    _count(tree, counters, out, written, 0)
    return written, row


@inlined
def _look_up(tree: Tree, targets: Targets, counters: Counters, place: Walk, node: int) -> None:
    """Find for each of the parent's partial matches the wanted code and the newest row of its chain, -1 if it serves nobody here.

    Apart from walking the chains: what one match waits for from memory does not keep the next one waiting.
    """
    nodes, parts = tree.nodes, tree.parts
    depth = nodes[node, DEPTH]
    window = targets.windows[nodes[node, TARGET]]
    heads, shift = window[HEADS], np.uint64(window[SHIFT])
    first_word, end_word = nodes[node, WORD], nodes[node, WORD_END]
    first_part, end_part = nodes[node, PARTS], nodes[node, PARTS + 1]
    wide = place.stages.shape[2]
    before = place.state[ADDRESS] + 8 * (depth - 1) * place.stages.shape[1] * wide
    bits = tree.places.shape[1] + 1
    of, name = parts[first_part, 0], parts[first_part, 1]
    codes, base = targets.codes[name, 0], targets.codes[name, 1]
    came = 0
    for k in range(place.counts[depth - 1]):
        partial = before + 8 * k * wide
        alive = 0
        for w in range(first_word, end_word):
            alive |= peek(partial, bits + w) & tree.masks[node, w]
        row = -1
        if alive != 0:
            came += 1
            wanted = peek_code(codes, peek(partial, of) - base)
            for p in range(first_part + 1, end_part):
                source = parts[p, 1]
                part = peek_code(targets.codes[source, 0], peek(partial, parts[p, 0]) - targets.codes[source, 1])
                wanted = mixed(wanted, part)
            row = peek(heads, np.int64((wanted * GOLDEN) >> shift))
            place.wanted[depth, k] = wanted
        place.rows[depth, k] = row
    counters.came[node] += came


@inlined
def _extend(tree: Tree, targets: Targets, counters: Counters, place: Walk, node: int, first: int) -> None:
    """Extend the parent's partial matches by the rows of a node's window whose code is the wanted one, as far as there is room."""
    nodes = tree.nodes
    depth = nodes[node, DEPTH]
    capacity, wide = place.stages.shape[1], place.stages.shape[2]
    before = place.state[ADDRESS] + 8 * (depth - 1) * capacity * wide
    after = before + 8 * capacity * wide
    count, k = place.counts[depth - 1], place.at[depth]
    window = targets.windows[nodes[node, TARGET]]
    base, ts, code, links, prefix_max = window[BASE], window[TS], window[CODE], window[LINKS], window[PREFIX_MAX]
    top = first if nodes[node, OLD] else window[TOP]
    bottom, widest = window[BOTTOM], nodes[node, WIDEST]
    low_column = tree.places.shape[1]
    row = place.cursors[depth]
    if row < 0:
        row = place.rows[depth, k]
    written = 0
    looked = 0
    while k < count:
        wanted = place.wanted[depth, k]
        partial = before + 8 * k * wide
        low = peek(partial, low_column)
        full = False
        while row >= bottom:
            at = row - base
            if row < top:
                t = peek(ts, at)
                matched = False
                if (peek_code(code, at) == wanted) & (t + widest >= low):
                    if written == capacity:
                        full = True
                        break
                    matched = _serves(tree, window, node, partial, at, t, after + 8 * written * wide)
                looked += 1
                if matched:
                    out = after + 8 * written * wide
                    for column in range(depth):
                        poke(out, column, peek(partial, column))
                    poke(out, depth, row)
                    poke(out, low_column, max(low, t))
                    written += 1
                elif peek(prefix_max, at) + widest < low:
                    break
            row = peek(links, at)
        if full:
            break
        k += 1
        row = place.rows[depth, k] if k < count else -1
    place.at[depth] = k
    place.cursors[depth] = row
    place.counts[depth] = written
    counters.looked[node] += looked
    _count(tree, counters, place.stages[depth], written, node)


@inlined
def _serves(tree: Tree, window: Int64Array, node: int, partial: int, place: int, t: int, out: int) -> bool:
    """Write the bits of the paths that a partial match still serves with a row, and the highs; say whether there are any."""
    nodes, low = tree.nodes, tree.places.shape[1]
    begin, end = nodes[node, WORD], nodes[node, WORD_END]
    bits = low + 1
    high = bits + tree.masks.shape[1]
    first_class, end_class = nodes[node, SPANS], nodes[node, SPANS + 1]
    if end - begin == 1:
        alive = peek(partial, bits + begin) & tree.masks[node, begin]
        for v in range(nodes[node, VIEWS], nodes[node, VIEWS + 1]):
            if (peek(window[FLAGS + tree.views[v, 0]], place) >> tree.views[v, 1]) & 1 == 0:
                alive &= ~tree.view_masks[v, begin]
        for s in range(first_class, end_class):
            ends = t + tree.spans[s, 1]
            before = peek(partial, high + tree.spans[s, 0])
            if (ends < peek(partial, low)) | (t > before):
                alive &= ~tree.span_masks[s, begin]
            poke(out, high + s - first_class, min(before, ends))
        poke(out, bits + begin, alive)
        return bool(alive != 0)
    for w in range(begin, end):
        poke(out, bits + w, peek(partial, bits + w) & tree.masks[node, w])
    for v in range(nodes[node, VIEWS], nodes[node, VIEWS + 1]):
        if (peek(window[FLAGS + tree.views[v, 0]], place) >> tree.views[v, 1]) & 1 == 0:
            for w in range(begin, end):
                poke(out, bits + w, peek(out, bits + w) & ~tree.view_masks[v, w])
    for s in range(first_class, end_class):
        ends = t + tree.spans[s, 1]
        before = peek(partial, high + tree.spans[s, 0])
        if (ends < peek(partial, low)) | (t > before):
            for w in range(begin, end):
                poke(out, bits + w, peek(out, bits + w) & ~tree.span_masks[s, w])
        poke(out, high + s - first_class, min(before, ends))
    alive = 0
    for w in range(begin, end):
        alive |= peek(out, bits + w)
    return bool(alive != 0)


@inlined
def _count(tree: Tree, counters: Counters, out: Int64Array, written: int, node: int) -> None:
    """Count for each group of paths the partial matches that serve it."""
    begin, end = tree.nodes[node, SLOTS], tree.nodes[node, SLOTS + 1]
    if end - begin == 1:
        counters.made[begin] += written
        return
    bits = tree.places.shape[1] + 1
    for slot in range(begin, end):
        column, bit = bits + (tree.slots[slot] >> 6), tree.slots[slot] & 63
        made = 0
        for k in range(written):
            made += (out[k, column] >> bit) & 1
        counters.made[slot] += made


@inlined
def _leave(tree: Tree, place: Walk, node: int) -> bool:
    """Write the matches of paths that leave at a node to the log; False when there is no room for all of them."""
    begin, end = tree.nodes[node, EXITS], tree.nodes[node, EXITS + 1]
    if begin == end:
        return True
    depth, state = tree.nodes[node, DEPTH], place.state
    stage, log = place.stages[depth], place.log
    low = tree.places.shape[1]
    high = low + 1 + tree.masks.shape[1]
    logged = state[LOGGED]
    for k in range(state[LEAVING], place.counts[depth]):
        if logged + end - begin > log.shape[0]:
            state[LEAVING] = k
            state[LOGGED] = logged
            return False
        for e in range(begin, end):
            path = tree.exits[e, 0]
            if (stage[k, low + 1 + (tree.exits[e, 1] >> 6)] >> (tree.exits[e, 1] & 63)) & 1:
                width = tree.paths[path, 0]
                for alias in range(width):
                    stage_of = tree.places[path, alias]
                    if stage_of >= 0:
                        log[logged, alias] = stage[k, stage_of]
                log[logged, width] = stage[k, low]
                log[logged, width + 1] = stage[k, high + tree.paths[path, 1]]
                place.paths[logged] = path
                logged += 1
    state[LOGGED] = logged
    return True


@borrowing
def hand_over(
    log: Int64Array, paths: Int64Array, count: int, takers: Int64Array, widths: Int64Array,
    counts: Int64Array, capacities: Int64Array, addresses: Int64Array,
) -> None:  # fmt: skip
    """Add matches of a log to those of their joins; paths whose taker is negative are left out, and there is room for the others."""
    for k in range(count):
        taker = takers[paths[k]]
        if taker >= 0:
            at = counts[taker]
            for alias in range(widths[paths[k]]):
                poke(addresses[taker], alias * capacities[taker] + at, log[k, alias])
            counts[taker] = at + 1


@borrowing
def account(tree: Tree, targets: Targets, counters: Counters, accounts: Accounts, seconds: float) -> None:
    """Divide what a walk has done, and the `seconds` that it took, among the paths.

    What came for a path is what its group made at the parent. Rows looked at are divided as if every partial match of a node had
    looked at as many; a node's time goes by what came and was looked at, and within the node by what came for each path.
    """
    made, shares = counters.made, accounts.shares
    whole = 0.0
    for node in range(len(shares)):
        shares[node] = 0.0
        whole += _work(counters, accounts, node)
    for slot in range(len(made)):
        shares[accounts.nodes[slot]] += _arrived(made, accounts, slot) * accounts.paths[slot]
    for slot in range(len(made)):
        node, arrived = accounts.nodes[slot], _arrived(made, accounts, slot)
        if arrived > 0:
            window = targets.windows[tree.nodes[node, TARGET]]
            accounts.offered[slot] += arrived * (window[TOP] - window[BOTTOM])
            came = counters.came[node] - accounts.came[node]
            accounts.looked[slot] += (counters.looked[node] - accounts.rows[node]) * (arrived / max(came, 1))
            accounts.seconds[slot] += seconds * _work(counters, accounts, node) / whole * arrived / shares[node]
    for slot in range(len(made)):
        accounts.noted[slot] = made[slot]
    for node in range(len(shares)):
        accounts.came[node], accounts.rows[node] = counters.came[node], counters.looked[node]


@inlined
def _arrived(made: Int64Array, accounts: Accounts, slot: int) -> int:
    """What came to a slot in the last walk."""
    parent = accounts.parents[slot]
    return int(made[parent] - accounts.noted[parent])


@inlined
def _work(counters: Counters, accounts: Accounts, node: int) -> float:
    """What a node did in the last walk: partial matches that came, and rows looked at."""
    return float(counters.came[node] - accounts.came[node] + counters.looked[node] - accounts.rows[node])
