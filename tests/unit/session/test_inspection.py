"""Dropped tuples and windows of a session in this process; random runs are in tests/laws."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt

SCHEMA = pa.schema({"ts": pa.timestamp("s", "UTC"), "k": pa.int64()})
PAIRS = "SELECT x.k FROM a x [RANGE 9 s], a y [RANGE 9 s] WHERE x.k = y.k AND x.ts < y.ts"


def session_of(schema: pa.Schema = SCHEMA) -> dt.LocalSession:
    session = dt.LocalSession()
    session.stream("a", schema, event_time="ts")
    session.query("pairs", PAIRS)
    return session


def test_pushes_add_to_the_same_dict() -> None:
    session, dropped = session_of(), dict[str, pa.Table]()
    session.push({"a": pa.table([[1, 20], [7, 8]], schema=SCHEMA)}, dropped=dropped)
    assert dropped == {}
    session.push({"a": pa.table([[1, 30], [7, 8]], schema=SCHEMA)}, dropped=dropped)
    session.push({"a": pa.table([[None, 2], [9, 5]], schema=SCHEMA)}, dropped=dropped)
    assert dropped["a"].select(["k", "_reason"]).to_pylist() == [
        {"k": 7, "_reason": "late"},
        {"k": 9, "_reason": "no event time"},
        {"k": 5, "_reason": "late"},
    ]
    assert dropped["a"].schema.names == ["ts", "k", "_reason"]


def test_a_refused_batch_drops_nothing() -> None:
    session, dropped = session_of(), dict[str, pa.Table]()
    session.push({"a": pa.table([[20], [8]], schema=SCHEMA)})
    for batch in ({"a": pa.table({"ts": [1]})}, {"a": pa.table([[1], [7]], schema=SCHEMA), "b": None}):
        with pytest.raises(dt.DovetailError):
            session.push(batch, dropped=dropped)
    assert dropped == {}


def test_anything_but_a_dict_is_refused() -> None:
    with pytest.raises(dt.ConfigError, match=r"push\(dropped=\.\.\.\) is a list.*\nHint: write dropped = \{\}"):
        session_of().push({}, dropped=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_queries", "_reason"])
def test_a_column_of_the_same_name_is_refused(name: str) -> None:
    session = session_of(SCHEMA.append(pa.field(name, pa.string())))
    table = pa.table([[1], [1], ["x"]], schema=SCHEMA.append(pa.field(name, pa.string())))
    session.push({"a": table})
    with pytest.raises(dt.SchemaError, match=f"stream 'a' has a column '{name}'"):
        session.windows() if name == "_queries" else session.push({"a": table}, dropped={})


def test_windows_of_queries_with_count_windows_have_names_of_their_own() -> None:
    session = session_of()
    assert session.windows() == {}
    session.query("rows", PAIRS.replace("x [RANGE 9 s]", "x [ROWS 3]"))
    session.push({"a": pa.table([[1, 20], [7, 8]], schema=SCHEMA)})
    windows = session.windows()
    assert sorted(windows) == ["a", "a settled"]
    assert windows["a"].column("_queries").to_pylist() == [["pairs"]]
