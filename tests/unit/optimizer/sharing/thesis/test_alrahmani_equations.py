"""Alrahmani's equations, figure 3-1 and algorithms, with every number recomputed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

import dovetail as dt
from dovetail.config import Strategy
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, mjoin
from dovetail.optimizer.sharing.model.query_set import QuerySet, number_queries, pace
from dovetail.optimizer.sharing.thesis.jtrees import bjtree, frequencies, state_removal, state_selection
from dovetail.optimizer.sharing.thesis.next_query import NextQuery, allocate, allocation_fractions
from dovetail.optimizer.sharing.thesis.query_order import QueryOrder, order_queries, predicate_weights, query_weights
from dovetail.optimizer.sharing.thesis.sharing import improves, sharing_degree
from dovetail.plan.shared_plan import NO_LIMITS, Load

RATES = {"A": 10.0, "B": 12.0, "C": 10.0, "D": 30.0}
SIGMA = {"AB": 0.1, "BC": 0.01, "BD": 0.2, "AC": 0.9, "CD": 0.5}
UNITS = dt.optimizer.UnitCosts.thesis()
W = 10.0
C_I, C_D, C_J = 2e-4, 2e-4, 2.2e-3
FIXED = {"A": ("B", "C"), "B": ("A", "C"), "C": ("B", "A")}
"""The orders of figure 2-4(b): B probes A first, as equation 2-3 has it."""


def query(*edges: str, window: float = W) -> dt.JoinGraph:
    names = sorted({name for edge in edges for name in edge})
    return dt.JoinGraph(
        {name: RATES[name] for name in names},
        {(edge[0], edge[1]): SIGMA[edge] for edge in edges},
        dict.fromkeys(names, window),
    )


FIGURE = {"q1": query("AB", "BC"), "q2": query("AB", "BD"), "q3": query("AC", "CD")}
CHAIN = query("AB", "BC", "CD")


def figure() -> QuerySet:
    return number_queries(FIGURE)


# -- section 2.1.5: costs ---------------------------------------------------------------------------------------------------------


def test_a_binary_tree_costs_2_1_and_2_2() -> None:
    a, b, c = RATES["A"], RATES["B"], RATES["C"]
    ab, bc = SIGMA["AB"], SIGMA["BC"]
    cpu = (a + b + c) * (C_I + C_D) + 3 * a * b * c * ab * bc * W**2 * C_J + 2 * a * b * ab * W * (C_J + C_I + C_D)
    found = dt.optimizer.tree_cost(FIGURE["q1"], (("A", "B"), "C"), UNITS)
    assert found.cpu == pytest.approx(cpu) == pytest.approx(1.4288)
    assert found.memory == pytest.approx((a + b + c) * W + a * b * ab * W**2) == pytest.approx(1520)


def test_an_mjoin_costs_2_3_and_2_4() -> None:
    a, b, c = RATES["A"], RATES["B"], RATES["C"]
    ab, bc = SIGMA["AB"], SIGMA["BC"]
    cpu = (a + b + c) * (C_I + C_D) + 3 * a * b * c * ab * bc * W**2 * C_J
    cpu += 2 * a * b * ab * W * C_J + b * c * bc * W * C_J
    found = dt.optimizer.tree_cost(FIGURE["q1"], ("A", "B", "C"), UNITS, {("A", "B", "C"): FIXED})
    assert found.cpu == pytest.approx(cpu) == pytest.approx(1.3592)
    assert found.memory == pytest.approx(320)
    assert found.cpu == pytest.approx(dt.optimizer.probe_cost(FIGURE["q1"], FIXED).cpu(C_I, C_D, C_J))


def test_the_best_orders_cost_less_than_2_3() -> None:
    # B probes C first, which matches less than A: a small term replaces a large one.
    found = dt.optimizer.tree_cost(FIGURE["q1"], ("A", "B", "C"), UNITS)
    assert found.cpu == pytest.approx(1.3592 - (12 * 10 * 0.1 - 12 * 10 * 0.01) * W * C_J) == pytest.approx(1.1216)


def test_a_jtree_of_four_streams_costs_2_5_and_2_6() -> None:
    found = dt.optimizer.tree_cost(CHAIN, (("A", "B", "C"), "D"), UNITS, {("A", "B", "C"): FIXED})
    a, b, c, d = RATES.values()
    ab, bc, cd = SIGMA["AB"], SIGMA["BC"], SIGMA["CD"]
    cpu = (a + b + c + d) * (C_I + C_D) + 4 * a * b * c * d * ab * bc * cd * W**3 * C_J
    cpu += 3 * a * b * c * ab * bc * W**2 * (C_J + C_I + C_D) + 2 * a * b * ab * W * C_J + b * c * bc * W * C_J
    assert found.cpu == pytest.approx(cpu) == pytest.approx(159.9152)
    assert found.memory == pytest.approx((a + b + c + d) * W + a * b * c * ab * bc * W**3) == pytest.approx(1820)


@pytest.mark.parametrize("strategy", ["mjoin", "bjtree"])
def test_a_tree_costs_what_its_plan_costs(strategy: Strategy) -> None:
    """All unit costs are non-zero: the thesis has none for probes, results and batches, so its figures do not cover them."""
    units = dt.optimizer.UnitCosts(probe=3e-4, result=5e-4, store=1e-4, batch_result=0.7, batch_store=0.2)
    tree = tuple(CHAIN.rates) if strategy == "mjoin" else dt.optimizer.binary_tree(CHAIN)
    plan = dt.optimizer.plan_queries({"q": CHAIN}, None, strategy, units=units)
    assert dt.optimizer.tree_cost(CHAIN, tree, units) == pytest.approx(plan.load)


def test_a_tree_pays_for_probes_results_and_batches() -> None:
    a, b, ab = RATES["A"], RATES["B"], SIGMA["AB"]
    results = 2 * a * b * ab * W
    free = dt.optimizer.UnitCosts(insert=0, delete=0, join=0)
    for units, paid in (
        (dataclasses.replace(free, probe=3.0), a + b),
        (dataclasses.replace(free, join=3.0), results),
        (dataclasses.replace(free, result=3.0), results),
        (dataclasses.replace(free, batch_result=3.0), 1),
    ):
        assert dt.optimizer.tree_cost(query("AB"), ("A", "B"), units).cpu == pytest.approx(3 * paid)


def test_orders_for_some_inputs_are_refused() -> None:
    with pytest.raises(dt.PlanError, match=r"orders for .* start from 'A'; expected one for each input"):
        dt.optimizer.tree_cost(FIGURE["q1"], ("A", "B", "C"), UNITS, {("A", "B", "C"): {"A": ("B", "C")}})


def test_a_composite_has_the_size_and_rate_of_its_streams() -> None:
    query_set = number_queries({"q": CHAIN})
    abc = query_set.sub_join(0, 0b0111)
    assert query_set.size(abc) == pytest.approx(10 * 12 * 10 * 0.1 * 0.01 * W**3)
    # Each of the three streams may have the latest tuple.
    assert query_set.rate(abc) == pytest.approx(3 * 10 * 12 * 10 * 0.1 * 0.01 * W**2) == query_set.size(abc) * pace(abc)


def test_a_tree_that_is_not_the_querys_is_refused() -> None:
    with pytest.raises(dt.PlanError, match=r"the tree joins 'A', 'B'; the query has 'A', 'B', 'C'"):
        dt.optimizer.tree_cost(FIGURE["q1"], ("A", "B"))


# -- section 3.1: the order of queries ----------------------------------------------------------------------------------------------


def test_weights_of_figure_3_1() -> None:
    assert list(query_weights(figure(), range(3)).values()) == pytest.approx([7.2, 78, 240])
    # Alone, A-B is not shared: 12, not 6.
    assert query_weights(figure(), [0])[0] == pytest.approx(13.2)


def test_predicate_weights_are_divided_among_sharing_queries() -> None:
    weights = predicate_weights(figure(), range(3))
    assert sorted(weights[0].values()) == pytest.approx([1.2, 6])
    assert sorted(weights[1].values()) == pytest.approx([6, 72])


@pytest.mark.parametrize(
    ("query_order", "expected"),
    [("heaviest", [2, 1, 0]), ("lightest", [0, 1, 2]), ("shared-predicate", [1, 0, 2]), ("given", [0, 1, 2])],
)
def test_orders_of_figure_3_1(query_order: QueryOrder, expected: Sequence[int]) -> None:
    assert order_queries(figure(), query_order) == expected


# -- section 3.2: allocation ----------------------------------------------------------------------------------------------------------


def test_resource_fractions_of_figure_3_1() -> None:
    found = allocation_fractions(figure(), range(3))
    assert [share.cpu for share in found.values()] == pytest.approx([13.2 / 337.2, 84 / 337.2, 240 / 337.2])
    assert [round(share.cpu, 3) for share in found.values()] == [0.039, 0.249, 0.712]
    assert [share.memory for share in found.values()] == pytest.approx([share.cpu for share in found.values()])


def test_memory_is_also_allocated_by_window() -> None:
    found = allocation_fractions(number_queries({"q1": query("AB", window=10), "q2": query("AB", window=30)}), range(2))
    assert [share.cpu for share in found.values()] == pytest.approx([0.5, 0.5])
    assert [share.memory for share in found.values()] == pytest.approx([0.25, 0.75])


def test_the_last_query_is_allocated_the_remainder() -> None:
    assert allocate(figure(), [2], Load(100, 50)) == pytest.approx((100, 50))


# -- section 3.3: sharing --------------------------------------------------------------------------------------------------------


def test_sharing_degree_counts_queries_by_their_windows() -> None:
    query_set = number_queries({"q1": query("AB", "BC"), "q2": query("AB", "BD", window=5), "q3": query("AC", "CD")})
    ab, abc = query_set.sub_join(0, 0b011), query_set.sub_join(0, 0b111)
    assert sharing_degree(query_set, ab, range(3)) == pytest.approx(1.5)  # 3-6: (10 + 5) / 10
    assert sharing_degree(query_set, abc, range(3)) == 1  # all edges of the operation must be there
    assert sharing_degree(query_set, ab, [0]) == 1


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        (Load(1, 1), Load(2, 2), True),
        (Load(1, 2), Load(2, 2), True),  # one is equal: the printed table says no
        (Load(2, 2), Load(2, 2), False),
        (Load(3, 7), Load(2, 8), True),  # less memory, which is scarcer: 0.3 < 0.7
        (Load(7, 3), Load(6, 4), False),  # less memory, but CPU is scarcer
        (Load(7, 3), Load(8, 2), True),
        (Load(3, 7), Load(4, 6), False),
        (Load(3, 3), Load(2, 2), False),
    ],
)
def test_table_3_1_corrected(new: Load, old: Load, better: bool) -> None:  # noqa: FBT001
    limits = Load(10, 10)
    assert improves(new, old, limits) is better


def test_a_resource_without_limit_is_not_scarce() -> None:
    less_cpu, less_memory = Load(1, 9), Load(2, 1)
    for limits, better in (
        (Load(math.inf, 10), False),
        (Load(10, math.inf), True),
        (NO_LIMITS, True),
    ):
        assert improves(less_cpu, less_memory, limits) is better


# -- section 3.5: algorithms 5 to 7 ----------------------------------------------------------------------------------------------


def next_query(*edges: str) -> NextQuery:
    return NextQuery(CostModel(number_queries({"q": query(*edges)}), UNITS), Draft(), [0], NO_LIMITS)


def shape(query: NextQuery, joins: object) -> list[list[str]]:
    assert isinstance(joins, dict)
    sources = query.model.query_set.signatures
    return sorted(["+".join(sources[part.signature].sources) for part in parts] for parts in joins.values())


def test_frequency_counts_adjacent_probes() -> None:
    now = next_query("AB", "BC", "CD")
    nary = mjoin(now.model, 0)
    found = frequencies(now, nary)
    # Each of four paths has three steps, and every path goes from B to C or from C to B.
    named = {
        "".join(sorted(now.model.query_set.signatures[p.signature].sources[0] for p in pair)): n
        for pair, n in found.items()
    }
    assert sum(named.values()) == 4 * 3
    assert named["BC"] == 4


def test_state_selection_continues_on_the_coalesced_graph() -> None:
    now = next_query("AB", "BC", "CD")
    steps = list(state_selection(now, mjoin(now.model, 0)))
    assert [len(step.parts) for step in steps] == [3, 2]
    assert shape(now, steps[0].joins) == [["A", "B+C", "D"], ["B", "C"]]  # lightest, and most frequent


def test_bjtree_takes_the_lightest_edge_first() -> None:
    now = next_query("AB", "BC", "CD")
    # 3-1: B-C 1.2, A-B 12, C-D 150; then (B+C) has rate 2·1.2·W = 24, and A is lighter than D.
    assert shape(now, bjtree(now).joins) == [["A", "B+C"], ["A+B+C", "D"], ["B", "C"]]


def test_state_removal_ends_with_the_mjoin_and_saves_memory_each_time() -> None:
    now = next_query("AB", "BC", "CD")
    tree = bjtree(now)
    steps = [tree, *state_removal(now, tree)]
    memory = [now.added_load(step).memory for step in steps]
    assert memory == sorted(memory, reverse=True)
    assert shape(now, steps[-1].joins) == [["A", "B", "C", "D"]]


def test_a_state_of_the_plan_is_reused_whatever_its_size() -> None:
    model = CostModel(number_queries({"q1": query("AB", "BC"), "q2": CHAIN}), UNITS)
    first = Draft().with_query(0, mjoin(model, 0))
    now = NextQuery(model, first, [1], NO_LIMITS)
    # q1's join of three is an operation of the plan: q2 reads it, in one step.
    assert shape(now, next(state_selection(now, mjoin(model, 1))).joins) == [["A+B+C", "D"]]
    assert shape(now, bjtree(now).joins) == [["A+B+C", "D"]]
