"""A shared plan is lowered to steps by itself: its nodes carry the expressions of its queries."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import PlanError
from dovetail.optimizer.expressions import with_expressions
from dovetail.optimizer.graph.hints import hints_for
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import PlanningOptions, plan_query
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import SharedPlan
from dovetail.plan.subset import restrict_plan
from dovetail.query.model import MaterializedWindow, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

COLUMNS = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("x", pa.int64())])
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "abc"}
SQL = {
    "pairs": "SELECT p.x FROM a [RANGE 10 SECONDS] AS p, b [RANGE 10 SECONDS] AS q WHERE p.k = q.k AND p.x > 3",
    "triples": "SELECT a.x FROM a [RANGE 20 SECONDS], b [RANGE 10 SECONDS], c [RANGE 5 SECONDS] "
    "WHERE a.k = b.k AND b.k = c.k AND a.x > 3 AND a.x < c.x",
}
CONFIG = dt.Config(strategy="bjtree")


@pytest.fixture
def plans() -> dict[str, QueryPlan]:
    options = PlanningOptions({frozenset(pair): 1e-6 for pair in ("pq", "ab")})
    queries = {name: parse_query(name, sql, STREAMS) for name, sql in SQL.items()}
    return {
        name: plan_query(query, STREAMS, CONFIG, replace(options, hints=hints_for(options.hints, query.refs)))
        for name, query in queries.items()
    }


@pytest.fixture
def plan(plans: dict[str, QueryPlan]) -> SharedPlan:
    return JointPlanning(plans, CONFIG).plan()


def test_nodes_carry_expressions_windows_and_outputs(plan: SharedPlan, plans: dict[str, QueryPlan]) -> None:
    joins = {join.output: join.expressions for join in plan.joins}
    assert joins["answer:pairs"] is None
    below, triples = (expressions for expressions in joins.values() if expressions is not None)
    assert {source.stream: source.window for source in below.sources} == {
        "a": TimeWindow(20_000_000),
        "c": TimeWindow(5_000_000),
    }
    assert [len(source.filters) for source in below.sources] == [1, 0]
    assert isinstance(triples.query.refs[0].window, MaterializedWindow)
    assert [condition.text for condition in below.query.conditions] == ["a.x < c.x"]
    assert [answer.plan for answer in plan.answers] == list(plans.values())
    steps = {step.name: step for step in Lowering(STREAMS, CONFIG).steps(plan)}
    assert steps["pairs"].plan.query == plans["pairs"].query
    assert steps["join:triples"].columns == triples.columns


def test_a_restricted_plan_has_the_expressions_of_the_queries_that_are_left(
    plan: SharedPlan, plans: dict[str, QueryPlan]
) -> None:
    part = restrict_plan(plan, ["pairs"])
    assert part is not None
    with pytest.raises(PlanError, match="no expressions for query 'pairs'"):
        Lowering(STREAMS, CONFIG).steps(part)
    (step,) = Lowering(STREAMS, CONFIG).steps(with_expressions(part, plans))
    assert step.is_individual
    assert step.plan.query == plans["pairs"].query


def test_expressions_are_added_once(plan: SharedPlan, plans: dict[str, QueryPlan]) -> None:
    assert with_expressions(plan, plans) is plan
