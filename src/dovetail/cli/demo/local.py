"""The demo in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from rich.console import Console

import dovetail as dt
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
from dovetail.workloads.ad_funnel import QUERIES, AdFunnel, FunnelSample

_LINE_SECONDS = 0.25
_BATCH_SECONDS = 20.0
_MIN_BATCHES = 20
"""However slow the machine is: before, few orders have followed their clicks."""


def demo_local(console: Console, seed: int, seconds: float, *, explain: bool = False) -> bool:
    """Join in this process for some seconds; return whether the results are correct."""
    introduce(console, "in this process")
    funnel = AdFunnel(seed=seed, users=1_000_000, batch_seconds=_BATCH_SECONDS)
    with without_warnings(), ProgressLine(console) as progress:
        with progress.step(
            "Compiling the kernels (half a minute the first time, then they are cached)", "Kernels are ready"
        ):
            session = dt.LocalSession()
            replace(funnel.workload, queries={QUERY: QUERIES[QUERY]}).declare(session)
        if explain:
            show_plan(console, session)
        run = _Run(session, FunnelSample(funnel))
        _stream(progress, run, funnel, seconds)
        progress.show("Checking against a batch join")
        sampled = pa.concat_tables(run.sampled)
        show_results(console, run.results, sampled)
        is_correct = check(console, sampled, run.sample)
        show_late(console, run.streams, funnel)
    return is_correct


@dataclass
class _Run:
    """A running session and its figures for display."""

    session: dt.LocalSession
    sample: FunnelSample
    batches: int = 0
    tuples: int = 0
    busy: float = 0.0
    """Seconds inside `push`, without the time to generate the input."""
    results: int = 0
    sampled: list[pa.Table] = field(default_factory=list)
    """Results of the sampled users."""

    def push(self, batch: Mapping[str, pa.Table]) -> None:
        started = time.perf_counter()
        results = self.session.push(batch)[QUERY]
        self.busy += time.perf_counter() - started
        self.batches += 1
        self.tuples += sum(table.num_rows for table in batch.values())
        self.results += results.num_rows
        self.sample.add(batch)
        self.sampled.append(self.sample.select(results))

    @property
    def streams(self) -> Mapping[str, Mapping[str, Any]]:
        metrics: Mapping[str, Mapping[str, Any]] = self.session.metrics()["streams"]
        return metrics

    def line(self) -> str:
        state = sum(stream["state_bytes"] for stream in self.streams.values())
        rate = large(self.tuples / self.busy) if self.busy else "0"
        events = took(self.batches * _BATCH_SECONDS)
        return (
            f"{events} of events   {large(self.tuples)} rows   {rate} rows/s   "
            f"{self.results:,} results   {megabytes(state)} of state"
        )


def _stream(progress: ProgressLine, run: _Run, funnel: AdFunnel, seconds: float) -> None:
    """Push batches until the time is up, or until Ctrl-C."""
    progress.show(f"Joining batches of {_BATCH_SECONDS:g} seconds of events, for {took(seconds)}; Ctrl-C ends it early")
    started = time.perf_counter()
    update = started
    try:
        for batch in funnel.batches():
            run.push(batch)
            now = time.perf_counter()
            if now > update:
                update = now + _LINE_SECONDS
                progress.show(run.line(), is_new=False)
            if now > started + seconds and run.batches >= _MIN_BATCHES:
                break
    except KeyboardInterrupt:
        progress.console.print("Stopped.")
    progress.done(run.line(), run.busy)
