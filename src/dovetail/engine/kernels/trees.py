"""Run a probe tree: the new tuples of a stream pass the stages of all its paths in one call.

A node is a stage that several paths may share; its partial matches are those of its parent, extended by one row. A partial match is
one row of an int64 matrix:

    a row number for each stage so far | low | bits of the paths that it still serves | high for each class of spans

`low` and `high` are those of `extend`: the latest event time, and the last instant at which all tuples are in their windows. Paths
with different windows have different highs, so there is one for each *class* of paths with equal spans so far. A path's bit is
cleared when a row is not in its view or its class violates `low <= high`; a partial match without bits is dropped. Where a path exits
the tree, at its end or before a stage that trees do not support, the matches with its bit go to a log, in the join's own columns.

The traversal is depth first, in chunks of as many partial matches as a stage's matrix holds. It pauses when the log is full and
resumes in the next call. Windows and codes are passed by address, because a plan has any number of them: see `memory`.
"""

from __future__ import annotations

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import borrowing, inlined
from dovetail.engine.kernels.memory import peek, poke
from dovetail.engine.kernels.tree_arrays import (
    BASE,
    BOTTOM,
    CHILD,
    CURRENT_DEPTH,
    DEPTH,
    EXITS,
    FLAGS,
    LOGGED,
    NEXT_EXIT,
    ONE_WORD,
    PHASE,
    ROW,
    SIBLING,
    SPANS,
    TARGET,
    TOP,
    TS,
    VIEWS,
    Attribution,
    Counters,
    Targets,
    Traversal,
    Tree,
)
from dovetail.engine.kernels.tree_stages import extend, extend_in_one_word, find_chains, tally


@borrowing
def traverse(tree: Tree, targets: Targets, counters: Counters, traversal: Traversal, first: int, stop: int) -> bool:
    """Run new tuples `first` to `stop` through a tree; return False if the log must be emptied first."""
    nodes, state = tree.nodes, traversal.state
    while True:
        depth = state[CURRENT_DEPTH]
        if depth == 0:
            if state[ROW] >= stop:
                return True
            traversal.counts[0], state[ROW] = _load_new_tuples(
                tree, targets, counters, traversal.stages[0], state[ROW], stop
            )
            _descend(traversal, 0, nodes[0, CHILD])
            continue
        node = traversal.nodes[depth]
        if node < 0:
            state[CURRENT_DEPTH] = depth - 1
            if depth > 1:
                _advance(tree, traversal, depth - 1)
            continue
        if state[PHASE] == 0:
            if traversal.next_selected[depth] == 0 and traversal.cursors[depth] < 0:
                find_chains(tree, targets, counters, traversal, node)
            if nodes[node, ONE_WORD]:
                extend_in_one_word(tree, targets, counters, traversal, node, first)
            else:
                extend(tree, targets, counters, traversal, node, first)
            state[PHASE] = 1
            state[NEXT_EXIT] = 0
        if not _log_exits(tree, traversal, node):
            return False
        state[PHASE] = 0
        if traversal.counts[depth] > 0 and nodes[node, CHILD] >= 0:
            _descend(traversal, depth, nodes[node, CHILD])
        else:
            _advance(tree, traversal, depth)


@inlined
def _descend(traversal: Traversal, depth: int, child: int) -> None:
    """Continue with the first child."""
    traversal.nodes[depth + 1] = child
    traversal.next_selected[depth + 1] = 0
    traversal.cursors[depth + 1] = -1
    traversal.state[CURRENT_DEPTH] = depth + 1


@inlined
def _advance(tree: Tree, traversal: Traversal, depth: int) -> None:
    """Continue with the rest of the parent's partial matches, or with the next sibling."""
    if traversal.next_selected[depth] >= traversal.selected_counts[depth]:
        traversal.nodes[depth] = tree.nodes[traversal.nodes[depth], SIBLING]
        traversal.next_selected[depth] = 0
        traversal.cursors[depth] = -1


@inlined
def _load_new_tuples(
    tree: Tree, targets: Targets, counters: Counters, out: Int64Array, row: int, stop: int
) -> tuple[int, int]:  # fmt: skip
    """Write new tuples as partial matches; return their number, and the row to continue with."""
    nodes, window = tree.nodes, targets.windows[0]
    words = tree.masks.shape[1]
    low = tree.alias_stages.shape[1]
    high = low + 1 + words
    written = 0
    while row < stop and written < out.shape[0]:
        index = row - window[BASE]
        t = peek(window[TS], index)
        for w in range(words):
            out[written, low + 1 + w] = tree.masks[0, w]
        for v in range(nodes[0, VIEWS], nodes[0, VIEWS + 1]):
            if (peek(window[FLAGS + tree.views[v, 0]], index) >> tree.views[v, 1]) & 1 == 0:
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
    counters.probes[0] += written
    tally(tree, counters, out, written, 0)
    return written, row


