"""Run a paper's experiments again: `python -m experiments <paper> [--quick] [--out DIRECTORY]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt
from experiments import reproduce

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    paper: Annotated[
        str,
        typer.Argument(
            help="Whose experiments: alrahmani, golab, kwon, raghavan, valsomatzis, or all; pages writes the overview."
        ),
    ],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid: seconds instead of many minutes.")] = False,
    grid: Annotated[str, typer.Option(help="One paper's full grid with other numbers, e.g. draws=4.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Where results go; by default reproduced/<paper>-full, for all reproduced.")
    ] = None,
) -> None:
    """Compute what is missing under OUT, and write tables, plots and a report. A run that was stopped goes on where it stood."""
    console = Console(highlight=False)
    try:
        report = reproduce(paper, console, out, quick=quick, grid=grid)
    except dt.DovetailError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"Report: {report}", soft_wrap=True)


if __name__ == "__main__":
    app()
