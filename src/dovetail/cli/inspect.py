"""`dovetail inspect`: what a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import dovetail as dt
from dovetail.cli.options import AsJson
from dovetail.cli.tables import rows_table


def inspect(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint of a job.")],
    *,
    state: Annotated[
        bool, typer.Option("--state", help="Also read watermarks, counters and windows of the shards, with Spark.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint holds: queries, streams, shards, plan log. It is only read."""
    spark = dt.spark.session(cores=1, memory="1g", name="dovetail-inspect") if state else None
    try:
        content = dt.spark.inspect_checkpoint(checkpoint, spark).to_dict()
    finally:
        if spark is not None:
            spark.stop()
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        _show(Console(highlight=False), content)


def _show(console: Console, content: dict[str, Any]) -> None:
    console.print(Text(content["path"], style="bold"), soft_wrap=True)
    begun, committed = content["last_begun_batch"], content["last_committed_batch"]
    batches = (
        "no batch has been begun" if begun is None else f"last batch begun {begun}, last committed {_shown(committed)}"
    )
    console.print(
        f"{'in use' if content['is_in_use'] else 'not in use'}; {batches}; {_shown(content['shards'])} shards",
        soft_wrap=True,
    )
    if content["resharded_to"]:
        console.print(f"resharded to {content['resharded_to']}: start that one", style="yellow", soft_wrap=True)
    sizes = ", ".join(f"{name} {_size(size)}" for name, size in content["bytes"].items())
    console.print(f"on disk: {sizes}\n", soft_wrap=True)
    console.print(rows_table(["query", "since batch", "shards", "SQL"], _queries(content), ["since batch", "shards"]))
    console.print()
    _show_streams(console, content["streams"])
    console.print()
    rows = [
        (entry["epoch"], entry["first_batch"], entry["written"], ", ".join(entry["queries"]), entry["cause"])
        for entry in content["plan_log"]
    ]
    console.print(rows_table(["epoch", "from batch", "written", "queries", "cause"], rows, ["epoch", "from batch"]))


def _queries(content: dict[str, Any]) -> list[tuple[object, ...]]:
    queries = content["queries"].items()
    return [(name, query["since_batch"], query["shards"], " ".join(query["sql"].split())) for name, query in queries]


def _show_streams(console: Console, streams: dict[str, Any]) -> None:
    has_state = any(stream["counters"] is not None for stream in streams.values())
    headings, numbers = ["stream", "event time", "lateness", "columns"], ["lateness"]
    rows = [(name, s["event_time"], f"{s['lateness_seconds']:g} s", s["columns"]) for name, s in streams.items()]
    console.print(rows_table(headings, rows, numbers))
    if not has_state:
        return
    counters = ["arrivals", "late", "refused", "ahead"]
    headings = ["stream", "watermark", *counters, "tuples", "bytes"]
    rows = [
        (
            name,
            s["watermark"],
            *(f"{(s['counters'] or {}).get(key, 0):,}" for key in counters),
            s["state_tuples"],
            s["state_bytes"],
        )
        for name, s in streams.items()
    ]
    console.print()
    console.print(rows_table(headings, rows, headings[2:]))


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