@inlined
def _log_exits(tree: Tree, traversal: Traversal, node: int) -> bool:
    """Log the matches of paths that exit at a node; return False if the log has no room for all of them."""
    begin, end = tree.nodes[node, EXITS], tree.nodes[node, EXITS + 1]
    if begin == end:
        return True
    depth, state = tree.nodes[node, DEPTH], traversal.state
    stage, log = traversal.stages[depth], traversal.log
    low = tree.alias_stages.shape[1]
    high = low + 1 + tree.masks.shape[1]
    logged = state[LOGGED]
    for k in range(state[NEXT_EXIT], traversal.counts[depth]):
        if logged + end - begin > log.shape[0]:
            state[NEXT_EXIT] = k
            state[LOGGED] = logged
            return False
        for e in range(begin, end):
            path = tree.exits[e, 0]
            if (stage[k, low + 1 + (tree.exits[e, 1] >> 6)] >> (tree.exits[e, 1] & 63)) & 1:
                width = tree.paths[path, 0]
                for alias in range(width):
                    stage_of = tree.alias_stages[path, alias]
                    if stage_of >= 0:
                        log[logged, alias] = stage[k, stage_of]
                log[logged, width] = stage[k, low]
                log[logged, width + 1] = stage[k, high + tree.paths[path, 1]]
                traversal.log_paths[logged] = path
                logged += 1
    state[LOGGED] = logged
    return True


@borrowing
def distribute_matches(
    log: Int64Array, paths: Int64Array, count: int, joins: Int64Array, widths: Int64Array,
    counts: Int64Array, capacities: Int64Array, addresses: Int64Array,
) -> None:  # fmt: skip
    """Append logged matches to those of joins; `joins` has each path's join, or -1 to skip the path."""
    for k in range(count):
        join = joins[paths[k]]
        if join >= 0:
            at = counts[join]
            for alias in range(widths[paths[k]]):
                poke(addresses[join], alias * capacities[join] + at, log[k, alias])
            counts[join] = at + 1


@borrowing
def attribute_work(tree: Tree, targets: Targets, counters: Counters, attribution: Attribution, seconds: float) -> None:
    """Divide the work of one traversal, and the `seconds` that it took, among the paths.

    The probes of a path are what its slot produced at the parent. A node's rows read are divided in proportion to its probes. Time is
    divided among nodes by probes and rows read, and within a node by the probes of each path.
    """
    produced, weights = counters.produced, attribution.weights
    total_work = 0.0
    for node in range(len(weights)):
        weights[node] = 0.0
        total_work += _node_work(counters, attribution, node)
    for slot in range(len(produced)):
        weights[attribution.nodes[slot]] += _slot_probes(produced, attribution, slot) * attribution.paths[slot]
    for slot in range(len(produced)):
        node, probes = attribution.nodes[slot], _slot_probes(produced, attribution, slot)
        if probes > 0:
            window = targets.windows[tree.nodes[node, TARGET]]
            attribution.pairs[slot] += probes * (window[TOP] - window[BOTTOM])
            node_probes = counters.probes[node] - attribution.probes_before[node]
            rows_read = counters.rows_read[node] - attribution.rows_read_before[node]
            attribution.rows_read[slot] += rows_read * (probes / max(node_probes, 1))
            work = _node_work(counters, attribution, node)
            attribution.seconds[slot] += seconds * work / total_work * probes / weights[node]
    for slot in range(len(produced)):
        attribution.produced_before[slot] = produced[slot]
    for node in range(len(weights)):
        attribution.probes_before[node] = counters.probes[node]
        attribution.rows_read_before[node] = counters.rows_read[node]


@inlined
def _slot_probes(produced: Int64Array, attribution: Attribution, slot: int) -> int:
    """Return the probes of a slot in the last traversal: the partial matches of its parent slot."""
    parent = attribution.parents[slot]
    return int(produced[parent] - attribution.produced_before[parent])


@inlined
def _node_work(counters: Counters, attribution: Attribution, node: int) -> float:
    """Return the probes and rows read of a node in the last traversal."""
    probes = counters.probes[node] - attribution.probes_before[node]
    return float(probes + counters.rows_read[node] - attribution.rows_read_before[node])
