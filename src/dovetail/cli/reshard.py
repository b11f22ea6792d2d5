"""`dovetail reshard`: another number of shards for a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt


def reshard(
    old: Annotated[str, typer.Argument(help="Checkpoint of a stopped job.")],
    new: Annotated[str, typer.Argument(help="Directory of the new checkpoint: empty, or not there.")],
    *,
    shards: Annotated[int, typer.Option(help="Number of shards that each join is partitioned into.")],
    rate: Annotated[
        list[str] | None, typer.Option(help="STREAM=NUMBER, tuples per second; by default as measured by the job.")
    ] = None,
) -> None:
    """Repartition a stopped checkpoint for another number of shards.

    The job then continues from the new directory.
    """
    report = dt.reshard(dt.spark.session(), old, new, shards, dict(map(_rate, rate or ())))
    console = Console(highlight=False)
    console.print(f"{report}\n\nStart the session with shards={shards} and checkpoint={new!r}.", soft_wrap=True)


def _rate(text: str) -> tuple[str, float]:
    stream, _, number = text.rpartition("=")
    try:
        return stream, float(number)
    except ValueError:
        raise dt.ConfigError(f"--rate {text}: {number!r} is no number", "write --rate clicks=100") from None
