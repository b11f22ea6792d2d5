"""One stage of a tree of probes: the parent's partial matches in, longer ones out, with the bits of the paths that they still serve.

First the chains are looked up for all partial matches of a chunk, then they are walked, the rows of later ones being brought near
meanwhile: what one match waits for from memory does not keep the next one waiting.
"""

from __future__ import annotations

import numpy as np

from dovetail._typing import Int64Array
from dovetail.engine.kernels.compile import inlined
from dovetail.engine.kernels.index import AHEAD, GOLDEN, led_to, mixed, tag
from dovetail.engine.kernels.memory import fetch, peek, peek_code, poke
from dovetail.engine.kernels.tree_arrays import (
    ADDRESS,
    BASE,
    BOTTOM,
    CHAINS,
    CHOSEN,
    CODE,
    DEPTH,
    FLAGS,
    HEADS,
    LINKS,
    OLD,
    PARTS,
    PREFIX_MAX,
    SHIFT,
    SLOTS,
    SPANS,
    TARGET,
    TOLD,
    TOP,
    TS,
    VIEWS,
    WANTED,
    WIDEST,
    WORD,
    WORD_END,
    Counters,
    Targets,
    Tree,
    Walk,
)


@inlined
def look_up(tree: Tree, targets: Targets, counters: Counters, place: Walk, node: int) -> None:
    """Pick those of the parent's partial matches that serve somebody here and have a chain; note the wanted code and its newest row.

    Nothing is decided by a branch, for which way that goes cannot be foreseen: all are written, and those that count stay.
    """
    nodes, parts = tree.nodes, tree.parts
    depth = nodes[node, DEPTH]
    window = targets.windows[nodes[node, TARGET]]
    heads, shift, bottom = window[HEADS], np.uint64(window[SHIFT]), window[BOTTOM]
    first_word, end_word = nodes[node, WORD], nodes[node, WORD_END]
    first_part, end_part = nodes[node, PARTS], nodes[node, PARTS + 1]
    capacity, wide = place.stages.shape[1], place.stages.shape[2]
    before = place.state[ADDRESS] + 8 * (depth - 1) * capacity * wide
    chosen_at = place.state[CHOSEN] + 8 * depth * capacity
    rows_at = place.state[CHAINS] + 8 * depth * capacity
    bits = tree.places.shape[1] + 1
    came = 0
    for k in range(place.counts[depth - 1]):
        alive = 0
        for w in range(first_word, end_word):
            alive |= peek(before + 8 * k * wide, bits + w) & tree.masks[node, w]
        poke(chosen_at, came, k)
        came += alive != 0
    of, name = parts[first_part, 0], parts[first_part, 1]
    codes, base = targets.codes[name, 0], targets.codes[name, 1]
    picked = 0
    for number in range(came):
        k = peek(chosen_at, number)
        partial = before + 8 * k * wide
        wanted = peek_code(codes, peek(partial, of) - base)
        for p in range(first_part + 1, end_part):
            source = parts[p, 1]
            part = peek_code(targets.codes[source, 0], peek(partial, parts[p, 0]) - targets.codes[source, 1])
            wanted = mixed(wanted, part)
        hashed = wanted * GOLDEN
        row = led_to(peek(heads, np.int64(hashed >> shift)), tag(hashed, shift))
        poke(chosen_at, picked, k)
        place.wanted[depth, picked] = wanted
        poke(rows_at, picked, row)
        picked += row >= bottom
    place.picked[depth] = picked
    counters.came[node] += came


@inlined
def extend(tree: Tree, targets: Targets, counters: Counters, place: Walk, node: int, first: int) -> None:
    """Extend the parent's partial matches by the rows of a node's window whose code is the wanted one, as far as there is room."""
    nodes = tree.nodes
    depth = nodes[node, DEPTH]
    capacity, wide = place.stages.shape[1], place.stages.shape[2]
    before = place.state[ADDRESS] + 8 * (depth - 1) * capacity * wide
    after = before + 8 * capacity * wide
    count, number = place.picked[depth], place.at[depth]
    window = targets.windows[nodes[node, TARGET]]
    base, ts, code, links, prefix_max = window[BASE], window[TS], window[CODE], window[LINKS], window[PREFIX_MAX]
    shift = np.uint64(window[SHIFT])
    top = first if nodes[node, OLD] else window[TOP]
    bottom, widest = window[BOTTOM], nodes[node, WIDEST]
    low_column = tree.places.shape[1]
    row = place.cursors[depth]
    if row < 0 and count > 0:
        row = place.rows[depth, number]
    written = 0
    looked = 0
    while number < count:
        wanted = place.wanted[depth, number]
        own = tag(wanted * GOLDEN, shift)
        partial = before + 8 * place.chosen[depth, number] * wide
        low = peek(partial, low_column)
        full = False
        if number + AHEAD < count:
            at = place.rows[depth, number + AHEAD] - base
            for array in (ts, code, links, window[FLAGS]):
                fetch(array, at)
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
            row = led_to(peek(links, at), own)
        if full:
            break
        number += 1
        row = place.rows[depth, number] if number < count else -1
    place.at[depth] = number
    place.cursors[depth] = row
    place.counts[depth] = written
    counters.looked[node] += looked
    tally(tree, counters, place.stages[depth], written, node)


