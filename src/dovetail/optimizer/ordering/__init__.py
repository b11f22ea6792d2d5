"""Probe orders: the order in which new tuples of each input probe the others. One file per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.config import Ordering
from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.probe_cost import OBJECTIVES
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering.dmjoin import MAX_INPUTS, dmjoin
from dovetail.optimizer.ordering.f_greedy import f_greedy
from dovetail.optimizer.ordering.fab import fab
from dovetail.optimizer.ordering.golab import golab
from dovetail.optimizer.ordering.problem import NestedLoopOptions, OrderingProblem, OrderingResult
from dovetail.optimizer.ordering.q_aware import q_aware
from dovetail.optimizer.ordering.treeopt import treeopt
from dovetail.optimizer.ordering.weave import weave
from dovetail.stats.probes import Objective

METHODS: Mapping[Ordering, Callable[[OrderingProblem], OrderingResult]] = {
    "f-greedy": f_greedy,
    "dmjoin": dmjoin,
    "treeopt": treeopt,
    "fab": fab,
    "q-aware": q_aware,
    "golab": golab,
    "weave": weave,
}


def order_probes(
    graph: JoinGraph,
    method: Ordering = "weave",
    objective: Objective = "produced",
    cross_products: bool = False,  # noqa: FBT001, FBT002 - a promised name
    *,
    tau: float | None = None,
    buckets: Mapping[str, int] | None = None,
    expense: Mapping[str, float] | None = None,
    exact: int | None = None,
) -> dict[str, tuple[str, ...]]:
    """Choose, for each input, the order in which its new tuples probe the others.

    Parameters
    ----------
    graph
        Rates, windows and selectivities.
    method
        `f-greedy`, `dmjoin` (exact), `treeopt` (exact on acyclic graphs), `fab`, `q-aware`, `golab` or `weave`.
    objective
        What to minimise: tuples `produced`, or `comparisons`; see `probe_cost`. `golab` has its own cost.
    cross_products
        Whether an order may probe an input that no edge leads to.
    tau, buckets, expense
        For `golab` only: time between executions, hash buckets by input, price of a comparison by input.
    exact
        For `weave` only: the largest number of inputs for an exact search over all sets; 20 by default, at most 22. Fewer plan faster.

    Examples
    --------
    >>> graph = JoinGraph({"A": 10, "B": 20, "C": 5}, {("A", "B"): 0.1, ("B", "C"): 0.5}, {"A": 1, "B": 1, "C": 1})
    >>> order_probes(graph, method="treeopt")
    {'A': ('B', 'C'), 'B': ('A', 'C'), 'C': ('B', 'A')}
    """
    loops = NestedLoopOptions(tau, buckets, expense)
    result = search(graph, method, objective, cross_products=cross_products, loops=loops, exact=exact)
    names = graph.indexed.names
    return {names[path[0]]: tuple(names[index] for index in path[1:]) for path in result.paths}


def search(
    graph: JoinGraph,
    method: Ordering,
    objective: Objective = "produced",
    *,
    cross_products: bool = False,
    loops: NestedLoopOptions | None = None,
    exact: int | None = None,
) -> OrderingResult:
    """Return the paths over numbered inputs, with the steps of the search."""
    if not isinstance(graph, JoinGraph):
        raise PlanError(f"order_probes: graph is {graph!r}; expected a JoinGraph")
    if method not in METHODS:
        raise PlanError(f"order_probes: method is {method!r}; allowed: {listed(METHODS)}")
    if objective not in OBJECTIVES:
        raise PlanError(f"order_probes: objective is {objective!r}; allowed: {listed(OBJECTIVES)}")
    if loops not in (None, NestedLoopOptions()) and method != "golab":
        raise PlanError(
            f"order_probes: method {method!r} does not take tau, buckets or expense; only 'golab' does",
            "omit them, or use method='golab'",
        )
    if exact is not None and method != "weave":
        raise PlanError(f"order_probes: method {method!r} does not take exact; only 'weave' does")
    if exact is not None and (not isinstance(exact, int) or not 0 <= exact <= MAX_INPUTS):
        raise PlanError(f"order_probes: exact is {exact!r}; it must be a whole number from 0 to {MAX_INPUTS}")
    return METHODS[method](
        OrderingProblem(graph.indexed, objective, cross_products, loops or NestedLoopOptions(), exact)
    )
