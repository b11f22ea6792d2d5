"""Queries of a local session from registration to removal, and its metrics."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa
import pytest
from two_streams import COUNTED, GOOD, PAIRS, SCHEMA, SECOND, TS, counters, empty_session, running_session, table

import dovetail as dt
from dovetail._display import iso_time
from dovetail.config import Join
from dovetail.errors import DovetailWarning, SchemaError


def test_pushing_before_the_first_query_warns() -> None:
    session = empty_session()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.push({}) == {}
    session = empty_session()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DovetailWarning, match=r"before any query was registered(.|\n)*Hint: call query"):
            session.push({"a": table((10, 1, "x"))})
    session.query("pairs", PAIRS)  # nothing has changed: the batch can be pushed again
    found = session.push({"a": table((10, 1, "x")), "b": table((10, 1, "y"))})["pairs"]
    assert found.num_rows == 1


def test_push_without_queries_advances_event_time() -> None:
    session = empty_session()
    assert session.push({"a": table((10, 1, "x"))}) == {}
    assert session.push({"a": table((8, 1, "late"), (9, 1, "not late"))}) == {}
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["late"], streams["a"]["state_tuples"]) == (3, 1, 0)
    assert streams["a"]["max_event_time"] == iso_time(10 * SECOND)
    assert streams["b"]["max_event_time"] is None
    session.query("pairs", PAIRS)
    # The query does not reset event time: a tuple at 8 s is still late, and the one pushed before is not seen.
    found = session.push({"a": table((8, 1, "late"), (9.5, 2, "x")), "b": table((10, 1, "y"), (10, 2, "z"))})["pairs"]
    assert found.to_pylist() == [{"k": 2, "left_p": "x", "right_p": "z"}]


def test_a_query_sees_tuples_after_its_registration_only() -> None:
    session = empty_session()
    session.query("early", PAIRS)
    session.push({"a": table((1, 1, "before"))})
    session.query("late", PAIRS)
    session.query("late counted", COUNTED)
    results = session.push({"b": table((2, 1, "y"))})
    assert (results["early"].num_rows, results["late"].num_rows) == (1, 0)
    results = session.push({"a": table((3, 1, "after")), "b": table((3, 1, "z"))})
    assert (results["early"].num_rows, results["late"].num_rows) == (3, 2)
    results = session.push({"a": table((30, 1, "far"))})
    assert results["late counted"].num_rows == 2


def test_a_dropped_query_frees_its_state_and_its_name() -> None:
    session = running_session()
    session.drop_query("pairs")
    assert set(session.push({"b": table((3, 1, "b3"))})) == {"counted"}
    assert "pairs" not in session.metrics()["queries"]
    session.query("pairs", PAIRS)
    assert session.push({"b": table((3, 1, "b3"))})["pairs"].num_rows == 0
    session.drop_query("pairs")
    session.drop_query("counted")
    assert session.push({"b": table((3, 1, "b3"))}) == {}
    assert session.metrics()["streams"]["a"]["state_tuples"] == 0


def test_a_stream_that_no_query_uses_keeps_nothing() -> None:
    session = running_session()
    session.stream("c", SCHEMA, "ts")
    before = counters(session)["streams"]["a"]
    for second in range(10):
        session.push({"c": table((second, 1, "c"))})
    assert session.metrics()["streams"]["c"]["state_tuples"] == 0
    assert counters(session)["streams"]["a"] == before
    with pytest.raises(SchemaError, match="stream 'c': missing"):
        session.push({"c": GOOD.drop_columns("k")})


def test_more_queries_than_flags_in_a_word() -> None:
    # Each alias of each query has a flag bit per row: 100 queries need two words, and freed bits are reused.
    session = empty_session()
    for number in range(100):
        session.query(f"q{number}", f"{PAIRS} AND a.k > {number % 5}")
    for number in range(0, 100, 2):
        session.drop_query(f"q{number}")
    for number in range(0, 100, 4):
        session.query(f"q{number}", f"{PAIRS} AND b.k <= {number % 5}")
    session = dt.LocalSession.restore(session.snapshot())
    keys = table(*((1, k, "x") for k in range(5)))
    found = session.push({"a": keys, "b": keys})
    assert len(found) == 75
    for name, result in found.items():
        number = int(name[1:])
        assert result.num_rows == (number % 5 + 1 if number % 4 == 0 else 4 - number % 5), name


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("x", pa.int64(), [None, 5]), ("x?", pa.int64(), [7, 8])),
        (("x", pa.string(), ["aa", "b"]), ("x@", pa.int64(), [7, 8])),
        (("x", pa.string(), ["aa", "b"]), ("x#", pa.int64(), [7, 8])),
        (("x", pa.list_(pa.int32()), [[1], [2]]), ("x>", pa.int64(), [7, 8])),
    ],
    ids=["x and x?", "x and x@", "x and x#", "x and x>"],
)
def test_column_names_do_not_collide(first: tuple[str, Any, list[Any]], second: tuple[str, Any, list[Any]]) -> None:
    columns = pa.schema([("ts", TS), ("k", pa.int64()), *((name, dtype) for name, dtype, _ in (first, second))])
    session = dt.LocalSession()
    for stream in ("a", "b"):
        session.stream(stream, columns, "ts")
    session.query("q", "SELECT * FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k")
    arrays = [pa.array(values, dtype) for _, dtype, values in (first, second)]
    whole = pa.Table.from_arrays([pa.array([0, 1], TS), pa.array([1, 2]), *arrays], schema=columns)
    found = session.push({"a": whole, "b": whole})["q"].sort_by("a_k")
    for name, _, values in (first, second):
        assert found.column(f"a_{name}").to_pylist() == values
        assert found.column(f"b_{name}").to_pylist() == values


def test_key_names_do_not_collide() -> None:
    columns = pa.schema([("ts", TS), ("a", pa.int64()), ("b", pa.int64()), ("a|.b", pa.int64())])
    session = dt.LocalSession()
    session.stream("s", columns, "ts")
    session.stream("u", columns, "ts")
    session.query("both", "SELECT x.a FROM s x [RANGE 1 s], u y [RANGE 1 s] WHERE x.a = y.a AND x.b = y.b")
    session.query("one", "SELECT x.a FROM s x [RANGE 1 s], u y [RANGE 1 s] WHERE x.`a|.b` = y.`a|.b`")
    whole = pa.Table.from_arrays(
        [pa.array([0, 1], TS), pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], schema=columns
    )
    found = session.push({"s": whole, "u": whole})
    assert (found["both"].num_rows, found["one"].num_rows) == (2, 2)


# -- metrics ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("join", "access", "rows_read"), [("hash", "hash", [0, 2]), ("nested-loop", "scan", [0, 4])])
def test_metrics_of_a_small_case(join: Join, access: str, rows_read: list[int]) -> None:
    # Streams are joined in declared order. New tuples of a probe an empty b; those of b probe both of a.
    #     a   0s:1  1s:2
    #     b         1s:1  2s:1
    session = dt.LocalSession(config=dt.Config(join=join))
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    session.push({"b": table((1, 1, "b1"), (2, 1, "b2")), "a": table((0, 1, "a0"), (1, 2, "a1"))})
    metrics = counters(session)
    stream = {"arrivals": 2, "late": 0, "ahead": 0, "max_event_time": iso_time(1 * SECOND), "state_tuples": 2}
    assert {name: metrics["streams"]["a"][name] for name in stream} == stream
    assert isinstance(metrics["streams"]["a"]["state_bytes"], int)
    assert metrics["streams"]["a"]["state_bytes"] > 0
    query = metrics["queries"]["pairs"]
    assert (query["results"], query["probes"], query["rows_read"], query["matches"]) == (2, 4, sum(rows_read), 2)
    paths: Any = query["paths"]
    for driver, other, rows, matches in (("a", "b", rows_read[0], 0), ("b", "a", rows_read[1], 2)):
        assert [stage["alias"] for stage in paths[driver]] == [driver, other]
        assert paths[driver][0]["access"] == "new"
        assert paths[driver][1] == {
            "alias": other,
            "access": access,
            "probes": 2,
            "rows_read": rows,
            "matches": matches,
        }

    session.push({"a": table((0.5, 1, "late"), (1, 1, "not late"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["late"], streams["a"]["state_tuples"]) == (4, 1, 3)
    assert session.metrics()["queries"]["pairs"]["results"] == 4

    session.push({"b": table((11, 9, "b"))})
    # a holds the tuples that b at 11 s or later can match: from 1 s on. b waits for a, which is at 1 s.
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (2, 3)
    session.push({"a": table((100, 9, "a"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (3, 0)
    session.push({"b": table((200, 9, "b"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (0, 1)


def test_metrics_survive_a_restart() -> None:
    session = running_session()
    restored = dt.LocalSession.restore(session.snapshot())
    assert counters(restored)["streams"] == counters(session)["streams"]
    for name, query in session.metrics()["queries"].items():
        assert restored.metrics()["queries"][name]["results"] == query["results"]
