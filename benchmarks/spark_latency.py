"""Measure how long a tuple waits for its result on Spark, beside Spark's own chain of joins.

Three streams of 1,000 tuples per second come from Spark's rate source; a tuple's event time is the moment it arrived. They are joined
on one key of 10,000 values over 10-second windows, with a trigger every second. A result's latency is the time from the arrival of its
latest tuple to the end of the micro-batch that wrote it to Parquet. Micro-batches that end in the first part of the run (start-up,
compilation, windows filling) are left out. Each runner has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import engine
import spark as throughput

NAMES = throughput.names(3)
SECONDS = engine.WINDOW_SECONDS
TRIGGER = {"processingTime": "1 second"}
console = Console(width=120)


def arrivals(spark: Any, number: int) -> Any:
    """A stream of tuples whose event time is their arrival."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    rate = spark.readStream.format("rate").option("rowsPerSecond", engine.RATE).option("numPartitions", 1).load()
    key = F.pmod(F.xxhash64("value", F.lit(number)), F.lit(engine.KEYS)).alias("k")
    return rate.select(F.col("timestamp").alias("ts"), key, F.col("value").cast("string").alias("v"))


def start_native(spark: Any, work: Path) -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    frames = [arrivals(spark, number) for number in range(len(NAMES))]
    joined = throughput.native_chain(frames, [("k", "k")] * 2, ("ts", "k", "v"))
    for name in NAMES[1:]:
        joined = joined.withColumn(f"{name}_ts", F.timestamp_micros(f"{name}_ts"))

    def write(results: Any, batch_id: int) -> None:
        results.write.mode("overwrite").parquet(str(work / "out" / f"batch_id={batch_id}"))

    writer = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(**TRIGGER).start()


def start_dovetail(spark: Any, work: Path) -> Any:
    import dovetail as dt  # noqa: PLC0415

    session = dt.Session(spark, shards=2)
    for number, name in enumerate(NAMES):
        session.stream(name, arrivals(spark, number), "ts", rate=float(engine.RATE))
    columns = ", ".join(f"{name}.{column} AS {name}_{column}" for name in NAMES for column in ("ts", "k", "v"))
    windows = ", ".join(f"{name} [RANGE {SECONDS} SECONDS]" for name in NAMES)
    conditions = " AND ".join(f"{a}.k = {b}.k" for a, b in pairwise(NAMES))
    session.query("q", f"SELECT {columns} FROM {windows} WHERE {conditions}")
    return session.start({"q": dt.sinks.parquet(str(work / "out"))}, str(work / "checkpoint"), TRIGGER).query


def run_one(runner: str, seconds: int, skipped: int, work: Path) -> dict[str, Any]:
    from dovetail.spark import session  # noqa: PLC0415

    query = {"native": start_native, "dovetail": start_dovetail}[runner](session(2, memory="1g"), work)
    started = time.time()
    ends = {}
    durations = {}
    while time.time() < started + seconds:
        time.sleep(0.5)
        for progress in query.recentProgress:
            began = datetime.fromisoformat(progress.timestamp).timestamp()
            durations[progress.batchId] = progress.durationMs["triggerExecution"]
            ends[progress.batchId] = began + progress.durationMs["triggerExecution"] / 1000
    query.stop()
    waits = []
    steady = [batch for batch, end in ends.items() if end > started + skipped]
    for batch in steady:
        folder = work / "out" / f"batch_id={batch}"
        for path in folder.glob("*.parquet"):
            table = pq.ParquetFile(path).read(columns=[f"{name}_ts" for name in NAMES])
            times = [np.asarray(column.cast("timestamp[us]").to_numpy()).astype(np.int64) for column in table.columns]
            waits.append(ends[batch] - np.maximum.reduce(times) / 1e6)
    found = np.concatenate(waits)
    return {
        "runner": runner, "results": len(found), "batches": len(steady),
        "batch_seconds": float(np.median([durations[batch] for batch in steady])) / 1000,
        "p50": float(np.percentile(found, 50)), "p99": float(np.percentile(found, 99)), "max": float(found.max()),
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        runner, seconds, skipped, work = sys.argv[2:]
        print(json.dumps(run_one(runner, int(seconds), int(skipped), Path(work))))
        return
    parser = argparse.ArgumentParser(description="Measure the latency of results on Spark.")
    parser.add_argument("--seconds", type=int, default=120, help="of each runner")
    parser.add_argument("--skip", type=int, default=60, help="seconds left out at the beginning")
    parser.add_argument("--only", default="native,dovetail")
    options = parser.parse_args()
    table = Table("runner", "p50 s", "p99 s", "max s", "micro-batch s", "results", title="Arrival to result, 3-way")
    measured = []
    for runner in options.only.split(","):
        with tempfile.TemporaryDirectory() as name:
            work = Path(name) / runner
            command = [sys.executable, __file__, "--child", runner, str(options.seconds), str(options.skip), str(work)]
            console.print(f"  {runner} ...", style="dim")
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            m = json.loads(output.strip().splitlines()[-1])
            shutil.rmtree(work, ignore_errors=True)
        measured.append(m)
        figures = [f"{m[figure]:.2f}" for figure in ("p50", "p99", "max", "batch_seconds")]
        table.add_row(runner, *figures, f"{m['results']:,}")
    console.print(table)
    engine.save("spark-latency", measured)


if __name__ == "__main__":
    main()
