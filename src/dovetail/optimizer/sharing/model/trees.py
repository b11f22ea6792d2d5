"""What one query costs as a given tree of joins: equations 2-1 to 2-6 of Alrahmani for any tree.

`("A", "B", "C")` is an MJoin (2-3, 2-4), `(("A", "B"), "C")` a tree of binary joins (2-1, 2-2), `(("A", "B", "C"), "D")` a
mixture, which the thesis calls JTree (2-5, 2-6): every inner tuple is a sub-join that is stored. The tree is made into a plan, so its
price is that of the plan, probes, results and batches included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.sharing.model.build import PlanBuilder
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft
from dovetail.optimizer.sharing.model.workload import QuerySet, Target, workload_of
from dovetail.plan.shared_plan import NO_LIMITS, Load

Tree: TypeAlias = tuple[Any, ...]
"""Inputs by name, and trees."""
Orders: TypeAlias = Mapping[str, Sequence[str]]


def tree_cost(
    graph: JoinGraph, tree: Tree, units: UnitCosts | None = None, orders: Mapping[Tree, Orders] | None = None
) -> Load:
    """Give the CPU (milliseconds per second) and memory (bytes) of a query that runs as a tree of joins.

    Parameters
    ----------
    graph
        The query.
    tree
        Its joins: a tuple of inputs and of trees, each of which is stored.
    units
        What a tuple costs.
    orders
        Probe orders of joins over base inputs, by join: `{("A", "B", "C"): {"A": ("B", "C"), ...}}`. All others are the cheapest.

    Examples
    --------
    >>> graph = JoinGraph({"A": 10, "B": 12, "C": 10}, {("A", "B"): 0.1, ("B", "C"): 0.01}, dict.fromkeys("ABC", 10))
    >>> load = tree_cost(graph, (("A", "B"), "C"), UnitCosts.thesis())
    >>> round(load.cpu, 4), load.memory
    (1.4288, 1520.0)
    """
    model = CostModel(workload_of({"query": graph}), units or UnitCosts())
    if (leaves := sorted(_leaves(tree))) != sorted(graph.rates):
        raise PlanError(f"tree_cost: the tree joins {listed(leaves)}; the query has {listed(sorted(graph.rates))}")
    for join, given in (orders or {}).items():
        if set(join) != set(given):
            raise PlanError(f"tree_cost: orders for {join!r} start from {listed(given)}; expected one for each input")
        model.workload.queries[0].choose(given)
    joins = {}
    for each in _trees(tree):
        stored = [_target(model.workload, part) for part in each if not isinstance(part, str)]
        target = _target(model.workload, each)
        joins[target] = model.parts(target, stored)
    draft = Draft(joins, {0: _target(model.workload, tree)})
    return PlanBuilder(model, [draft]).plan("tree", [0], NO_LIMITS).load


def _target(workload: QuerySet, tree: Tree) -> Target:
    number = workload.queries[0].number
    return workload.target(0, sum(1 << number[name] for name in _leaves(tree)))


def _leaves(tree: Tree | str) -> list[str]:
    return [tree] if isinstance(tree, str) else [name for part in tree for name in _leaves(part)]


def _trees(tree: Tree) -> list[Tree]:
    """Give `tree` and all trees inside it."""
    return [tree, *(inner for part in tree if not isinstance(part, str) for inner in _trees(part))]
