"""Compare this working tree with another revision of it: `python benchmarks/versions.py REVISION [--spark] [--rounds N]`.

Both versions take the same pushes, push by push in turns, each in a process of its own; processor time counts, and the numbers of
results must be equal. With `--spark`, whole jobs on Spark take turns, and the time of micro-batches counts. The ratio is that of the
revision's time to this tree's: above 1 this tree is faster.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine
from engine import Push, Workload

ROOT = Path(__file__).resolve().parents[1]
PUSHES = {10_000: 60, 1_000: 300, 300: 600}
"""Pushes of so many tuples that are timed, after those that fill a window."""
JOINS = {"3-way": Workload(3, 0), "5-way": Workload(5, 0), "10-way": Workload(10, 0), "16 columns": Workload(3, 0, 16)}
QUERIES = 32
SPARK_FILES, SPARK_ROWS = 24, 50_000


def cases() -> list[tuple[str, int]]:
    """Return all workloads, each with a number of tuples per push."""
    return [*((name, batch) for name in JOINS for batch in PUSHES), (f"{QUERIES} queries", 10_000)]


def pushes_of(case: str, batch: int) -> tuple[Workload, list[Push]]:
    """Generate the pushes of a workload, those that fill its windows included."""
    shape = JOINS.get(case, JOINS["3-way"])
    filling = 2 * engine.WINDOW_SECONDS * engine.RATE
    workload = Workload(shape.streams, filling + batch * PUSHES[batch] // shape.streams, shape.columns)
    tables = {
        name: engine.generate(workload.tuples, number, workload.streams, columns=workload.columns)
        for number, name in enumerate(workload.names)
    }
    return workload, engine.cut(tables, batch)


def open_session(case: str, workload: Workload) -> Any:
    """Open a session with the queries of a workload."""
    session = engine.open_session(workload)
    for number in range(QUERIES if case not in JOINS else 0):
        seconds = 1 + number % engine.WINDOW_SECONDS
        a, b = (workload.names[(number + offset) % workload.streams] for offset in (0, 1))
        session.query(
            f"q{number}",
            f"SELECT {a}.v AS v, {b}.v AS w FROM {a} [RANGE {seconds} SECONDS], {b} [RANGE {seconds} SECONDS] "
            f"WHERE {a}.k = {b}.k",
        )
    return session


def child(case: str, batch: int) -> None:
    """Push once for each line of input; answer with the seconds taken and the number of results."""
    workload, pushes = pushes_of(case, batch)
    session = open_session(case, workload)
    gc.collect()
    gc.freeze()
    for push, _ in zip(pushes, sys.stdin, strict=False):
        began = time.process_time()
        results = session.push(push)
        seconds = time.process_time() - began
        print(json.dumps([seconds, sum(table.num_rows for table in results.values())]), flush=True)


def measure(sources: dict[str, Path], case: str, batch: int) -> list[float]:
    """Return the seconds that each version takes for the pushes after the windows are full."""
    command = [sys.executable, __file__, "--child", case, str(batch)]
    total = len(pushes_of(case, batch)[1])
    timed: dict[str, list[float]] = {name: [] for name in sources}
    processes = {
        name: subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        for name, source in sources.items()
    }
    for number in range(total):
        order = list(processes) if number % 2 else list(reversed(processes))
        answers = {name: ask(processes[name]) for name in order}
        if len({results for _, results in answers.values()}) != 1:
            raise AssertionError(f"{case}, push {number}: the versions disagree about the results: {answers}")
        if number >= total - PUSHES[batch]:
            for name, (seconds, _) in answers.items():
                timed[name].append(seconds)
    for process in processes.values():
        process.communicate()
    return [sum(sorted(seconds)[: len(seconds) * 9 // 10]) for seconds in timed.values()]


def ask(process: subprocess.Popen[str]) -> tuple[float, int]:
    """Let a version take its next push."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    seconds, results = json.loads(process.stdout.readline())
    return seconds, results


