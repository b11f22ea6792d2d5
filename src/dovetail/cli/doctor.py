"""`dovetail doctor`: checks of the environment, and how to fix what is wrong."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail as dt
from dovetail.cli.options import AsJson
from dovetail.environment import Finding, check_process
from dovetail.errors import DovetailError

_QUERY = "SELECT i.ad_id FROM impressions i [RANGE 1 MIN], clicks c [RANGE 1 MIN] WHERE i.ad_id = c.ad_id AND i.user_id = c.user_id"
_SECONDS = 20.0


def doctor(
    *,
    spark: Annotated[bool, typer.Option("--spark", help="Also run a small job on Spark: half a minute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check Python, Java, Spark, shared memory and extras: what is wrong, and how to fix it.

    The exit code is 1 if something is wrong.
    """
    findings = [Finding("Dovetail", is_ok=True, text=dt.__version__), *check_process(), *_check_spark()]
    if spark and all(finding.is_ok for finding in findings):
        findings.append(_run_job())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(1)


def _check_spark() -> list[Finding]:
    try:
        return dt.spark.check_environment()
    except (DovetailError, ImportError) as error:
        text, _, hint = str(error).partition("\nHint: ")
        if "pyspark" in text:  # the extra is reported as missing
            return []
        return [Finding("PySpark", False, text, hint or None)]


def _run_job() -> Finding:
    """Join two small streams on Spark; compare the results with the oracle's."""
    from dovetail import workloads  # noqa: PLC0415 - it loads NumPy

    workload = workloads.scenario("ad_funnel", rate=20.0, late_share=0.0)
    with TemporaryDirectory(prefix="dovetail-doctor-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        workloads.write_workload(workload, folder / "in", _SECONDS)
        try:
            results = _join_on_spark(workload, folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was to be found out
            return Finding("a job on Spark", False, f"it failed: {error}", "see docs/spark.md#troubleshooting")
        local = dt.LocalSession()
        tables = {stream: workload.table(stream, 0, _SECONDS) for stream in ("impressions", "clicks")}
        for stream, table in tables.items():
            local.stream(stream, table.schema, event_time="ts")
        local.query("q", _QUERY)
        expected = dt.testing.expected(local, [tables])["q"].num_rows
    if results != expected:
        return Finding(
            "a job on Spark", False, f"it gave {results} results instead of {expected}", "please report this"
        )
    return Finding("a job on Spark", is_ok=True, text=f"{results} results, as many as the oracle's")


def _join_on_spark(workload: object, folder: Path) -> int:
    spark = dt.spark.session(cores=1, memory="1g", name="dovetail-doctor")
    try:
        session, sink = dt.Session(spark, shards=1), dt.sinks.memory()
        for name in ("impressions", "clicks"):
            path = str(folder / "in" / name)
            frame = spark.readStream.schema(workload.sql_columns(name)).parquet(path)  # type: ignore[attr-defined]
            session.stream(name, frame, event_time="ts", lateness="1 hour")
        session.query("q", _QUERY)
        session.start({"q": sink}, folder / "checkpoint", {"availableNow": True}).await_termination()
        table = sink.table()
        return 0 if table is None else int(table.num_rows)
    finally:
        spark.stop()


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    is_unicode = console.encoding.lower().startswith("utf")
    marks = ("✓", "·", "✗") if is_unicode else ("ok", "-", "!!")
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = (marks[2], "bold red") if not finding.is_ok else (marks[1 if finding.hint else 0], "green")
        table.add_row(Text(mark, style=style), Text(finding.name, style="bold"), Text(finding.text))
        if finding.hint:
            table.add_row("", "", Text(f"Hint: {finding.hint}", style="yellow" if not finding.is_ok else "dim"))
    console.print(table)
    wrong = sum(not finding.is_ok for finding in findings)
    console.print(f"\n{wrong} of {len(findings)} checks failed" if wrong else "\nAll is well.", style="bold")
