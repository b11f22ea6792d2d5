"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
