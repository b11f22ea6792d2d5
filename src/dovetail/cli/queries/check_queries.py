"""The check of queries: their plans, and the engine's results beside the oracle's over a sample."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

import dovetail as dt
from dovetail.cli.queries.declared import DeclaredQueries
from dovetail.cli.queries.sample import sample_batches


@dataclass(frozen=True)
class Agreement:
    """Results of the engine and of the oracle over the same rows."""

    query: str
    results: int
    difference: str | None
    """The rows that differ; None if the results are equal."""


def check_queries(declared: DeclaredQueries, limit: int, *, as_json: bool) -> bool:
    """Print what each query is and whether its results are right over a sample; return whether they are."""
    console = Console(highlight=False)
    session = declared.session()
    explanation = session.explain()
    plan = explanation.to_dict()
    tables = declared.first_rows() if limit else {}
    lacking = [name for name in plan["streams"] if name not in tables]
    batches = [] if lacking else sample_batches(tables, plan, limit)
    rows = {name: sum(batch[name].num_rows for batch in batches) for name in tables} if batches else {}
    agreements = compare_with_oracle(session, batches) if batches else []
    if as_json:
        compared = {
            agreement.query: {"results": agreement.results, "difference": agreement.difference}
            for agreement in agreements
        }
        console.print_json(json.dumps({"plan": plan, "sample": rows, "oracle": compared}))
    else:
        console.print(Text(str(explanation)), soft_wrap=True)
        console.print()
        _show(console, agreements, rows, lacking if limit else [])
    return all(agreement.difference is None for agreement in agreements)


def compare_with_oracle(session: dt.LocalSession, batches: list[dict[str, pa.Table]]) -> list[Agreement]:
    """Push batches into a session; compare the results of each query with the oracle's."""
    expected = dt.testing.expected(session, batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.DovetailWarning)  # of rows that a sample leaves out
        outputs = [session.push(batch) for batch in batches]
    return [
        _compare(name, pa.concat_tables([output[name] for output in outputs]), table)
        for name, table in expected.items()
    ]


def _compare(query: str, results: pa.Table, expected: pa.Table) -> Agreement:
    try:
        dt.testing.assert_same_rows(results, expected)
    except AssertionError as error:
        return Agreement(query, expected.num_rows, str(error))
    return Agreement(query, expected.num_rows, None)


def _show(console: Console, agreements: list[Agreement], rows: Mapping[str, int], lacking: list[str]) -> None:
    if lacking:
        console.print(f"Not compared with the oracle: only Spark can read {', '.join(lacking)}.", style="yellow")
        return
    counts = ", ".join(f"{count:,} of {name}" for name, count in rows.items())
    for agreement in agreements:
        if agreement.difference is not None:
            console.print(Text(f"{agreement.query}: the results differ from the oracle's over {counts}", style="red"))
            console.print(Text(agreement.difference), soft_wrap=True)
        else:
            note = "" if agreement.results else "; with none, this says little: try more rows with --sample"
            console.print(
                f"[green]{agreement.query}: {agreement.results:,} results, the same as the oracle's[/green], over {counts}{note}",
                soft_wrap=True,
            )


def explain_queries(declared: DeclaredQueries, form: str, *, as_json: bool) -> str:
    """Return the plan in a form: text, mermaid, html or json."""
    explanation: Any = declared.session().explain()
    match "json" if as_json else form:
        case "json":
            return json.dumps(explanation.to_dict(), indent=2)
        case "mermaid":
            return str(explanation.mermaid())
        case "html":
            return _HTML.format(explanation._repr_html_(), explanation.mermaid())
        case _:
            return str(explanation)


_HTML = """<!doctype html>
<meta charset="utf-8">
<title>Plan</title>
<style>body {{ font-family: sans-serif; margin: 2em }}</style>
{}
<details><summary>Diagram, as mermaid</summary><pre>{}</pre></details>
"""
