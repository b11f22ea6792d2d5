"""Run one stage of a probe tree: extend partial matches, and clear the bits of paths that drop out.

The stage first looks up the chains of all partial matches of a chunk, then follows them. It prefetches the rows of later chains, so
that memory latencies overlap.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.index import AHEAD, GOLDEN, follow_link, mixed, tag
from dovetail.engine.kernels.memory import fetch, peek, peek_code, poke
from dovetail.engine.kernels.tree_arrays import (
    BASE,
    BOTTOM,
    CHAINS,
    CODE,
    CODES,
    DEPTH,
    FLAGS,
    HEADS,
    LINKS,
    OLD_ONLY,
    PACKED,
    PARTS,
    PREFIX_MAX,
    SELECTED,
    SHIFT,
    SLOTS,
    SPANS,
    STAGES,
    TARGET,
    TOP,
    TS,
    VIEWS,
    WIDEST,
    WORD,
    WORD_END,
    Counters,
    Targets,
    Traversal,
    Tree,
)


@inlined
def find_chains(tree: Tree, targets: Targets, counters: Counters, traversal: Traversal, node: int) -> None:
    """Select the parent's partial matches that serve a path and have a chain; write code and newest row.

    The loops write every candidate and advance only past selected ones: a branch would be unpredictable.
    """
    nodes, parts = tree.nodes, tree.parts
    depth = nodes[node, DEPTH]
    window = targets.windows[nodes[node, TARGET]]
    heads, shift, bottom = window[HEADS], np.uint64(window[SHIFT]), window[BOTTOM]
    first_word, end_word = nodes[node, WORD], nodes[node, WORD_END]
    first_part, end_part = nodes[node, PARTS], nodes[node, PARTS + 1]
    capacity, wide = traversal.stages.shape[1], traversal.stages.shape[2]
    before = traversal.state[STAGES] + 8 * (depth - 1) * capacity * wide
    selected_at = traversal.state[SELECTED] + 8 * depth * capacity
    rows_at = traversal.state[CHAINS] + 8 * depth * capacity
    bits = tree.alias_stages.shape[1] + 1
    probes = 0
    for k in range(traversal.counts[depth - 1]):
        alive = 0
        for w in range(first_word, end_word):
            alive |= peek(before + 8 * k * wide, bits + w) & tree.masks[node, w]
        poke(selected_at, probes, k)
        probes += alive != 0
    stage, array = parts[first_part, 0], parts[first_part, 1]
    codes, base = targets.codes[array, 0], targets.codes[array, 1]
    selected = 0
    for i in range(probes):
        k = peek(selected_at, i)
        partial = before + 8 * k * wide
        code = peek_code(codes, peek(partial, stage) - base)
        for p in range(first_part + 1, end_part):
            array = parts[p, 1]
            part = peek_code(targets.codes[array, 0], peek(partial, parts[p, 0]) - targets.codes[array, 1])
            code = mixed(code, part)
        hashed = code * GOLDEN
        row = follow_link(peek(heads, np.int64(hashed >> shift)), tag(hashed, shift))
        poke(selected_at, selected, k)
        traversal.codes[depth, selected] = code
        poke(rows_at, selected, row)
        selected += row >= bottom
    traversal.selected_counts[depth] = selected
    counters.probes[node] += probes


@inlined
def extend(tree: Tree, targets: Targets, counters: Counters, traversal: Traversal, node: int, first: int) -> None:
    """Extend the selected partial matches by rows with their code, until the stage's matrix is full."""
    nodes = tree.nodes
    depth = nodes[node, DEPTH]
    capacity, wide = traversal.stages.shape[1], traversal.stages.shape[2]
    before = traversal.state[STAGES] + 8 * (depth - 1) * capacity * wide
    after = before + 8 * capacity * wide
    count, i = traversal.selected_counts[depth], traversal.next_selected[depth]
    window = targets.windows[nodes[node, TARGET]]
    base, ts, row_codes, links, prefix_max = window[BASE], window[TS], window[CODE], window[LINKS], window[PREFIX_MAX]
    shift = np.uint64(window[SHIFT])
    top = first if nodes[node, OLD_ONLY] else window[TOP]
    bottom, widest = window[BOTTOM], nodes[node, WIDEST]
    low_column = tree.alias_stages.shape[1]
    row = traversal.cursors[depth]
    if row < 0 and count > 0:
        row = traversal.chain_rows[depth, i]
    written = 0
    rows_read = 0
    while i < count:
        code = traversal.codes[depth, i]
        key_tag = tag(code * GOLDEN, shift)
        partial = before + 8 * traversal.selected[depth, i] * wide
        low = peek(partial, low_column)
        full = False
        if i + AHEAD < count:
            at = traversal.chain_rows[depth, i + AHEAD] - base
            for array in (ts, row_codes, links, window[FLAGS]):
                fetch(array, at)
        while row >= bottom:
            at = row - base
            if row < top:
                t = peek(ts, at)
                matched = False
                if (peek_code(row_codes, at) == code) & (t + widest >= low):
                    if written == capacity:
                        full = True
                        break
                    matched = _write_paths(tree, window, node, partial, at, t, after + 8 * written * wide)
                rows_read += 1
                if matched:
                    out = after + 8 * written * wide
                    for column in range(depth):
                        poke(out, column, peek(partial, column))
                    poke(out, depth, row)
                    poke(out, low_column, max(low, t))
                    written += 1
                elif peek(prefix_max, at) + widest < low:
                    break
            row = follow_link(peek(links, at), key_tag)
        if full:
            break
        i += 1
        row = traversal.chain_rows[depth, i] if i < count else -1
    traversal.next_selected[depth] = i
    traversal.cursors[depth] = row
    traversal.counts[depth] = written
    counters.rows_read[node] += rows_read
    tally(tree, counters, traversal.stages[depth], written, node)


