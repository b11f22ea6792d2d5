"""A function gives NULL for a value outside its domain."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt


def _bytes_as_text(*values: bytes) -> pa.Array:
    """Build strings of invalid UTF-8, which Arrow accepts unless asked to validate."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("column", "expression", "expected"),
    [
        (_bytes_as_text(b"\xff\xfe", b"AB", b"\xc3\x84"), "lower(a.v)", [None, "ab", "ä"]),
        (_bytes_as_text(b"\xff\xfe", b"ab", b"\xc3\xa4"), "upper(a.v)", [None, "AB", "Ä"]),
        (_bytes_as_text(b" \xff ", b" b ", b"c"), "trim(a.v)", [None, "b", "c"]),
        (_bytes_as_text(b"\xff\xfe", b"abc", b""), "substring(a.v, 1, 2)", [None, "ab", ""]),
        (_bytes_as_text(b"\xff\xfe", b"abc", b""), "substring(a.v, -2, 2)", [None, "bc", ""]),
        (
            pa.array([2**62, 0, -(2**62)], pa.int64()).view(pa.date64()),
            "CAST(a.v AS STRING)",
            [None, "1970-01-01", None],
        ),
        (
            pa.array([2**62, 86_400_000, -(2**62)], pa.int64()).view(pa.date64()),
            "CAST(a.v AS TIMESTAMP) > TIMESTAMP '1970-01-01 00:00:00'",
            [None, True, None],
        ),
        (
            pa.array([2**31 - 1, 0, -(2**31)], pa.int32()).view(pa.date32()),
            "CAST(a.v AS STRING)",
            [None, "1970-01-01", None],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["output", "condition"])
def test_functions_give_null_outside_their_domain(
    column: pa.Array, expression: str, expected: list[object], place: str
) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("v", column.type)])
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, schema, "ts")
    join = "FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.n = b.n"
    if place == "output":
        session.query("q", f"SELECT a.n, {expression} AS x {join}")
    else:
        session.query("q", f"SELECT a.n {join} AND (({expression}) IS NULL OR b.n < 0)")
    table = pa.table([pa.array([0, 0, 0], schema.field("ts").type), [0, 1, 2], column], schema=schema)
    rows = session.push({"a": table, "b": table})["q"].sort_by("n").to_pylist()
    if place == "output":
        assert [row["x"] for row in rows] == expected
    else:
        assert [row["n"] for row in rows] == [number for number, value in enumerate(expected) if value is None]
