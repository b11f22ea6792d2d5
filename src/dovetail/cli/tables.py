"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from rich.table import Table
from rich.text import Text


def rows_table(headings: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> Table:
    """Return rows as a table; columns in `numbers` are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in set(numbers) else "left")
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    return table


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
