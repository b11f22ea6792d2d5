"""The demo in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

import dovetail as dt
from dovetail.cli.demo.show import check, introduce, large, mebibytes, show_plan, show_results, table_of
from dovetail.workloads.ad_funnel import AdFunnel, FunnelSample

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 1.0


def demo_local(console: Console, seed: int, seconds: float) -> bool:
    """Join in this process for some seconds; return whether the results are correct."""
    introduce(console)
    funnel = AdFunnel(seed=seed)
    session = _start_session(console, funnel)
    show_plan(console, session)
    run = _Run(session, FunnelSample(funnel))
    _stream(console, run, funnel, seconds)
    _summarize(console, run)
    return check(console, pa.concat_tables(run.sampled), run.sample)


def _start_session(console: Console, funnel: AdFunnel) -> dt.LocalSession:
    """Start a session, which compiles the kernels, and show a message meanwhile."""
    message = "Compiling the kernels (some seconds the first time, then they are cached) ..."
    started = time.perf_counter()
    with console.status(message) if console.is_terminal else nullcontext():
        if not console.is_terminal:
            console.print(message)
        session = dt.LocalSession()
        funnel.workload.declare(session)
    console.print(f"Kernels ready after {time.perf_counter() - started:.1f} s.")
    return session


@dataclass
class _Run:
    """A running session and its figures for display."""

    session: dt.LocalSession
    sample: FunnelSample
    batches: int = 0
    tuples: int = 0
    busy: float = 0.0
    """Seconds inside `push`, without the time to generate the input."""
    results: dict[str, int] = field(default_factory=dict)
    latest: dict[str, pa.Table] = field(default_factory=dict)
    """Each query's results from the last batch that had any."""
    sampled: list[pa.Table] = field(default_factory=list)

    def push(self, batch: Mapping[str, pa.Table]) -> None:
        started = time.perf_counter()
        results = self.session.push(batch)
        self.busy += time.perf_counter() - started
        self.batches += 1
        self.tuples += sum(table.num_rows for table in batch.values())
        for name, table in results.items():
            self.results[name] = self.results.get(name, 0) + table.num_rows
            self.latest[name] = table if table.num_rows else self.latest.get(name, table)
        self.sample.add(batch)
        self.sampled.append(self.sample.select(results["funnel"]))

    @property
    def streams(self) -> Mapping[str, Mapping[str, Any]]:
        metrics: Mapping[str, Mapping[str, Any]] = self.session.metrics()["streams"]
        return metrics

    @property
    def rate(self) -> float:
        return self.tuples / self.busy if self.busy else 0.0

    def line(self) -> str:
        state = sum(stream["state_bytes"] for stream in self.streams.values())
        results = "  ".join(f"{name} {count:,}" for name, count in self.results.items())
        return f"batch {self.batches:>4}  {large(self.tuples):>7} tuples  {large(self.rate):>7}/s  state {mebibytes(state)}  {results}"


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


@contextmanager
def _display(console: Console) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Yield a function that shows a status line, in place on a terminal, every second elsewhere."""
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
    next_update = 0.0 if live else time.perf_counter() + _LINE_SECONDS

    def show(line: Callable[[], str]) -> None:
        nonlocal next_update
        now = time.perf_counter()
        if now < next_update:
            return
        next_update = now + (_REFRESH_SECONDS if live else _LINE_SECONDS)
        if live:
            live.update(Text(line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            console.print(line(), soft_wrap=True)

    with live or nullcontext():
        yield show


def _summarize(console: Console, run: _Run) -> None:
    for name, table in run.latest.items():
        show_results(console, name, run.results[name], table, "of the last batch")
    console.print("\n[bold]Streams[/bold]")
    headings = ["stream", "arrived", "late, dropped", "in windows", "state"]
    counts = [
        [name, f"{s['arrivals']:,}", f"{s['late']:,}", f"{s['state_tuples']:,}", mebibytes(s["state_bytes"])]
        for name, s in run.streams.items()
    ]
    console.print(table_of(headings, counts))
    console.print(f"\n{run.tuples:,} tuples joined in {run.busy:.1f} s: {large(run.rate)} tuples/s, input ready-made.")
