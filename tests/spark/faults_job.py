"""A job to be killed: `python faults_job.py FOLDER [MASTER]`.

It joins the parquet files of three streams in FOLDER/in, one file of each per micro-batch, writes results to FOLDER/out/<query> and
ends when all are read. Started again with the same folder it goes on where it was. Every start adds its run to FOLDER/runs, so that
whoever killed it can clear what it left in shared memory. With DOVETAIL_FAULTS_TABLES set, results go to tables instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from lakes import sink_in
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.compat import from_arrow_schema

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.string()), ("v", pa.float64())])
STREAMS = {
    name: StreamSchema(name, COLUMNS, "ts", lateness=2_000_000, rate=rate)
    for name, rate in zip("abc", (3.0, 2.0, 1.0), strict=True)
}
QUERIES = {
    "chain": "SELECT a.ts, a.v, b.v AS bv, c.v AS cv FROM a [RANGE 7 s], b [RANGE 6 s], c [RANGE 5 s] WHERE a.x = b.x AND b.y = c.y",
    "rows": "SELECT a.v, b.v AS bv FROM a [ROWS 5], b [RANGE 8 s] WHERE a.x = b.x",
}
SHARDS = 4


def declare(spark: SparkSession, folder: Path) -> dt.Session:
    session = dt.Session(spark, shards=SHARDS)
    for name, stream in STREAMS.items():
        reader = spark.readStream.schema(from_arrow_schema(COLUMNS)).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(folder / "in" / name))
        session.stream(name, frame, "ts", lateness="2 seconds", rate=stream.rate)
    for name, sql in QUERIES.items():
        session.query(name, sql)
    return session


def directories(folder: Path) -> dict[str, Any]:
    return {name: dt.sinks.parquet(str(folder / "out" / name)) for name in QUERIES}


def tables(folder: Path) -> dict[str, Any]:
    return {"chain": sink_in(folder / "out" / "chain", "delta"), "rows": sink_in(folder / "out" / "rows", "iceberg")}


def run(folder: Path, master: str = "") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # local-cluster starts executors from there
    # A crash leaves the JVM's scratch behind: let it go with the folder.
    # The test reads which files each batch took, from the first batch on.
    conf = {"spark.local.dir": str(folder / "scratch"), "spark.sql.streaming.minBatchesToRetain": "100"}
    if master:
        conf["spark.master"] = master
    spark = dt.spark.session(2, "1g", "dovetail-faults", conf=conf)
    sinks = tables(folder) if "DOVETAIL_FAULTS_TABLES" in os.environ else directories(folder)
    running = declare(spark, folder).start(sinks, folder / "checkpoint", {"availableNow": True})
    with (folder / "runs").open("a", encoding="utf-8") as file:
        file.write(f"{running._run_id}\n")
    running.await_termination()
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
