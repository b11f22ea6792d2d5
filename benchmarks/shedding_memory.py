"""Resident memory with and without a cap: `python benchmarks/shedding_memory.py [--tuples N] [--payload BYTES]`.

Five streams on one key, windows that hold `--tuples` tuples (a million by default) without a cap; the cap is half of that. Each
session runs in its own process, which reports the growth of its resident memory over three windows of input: at the end, and the peak,
inside batches too. It also reports what the session itself counts. In process, without `--payload`, measures tuples of 16 bytes, then
a fifth as many of 1 KB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dovetail as dt
from dovetail.config import SHEDDING, SheddingPolicy
from engine import save

STREAMS, WINDOW = "abcde", 10
BATCHES, SPARK_BATCHES = (3, 60), (1.5, 15)
"""Windows of input, and in how many batches."""
WARM_UP = 6
"""Small batches on Spark, after which all workers are there."""
SQL = (
    f"SELECT a.k AS k FROM {', '.join(f'{stream} [RANGE {WINDOW} s]' for stream in STREAMS)} "
    f"WHERE {' AND '.join(f'a.k = {stream}.k' for stream in STREAMS[1:])}"
)


def resident_bytes() -> int:
    """Return the resident memory of this process (on Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def schema_of(payload: int) -> pa.Schema:
    """Return the columns of all streams."""
    fields = [("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), *([("p", pa.string())] if payload else [])]
    return pa.schema(fields)


def peak_bytes() -> int:
    """Return the largest resident memory of this process since `reset_peak` (on Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Forget the peak so far."""
    Path("/proc/self/clear_refs").write_text("5")


def query_of(payload: int) -> str:
    """Return the query, which reads all columns."""
    payloads = "".join(f", {stream}.p AS {stream}" for stream in STREAMS) if payload else ""
    return SQL.replace("SELECT a.k AS k", f"SELECT a.k AS k{payloads}")


def config_of(policy: str, tuples: int) -> dt.Config:
    """Return the configuration of a policy, or of no cap."""
    shedding = None if policy == "none" else dt.Shedding(cast("SheddingPolicy", policy), max_tuples=tuples // 2)
    return dt.Config(shedding=shedding, adaptive=False)


def batches(tuples: int, payload: int, *, spark: bool = False) -> Iterator[dict[str, pa.Table]]:
    """Generate the input after small batches that load the kernels: three windows, or fewer and larger batches for Spark."""
    schema, rng, rate = schema_of(payload), np.random.default_rng(0), tuples // len(STREAMS) // WINDOW
    (windows, count), small = (SPARK_BATCHES if spark else BATCHES), WARM_UP if spark else 1
    per_batch = windows * WINDOW / count
    for number in range(small + count):
        begin = (number - small) * per_batch if number >= small else (number - small) * 0.01
        end = begin + (per_batch if number >= small else 0.01)
        rows = int(rate * per_batch) if number >= small else 100
        batch = {}
        for stream in STREAMS:
            times = np.sort(rng.integers(int((begin + WINDOW) * 1e6), int((end + WINDOW) * 1e6), rows))
            columns = [
                pa.array(times).cast(schema.field("ts").type),
                pa.array(rng.integers(0, 2 * rate * WINDOW, rows) if number >= small else rng.integers(-50, 0, rows)),
            ]
            columns += [pa.array([f"{value:x}" * (payload // 8) for value in rng.integers(1 << 28, 1 << 32, rows)])] * (
                payload > 0
            )
            batch[stream] = pa.table(columns, schema=schema)
        yield batch


def measure(policy: str, tuples: int, payload: int) -> dict[str, Any]:
    """Push three windows of input; return the growth of resident memory in bytes."""
    session = dt.LocalSession(config=config_of(policy, tuples))
    for stream in STREAMS:
        session.stream(stream, schema_of(payload), event_time="ts")
    session.query("q", query_of(payload))
    before = 0
    for number, batch in enumerate(batches(tuples, payload)):
        session.push(batch)
        batch.clear()
        if not number:
            reset_peak()
            before = resident_bytes()
    end, most = resident_bytes() - before, peak_bytes() - before
    return {"policy": policy, "end": end, "most": most, **counted(session.metrics())}


def counted(metrics: Any) -> dict[str, int]:
    """Return what a session reports of its windows: their tuples, and bytes in all."""
    streams = metrics["streams"].values()
    held = sum(stream["state_tuples"] for stream in streams)
    return {"held": held, "counted": sum(stream["state_bytes"] + stream["shedding_bytes"] for stream in streams)}


def worker_memory(shared: Path) -> tuple[int, int]:
    """Return the bytes of all Python processes below this one, and of the files in shared memory."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    private, found = 0, {os.getpid()}
    while below := {process for process, parent in parents.items() if parent in found} - found:
        found |= below
    for process in found - {os.getpid()}:
        with suppress(OSError):
            if "python" in Path(f"/proc/{process}/exe").readlink().name:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                private += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
    files = 0
    for folder, _, names in os.walk(shared):
        for name in names:
            with suppress(OSError):
                files += (Path(folder) / name).stat().st_blocks * 512
    return private, files


class MemorySampler(threading.Thread):
    """Notes the memory of workers many times a second, and at the end of each batch."""

    def __init__(self, shared: Path) -> None:
        super().__init__(daemon=True)
        self._shared, self.is_done = shared, False
        self.most = 0
        self.after_batch: list[tuple[int, int]] = []

    def run(self) -> None:
        while not self.is_done:
            self.most = max(self.most, sum(worker_memory(self._shared)))
            time.sleep(0.1)

    def note_batch(self, *_: object) -> None:
        self.after_batch.append(worker_memory(self._shared))


def measure_on_spark(policy: str, tuples: int, payload: int) -> dict[str, Any]:
    """Run a job over files of one and a half windows; return the growth of memory since the small batches before.

    Reported are the workers and the files in shared memory after a batch, the median of the last five, and the peak inside batches.
    """
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as shared_name:
        folder, memory = Path(name), MemorySampler(Path(shared_name))
        os.environ["DOVETAIL_SHARED_MEMORY_DIR"] = shared_name  # the arrays of this job's shards only
        for number, batch in enumerate(batches(tuples, payload, spark=True)):
            for stream, table in batch.items():
                path = folder / stream / f"{number:03}.parquet"
                path.parent.mkdir(exist_ok=True)
                pq.write_table(table, path)
                os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
        spark: Any = dt.spark.session(2, memory="1g")
        session = dt.Session(spark, config=config_of(policy, tuples), shards=2)
        schema = "ts TIMESTAMP, k BIGINT" + ", p STRING" * (payload > 0)
        for stream in STREAMS:
            frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / stream))
            session.stream(stream, frame, "ts")
        session.query("q", query_of(payload))
        sink = dt.sinks.call(memory.note_batch)
        memory.start()
        running: Any = session.start({"q": sink}, str(folder / "checkpoint"), {"availableNow": True})
        running.await_termination()
        memory.is_done = True
        metrics = running.metrics()
        spark.stop()
    before = min(map(sum, memory.after_batch[:WARM_UP]))  # kernels that are not cached are compiled in one of them
    workers, files = (median(sizes) for sizes in zip(*memory.after_batch[-5:], strict=True))
    sizes = {"end": workers + files - before, "most": memory.most - before, "workers": workers, "files": files}
    return {"policy": policy, "before": before, **sizes, **counted(metrics)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuples", type=int, default=1_000_000)
    parser.add_argument("--payload", type=int, default=0, help="bytes of a text column")
    parser.add_argument("--spark", action="store_true", help="measure the workers of a job on Spark")
    parser.add_argument("--only", default="", help="policies, separated by commas")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run = measure_on_spark if options.spark else measure
        print(json.dumps(run(options.one, options.tuples, options.payload)))
        return
    sizes = [(options.tuples, options.payload)]
    if not options.spark and not options.payload:
        sizes.append((options.tuples // 5, 1000))
    for tuples, payload in sizes:
        rows = compare(options.only.split(",") if options.only else SHEDDING, tuples, payload, spark=options.spark)
        save("shedding-memory" + "-1kb" * (payload > 0) + "-spark" * options.spark, rows)


def compare(policies: Sequence[str], tuples: int, payload: int, *, spark: bool) -> list[dict[str, Any]]:
    """Measure a session without a cap, then one under each policy; print and return the growth of memory."""
    rows: list[dict[str, Any]] = []
    print(f"{tuples:,} tuples in the windows, {16 + payload} bytes each")
    for policy in ("none", *policies):
        command = [sys.executable, __file__, "--one", policy, "--tuples", str(tuples)]
        command += ["--payload", str(payload), *(["--spark"] * spark)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        row |= {"tuples": tuples, "payload": payload}
        row["ratio"], row["most_ratio"] = (row[kind] / (rows or [row])[0][kind] for kind in ("end", "most"))
        rows.append(row)
        print(
            f"{policy:14} {row['end'] / 1e6:7.1f} MB, {row['ratio']:5.2f} of none; at most {row['most'] / 1e6:7.1f} MB, "
            f"{row['most_ratio']:5.2f} of none; {row['held']:,} tuples held, {row['counted'] / 1e6:.1f} MB counted"
        )
    return rows


if __name__ == "__main__":
    main()
