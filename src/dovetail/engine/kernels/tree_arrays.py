"""The arrays of a probe tree, which `trees` and `tree_stages` read and write.

Tables are int64 matrices with named columns: with records, small batches of 12 queries took a tenth longer.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail._typing import Float64Array, Int64Array, UInt64Array

DEPTH, CHILD, SIBLING, TARGET, OLD_ONLY, WIDEST, WORD, WORD_END, ONE_WORD = range(9)
"""Columns of `Tree.nodes`: stage, first child and next sibling (-1: none), window, whether only old rows are probed, longest span of
its paths, the range of words with its paths' bits, and whether that is one word and its views' flags are in one word too."""
PARTS, VIEWS, SPANS, SLOTS, EXITS = range(9, 19, 2)
"""Columns of `Tree.nodes`: first row of the node in other arrays; the next column is the end."""
BASE, TOP, BOTTOM, TS, PREFIX_MAX, CODE, HEADS, LINKS, SHIFT, FLAGS = range(10)
"""Columns of `Targets.windows`: first row of the arrays; the live rows, from `BOTTOM` to before `TOP`; addresses of the arrays, and
the shift of the hash index. `FLAGS` is the address of the first word of flags; those of the other words follow."""
PHASE, CURRENT_DEPTH, ROW, LOGGED, NEXT_EXIT, STAGES, CODES, CHAINS, SELECTED, PACKED = range(10)
"""Entries of `Traversal.state`: 1 while exits are logged, current depth, next new tuple, rows in the log, next match to log, and the
addresses of `Traversal.stages`, `codes`, `chain_rows`, `selected` and `Tree.packed`."""


class Tree(NamedTuple):
    """The nodes of a tree and the paths that they serve. All arrays are int64."""

    nodes: Int64Array
    """A row per node, parents before children; node 0 is the new tuples."""
    masks: Int64Array
    """Per node: the bits of its paths."""
    parts: Int64Array
    """Per part of a node's key: the stage whose row has the code, and the index in `Targets.codes`."""
    views: Int64Array
    """Per view at a node: the word and the bit of its flag."""
    view_masks: Int64Array
    """Per view at a node: the bits of its paths."""
    spans: Int64Array
    """Per class at a node: its class at the parent, and the microseconds of its window."""
    span_masks: Int64Array
    """Per class at a node: the bits of its paths."""
    packed: Int64Array
    """Compact views and classes, for nodes with `ONE_WORD`: per view its bit and paths; per class `spans` and its paths."""
    slots: Int64Array
    """Per slot, the paths at a node with equal views and spans so far: the bit of one of them."""
    exits: Int64Array
    """Per path that exits at a node: the path, and its bit."""
    paths: Int64Array
    """Per path: the number of its join's aliases, and its class where it exits."""
    alias_stages: Int64Array
    """Per path and alias of its join: the stage, or -1 if the alias is not joined in the tree."""


class Targets(NamedTuple):
    """Addresses of the probed windows and of the codes that are looked up."""

    windows: Int64Array
    """Per window and key: the columns above."""
    codes: Int64Array
    """Per array of codes: its address, and the row number of its first entry."""


class Counters(NamedTuple):
    """Totals so far."""

    produced: Int64Array
    """Per slot: partial matches."""
    probes: Int64Array
    """Per node: partial matches of the parent that were extended."""
    rows_read: Int64Array
    """Per node: rows that were compared."""


class Attribution(NamedTuple):
    """The work of each path as if it ran alone, and its part of the time; updated after each traversal."""

    parents: Int64Array
    """Per slot: the slot of the same paths at the parent; slots of the root refer to themselves."""
    nodes: Int64Array
    """Per slot: its node."""
    paths: Int64Array
    """Per slot: the number of its paths."""
    produced_before: Int64Array
    """Per slot: `Counters.produced` before the last traversal."""
    pairs: Int64Array
    """Per slot: the window's size summed over the probes."""
    rows_read: Float64Array
    """Per slot: rows compared for its probes."""
    seconds: Float64Array
    """Per slot: the time of each of its paths."""
    probes_before: Int64Array
    """Per node: `Counters.probes` before the last traversal."""
    rows_read_before: Int64Array
    """Per node: `Counters.rows_read` before the last traversal."""
    weights: Float64Array
    """Per node: scratch space for sums."""


class Traversal(NamedTuple):
    """The state of a traversal."""

    stages: Int64Array
    """Per depth: a matrix of partial matches."""
    counts: Int64Array
    """Per depth: the number of partial matches."""
    nodes: Int64Array
    """Per depth: the node."""
    selected_counts: Int64Array
    """Per depth: how many of the parent's partial matches are extended."""
    next_selected: Int64Array
    """Per depth: which of those is extended next."""
    cursors: Int64Array
    """Per depth: the row that it is extended by next; -1: the first of its chain."""
    selected: Int64Array
    """Per depth, for each selected partial match: its index among the parent's."""
    codes: UInt64Array
    """Per depth, for each selected partial match: the code to look up."""
    chain_rows: Int64Array
    """Per depth, for each selected partial match: the newest row of its chain."""
    state: Int64Array
    log: Int64Array
    """Matches that have exited the tree: a row number per alias, low, high."""
    log_paths: Int64Array
    """Per logged match: its path."""
