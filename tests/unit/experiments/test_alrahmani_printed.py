"""The baselines as printed: allocations, what they take first, when they give up, what is shared, and costs of shared plans."""

from __future__ import annotations

import random
from math import inf

import pytest

import dovetail as dt
from experiments import alrahmani, alrahmani_printed
from experiments.alrahmani_printed import NAIVE, SHARED_NAIVE, UNITS, Cost, alone, cost, plan, printed, together

RATES, SELECTIVITIES = {"A": 10.0, "B": 12.0, "C": 10.0, "D": 30.0}, {"AB": 0.1, "BC": 0.01, "BD": 0.2}


def query(*edges: str) -> dt.JoinGraph:
    names = sorted({name for edge in edges for name in edge})
    known = {(edge[0], edge[1]): SELECTIVITIES[edge] for edge in edges}
    return dt.JoinGraph({name: RATES[name] for name in names}, known, dict.fromkeys(names, 10.0))


QUERIES = {"q1": query("AB", "BC", "BD"), "q2": query("AB", "BC")}


def drawn(seed: int) -> dict[str, dt.JoinGraph]:
    point, rng = alrahmani.Point("printed", "both", 3, 10), random.Random(seed)
    return alrahmani.drawn_queries(alrahmani.statistics(point, rng), point, rng)


def test_without_limits_every_query_is_an_nary_join() -> None:
    assert plan(QUERIES, Cost(inf, inf)) == {"q1": ("A", "B", "C", "D"), "q2": ("A", "B", "C")}


def test_a_query_over_its_allocation_takes_a_tree_though_much_cpu_is_left() -> None:
    nary = {name: cost(graph, tuple(graph.rates)) for name, graph in QUERIES.items()}
    weights = {"q1": 12 + 1.2 + 72, "q2": 12 + 1.2}
    limit = 0.999 * nary["q1"].cpu * sum(weights.values()) / weights["q1"]  # a little too little for q1's part
    assert limit > sum(each.cpu for each in nary.values())
    plans = plan(QUERIES, Cost(limit, 1e9))
    assert plans is not None
    assert plans["q1"] == dt.optimizer.binary_tree(QUERIES["q1"])
    assert plans["q2"] == ("A", "B", "C")
    again = plan(QUERIES, Cost(limit * 1.01, 1e9))
    assert again is not None
    assert again["q1"] == ("A", "B", "C", "D")


def test_it_gives_up_if_the_windows_do_not_fit() -> None:
    assert printed(QUERIES, None, 100.0) == {NAIVE: None, SHARED_NAIVE: None}


def test_states_are_removed_until_a_tree_fits() -> None:
    graph = QUERIES["q1"]
    tree = dt.optimizer.binary_tree(graph)
    nary, binary = cost(graph, tuple(graph.rates)), cost(graph, tree)
    sizes = [binary.memory]
    for smaller in alrahmani_printed._removals(graph, tree):
        assert sorted(alrahmani_printed._leaves(smaller)) == ["A", "B", "C", "D"]
        sizes.append(cost(graph, smaller).memory)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == nary.memory
    found = plan({"q1": graph}, Cost(0.999 * nary.cpu, (nary.memory + binary.memory) / 2))
    assert found is None or cost(graph, found["q1"]).memory <= (nary.memory + binary.memory) / 2


@pytest.mark.parametrize("seed", range(4))
def test_costs_of_shared_plans_are_those_of_the_planner(seed: int) -> None:
    queries = drawn(seed)
    nary = {name: tuple(graph.rates) for name, graph in queries.items()}
    once, states = together(queries, nary)
    planned = dt.optimizer.plan_queries(queries, None, "mjoin", units=UNITS)
    assert (once.cpu, once.memory, states) == pytest.approx((planned.cpu_ms_per_second, planned.memory_bytes, 0))
    for name, graph in queries.items():
        tree = dt.optimizer.binary_tree(graph)
        single, count = together({name: graph}, {name: tree})
        load = dt.optimizer.tree_cost(graph, tree, UNITS)
        assert (single.cpu, single.memory) == pytest.approx((load.cpu, load.memory))
        assert count == len(graph.rates) - 2
    trees = {name: dt.optimizer.binary_tree(graph) for name, graph in queries.items()}
    assert together(queries, trees)[0].cpu <= alone(queries, trees).cpu


def test_sharing_changes_the_cost_and_not_the_plan() -> None:
    queries = drawn(7)
    found = printed(queries, None, None)
    naive, shared = found[NAIVE], found[SHARED_NAIVE]
    assert naive is not None
    assert shared is not None
    assert shared["cpu"] < naive["cpu"]
    assert shared["memory"] < naive["memory"]
