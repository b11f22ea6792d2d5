"""`dovetail monitor`: the live page of a job in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt


def monitor(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint of the job, on this disk.")],
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0 takes any free one.")] = 0,
) -> None:
    """Serve a page that shows a job while it runs, until Ctrl-C. It is only read."""
    page = dt.monitor(checkpoint, port)
    console = Console(highlight=False)
    console.print(f"{page}\nFor Prometheus: {page.url}metrics\nCtrl-C ends the page, not the job.", soft_wrap=True)
    page.wait()
