"""SQL queries share joins of equal meaning and no others."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.optimizer.graph.from_query import declared_rates, join_graph
from dovetail.optimizer.sharing.model.named import NamedGraph, name_graph
from dovetail.optimizer.sharing.model.query_set import number_queries
from dovetail.optimizer.sharing.model.translate import name_query
from dovetail.plan.shared_plan import PlanSource, SharedPlan
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

COLUMNS = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        *((name, pa.int64()) for name in "xyz"),
        ("i", pa.int32()),
        ("t", pa.string()),
    ]
)
STREAMS = {
    name: StreamSchema(name, COLUMNS, "ts", 0, rate=rate) for name, rate in {"a": 20.0, "b": 10.0, "c": 5.0}.items()
}


def asked(sql: str, window: str = "RANGE 10 SECONDS") -> NamedGraph:
    """Complete a query given without SELECT; a bare entry of FROM gets a window."""
    tables, _, where = sql.partition(" WHERE ")
    entries = [entry if "[" in entry else f"{entry} [{window}]" for entry in tables.split(", ")]
    first = entries[0].split()[1]
    query = parse_query("q", f"SELECT {first}.x AS x FROM {', '.join(entries)} WHERE {where}", STREAMS)
    return name_query(query, join_graph(query, declared_rates(query, STREAMS), {}))


def planned(*queries: str) -> SharedPlan:
    return dt.optimizer.plan_queries({f"q{number}": asked(sql) for number, sql in enumerate(queries)}, None)


def shared(*queries: str) -> set[tuple[str, ...]]:
    return {state.sources for state in planned(*queries).materialized if len(state.queries) > 1}


def common(larger: str, smaller: str) -> bool:
    """Whether one query is a sub-join of the other."""
    query_set = number_queries({"larger": asked(larger), "smaller": asked(smaller)})
    return bool(query_set.mask(query_set.signature(1, query_set.queries[1].all), 0))


THIRD = "a a, b b, c c WHERE a.x = b.x AND b.y = c.y"


def test_aliases_do_not_matter() -> None:
    assert planned("a a, b b WHERE a.x = b.x", "b k, a l WHERE k.x = l.x").results[0].queries == ("q0", "q1")
    found = planned(THIRD, "b p, c q, a r WHERE p.y = q.y AND p.x = r.x")
    assert found.answer("q0").result == found.answer("q1").result
    assert found.answer("q1").aliases == {"a": "r", "b": "p", "c": "q"}


def test_a_common_sub_join_is_shared() -> None:
    assert ("b", "c") in shared(THIRD, "b k, c l WHERE k.y = l.y")


def test_filters_are_part_of_a_source() -> None:
    assert shared("a a, b b, c c WHERE a.x = b.x AND b.y = c.y AND b.z > 5", "b k, c l WHERE k.y = l.y") == set()
    found = planned(
        "b b, c c WHERE b.y = c.y AND b.z > 5 AND b.x = 3", "b k, c l WHERE l.y = k.y AND 3 = k.x AND 5 < k.z"
    )
    assert found.answer("q0").result == found.answer("q1").result
    (source,) = (source for source in found.sources.values() if source.stream == "b")
    assert source == PlanSource("b where x = 3 and z > 5", "b", ("x = 3", "z > 5"))
    # One window, whatever the filters.
    assert [
        window.stream for window in planned("b b, c c WHERE b.y = c.y AND b.z > 5", "b b, c c WHERE b.y = c.y").windows
    ] == [
        "b",
        "c",
    ]


def test_the_same_streams_on_other_columns_are_another_join() -> None:
    assert shared(THIRD, "b k, c l WHERE k.x = l.y") == set()
    assert shared(THIRD, "b k, c l WHERE k.y = l.y AND k.z < l.z") == set()


def test_the_sides_of_a_condition_do_not_matter() -> None:
    first, second = "b b, c c WHERE b.y = c.y AND b.z < c.z", "c l, b k WHERE k.y = l.y AND l.z > k.z"
    found = planned(first, second)
    assert found.answer("q0").result == found.answer("q1").result
    assert found.top("q0").predicates == ("b.z < c.z", "b.y = c.y")
    assert len(planned(first, second.replace(">", ">=")).results) == 2


def test_an_equality_implied_by_a_common_key_is_shared() -> None:
    chain, pair = "a a, b b, c c WHERE a.x = b.x AND b.x = c.x", "a l, c k WHERE k.x = l.x"
    assert common(chain, pair)
    assert not common(chain.replace("b.x = c.x", "b.y = c.x"), pair)


def test_keys_with_different_casts_are_not_shared() -> None:
    found = planned("a a, b b WHERE a.i = b.i", "a a, b b WHERE a.i = b.x")
    assert len(found.results) == 2


def test_time_windows_share_the_longest() -> None:
    queries = {
        "short": asked("b b, c c WHERE b.y = c.y", "RANGE 10 SECONDS"),
        "long": asked("b b, c c WHERE b.y = c.y", "RANGE 1 MINUTE"),
    }
    found = dt.optimizer.plan_queries(queries)
    assert found.answer("short").result == found.answer("long").result
    assert found.narrower_windows("short") == {"b": 10, "c": 10}


def test_count_windows_are_part_of_a_source_and_never_materialized() -> None:
    counted = "a a, b b [ROWS 100], c c WHERE a.x = b.x AND b.y = c.y"
    found = planned(counted, counted, counted.replace("100", "50"))
    assert found.answer("q0").result == found.answer("q1").result
    assert found.answer("q2").result != found.answer("q0").result
    assert all("last" not in source for state in found.materialized for source in state.sources)
    assert {source.name for source in found.sources.values() if not source.materializable} == {
        "a settled",
        "b settled [last 100]",
        "b settled [last 50]",
        "c settled",
    }


def test_a_stream_joined_with_itself() -> None:
    twice = "b k, b l, a a WHERE k.x = l.y AND a.z = l.z"
    found = planned(twice, THIRD)
    assert found.answer("q0").aliases == {"a": "a", "b": "l", "b #2": "k"}
    assert [window.stream for window in found.windows] == ["a", "b", "c"]
    # The entry joined with the other stream keeps the stream's own name, so that it can be shared.
    assert common(twice, "a m, b n WHERE n.z = m.z")
    assert not common(twice, "a m, b n WHERE n.x = m.z")


def test_numbering_of_equal_entries_does_not_depend_on_position() -> None:
    found = planned("b k, b l WHERE k.x = l.y", "b n, b m WHERE m.x = n.y")
    assert found.answer("q0").result == found.answer("q1").result


def test_a_named_graph_must_name_each_input_once() -> None:
    graph = dt.JoinGraph({"A": 1, "B": 1}, {("A", "B"): 0.1}, {"A": 1, "B": 1})
    with pytest.raises(dt.PlanError, match="sources are given for 'A'; the inputs are 'A', 'B'"):
        NamedGraph(graph, {"A": PlanSource("A", "A")}, (), ())
    with pytest.raises(dt.PlanError, match=r"(?s)two inputs are the same source.*occurrence"):
        NamedGraph(graph, {"A": PlanSource("s", "s"), "B": PlanSource("s", "s")}, (), ())
    assert [predicate.text for predicate in name_graph(graph).predicates] == ["A-B 0.1"]
