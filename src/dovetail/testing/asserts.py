"""Compare tables as a join's output must be compared.

Rows are a multiset; NaN equals NaN, -0.0 equals 0.0, and all else is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from dovetail.testing.values import sort_key, stored_values

_SHOWN = 10
_CELL_WIDTH = 40


def assert_same_rows(actual: pa.Table, expected: pa.Table, context: str = "") -> None:
    """Fail unless both tables have the same columns and the same rows, each as often; the order of rows is ignored.

    `context` is put in front of the message, e.g. the query or the seed.

    >>> assert_same_rows(pa.table({"k": [1, 2]}), pa.table({"k": [2, 1]}))
    >>> assert_same_rows(pa.table({"k": [1, 1]}), pa.table({"k": [1, 2]}))
    Traceback (most recent call last):
    AssertionError: tables differ: 2 rows, expected 2; 1 missing, 1 unexpected
    missing:
      times  k
          1  2
    unexpected:
      times  k
          1  1
    """
    __tracebackhide__ = True
    message = _schema_difference(actual.schema, expected.schema) or _row_difference(actual, expected)
    if message:
        raise AssertionError(f"{context}\n{message}" if context else message)


def _schema_difference(actual: pa.Schema, expected: pa.Schema) -> str:
    found, wanted = ([(field.name, field.type) for field in schema] for schema in (actual, expected))
    if found == wanted:
        return ""
    texts = ([f"{name}: {dtype}" for name, dtype in fields] for fields in (found, wanted))
    pairs = zip_longest(*texts, fillvalue="(none)")
    rows = [[str(place), *pair, "" if pair[0] == pair[1] else "<--"] for place, pair in enumerate(pairs)]
    return "\n".join(["schemas differ", *_aligned([["column", "actual", "expected", ""], *rows])])


def _row_difference(actual: pa.Table, expected: pa.Table) -> str:
    found, wanted = _rows(actual), _rows(expected)
    counts = Counter(map(sort_key, found)), Counter(map(sort_key, wanted))
    missing, unexpected = counts[1] - counts[0], counts[0] - counts[1]
    if not missing and not unexpected:
        return ""
    rows_found = f"{actual.num_rows} rows, expected {expected.num_rows}"
    lines = [f"tables differ: {rows_found}; {missing.total()} missing, {unexpected.total()} unexpected"]
    example = {sort_key(row): row for row in found + wanted}
    for title, rows in (("missing", missing), ("unexpected", unexpected)):
        if rows:
            lines += [f"{title}:", *_listing(actual.schema.names, rows, example)]
    return "\n".join(lines)


def _rows(table: pa.Table) -> list[list[Any]]:
    if not table.num_columns:
        return [[] for _ in range(table.num_rows)]
    return [list(row) for row in zip(*(stored_values(column) for column in table.columns), strict=True)]


def _listing(names: Sequence[str], rows: Counter[Any], example: dict[Any, list[Any]]) -> list[str]:
    keys = sorted(rows)[:_SHOWN]
    cells = [[str(rows[key]), *(_cell(value) for value in example[key])] for key in keys]
    lines = _aligned([["times", *names], *cells])
    if len(rows) > _SHOWN:
        lines.append(f"  ... and {len(rows) - _SHOWN} more")
    return lines


def _cell(value: Any) -> str:
    text = "NULL" if value is None else repr(value) if isinstance(value, (str, bytes, list, dict)) else str(value)
    return text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 3] + "..."


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
