"""Bounds of the columns of a Parquet file, as the log of a Delta table stores them.

A reader skips a file whose bounds exclude what it looks for, so a bound may be missing, but never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import pyarrow.parquet as pq

JsonBound: TypeAlias = str | int | float | bool | None
_MAX_TEXT = 32
"""Characters of a bound."""
_LARGEST_CHARACTER = "\U0010ffff"
_EXACT_DIGITS = 15
"""Decimals of more digits may lose some as a JSON number."""


class ColumnBounds(NamedTuple):
    """Smallest and largest value of a column, as JSON values; None if they are unknown."""

    nulls: int | None = None
    low: JsonBound = None
    high: JsonBound = None


def bounds_of(footer: pq.FileMetaData, columns_with_nan: Collection[str]) -> dict[str, ColumnBounds]:
    """Return the bounds of each column; Parquet ignores NaN, which readers order after all numbers."""
    return {
        footer.schema.column(index).name: _column_bounds(footer, index, columns_with_nan)
        for index in range(footer.num_columns)
    }


def _column_bounds(footer: pq.FileMetaData, index: int, columns_with_nan: Collection[str]) -> ColumnBounds:
    parts = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not parts or any(part is None or not part.has_null_count for part in parts):
        return ColumnBounds()
    nulls = sum(part.null_count for part in parts)
    parts = [part for part in parts if part.has_min_max or part.num_values]  # the others hold NULLs only
    if not parts or not all(part.has_min_max for part in parts) or footer.schema.column(index).name in columns_with_nan:
        return ColumnBounds(nulls)
    try:
        low, high = min(part.min for part in parts), max(part.max for part in parts)
    except (ValueError, OverflowError):  # a time that Python cannot express
        return ColumnBounds(nulls)
    low, high = _json_value(low), _json_value(high, is_high=True)
    return ColumnBounds(nulls) if low is None or high is None else ColumnBounds(nulls, low, high)


def _json_value(value: Any, *, is_high: bool = False) -> JsonBound:
    if isinstance(value, str):
        if len(value) <= _MAX_TEXT:
            return value
        return value[:_MAX_TEXT] + _LARGEST_CHARACTER if is_high else value[:_MAX_TEXT]
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value) if len(value.as_tuple().digits) <= _EXACT_DIGITS else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else None
