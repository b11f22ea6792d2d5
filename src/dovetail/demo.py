"""The demonstration: a synthetic ad funnel joined in this process or on Spark, checked against a batch join."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import dovetail as dt
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, Sample, write_files

_SHOWN_ROWS = 5
_REFRESH = 0.25
_LINE_EVERY = 1.0
_OLDEST_JAVA = 17


# -- in this process ------------------------------------------------------------------------------------------------------------


def demo_here(console: Console, seed: int, seconds: float) -> bool:
    """Join in this process for some seconds; say whether the check holds."""
    _introduce(console)
    funnel = AdFunnel(seed=seed)
    session = _compiled(console, lambda: _session(funnel))
    _show_plan(console, session)
    run = _Run(session, Sample(funnel))
    _stream(console, run, funnel, seconds)
    _summarize(console, run)
    return _check(console, pa.concat_tables(run.sampled), run.sample)


def _session(funnel: AdFunnel) -> dt.LocalSession:
    session = dt.LocalSession()
    for stream in funnel.streams:
        lateness = timedelta(microseconds=stream.lateness)
        session.stream(stream.name, stream.columns, stream.event_time, lateness, stream.rate)
    for name, sql in QUERIES.items():
        session.query(name, sql)
    return session


def _compiled(console: Console, start: Callable[[], dt.LocalSession]) -> dt.LocalSession:
    """Start a session, which compiles the kernels, with a word on the screen while it takes its time."""
    message = "Compiling the kernels (some seconds the first time, then they are cached) ..."
    started = time.perf_counter()
    with console.status(message) if console.is_terminal else nullcontext():
        if not console.is_terminal:
            console.print(message)
        session = start()
    console.print(f"Kernels ready after {time.perf_counter() - started:.1f} s.")
    return session


@dataclass
class _Run:
    """A session at work, and what is shown of it."""

    session: dt.LocalSession
    sample: Sample
    batches: int = 0
    tuples: int = 0
    busy: float = 0.0
    """Seconds inside `push`; making up the input does not count."""
    results: dict[str, int] = field(default_factory=dict)
    latest: dict[str, pa.Table] = field(default_factory=dict)
    """Each query's results from the last batch that had any."""
    sampled: list[pa.Table] = field(default_factory=list)

    def push(self, batch: Mapping[str, pa.Table]) -> None:
        started = time.perf_counter()
        found = self.session.push(batch)
        self.busy += time.perf_counter() - started
        self.batches += 1
        self.tuples += sum(table.num_rows for table in batch.values())
        for name, table in found.items():
            self.results[name] = self.results.get(name, 0) + table.num_rows
            self.latest[name] = table if table.num_rows else self.latest.get(name, table)
        self.sample.take(batch)
        self.sampled.append(self.sample.of(found["funnel"]))

    @property
    def streams(self) -> Mapping[str, Mapping[str, Any]]:
        return self.session.metrics()["streams"]

    @property
    def rate(self) -> float:
        return self.tuples / self.busy if self.busy else 0.0

    def line(self) -> str:
        state = sum(stream["state_bytes"] for stream in self.streams.values())
        results = "  ".join(f"{name} {count:,}" for name, count in self.results.items())
        return f"batch {self.batches:>4}  {_large(self.tuples):>7} tuples  {_large(self.rate):>7}/s  state {_bytes(state)}  {results}"


