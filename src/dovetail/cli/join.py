"""`dovetail join`: join files in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.options import AsJson, Columns, DataFiles, EventTimes, Latenesses, SqlFiles, SqlTexts


def join(
    files: DataFiles,
    *,
    sql: SqlFiles = None,
    query: SqlTexts = None,
    event_time: EventTimes = None,
    lateness: Latenesses = None,
    columns: Columns = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="CSV, Parquet or JSON lines, by suffix; - is standard output.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="csv, parquet or jsonl, whatever the suffix.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file if it exists.")] = False,
    rows: Annotated[int, typer.Option(min=0, help="Rows to show in the terminal.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Join files in this process, without Spark and Java.

    dovetail join clicks.csv orders.parquet --query "SELECT ... FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] ..."
    """
    from dovetail.cli.files.join_files import JoinFiles  # noqa: PLC0415 - it loads Arrow and the engine
    from dovetail.cli.files.sources import sources_of  # noqa: PLC0415

    sources = sources_of(files, sql, query, event_time, lateness, columns)
    JoinFiles(sources, rows, is_json=as_json).run(out, form, replace=replace)
