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

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import borrowing, inlined
from dovetail.engine.kernels.memory import peek, poke
from dovetail.engine.kernels.tree_arrays import (
    BASE,
    BOTTOM,
    CHILD,
    DEPTH,
    EXITS,
    FLAGS,
    IN_WORD,
    LEAVING,
    LEVEL,
    LOGGED,
    PHASE,
    ROW,
    SIBLING,
    SPANS,
    TARGET,
    TOP,
    TS,
    VIEWS,
    Accounts,
    Counters,
    Targets,
    Tree,
    Walk,
)
from dovetail.engine.kernels.tree_stages import extend, extend_in_word, look_up, tally


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
                look_up(tree, targets, counters, place, node)
            if nodes[node, IN_WORD]:
                extend_in_word(tree, targets, counters, place, node, first)
            else:
                extend(tree, targets, counters, place, node, first)
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
    if place.at[depth] >= place.picked[depth]:
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
    tally(tree, counters, out, written, 0)
    return written, row


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
