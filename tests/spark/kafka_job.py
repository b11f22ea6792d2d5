"""A job over three topics, to be killed: `python kafka_job.py FOLDER follow|drain`.

FOLDER/kafka.json has the servers and the connector's jars. Results of `chain` go to the Delta table FOLDER/out/chain, those of `star`
to the directory FOLDER/out/star. With `drain`, the job ends when it has read what is there, and writes FOLDER/metrics.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.schema import TIMESTAMP, StreamSchema

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.string()), ("v", pa.int64())])
FIELDS = "ts timestamp, x bigint, y string, v bigint"
PARTITIONS = {"a": 3, "b": 2, "c": 4}
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in PARTITIONS}
QUERIES = {
    "chain": """SELECT a.ts, a.v, b.v AS bv, c.v AS cv FROM a [RANGE 20 s], b [RANGE 15 s], c [RANGE 10 s]
        WHERE a.x = b.x AND b.y = c.y""",
    "star": """SELECT b.ts, a.v, b.v AS bv, c.v AS cv FROM a [RANGE 12 s], b [RANGE 12 s], c [RANGE 12 s]
        WHERE a.x = b.x AND a.x = c.x""",
}
PATIENT = {f"kafka.{name}.timeout.ms": "120000" for name in ("request", "default.api")}
"""For machines that do other work, too."""
LATENESS = 60
"""Seconds: more than partitions of one topic are out of order, and than an idle stream is behind the others."""


def declare(spark: SparkSession, servers: str) -> dt.Session:
    session = dt.Session(spark, shards=4)
    for name in PARTITIONS:
        # All that is there, in each batch: a limit would read the last records of an idle partition batches after the others.
        frame = dt.sources.kafka(spark, servers, name, FIELDS, options=PATIENT)
        session.stream(name, frame, "ts", f"{LATENESS} seconds", progress_by="kafka_partition", idle_after="2 seconds")
    for name, sql in QUERIES.items():
        session.query(name, sql)
    return session


def run(folder: Path, mode: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    kafka = json.loads((folder / "kafka.json").read_text(encoding="utf-8"))
    conf = {
        "spark.local.dir": str(folder / "scratch"),  # a crash leaves it behind
        "spark.sql.streaming.minBatchesToRetain": "1000",  # the test counts batches
        "spark.jars": kafka["jars"],
    }
    spark = dt.spark.session(2, "1g", "dovetail-kafka", conf=conf)
    sinks = {
        "chain": dt.sinks.delta(str(folder / "out" / "chain")),
        "star": dt.sinks.parquet(str(folder / "out" / "star")),
    }
    trigger = {"availableNow": True} if mode == "drain" else {"processingTime": "200 milliseconds"}
    running = declare(spark, kafka["servers"]).start(sinks, folder / "checkpoint", trigger)
    with (folder / "runs").open("a", encoding="utf-8") as file:
        file.write(f"{running._run_id}\n")
    running.await_termination()
    streams = running.metrics()["streams"]
    text = json.dumps({name: streams[name] for name in PARTITIONS}, default=str)
    (folder / "metrics.json").write_text(text, encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
