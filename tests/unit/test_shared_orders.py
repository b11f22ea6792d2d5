"""Probe orders of many queries, chosen together."""

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
from dovetail.plan.paths import PathMaker
from dovetail.plan.prefixes import sharers, stems
from dovetail.plan.prefixes import stem as stem_of
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
    """`a` joined with others by its key; what tells queries apart is a filter."""
    windows = ", ".join(f"{name} [RANGE 9 s]" for name in ("a", *others))
    links = " AND ".join(f"a.k = {name}.k" for name in others)
    return f"SELECT a.ts FROM {windows} WHERE {links} AND a.v < {most}"


# Alone, `left` would probe b first, which is smaller than c, and `right` d. Nobody's first choice is c, but all can share it.
STARS = {f"left{most}": star("b", "c", most=most) for most in range(6, 10)}
STARS |= {f"right{most}": star("c", "d", most=most) for most in range(6, 10)}


def orders_of(made: dt.LocalSession, driver: str = "a", queries: Sequence[str] = ()) -> dict[str, list[str]]:
    described: Any = made.explain("dict")
    wanted = queries or described["queries"]
    return {name: [stage["alias"] for stage in described["queries"][name]["paths"][driver]] for name in wanted}


def test_a_stage_that_is_nobodys_first_choice_is_shared_by_all() -> None:
    made = session(STARS)
    assert {tuple(order[:2]) for order in orders_of(made).values()} == {("a", "c")}
    assert "shared with left6, left7, left8, left9, right7" in str(made.explain())
    with patch.object(joint, "are_chosen_together", return_value=False):
        apart = orders_of(session(STARS))
    assert apart["left6"] == ["a", "b", "c"]
    assert apart["right6"] == ["a", "d", "c"]


def test_the_plan_of_all_queries_says_the_orders_that_run() -> None:
    queries = STARS | {"same": STARS["left6"]}
    described: Any = session(queries).explain("dict")
    for name, join in described["plan"]["joins"].items():
        run = described["joins"].get(name) or described["queries"][join["queries"][0]]
        orders = {driver: [stage["alias"] for stage in path[1:]] for driver, path in run["paths"].items()}
        assert [_streams(order) for order in join["orders"].values()] == [_streams(order) for order in orders.values()]


def _streams(sources: Sequence[str]) -> list[str]:
    return [source[0] for source in sources]


def test_one_query_has_the_orders_that_it_had() -> None:
    text = star("b", "c", "d")
    streams = {name: StreamSchema(name, COLUMNS, "ts", rate=rate) for name, rate in RATES.items()}
    own = plan_query(parse_query("q", text, streams), streams, CONFIG)
    with patch.object(joint, "chosen_together", side_effect=AssertionError):
        made = session({"q": text})
        for path in own.paths:
            assert orders_of(made, path.driver)["q"] == list(path.order)


def test_orders_that_a_user_gave_stay() -> None:
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
def test_methods_asked_for_by_name_and_paths_that_share_nothing_are_left_alone(config: dt.Config) -> None:
    found = orders_of(session(STARS, config))
    with patch.object(joint, "are_chosen_together", return_value=False):
        assert found == orders_of(session(STARS, config))


def test_what_is_too_little_for_a_tree_changes_nothing() -> None:
    few = {name: STARS[name] for name in ("left6", "right6")}
    assert orders_of(session(few)) == {"left6": ["a", "b", "c"], "right6": ["a", "d", "c"]}


def random_queries(rng: random.Random, count: int) -> dict[str, str]:
    """Connected queries of two to seven inputs, streams also twice, some with conditions over several inputs."""
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


def candidates(rng: random.Random, count: int) -> list[shared.Candidate]:
    streams = {name: StreamSchema(name, COLUMNS, "ts", rate=rng.choice((1.0, 5.0, 20.0))) for name in "abcde"}
    found = []
    for name, text in random_queries(rng, count).items():
        plan = plan_query(parse_query(name, text, streams), streams, CONFIG)
        edges = sorted(join_graph(plan.query, plan.known.rates, {}).edges, key=sorted)
        hints = {pair: rng.choice((0.3, 0.05, 0.01)) for pair in edges}
        graph = join_graph(plan.query, {alias: rng.uniform(1, 20) for alias in plan.query.aliases}, hints)
        orders = {path.driver: path.order for path in plan.paths}
        fixed = [alias for alias in plan.query.aliases if rng.random() < 0.1]
        access = access_rule(plan.query, graph, CONFIG)
        found.append(shared.Candidate(name, plan.query, graph.indexed, access, orders, fixed))
    return found


