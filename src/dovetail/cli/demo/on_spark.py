"""The demo on Spark: from Parquet files to Parquet files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.console import Console

import dovetail as dt
from dovetail.cli.demo.chain import chain_of_joins
from dovetail.cli.demo.progress import ProgressLine, took
from dovetail.cli.demo.show import (
    QUERY,
    check,
    introduce,
    large,
    megabytes,
    show_late,
    show_plan,
    show_results,
    without_warnings,
)
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, FunnelSample, write_files

_BATCH_MINUTES = 2
_POLL_SECONDS = 0.5
_JOINING = "Joining"


def demo_on_spark(console: Console, seed: int, batches: int, *, explain: bool = False, compare: bool = False) -> bool:
    """Join on Spark for some micro-batches; return whether the results are correct.

    `explain` prints the plan, `compare` also runs Spark's own joins on the same files.
    """
    java = dt.spark.check_java()
    if not java.is_ok:
        raise dt.DovetailError(java.text, f"{java.hint}; 'dovetail demo --local' needs no Java")
    introduce(console, "on Spark")
    # A micro-batch has a fixed cost on Spark, so it holds more tuples than a batch of the local demo.
    funnel = AdFunnel(
        seed=seed, rate=2500.0, users=1_000_000, batch_seconds=60.0 * _BATCH_MINUTES, late_by_seconds=120.0
    )
    sample = FunnelSample(funnel, every=1)
    with TemporaryDirectory(prefix="dovetail-demo-", ignore_cleanup_errors=True) as name, without_warnings():
        folder = Path(name)
        with ProgressLine(console) as progress:
            with progress.step(
                "Writing events as Parquet files",
                f"Wrote {took(60.0 * _BATCH_MINUTES * batches)} of events as Parquet files",
            ):
                tuples = write_files(funnel, batches, folder / "in", sample)
            with progress.step("Starting Spark", "Spark is running"), _stderr_to(folder / "spark.log"):
                spark = dt.spark.session(name="dovetail-demo", conf={"spark.local.dir": str(folder / "scratch")})
            try:
                run = _OnSpark(progress, spark, folder, batches)
                is_correct = run.join(funnel, sample, explain=explain)
                if compare:
                    run.compare(funnel, sum(tuples.values()))
            except KeyboardInterrupt:
                console.print("Stopped.")
                raise typer.Exit(130) from None
            finally:
                progress.show("Stopping Spark")
                with _stderr_to(folder / "stop.log"):
                    spark.stop()
    if not (compare or explain):
        console.print(
            "\nMore: [bold]--compare[/bold] runs Spark's own joins on the same files, [bold]--explain[/bold] shows the plan."
        )
    return is_correct


class _OnSpark:
    """The demo with a running Spark session."""

    def __init__(self, progress: ProgressLine, spark: Any, folder: Path, batches: int) -> None:
        self._progress = progress
        self._console = progress.console
        self._spark = spark
        self._folder = folder
        self._batches = batches
        self._seconds = 0.0
        """Seconds that all micro-batches of Dovetail took."""
        self._results = 0
        """Number of Dovetail's results."""

    def join(self, funnel: AdFunnel, sample: FunnelSample, *, explain: bool) -> bool:
        self._progress.show("Planning the query")
        session = dt.Session(self._spark)
        replace(funnel.workload, queries={QUERY: QUERIES[QUERY]}).declare(session, self._source)
        if explain:
            show_plan(self._console, session)
        results = str(self._folder / "out" / "dovetail")
        running = session.start(
            {QUERY: dt.sinks.parquet(results)}, str(self._folder / "checkpoint"), trigger={"availableNow": True}
        )
        try:
            with _interrupts() as interrupted:
                self._watch(running, interrupted)
        finally:
            with _stderr_to(self._folder / "stop.log"):  # Spark logs errors for an interrupted batch
                running.stop()
        if interrupted:
            raise KeyboardInterrupt
        metrics = running.metrics()
        table = self._spark.read.parquet(results).drop("batch_id").toArrow()
        self._results = metrics["queries"][QUERY]["results"]
        show_results(self._console, self._results, table)
        self._progress.show("Checking against a batch join")
        is_correct = check(self._console, table, sample)
        show_late(self._console, metrics["streams"], funnel)
        return is_correct

    def compare(self, funnel: AdFunnel, tuples: int) -> None:
        """Run Spark's own chain of joins on the same files and print how long both took."""
        frames = {stream.name: self._source(stream.name) for stream in funnel.streams}
        results = str(self._folder / "out" / "chain")
        writer = chain_of_joins(self._spark, frames, f"{funnel.lateness_seconds:g} seconds").writeStream.format(
            "parquet"
        )
        query = (
            writer.option("path", results)
            .option("checkpointLocation", str(self._folder / "chain-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        self._console.print("\n[bold]Spark's own chain of two stream-stream joins[/bold], on the same files:")
        batches: list[float] = []
        try:
            with _interrupts() as interrupted:
                for progress in self._progress_of(lambda: query, query.awaitTermination, interrupted, "Spark's chain:"):
                    batches.append(progress["batchDuration"] / 1000)
                    self._console.print(_batch_line(len(batches), self._batches, progress), soft_wrap=True)
        finally:
            with _stderr_to(self._folder / "stop.log"):
                query.stop()
        if interrupted:
            raise KeyboardInterrupt
        count = self._spark.read.parquet(results).count()
        self._console.print(
            f"\n[bold]{large(tuples)} rows from file to file: {took(self._seconds)} with Dovetail, "
            f"{took(sum(batches))} with Spark's chain.[/bold]",
            soft_wrap=True,
        )
        if count != self._results:
            self._console.print(
                f"  Spark's chain has {count:,} results, {count - self._results:+,}: "
                "it judges lateness by one watermark for all streams.",
                style="dim",
                soft_wrap=True,
            )

    def _source(self, stream: str) -> Any:
        path = str(self._folder / "in" / stream)
        schema = self._spark.read.parquet(path).schema
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)

    def _watch(self, running: Any, interrupted: list[int]) -> None:
        """Print each batch when it ends, until the job ends or Ctrl-C."""
        reports = self._progress_of(lambda: running.query, running.await_termination, interrupted, _JOINING)
        for number, progress in enumerate(reports, 1):
            self._seconds += progress["batchDuration"] / 1000
            metrics = running.metrics()
            state = sum(stream["state_bytes"] for stream in metrics["streams"].values())
            line = _batch_line(number, self._batches, progress)
            results = metrics["queries"][QUERY]["results"]
            self._console.print(f"{line}   {results:>6,} results   {megabytes(state):>6} of state", soft_wrap=True)

    def _progress_of(
        self, query: Callable[[], Any], wait: Callable[[float], bool], interrupted: list[int], doing: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the report of each micro-batch, and show in between how far the current one is."""
        seen, has_ended = 0, False
        tracker = self._spark.sparkContext.statusTracker()
        while not has_ended and not interrupted:
            first = ", which also starts Spark's Python workers" if seen == 0 and doing == _JOINING else ""
            text = f"{doing} batch {seen + 1} of {self._batches}{first}" if seen < self._batches else "Finishing"
            self._progress.show(text)
            number = seen
            while number == seen and not has_ended and not interrupted:
                has_ended = bool(wait(_POLL_SECONDS))
                for progress in query().recentProgress[seen:]:
                    seen += 1
                    if progress["numInputRows"]:
                        yield progress
                self._progress.show(f"{text}{_tasks(tracker)}", is_new=False)


def _tasks(tracker: Any) -> str:
    """Return how many tasks of the running stages are complete."""
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
    total = sum(stage.numTasks for stage in stages)
    return f", task {sum(stage.numCompletedTasks for stage in stages) + 1} of {total}" if total else ""


def _batch_line(number: int, batches: int, progress: Mapping[str, Any]) -> str:
    rows, seconds = progress["numInputRows"], progress["batchDuration"] / 1000
    return (
        f"  batch {number} of {batches}   {_BATCH_MINUTES} minutes of events, {large(rows):>5} rows in {seconds:>4.1f} s"
        f"   {large(rows / seconds):>5} rows/s"
    )


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list: raised inside a call to the JVM, it would break the connection."""
    signals: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error of this process and its children to a file; show it if something fails.

    The JVM keeps the file as its standard error, so later output of the JVM and of Python workers goes there too.
    """
    sys.stderr.flush()
    original = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception:
        os.write(original, path.read_bytes())
        raise
    finally:
        os.dup2(original, 2)
        os.close(original)
