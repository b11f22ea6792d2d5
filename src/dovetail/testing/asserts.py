"""Compare two tables as multisets of rows.

NaN equals NaN and -0.0 equals 0.0; everything else must be exactly equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from dovetail.testing.values import sort_key, stored_values

_SHOWN_ROWS = 10
_CELL_WIDTH = 40


def assert_same_rows(actual: pa.Table, expected: pa.Table, context: str = "") -> None:
    """Fail unless both tables have the same columns and the same rows, each equally often, in any order.

    The message begins with `context`, e.g. the query or the seed.

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
    fields = [[(field.name, field.type) for field in schema] for schema in (actual, expected)]
    if fields[0] == fields[1]:
        return ""
    texts = ([f"{name}: {dtype}" for name, dtype in columns] for columns in fields)
    pairs = zip_longest(*texts, fillvalue="(none)")
    rows = [[str(index), *pair, "" if pair[0] == pair[1] else "<--"] for index, pair in enumerate(pairs)]
    return "\n".join(["schemas differ", *_align([["column", "actual", "expected", ""], *rows])])


def _row_difference(actual: pa.Table, expected: pa.Table) -> str:
    actual_rows, expected_rows = _rows(actual), _rows(expected)
    actual_counts, expected_counts = Counter(map(sort_key, actual_rows)), Counter(map(sort_key, expected_rows))
    missing, unexpected = expected_counts - actual_counts, actual_counts - expected_counts
    if not missing and not unexpected:
        return ""
    sizes = f"{actual.num_rows} rows, expected {expected.num_rows}"
    lines = [f"tables differ: {sizes}; {missing.total()} missing, {unexpected.total()} unexpected"]
    rows_by_key = {sort_key(row): row for row in actual_rows + expected_rows}
    for title, counts in (("missing", missing), ("unexpected", unexpected)):
        if counts:
            lines += [f"{title}:", *_listing(actual.schema.names, counts, rows_by_key)]
    return "\n".join(lines)


def _rows(table: pa.Table) -> list[list[Any]]:
    if not table.num_columns:
        return [[] for _ in range(table.num_rows)]
    return [list(row) for row in zip(*(stored_values(column) for column in table.columns), strict=True)]


def _listing(names: Sequence[str], counts: Counter[Any], rows_by_key: dict[Any, list[Any]]) -> list[str]:
    keys = sorted(counts)[:_SHOWN_ROWS]
    cells = [[str(counts[key]), *(_cell(value) for value in rows_by_key[key])] for key in keys]
    lines = _align([["times", *names], *cells])
    if len(counts) > _SHOWN_ROWS:
        lines.append(f"  ... and {len(counts) - _SHOWN_ROWS} more")
    return lines


def _cell(value: Any) -> str:
    text = "NULL" if value is None else repr(value) if isinstance(value, (str, bytes, list, dict)) else str(value)
    return text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 3] + "..."


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
