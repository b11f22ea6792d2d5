"""Plans of a query between its n-ary join and a tree of binary joins: Alrahmani's algorithms 5 to 7.

**State selection** (5) goes from an n-ary join towards a binary tree. It first reuses an operation of the global plan, which costs
nothing. Otherwise it stores the edge with the largest frequency / weight, where the frequency counts how often the two inputs are
adjacent in the probe orders. Two corrections: the next step starts from the coalesced graph (as printed, algorithm 4 would choose the
same edge forever), and an operation of the plan is reused even if it joins more than two of the inputs. It ends when two inputs
remain: their join is the answer, and storing it gains nothing.

**The binary tree** (6) reuses the operations of the global plan, then repeatedly stores the lightest edge. A coalesced vertex has the
rate of the composite, Σ_i λ_i·Π_{j≠i} λ_jW·Πσ. The thesis assigns 2·λ_x·λ_y·σ, which omits W; with it, the printed value is right for
two base streams and nearly right above.

**State removal** (7) goes from a binary tree towards an n-ary join. Removing a state merges the operator that produced it and the one
that read it into a single n-ary join (op1 is in the subplan, op2 is the join that *consumes* the state: the printed roles do not
work). Each round removes the state with the smallest ΔCPU / Δmemory. States of the global plan are never removed, because they cost
this query nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, mjoin, remove_join
from dovetail.optimizer.sharing.model.query_set import SubJoin, number_queries
from dovetail.optimizer.sharing.model.trees import Tree
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.plan.shared_plan import NO_LIMITS


def state_selection(query: NextQuery, subplan: Subplan) -> Iterator[Subplan]:
    """Yield the plans from the n-ary join `subplan` towards a tree of binary joins."""
    while len(subplan.parts) > 2:
        if unions := query.reusable_unions(subplan):
            subplan = query.reuse(subplan, *unions[0])
        elif pairs := list(query.pairs(subplan)):
            followed = frequencies(query, subplan)
            best = max(pairs, key=lambda pair: followed[frozenset(pair)] / query.weight(*pair))
            subplan = query.store(subplan, *best)
        else:
            return
        yield subplan


def frequencies(query: NextQuery, subplan: Subplan) -> Counter[frozenset[SubJoin]]:
    """Count how often two inputs of the top operator are adjacent in its probe orders (figure 3-4)."""
    paths = query.model.join(subplan.top, subplan.parts).paths
    return Counter(frozenset(map(subplan.parts.__getitem__, pair)) for path in paths for pair in pairwise(path))


def bjtree(query: NextQuery) -> Subplan:
    """Join two inputs at a time, and store every result but the last."""
    subplan = mjoin(query.model, query.index)
    while len(subplan.parts) > 2 and (unions := query.reusable_unions(subplan)):
        subplan = query.reuse(subplan, *unions[0])
    while len(subplan.parts) > 2 and (pairs := list(query.pairs(subplan))):
        subplan = query.store(subplan, *min(pairs, key=lambda pair: query.weight(*pair)))
    return subplan


def state_removal(query: NextQuery, subplan: Subplan) -> Iterator[Subplan]:
    """Yield the plans from the tree of binary joins `subplan` towards one n-ary join."""
    while smaller := [remove_join(query.model, subplan, state) for state in subplan.materialized]:
        before = query.added_load(subplan)
        ratios = []
        for load in map(query.added_load, smaller):
            space = before.memory - load.memory
            ratios.append((load.cpu - before.cpu) / space if space > 0 else inf)
        subplan = smaller[ratios.index(min(ratios))]
        yield subplan


def binary_tree(graph: JoinGraph) -> Tree:
    """Return the tree of binary joins that algorithm 6 builds for `graph`: the lightest edge first.

    >>> binary_tree(JoinGraph({"A": 10, "B": 12, "C": 10}, {("A", "B"): 0.1, ("B", "C"): 0.01}, dict.fromkeys("ABC", 10)))
    ('A', ('B', 'C'))
    """
    model = CostModel(number_queries({"query": graph}), UnitCosts())
    subplan = bjtree(NextQuery(model, Draft(), [0], NO_LIMITS))

    def tree(sub_join: SubJoin) -> Tree | str:
        if sub_join.is_base:
            return model.query_set.signatures[sub_join.signature].sources[0]
        return tuple(tree(part) for part in subplan.joins[sub_join])

    return tuple(tree(part) for part in subplan.parts)
