"""Every operation and cast of the oracle, value by value."""

import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import QueryError
from dovetail.query.expressions import OPERATIONS, Call, Literal, cast
from dovetail.schema import TIMESTAMP
from dovetail.testing import values
from dovetail.testing.values import evaluate, rows_of

SECOND = 1_000_000
BOOL, INT, LONG, FLOAT, DOUBLE, TEXT = pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()


def call(operation: str, dtype: pa.DataType, *arguments: tuple[Any, pa.DataType]) -> Any:
    return evaluate(Call(operation, tuple(Literal(value, kind) for value, kind in arguments), dtype), {})


MONEY = pa.decimal128(5, 2)
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("operation", "dtype", "arguments", "wanted"),
    [
        ("add", INT, [(2**31 - 1, INT), (1, INT)], None),
        ("add", LONG, [(2**31 - 1, LONG), (1, LONG)], 2**31),
        ("negate", INT, [(-(2**31), INT)], None),
        ("abs", pa.int8(), [(-128, pa.int8())], None),
        ("add", FLOAT, [(1e38, FLOAT), (3e38, FLOAT)], INF),
        ("multiply", DOUBLE, [(1e308, DOUBLE), (-10.0, DOUBLE)], -INF),
        ("divide", DOUBLE, [(1.0, DOUBLE), (-0.0, DOUBLE)], None),
        ("divide", DOUBLE, [(7.0, DOUBLE), (2.0, DOUBLE)], 3.5),
        ("modulo", INT, [(-7, INT), (3, INT)], -1),
        ("modulo", INT, [(7, INT), (-3, INT)], 1),
        ("modulo", LONG, [(-(2**62) - 1, LONG), (2**62, LONG)], -1),
        ("modulo", INT, [(7, INT), (0, INT)], None),
        ("modulo", DOUBLE, [(-7.5, DOUBLE), (2.0, DOUBLE)], -1.5),
        ("modulo", MONEY, [(Decimal("-7.50"), MONEY), (Decimal("2.00"), MONEY)], Decimal("-1.50")),
        ("multiply", MONEY, [(Decimal("99.99"), MONEY), (Decimal("11.00"), MONEY)], None),
        ("multiply", MONEY, [(Decimal("1.05"), MONEY), (Decimal("0.10"), MONEY)], Decimal("0.11")),
        ("add", pa.decimal128(38, 0), [(Decimal(10**37), MONEY), (Decimal(1), MONEY)], Decimal(10**37 + 1)),
        ("add", TIMESTAMP, [(2**63 - 1, TIMESTAMP), (1, pa.duration("us"))], None),
        ("eq", BOOL, [(NAN, DOUBLE), (NAN, DOUBLE)], True),
        ("eq", BOOL, [(-0.0, DOUBLE), (0.0, DOUBLE)], True),
        ("gt", BOOL, [(NAN, DOUBLE), (INF, DOUBLE)], True),
        ("lt", BOOL, [(NAN, DOUBLE), (INF, DOUBLE)], False),
        ("le", BOOL, [(NAN, DOUBLE), (NAN, DOUBLE)], True),
        ("ne", BOOL, [(None, INT), (1, INT)], None),
        ("lt", BOOL, [("Z", TEXT), ("a", TEXT)], True),
        ("null_safe_eq", BOOL, [(None, INT), (None, INT)], True),
        ("null_safe_eq", BOOL, [(None, INT), (0, INT)], False),
        ("and", BOOL, [(None, BOOL), (False, BOOL)], False),
        ("and", BOOL, [(None, BOOL), (True, BOOL)], None),
        ("or", BOOL, [(None, BOOL), (True, BOOL)], True),
        ("or", BOOL, [(None, BOOL), (False, BOOL)], None),
        ("not", BOOL, [(None, BOOL)], None),
        ("is_null", BOOL, [(None, INT)], True),
        ("coalesce", INT, [(None, INT), (0, INT), (1, INT)], 0),
        ("if", INT, [(None, BOOL), (1, INT), (2, INT)], 2),
        ("least", DOUBLE, [(NAN, DOUBLE), (None, DOUBLE), (2.0, DOUBLE)], 2.0),
        ("greatest", INT, [(3, INT), (None, INT), (2, INT)], 3),
        ("least", INT, [(None, INT), (None, INT)], None),
        ("upper", TEXT, [("é", TEXT)], "É"),
        ("trim", TEXT, [(" \ta ", TEXT)], "\ta"),
        ("length", INT, [("日本", TEXT)], 2),
        ("length", INT, [("日本".encode(), pa.binary())], 6),
        ("concat", TEXT, [("a", TEXT), ("", TEXT), ("b", TEXT)], "ab"),
        ("concat", TEXT, [("a", TEXT), (None, TEXT)], None),
        ("like", BOOL, [("a%b\n", TEXT), (r"a\%b%", TEXT)], True),
        ("like", BOOL, [("axb", TEXT), (r"a\%b", TEXT)], False),
        ("like", BOOL, [("a.b", TEXT), ("a_b", TEXT)], True),
        ("like", BOOL, [("axb", TEXT), ("a.b", TEXT)], False),
        ("like", BOOL, [("xab", TEXT), ("ab", TEXT)], False),
    ],
)  # fmt: skip
def test_operations(
    operation: str, dtype: pa.DataType, arguments: list[tuple[Any, pa.DataType]], wanted: object
) -> None:
    assert call(operation, dtype, *arguments) == wanted
    assert type(call(operation, dtype, *arguments)) is type(wanted)


