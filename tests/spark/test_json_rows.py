"""Rows as JSON texts."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from dovetail.spark.worker.json_rows import json_rows

UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([1, None, -(2**63)]), ["1", "null", "-9223372036854775808"]),
        (pa.array([1.5, None, float("nan"), float("-inf")]), ["1.5", "null", '"NaN"', '"-Infinity"']),
        (pa.array([True, None]), ["true", "null"]),
        (pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)), ["1.10", "null"]),
        (pa.array(['a"\\b\n\x01é', None, ""]), ['"a\\"\\\\b\\n\\u0001é"', "null", '""']),
        (pa.array([date(1, 1, 1), None]), ['"0001-01-01"', "null"]),
        (pa.array([0, None, 1 << 61], UTC), ['"1970-01-01T00:00:00.000000Z"', "null", "2305843009213693952"]),
        (pa.array([5], pa.timestamp("us")), ['"1970-01-01T00:00:00.000005"']),
        (pa.array([b"\xff", None]), ['"/w=="', "null"]),
        (pa.array([[1, None], None, []]), ["[1, null]", "null", "[]"]),
        (pa.array([{"u": b"x", "v": date(2024, 1, 1)}]), ['{"u": "eA==", "v": "2024-01-01"}']),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values(values: pa.Array, texts: list[str]) -> None:
    assert json_rows(pa.table({"c": values})).to_pylist() == [f'{{"c": {text}}}' for text in texts]


def test_names_are_escaped_and_in_order() -> None:
    row = json_rows(pa.table([[1], ["x"]], names=['a "b"', "é"]))[0].as_py()
    assert row == '{"a \\"b\\"": 1, "é": "x"}'
    assert json.loads(row) == {'a "b"': 1, "é": "x"}


def test_texts_that_are_not_utf8_stay_readable() -> None:
    broken = pa.array([b"a\xff"]).view(pa.string())
    assert json.loads(json_rows(pa.table({"c": broken}))[0].as_py()) == {"c": "a\\xff"}
