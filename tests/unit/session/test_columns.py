"""Columns as text are read as Spark reads them, and written so that they are read again."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt


def test_every_type_survives() -> None:
    text = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g string, h binary, i boolean, j date, k timestamp, "
        "l timestamp_ntz, m decimal(10,2), `n, o` int, `p``q` int"
    )
    assert dt.columns_text(dt.parse_columns(text)) == text
    assert dt.parse_columns("A: long, b INTEGER , c varchar(3), d decimal") == pa.schema(
        {"A": pa.int64(), "b": pa.int32(), "c": pa.string(), "d": pa.decimal128(10, 0)}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ts timestmap", "column 'ts' has type 'timestmap'; allowed: 'tinyint', .*\nHint: did you mean 'timestamp'"),
        ("a int(3)", r"column 'a' has type 'int\(3\)'"),
        ("a array<int>", "the columns have 'a array<int>'; each is a name and a type\nHint: write 'ts timestamp"),
        ("a int,", "the columns have ''; each is a name"),
        ("a decimal(39)", r"'decimal\(39\)'\nHint: decimal\(p,s\) needs s <= p <= 38"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(dt.SchemaError, match=message):
        dt.parse_columns(text)


def test_a_session_takes_columns_as_text() -> None:
    session = dt.LocalSession()
    session.stream("a", "ts timestamp, k bigint", event_time="ts")
    session.query("q", "SELECT x.k FROM a x [RANGE 9 s], a y [RANGE 9 s] WHERE x.k = y.k AND x.ts < y.ts")
    rows = pa.table([[1, 2], [7, 7]], schema=dt.parse_columns("ts timestamp, k bigint"))
    assert session.push({"a": rows})["q"].num_rows == 1
    with pytest.raises(dt.SchemaError, match="stream 'b': column 'ts' has type 'time'"):
        session.stream("b", "ts time", event_time="ts")


def test_columns_that_have_no_text() -> None:
    with pytest.raises(dt.SchemaError, match=r"column 'a' has type list<item: int64>"):
        dt.columns_text(pa.schema({"a": pa.list_(pa.int64())}))
