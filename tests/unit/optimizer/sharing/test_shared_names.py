"""Sharing compares names, so user-chosen names never collide with each other or with generated ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import StrategyOption
from dovetail.errors import BudgetError, PlanError
from dovetail.schema import TIMESTAMP

W = "[RANGE 5 s]"
PLAIN = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int64())])


def one(schema: pa.Schema, *values: int | None) -> pa.Table:
    return pa.table([pa.array([0], TIMESTAMP), *([value] for value in values)], schema=schema)


def session(
    streams: dict[str, pa.Schema], queries: dict[str, str], strategy: StrategyOption = "auto"
) -> dt.LocalSession:
    made = dt.LocalSession(config=dt.Config(strategy=strategy, adaptive=False))
    for name, schema in streams.items():
        made.stream(name, schema, "ts")
    for name, sql in queries.items():
        made.query(name, sql)
    return made


def counts(made: dt.LocalSession, tables: dict[str, pa.Table]) -> dict[str, int]:
    return {name: table.num_rows for name, table in made.push(tables).items()}


def test_a_column_named_like_a_number_is_not_a_literal() -> None:
    odd = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64()), ("1", pa.int64())])
    start = f"SELECT a.ts FROM a {W}, b {W} WHERE a.k = b.x AND "
    made = session({"a": odd, "b": PLAIN}, {"q1": start + "a.v - 1 > 0", "q2": start + "a.v - a.`1` > 0"})
    assert counts(made, {"a": one(odd, 1, 1, 0), "b": one(PLAIN, 1, 2)}) == {"q1": 0, "q2": 1}


def test_dots_in_names_do_not_confuse_streams_and_columns() -> None:
    left = pa.schema([("ts", TIMESTAMP), ("b.c", pa.int64()), ("b.d", pa.int64())])
    right = pa.schema([("ts", TIMESTAMP), ("c", pa.int64()), ("d", pa.int64())])
    start = f"SELECT p.ts FROM a p {W}, `a.b` q {W}, c r {W} WHERE "
    queries = {"q1": start + "p.`b.c` = r.x AND q.d = r.y", "q2": start + "q.c = r.x AND p.`b.d` = r.y"}
    made = session({"a": left, "a.b": right, "c": PLAIN}, queries)
    assert counts(made, {"a": one(left, 1, 99), "a.b": one(right, 98, 2), "c": one(PLAIN, 1, 2)}) == {"q1": 1, "q2": 0}


@pytest.mark.parametrize("strategy", ["auto", "bjtree", "exchange"])
def test_queries_may_be_named_like_joins(strategy: StrategyOption) -> None:
    queries = {
        "q1": f"SELECT a.x FROM a {W}, b {W} WHERE a.x = b.x",
        "q2": f"SELECT a.x FROM a {W}, b [RANGE 1 s] WHERE a.x = b.x",
        "join:q1": f"SELECT a.x FROM a {W}, c {W} WHERE a.y = c.y",
        "state:a+b": f"SELECT a.x FROM a {W}, b {W}, c {W} WHERE a.x = b.x AND b.x = c.x",
    }
    made = session(dict.fromkeys("abc", PLAIN), queries, strategy)
    assert counts(made, {name: one(PLAIN, 1, 1) for name in "abc"}) == dict.fromkeys(queries, 1)
    assert all(name in str(made.explain()) for name in queries)
    restored = dt.LocalSession.restore(made.snapshot())
    assert set(restored.push({})) == set(queries)


@pytest.mark.parametrize("strategy", ["auto", "bjtree", "exchange"])
@pytest.mark.parametrize(
    ("odd", "first"),
    [
        ("state:a+b", f"SELECT a.x FROM a {W}, b {W}, c {W} WHERE a.x = b.x AND b.x = c.x"),
        ("a #2", f"SELECT p.x FROM a p {W}, a q {W}, b {W} WHERE p.x = q.x AND q.x = b.x"),
        ("a where x > 1", f"SELECT p.x FROM a p {W}, b q {W}, c {W} WHERE p.x = q.x AND p.x > 0 AND q.x = c.x"),
        ("b settled", f"SELECT p.x FROM a p [ROWS 3], b q {W} WHERE p.x = q.x"),
        ("a @shards 0 to 1", f"SELECT a.x FROM a {W}, b {W} WHERE a.x = b.x"),
    ],
)
def test_streams_may_be_named_like_nodes_of_a_plan(odd: str, first: str, strategy: StrategyOption) -> None:
    queries = {"q1": first, "q2": f"SELECT p.x FROM `{odd}` p {W}, a {W}, b q {W} WHERE p.x = q.x AND a.x = q.x"}
    made = session({"a": PLAIN, "b": PLAIN, "c": PLAIN, odd: PLAIN}, queries, strategy)
    found = counts(made, {name: one(PLAIN, 1, 1) for name in ("a", "b", "c", odd)})
    later = made.advance(dict.fromkeys(("a", "b", "c", odd), 10_000_000))
    assert {name: found[name] + later[name].num_rows for name in queries} == {"q1": 1, "q2": 1}


def test_a_query_that_cannot_be_planned_is_not_registered() -> None:
    streams = dict.fromkeys("abcde", PLAIN)
    wide = "SELECT a.ts FROM " + ", ".join(f"{name} {W}" for name in streams)
    wide += " WHERE a.x = b.x AND b.x = c.x AND c.x = d.x AND d.x = e.x"
    made = session(streams, {}, "exact")
    with pytest.raises(PlanError, match="sub-joins"):
        made.query("wide", wide)
    made.query("small", f"SELECT a.x FROM a {W}, b {W} WHERE a.x = b.x")
    assert set(made.push({})) == {"small"}


def test_forced_orders_apply_when_another_query_shares_the_join() -> None:
    sql = f"SELECT a.x FROM a {W}, b {W}, c {W} WHERE a.x = b.x AND b.x = c.x"
    for names in (("free", "forced"), ("forced", "free")):
        made = session(dict.fromkeys("abc", PLAIN), {}, "bjtree")
        for name in names:
            made.query(name, sql, {"a": ("c", "b")} if name == "forced" else None)
        assert counts(made, {name: one(PLAIN, 1, 1) for name in "abc"}) == {"free": 1, "forced": 1}
        run = made._engine.run_of("forced")
        assert run.runners["a"].path.order == ("a", "c", "b")


def test_explain_follows_added_and_dropped_queries() -> None:
    sql = "SELECT a.x FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.x = b.x AND b.x = c.x"
    made = session(dict.fromkeys("abc", PLAIN), {"long": sql, "short": sql.replace("9 s", "2 s")}, "bjtree")
    made.push({name: one(PLAIN, 1, 1) for name in "abc"})
    made.drop_query("long")
    plan: Any = made.explain().to_dict()["plan"]
    assert set(plan["queries"]) == {"short"}
    assert {entry["seconds"] for entry in plan["windows"].values()} == {2.0}
    assert plan["queries"]["short"]["narrower_windows"] == {}
    made.query("late", sql)
    shown: Any = made.explain().to_dict()
    assert set(shown["queries"]) == {"short", "late"}
    made.drop_query("short")
    assert "plan" not in made.explain().to_dict()
    made.drop_query("late")
    assert "plan for" not in str(made.explain())


def test_a_budget_error_shows_the_limit_as_given() -> None:
    made = dt.LocalSession(dt.Budget(cpu_ms_per_second=0.0123))
    for name in "ab":
        made.stream(name, PLAIN, "ts", rate=10_000.0)
    with pytest.raises(BudgetError, match=r"0\.0123"):
        made.query("pairs", f"SELECT a.x FROM a {W}, b {W} WHERE a.x = b.x")


def test_memory_is_released_when_a_query_is_dropped() -> None:
    sql = "SELECT a.x FROM a [RANGE 60 s], b [RANGE 60 s], c [RANGE 60 s] WHERE a.x = b.x AND b.x = c.x"
    made = session(dict.fromkeys("abc", PLAIN), {"long": sql, "short": sql.replace("60 s", "1 s")}, "bjtree")

    def push(second: int, rows: int = 400) -> None:
        times = pa.array([second * 1_000_000 + n * 1_000_000 // rows for n in range(rows)], TIMESTAMP)
        values = pa.array([n * 7 % 97 + 97 * (second % 5) for n in range(rows)])
        made.push({name: pa.table([times, values, values], schema=PLAIN) for name in "abc"})

    for second in range(70):
        push(second)
    before: Any = made.metrics()["nodes"]["states"]
    made.drop_query("long")
    for second in range(70, 80):
        push(second)
    after: Any = made.metrics()["nodes"]["states"]
    for name, figures in after.items():
        assert figures["bytes"] < before[name]["bytes"] / 4