@pytest.mark.parametrize(
    ("start", "length", "wanted"),
    [(1, 2, "ab"), (0, 2, "ab"), (3, 9, "cde"), (-2, 9, "de"), (-7, 4, "ab"), (-7, 2, ""), (9, 2, ""), (2, 0, ""), (2, -1, "")],
)  # fmt: skip
def test_substring_counts_as_spark_does(start: int, length: int, wanted: str) -> None:
    assert call("substring", TEXT, ("abcde", TEXT), (start, INT), (length, INT)) == wanted


@pytest.mark.parametrize(
    ("value", "source", "target", "wanted"),
    [
        (-2.9, DOUBLE, INT, -2),
        (NAN, DOUBLE, INT, None),
        (INF, DOUBLE, LONG, None),
        (3e9, DOUBLE, INT, None),
        (3e9, DOUBLE, LONG, 3_000_000_000),
        (300, INT, pa.int8(), None),
        (2**32 - 1, pa.uint32(), LONG, 2**32 - 1),
        (0.1, DOUBLE, FLOAT, 0.10000000149011612),
        (1e39, DOUBLE, FLOAT, INF),
        (Decimal("0.10"), MONEY, DOUBLE, 0.1),
        (2**53 + 1, LONG, DOUBLE, 2.0**53),
        (Decimal("-2.99"), MONEY, INT, -2),
        (Decimal("1.005"), pa.decimal128(5, 3), MONEY, Decimal("1.01")),
        (Decimal("-1.005"), pa.decimal128(5, 3), MONEY, Decimal("-1.01")),
        (1.005, DOUBLE, MONEY, Decimal("1.01")),
        (1e300, DOUBLE, MONEY, None),
        (NAN, DOUBLE, MONEY, None),
        (Decimal("999.995"), pa.decimal128(6, 3), MONEY, None),
        (1000, INT, MONEY, None),
        (7, INT, MONEY, Decimal("7.00")),
        (Decimal(10**37 + 1), pa.decimal128(38, 0), pa.decimal128(38, 0), Decimal(10**37 + 1)),
        (Decimal(10**35 + 1), pa.decimal128(36, 0), pa.decimal128(38, 2), Decimal(10**35 + 1)),
        (date(1969, 12, 31), pa.date32(), TIMESTAMP, -86_400 * SECOND),
        (-1, TIMESTAMP, pa.date32(), date(1969, 12, 31)),
        (5, INT, TEXT, "5"),
        (Decimal("5E+1"), MONEY, TEXT, "50.00"),
        (True, BOOL, TEXT, "true"),
        (date(2024, 1, 31), pa.date32(), TEXT, "2024-01-31"),
        (None, pa.null(), INT, None),
        ("x", pa.large_string(), TEXT, "x"),
    ],
)  # fmt: skip
def test_casts(value: object, source: pa.DataType, target: pa.DataType, wanted: object) -> None:
    found = evaluate(cast(Literal(value, source), target), {})
    assert found == wanted
    assert type(found) is type(wanted)
    if isinstance(found, Decimal) and source != target:
        assert found.as_tuple().exponent == -target.scale


def test_unknown_casts_are_refused() -> None:
    with pytest.raises(QueryError, match="no cast from timestamp to bigint"):
        evaluate(cast(Literal(1, TIMESTAMP), LONG), {})
    with pytest.raises(QueryError, match="no cast from double to string"):
        evaluate(cast(Literal(1.5, DOUBLE), TEXT), {})


def test_rows_are_python_values_with_times_in_microseconds() -> None:
    def number(values: list[int], dtype: pa.DataType) -> pa.Array:
        return pa.array(values, pa.int64()).cast(dtype)

    table = pa.table(
        {
            "ns": number([-1], pa.timestamp("ns")),
            "ms": number([2], pa.timestamp("ms")),
            "lag": number([3], pa.duration("s")),
            "day": pa.array([date(2024, 1, 1)]),
            "half": pa.array([0.5], pa.float16()),
            "money": pa.array([Decimal("1.50")]),
            "nested": pa.array([[{"u": 1}, None]]),
        }
    )
    assert rows_of(table) == [
        {
            "ns": -1,
            "ms": 2_000,
            "lag": 3_000_000,
            "day": date(2024, 1, 1),
            "half": 0.5,
            "money": Decimal("1.50"),
            "nested": [{"u": 1}, None],
        }
    ]
    assert rows_of(table.slice(0, 0)) == []


def test_every_operation_is_implemented() -> None:
    assert {*values._NULL_AWARE, *values._ARITHMETIC, *values._ON_VALUES, "cast"} == set(OPERATIONS)
