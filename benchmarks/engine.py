"""Measure the engine beside what a user would write without it, and check every answer.

Each workload joins n streams on one key over 10-second windows: 1,000 tuples per second of event time and stream, 10,000 distinct
keys, a 16-character payload, so that each new tuple completes about one result. One of them has 16 columns instead of these three.
Input is pushed in event-time order, so many tuples of all streams together per push; each result comes out once, with all columns of
all streams, in an Arrow table.

Runners:

- `dovetail`: one `LocalSession`; always runs the whole input.
- `polars`: the script one would write instead. It keeps each stream's window as a frame and joins each stream's new rows with the
  other windows, delta by delta. Below 1,000 tuples per push it is too slow to run whole: its windows are filled untimed, then a
  bounded number of pushes is timed; the table marks such rows.
- `duckdb`: one batch join over the whole input, which sees everything at once and keeps no window; a yardstick, not a stream.

Input is generated before the clock starts. Incremental runners take the same Arrow tables, push by push, and give Arrow tables; DuckDB
has its input in tables of its own beforehand. Runs are interleaved, round by round, and the median counts. `--bounded` instead
pushes 50 windows' worth through one session and shows that memory stays flat.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from rich.console import Console
from rich.table import Table

RATE = 1_000
KEYS = 10_000
WINDOW_SECONDS = 10
WINDOW_MICROS = WINDOW_SECONDS * 1_000_000
STEP_MICROS = 1_000_000 // RATE
START_MICROS = 1_700_000_000_000_000
PAYLOAD = 16
SMALLEST_WHOLE_BATCH = 1_000
PEER_PUSHES = 1_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("v", pa.string())])

Push = dict[str, pa.Table]
STARTED = datetime.now(UTC)
console = Console()


@dataclass(frozen=True)
class Workload:
    """So many streams of so many tuples each."""

    streams: int
    tuples: int
    columns: int = 3

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns)

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(self.streams)]

    @property
    def total(self) -> int:
        return self.streams * self.tuples


@dataclass
class Measurement:
    """What one runner did with one workload, over all rounds."""

    runner: str
    streams: int
    columns: int
    batch: int | None
    tuples: int
    whole: bool
    results: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def tuples_per_second(self) -> float:
        return self.tuples / statistics.median(self.seconds)


def schema_of(columns: int) -> pa.Schema:
    return pa.schema([*SCHEMA, *(pa.field(f"c{number}", pa.int64()) for number in range(3, columns))])


def generate(rows: int, stream: int, streams: int, first: int = 0, seed: int = 1, columns: int = 3) -> pa.Table:
    """Give `rows` tuples of a stream from tuple number `first` on; streams interleave evenly in event time."""
    random = np.random.default_rng((seed, stream, first))
    ts = START_MICROS + np.arange(first, first + rows, dtype=np.int64) * STEP_MICROS + stream * STEP_MICROS // streams
    letters = random.integers(ord("a"), ord("z") + 1, rows * PAYLOAD, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * PAYLOAD
    payload = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    keys = random.integers(0, KEYS, rows, dtype=np.int64)
    more = [pa.array(random.integers(0, KEYS, rows, dtype=np.int64)) for _ in range(3, columns)]
    times = pa.array(ts).cast(SCHEMA.field("ts").type)
    return pa.table([times, pa.array(keys), payload, *more], schema=schema_of(columns))


def cut(tables: Push, batch: int) -> list[Push]:
    """Cut the streams into pushes of `batch` tuples together, in event-time order (tuple g belongs to stream g mod n)."""
    streams, rows = len(tables), next(iter(tables.values())).num_rows
    pushes = []
    for low in range(0, rows * streams, batch):
        push = {}
        for number, (name, table) in enumerate(tables.items()):
            first, last = (-(-(max(bound - number, 0)) // streams) for bound in (low, low + batch))
            push[name] = table.slice(first, min(last, rows) - first)
        pushes.append(push)
    return pushes


def run_dovetail(workload: Workload, pushes: list[Push]) -> tuple[float, int]:
    session = open_session(workload)
    results = 0
    start = time.perf_counter()
    for push in pushes:
        results += session.push(push)["q"].num_rows
    return time.perf_counter() - start, results


def open_session(workload: Workload) -> Any:
    dt: Any = import_module("dovetail")  # here, so that peers can be measured without it
    session = dt.LocalSession()
    for name in workload.names:
        session.stream(name, workload.schema, event_time="ts", rate=float(RATE))
    windows = ", ".join(f"{name} [RANGE {WINDOW_SECONDS} SECONDS]" for name in workload.names)
    session.query("q", f"SELECT * FROM {windows} WHERE {chain_of_equalities(workload)}")
    return session


def chain_of_equalities(workload: Workload) -> str:
    names = workload.names
    return " AND ".join(f"{left}.k = {right}.k" for left, right in pairwise(names))


class PolarsJoin:
    """The incremental join as a script over frames: windows kept, deltas joined, expired rows dropped."""

    def __init__(self, names: list[str], empty: dict[str, pl.DataFrame]) -> None:
        self.names = names
        self.windows = dict(empty)
        self.columns = [column for frame in empty.values() for column in frame.columns]
        self.times = [f"{name}_ts" for name in names]
        latest, earliest = pl.max_horizontal(self.times), pl.min_horizontal(self.times)
        self.in_window = earliest >= latest - pl.duration(microseconds=WINDOW_MICROS)

    def push(self, new: dict[str, pl.DataFrame]) -> pa.Table:
        """Give the results that the new rows complete."""
        parts = []
        grown: dict[str, pl.DataFrame] = {}
        for origin in self.names:
            # Streams before the origin already show their new rows, those after it do not: each result comes once.
            joined = new[origin]
            for other in self.names:
                if other != origin:
                    side = grown.get(other, self.windows[other])
                    joined = joined.join(side, left_on=f"{origin}_k", right_on=f"{other}_k", coalesce=False)
            parts.append(joined.filter(self.in_window).select(self.columns))
            grown[origin] = pl.concat([self.windows[origin], new[origin]])
        self.expire(grown)
        return pl.concat(parts).to_arrow()

    def expire(self, grown: dict[str, pl.DataFrame]) -> None:
        now = max(frame[f"{name}_ts"][-1] for name, frame in grown.items() if frame.height)
        limit = pl.lit(now) - pl.duration(microseconds=WINDOW_MICROS)
        self.windows = {name: frame.filter(pl.col(f"{name}_ts") >= limit).rechunk() for name, frame in grown.items()}


def to_polars(push: Push) -> dict[str, pl.DataFrame]:
    frames = {}
    for name, table in push.items():
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frames[name] = frame.rename({column: f"{name}_{column}" for column in frame.columns})
    return frames


def run_polars(workload: Workload, pushes: list[Push], untimed: int = 0) -> tuple[float, int]:
    join = PolarsJoin(workload.names, {name: frame.clear() for name, frame in to_polars(pushes[0]).items()})
    for push in pushes[:untimed]:
        join.push(to_polars(push))
    results = 0
    start = time.perf_counter()
    for push in pushes[untimed:]:
        results += join.push(to_polars(push)).num_rows
    return time.perf_counter() - start, results


def duckdb_sql(workload: Workload) -> str:
    names = workload.names
    near = [
        f"{right}.ts BETWEEN {left}.ts - INTERVAL {WINDOW_SECONDS} SECONDS AND {left}.ts + INTERVAL {WINDOW_SECONDS} SECONDS"
        for number, left in enumerate(names)
        for right in names[number + 1 :]
    ]
    columns = ", ".join(f"{name}.{column} AS {name}_{column}" for name in names for column in workload.schema.names)
    return f"SELECT {columns} FROM {', '.join(names)} WHERE {chain_of_equalities(workload)} AND {' AND '.join(near)}"


def prepare_duckdb(workload: Workload, tables: Push) -> Callable[[], tuple[float, int]]:
    connection = duckdb.connect(config={"threads": 2})
    for name, table in tables.items():
        connection.register("arrow_input", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow_input")
        connection.unregister("arrow_input")
    sql = duckdb_sql(workload)

    def run() -> tuple[float, int]:
        start = time.perf_counter()
        results: pa.Table = connection.sql(sql).to_arrow_table()
        return time.perf_counter() - start, results.num_rows

    run()
    return run


def measure(workload: Workload, batches: list[int], only: set[str], rounds: int) -> list[Measurement]:
    """Run all runners of a workload, interleaved; check that they agree."""
    tables = {
        name: generate(workload.tuples, i, workload.streams, columns=workload.columns)
        for i, name in enumerate(workload.names)
    }
    runs: list[tuple[Measurement, Callable[[], tuple[float, int]]]] = []
    if "duckdb" in only:
        whole = Measurement("duckdb", workload.streams, workload.columns, None, workload.total, whole=True)
        runs.append((whole, prepare_duckdb(workload, tables)))
    for batch in batches:
        pushes = cut(tables, batch)
        if "polars" in only:
            runs.append(prepare_polars(workload, pushes, batch))
        if "dovetail" in only:
            run_dovetail(workload, pushes[: max(2, 30_000 // batch)])  # compile, fill caches
            measurement = Measurement("dovetail", workload.streams, workload.columns, batch, workload.total, whole=True)
            runs.append((measurement, lambda pushes=pushes: run_dovetail(workload, pushes)))  # type: ignore[misc]
    gc.collect()
    gc.freeze()  # the input is many small objects; no runner should pay for walking them
    for number in range(rounds):
        for measurement, run in runs:
            seconds, measurement.results = run()
            measurement.seconds.append(seconds)
            console.print(
                f"  round {number + 1}: {measurement.runner} {measurement.batch or 'all'}: {seconds:.2f} s", style="dim"
            )
    measurements = [measurement for measurement, _ in runs]
    counts = {(m.runner, m.batch): m.results for m in measurements if m.whole}
    assert len(set(counts.values())) <= 1, f"the runners disagree about the number of results: {counts}"
    return measurements


def prepare_polars(
    workload: Workload, pushes: list[Push], batch: int
) -> tuple[Measurement, Callable[[], tuple[float, int]]]:
    untimed, end = 0, len(pushes)
    if batch < SMALLEST_WHOLE_BATCH:
        untimed = min(-(-WINDOW_SECONDS * RATE * workload.streams // batch), end // 2)
        end = min(untimed + PEER_PUSHES, end)
    run_polars(workload, pushes[: max(2, 30_000 // batch)])
    timed = sum(table.num_rows for push in pushes[untimed:end] for table in push.values())
    whole = untimed == 0 and end == len(pushes)
    measurement = Measurement("polars", workload.streams, workload.columns, batch, timed, whole=whole)
    return measurement, lambda: run_polars(workload, pushes[:end], untimed)


def show(measurements: list[Measurement]) -> None:
    names = ("runner", "streams", "columns", "batch", "tuples/s", "results", "ratio to polars")
    table = Table(*names, title="Sliding-window join")
    peers = {(m.streams, m.columns, m.batch): m.tuples_per_second for m in measurements if m.runner == "polars"}
    for m in sorted(measurements, key=lambda m: (m.streams, m.columns, -(m.batch or sys.maxsize), m.runner)):
        peer = peers.get((m.streams, m.columns, m.batch))
        table.add_row(
            m.runner,
            str(m.streams),
            str(m.columns),
            f"{m.batch:,}" if m.batch else "all",
            f"{m.tuples_per_second:,.0f}",
            f"{m.results:,}" + ("" if m.whole else f" (of {m.tuples:,} tuples)"),
            f"{m.tuples_per_second / peer:.2f}" if peer else "",
        )
    console.print(table)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def windows_of_pushes(workload: Workload, windows: int, batch: int) -> Iterator[list[Push]]:
    """Generate one window's worth of pushes at a time, so that the input itself takes no room."""
    rows = WINDOW_SECONDS * RATE
    for window in range(windows):
        tables = {
            name: generate(rows, number, workload.streams, first=window * rows)
            for number, name in enumerate(workload.names)
        }
        yield cut(tables, batch)


