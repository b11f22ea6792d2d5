"""`dovetail generate`: files of a synthetic workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dovetail as dt


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
