"""State selection: from an n-ary join towards a binary tree, one stored sub-join after the other (Alrahmani, algorithm 5).

An operation that the global plan has already is taken first, for it costs nothing. Else the edge with the largest frequency /
weight is stored, where frequency is how often the two inputs follow each other in the probe orders. Two mends: the next step
starts from the coalesced graph (as printed, algorithm 4 would get the same edge for ever), and an operation of the plan is used
also if it joins more than two of the inputs. It ends when two inputs are left: their join is the answer, and nothing is gained by
storing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dovetail.optimizer.multiquery.draft import Subplan
from dovetail.optimizer.multiquery.turn import Turn
from dovetail.optimizer.multiquery.workload import Target


def state_selection(turn: Turn, subplan: Subplan) -> Iterator[Subplan]:
    """Give the plans on the way from an n-ary join to a tree of binary ones."""
    while len(subplan.parts) > 2:
        following = _next(turn, subplan)
        if following is None:
            return
        subplan = following
        yield subplan


def _next(turn: Turn, subplan: Subplan) -> Subplan | None:
    for merged, target in turn.known_unions(subplan):
        return turn.reused(subplan, merged, target)
    followed = frequencies(turn, subplan)
    pairs = list(turn.pairs(subplan))
    if not pairs:
        return None
    best = max(pairs, key=lambda pair: followed.get(frozenset(pair), 0) / turn.weight(*pair))
    return turn.stored(subplan, *best)


def frequencies(turn: Turn, subplan: Subplan) -> dict[frozenset[Target], int]:
    """How often two inputs of the top operator follow each other in its probe orders (figure 3-4)."""
    counts: dict[frozenset[Target], int] = {}
    for path in turn.model.join(subplan.top, subplan.parts).paths:
        for before, after in pairwise(path):
            pair = frozenset((subplan.parts[before], subplan.parts[after]))
            counts[pair] = counts.get(pair, 0) + 1
    return counts
