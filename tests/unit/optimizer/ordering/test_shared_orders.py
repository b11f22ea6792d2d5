"""Probe orders of several queries, chosen together to share stages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.optimizer import joint
from dovetail.optimizer.graph.from_query import join_graph
from dovetail.optimizer.ordering import shared_orders as shared
from dovetail.optimizer.planner import access_rule, plan_query
from dovetail.plan.paths import PathBuilder
from dovetail.plan.prefixes import shareable_prefix, shareable_prefixes, sharing_steps
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.int64()), ("v", pa.int64())])
CONFIG = dt.Config(adaptive=False)
RATES = {"a": 10.0, "b": 5.0, "c": 6.0, "d": 5.0, "e": 8.0}


def session(queries: Mapping[str, str], config: dt.Config = CONFIG, **orders: Any) -> dt.LocalSession:
    made = dt.LocalSession(config=config)
    for name, rate in RATES.items():
        made.stream(name, COLUMNS, "ts", rate=rate)
    for name, text in queries.items():
        made.query(name, text, orders.get(name))
    return made


def star(*others: str, most: int = 9) -> str:
    """Return a join of `a` with others by its key; queries differ by a filter."""
    windows = ", ".join(f"{name} [RANGE 9 s]" for name in ("a", *others))
    links = " AND ".join(f"a.k = {name}.k" for name in others)
    return f"SELECT a.ts FROM {windows} WHERE {links} AND a.v < {most}"


# Alone, `left` would probe b first, which is smaller than c, and `right` d. c is the first choice of neither, but all can share it.
STARS = {f"left{most}": star("b", "c", most=most) for most in range(6, 10)}
STARS |= {f"right{most}": star("c", "d", most=most) for most in range(6, 10)}


def orders_of(made: dt.LocalSession, driver: str = "a", queries: Sequence[str] = ()) -> dict[str, list[str]]:
    described: Any = made.explain().to_dict()
    wanted = queries or described["queries"]
    return {name: [stage["alias"] for stage in described["queries"][name]["paths"][driver]] for name in wanted}


def test_queries_give_up_their_best_orders_to_share_a_stage() -> None:
    made = session(STARS)
    assert {tuple(order[:2]) for order in orders_of(made).values()} == {("a", "c")}
    assert "shared with left6, left7, left8, left9, right7" in str(made.explain())
    with patch.object(joint, "can_share_orders", return_value=False):
        apart = orders_of(session(STARS))
    assert apart["left6"] == ["a", "b", "c"]
    assert apart["right6"] == ["a", "d", "c"]


def test_the_shared_plan_lists_the_orders_that_run() -> None:
    queries = STARS | {"same": STARS["left6"]}
    described: Any = session(queries).explain().to_dict()
    for name, join in described["plan"]["joins"].items():
        run = described["joins"].get(name) or described["queries"][join["queries"][0]]
        orders = {driver: [stage["alias"] for stage in path[1:]] for driver, path in run["paths"].items()}
        assert [_streams(order) for order in join["orders"].values()] == [_streams(order) for order in orders.values()]


def _streams(sources: Sequence[str]) -> list[str]:
    return [source[0] for source in sources]


def test_a_single_query_keeps_its_own_orders() -> None:
    text = star("b", "c", "d")
    streams = {name: StreamSchema(name, COLUMNS, "ts", rate=rate) for name, rate in RATES.items()}
    own = plan_query(parse_query("q", text, streams), streams, CONFIG)
    with patch.object(joint, "choose_shared_orders", side_effect=AssertionError):
        made = session({"q": text})
        for path in own.paths:
            assert orders_of(made, path.driver)["q"] == list(path.order)


def test_forced_orders_are_never_changed() -> None:
    asked = {"left6": {"a": ("b", "c")}, "right6": {"a": ("d", "c"), "c": ("a", "d")}}
    made = session(STARS, CONFIG, **asked)
    for name, orders in asked.items():
        for driver, order in orders.items():
            assert orders_of(made, driver, [name]) == {name: [driver, *order]}


@pytest.mark.parametrize(
    "config",
    [
        dt.Config(ordering="f-greedy"),
        dt.Config(ordering="dmjoin"),
        dt.Config(driver_policy="timestamp"),
        dt.Config(join="nested-loop"),
    ],
)
def test_explicit_methods_and_unshareable_paths_are_left_alone(config: dt.Config) -> None:
    found = orders_of(session(STARS, config))
    with patch.object(joint, "can_share_orders", return_value=False):
        assert found == orders_of(session(STARS, config))


def test_too_few_queries_for_a_tree_change_nothing() -> None:
    few = {name: STARS[name] for name in ("left6", "right6")}
    assert orders_of(session(few)) == {"left6": ["a", "b", "c"], "right6": ["a", "d", "c"]}


def random_queries(rng: random.Random, count: int) -> dict[str, str]:
    """Draw connected queries of two to seven inputs, with self-joins and conditions over several inputs."""
    found = {}
    for number in range(count):
        aliases = {f"x{place}": rng.choice("abcde") for place in range(rng.choice((2, 3, 3, 4, 4, 5, 7)))}
        windows = ", ".join(f"{stream} {alias} [RANGE {rng.choice((3, 9))} s]" for alias, stream in aliases.items())
        conditions = []
        for place, alias in enumerate(list(aliases)[1:]):
            column = rng.choice("kj")
            conditions.append(f"x{rng.randint(0, place)}.{column} = {alias}.{column}")
        if rng.random() < 0.2:
            conditions.append("x0.v < x1.v")
        conditions += [f"{alias}.v < 3" for alias in aliases if rng.random() < 0.3]
        found[f"q{number}"] = f"SELECT x0.ts FROM {windows} WHERE {' AND '.join(conditions)}"
    return found


def candidates(rng: random.Random, count: int) -> list[shared.ReorderableJoin]:
    streams = {name: StreamSchema(name, COLUMNS, "ts", rate=rng.choice((1.0, 5.0, 20.0))) for name in "abcde"}
    found = []
    for name, text in random_queries(rng, count).items():
        plan = plan_query(parse_query(name, text, streams), streams, CONFIG)
        edges = sorted(join_graph(plan.query, plan.stats.rates, {}).edges, key=sorted)
        hints = {pair: rng.choice((0.3, 0.05, 0.01)) for pair in edges}
        graph = join_graph(plan.query, {alias: rng.uniform(1, 20) for alias in plan.query.aliases}, hints)
        orders = {path.driver: path.order for path in plan.paths}
        fixed = [alias for alias in plan.query.aliases if rng.random() < 0.1]
        access = access_rule(plan.query, graph, CONFIG)
        found.append(shared.ReorderableJoin(name, plan.query, graph.indexed, access, orders, fixed))
    return found


def cost(joins: Sequence[shared.ReorderableJoin], changed: Mapping[tuple[str, str], tuple[str, ...]]) -> float:
    """Compute the cost of all trees from scratch, stage by stage, with some orders changed."""
    stages: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    whole = 0.0
    for join in joins:
        maker = PathBuilder(join.query)
        for driver, order in join.orders.items():
            taken = changed.get((join.name, driver), order)
            path = maker.path(driver, taken, join.access)
            prefix = shareable_prefix(join.query, path)
            numbers = [join.graph.names.index(alias) for alias in taken]
            rows, joined = join.graph.rates[numbers[0]], 1 << numbers[0]
            for depth, number in enumerate(numbers[1:], 1):
                made = rows * join.graph.extension(joined, number)
                if depth <= len(prefix):
                    stages.setdefault((join.query.ref(driver).stream, *prefix[:depth]), []).append((rows, made))
                elif path.stages[depth].access == "hash":
                    whole += rows + 2 * made
                else:
                    whole += rows * join.graph.sizes[number] + made
                rows, joined = made, joined | 1 << number
    return whole + sum(max(came for came, _ in each) + 2 * max(made for _, made in each) for each in stages.values())


@pytest.mark.parametrize("seed", range(30))
def test_shared_orders_never_increase_the_cost(seed: int) -> None:
    rng = random.Random(seed)
    joins = candidates(rng, rng.choice((2, 5, 12, 30)))
    changed = shared.choose_shared_orders(joins).orders
    assert cost(joins, changed) <= cost(joins, {}) * (1 + 1e-9)
    by_name = {join.name: join for join in joins}
    for (name, driver), order in changed.items():
        join = by_name[name]
        assert driver not in join.fixed
        assert order != join.orders[driver]
        assert order[0] == driver
        assert sorted(order) == sorted(join.orders)
    assert shared.choose_shared_orders(joins).orders == changed
    settled = [
        shared.ReorderableJoin(
            join.name,
            join.query,
            join.graph,
            join.access,
            {driver: changed.get((join.name, driver), order) for driver, order in join.orders.items()},
            join.fixed,
        )
        for join in joins
    ]
    again = shared.choose_shared_orders(
        settled, 1.2
    ).orders  # as in a running session: the same statistics change nothing
    assert not again or cost(settled, again) < cost(settled, {})


def test_queries_that_differ_by_a_filter_share_all_stages() -> None:
    made = session({f"q{number}": star("b", "c", most=number) for number in range(40)})
    made.push({})
    steps = [run.step for run in made._engine.runs]
    assert all(len(others) == 39 for path in sharing_steps(shareable_prefixes(steps)["a"]).values() for others in path)


def rows(rng: random.Random, count: int, begin: float, keys: int) -> pa.Table:
    times = sorted(int(1e6 * (begin + rng.random())) for _ in range(count))
    drawn = [[rng.randrange(most) for _ in times] for most in (keys, keys, 10)]
    return pa.table([times, *drawn], schema=COLUMNS)


def running(*, drifts: bool) -> dt.LocalSession:
    """Run queries that share c for 30 seconds; then, with `drifts`, c becomes ten times as fast."""
    made, rng = session(STARS, dt.Config()), random.Random(3)
    for second in range(80):
        rates = RATES | ({"c": 60.0} if drifts and second > 30 else {})
        made.push({name: rows(rng, 10 * int(rate), second, 3000) for name, rate in rates.items()})
    return made


def test_steady_statistics_keep_the_shared_orders() -> None:
    assert {tuple(order) for order in orders_of(running(drifts=False)).values()} == {("a", "c", "b"), ("a", "c", "d")}


def test_a_shared_stage_that_became_expensive_is_given_up_by_all_queries() -> None:
    assert {tuple(order) for order in orders_of(running(drifts=True)).values()} == {("a", "b", "c"), ("a", "d", "c")}