@inlined
def extend_in_word(tree: Tree, targets: Targets, counters: Counters, place: Walk, node: int, first: int) -> None:
    """The same where the bits of all paths of a node lie in one word, and so do the flags of their views: nearly everywhere."""
    nodes = tree.nodes
    depth, word = nodes[node, DEPTH], nodes[node, WORD]
    capacity, wide = place.stages.shape[1], place.stages.shape[2]
    before = place.state[ADDRESS] + 8 * (depth - 1) * capacity * wide
    after = before + 8 * capacity * wide
    count, number = place.picked[depth], place.at[depth]
    window = targets.windows[nodes[node, TARGET]]
    base, ts, code, links, prefix_max = window[BASE], window[TS], window[CODE], window[LINKS], window[PREFIX_MAX]
    shift = np.uint64(window[SHIFT])
    flags = window[FLAGS + tree.views[nodes[node, VIEWS], 0]]
    views = place.state[TOLD] + 16 * nodes[node, VIEWS]
    spans = place.state[TOLD] + 16 * tree.views.shape[0] + 24 * nodes[node, SPANS]
    all_views = nodes[node, VIEWS + 1] - nodes[node, VIEWS]
    all_spans = nodes[node, SPANS + 1] - nodes[node, SPANS]
    widest, mask = nodes[node, WIDEST], tree.masks[node, word]
    top = first if nodes[node, OLD] else window[TOP]
    bottom = window[BOTTOM]
    low_column = tree.places.shape[1]
    bits = low_column + 1 + word
    high_column = low_column + 1 + tree.masks.shape[1]
    wanted_at = place.state[WANTED] + 8 * depth * capacity
    rows_at = place.state[CHAINS] + 8 * depth * capacity
    chosen_at = place.state[CHOSEN] + 8 * depth * capacity
    row = place.cursors[depth]
    if row < 0 and count > 0:
        row = peek(rows_at, number)
    written = 0
    looked = 0
    while number < count:
        near = peek(rows_at, min(number + AHEAD, count - 1)) - base
        fetch(ts, near)
        fetch(code, near)
        fetch(links, near)
        fetch(flags, near)
        wanted = peek_code(wanted_at, number)
        own = tag(wanted * GOLDEN, shift)
        partial = before + 8 * peek(chosen_at, number) * wide
        low, served = peek(partial, low_column), peek(partial, bits) & mask
        full = False
        while row >= bottom:
            at = row - base
            if row < top:
                t = peek(ts, at)
                if t + widest < low:
                    if peek(prefix_max, at) + widest < low:
                        looked += 1
                        break
                elif peek_code(code, at) == wanted:
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
                looked += 1
            row = led_to(peek(links, at), own)
        if full:
            break
        number += 1
        row = peek(rows_at, number) if number < count else -1
    place.at[depth] = number
    place.cursors[depth] = row
    place.counts[depth] = written
    counters.looked[node] += looked
    tally(tree, counters, place.stages[depth], written, node)


@inlined
def _serves(tree: Tree, window: Int64Array, node: int, partial: int, place: int, t: int, out: int) -> bool:
    """Write the bits of the paths that a partial match still serves with a row, and the highs; say whether there are any."""
    nodes, low = tree.nodes, tree.places.shape[1]
    begin, end = nodes[node, WORD], nodes[node, WORD_END]
    bits = low + 1
    high = bits + tree.masks.shape[1]
    first_class, end_class = nodes[node, SPANS], nodes[node, SPANS + 1]
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
def tally(tree: Tree, counters: Counters, out: Int64Array, written: int, node: int) -> None:
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
