"""The demo on Spark: from Parquet files to Parquet files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import typer
from rich.console import Console

import dovetail as dt
from dovetail.cli.demo.show import check, introduce, large, mebibytes, show_plan, show_results, table_of
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, FunnelSample, write_files

_MIN_JAVA = 17


def _java_problem() -> str | None:
    """Return an error message with a hint if Spark cannot use the installed Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"  # as Spark does: JAVA_HOME before PATH
    try:
        process = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        version = None
    else:
        version = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    if version and int(version[1]) >= _MIN_JAVA:
        return None
    where = f" (JAVA_HOME is {home})" if home else ""
    remedy = (
        f"unset JAVA_HOME, or set it to a Java {_MIN_JAVA}"
        if home
        else f"on Debian or Ubuntu run 'sudo apt-get install openjdk-{_MIN_JAVA}-jre-headless'"
    )
    return (
        f"Spark needs Java {_MIN_JAVA} or later; found: {version[1] if version else 'none'}{where}.\n"
        f"Hint: {remedy}; 'dovetail demo --local' needs no Java."
    )


def demo_on_spark(console: Console, seed: int, batches: int) -> bool:
    """Join on Spark for some micro-batches; return whether the results are correct."""
    if problem := _java_problem():
        console.print(problem, soft_wrap=True)
        return False
    introduce(console)
    # A micro-batch has a fixed cost on Spark, so it holds more tuples than a batch of the local demo.
    funnel = AdFunnel(seed=seed, rate=2500.0, batch_seconds=120.0, late_by_seconds=120.0)
    with TemporaryDirectory(prefix="dovetail-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        sample = FunnelSample(funnel)
        with _step(console, f"Writing {batches} batches of each stream as Parquet files"):
            tuples = write_files(funnel, batches, folder / "in", sample)
        with _step(console, "Starting Spark"), _stderr_to(folder / "spark.log"):
            spark = dt.spark.session(name="dovetail-demo", conf={"spark.local.dir": str(folder / "scratch")})
        try:
            return _OnSpark(console, spark, folder).run(funnel, tuples, sample)
        except KeyboardInterrupt:
            console.print("Stopped.")
            raise typer.Exit(130) from None
        finally:
            spark.stop()


class _OnSpark:
    """The demo with a running Spark session."""

    def __init__(self, console: Console, spark: Any, folder: Path) -> None:
        self._console = console
        self._spark = spark
        self._folder = folder

    def run(self, funnel: AdFunnel, tuples: Mapping[str, int], sample: FunnelSample) -> bool:
        session = dt.Session(self._spark)
        funnel.workload.declare(session, self._source)
        show_plan(self._console, session)
        self._console.print(f"\nA micro-batch is {funnel.batch_seconds:g} s of event time. Ctrl-C ends it early.")
        running = session.start(
            {name: dt.sinks.parquet(self._results(name)) for name in QUERIES},
            checkpoint=str(self._folder / "checkpoint"),
            trigger={"availableNow": True},
        )
        try:
            with _interrupts() as interrupted:
                batches = self._watch(running, interrupted)
        finally:
            with _stderr_to(self._folder / "stop.log"):  # Spark logs errors for an interrupted batch
                running.stop()
        if interrupted:
            raise KeyboardInterrupt
        metrics = running.metrics()
        samples = {name: self._sampled(name, sample) for name in QUERIES}
        for name, table in samples.items():
            show_results(self._console, name, metrics["queries"][name]["results"], table, "from the Parquet files")
        self._summarize(metrics["streams"], tuples, batches)
        return check(self._console, samples["funnel"], sample)

    def _source(self, stream: str) -> Any:
        path = str(self._folder / "in" / stream)
        schema = self._spark.read.parquet(path).schema
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)

    def _results(self, query: str) -> str:
        return str(self._folder / "out" / query)

    def _sampled(self, query: str, sample: FunnelSample) -> pa.Table:
        results = self._spark.read.parquet(self._results(query)).drop("batch_id")
        table: pa.Table = results.where(sample.condition).toArrow()
        return table

    def _watch(self, running: Any, interrupted: list[int]) -> list[tuple[int, float]]:
        """Show each batch when it ends, until the job ends or Ctrl-C; return tuples and seconds of each."""
        batches: list[tuple[int, float]] = []
        with self._console.status("Joining ...") if self._console.is_terminal else nullcontext():
            has_ended = False
            while not has_ended and not interrupted:
                has_ended = running.await_termination(timeout=1)
                for progress in running.query.recentProgress[len(batches) :]:
                    batches.append((progress["numInputRows"], progress["batchDuration"] / 1000))
                    self._console.print(_batch_line(len(batches), *batches[-1], running.metrics()), soft_wrap=True)
        return batches

    def _summarize(
        self, streams: Mapping[str, Mapping[str, Any]], tuples: Mapping[str, int], batches: list[tuple[int, float]]
    ) -> None:
        self._console.print("\n[bold]Streams[/bold]; a tuple that several shards need is in the windows of each")
        headings = ["stream", "tuples", "late", "no time", "in windows", "state"]
        counts = [
            [
                name,
                *(f"{n:,}" for n in (tuples[name], s["late"], s["refused"], s["state_tuples"])),
                mebibytes(s["state_bytes"]),
            ]
            for name, s in streams.items()
        ]
        self._console.print(table_of(headings, counts))
        rows, seconds = (sum(part) for part in zip(*batches[1:], strict=True))
        self._console.print(
            f"\n{rows:,.0f} tuples in {seconds:.1f} s: {large(rows / seconds)} tuples/s, from file to file, "
            "not counting the first batch, which loads the kernels.",
            soft_wrap=True,
        )


def _batch_line(number: int, tuples: int, seconds: float, metrics: Mapping[str, Any]) -> str:
    state = sum(stream["state_bytes"] for stream in metrics["streams"].values())
    results = "  ".join(f"{name} {query['results']:,}" for name, query in metrics["queries"].items())
    return (
        f"batch {number:>3}  {large(tuples):>6} tuples in {seconds:>4.1f} s  {large(tuples / seconds):>6}/s  "
        f"state {mebibytes(state)}  {results}"
    )


@contextmanager
def _step(console: Console, message: str) -> Iterator[None]:
    """Show a message while something runs, then how long it took."""
    started = time.perf_counter()
    with console.status(f"{message} ...") if console.is_terminal else nullcontext():
        yield
    console.print(f"{message}: {time.perf_counter() - started:.1f} s.")


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
