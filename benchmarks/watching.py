"""Measure what it costs to watch a join and to consider its orders again, at any width; results must be the same.

Streams are joined on one key over windows of 2,000 tuples with 2,000 keys, so that each new tuple completes about one result. For each
width two sessions, with `adaptive` on and off, take each batch one after the other, in turns, after the same batches to warm up; the
median round counts. Seconds are of processor time, so that neighbours on the machine matter less. `ratio` is the speed with watching
divided by the speed without: above 1 where better orders gain more than watching costs. `growth` is how much longer a tuple takes than
at the first width, watched and not: both should grow alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

import dovetail as dt
from engine import console, save

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
RATE = KEYS = 2_000
STEP_MICROS = 1_000_000 // RATE


def open_session(streams: int, *, adaptive: bool) -> dt.LocalSession:
    session = dt.LocalSession(config=dt.Config(adaptive=adaptive))
    names = [f"s{number}" for number in range(streams)]
    for name in names:
        session.stream(name, SCHEMA, "ts", rate=float(RATE))
    windows = ", ".join(f"{name} [RANGE 1 SECOND]" for name in names)
    equal = " AND ".join(f"{left}.k = {right}.k" for left, right in pairwise(names))
    session.query("q", f"SELECT s0.k FROM {windows} WHERE {equal}")
    return session


def pushes(streams: int, batch: int) -> Iterator[dict[str, pa.Table]]:
    """Batches of so many tuples of all streams together, without end."""
    rng = np.random.default_rng(streams)
    rows, first = batch // streams, 0
    while True:
        ts = np.arange(first, first + rows, dtype=np.int64) * STEP_MICROS
        yield {
            f"s{number}": pa.table([ts + number, rng.integers(0, KEYS, rows)], schema=SCHEMA)
            for number in range(streams)
        }
        first += rows


def measure(streams: int, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give thousands of tuples per second, watched and not."""
    sessions = {adaptive: open_session(streams, adaptive=adaptive) for adaptive in (True, False)}
    source, count = pushes(streams, batch), max(1, arguments.tuples // batch)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(arguments.warm_up + arguments.rounds):
        results, taken = {True: 0, False: 0}, {True: 0.0, False: 0.0}
        for turn in range(count):
            push = next(source)
            for adaptive in (True, False) if turn % 2 else (False, True):
                began = time.process_time()
                results[adaptive] += sessions[adaptive].push(push)["q"].num_rows
                taken[adaptive] += time.process_time() - began
        assert results[True] == results[False], f"{streams} streams: {results}"
        for adaptive in taken if number >= arguments.warm_up else ():
            seconds[adaptive].append(taken[adaptive])
    tuples = count * (batch // streams) * streams / 1000
    watched, plain = (tuples / statistics.median(seconds[adaptive]) for adaptive in (True, False))
    whole = sum(seconds[False]) / sum(seconds[True])
    changes: Any = sessions[True].metrics()["queries"]["q"]["changes"]
    return {
        "streams": streams, "batch": batch, "watched": watched, "plain": plain, "ratio": watched / plain, "whole": whole,
        "changes": len(changes), "seconds": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 5, 8, 10, 15, 20])
    parser.add_argument("--batch", type=int, nargs="+", default=[10_000, 1_000])
    parser.add_argument("--tuples", type=int, default=100_000, help="tuples per round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=6, help="rounds that are not counted")
    arguments = parser.parse_args()
    table = Table("batch", "streams", "watched k/s", "not k/s", "ratio", "of all rounds", "growth", title="Watching")
    runs = []
    for batch in arguments.batch:
        first: dict[str, Any] = {}
        for streams in arguments.streams:
            run = measure(streams, batch, arguments)
            first = first or run
            run["growth"] = {name: first[name] / run[name] for name in ("watched", "plain")}
            grown = " / ".join(f"{value:.2f}" for value in run["growth"].values())
            figures = [
                f"{run['watched']:,.0f}",
                f"{run['plain']:,.0f}",
                f"{run['ratio']:.3f}",
                f"{run['whole']:.3f}",
                grown,
            ]
            table.add_row(f"{batch:,}", str(streams), *figures)
            console.print(f"{streams} streams, {batch:,} tuples per push: {run['ratio']:.3f}", style="dim")
            runs.append(run)
    console.print(table)
    save("watching", runs)


if __name__ == "__main__":
    main()
