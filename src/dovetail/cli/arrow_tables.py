"""Arrow tables in the terminal."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from rich.table import Table

from dovetail.cli.tables import rows_table


def arrow_table(table: pa.Table) -> Table:
    """Return an Arrow table as one for the terminal; NULL is shown as such."""
    numbers = [field.name for field in table.schema if _is_number(field.type)]
    columns: list[list[Any]] = [_texts(column) for column in table.columns]
    return rows_table(table.column_names, zip(*columns, strict=True), numbers)


def _is_number(dtype: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype) or types.is_duration(dtype)
    )


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        column = column.cast(pa.string())  # nanoseconds have no Python type
    elif pa.types.is_duration(column.type):
        column = column.cast(pa.duration("us"), safe=False)
    return ["NULL" if value is None else str(value) for value in column.to_pylist()]
