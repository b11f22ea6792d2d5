"""`dovetail demo`: a join of synthetic streams, checked."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt


def demo(
    *,
    local: Annotated[bool, typer.Option("--local", help="Join in this process, without Spark and Java.")] = False,
    explain_plan: Annotated[bool, typer.Option("--explain", help="Also print the plan.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also run Spark's own joins on the same files.")] = False,
    batches: Annotated[int, typer.Option(min=2, max=100, help="On Spark: micro-batches of 2 minutes of events.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, help="With --local: seconds to stream.")] = 6.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the synthetic streams.")] = 0,
) -> None:
    """Join three streams of synthetic events on Spark, and check the results against a batch join."""
    from dovetail.cli.demo import demo_local, demo_on_spark  # noqa: PLC0415 - it loads Arrow

    console = Console(highlight=False)
    if local and compare:
        raise dt.ConfigError("--compare runs Spark's own joins, so it cannot be given with --local.")
    if local:
        is_correct = demo_local(console, seed, seconds, explain=explain_plan)
    else:
        is_correct = demo_on_spark(console, seed, batches, explain=explain_plan, compare=compare)
    if not is_correct:
        raise typer.Exit(1)
