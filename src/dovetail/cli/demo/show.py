"""Output of both demos: the queries, the plan, some results, the check."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail as dt
from dovetail.workloads.ad_funnel import QUERIES, FunnelSample

_SHOWN_ROWS = 5


def introduce(console: Console) -> None:
    console.print(Text("An ad funnel: who saw an ad, clicked on it, and bought something.", style="bold"))
    for name, sql in QUERIES.items():
        console.print(Text(f"\n{name}", style="bold"), Text(sql.removeprefix("\n")), sep="\n", soft_wrap=True)
    console.print()


def show_plan(console: Console, session: dt.LocalSession | dt.Session) -> None:
    console.print(Text("\nThe plan", style="bold"), Text(str(session.explain())), sep="\n", soft_wrap=True)


def show_results(console: Console, name: str, count: int, table: pa.Table, source: str) -> None:
    rows = _spread(table)
    console.print(f"\n[bold]{name}[/bold]: {count:,} results; {len(rows)} {source}:")
    console.print(table_of(table.column_names, [[_cell(value) for value in row.values()] for row in rows]))


def check(console: Console, actual: pa.Table, sample: FunnelSample) -> bool:
    """Compare the sampled results with a batch join over the same input."""
    expected = sample.expected()
    order = [(name, "ascending") for name in expected.column_names]
    is_same = bool(actual.cast(expected.schema).sort_by(order).equals(expected.sort_by(order)))
    verdict = (
        "the same rows" if is_same else f"[bold red]it gives {expected.num_rows:,} rows, and they differ[/bold red]"
    )
    console.print(
        f"Checked {actual.num_rows:,} funnel results (every {sample.every}th ad) with a batch join: {verdict}.",
        soft_wrap=True,
    )
    return is_same


def table_of(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="left" if column == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _spread(table: pa.Table) -> list[dict[str, Any]]:
    """Return a few rows spread over a table."""
    step = max(1, table.num_rows // _SHOWN_ROWS)
    indices = pa.array(range(0, table.num_rows, step)[:_SHOWN_ROWS], pa.int64())
    rows: list[dict[str, Any]] = table.take(indices).to_pylist()
    return rows


def _cell(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    return f"{value:%H:%M:%S}" if hasattr(value, "strftime") else str(value)


def large(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
