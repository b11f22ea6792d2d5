"""`assert_same_rows` accepts equal multisets and explains any other."""

import math

import pyarrow as pa
import pytest

from dovetail.testing import assert_same_rows


def message(actual: pa.Table, expected: pa.Table, context: str = "") -> str:
    with pytest.raises(AssertionError) as failure:
        assert_same_rows(actual, expected, context)
    return str(failure.value)


def test_order_does_not_matter() -> None:
    assert_same_rows(pa.table({"k": [1, 2, 2]}), pa.table({"k": [2, 1, 2]}))


def test_multiplicity_matters() -> None:
    assert message(pa.table({"k": [1, 1, 2]}), pa.table({"k": [1, 2, 2]})) == (
        "tables differ: 3 rows, expected 3; 1 missing, 1 unexpected\n"
        "missing:\n"
        "  times  k\n"
        "      1  2\n"
        "unexpected:\n"
        "  times  k\n"
        "      1  1"
    )


def test_nan_and_zeros_are_equal() -> None:
    assert_same_rows(pa.table({"k": [math.nan, -0.0, None]}), pa.table({"k": [None, 0.0, math.nan]}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0.1 + 0.2], [0.3]),
        ([math.nan, 1.0], [None, 1.0]),
        ([math.nan], [math.inf]),
        (["a"], ["a "]),
        ([[1, None]], [[1]]),
        ([{"u": 1, "v": 2}], [{"u": 2, "v": 1}]),
    ],
)
def test_other_values_are_compared_exactly(one: list[object], other: list[object]) -> None:
    assert "1 missing, 1 unexpected" in message(pa.table({"k": pa.array(one)}), pa.table({"k": pa.array(other)}))


def test_nested_values_are_compared_inside() -> None:
    nested = [{"u": [math.nan, -0.0], "v": None}]
    assert_same_rows(pa.table({"k": nested}), pa.table({"k": [{"u": [math.nan, 0.0], "v": None}]}))


def test_nanoseconds_matter() -> None:
    one, other = (pa.array([value], pa.int64()).cast(pa.timestamp("ns")) for value in (1, 2))
    assert "1 missing" in message(pa.table({"t": one}), pa.table({"t": other}))


def test_schemas_are_compared_first() -> None:
    text = message(pa.table({"k": pa.array([1], pa.int32())}), pa.table({"k": pa.array([1], pa.int64()), "p": ["x"]}))
    assert text == (
        "schemas differ\n"
        "  column    actual   expected\n"
        "       0  k: int32   k: int64  <--\n"
        "       1    (none)  p: string  <--"
    )


def test_names_belong_to_the_schema() -> None:
    assert "schemas differ" in message(pa.table({"k": [1]}), pa.table({"l": [1]}))


def test_metadata_and_nullability_do_not_matter() -> None:
    plain = pa.schema([pa.field("k", pa.int64())])
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False, metadata={"a": "b"})])
    assert_same_rows(pa.table([[1]], schema=plain), pa.table([[1]], schema=strict))


def test_the_message_is_readable() -> None:
    actual = pa.table({"k": pa.array([], pa.int64()), "p": pa.array([], pa.string())})
    expected = pa.table({"k": [10, 10, None], "p": ["x", "x", "y" * 60]})
    assert message(actual, expected, "query q, push 3").splitlines() == [
        "query q, push 3",
        "tables differ: 0 rows, expected 3; 3 missing, 0 unexpected",
        "missing:",
        "  times     k                                         p",
        f"      1  NULL  {'y' * 36!r}"[:-1] + "...",
        "      2    10                                       'x'",
    ]


def test_no_more_than_ten_rows_are_listed() -> None:
    text = message(pa.table({"k": list(range(25))}), pa.table({"k": pa.array([], pa.int64())}))
    assert "25 unexpected" in text
    assert text.endswith("      1  9\n  ... and 15 more")


def test_no_columns() -> None:
    assert_same_rows(pa.table({}), pa.table({}))
