"""Output of both demos: the query, the plan, some results, the check."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from textwrap import dedent
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail as dt
from dovetail.cli.demo.progress import tick
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, FunnelSample

QUERY = "funnel"
_SHOWN_ROWS = 5
_RIGHT_ALIGNED = ("ad_id", "user_id", "clicked_after", "bought_after", "amount")


def introduce(console: Console, where: str) -> None:
    """Say what the demo shows, and print the query."""
    sentence = "Who saw an ad, clicked on it and then bought something, all within 10 minutes?"
    console.print(Text(sentence, style="bold"))
    console.print(Text(f"One SQL query joins three streams of events while they arrive, {where}.\n"))
    sql = Text(dedent(QUERIES[QUERY].removeprefix("\n")) + "\n")
    sql.highlight_words(["SELECT", "FROM", "WHERE", " AND ", " AS ", "RANGE", "MINUTES"], style="blue")
    console.print(sql, soft_wrap=True)


def show_plan(console: Console, session: dt.LocalSession | dt.Session) -> None:
    console.print(Text("\nThe plan", style="bold"), Text(str(session.explain())), sep="\n", soft_wrap=True)
    console.print()


def show_results(console: Console, count: int, table: pa.Table) -> None:
    """Print a few results, spread over the table."""
    step = max(1, table.num_rows // _SHOWN_ROWS)
    rows = table.take(pa.array(range(step // 2, table.num_rows, step)[:_SHOWN_ROWS], pa.int64())).to_pylist()
    console.print(f"\n[bold]{count:,} results.[/bold] {len(rows)} of them:", soft_wrap=True)
    printed = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in table.column_names:
        justify = "right" if name in _RIGHT_ALIGNED else "left"
        printed.add_column(name.replace("_", " "), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        printed.add_row(*map(_cell, row.values()))
    console.print(printed)
    console.print()


def check(console: Console, actual: pa.Table, sample: FunnelSample) -> bool:
    """Compare results with a batch join over the same input, and print the outcome."""
    expected = sample.expected()
    order = [(name, "ascending") for name in expected.column_names]
    is_same = bool(actual.cast(expected.schema).sort_by(order).equals(expected.sort_by(order)))
    of = "" if sample.every == 1 else f" (every {sample.every}th user)"
    if is_same:
        console.print(
            f"{tick(console)} Checked against a batch join: same rows, {actual.num_rows:,} of {expected.num_rows:,}{of}.",
            soft_wrap=True,
        )
    else:
        console.print(
            f"[bold red]A batch join gives other rows[/bold red]: {expected.num_rows:,}, not {actual.num_rows:,}{of}.",
            soft_wrap=True,
        )
    return is_same


def show_late(console: Console, streams: Mapping[str, Mapping[str, Any]], funnel: AdFunnel) -> None:
    """Print how many rows were late, and so dropped."""
    late, arrived = (sum(stream[name] for stream in streams.values()) for name in ("late", "arrivals"))
    console.print(
        f"  {late:,} of {arrived:,} rows came later than the declared {funnel.lateness_seconds:g} seconds: "
        "dropped, as in the batch join.",
        style="dim",
        soft_wrap=True,
    )


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide warnings about late rows: the demo counts them in its own words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _cell(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.0f} s"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def large(number: float) -> str:
    """Return a number in a few characters.

    >>> large(1_893_000), large(39_400), large(259)
    ('1.89 M', '39 k', '259')
    """
    if number >= 1e6:
        return f"{number / 1e6:.2f} M"
    return f"{number / 1e3:.0f} k" if number >= 1e3 else f"{number:.0f}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
