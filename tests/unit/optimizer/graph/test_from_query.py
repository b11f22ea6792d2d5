"""The join graph of a query: classes, hints, conditions that connect nothing, windows of zero length."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.optimizer.graph.from_query import declared_rates, join_graph
from dovetail.optimizer.graph.hints import hints_for, parse_hint
from dovetail.optimizer.planner import PlanningOptions, plan_query
from dovetail.plan.query_plan import DEFAULT_CONDITION
from dovetail.query.model import StreamRef
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), *((name, pa.int64()) for name in "xyz")])
STREAMS = {"s": StreamSchema("s", COLUMNS, "ts", 0, rate=10.0)}


def graph_of(
    where: str, aliases: str = "abc", window: str = "RANGE 1 SECOND", hints: dict[str, float] | None = None
) -> dt.JoinGraph:
    tables = ", ".join(f"s {alias} [{window}]" for alias in aliases)
    query = parse_query("q", f"SELECT a.x AS x FROM {tables} WHERE {where}", STREAMS)
    pairs = {frozenset(pair): value for pair, value in (hints or {}).items()}
    return join_graph(query, declared_rates(query, STREAMS), pairs)


def test_a_common_key_is_a_class() -> None:
    graph = graph_of("a.x = b.x AND b.x = c.x")
    assert graph.classes == (("a", "b", "c"),)
    assert graph.shape == "complete"  # a.x = c.x is implied
    assert graph.extension(["a"], "b") == pytest.approx(10 * 0.01)
    assert graph.extension(["a", "b"], "c") == pytest.approx(10 * 0.01)  # not 0.01 twice


def test_a_hint_on_one_edge_applies_to_the_whole_key() -> None:
    graph = graph_of("a.x = b.x AND b.x = c.x", hints={"ab": 0.001})
    for pair in ("ab", "bc", "ac"):
        assert graph.selectivity(*pair) == pytest.approx(0.001)
    assert graph.extension(["a", "b"], "c") == pytest.approx(10 * 0.001)


def test_a_hint_may_name_streams() -> None:
    """An alias precedes a stream of the same name, and a hint by aliases precedes one by streams."""
    streams = {name: StreamSchema(name, COLUMNS, "ts", 0) for name in ("views", "clicks", "c")}
    sql = (
        "SELECT v.x FROM views v [RANGE 1 s], views w [RANGE 1 s], clicks c [RANGE 1 s], clicks views [RANGE 1 s] "
        "WHERE v.x = c.x AND w.x = c.x AND views.x = c.x"
    )
    refs = parse_query("q", sql, streams).refs
    by_stream, by_alias = parse_hint("clicks.x = v.x", 0.5, streams), parse_hint("c.x = v.x", 0.25, streams)
    for hints in (by_stream | by_alias, by_alias | by_stream):
        assert hints_for(hints, refs) == {frozenset(("c", "v")): 0.25, frozenset(("views", "v")): 0.5}
    assert hints_for(parse_hint("views.x = c.x", 0.5, streams), refs) == {frozenset(("views", "c")): 0.5}
    renamed = [StreamRef(ref.alias.replace("views", "d"), ref.stream, ref.window) for ref in refs]
    pairs = {frozenset((first, second)) for first in "vw" for second in "cd"}
    assert hints_for(parse_hint("views.x = clicks.x", 0.5, streams), renamed) == dict.fromkeys(pairs, 0.5)
    assert hints_for(parse_hint("views.x = orders.x", 0.5, streams), renamed) == {}


@pytest.mark.parametrize("hints", [{"ab": 0.001, "bc": 0.1}, {"ab": 0.2, "bc": 0.3, "ac": 0.01}, {"ab": 1.0}])
def test_each_hint_applies_to_its_own_pair(hints: dict[str, float]) -> None:
    graph = graph_of("a.x = b.x AND b.x = c.x AND a.y = b.y AND a.z < b.z", hints=hints)
    for pair, value in hints.items():
        assert graph.selectivity(*pair) == pytest.approx(value)


def test_a_comparison_between_connected_aliases_adds_no_edge() -> None:
    graph = graph_of("a.x = b.x AND b.y = c.y AND a.z < c.z")
    assert not graph.connected(["a"], "c")
    assert graph.extension(["a", "b"], "c") == pytest.approx(10 * 0.01 * DEFAULT_CONDITION)
    plan = plan_query(
        parse_query(
            "q",
            "SELECT a.x AS x FROM s a [RANGE 1 SECOND], s b [RANGE 1 SECOND], s c [RANGE 1 SECOND] "
            "WHERE a.x = b.x AND b.y = c.y AND a.z < c.z",
            STREAMS,
        ),
        STREAMS,
        dt.Config(join="hash"),  # which refuses to probe c from a
        PlanningOptions(parse_hint("a.z < c.z", 0.0001, STREAMS)),
    )
    assert [path.order for path in plan.paths] == [("a", "b", "c"), ("b", "a", "c"), ("c", "b", "a")]


def test_a_comparison_is_an_edge_where_no_equality_connects() -> None:
    graph = graph_of("a.x = b.x AND b.y < c.y", hints={"bc": 0.25})
    assert graph.connected(["b"], "c")
    assert graph.selectivity("b", "c") == 0.25
    assert graph_of("a.x < b.x AND b.x < c.x").shape == "linear"


def test_a_condition_over_three_aliases_connects_them_and_counts_once() -> None:
    graph = graph_of("a.x + b.x = c.x")
    assert graph.shape == "complete"
    assert graph.extension(["a"], "b") * graph.extension(["a", "b"], "c") == pytest.approx(100 * DEFAULT_CONDITION)


def test_windows_of_no_length_and_of_rows() -> None:
    assert graph_of("a.x = b.x", "ab", window="RANGE 0 SECONDS").windows == {"a": 1e-6, "b": 1e-6}
    assert graph_of("a.x = b.x", "ab", window="ROWS 50").windows == {"a": 5.0, "b": 5.0}
