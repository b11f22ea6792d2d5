"""The plans of one query between its n-ary join and a tree of binary joins: algorithms 5 to 7 of Alrahmani.

**State selection** (5) goes from an n-ary join towards a binary tree. An operation that the global plan has already is taken first,
for it costs nothing. Else the edge with the largest frequency / weight is stored, where frequency is how often the two inputs follow
each other in the probe orders. Two mends: the next step starts from the coalesced graph (as printed, algorithm 4 would get the same
edge for ever), and an operation of the plan is used also if it joins more than two of the inputs. It ends when two inputs are left:
their join is the answer, and nothing is gained by storing it.

**The binary tree** (6) takes what the global plan has, then the lightest edge again and again. A coalesced vertex has the rate of the
composite, Σ_i λ_i·Π_{j≠i} λ_jW·Πσ. The thesis assigns 2·λ_x·λ_y·σ, which leaves out W; with it, the printed value is right for two
base streams and nearly right above.

**State removal** (7) goes from a binary tree towards an n-ary join. Removing a state makes the operator that produced it and the one
that read it into a single n-ary join (op1 is in the subplan, op2 is the join that *consumes* the state: the printed roles do not
work). Each round the state with the smallest ΔCPU / Δmemory goes. States that the global plan has are never removed: they cost
nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, mjoin, without
from dovetail.optimizer.sharing.model.trees import Tree
from dovetail.optimizer.sharing.model.workload import Target, workload_of
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.plan.shared_plan import NO_LIMITS


def state_selection(query: NextQuery, subplan: Subplan) -> Iterator[Subplan]:
    """Give the plans on the way from the n-ary join `subplan` to a tree of binary ones."""
    while len(subplan.parts) > 2:
        if known := query.known_unions(subplan):
            subplan = query.reused(subplan, *known[0])
        elif pairs := list(query.pairs(subplan)):
            followed = frequencies(query, subplan)
            best = max(pairs, key=lambda pair: followed[frozenset(pair)] / query.weight(*pair))
            subplan = query.stored(subplan, *best)
        else:
            return
        yield subplan


def frequencies(query: NextQuery, subplan: Subplan) -> Counter[frozenset[Target]]:
    """Count how often two inputs of the top operator follow each other in its probe orders (figure 3-4)."""
    paths = query.model.join(subplan.top, subplan.parts).paths
    return Counter(frozenset(map(subplan.parts.__getitem__, pair)) for path in paths for pair in pairwise(path))


def bjtree(query: NextQuery) -> Subplan:
    """Join two inputs at a time, and store every result but the last."""
    subplan = mjoin(query.model, query.number)
    while len(subplan.parts) > 2 and (known := query.known_unions(subplan)):
        subplan = query.reused(subplan, *known[0])
    while len(subplan.parts) > 2 and (pairs := list(query.pairs(subplan))):
        subplan = query.stored(subplan, *min(pairs, key=lambda pair: query.weight(*pair)))
    return subplan


def state_removal(query: NextQuery, subplan: Subplan) -> Iterator[Subplan]:
    """Give the plans on the way from the tree of binary joins `subplan` to one n-ary join."""
    while smaller := [without(query.model, subplan, state) for state in subplan.states]:
        before = query.added(subplan)
        ratios = []
        for load in map(query.added, smaller):
            space = before.memory - load.memory
            ratios.append((load.cpu - before.cpu) / space if space > 0 else inf)
        subplan = smaller[ratios.index(min(ratios))]
        yield subplan


def binary_tree(graph: JoinGraph) -> Tree:
    """Give the tree of binary joins that algorithm 6 makes of the query `graph`: the lightest edge first.

    >>> binary_tree(JoinGraph({"A": 10, "B": 12, "C": 10}, {("A", "B"): 0.1, ("B", "C"): 0.01}, dict.fromkeys("ABC", 10)))
    ('A', ('B', 'C'))
    """
    model = CostModel(workload_of({"query": graph}), UnitCosts())
    subplan = bjtree(NextQuery(model, Draft(), [0], NO_LIMITS))

    def tree(target: Target) -> Tree | str:
        if target.is_base:
            return model.workload.signatures[target.signature].sources[0]
        return tuple(tree(part) for part in subplan.joins[target])

    return tuple(tree(part) for part in subplan.parts)
