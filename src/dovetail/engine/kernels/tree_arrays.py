"""The arrays of a tree of probes: what `trees` and `tree_stages` read and write."""

from __future__ import annotations

from typing import NamedTuple

from dovetail._typing import Float64Array, Int64Array, UInt64Array

DEPTH, CHILD, SIBLING, TARGET, OLD, WIDEST, WORD, WORD_END, IN_WORD = range(9)
"""Columns of `Tree.nodes`: its stage, its first child and next sibling (-1: none), its window, whether it meets old rows only, the
longest span of its paths, the words that hold their bits, and whether that is one, with one of flags as well."""
PARTS, VIEWS, SPANS, SLOTS, EXITS = range(9, 19, 2)
"""Columns of `Tree.nodes`: where its rows in other arrays begin; where they end follows."""
BASE, TOP, BOTTOM, TS, PREFIX_MAX, CODE, HEADS, LINKS, SHIFT, FLAGS = range(10)
"""Columns of `Targets.windows`, the last for the first word of flags."""
PHASE, LEVEL, ROW, LOGGED, LEAVING, ADDRESS, WANTED, CHAINS, CHOSEN, TOLD = range(10)
"""Entries of `Walk.state`: whether matches are leaving, at which depth, the next new tuple, rows in the log, the next that leaves,
and the addresses of `Walk.stages`, `wanted`, `rows`, `chosen` and `Tree.told`."""


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
    told: Int64Array
    """For nodes whose bits lie in one word, the same in short: per view its bit and paths; per class `spans` and its paths."""
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
    picked: Int64Array
    """Per depth: how many of the parent's partial matches are extended."""
    at: Int64Array
    """Per depth: which of those is extended next."""
    cursors: Int64Array
    """Per depth: the row that it is extended by next; -1: the first."""
    chosen: Int64Array
    """Per depth, for each of those: its number among the parent's partial matches."""
    wanted: UInt64Array
    """The same: the code that is looked for."""
    rows: Int64Array
    """The same: the newest row of its chain."""
    state: Int64Array
    log: Int64Array
    """Matches that have left the tree: a row number per alias, low, high."""
    paths: Int64Array
    """The path of each."""