def run_bounded(windows: int, batch: int) -> list[dict[str, int | None]]:
    """Push many windows' worth through one session; memory must be flat after the first three."""
    workload = Workload(3, windows * WINDOW_SECONDS * RATE)
    session = open_session(workload)
    table = Table("window", "RSS MB", "state bytes", "results", title=f"{windows} windows through one session")
    rows: list[dict[str, int | None]] = []
    for number, pushes in enumerate(windows_of_pushes(workload, windows, batch), start=1):
        results = sum(session.push(push)["q"].num_rows for push in pushes)
        streams = session.metrics()["streams"].values()
        state = sum(stream["state_bytes"] for stream in streams)
        rows.append({"window": number, "rss": resident_bytes(), "state_bytes": state, "results": results})
        table.add_row(
            str(number), f"{(rows[-1]['rss'] or 0) / 1e6:.1f}", f"{state:,}" if state else "?", f"{results:,}"
        )
    console.print(table)
    for name in ("rss", "state_bytes"):
        values = [row[name] or 0 for row in rows]
        early, late = max(values[:3]), max(values[3:], default=0)
        assert late <= early * 1.15 + 8_000_000 * (name == "rss"), f"{name} grew from {early:,} to {late:,}"
    console.print("memory is flat after the first three windows")
    return rows


