"""Long and deep queries run, or are refused with the limit named; IN is exact in every type."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from time import process_time
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.evaluate import evaluate
from dovetail.errors import QueryError
from dovetail.query.expressions import Call, Column, Literal
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import values

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema({"ts": TS, "k": pa.int64(), "x": pa.int64(), "s": pa.string(), "f": pa.float64()})
STREAMS = {name: StreamSchema(name, SCHEMA, "ts") for name in "ab"}
START = "SELECT a.x FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k AND "
NUMBERS = 1000


def pushed(where: str) -> int:
    """Return the rows of a query over the numbers below 1,000 on both sides, joined by ten keys."""
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, SCHEMA, event_time="ts")
    session.query("q", START + where)
    numbers = list(range(NUMBERS))
    table = pa.table([numbers, [i % 100 for i in numbers], numbers, list(map(str, numbers)), numbers], schema=SCHEMA)
    return int(session.push({"a": table, "b": table})["q"].num_rows)


def listed(values: Iterable[object], joint: str = ", ") -> str:
    return joint.join(map(str, values))


LONG = {
    "IN": (f"a.x IN ({listed(range(0, 4000, 2))})", 5000),
    "IN of texts": (f"a.s IN ({listed(map(repr, map(str, range(0, 4000, 2))))})", 5000),
    "OR": (f"({listed((f'a.x = b.x + {i}' for i in range(0, 5000, 100)), ' OR ')})", 5500),
    "OR of 2,000": (f"({listed((f'a.x = b.x + {i}' for i in range(2000)), ' OR ')})", 5500),
    "AND between two": (f"{listed((f'a.x <> b.x + {i}' for i in range(700)), ' AND ')}", 10_000 - 1000 * 7 + 2100),
    "AND": (f"{listed((f'a.x <> {i}' for i in range(2000)), ' AND ')}", 0),
    "||": (f"LENGTH({listed(['b.s'] * 1000, ' || ')}) = 1000 AND a.x = b.x", 10),
    "parentheses": (f"{'(' * 100}a.x = 1{')' * 100}", 10),
}


@pytest.mark.parametrize("where", LONG, ids=list(LONG))
def test_long_queries_are_planned_quickly(where: str) -> None:
    text, rows = LONG[where]
    began = process_time()
    assert pushed(text) == rows
    assert process_time() - began < 8  # IN with 2,000 values once took 32 s


def test_planning_time_is_proportional_to_length() -> None:
    def seconds(count: int) -> float:
        began = process_time()
        parse_query("q", START + f"a.x IN ({listed(range(count))})", STREAMS)
        return process_time() - began

    seconds(10)
    longer = min(seconds(8000) for _ in range(3))
    assert longer < 20 * max(seconds(1000), 0.05)  # once 64 times as long


def test_a_flat_chain_of_5000_is_not_nested() -> None:
    for word in (" OR ", " AND "):
        query = parse_query("q", START + f"({listed((f'a.x + b.x <> {i}' for i in range(5000)), word)})", STREAMS)
        assert len(query.conditions) == (1 if word == " OR " else 5000)


@pytest.mark.parametrize(
    "deep",
    [
        f"a.x = {'(1 + ' * 150}1{')' * 150}",
        f"a.x = {listed(['b.x'] * 150, ' + ')}",
        f"a.x = {'ABS(' * 150}b.x{')' * 150}",
        f"a.x = {'CASE WHEN a.x = 1 THEN 2 ELSE ' * 150}1{' END' * 150}",
        f"a.x = CASE {listed(f'WHEN a.x = {i} THEN {i}' for i in range(150))} END".replace(", WHEN", " WHEN"),
        f"{'NOT ' * 150}a.x = b.x",
        f"{'(' * 5000}a.x = b.x{')' * 5000}",
        f"a.x = {listed(['b.x'] * 5000, ' + ')}",
    ],
)
def test_deep_queries_are_refused_with_the_limit(deep: str) -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(QueryError, match="at most 100"):
        parse_query("q", START + deep, STREAMS)
    with pytest.raises(QueryError, match="at most 100"):
        parse_query("q", f"SELECT {deep} AS y FROM a [ROWS 1], b [ROWS 1] WHERE a.k = b.k", STREAMS)
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "deep", [f"a.x = {'(1 + ' * 95}1{')' * 95}", f"a.x = {listed(['b.x'] * 95, ' + ')}", f"{'NOT ' * 95}a.x = b.x"]
)
def test_the_deepest_allowed_query_runs(deep: str) -> None:
    assert pushed(deep) > 0


NAN = float("nan")
DECIMAL = pa.decimal128(20, 2)
NTZ = pa.timestamp("us")
MEMBERS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "int": (pa.int64(), [1, 2, None, 3], [1, 3]),
    "null listed": (pa.int64(), [1, 2, None], [1, None]),
    "only nulls": (pa.int64(), [1, None], [None, None]),
    "zeros": (pa.float64(), [0.0, -0.0, 1.0, NAN, None], [-0.0, 2.0]),
    "nan": (pa.float64(), [NAN, 1.0, None], [NAN, 2.0]),
    "float": (pa.float32(), [1.5, NAN, -0.0], [1.5, 0.0]),
    "decimal": (DECIMAL, [Decimal("1.00"), Decimal("-2.50"), None], [Decimal("1.00"), Decimal("2.50")]),
    "text": (pa.string(), ["", "a", None, "é"], ["", "é"]),
    "binary": (pa.binary(), [b"", b"\xff", None], [b"\xff", b"x"]),
    "bool": (pa.bool_(), [True, False, None], [True, True]),
    "date": (pa.date32(), [date(1969, 12, 31), date(2024, 1, 1), None], [date(1969, 12, 31), date(2025, 1, 1)]),
    "timestamp": (TS, [-1, 0, None], [-1, 5]),
    "timestamp_ntz": (NTZ, [-1, 0, None], [0, 5]),
    "interval": (pa.duration("us"), [-1, 0, None], [0, 5]),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_in_agrees_between_engine_and_oracle(case: str) -> None:
    dtype, column, constants = MEMBERS[case]
    call = Call("in", (Column("a", "x", dtype), *(Literal(value, dtype) for value in constants)), pa.bool_())
    array = values.arrow_column(column, dtype)
    expected = [values.evaluate(call, {"a": {"x": value}}) for value in column]
    either = [
        values.evaluate(
            Call(
                "or",
                tuple(Call("eq", (call.arguments[0], each), pa.bool_()) for each in call.arguments[1:]),
                pa.bool_(),
            ),
            {"a": {"x": value}},
        )
        for value in column
    ]
    assert expected == either
    assert evaluate(call, lambda _: array, len(array)).to_pylist() == expected


@pytest.mark.parametrize(
    ("condition", "bound"),
    [
        ("a.x IN (1)", "eq(a.x, 1)"),
        ("a.x IN (1, 2)", "in(a.x, 1, 2)"),
        ("a.x NOT IN (1, 2)", "not(in(a.x, 1, 2))"),
        ("a.x IN (1, NULL, 2)", "in(a.x, 1, None, 2)"),
        ("a.x IN (1, 2, a.k)", "or(in(a.x, 1, 2), eq(a.x, a.k))"),
        ("a.x IN (1, 2.5)", "in(cast(a.x, decimal128(21, 1)), Decimal('1.0'), Decimal('2.5'))"),
        ("a.x IN (1, 2, 1e0)", "in(cast(a.x, double), 1.0, 2.0, 1.0)"),
        ("a.f IN (1, 2.5)", "in(a.f, 1.0, 2.5)"),
        ("a.ts IN (DATE '1970-01-01', TIMESTAMP '1970-01-01 00:00:01')", "in(a.ts, 0, 1000000)"),
    ],
)
def test_in_compares_in_one_type(condition: str, bound: str) -> None:
    assert str(parse_query("q", START + condition, STREAMS).filters[0].expression) == bound


def test_in_refuses_incomparable_types() -> None:
    with pytest.raises(QueryError, match="cannot compare bigint with string"):
        parse_query("q", START + "a.x IN (1, 'b')", STREAMS)
