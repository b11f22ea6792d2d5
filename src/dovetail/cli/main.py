"""The `dovetail` command line, built on the public API only.

Each command imports Spark, Numba, the SQL parser or Arrow itself, so that `--help` and `version` answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

import dovetail as dt
from dovetail.cli.check import check, explain
from dovetail.cli.command_group import CommandGroup
from dovetail.cli.demo_command import demo
from dovetail.cli.doctor import doctor
from dovetail.cli.generate import generate
from dovetail.cli.inspect import inspect
from dovetail.cli.join import join
from dovetail.cli.monitor import monitor
from dovetail.cli.reshard import reshard
from dovetail.cli.run import run

app = typer.Typer(
    cls=CommandGroup,
    help="Continuous multi-way sliding-window joins over data streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_JOBS, _HERE, _OTHERS = "Jobs on Spark", "Without Spark", "Get started"
for _command, _panel in (
    (run, _JOBS),
    (monitor, _JOBS),
    (inspect, _JOBS),
    (reshard, _JOBS),
    (join, _HERE),
    (check, _HERE),
    (explain, _HERE),
    (doctor, _OTHERS),
    (demo, _OTHERS),
    (generate, _OTHERS),
):
    app.command(rich_help_panel=_panel)(_command)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Continuous multi-way sliding-window joins over data streams.

    docs/cli.md describes the commands, and the keys of job files.
    """


@app.command(hidden=True)
def version() -> None:
    """Print the version."""
    typer.echo(f"dovetail {dt.__version__}")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