def surroundings() -> dict[str, Any]:
    """Say on what, when and with which versions this was measured."""
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {}
    for name in ("dovetail", "duckdb", "numba", "numpy", "polars", "pyarrow", "pyspark"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def save(kind: str, content: list[Any]) -> None:
    """Write what was measured so far; a process has one file of each kind."""
    folder = Path(__file__).resolve().parent / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{kind}-{STARTED:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({**surroundings(), "runs": content}, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to benchmarks/results/{path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the engine beside its peers.")
    parser.add_argument("--only", default="duckdb,polars,dovetail", help="runners, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round; nothing is kept")
    parser.add_argument("--bounded", action="store_true", help="show that memory stays flat over 50 windows")
    options = parser.parse_args()
    shrink = 10 if options.quick else 1
    if options.bounded:
        windows = run_bounded(windows=max(50 // shrink, 8), batch=1_000)
        if not options.quick:
            save("engine-bounded", windows)
        return
    rounds = 1 if options.quick else options.rounds
    measurements = []
    for streams, tuples, columns in ((3, 500_000, 3), (3, 200_000, 16), (5, 200_000, 3), (10, 50_000, 3)):
        workload = Workload(streams, tuples // shrink, columns)
        console.print(f"{workload.streams} streams x {workload.tuples:,} tuples of {columns} columns")
        measurements += measure(workload, [10_000, 1_000, 300], set(options.only.split(",")), rounds)
    show(measurements)
    if not options.quick:
        save("engine-throughput", [asdict(m) | {"tuples_per_second": m.tuples_per_second} for m in measurements])


if __name__ == "__main__":
    main()
