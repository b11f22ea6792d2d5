"""A Spark Connect server, and clients that run one job on it, each in a process of its own.

`python connect_job.py server <port>` serves until it is killed. `python connect_job.py client <folder> <port> <step>` connects and
runs a step, printing a line of JSON whenever the test may go on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import dovetail as dt

QUERIES = {
    "files": "SELECT a.v AS av, b.v AS bv FROM a [RANGE 15 s], b [RANGE 15 s] WHERE a.k = b.k",
    "delta": "SELECT a.v AS av, b.v AS bv FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.k = b.k AND a.v < b.v",
    "added": "SELECT a.v AS av, b.v AS bv FROM a [RANGE 15 s], b [RANGE 15 s] WHERE a.k = b.k AND a.v <> b.v",
}


def serve(port: str) -> None:
    dt.spark.session(
        2,
        "1g",
        conf={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.port": port,
        },
    )
    say("serving")
    time.sleep(600)


def say(*values: Any) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201 - the test reads it


class Client:
    def __init__(self, folder: Path, port: str) -> None:
        self.folder = folder
        self.spark: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        self.session = dt.Session(self.spark, shards=2)
        for name in "ab":
            reader = self.spark.readStream.schema("ts timestamp, k long, v long").option("maxFilesPerTrigger", 1)
            self.session.stream(name, reader.parquet(f"{folder}/{name}"), event_time="ts")

    def start(self, *queries: str, **trigger: Any) -> dt.RunningSession:
        for name in queries:
            self.session.query(name, QUERIES[name])
        return self.session.start({name: self.sink(name) for name in queries}, self.folder / "checkpoint", trigger)

    def sink(self, query: str) -> Any:
        path = self.folder / query
        return dt.sinks.delta(path) if query == "delta" else dt.sinks.parquet(path)

    def first(self) -> None:
        """Run two batches, add a query, run one more, and wait to be killed."""
        running = self.start("files", "delta")
        wait_for(running, 2)
        running.add_query("added", QUERIES["added"], self.sink("added"), backfill=True)
        say("added")
        wait_for(running, 3)
        say("batches", running.metrics()["batches"])
        time.sleep(600)

    def second(self) -> None:
        """Take the job over from the killed client, whose streaming query the server still runs."""
        running = self.start("files", "delta", "added")
        say("started")
        wait_for(running, 2)
        say("streams", {name: stream["arrivals"] for name, stream in running.metrics()["streams"].items()})
        time.sleep(600)

    def third(self) -> None:
        """Continue after the server was killed, drop a query, and end; then fail in a sink."""
        self.session.query("refused", QUERIES["files"])
        try:
            self.session.start({"refused": dt.sinks.memory()}, self.folder / "other")
        except dt.DovetailError as error:
            say("refused", str(error))
        self.session = Client(self.folder, sys.argv[3]).session
        running = self.start("files", "delta", "added")
        wait_for(running, 1)
        running.drop_query("added")
        running.stop()
        self.session = Client(self.folder, sys.argv[3]).session
        self.session.query("failing", QUERIES["files"])
        running = self.session.start({"failing": dt.sinks.call(fail)}, self.folder / "failing_checkpoint")
        try:
            running.await_termination()
        except dt.DovetailError as error:
            say("failed", str(error))


def fail(results: Any, batch_id: int) -> None:  # noqa: ARG001
    raise OSError(f"no disk for batch {batch_id}")


def wait_for(running: dt.RunningSession, batches: int) -> None:
    while running.metrics()["batches"] < batches:
        if running.await_termination(0.3):
            raise RuntimeError("the job has ended")


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        getattr(Client(Path(sys.argv[2]), sys.argv[3]), sys.argv[4])()
