"""The `dovetail` command line, built on the public API only.

Each command imports Spark, Numba, the SQL parser or Arrow itself, so that `--help` and `version` answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt
from dovetail.cli.check import check, explain
from dovetail.cli.command_group import CommandGroup
from dovetail.cli.doctor import doctor
from dovetail.cli.inspect import inspect
from dovetail.cli.join import join
from dovetail.cli.monitor import monitor
from dovetail.cli.run import run

app = typer.Typer(
    cls=CommandGroup,
    help="Continuous multi-way sliding-window joins over data streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(join)
app.command()(monitor)
app.command()(check)
app.command()(explain)
app.command()(doctor)
app.command()(inspect)


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
    """Continuous multi-way sliding-window joins over data streams."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"dovetail {dt.__version__}")


@app.command()
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


@app.command()
def generate(
    scenario: Annotated[str, typer.Argument(help="ad_funnel, packets, sensors, news, join, drift or overlap.")],
    *,
    out: Annotated[Path, typer.Option(help="A folder, new or empty: files are OUT/<stream>/<number>.parquet.")],
    seconds: Annotated[float, typer.Option(help="How long to stream, in seconds of event time.")] = 60.0,
    rate: Annotated[float | None, typer.Option(help="Tuples per second; the scenario says which tuples.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tuples.")] = 0,
    files: Annotated[
        int | None, typer.Option(help="Files per stream; by default at most a million tuples each.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, a setting of the scenario; see docs/workloads.md.")
    ] = None,
) -> None:
    """Write the streams of a synthetic workload as Parquet files."""
    from dovetail import workloads  # noqa: PLC0415 - it loads NumPy

    texts = {"seed": str(seed)} | ({} if rate is None else {"rate": str(rate)}) | dict(map(_setting, setting or ()))
    workload = workloads.parse_scenario(scenario, texts)
    written = workloads.write_workload(workload, out, seconds, files)
    Console(highlight=False).print(
        workloads.describe_files(workload, written, out, seconds), markup=False, soft_wrap=True
    )


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise dt.ConfigError(f"--set {text}: there is no '='", "write --set lateness_seconds=2")
    return name, value


@app.command()
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


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
