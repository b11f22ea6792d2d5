"""`dovetail run`: run a job file on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobPath = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="What to run; docs/cli.md has its keys.")]


def run(
    job: JobPath,
    *,
    once: Annotated[bool, typer.Option("--once", help="Read what is there and end, whatever the trigger.")] = False,
    monitor: Annotated[
        bool, typer.Option("--monitor", help="Serve a page that shows the job, and print its address.")
    ] = False,
) -> None:
    """Run a job file on Spark until it ends, or until Ctrl-C; it continues where it ended."""
    from dovetail.cli.job.job_file import JobFile  # noqa: PLC0415 - it loads Arrow
    from dovetail.cli.job.run_job import run_job  # noqa: PLC0415

    content = JobFile.read(job)
    content.check_locally()
    run_job(content, once=once, has_page=monitor)
