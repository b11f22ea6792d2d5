"""Measure the pipeline on Spark beside Spark's own chain of stream-stream joins, and beside its own transport.

Workloads are those of `benchmarks/engine.py` (3 and 5 streams on one key, 10-second windows, a 16-character payload) and a chain of
three streams on two keys, which needs a hypercube. Input lies in Parquet files; a micro-batch reads one file of each stream.

Runners, each in a process of its own:

- `native`, `native-newest`: joins chained with `DataFrame.join`, watermarks and time bounds, one event time cast after the first join,
  as one must; with Spark's default and its newest format of join state; in the Spark session that Dovetail makes;
- `native-plain`, `native-plain-newest`: the same in a session of Spark's own defaults (as many cores, partitions and as large a
  heap), and with no more set than the newest format asks for;
- `dovetail`: `dovetail.Session`;
- `transport`: the same pipeline with the join replaced by nothing.

Results go to Parquet files, all columns of all streams. A reader is assumed who removes what Dovetail has committed. Otherwise the
file cache grows by a gigabyte in a run, and where a virtual machine gives free memory back to its host, writing into memory that
must be fetched again took twelve times as long (500 instead of 41 ms of CPU for 200 MB). The chains give a tenth of that.

Reported: tuples per second over all micro-batches but the first (start-up and compilation), the peak memory of the process tree, of
which a sample is taken every second, the state's rows and bytes. The chains read fewer files; result counts are compared with DuckDB
over the files they read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import engine

SECONDS = engine.WINDOW_SECONDS
DDL = "ts timestamp, k bigint, j bigint, v string"
NEWEST_FORMAT = "4"
RUNNERS = ("native-plain", "native-plain-newest", "native", "native-newest", "dovetail", "transport")
MOST_SECONDS = 900
"""After which a run is given up: five streams of join state do not fit a heap of 1 GB, and Java collects garbage for ever."""
WATCH_SECONDS = 1.0
"""Between two samples of memory. Three in a second took 5 % of two cores."""
KEPT_SECONDS = 3.0
"""How long a reader leaves committed results."""
console = Console(width=140)
WORKLOADS: dict[str, tuple[int, list[tuple[str, str]]]] = {
    "3-way": (3, [("k", "k"), ("k", "k")]),
    "5-way": (5, [("k", "k")] * 4),
    "chain": (3, [("k", "k"), ("j", "j")]),
}
"""Streams, and the columns on which each is joined with the next."""


def names(streams: int) -> list[str]:
    return [f"s{number}" for number in range(streams)]


def write_input(folder: Path, streams: int, files: int, rows: int) -> None:
    """Write `files` files of each stream; a second key `j` is the first of another draw."""
    for number, name in enumerate(names(streams)):
        (folder / name).mkdir(parents=True)
        for file in range(files):
            table = engine.generate(rows, number, streams, first=file * rows)
            other = engine.generate(rows, number, streams, first=file * rows, seed=2).column("k")
            path = folder / name / f"{file:04}.parquet"
            pq.write_table(table.add_column(2, "j", other), path)
            os.utime(path, (1_600_000_000 + file, 1_600_000_000 + file))


def conditions(workload: str) -> list[str]:
    streams, edges = WORKLOADS[workload]
    return [f"{a}.{left} = {b}.{right}" for (a, b), (left, right) in zip(pairwise(names(streams)), edges, strict=True)]


@cache
def expected_results(folder: Path, workload: str, files: int) -> int:
    """How many results DuckDB finds; tuples that are near each other in time are in the same span of ten seconds or in the next."""
    import duckdb  # noqa: PLC0415

    own = names(WORKLOADS[workload][0])
    near = [
        f"{b}.ts BETWEEN {a}.ts - INTERVAL {SECONDS} SECONDS AND {a}.ts + INTERVAL {SECONDS} SECONDS"
        for number, a in enumerate(own)
        for b in own[number + 1 :]
    ]
    near += [f"{name}.span = s0.span" for name in own[1:]]
    read = []
    for name in own:
        paths = ", ".join(repr(str(path)) for path in sorted((folder / name).iterdir())[:files])
        spans = "unnest([span])" if name == "s0" else "unnest([span - 1, span, span + 1])"
        own_span = f"SELECT ts, k, j, epoch(ts)::BIGINT // {SECONDS} AS span FROM read_parquet([{paths}])"
        read.append(f"(SELECT ts, k, j, {spans} AS span FROM ({own_span})) {name}")
    where = " AND ".join(conditions(workload) + near)
    counted = duckdb.sql(f"SELECT count(*) FROM {', '.join(read)} WHERE {where}")
    assert counted is not None
    ((count,),) = counted.fetchall()
    return int(count)


def read_stream(spark: Any, folder: Path, name: str, files: int) -> Any:
    if files < len(list((folder / name).iterdir())):
        few = folder.parent / f"few-{files}" / name
        if not few.exists():
            few.mkdir(parents=True)
            for path in sorted((folder / name).iterdir())[:files]:
                os.link(path, few / path.name)
        folder = few.parent
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / name))


def native_chain(frames: list[Any], edges: list[tuple[str, str]], columns: tuple[str, ...]) -> Any:
    """Spark's own joins of the streams s0, s1, ..., chained in the order of the query."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    own = names(len(frames))
    renamed = [
        frame.withWatermark("ts", "0 seconds").select(*(F.col(column).alias(f"{name}_{column}") for column in columns))
        for name, frame in zip(own, frames, strict=True)
    ]
    joined, times = renamed[0], ["s0_ts"]
    for (left, right), frame, (a, b) in zip(edges, renamed[1:], pairwise(own), strict=True):
        new = f"{b}_ts"
        bounds = [F.expr(f"{new} BETWEEN s0_ts - INTERVAL {SECONDS} SECONDS AND s0_ts + INTERVAL {SECONDS} SECONDS")]
        micros = F.unix_micros(F.col(new))
        bounds += [F.abs(micros - F.col(time_)) <= SECONDS * 1_000_000 for time_ in times[1:]]
        condition = F.col(f"{a}_{left}") == F.col(f"{b}_{right}")
        for bound in bounds:
            condition &= bound
        # Only one column may carry event time into the next join.
        joined = joined.join(frame, condition).withColumn(new, F.unix_micros(F.col(new)))
        times.append(new)
    return joined


