"""Runs a job file on Spark."""

from __future__ import annotations

import os
import signal
from typing import Any

from rich.console import Console

import dovetail as dt
from dovetail.cli.job.job_file import JobFile
from dovetail.cli.job.sinks import make_sink
from dovetail.errors import DovetailError


class JobRunError(DovetailError):
    """A job that ran has failed."""


def run_job(job: JobFile, *, once: bool = False, has_page: bool = False) -> None:
    """Run a job until it ends; after Ctrl-C, or SIGTERM, until its current batch is complete."""
    console = Console(stderr=True, highlight=False)
    console.print("Starting Spark ...", style="dim")
    spark = _spark(job)
    try:
        running = start(job, spark, once=once)
        console.print(f"{job.table.file.path} runs; Ctrl-C ends it after a batch", style="dim", soft_wrap=True)
        if has_page:
            console.print(str(running.monitor()), soft_wrap=True)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        try:
            has_ended = running.watch()
        except Exception as error:
            text = str(error) if isinstance(error, DovetailError) else str(error).partition("\n")[0]
            hint = "run it again: it continues from its checkpoint"
            raise JobRunError(f"the job has failed: {text}", None if "\nHint: " in text else hint) from error
        if not has_ended:
            console.print("Ending after the current batch; Ctrl-C again ends at once ...", style="dim")
            running.stop(finish_batch=True)
            raise KeyboardInterrupt
    finally:
        spark.stop()


def start(job: JobFile, spark: Any, *, once: bool = False) -> dt.RunningSession:
    """Start a job on a Spark session."""
    if any("generator" in stream.table.content for stream in job.streams.values()):
        dt.spark.register_workloads(spark)
    session = dt.Session(spark, job.budget, job.shards, job.config)
    for stream in job.streams.values():
        stream.declare(session, spark)
    for query in job.queries.values():
        query.register(session)
    sinks = {name: make_sink(name, query.sink) for name, query in job.queries.items()}
    with job.table.located("checkpoint"):
        return session.start(sinks, job.checkpoint, {"availableNow": True} if once else job.trigger)


def _spark(job: JobFile) -> Any:
    options = job.table.table("spark")
    conf = {name: str(value) for name, value in options.content.get("conf", {}).items()}
    with options.located():
        return dt.spark.session(**{"name": job.table.file.path.stem, **options.content, "conf": conf})
