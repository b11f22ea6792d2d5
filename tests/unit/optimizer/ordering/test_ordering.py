"""Ordering methods: the papers' worked examples, small graphs on which methods differ, and bad arguments."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

import dovetail as dt
from dovetail.config import ORDERINGS, Ordering
from dovetail.errors import PlanError
from dovetail.optimizer.cost.nested_loop import StreamStatistics, general_cost, multi_way_cost
from dovetail.optimizer.ordering import METHODS, search
from experiments.golab_orders import search_general, search_orders

TABLES: dict[int, list[tuple[float, float, float]]] = {
    5: [(10, 100, 500), (1, 100, 50), (1, 200, 40), (3, 100, 5)],
    6: [(100, 100, 200), (1, 100, 200), (1, 100, 20), (3, 100, 2)],
    7: [(11, 100, 200), (10, 100, 100), (1, 100, 65), (1, 100, 20)],
}


def common_key(rows: Sequence[tuple[float, float, float]]) -> dt.JoinGraph:
    names = [str(number) for number in range(1, len(rows) + 1)]
    rates, windows, distinct = (dict(zip(names, column, strict=True)) for column in zip(*rows, strict=True))
    return dt.JoinGraph(rates, {}, windows, distinct)


def statistics(graph: dt.JoinGraph, **more: Any) -> dict[str, StreamStatistics]:
    return {
        name: StreamStatistics(rate, graph.windows[name], graph.distinct[name, 0], **more.get(name, {}))
        for name, rate in graph.rates.items()
    }


def global_order(orders: dict[str, tuple[str, ...]]) -> str:
    """Return the global order, which every driver follows after itself."""
    first, *_ = [name for name in orders if all(order[0] == name for other, order in orders.items() if other != name)]
    for driver, order in orders.items():
        assert order == tuple(name for name in (first, *orders[first]) if name != driver)
    return ",".join((first, *orders[first]))


def test_config_offers_every_method() -> None:
    assert tuple(METHODS) == ORDERINGS
    for name in ORDERINGS:
        assert dt.Config(ordering=name).ordering == name
    assert dt.Config().ordering == "weave"


# -- Raghavan et al. ----------------------------------------------------------------------------------------------------------------


def test_worked_example_of_the_first_greedy_step() -> None:
    # Of figure 1(b) the text gives three rates and two selectivities; windows are not applied.
    graph = dt.JoinGraph(
        {"S1": 75.36, "S3": 53.94, "S5": 26.05}, {("S1", "S3"): 0.26, ("S1", "S5"): 0.78}, {"S1": 1, "S3": 1, "S5": 1}
    )
    first_third, first_fifth = (graph.rates["S1"] * graph.extension(["S1"], name) for name in ("S3", "S5"))
    assert (round(first_third), round(first_fifth)) == (1057, 1531)
    assert dt.optimizer.order_probes(graph, method="f-greedy")["S1"] == ("S3", "S5")


def test_equation_2_counts_comparisons_and_section_4_counts_tuples() -> None:
    graph = dt.JoinGraph({"A": 2, "B": 3, "C": 5}, {("A", "B"): 0.5, ("B", "C"): 0.1}, {"A": 10, "B": 20, "C": 40})
    orders = {"A": ("B", "C")}
    partials = 2 * 3 * 20 * 0.5
    produced = dt.optimizer.probe_cost(graph, orders)
    assert produced.per_input == pytest.approx({"A": partials + partials * 5 * 40 * 0.1})
    compared = dt.optimizer.probe_cost(graph, orders, objective="comparisons")
    assert compared.total == pytest.approx(2 * 3 * 20 + partials * 5 * 40)
    assert compared.memory == 2 * 10 + 3 * 20 + 5 * 40
    assert compared.cpu(insert=3, delete=4, join=2) == pytest.approx(2 * (3 + 4) + 2 * compared.total)
    assert float(compared) == compared.total


def test_f_greedy_misses_a_good_arm_of_a_linear_graph() -> None:
    # From M, left looks best at first, but right reaches an input that leaves almost no tuples.
    graph = dt.JoinGraph(
        {"L": 10, "M": 10, "R": 12, "S": 10},
        {("L", "M"): 0.9, ("M", "R"): 0.9, ("R", "S"): 0.001},
        dict.fromkeys("LMRS", 1),
    )
    assert dt.optimizer.order_probes(graph, "f-greedy")["M"] == ("L", "R", "S")
    assert dt.optimizer.order_probes(graph, "treeopt")["M"] == ("R", "S", "L")
    greedy, best = (
        dt.optimizer.probe_cost(graph, {"M": dt.optimizer.order_probes(graph, method)["M"]}).total
        for method in ("f-greedy", "dmjoin")
    )
    assert best == dt.optimizer.probe_cost(graph, {"M": ("R", "S", "L")}).total
    assert greedy > 9 * best


def test_fab_puts_the_input_last_without_which_the_rest_is_smallest() -> None:
    # F-Greedy picks B first, whose other selectivities are poor; without B the rest is smallest, so B goes last.
    edges = {"AB": 0.2, "AC": 0.3, "AD": 0.3, "BC": 0.9, "BD": 0.9, "CD": 0.01}
    graph = dt.JoinGraph(
        {"A": 10, "B": 10, "C": 10, "D": 11},
        {frozenset(pair): s for pair, s in edges.items()},
        dict.fromkeys("ABCD", 1),
    )
    assert dt.optimizer.order_probes(graph, "f-greedy")["A"] == ("B", "C", "D")
    assert dt.optimizer.order_probes(graph, "fab")["A"] == ("C", "D", "B")
    assert dt.optimizer.order_probes(graph, "dmjoin")["A"] == ("C", "D", "B")


def test_cross_products_only_when_asked() -> None:
    # A - B - C: B is huge, C tiny; A x C first would be cheapest.
    graph = dt.JoinGraph({"A": 1, "B": 1000, "C": 0.01}, {("A", "B"): 1.0, ("B", "C"): 0.001}, dict.fromkeys("ABC", 1))
    for method in METHODS:
        assert dt.optimizer.order_probes(graph, method)["A"] == ("B", "C"), method
    for method in ("dmjoin", "f-greedy", "fab", "q-aware", "weave"):
        assert dt.optimizer.order_probes(graph, method, cross_products=True)["A"] == ("C", "B"), method


def test_q_aware_selects_by_shape() -> None:
    rates = dict.fromkeys("ABCD", 10.0)
    edges = {("A", "B"): 0.1, ("B", "C"): 0.2, ("B", "D"): 0.3}
    tree = dt.JoinGraph(rates, edges, rates)
    cyclic = dt.JoinGraph(rates, {**edges, ("C", "D"): 0.9, ("A", "D"): 0.7}, rates)
    expected: tuple[tuple[dt.JoinGraph, Ordering], ...] = ((tree, "treeopt"), (cyclic, "fab"))
    for graph, method in expected:
        assert dt.optimizer.order_probes(graph, "q-aware") == dt.optimizer.order_probes(graph, method)


# -- Golab and Özsu -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "order", "cost"), [(5, "1,2,3,4", 16000), (6, "2,1,3,4", 80400), (7, "3,1,4,2", 47977)]
)
def test_golab_picks_the_orders_of_section_5(table: int, order: str, cost: int) -> None:
    graph = common_key(TABLES[table])
    found = global_order(dt.optimizer.order_probes(graph, method="golab"))
    assert found == order
    streams = statistics(graph)
    assert round(sum(multi_way_cost(streams, found.split(",")).values())) == cost
    assert tuple(found.split(",")) == search_orders(streams).best_order


@pytest.mark.parametrize("tau", [5, 10])
def test_golab_under_lazy_evaluation_still_finds_the_best_order_of_table_5(tau: float) -> None:
    # Section 6.2: "the best plan in all cases is the plan predicted by our heuristic", at tau 5 and 10.
    graph = common_key(TABLES[5])
    found = global_order(dt.optimizer.order_probes(graph, method="golab", tau=tau))
    assert tuple(found.split(",")) == search_orders(statistics(graph), tau=tau).best_order


@pytest.mark.parametrize(("tau", "cost"), [(10, 25872), (25, 34750), (50, 57600)])
def test_general_lazy_orders_are_those_of_figure_3b(tau: float, cost: float) -> None:
    graph = common_key([(1, 100, 50)] * 3 + [(10, 100, 50)])
    orders = dt.optimizer.general_orders(graph, tau)
    streams = statistics(graph)
    assert sum(general_cost(streams, orders, tau).values()) == pytest.approx(cost)
    assert search_general(streams, tau).best == pytest.approx(cost)


def test_equal_bucket_counts_change_nothing_and_unequal_ones_do() -> None:
    graph = common_key([(1, 100, 50)] * 3)
    plain = dt.optimizer.order_probes(graph, "golab")
    assert dt.optimizer.order_probes(graph, "golab", buckets=dict.fromkeys("123", 5)) == plain
    assert plain["1"] == ("2", "3")
    # Section 5.1: ascending by average bucket size; here the third window has the smallest.
    assert dt.optimizer.order_probes(graph, "golab", buckets={"1": 2, "2": 2, "3": 50})["1"] == ("2", "3")
    faster = common_key([(2, 100, 50), (1.5, 100, 50), (2, 100, 50)])
    assert global_order(dt.optimizer.order_probes(faster, "golab", buckets={"2": 1, "1": 10, "3": 10}))[0] == "2"


def test_expensive_predicates_go_near_the_top() -> None:
    graph = common_key([(1, 100, 50), (1, 100, 50), (1, 120, 50), (1, 140, 50)])
    assert dt.optimizer.order_probes(graph, "golab")["1"] == ("2", "3", "4")
    assert dt.optimizer.order_probes(graph, "golab", expense={"4": 20.0})["1"] == ("4", "2", "3")


def test_different_attributes_follow_the_graph() -> None:
    graph = dt.JoinGraph(
        {"A": 1, "B": 2, "C": 3, "D": 4},
        {("A", "B"): 0.5, ("A", "C"): 0.1, ("C", "D"): 0.2, ("B", "D"): 0.9},
        dict.fromkeys("ABCD", 10),
    )
    assert dt.optimizer.order_probes(graph, "golab")["A"] == ("C", "D", "B")
    assert dt.optimizer.order_probes(graph, "golab") == dt.optimizer.order_probes(graph, "f-greedy")
    # An expensive comparison with B is made once per tuple of A, not once per match.
    assert dt.optimizer.order_probes(graph, "golab", expense={"B": 100.0})["A"][0] == "B"
    # Hybrid: B is scanned, the others have indexes; the scan goes outside.
    assert dt.optimizer.order_probes(graph, "golab", buckets={"C": 100, "D": 100})["A"][0] == "B"


def test_golab_with_many_fast_streams_moves_one_at_a_time() -> None:
    rows = [(10.0 + number, 100.0, 50.0 + 7 * number) for number in range(6)] + [(1.0, 100.0, 20.0)] * 6
    graph = common_key(rows)
    streams, order = statistics(graph), global_order(dt.optimizer.order_probes(graph, "golab")).split(",")
    rng = random.Random(0)
    others = [sum(multi_way_cost(streams, rng.sample(order, len(order))).values()) for _ in range(200)]
    assert sum(multi_way_cost(streams, order).values()) < sorted(others)[10]
    assert search(graph, "golab").steps < 500  # of 11**6


# -- wrong arguments ------------------------------------------------------------------------------------------------------------------

AB = dt.JoinGraph({"A": 1, "B": 1}, {("A", "B"): 0.5}, {"A": 1, "B": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "random"}, "order_probes: method is 'random'; allowed: 'f-greedy', 'dmjoin', 'treeopt'"),
        ({"objective": "speed"}, "order_probes: objective is 'speed'; allowed: 'produced', 'comparisons'"),
        ({"method": "fab", "tau": 5.0}, "order_probes: method 'fab' does not take tau, buckets or expense"),
        ({"method": "fab", "exact": 5}, "order_probes: method 'fab' does not take exact; only 'weave' does"),
        ({"exact": 23}, "order_probes: exact is 23; it must be a whole number from 0 to 22"),
        ({"method": "golab", "tau": 0}, "golab: tau is 0; it must be finite and above 0"),
        ({"method": "golab", "buckets": {"C": 2}}, "golab: buckets names 'C'; the inputs are 'A', 'B'"),
        ({"method": "golab", "buckets": {"A": 0}}, "golab: buckets['A'] is 0; it must be finite and at least 1"),
        ({"method": "golab", "expense": {"A": -1}}, "golab: expense['A'] is -1; it must be finite and above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(message)}"):
        dt.optimizer.order_probes(AB, **options)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ({}, "orders is {}"),
        ({"C": ("A",)}, "orders names 'C'; the inputs are 'A', 'B'"),
        ({"A": ("A", "B")}, "orders['A'] is ('A', 'B'); it must name each of 'B' once"),
        ({"A": ()}, "orders['A'] is (); it must name each of 'B' once"),
        ({"A": "B"}, "orders['A'] is 'B'; it must name"),
    ],
)
def test_wrong_orders_are_refused(orders: Any, message: str) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(message)}"):
        dt.optimizer.probe_cost(AB, orders)
    with pytest.raises(PlanError, match="objective is 'speed'"):
        dt.optimizer.probe_cost(AB, {"A": ("B",)}, "speed")  # type: ignore[arg-type]


def test_dmjoin_refuses_more_than_22_inputs() -> None:
    names = [f"S{number}" for number in range(23)]
    chain = {(names[number], names[number + 1]): 0.5 for number in range(22)}
    graph = dt.JoinGraph(dict.fromkeys(names, 1), chain, dict.fromkeys(names, 1))
    with pytest.raises(PlanError, match="the graph has 23 inputs, and it takes at most 22\nHint: use 'weave'"):
        dt.optimizer.order_probes(graph, "dmjoin")
    assert len(dt.optimizer.order_probes(graph, "weave")["S0"]) == 22


def test_one_input_has_nothing_to_probe() -> None:
    graph = dt.JoinGraph({"A": 1}, {}, {"A": 1})
    for method in METHODS:
        assert dt.optimizer.order_probes(graph, method) == {"A": ()}


def test_extreme_numbers_still_give_orders() -> None:
    names = [f"S{number}" for number in range(18)]
    for size in (1e-60, 1e60):
        edges = {(names[number], names[(number + 1) % 18]): 1e-300 for number in range(18)}
        graph = dt.JoinGraph(dict.fromkeys(names, size), edges, dict.fromkeys(names, 1.0))
        for method in METHODS:
            assert sorted(dt.optimizer.order_probes(graph, method)["S0"]) == sorted(names[1:])