@inlined
def extend_in_one_word(
    tree: Tree, targets: Targets, counters: Counters, traversal: Traversal, node: int, first: int
) -> None:
    """Do what `extend` does where path bits are in one word, and so are flags: at nearly every node."""
    nodes = tree.nodes
    depth, word = nodes[node, DEPTH], nodes[node, WORD]
    capacity, wide = traversal.stages.shape[1], traversal.stages.shape[2]
    before = traversal.state[STAGES] + 8 * (depth - 1) * capacity * wide
    after = before + 8 * capacity * wide
    count, i = traversal.selected_counts[depth], traversal.next_selected[depth]
    window = targets.windows[nodes[node, TARGET]]
    base, ts, row_codes, links, prefix_max = window[BASE], window[TS], window[CODE], window[LINKS], window[PREFIX_MAX]
    shift = np.uint64(window[SHIFT])
    flags = window[FLAGS + tree.views[nodes[node, VIEWS], 0]]
    views = traversal.state[PACKED] + 16 * nodes[node, VIEWS]
    spans = traversal.state[PACKED] + 16 * tree.views.shape[0] + 24 * nodes[node, SPANS]
    all_views = nodes[node, VIEWS + 1] - nodes[node, VIEWS]
    all_spans = nodes[node, SPANS + 1] - nodes[node, SPANS]
    widest, mask = nodes[node, WIDEST], tree.masks[node, word]
    top = first if nodes[node, OLD_ONLY] else window[TOP]
    bottom = window[BOTTOM]
    low_column = tree.alias_stages.shape[1]
    bits = low_column + 1 + word
    high_column = low_column + 1 + tree.masks.shape[1]
    codes_at = traversal.state[CODES] + 8 * depth * capacity
    rows_at = traversal.state[CHAINS] + 8 * depth * capacity
    selected_at = traversal.state[SELECTED] + 8 * depth * capacity
    row = traversal.cursors[depth]
    if row < 0 and count > 0:
        row = peek(rows_at, i)
    written = 0
    rows_read = 0
    while i < count:
        near = peek(rows_at, min(i + AHEAD, count - 1)) - base
        fetch(ts, near)
        fetch(row_codes, near)
        fetch(links, near)
        fetch(flags, near)
        code = peek_code(codes_at, i)
        key_tag = tag(code * GOLDEN, shift)
        partial = before + 8 * peek(selected_at, i) * wide
        low, served = peek(partial, low_column), peek(partial, bits) & mask
        full = False
        while row >= bottom:
            at = row - base
            if row < top:
                t = peek(ts, at)
                if t + widest < low:
                    if peek(prefix_max, at) + widest < low:
                        rows_read += 1
                        break
                elif peek_code(row_codes, at) == code:
                    if written == capacity:
                        full = True
                        break
                    out, alive, seen = after + 8 * written * wide, served, peek(flags, at)
                    for v in range(0, 2 * all_views, 2):
                        alive &= ~(peek(views, v + 1) & (((seen >> peek(views, v)) & 1) - 1))
                    for s in range(all_spans):
                        ends, earlier = t + peek(spans, 3 * s + 1), peek(partial, high_column + peek(spans, 3 * s))
                        alive &= ~(peek(spans, 3 * s + 2) & -np.int64((ends < low) | (t > earlier)))
                        poke(out, high_column + s, min(earlier, ends))
                    for column in range(depth):
                        poke(out, column, peek(partial, column))
                    poke(out, depth, row)
                    poke(out, low_column, max(low, t))
                    poke(out, bits, alive)
                    written += alive != 0
                rows_read += 1
            row = follow_link(peek(links, at), key_tag)
        if full:
            break
        i += 1
        row = peek(rows_at, i) if i < count else -1
    traversal.next_selected[depth] = i
    traversal.cursors[depth] = row
    traversal.counts[depth] = written
    counters.rows_read[node] += rows_read
    tally(tree, counters, traversal.stages[depth], written, node)


@inlined
def _write_paths(tree: Tree, window: Int64Array, node: int, partial: int, index: int, t: int, out: int) -> bool:
    """Write the path bits and highs of a partial match extended by a row; return whether any bit is left."""
    nodes, low = tree.nodes, tree.alias_stages.shape[1]
    begin, end = nodes[node, WORD], nodes[node, WORD_END]
    bits = low + 1
    high = bits + tree.masks.shape[1]
    first_class, end_class = nodes[node, SPANS], nodes[node, SPANS + 1]
    for w in range(begin, end):
        poke(out, bits + w, peek(partial, bits + w) & tree.masks[node, w])
    for v in range(nodes[node, VIEWS], nodes[node, VIEWS + 1]):
        if (peek(window[FLAGS + tree.views[v, 0]], index) >> tree.views[v, 1]) & 1 == 0:
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
def tally(tree: Tree, counters: Counters, out: Int64Array, written: int, node: int) -> None:
    """Count the partial matches that serve each slot of a node."""
    begin, end = tree.nodes[node, SLOTS], tree.nodes[node, SLOTS + 1]
    if end - begin == 1:
        counters.produced[begin] += written
        return
    bits = tree.alias_stages.shape[1] + 1
    for slot in range(begin, end):
        column, bit = bits + (tree.slots[slot] >> 6), tree.slots[slot] & 63
        produced = 0
        for k in range(written):
            produced += (out[k, column] >> bit) & 1
        counters.produced[slot] += produced
