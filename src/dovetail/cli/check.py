"""`dovetail check` and `dovetail explain`: queries without running them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from dovetail.cli.options import AsJson, Columns, EventTimes, Latenesses, SqlFiles, SqlTexts

Sources = Annotated[list[str], typer.Argument(metavar="JOB.TOML | [NAME=]PATH...", help="A job file, or data files.")]


class Form(StrEnum):
    """Forms of a plan."""

    TEXT = "text"
    MERMAID = "mermaid"
    HTML = "html"


def check(
    sources: Sources,
    *,
    sql: SqlFiles = None,
    query: SqlTexts = None,
    event_time: EventTimes = None,
    lateness: Latenesses = None,
    columns: Columns = None,
    sample: Annotated[int, typer.Option(min=0, help="Rows of each stream for the oracle; 0 for no comparison.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Check queries: what they mean, their plan, and their results over a sample against the oracle.

    The oracle computes results from their definition. The exit code is 1 if they differ.
    """
    from dovetail.cli.queries.check_queries import check_queries  # noqa: PLC0415 - it loads Arrow and the engine
    from dovetail.cli.queries.declared import declared_queries  # noqa: PLC0415

    declared = declared_queries(sources, sql, query, event_time, lateness, columns)
    if not check_queries(declared, sample, as_json=as_json):
        raise typer.Exit(1)


def explain(
    sources: Sources,
    *,
    sql: SqlFiles = None,
    query: SqlTexts = None,
    event_time: EventTimes = None,
    lateness: Latenesses = None,
    columns: Columns = None,
    form: Annotated[Form, typer.Option("--format", help="text, mermaid, or an HTML page.")] = Form.TEXT,
    as_json: AsJson = False,
) -> None:
    """Print the plan of the queries in a job file, or over data files."""
    from dovetail.cli.queries.check_queries import explain_queries  # noqa: PLC0415 - it loads Arrow and the engine
    from dovetail.cli.queries.declared import declared_queries  # noqa: PLC0415

    declared = declared_queries(sources, sql, query, event_time, lateness, columns)
    typer.echo(explain_queries(declared, form.value, as_json=as_json))
