"""Cost of one query as a given tree of joins: equations 2-1 to 2-6 of Alrahmani for any tree.

`("A", "B", "C")` is an MJoin (2-3, 2-4), `(("A", "B"), "C")` a tree of binary joins (2-1, 2-2), `(("A", "B", "C"), "D")` a
mixture, which the thesis calls JTree (2-5, 2-6): every inner tuple is a materialized join. The tree becomes a plan, so its cost is
that of the plan, including probes, results and batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering.problem import ProbeOrders
from dovetail.optimizer.sharing.model.build import PlanBuilder
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft
from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin, number_queries
from dovetail.plan.shared_plan import NO_LIMITS, Load

Tree: TypeAlias = tuple[Any, ...]
"""Inputs by name, and trees."""


def tree_cost(
    graph: JoinGraph, tree: Tree, units: UnitCosts | None = None, orders: Mapping[Tree, ProbeOrders] | None = None
) -> Load:
    """Return the CPU (milliseconds per second) and memory (bytes) of a query that runs as a tree of joins.

    Parameters
    ----------
    graph
        The query.
    tree
        Its joins: a tuple of inputs and of trees, each of which is materialized.
    units
        Cost of a tuple.
    orders
        Probe orders of joins over base inputs, by join: `{("A", "B", "C"): {"A": ("B", "C"), ...}}`. All others are the cheapest.

    Examples
    --------
    >>> graph = JoinGraph({"A": 10, "B": 12, "C": 10}, {("A", "B"): 0.1, ("B", "C"): 0.01}, dict.fromkeys("ABC", 10))
    >>> load = tree_cost(graph, (("A", "B"), "C"), UnitCosts.thesis())
    >>> round(load.cpu, 4), load.memory
    (1.4288, 1520.0)
    """
    model = CostModel(number_queries({"query": graph}), units or UnitCosts())
    if (leaves := sorted(_leaves(tree))) != sorted(graph.rates):
        raise PlanError(f"tree_cost: the tree joins {listed(leaves)}; the query has {listed(sorted(graph.rates))}")
    for join, driver_orders in (orders or {}).items():
        if set(join) != set(driver_orders):
            raise PlanError(
                f"tree_cost: orders for {join!r} start from {listed(driver_orders)}; expected one for each input"
            )
        model.query_set.queries[0].fix_orders(driver_orders)
    joins = {}
    for subtree in _trees(tree):
        materialized = [_sub_join(model.query_set, part) for part in subtree if not isinstance(part, str)]
        sub_join = _sub_join(model.query_set, subtree)
        joins[sub_join] = model.parts(sub_join, materialized)
    draft = Draft(joins, {0: _sub_join(model.query_set, tree)})
    return PlanBuilder(model, [draft]).plan("tree", [0], NO_LIMITS).load


def _sub_join(query_set: QuerySet, tree: Tree) -> SubJoin:
    indexes = query_set.queries[0].indexes
    return query_set.sub_join(0, sum(1 << indexes[name] for name in _leaves(tree)))


def _leaves(tree: Tree | str) -> list[str]:
    return [tree] if isinstance(tree, str) else [name for part in tree for name in _leaves(part)]


def _trees(tree: Tree) -> list[Tree]:
    """Return `tree` and all trees inside it."""
    return [tree, *(inner for part in tree if not isinstance(part, str) for inner in _trees(part))]
