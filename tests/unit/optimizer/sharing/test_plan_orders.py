"""Every join of a shared plan is ordered by the chosen method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import prod

import pytest

import dovetail as dt
from dovetail.config import Ordering, Strategy
from dovetail.optimizer import UnitCosts, order_probes, plan_queries
from dovetail.optimizer.cost.probe_cost import OBJECTIVES
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.sharing import STRATEGY_FUNCTIONS
from dovetail.optimizer.sharing.model.named import NamedGraph, name_graph
from dovetail.plan.shared_plan import JoinNode, SharedPlan, WindowNode
from dovetail.stats.probes import Objective

WINDOW = 10.0
RATES = {"A": 3.0, "B": 21.5, "C": 21.0, "D": 2.5, "E": 5.0}
EDGES = {"AB": 0.05, "BC": 0.2, "CD": 0.05, "DE": 0.01, "AC": 0.05, "BE": 0.01, "CE": 0.9}
DISTINCT = {"A": 300.0, "B": 300.0, "C": 5.0, "D": 80.0, "E": 600.0}


def query(names: str, *, keyed: bool = False) -> dt.JoinGraph:
    rates, windows = {name: RATES[name] for name in names}, dict.fromkeys(names, WINDOW)
    if keyed:
        return dt.JoinGraph(rates, {}, windows, distinct={name: DISTINCT[name] for name in names})
    edges = {(edge[0], edge[1]): share for edge, share in EDGES.items() if set(edge) <= set(names)}
    return dt.JoinGraph(rates, edges, windows)


def queries(*, keyed: bool) -> dict[str, dt.JoinGraph]:
    """Return cycles, a chain, and one query contained in another."""
    return {name: query(name, keyed=keyed) for name in ("ABCDE", "ABC", "BCD", "CDE", "BCDE")}


def planned(strategy: Strategy, method: Ordering, objective: Objective, *, keyed: bool) -> SharedPlan:
    """Return a plan with unit costs at which some sub-joins are materialized and others are not."""
    units = replace(UnitCosts.thesis(), store=0.1)
    given = queries(keyed=keyed)
    return plan_queries(given, None, strategy, units=units, ordering=method, objective=objective)


def over_inputs(plan: SharedPlan, join: JoinNode, *, keyed: bool) -> dt.JoinGraph:
    """Rebuild the graph of a join's inputs from the figures of the plan's nodes alone."""
    nodes = plan.nodes
    inputs = {"".join(each.sources): nodes[each.node] for each in join.inputs}
    rates = {name: node.rate for name, node in inputs.items() if not isinstance(node, JoinNode)}
    windows = {
        name: node.window_seconds if isinstance(node, WindowNode) else node.tuples / node.rate
        for name, node in inputs.items()
        if not isinstance(node, JoinNode)
    }
    if keyed:
        counts = {name: min(DISTINCT[source] for source in name) for name in inputs}
        return dt.JoinGraph(rates, {}, windows, distinct=counts)
    shares = {}
    for left, right in combinations(inputs, 2):
        crossing = [share for edge, share in EDGES.items() if {*edge} in [{*pair} for pair in product(left, right)]]
        if crossing:
            shares[left, right] = prod(crossing)
    return dt.JoinGraph(rates, shares, windows)


def named_orders(graph: dt.JoinGraph, join: JoinNode) -> dict[str, tuple[str, ...]]:
    names = tuple(graph.rates)
    return {names[driver]: tuple(names[number] for number in order) for driver, order in enumerate(join.orders)}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", [name for name in STRATEGY_FUNCTIONS if name != "exact"])
@pytest.mark.parametrize("method", METHODS)
def test_every_join_is_ordered_by_the_chosen_method(
    method: Ordering,
    strategy: Strategy,
    objective: Objective,
    keyed: bool,  # noqa: FBT001
) -> None:
    plan = planned(strategy, method, objective, keyed=keyed)
    assert {answer.query for answer in plan.answers} == queries(keyed=keyed).keys()
    for join in plan.joins:
        graph = over_inputs(plan, join, keyed=keyed)
        assert named_orders(graph, join) == order_probes(graph, method, objective)


@pytest.mark.parametrize("method", METHODS)
def test_exact_plans_are_the_best_under_the_chosen_method(method: Ordering) -> None:
    few = {name: query(name) for name in ("ABC", "BCD")}
    loads: dict[str, float] = {}
    for strategy in STRATEGY_FUNCTIONS:
        plan = plan_queries(few, None, strategy, ordering=method)
        loads[strategy] = plan.load.cpu
        for join in plan.joins:
            graph = over_inputs(plan, join, keyed=False)
            assert named_orders(graph, join) == order_probes(graph, method)
    assert loads["exact"] <= min(loads.values()) * (1 + 1e-9)


@pytest.mark.parametrize("keyed", [False, True])
def test_the_test_plans_mix_all_kinds_of_joins_and_methods_differ(keyed: bool) -> None:  # noqa: FBT001
    asked = [(method, objective) for method in METHODS for objective in OBJECTIVES]
    plans = [planned("exchange", *each, keyed=keyed) for each in asked]
    assert len({tuple(join.orders for join in plan.joins) for plan in plans}) > 3
    for plan in plans:
        stored = {state.id for state in plan.materialized}
        reading = [join for join in plan.joins if stored & {each.node for each in join.inputs}]
        assert max(len(join.inputs) for join in reading) > 2


@pytest.mark.parametrize("method", METHODS)
def test_forced_orders_take_precedence(method: Ordering) -> None:
    whole = query("ABCDE")
    own: Mapping[str, tuple[str, ...]] = {
        name: tuple(sorted((other for other in RATES if other != name), reverse=name > "B")) for name in RATES
    }
    assert own != order_probes(whole, method)
    both: dict[str, dt.JoinGraph | NamedGraph] = {"own": replace(name_graph(whole), orders=own), "other": query("BCD")}
    plan = plan_queries(both, None, "mjoin", ordering=method)
    assert named_orders(whole, plan.top("own")) == own
    assert named_orders(query("BCD"), plan.top("other")) == order_probes(query("BCD"), method)


def test_unknown_methods_and_too_wide_joins_are_refused() -> None:
    few = {"q": query("ABC")}
    with pytest.raises(dt.PlanError, match="plan_queries: ordering is 'best'; allowed: 'f-greedy'"):
        plan_queries(few, ordering="best")  # type: ignore[arg-type]
    with pytest.raises(dt.PlanError, match="plan_queries: objective is 'money'; allowed: 'produced', 'comparisons'"):
        plan_queries(few, objective="money")  # type: ignore[arg-type]
    names = [f"S{number}" for number in range(23)]
    chain = dt.JoinGraph(dict.fromkeys(names, 1.0), dict.fromkeys(pairwise(names), 0.5), dict.fromkeys(names, 1.0))
    with pytest.raises(dt.PlanError, match="method 'dmjoin' searches 2\\^n sets; the graph has 23 inputs"):
        plan_queries({"q": chain}, None, "mjoin", ordering="dmjoin")
