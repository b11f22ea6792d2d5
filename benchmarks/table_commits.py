"""Measure what a batch costs to commit to a directory, a Delta table and an Iceberg table, without Spark.

Four shards write 1,000 rows each per batch, as workers do; then the driver checks and commits their files. The first batches and the
last ones of a run are listed apart, because logs grow. Iceberg's catalog is a SQLite file. CPU time is that of the whole process, with
its threads; wall-clock time depends on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from rich.table import Table

import dovetail as dt
from dovetail.schema import TIMESTAMP
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.staging import OWNER_FILE, LocalCommitter, LocalStage
from engine import console, save

SHARDS, ROWS, COMPARED = 4, 1_000, 20
SCHEMA = pa.schema([("ts", TIMESTAMP), ("user", pa.int64()), ("page", pa.string()), ("amount", pa.float64())])


def committer(kind: str, folder: Path) -> Committer:
    """Return the committer of a new sink."""
    run_id = os.urandom(16).hex()
    if kind == "parquet":
        (folder / OWNER_FILE).touch()
        return LocalCommitter(LocalStage(str(folder), run_id))
    place = Directory("file:/checkpoint", Path("/checkpoint"))
    checkpoint = Checkpoint(place, "benchmark", "{}", lacks_identity=False, last_batch=-1, next_batch=0)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "local[2]"))
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = dt.sinks.delta(folder / "table") if kind == "delta" else dt.sinks.iceberg(catalog, "ns.table")
    use = SinkUse(spark, "q", SCHEMA, checkpoint)
    sink.check(use)
    sink.claim(use)
    return sink.committer(use, run_id)


def results(batch: int, shard: int) -> pa.Table:
    """Return the rows of a shard."""
    numbers = range(batch * ROWS * SHARDS + shard, (batch + 1) * ROWS * SHARDS, SHARDS)
    columns = [
        [1_000 * n for n in numbers],
        numbers,
        [f"page {n % 97}" for n in numbers],
        [n / 7 for n in numbers],
    ]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def measure(kind: str, batches: int) -> dict[str, Any]:
    """Write and commit batches to a new sink."""
    with tempfile.TemporaryDirectory() as folder:
        target = committer(kind, Path(folder))
        target.prepare()
        wall, cpu, write = [], [], []
        for batch in range(batches):
            began, files = time.perf_counter(), []
            for shard in range(SHARDS):
                with target.stage.writer(batch, shard, SCHEMA) as file:
                    file.write_table(results(batch, shard))
                assert file.written is not None
                files.append(file.written)
            written, before = time.perf_counter(), time.process_time()
            target.check(batch, files)
            target.commit(batch, files, batch)
            wall.append(1000 * (time.perf_counter() - written))
            cpu.append(1000 * (time.process_time() - before))
            write.append(1000 * (written - began))
        target.clear()
    return {
        "sink": kind,
        "batches": batches,
        "write_ms": median(write),
        "commit_ms_first": median(wall[:COMPARED]),
        "commit_ms_last": median(wall[-COMPARED:]),
        "commit_ms_max": max(wall),
        "cpu_ms_first": median(cpu[:COMPARED]),
        "cpu_ms_last": median(cpu[-COMPARED:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a batch costs to commit to a table.")
    parser.add_argument("--batches", type=int, default=300)
    options = parser.parse_args()
    runs = [measure(kind, options.batches) for kind in ("parquet", "delta", "iceberg")]
    table = Table(*runs[0])
    for run in runs:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in run.values()))
    console.print(table)
    if options.batches >= 2 * COMPARED:
        save("table-commits", runs)


if __name__ == "__main__":
    main()