def cost(joins: Sequence[shared.Candidate], changed: Mapping[tuple[str, str], tuple[str, ...]]) -> float:
    """What all trees cost with some orders changed, worked out stage by stage and anew."""
    stages: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    whole = 0.0
    for join in joins:
        maker = PathMaker(join.query)
        for driver, order in join.orders.items():
            taken = changed.get((join.name, driver), order)
            path = maker.path(driver, taken, join.access)
            stem = stem_of(join.query, path)
            numbers = [join.graph.names.index(alias) for alias in taken]
            rows, joined = join.graph.rates[numbers[0]], 1 << numbers[0]
            for depth, number in enumerate(numbers[1:], 1):
                made = rows * join.graph.extension(joined, number)
                if depth <= len(stem):
                    stages.setdefault((join.query.ref(driver).stream, *stem[:depth]), []).append((rows, made))
                elif path.stages[depth].access == "hash":
                    whole += rows + 2 * made
                else:
                    whole += rows * join.graph.sizes[number] + made
                rows, joined = made, joined | 1 << number
    return whole + sum(max(came for came, _ in each) + 2 * max(made for _, made in each) for each in stages.values())


@pytest.mark.parametrize("seed", range(30))
def test_trees_never_become_dearer(seed: int) -> None:
    rng = random.Random(seed)
    joins = candidates(rng, rng.choice((2, 5, 12, 30)))
    changed = shared.chosen_together(joins).orders
    assert cost(joins, changed) <= cost(joins, {}) * (1 + 1e-9)
    by_name = {join.name: join for join in joins}
    for (name, driver), order in changed.items():
        join = by_name[name]
        assert driver not in join.fixed
        assert order != join.orders[driver]
        assert order[0] == driver
        assert sorted(order) == sorted(join.orders)
    assert shared.chosen_together(joins).orders == changed
    settled = [
        shared.Candidate(
            join.name,
            join.query,
            join.graph,
            join.access,
            {driver: changed.get((join.name, driver), order) for driver, order in join.orders.items()},
            join.fixed,
        )
        for join in joins
    ]
    again = shared.chosen_together(settled, 1.2).orders  # as while queries run: the same statistics undo nothing
    assert not again or cost(settled, again) < cost(settled, {})


def test_queries_that_differ_by_a_filter_share_all_stages() -> None:
    made = session({f"q{number}": star("b", "c", most=number) for number in range(40)})
    made.push({})
    steps = [run.step for run in made._engine.runs]
    assert all(len(others) == 39 for path in sharers(stems(steps)["a"]).values() for others in path)


def rows(rng: random.Random, count: int, begin: float, keys: int) -> pa.Table:
    times = sorted(int(1e6 * (begin + rng.random())) for _ in range(count))
    drawn = [[rng.randrange(most) for _ in times] for most in (keys, keys, 10)]
    return pa.table([times, *drawn], schema=COLUMNS)


def running(*, drifts: bool) -> dt.LocalSession:
    """Queries that share c for 30 seconds; then, if it drifts, c comes ten times as fast as it did."""
    made, rng = session(STARS, dt.Config()), random.Random(3)
    for second in range(80):
        rates = RATES | ({"c": 60.0} if drifts and second > 30 else {})
        made.push({name: rows(rng, 10 * int(rate), second, 3000) for name, rate in rates.items()})
    return made


def test_statistics_as_they_were_planned_by_undo_nothing() -> None:
    assert {tuple(order) for order in orders_of(running(drifts=False)).values()} == {("a", "c", "b"), ("a", "c", "d")}


def test_a_stage_that_has_become_dear_is_left_by_all_who_share_it() -> None:
    assert {tuple(order) for order in orders_of(running(drifts=True)).values()} == {("a", "b", "c"), ("a", "d", "c")}
