"""The demonstration on Spark: from Parquet files to Parquet files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import typer
from rich.console import Console

import dovetail as dt
from dovetail.cli.demo.show import check, introduce, large, mebibytes, show_plan, show_results, table_of
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, FunnelSample, write_files

_OLDEST_JAVA = 17


def _java_problem() -> str | None:
    """Say what is wrong with the Java that Spark would start, and what to do."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"  # Spark's own rule: the variable goes before the PATH
    try:
        answer = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        found = None
    else:
        found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found and int(found[1]) >= _OLDEST_JAVA:
        return None
    where = f" (JAVA_HOME is {home})" if home else ""
    mend = (
        f"unset JAVA_HOME, or set it to a Java {_OLDEST_JAVA}"
        if home
        else f"on Debian or Ubuntu run 'sudo apt-get install openjdk-{_OLDEST_JAVA}-jre-headless'"
    )
    return (
        f"Spark needs Java {_OLDEST_JAVA} or later; found: {found[1] if found else 'none'}{where}.\n"
        f"Hint: {mend}; 'dovetail demo --local' needs no Java."
    )


def demo_on_spark(console: Console, seed: int, batches: int) -> bool:
    """Join on Spark for some micro-batches; say whether the check holds."""
    if problem := _java_problem():
        console.print(problem, soft_wrap=True)
        return False
    introduce(console)
    # A micro-batch has a price of its own on Spark, so each holds more than a batch in this process does.
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
    """The demo once Spark has started."""

    def __init__(self, console: Console, spark: Any, folder: Path) -> None:
        self._console = console
        self._spark = spark
        self._folder = folder

    def run(self, funnel: AdFunnel, tuples: Mapping[str, int], sample: FunnelSample) -> bool:
        session = dt.Session(self._spark)
        for stream in funnel.streams:
            lateness = timedelta(microseconds=stream.lateness)
            session.stream(stream.name, self._source(stream.name), stream.event_time, lateness, stream.rate)
        for name, sql in QUERIES.items():
            session.query(name, sql)
        show_plan(self._console, session)
        event_time = timedelta(seconds=funnel.batch_seconds)
        self._console.print(f"\nA micro-batch is {event_time.seconds} s of event time. Ctrl-C ends it early.")
        running = session.start(
            {name: dt.sinks.parquet(self._results(name)) for name in QUERIES},
            checkpoint=str(self._folder / "checkpoint"),
            trigger={"availableNow": True},
        )
        try:
            with _interrupts() as interrupted:
                batches = self._watch(running, interrupted)
        finally:
            with _stderr_to(self._folder / "stop.log"):  # a batch that is cut off complains
                running.stop()
        if interrupted:
            raise KeyboardInterrupt
        metrics = running.metrics()
        found = {name: self._sampled(name, sample) for name in QUERIES}
        for name, table in found.items():
            show_results(self._console, name, metrics["queries"][name]["results"], table, "from the Parquet files")
        self._summarize(metrics["streams"], tuples, batches)
        return check(self._console, found["funnel"], sample)

    def _source(self, stream: str) -> Any:
        path = str(self._folder / "in" / stream)
        schema = self._spark.read.parquet(path).schema
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)

    def _results(self, query: str) -> str:
        return str(self._folder / "out" / query)

    def _sampled(self, query: str, sample: FunnelSample) -> pa.Table:
        table: pa.Table = self._spark.read.parquet(self._results(query)).drop("batch_id").where(sample.where).toArrow()
        return table

    def _watch(self, running: Any, interrupted: list[int]) -> list[tuple[int, float]]:
        """Show each batch as it ends, until all have or Ctrl-C; give its tuples and seconds."""
        seen: list[tuple[int, float]] = []
        with self._console.status("Joining ...") if self._console.is_terminal else nullcontext():
            ended = False
            while not ended and not interrupted:
                ended = running.await_termination(timeout=1)
                for progress in running.query.recentProgress[len(seen) :]:
                    seen.append((progress["numInputRows"], progress["batchDuration"] / 1000))
                    self._console.print(_batch_line(len(seen), *seen[-1], running.metrics()), soft_wrap=True)
        return seen

    def _summarize(
        self, streams: Mapping[str, Mapping[str, int]], tuples: Mapping[str, int], batches: list[tuple[int, float]]
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
        rows, busy = (sum(part) for part in zip(*batches[1:], strict=True))
        self._console.print(
            f"\n{rows:,.0f} tuples in {busy:.1f} s: {large(rows / busy)} tuples/s, from file to file, "
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
    """Show what takes a while, then how long it took."""
    started = time.perf_counter()
    with console.status(f"{message} ...") if console.is_terminal else nullcontext():
        yield
    console.print(f"{message}: {time.perf_counter() - started:.1f} s.")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Take note of Ctrl-C instead of raising it: inside a call of the JVM it would break the connection."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send what this process and those it starts write to standard error to a file; show it if something fails.

    The JVM keeps the file: what it and the Python workers say later goes there too.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception:
        os.write(kept, path.read_bytes())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
