"""Joins of many streams, conditions and queries are planned once, in bounded work, and give exact results."""

from __future__ import annotations

import cProfile
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.optimizer.graph.from_query import declared_rates, join_graph
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.sharing import plan_queries
from dovetail.optimizer.sharing.model.translate import name_query
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64())])


def wide_sql(names: list[str], shape: str = "key") -> str:
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in names)
    if shape == "star":
        conditions = [f"{names[0]}.k + {place} = {name}.k" for place, name in enumerate(names[1:])]
    elif shape == "chain":
        conditions = [f"{left}.k + {place} = {right}.v" for place, (left, right) in enumerate(pairwise(names))]
    else:
        conditions = [f"{left}.k = {right}.k" for left, right in pairwise(names)]
    return f"SELECT {names[0]}.k AS k, {names[-1]}.v AS v FROM {windows} WHERE {' AND '.join(conditions)}"


def session_of(names: list[str], config: dt.Config | None = None) -> dt.LocalSession:
    session = dt.LocalSession(config=config)
    for number, name in enumerate(names):
        session.stream(name, COLUMNS, "ts", rate=100.0 + number)
    return session


# -- planned once ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["key", "chain", "star"])
def test_orders_are_searched_once(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Any] = []

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            searches.append(given)
            return method(*given, **options)

        return call

    monkeypatch.setitem(METHODS, "weave", counted(METHODS["weave"]))
    names = [f"s{number}" for number in range(12)]
    session = session_of(names)
    session.query("q", wide_sql(names, shape))
    session.push({names[0]: pa.table([pa.array([0], TIMESTAMP), [1], [1]], schema=COLUMNS)})
    assert len(searches) == 1


def test_adding_a_query_costs_no_more_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget, earlier queries are not replanned; all queries are planned together once."""
    planned: list[int] = []

    def counted(queries: dict[str, Any], *given: Any, **options: Any) -> Any:
        planned.append(len(queries))
        return plan_queries(queries, *given, **options)

    monkeypatch.setattr("dovetail.optimizer.joint.plan_queries", counted)
    names = ["a", "b", "c"]
    session = session_of(names)
    for number in range(20):
        session.query(f"q{number}", wide_sql(names).replace("10 SECONDS", f"{number + 1} SECONDS"))
    session.metrics()
    session.snapshot()
    assert planned == [1] * 20
    for _ in range(2):
        session.explain()
    session.push({})
    assert planned == [1] * 20 + [20]


@pytest.mark.parametrize("shape", ["key", "chain", "star"])
def test_the_work_of_planning_thirty_streams_is_bounded(shape: str) -> None:
    """Counts calls instead of time: registering and explaining a common key once made 20 million."""
    names = [f"s{number}" for number in range(30)]
    session = session_of(names)
    sql = wide_sql(names, shape)
    profile = cProfile.Profile()
    profile.enable()
    session.query("q", sql)
    session.explain()
    profile.disable()
    assert sum(each.callcount for each in profile.getstats()) < 5_000_000


# -- exact -----------------------------------------------------------------------------------------------------------------------


def batches(names: list[str], seed: int, count: int) -> Iterator[dict[str, pa.Table]]:
    """Yield batches with each key once per stream, a few twice, so that the nested-loop oracle stays fast."""
    rng = random.Random(seed)
    for number in range(count):
        batch = {}
        for name in names:
            keys = [key for key in range(number * 3, number * 3 + 3) if rng.random() < 0.98]
            keys += keys[:1] if name in names[::20] else []
            times = sorted(rng.randrange(number * 4_000_000, (number + 1) * 4_000_000) for _ in keys)
            values = [rng.randrange(3) for _ in keys]
            batch[name] = pa.table([pa.array(times, TIMESTAMP), keys, values], schema=COLUMNS)
        yield batch


@pytest.mark.parametrize("adaptive", [True, False])
def test_fifty_streams_are_joined_exactly(adaptive: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr("dovetail.engine.join.watch.CHECK_AFTER", 1)
    names = [f"s{number}" for number in range(50)]
    sql = wide_sql(names)
    session = session_of(names, dt.Config(adaptive=adaptive))
    streams = [StreamSchema(name, COLUMNS, "ts") for name in names]
    oracle = Oracle(streams)
    session.query("q", sql)
    oracle.add_query(parse_query("q", sql, {stream.name: stream for stream in streams}))
    found = []
    for batch in batches(names, 1, 6):
        found.append(session.push(batch)["q"])
        oracle.push(batch)
    wanted = oracle.results_table("q")
    assert wanted.num_rows > 3
    assert_same_rows(pa.concat_tables(found), wanted)


def test_more_aliases_of_one_stream_than_a_word_has_bits() -> None:
    """Each alias has its own flag in the one window and its own bit in the planner's sets."""
    columns = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
    aliases = [f"a{number}" for number in range(70)]
    session = dt.LocalSession()
    session.stream("s", columns, "ts")
    windows = ", ".join(f"s {alias} [RANGE 1 SECOND]" for alias in aliases)
    equal = " AND ".join(f"{left}.k = {right}.k" for left, right in pairwise(aliases))
    session.query("q", f"SELECT a0.k AS first, a69.k AS last FROM {windows} WHERE {equal} AND a69.k > 1")
    found = session.push({"s": pa.table([pa.array([1, 2, 3, 4], TIMESTAMP), [0, 1, 2, 3]], schema=columns)})["q"]
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(2, 2), (3, 3)]


def test_seven_hundred_conditions_between_two_streams() -> None:
    """Their default selectivities multiply to less than the smallest float, which join graphs once refused."""
    session = session_of(["a", "b"])
    conditions = " AND ".join(f"a.v + {number} < b.v + {number + 2}" for number in range(700))
    session.query("q", f"SELECT a.v AS x, b.v AS y FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE {conditions}")
    rows = pa.table([pa.array([0, 0, 0], TIMESTAMP), [0, 0, 0], [1, 3, 5]], schema=COLUMNS)
    found = session.push({"a": rows, "b": rows})["q"].to_pydict()
    assert sorted(zip(found["x"], found["y"], strict=True)) == [(1, 1), (1, 3), (1, 5), (3, 3), (3, 5), (5, 5)]


def test_source_names_are_built_in_one_pass() -> None:
    """Counts calls instead of time: writing each level of an IN twice once made 10 million for 600 values."""
    streams = {name: StreamSchema(name, COLUMNS, "ts") for name in "ab"}
    values = ", ".join(map(str, range(600)))
    sql = f"SELECT a.v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k AND a.v IN ({values})"
    query = parse_query("q", sql, streams)
    profile = cProfile.Profile()
    profile.enable()
    name_query(query, join_graph(query, declared_rates(query, streams), {}))
    profile.disable()
    assert sum(each.callcount for each in profile.getstats()) < 100_000
