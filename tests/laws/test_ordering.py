"""Laws of every ordering method: orders are permutations, exact methods are optimal, steps stay within their bound."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations
from math import log2
from typing import Any

import pytest
from graphs import SHAPES, TREES, graphs, random_graph
from hypothesis import given
from hypothesis import strategies as st

import dovetail as dt
from dovetail.config import Ordering
from dovetail.optimizer.cost.probe_cost import OBJECTIVES
from dovetail.optimizer.graph.indexed import Prefix, members
from dovetail.optimizer.ordering import METHODS, search
from dovetail.optimizer.ordering.dmjoin import set_sizes
from dovetail.optimizer.ordering.problem import NestedLoopOptions
from dovetail.stats.probes import Objective

SLACK = 1 + 1e-9
objectives = st.sampled_from(OBJECTIVES)


def total(graph: dt.JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective = "produced") -> float:
    return dt.optimizer.probe_cost(graph, orders, objective).total


def uses_cross_product(graph: dt.JoinGraph, driver: str, order: Sequence[str]) -> bool:
    path = (driver, *order)
    return any(not graph.connected(path[:place], path[place]) for place in range(1, len(path)))


@given(graphs(), st.sampled_from(list(METHODS)), objectives, st.booleans())
def test_each_method_gives_every_input_an_order(
    graph: dt.JoinGraph,
    method: Ordering,
    objective: Objective,
    cross_products: bool,  # noqa: FBT001
) -> None:
    orders = dt.optimizer.order_probes(graph, method, objective, cross_products)
    assert list(orders) == list(graph.rates)
    for driver, order in orders.items():
        assert sorted((driver, *order)) == sorted(graph.rates)
        assert cross_products or not uses_cross_product(graph, driver, order)


@given(graphs(most=5), objectives, st.booleans())
def test_dmjoin_finds_what_trying_all_orders_finds(
    graph: dt.JoinGraph,
    objective: Objective,
    cross_products: bool,  # noqa: FBT001
) -> None:
    orders = dt.optimizer.order_probes(graph, "dmjoin", objective, cross_products)
    found = dt.optimizer.probe_cost(graph, orders, objective).per_input
    for driver in graph.rates:
        tried = [
            total(graph, {driver: order}, objective)
            for order in permutations(name for name in graph.rates if name != driver)
            if cross_products or not uses_cross_product(graph, driver, order)
        ]
        assert found[driver] == pytest.approx(min(tried), rel=1e-9)


@given(graphs(most=9), objectives, st.booleans())
def test_nothing_beats_dmjoin(graph: dt.JoinGraph, objective: Objective, cross_products: bool) -> None:  # noqa: FBT001
    def cost(method: Ordering) -> Mapping[str, float]:
        orders = dt.optimizer.order_probes(graph, method, objective, cross_products)
        return dt.optimizer.probe_cost(graph, orders, objective).per_input

    exact = cost("dmjoin")
    for method in METHODS:
        for driver, other in cost(method).items():
            assert exact[driver] <= other * SLACK, (method, driver)


@given(graphs(most=10, shapes=TREES, classes=False), objectives)
def test_treeopt_is_optimal_without_cycles(graph: dt.JoinGraph, objective: Objective) -> None:
    assert graph.shape in TREES
    costs = {
        method: dt.optimizer.probe_cost(graph, dt.optimizer.order_probes(graph, method, objective), objective).per_input
        for method in ("treeopt", "dmjoin", "q-aware", "weave")
    }
    for method in ("treeopt", "q-aware", "weave"):
        assert costs[method] == pytest.approx(costs["dmjoin"], rel=1e-9)


@given(graphs(most=9), objectives, st.booleans())
def test_weave_beyond_its_exact_size_is_never_worse_than_what_it_starts_from(
    graph: dt.JoinGraph,
    objective: Objective,
    cross_products: bool,  # noqa: FBT001
) -> None:
    woven = dt.optimizer.order_probes(graph, "weave", objective, cross_products, exact=0)
    ours = dt.optimizer.probe_cost(graph, woven, objective).per_input
    for driver, order in woven.items():
        assert sorted((driver, *order)) == sorted(graph.rates)
        assert cross_products or not uses_cross_product(graph, driver, order)
    for method in ("f-greedy", "fab", "treeopt", "q-aware"):
        orders = dt.optimizer.order_probes(graph, method, objective, cross_products)
        for driver, other in dt.optimizer.probe_cost(graph, orders, objective).per_input.items():
            assert ours[driver] <= other * SLACK, (method, driver)


@given(graphs(), objectives, st.randoms(use_true_random=False))
def test_costs_do_not_depend_on_names(graph: dt.JoinGraph, objective: Objective, rng: Any) -> None:
    names = list(graph.rates)
    new = dict(zip(names, rng.sample([f"T{number}" for number in range(50)], len(names)), strict=True))
    shuffled = rng.sample(names, len(names))
    renamed = dt.JoinGraph(
        {new[name]: graph.rates[name] for name in shuffled},
        {frozenset(map(new.__getitem__, pair)): value for pair, value in graph.selectivities.items()},
        {new[name]: graph.windows[name] for name in shuffled},
        {(new[name], number): count for (name, number), count in graph.distinct.items()},
        [[new[name] for name in group] for group in graph.classes],
        conditions={frozenset(map(new.__getitem__, pair)): value for pair, value in graph.conditions.items()},
    )
    assert renamed.shape == graph.shape
    orders = {name: rng.sample([other for other in names if other != name], len(names) - 1) for name in names}
    there = {new[name]: [new[other] for other in order] for name, order in orders.items()}
    assert total(renamed, there, objective) == pytest.approx(total(graph, orders, objective), rel=1e-9)
    for method in ("dmjoin", "weave"):
        here, gone = (dt.optimizer.order_probes(each, method, objective) for each in (graph, renamed))
        assert total(graph, here, objective) == pytest.approx(total(renamed, gone, objective), rel=1e-9)


@given(graphs(), st.randoms(use_true_random=False))
def test_all_ways_to_size_a_join_agree(graph: dt.JoinGraph, rng: Any) -> None:
    indexed = graph.indexed
    path = rng.sample(range(indexed.count), indexed.count)
    prefix, size, sizes = Prefix(indexed, path[0]), indexed.sizes[path[0]], set_sizes(indexed)
    for number in path[1:]:
        joined = [indexed.names[other] for other in members(prefix.joined)]
        expected = graph.extension(joined, indexed.names[number])
        assert prefix.matches[number] == pytest.approx(expected, rel=1e-9)
        assert indexed.extension(prefix.joined, number) == pytest.approx(expected, rel=1e-9)
        size *= expected
        prefix.add(number)
        assert sizes[prefix.joined] == pytest.approx(size, rel=1e-9)


BOUNDS: dict[str, Any] = {
    "f-greedy": lambda n: n**3,
    "treeopt": lambda n: 4 * n**2 * log2(n),
    "fab": lambda n: 3 * n**3,
    "q-aware": lambda n: 3 * n**3,
    "golab": lambda n: n**3,
    "dmjoin": lambda n: n * 2**n,
    "weave": lambda n: n * 2**n if n <= 20 else 4 * n**4,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", list(METHODS))
def test_steps_stay_within_the_stated_complexity(method: Ordering, shape: str) -> None:
    for count in (4, 8, 12, 21, 28, 40):
        if (method == "dmjoin" and count > 12) or (method == "weave" and count > 28):
            continue
        steps = search(random_graph(random.Random(count), count, shape), method).steps
        assert count - 1 <= steps <= BOUNDS[method](count), count


def test_steps_count_the_work_that_is_done() -> None:
    # From each of n inputs: n - 1 candidates, then n - 2, ... in a complete graph.
    graph = random_graph(random.Random(0), 9, "complete")
    assert search(graph, "f-greedy").steps == search(graph, "golab").steps == 9 * sum(range(9))
    # With indexes, inputs without one come first, so fewer candidates are compared at a time.
    indexed = dict.fromkeys(list(graph.rates)[:4], 10)
    both = search(graph, "golab", loops=NestedLoopOptions(buckets=indexed)).steps
    assert 9 * sum(range(9)) < both < 2 * 9 * sum(range(9))
    # Every set except the empty and the full one is extended by every input outside it.
    assert search(graph, "dmjoin").steps == 9 * 2**8 - 9
    linear = random_graph(random.Random(0), 9, "linear")
    assert search(linear, "dmjoin").steps < search(graph, "dmjoin").steps