def _spread(table: pa.Table) -> list[dict[str, Any]]:
    """A few rows from all over a table."""
    step = max(1, table.num_rows // _SHOWN_ROWS)
    places = range(0, table.num_rows, step)[:_SHOWN_ROWS]
    return [row for place in places for row in table.slice(place, 1).to_pylist()]


def _stream(console: Console, run: _Run, funnel: AdFunnel, seconds: float) -> None:
    """Push batches until the time is up, or until Ctrl-C."""
    every = timedelta(seconds=funnel.batch_seconds)
    console.print(f"\nStreaming for {seconds:g} s; a batch is {every.seconds} s of event time. Ctrl-C ends it early.")
    deadline = time.perf_counter() + seconds
    with _display(console) as show:
        try:
            for batch in funnel.batches():
                run.push(batch)
                show(run.line)
                if time.perf_counter() > deadline:
                    break
        except KeyboardInterrupt:
            console.print("Stopped.")
    console.print(run.line(), soft_wrap=True)


class _display:  # noqa: N801 - a context manager, used like a function
    """Show a line that keeps changing: in place on a terminal, now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._next = 0.0 if self._live else time.perf_counter() + _LINE_EVERY

    def __enter__(self) -> Callable[[Callable[[], str]], None]:
        if self._live:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def _show(self, line: Callable[[], str]) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + (_REFRESH if self._live else _LINE_EVERY)
        if self._live:
            self._live.update(Text(line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._console.print(line(), soft_wrap=True)


def _summarize(console: Console, run: _Run) -> None:
    for name, table in run.latest.items():
        _show_results(console, name, run.results[name], table, "of the last batch")
    console.print("\n[bold]Streams[/bold]")
    headings = ["stream", "arrived", "late, dropped", "in windows", "state"]
    counts = [
        [name, f"{s['arrivals']:,}", f"{s['late']:,}", f"{s['state_tuples']:,}", _bytes(s["state_bytes"])]
        for name, s in run.streams.items()
    ]
    console.print(_table(headings, counts))
    console.print(f"\n{run.tuples:,} tuples joined in {run.busy:.1f} s: {_large(run.rate)} tuples/s, input ready-made.")


# -- on Spark -------------------------------------------------------------------------------------------------------------------


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
    _introduce(console)
    # A micro-batch has a price of its own on Spark, so each holds more than a batch in this process does.
    funnel = AdFunnel(seed=seed, impressions_per_second=2500, batch_seconds=120)
    with TemporaryDirectory(prefix="dovetail-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        sample = Sample(funnel)
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

    def run(self, funnel: AdFunnel, tuples: Mapping[str, int], sample: Sample) -> bool:
        session = dt.Session(self._spark)
        for stream in funnel.streams:
            lateness = timedelta(microseconds=stream.lateness)
            session.stream(stream.name, self._source(stream.name), stream.event_time, lateness, stream.rate)
        for name, sql in QUERIES.items():
            session.query(name, sql)
        _show_plan(self._console, session)
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
            _show_results(self._console, name, metrics["queries"][name]["results"], table, "from the Parquet files")
        self._summarize(metrics["streams"], tuples, batches)
        return _check(self._console, found["funnel"], sample)

    def _source(self, stream: str) -> Any:
        path = str(self._folder / "in" / stream)
        schema = self._spark.read.parquet(path).schema
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)

    def _results(self, query: str) -> str:
        return str(self._folder / "out" / query)

    def _sampled(self, query: str, sample: Sample) -> pa.Table:
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
                _bytes(s["state_bytes"]),
            ]
            for name, s in streams.items()
        ]
        self._console.print(_table(headings, counts))
        rows, busy = (sum(part) for part in zip(*batches[1:], strict=True))
        self._console.print(
            f"\n{rows:,.0f} tuples in {busy:.1f} s: {_large(rows / busy)} tuples/s, from file to file, "
            "not counting the first batch, which loads the kernels.",
            soft_wrap=True,
        )


def _batch_line(number: int, tuples: int, seconds: float, metrics: Mapping[str, Any]) -> str:
    state = sum(stream["state_bytes"] for stream in metrics["streams"].values())
    results = "  ".join(f"{name} {query['results']:,}" for name, query in metrics["queries"].items())
    return (
        f"batch {number:>3}  {_large(tuples):>6} tuples in {seconds:>4.1f} s  {_large(tuples / seconds):>6}/s  "
        f"state {_bytes(state)}  {results}"
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


# -- what both show ---------------------------------------------------------------------------------------------------------------


def _introduce(console: Console) -> None:
    console.print(Text("An ad funnel: who saw an ad, clicked on it, and bought something.", style="bold"))
    for name, sql in QUERIES.items():
        console.print(Text(f"\n{name}", style="bold"), Text(sql.removeprefix("\n")), sep="\n", soft_wrap=True)
    console.print()


def _show_plan(console: Console, session: dt.LocalSession | dt.Session) -> None:
    console.print(Text("\nThe plan", style="bold"), Text(str(session.explain())), sep="\n", soft_wrap=True)


def _show_results(console: Console, name: str, count: int, table: pa.Table, source: str) -> None:
    rows = _spread(table)
    console.print(f"\n[bold]{name}[/bold]: {count:,} results; {len(rows)} {source}:")
    console.print(_table(table.column_names, [[_cell(value) for value in row.values()] for row in rows]))


def _check(console: Console, found: pa.Table, sample: Sample) -> bool:
    """Compare the sampled results with a batch join over the same input."""
    expected = sample.expected()
    order = [(name, "ascending") for name in expected.column_names]
    same = bool(found.cast(expected.schema).sort_by(order).equals(expected.sort_by(order)))
    verdict = "the same rows" if same else f"[bold red]it gives {expected.num_rows:,} rows, and they differ[/bold red]"
    console.print(
        f"Checked {found.num_rows:,} funnel results (every {sample.every}th ad) with a batch join: {verdict}.",
        soft_wrap=True,
    )
    return same


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _cell(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    return f"{value:%H:%M:%S}" if hasattr(value, "strftime") else str(value)


def _large(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def _bytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