def spark_child(folder: Path, work: Path) -> None:
    """Run a job on Spark to its end; print the milliseconds of its micro-batches and the number of results."""
    import dovetail as dt  # noqa: PLC0415

    spark: Any = dt.spark.session(2, memory="1g")
    session = dt.Session(spark, shards=2)
    names = ("s0", "s1", "s2")
    for name in names:
        frame = spark.readStream.schema("ts TIMESTAMP, k BIGINT, v STRING").option("maxFilesPerTrigger", 1)
        session.stream(name, frame.parquet(str(folder / name)), "ts", rate=float(engine.RATE))
    windows = ", ".join(f"{name} [RANGE {engine.WINDOW_SECONDS} SECONDS]" for name in names)
    columns = ", ".join(f"{name}.{column} AS {name}_{column}" for name in names for column in ("ts", "k", "v"))
    session.query("q", f"SELECT {columns} FROM {windows} WHERE s0.k = s1.k AND s1.k = s2.k")
    sinks = {"q": dt.sinks.parquet(str(work / "out"))}
    running: Any = session.start(sinks, str(work / "checkpoint"), {"availableNow": True})
    running.query.awaitTermination()
    progress = [p for p in running.query.recentProgress if p.numInputRows]
    results = running.metrics()["queries"]["q"]["results"]
    print(json.dumps([[p.durationMs["triggerExecution"] for p in progress[4:]], results]))


def measure_spark(sources: dict[str, Path]) -> list[float]:
    """Return the median milliseconds of each version's micro-batches."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    medians, counts = [], set[int]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "in"
        for number in range(3):
            (folder / f"s{number}").mkdir(parents=True)
            for file in range(SPARK_FILES):
                path = folder / f"s{number}" / f"{file:04}.parquet"
                pq.write_table(engine.generate(SPARK_ROWS, number, 3, first=file * SPARK_ROWS), path)
                os.utime(path, (1_600_000_000 + file, 1_600_000_000 + file))
        for number, source in enumerate(sources.values()):
            command = [sys.executable, __file__, "--spark-child", str(folder), str(Path(name) / f"work{number}")]
            output = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
            ).stdout
            batches, results = json.loads(output.strip().splitlines()[-1])
            medians.append(statistics.median(batches))
            counts.add(results)
    if len(counts) != 1:
        raise AssertionError(f"the versions disagree about the results: {counts}")
    return medians


def rounds_of(sources: dict[str, Path], rounds: int, *, spark: bool, only: str) -> Iterator[dict[str, Any]]:
    """Measure every workload, and print the ratio of each."""
    for case, batch in [("Spark, 3-way", 3 * SPARK_ROWS)] if spark else cases():
        if only and only not in case:
            continue
        ratios = []
        for number in range(rounds):
            turn = dict(list(sources.items())[:: 1 if number % 2 else -1])
            taken = dict(zip(turn, measure_spark(turn) if spark else measure(turn, case, batch), strict=True))
            ratios.append(taken["revision"] / taken["tree"])
        print(
            f"{case:12} {batch:>7,} per push: {statistics.median(ratios):.3f} "
            f"({', '.join(f'{ratio:.3f}' for ratio in ratios)})",
            flush=True,
        )
        yield {"workload": case, "batch": batch, "ratio": statistics.median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", nargs="?", help="a commit, tag or branch of this repository")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--spark-child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        return
    if options.spark_child:
        spark_child(*map(Path, options.spark_child))
        return
    if options.revision is None:
        parser.error("name a revision to compare with, such as HEAD~1")
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name) / "src.tar"
        command = ["git", "archive", f"--output={archive}", options.revision, "src"]
        subprocess.run(command, cwd=ROOT, check=True)
        with tarfile.open(archive) as content:
            content.extractall(name, filter="data")
        sources = {"revision": Path(name) / "src", "tree": ROOT / "src"}
        runs = list(rounds_of(sources, options.rounds, spark=options.spark, only=options.only))
    engine.save("versions-spark" if options.spark else "versions", runs)


if __name__ == "__main__":
    main()