def start_native(spark: Any, folder: Path, workload: str, files: int, work: Path) -> tuple[Any, Any]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    streams, edges = WORKLOADS[workload]
    frames = [read_stream(spark, folder, name, files) for name in names(streams)]
    joined = native_chain(frames, edges, ("ts", "k", "j", "v"))
    counted = joined.observe("results", F.count(F.lit(1)).alias("rows"))
    writer = counted.writeStream.format("parquet").outputMode("append").option("path", str(work / "out"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()

    def results() -> int:
        return sum(p.observedMetrics["results"]["rows"] for p in query.recentProgress if "results" in p.observedMetrics)

    return query, results


def start_dovetail(
    spark: Any, folder: Path, workload: str, files: int, work: Path, *, transport: bool
) -> tuple[Any, Any]:
    import dovetail as dt  # noqa: PLC0415

    if transport:
        pipeline: Any = import_module("dovetail.spark.driver.pipeline")
        if "ShardProcessor" not in vars(pipeline):
            raise SystemExit(
                "dovetail.spark.driver.pipeline makes no ShardProcessor any more: nothing can be put in its place"
            )
        pipeline.ShardProcessor = transport_processor()
    session = dt.Session(spark, shards=2)
    own = names(WORKLOADS[workload][0])
    for name in own:
        session.stream(name, read_stream(spark, folder, name, files), "ts", rate=float(engine.RATE))
    columns = ", ".join(f"{name}.{column} AS {name}_{column}" for name in own for column in ("ts", "k", "j", "v"))
    windows = ", ".join(f"{name} [RANGE {SECONDS} SECONDS]" for name in own)
    session.query("q", f"SELECT {columns} FROM {windows} WHERE {' AND '.join(conditions(workload))}")
    running = session.start(
        {"q": dt.sinks.parquet(str(work / "out"))}, str(work / "checkpoint"), {"availableNow": True}
    )
    return running.query, lambda: running.metrics()["queries"]["q"]["results"]


def transport_processor() -> type:
    """A processor that takes its tuples and gives nothing."""
    import pandas as pd  # noqa: PLC0415
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415

    from dovetail.spark.wire import ResultRow, RoutedKind, from_ipc, read_routed_rows  # noqa: PLC0415

    class Nothing(StatefulProcessor):
        def __init__(self, *_: Any) -> None:
            pass

        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            for _, kind, _, content in read_routed_rows(rows):
                if kind is RoutedKind.TUPLES:
                    from_ipc(content)
            yield pd.DataFrame([], columns=ResultRow._fields)

        def close(self) -> None:
            pass

    return Nothing


def tree_memory(root: int) -> int:
    """Bytes that a process and all below it hold: a page that several map is counted once, files in /dev/shm whole."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += parents.get(process, [])
        with suppress(OSError):
            for line in (Path("/proc") / str(process) / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_File:")):
                    total += int(line.split()[1]) * 1024
    for folder, _, files in os.walk("/dev/shm"):  # noqa: S108 - live windows, mapped or not
        for name in files:
            with suppress(OSError):
                total += (Path(folder) / name).stat().st_blocks * 512
    return total


def remove_results(folder: Path) -> None:
    """Delete Dovetail's committed results; files of Spark's sink it must find itself when it commits."""
    for path in folder.glob("batch_id=*/*.parquet"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                path.unlink()


def plain_session(conf: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    options = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    return SparkSession.builder.master("local[2]").config(map={**options, **conf}).getOrCreate()


def run_one(runner: str, workload: str, folder: Path, files: int, work: Path) -> dict[str, Any]:
    """Run in this process; peak memory is watched by a thread."""
    from dovetail.spark import session  # noqa: PLC0415
    from dovetail.spark.driver.builder import PROVIDER, ROCKSDB  # noqa: PLC0415

    newest = {"spark.sql.streaming.join.stateFormatVersion": NEWEST_FORMAT, PROVIDER: ROCKSDB}
    conf = newest if runner.endswith("-newest") else {}
    spark = plain_session(conf) if "-plain" in runner else session(2, memory="1g", conf=conf)
    if runner.startswith("native"):
        query, results = start_native(spark, folder, workload, files, work)
    else:
        query, results = start_dovetail(spark, folder, workload, files, work, transport=runner == "transport")
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            peak[0] = max(peak[0], tree_memory(os.getpid()))
            remove_results(work / "out")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    query.awaitTermination()
    done.set()
    watcher.join()
    progress = [p for p in query.recentProgress if p.numInputRows]
    steady = progress[1:]
    states = steady[-1].stateOperators if steady else []
    tuples = sum(p.numInputRows for p in steady)
    seconds = sum(p.durationMs["triggerExecution"] for p in steady) / 1000
    return {
        "runner": runner, "workload": workload, "files": files, "results": results(),
        "tuples": tuples, "seconds": seconds, "tuples_per_second": tuples / seconds if seconds else 0.0,
        "batches": [[p.numInputRows, p.durationMs["triggerExecution"]] for p in progress],
        "peak_bytes": peak[0],
        "state_rows": sum(s.numRowsTotal for s in states), "state_bytes": sum(s.memoryUsedBytes for s in states),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run everything; what is fast runs several times, in turns, because the machine's speed changes."""
    measured: list[dict[str, Any]] = []
    for workload in options.workloads.split(","):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "in"
            write_input(folder, WORKLOADS[workload][0], options.files, options.rows)
            runners = options.only.split(",")
            fast = [runner for runner in runners if not runner.startswith("native")]
            for runner in runners + fast * (options.rounds - 1):
                used = options.files if runner in fast else options.native_files
                measured.append(measure_one(runner, workload, folder, used, Path(name) / "work"))
                engine.save("spark", measured)
    return measured


def measure_one(runner: str, workload: str, folder: Path, files: int, work: Path) -> dict[str, Any]:
    """Run in a process of its own, and compare the number of results with DuckDB's."""
    command = [sys.executable, __file__, "--child", runner, workload, str(folder), str(files), str(work)]
    console.print(f"  {workload}: {runner} ...", style="dim")
    start = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as child:
        try:
            output, printed = child.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, printed = "", f"TimeoutError: not done after {MOST_SECONDS // 60} minutes"
    shutil.rmtree(work, ignore_errors=True)
    known = {"runner": runner, "workload": workload, "files": files, "total_seconds": time.time() - start}
    if child.returncode:
        errors = [line for line in printed.splitlines() if "Error" in line] or ["no error was printed"]
        console.print(f"  {workload}: {runner} failed: {errors[0][:200]}", style="red", markup=False)
        return known | {"failed": errors[0]}
    row: dict[str, Any] = json.loads(output.strip().splitlines()[-1]) | known
    if runner != "transport":
        expected = expected_results(folder, workload, files)
        assert row["results"] == expected, f"{runner} gave {row['results']} results, DuckDB {expected}"
    return row


def show(measured: list[dict[str, Any]]) -> None:
    others = ("native", "native-newest", "native-plain-newest", "transport")
    ratios_to = [f"to {other.removeprefix('native-').replace('-', ' ')}" for other in others]
    headings = ("tuples/s", *ratios_to, "peak MB", "state rows", "state MB", "results")
    table = Table("workload", "runner", *headings, title="On Spark, local[2]; medians where there are several rounds")
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for m in measured:
        if "failed" in m:
            table.add_row(m["workload"], m["runner"], "failed")
            continue
        rounds.setdefault((m["workload"], m["runner"]), []).append(m)
    rate = {key: median(m["tuples_per_second"] for m in own) for key, own in rounds.items()}
    for (workload, runner), own in rounds.items():
        speed = rate[workload, runner]
        against = [rate.get((workload, other)) for other in others]
        ratios = [f"{speed / other:.2f}" if other else "" for other in against]
        peak = median(m["peak_bytes"] for m in own)
        last = own[-1]
        table.add_row(
            workload, runner, f"{speed:,.0f}", *ratios, f"{peak / 1e6:,.0f}",
            f"{last['state_rows']:,}", f"{last['state_bytes'] / 1e6:,.0f}", f"{last['results']:,}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        runner, workload, source, files, work = sys.argv[2:]
        print(json.dumps(run_one(runner, workload, Path(source), int(files), Path(work))))
        return
    parser = argparse.ArgumentParser(description="Measure the pipeline on Spark beside Spark's own joins.")
    parser.add_argument("--rows", type=int, default=200_000, help="tuples per stream and micro-batch")
    parser.add_argument("--files", type=int, default=30, help="micro-batches")
    parser.add_argument("--native-files", type=int, default=3, help="micro-batches of the native chain")
    parser.add_argument("--rounds", type=int, default=3, help="runs of what is not a native chain")
    parser.add_argument("--only", default=",".join(RUNNERS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    options = parser.parse_args()
    for option, allowed in (("only", RUNNERS), ("workloads", WORKLOADS)):
        if unknown := set(getattr(options, option).split(",")) - set(allowed):
            parser.error(f"--{option} has {', '.join(sorted(unknown))}; allowed: {', '.join(allowed)}")
    measured = measure(options)
    show(measured)


if __name__ == "__main__":
    main()
