"""Measure a batch with far more results than memory should hold: `python benchmarks/huge_results.py`.

Three streams whose tuples share a few keys, in one micro-batch on Spark with a Parquet sink. Results leave shards while others are
found, and are counted against the number that follows from the keys. Memory must not grow with the results of a batch.
Reported: results, seconds, and by how much the memory of the process tree grew at its largest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from engine import console, save
from spark import tree_memory

STREAMS = ("a", "b", "c")
COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("v", pa.string())])
SQL = (
    "SELECT a.ts AS at, a.v AS av, b.v AS bv, c.v AS cv FROM a [RANGE 60 s], b [RANGE 60 s], c [RANGE 60 s] "
    "WHERE a.k = b.k AND b.k = c.k"
)


def write_input(folder: Path, rows: int, keys: int) -> int:
    """A small batch, then a large one; return how many results there are."""
    for stream in STREAMS:
        (folder / stream).mkdir(parents=True)
        for batch, size in enumerate((keys, rows)):
            values = np.resize(np.arange(keys), size)
            times = pa.array(np.arange(size) + 20_000_000 * batch).cast(COLUMNS.field("ts").type)
            texts = pa.array([f"{stream}{place:015}" for place in range(size)])
            path = folder / stream / f"{batch}.parquet"
            pq.write_table(pa.table([times, values, texts], schema=COLUMNS), path)
            os.utime(path, (1_600_000_000 + batch,) * 2)
    counts = 1 + np.bincount(np.resize(np.arange(keys), rows), minlength=keys)
    return int((counts**3).sum())


def run_one(folder: Path, work: Path) -> None:
    """Join in this process and those below it; print what was measured."""
    import dovetail as dt  # noqa: PLC0415 - only the child needs it
    from dovetail.spark import session as spark_session  # noqa: PLC0415

    spark = spark_session(2, memory="1g")
    session = dt.Session(spark, shards=2)
    for stream in STREAMS:
        frame = spark.readStream.schema("ts timestamp, k bigint, v string").option("maxFilesPerTrigger", 1)
        session.stream(stream, frame.parquet(str(folder / stream)), "ts")
    session.query("q", SQL)
    running = session.start({"q": dt.sinks.parquet(str(work / "out"))}, work / "checkpoint", {"availableNow": True})
    while running.metrics()["batches"] < 1:
        time.sleep(0.05)
    before, largest, done = tree_memory(os.getpid()), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            largest[0] = max(largest[0], tree_memory(os.getpid()))

    watcher, began = threading.Thread(target=watch, daemon=True), time.time()
    watcher.start()
    running.await_termination()
    done.set()
    watcher.join()
    rows = sum(pq.read_metadata(path).num_rows for path in (work / "out").glob("batch_id=*/*.parquet"))
    print(json.dumps({"results": rows, "seconds": time.time() - began, "grown_bytes": largest[0] - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_500, 3_000, 6_000], help="tuples of each stream in the large batch"
    )
    parser.add_argument("--keys", type=int, default=104)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_one(Path(options.child[0]), Path(options.child[1]))
        return
    table = Table("results of a batch", "seconds", "memory grew by, MB", title="A batch with many results, on Spark")
    measured: list[dict[str, Any]] = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            expected = write_input(folder / "in", rows, options.keys)
            command = [sys.executable, __file__, "--child", str(folder / "in"), str(folder / "work")]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        assert found["results"] == expected, f"{found['results']} results; expected {expected}"
        table.add_row(f"{found['results']:,}", f"{found['seconds']:.1f}", f"{found['grown_bytes'] / 1e6:.0f}")
        measured.append({"rows": rows, "keys": options.keys, "expected": expected, **found})
    console.print(table)
    save("huge-results", measured)


if __name__ == "__main__":
    main()
