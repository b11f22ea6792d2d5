"""Shared plans of several queries: sharing, refused input, budget errors, and optimality of `exact`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, pairwise, permutations
from math import inf, prod
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.config import STRATEGIES, Strategy
from dovetail.optimizer import UnitCosts
from dovetail.optimizer.sharing import STRATEGY_FUNCTIONS
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.query_set import number_queries
from dovetail.optimizer.sharing.thesis.query_order import QUERY_ORDERS, QueryOrder
from dovetail.plan.shared_plan import SharedPlan

UNITS = UnitCosts.thesis()
RATES = {"A": 10.0, "B": 12.0, "C": 10.0, "D": 30.0, "E": 5.0, "F": 7.0}
SIGMA = {"AB": 0.002, "BC": 0.01, "BD": 0.005, "AC": 0.02, "CD": 0.005, "EF": 0.05}
SHARING = tuple(name for name in STRATEGY_FUNCTIONS if name != "naive")


def query(*edges: str, window: float = 10.0, rates: Mapping[str, float] = RATES) -> dt.JoinGraph:
    names = sorted({name for edge in edges for name in edge})
    return dt.JoinGraph(
        {name: rates[name] for name in names},
        {(edge[0], edge[1]): SIGMA[edge] for edge in edges},
        dict.fromkeys(names, window),
    )


def plan(queries: Mapping[str, dt.JoinGraph], *limits: float, strategy: Strategy = "exchange") -> SharedPlan:
    cpu, memory = limits or (None, None)
    return dt.optimizer.plan_queries(queries, dt.Budget(cpu, memory), strategy, units=UNITS)


THREE = {"q1": query("AB", "BC"), "q2": query("AB", "BD"), "q3": query("AC", "CD")}


def test_config_and_documentation_offer_every_strategy() -> None:
    assert tuple(STRATEGY_FUNCTIONS) == STRATEGIES
    page = (Path(__file__).parents[4] / "docs" / "many-queries.md").read_text(encoding="utf-8")
    rows = page.split("## Strategies")[1].split("##")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)`", rows, re.MULTILINE)) == STRATEGIES
    for name in STRATEGIES:
        assert dt.Config(strategy=name).strategy == name
        assert f"`{name}`" in (dt.optimizer.plan_queries.__doc__ or "")


# -- what is shared ---------------------------------------------------------------------------------------------------------------


def test_a_common_sub_join_is_materialized_once() -> None:
    found = plan({"q1": THREE["q1"], "q2": THREE["q2"]})
    (state,) = found.materialized
    assert (state.id, state.queries) == ("state:A+B", ("q1", "q2"))
    for name in ("q1", "q2"):
        assert state in found.below(name)
        assert found.top(name).kind == "binary"
    assert [node.id for node in found.shared()] == ["window:A", "window:B", "join:A+B", "state:A+B"]


@pytest.mark.parametrize("strategy", STRATEGY_FUNCTIONS)
def test_plan_costs_add_up_over_the_nodes(strategy: Strategy) -> None:
    found = plan(THREE, strategy=strategy)
    assert found.load.cpu == pytest.approx(sum(node.load.cpu for node in found.nodes.values()))
    assert found.cpu_ms_per_second == found.load.cpu
    assert found.memory_bytes == found.load.memory
    windows = sum(window.tuples for window in found.windows)
    assert found.load.memory == pytest.approx(windows + sum(state.tuples for state in found.materialized))


@pytest.mark.parametrize("strategy", SHARING)
def test_equal_queries_share_one_join(strategy: Strategy) -> None:
    found = plan({"q1": THREE["q1"], "again": THREE["q1"]}, strategy=strategy)
    assert found.answer("q1").result == found.answer("again").result
    assert found.load == plan({"q1": THREE["q1"]}, strategy=strategy).load


def test_naive_shares_windows_only() -> None:
    found = plan({"q1": THREE["q1"], "again": THREE["q1"]}, strategy="naive")
    alone = plan({"q1": THREE["q1"]}, strategy="naive")
    assert [node.id for node in found.shared()] == ["window:A", "window:B", "window:C"]
    assert found.windows == tuple(replace(node, queries=("q1", "again")) for node in alone.windows)
    windows = sum(node.load.cpu for node in alone.windows)
    assert found.load == pytest.approx((2 * alone.load.cpu - windows, alone.load.memory))


def test_naive_counts_shared_windows_once() -> None:
    queries = {"q1": query("AB", "BC"), "q2": query("AB", "BC", window=20), "q3": query("BD")}
    windows = sum(20 * RATES[name] for name in "ABC") + 10 * RATES["D"]
    assert plan(queries, 1e9, windows, strategy="naive").load.memory == pytest.approx(windows)
    with pytest.raises(dt.BudgetError, match="does not fit the budget"):
        plan(queries, 1e9, 0.99 * windows, strategy="naive")


def test_queries_over_different_streams_share_no_window() -> None:
    apart = {f"q{number}": renamed(THREE["q1"], f"q{number}/") for number in range(2)}
    found, alone = plan(apart, strategy="naive"), plan({"q1": THREE["q1"]}, strategy="naive")
    assert found.load == pytest.approx((2 * alone.load.cpu, 2 * alone.load.memory))
    assert found.shared() == ()


def renamed(graph: dt.JoinGraph, prefix: str) -> dt.JoinGraph:
    return dt.JoinGraph(
        {prefix + name: rate for name, rate in graph.rates.items()},
        {frozenset(prefix + name for name in pair): value for pair, value in graph.selectivities.items()},
        {prefix + name: span for name, span in graph.windows.items()},
    )


@pytest.mark.parametrize("strategy", SHARING)
def test_disjoint_queries_are_planned_independently(strategy: Strategy) -> None:
    found = plan({"q1": THREE["q1"], "other": query("EF")}, strategy=strategy)
    assert found.shared() == ()
    apart = [plan({"q": graph}, strategy=strategy).load for graph in (THREE["q1"], query("EF"))]
    assert found.load == pytest.approx((sum(load.cpu for load in apart), sum(load.memory for load in apart)))


def test_a_contained_query_is_answered_and_reused() -> None:
    found = plan({"large": query("AB", "BC"), "small": query("AB")})
    assert found.answer("small").result == "state:A+B"
    assert found.top("large").inputs[0].node == "state:A+B"


@pytest.mark.parametrize("strategy", SHARING)
def test_a_shared_join_has_the_longest_window(strategy: Strategy) -> None:
    queries = {"short": query("AB", "BC", window=5), "long": query("AB", "BC", window=20)}
    found = plan(queries, strategy=strategy)
    assert {window.window_seconds for window in found.windows} == {20}
    if strategy == "shared-naive":
        return  # naive does not look for answers shared with another query
    assert found.answer("short").result == found.answer("long").result
    assert found.narrower_windows("short") == {"A": 5, "B": 5, "C": 5}
    assert found.narrower_windows("long") == {}
    assert found.load == pytest.approx(plan({"long": queries["long"]}, strategy=strategy).load)


def test_a_shorter_window_pays_for_extra_rows_of_a_longer_materialized_join() -> None:
    query_set = number_queries({"long": query("AB", "BC", window=20), "short": query("AB", "BD", window=10)})
    model = CostModel(query_set, UNITS)
    state, top = query_set.sub_join(0, 0b011), query_set.sub_join(1, 0b111)
    assert query_set.fits(state, top)
    assert not query_set.fits(query_set.sub_join(1, 0b011), query_set.sub_join(0, 0b111))  # not the other way round
    a, b, d, ab, bd = RATES["A"], RATES["B"], RATES["D"], SIGMA["AB"], SIGMA["BD"]
    results = a * b * d * ab * bd * 10**2
    # New composites within 10 s meet D: two of three results. New D meet all composites of 20 s: four times the third.
    assert model.join(top, model.parts(top, [state])).produced == pytest.approx(2 * results + 4 * results)


def test_a_materialized_join_extends_its_base_windows() -> None:
    # Planned first, `short` materializes A-B for `long` too, so the base windows must be as long.
    queries = {"short": query("AB", "BD", window=5), "long": query("AB", window=20)}
    needed = dt.optimizer.plan_queries(queries, None, "shared", "given", units=UNITS).load.memory
    for memory in (0.999 * needed, 0.9 * needed, 0.8 * needed):
        try:
            found = dt.optimizer.plan_queries(queries, dt.Budget(None, int(memory)), "shared", "given", units=UNITS)
        except dt.BudgetError:
            continue
        held = sum(node.tuples for node in found.windows) + sum(node.tuples for node in found.materialized)
        assert held <= int(memory)
        spans = {window.stream: window.window_seconds for window in found.windows}
        assert all(spans[name] >= span for state in found.materialized for name, span in state.window_seconds.items())


def test_the_same_pair_with_another_selectivity_is_another_predicate() -> None:
    other = dt.JoinGraph({"A": 10, "B": 12, "D": 30}, {("A", "B"): 0.003, ("B", "D"): 0.005}, dict.fromkeys("ABD", 10))
    found = plan({"q1": query("AB", "BC"), "q2": other})
    assert all(len(state.queries) == 1 for state in found.materialized)


@pytest.mark.parametrize("query_order", QUERY_ORDERS)
def test_every_order_of_queries_gives_a_plan(query_order: QueryOrder) -> None:
    found = dt.optimizer.plan_queries(THREE, None, "shared", query_order, units=UNITS)
    assert sorted(found.query_order) == ["q1", "q2", "q3"]


def test_common_keys_and_cycles_are_planned() -> None:
    key = dt.JoinGraph(RATES, {}, dict.fromkeys(RATES, 10.0), distinct=dict.fromkeys(RATES, 50.0))
    part = dt.JoinGraph(
        {name: RATES[name] for name in "ACE"}, {}, dict.fromkeys("ACE", 10.0), distinct=dict.fromkeys("ACE", 50.0)
    )
    found = plan({"all": key, "part": part, "cycle": query("AB", "BC", "AC")})
    shared_states = {state.id for state in found.materialized if len(state.queries) > 1}
    assert shared_states  # part of a class is the same sub-join in both queries
    assert (
        found.load.cpu <= plan({"all": key, "part": part, "cycle": query("AB", "BC", "AC")}, strategy="shared").load.cpu
    )


# -- what does not fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGY_FUNCTIONS)
def test_too_little_memory_names_query_resource_need_and_limit(strategy: Strategy) -> None:
    with pytest.raises(dt.BudgetError) as raised:
        plan(THREE, 1e6, 300, strategy=strategy)
    text = str(raised.value)
    assert "query 'q" in text
    assert "bytes of memory" in text
    assert "300" in text
    for help_ in ("fewer queries", "smaller window", "Budget(memory_bytes=...)"):
        assert help_ in text
    assert "Shedding" not in text  # so small a cap is refused


@pytest.mark.parametrize("strategy", STRATEGY_FUNCTIONS)
def test_too_little_cpu_names_query_resource_need_and_limit(strategy: Strategy) -> None:
    with pytest.raises(dt.BudgetError, match=r"(?s)ms of CPU per second.*0\.05.*Hint: .*cpu_ms_per_second") as raised:
        plan(THREE, 0.05, 1e6, strategy=strategy)
    assert "query 'q" in str(raised.value)


def test_the_reported_minimum_is_needed_by_every_plan() -> None:
    with pytest.raises(dt.BudgetError, match="every plan needs at least 620 bytes of memory; the limit is 600"):
        plan(THREE, 1e6, 600)
    assert plan(THREE, 1e6, 620).materialized == ()


def test_exchange_fits_a_tight_budget_where_the_thesis_fails() -> None:
    limits = plan(THREE, strategy="exact").load
    exact = plan(THREE, limits.cpu * 1.001, limits.memory, strategy="exact")
    assert plan(THREE, limits.cpu * 1.001, limits.memory).load == pytest.approx(exact.load)


# -- what is refused ------------------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused() -> None:
    pairs = [("q", THREE["q1"]), ("q", THREE["q2"])]
    for queries, words in (
        (pairs, "'q' is the name of two queries"),
        ({}, "there are no queries"),
        ({"q": "SELECT 1"}, "expected a name and a JoinGraph"),
        ({1: THREE["q1"]}, "expected a name and a JoinGraph"),
        (THREE["q1"], "expected a name and a JoinGraph"),
        ("q1", "expected a name and a JoinGraph"),
        ({"q": dt.JoinGraph({"A": 1}, {}, {"A": 1})}, "query 'q' has one input, 'A'"),
        ({"q1": THREE["q1"], "q2": query("AB", rates={**RATES, "A": 11.0})}, "'A' has rate 11.0, and 10.0 in a query"),
    ):
        with pytest.raises(dt.PlanError, match=words):
            dt.optimizer.plan_queries(queries)  # type: ignore[arg-type]
    with pytest.raises(dt.PlanError, match="strategy is 'best'; allowed: 'exchange'"):
        dt.optimizer.plan_queries(THREE, None, "best")  # type: ignore[arg-type]
    with pytest.raises(dt.PlanError, match="query_order is 'random'; allowed: 'shared-predicate'"):
        dt.optimizer.plan_queries(THREE, None, "shared", "random")  # type: ignore[arg-type]
    with pytest.raises(dt.PlanError, match=r"budget is 100; expected a dt\.Budget"):
        dt.optimizer.plan_queries(THREE, 100)  # type: ignore[arg-type]
    with pytest.raises(dt.ConfigError, match="allowed are numbers above zero"):
        dt.Budget(cpu_ms_per_second=0)


def test_infinite_numbers_are_refused() -> None:
    names = [f"S{number}" for number in range(30)]
    edges = dict.fromkeys(pairwise(names), 1.0)
    endless = dt.JoinGraph(dict.fromkeys(names, 1e6), edges, dict.fromkeys(names, 1e6))
    with pytest.raises(dt.PlanError, match=r"(?s)expected to have inf matches.*check rates"):
        dt.optimizer.plan_queries({"q": endless})


def test_pairs_work_like_a_mapping() -> None:
    assert dt.optimizer.plan_queries(list(THREE.items())) == dt.optimizer.plan_queries(THREE)


def test_unit_costs_are_checked() -> None:
    with pytest.raises(dt.ConfigError, match="UnitCosts: join is -1"):
        UnitCosts(join=-1)
    with pytest.raises(dt.ConfigError, match=r"stream_bytes\['A'\] is 'many'"):
        UnitCosts(stream_bytes={"A": "many"})  # type: ignore[dict-item]
    with pytest.raises(dt.ConfigError, match=r"expected \{'stream': bytes"):
        UnitCosts(stream_bytes=3)  # type: ignore[arg-type]


def test_tuple_sizes_come_from_the_streams() -> None:
    units = UnitCosts(tuple_bytes=100, stream_bytes={"A": 7}, match_bytes=1, member_bytes=2)
    found = dt.optimizer.plan_queries({"q1": query("AB"), "q2": query("AB", "BC")}, units=units)
    by_id = {node.id: node.load.memory for node in found.nodes.values()}
    assert by_id["window:A"] == pytest.approx(10 * 10 * 7)
    assert by_id["window:B"] == pytest.approx(12 * 10 * 100)
    assert by_id["state:A+B"] == pytest.approx(10 * 12 * 0.002 * 100 * 5)


def test_exact_refuses_too_many_sub_joins() -> None:
    names = [f"S{number}" for number in range(8)]
    star = dt.JoinGraph(
        dict.fromkeys(names, 1.0), {(names[0], name): 0.1 for name in names[1:]}, dict.fromkeys(names, 1.0)
    )
    with pytest.raises(dt.PlanError, match=r"(?s)sub-joins or more could be materialized.*'exchange'"):
        dt.optimizer.plan_queries({"q": star}, None, "exact")


# -- exact is exact: brute force that shares no code with it ---------------------------------------------------------------------


def size(names: frozenset[str]) -> float:
    edges = [value for pair, value in SIGMA.items() if set(pair) <= names]
    return prod(RATES[name] * 10 for name in names) * prod(edges)


def connected(names: frozenset[str]) -> bool:
    reached = {min(names)}
    while grown := {n for e in SIGMA if reached & set(e) and set(e) <= names for n in e} - reached:
        reached |= grown
    return reached == names


def subsets(names: frozenset[str]) -> Iterator[frozenset[str]]:
    for count in range(2, len(names) + 1):
        yield from filter(connected, map(frozenset, combinations(sorted(names), count)))


def partitions(names: frozenset[str], states: frozenset[frozenset[str]]) -> Iterator[list[frozenset[str]]]:
    """Yield the ways to compose a set from base inputs and materialized joins."""
    if not names:
        yield []
        return
    first = min(names)
    for part in [frozenset(first), *(state for state in states if first in state and state <= names)]:
        for rest in partitions(names - part, states):
            yield [part, *rest]


def join_cost(parts: list[frozenset[str]]) -> float:
    """Return the least cost over every order of every driver, without cross products."""
    total = 0.0
    for driver in parts:
        best = inf
        for order in permutations([part for part in parts if part != driver]):
            sets = [frozenset(chain(driver, *order[:place])) for place in range(1, len(order) + 1)]
            if all(map(connected, sets)):
                best = min(best, sum(map(size, sets)) * len(driver) / 10)
        total += best
    return total * UNITS.join


def brute_force(queries: list[frozenset[str]], memory: float) -> float:
    """Return the least CPU over all sets of materialized joins and all ways to use them."""
    possible = sorted({part for names in queries for part in subsets(names)}, key=sorted)
    streams = frozenset(chain(*queries))
    best = inf
    for count in range(len(possible) + 1):
        for states in map(frozenset, combinations(possible, count)):
            if sum(RATES[name] * 10 for name in streams) + sum(map(size, states)) > memory:
                continue
            cpu = sum(RATES[name] for name in streams) * UNITS.keep
            cpu += sum(size(state) * len(state) / 10 * UNITS.keep for state in states)
            for names in {*queries, *states}:
                usable = frozenset(state for state in states if state < names)
                cpu += min(join_cost(parts) for parts in partitions(names, usable))
            best = min(best, cpu)
    return best


@pytest.mark.parametrize("memory", [640.0, 700.0, 900.0, 1e9])
@pytest.mark.parametrize(
    "edges", [[("AB", "BC"), ("AB", "BD")], [("AB", "BC", "CD"), ("BC", "CD")], [("AB", "BC"), ("BC",), ("CD",)]]
)
def test_feasibility_and_cost_match_brute_force(
    edges: list[tuple[str, ...]], memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [frozenset("".join(each)) for each in edges]
    # All edges of figure 3-1 between the streams of a query: some of these are cycles.
    queries = {f"q{number}": query(*(pair for pair in SIGMA if set(pair) <= each)) for number, each in enumerate(names)}
    best = brute_force(names, memory)
    monkeypatch.setattr("dovetail.optimizer.sharing.search.exchange.MAX_CANDIDATES", 0)  # disable the fallback to exact
    for strategy in ("exact", "exchange"):
        assert plan(queries, best * 1.0001, memory, strategy=strategy).load.cpu == pytest.approx(best)
        with pytest.raises(dt.BudgetError, match="no plan fits the budget"):
            plan(queries, best * 0.9999, memory, strategy=strategy)
