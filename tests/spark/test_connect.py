"""A job over Spark Connect: results are exact though client and server are killed and the job changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc", reason="pip install 'dovetail[connect]' to test jobs over Spark Connect")

PROGRAM = Path(__file__).with_name("connect_job.py")
SECOND = 1_000_000
SCHEMA = pa.schema({"ts": pa.timestamp("us", tz="UTC"), "k": pa.int64(), "v": pa.int64()})
DEADLINE = 180.0


class Process:
    """A client or a server; it is killed in the end."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        command = [sys.executable, str(PROGRAM), *map(str, arguments)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self.log.open("w") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def wait_for(self, what: str) -> Any:
        """Return what the process says about something."""
        until = time.monotonic() + DEADLINE
        while True:
            text = self.log.read_text()
            for line in text.splitlines():
                if line.startswith(f'["{what}"'):
                    return json.loads(line)[1:]
            assert self._process.poll() is None, text[-3000:]
            assert time.monotonic() < until, text[-3000:]
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Input:
    """The tuples of both streams, a file of each for every batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: dict[str, list[dict[str, int]]] = {"a": [], "b": []}
        self.batches = 0

    def add(self) -> None:
        for name, rows in list(self.rows.items()):
            times = [4 * SECOND * self.batches + 200_000 * row for row in range(20)]
            batch = [{"ts": ts, "k": ts % 7, "v": 100 * self.batches + row} for row, ts in enumerate(times)]
            self.rows[name] = rows + batch
            path = self._folder / name / f"{self.batches:04}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(batch, SCHEMA), path.with_name(f".{path.name}"))
            os.utime(
                path.with_name(f".{path.name}"), (1_600_000_000 + self.batches,) * 2
            )  # Spark reads the oldest first
            path.with_name(f".{path.name}").rename(path)
        self.batches += 1

    def joined(self, window: int, condition: Any, first: int = 0) -> list[tuple[int, int]]:
        """Return the results that a tuple of batch `first` or a later one completes, by a nested loop."""
        return sorted(
            (a["v"], b["v"])
            for a in self.rows["a"]
            for b in self.rows["b"]
            if a["k"] == b["k"]
            and abs(a["ts"] - b["ts"]) <= window * SECOND
            and condition(a["v"], b["v"])
            and max(a["v"], b["v"]) >= 100 * first
        )


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*arguments: object) -> Process:
        started.append(Process(tmp_path, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def written(path: Path) -> list[tuple[int, int]]:
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table(["av", "bv"])
    return sorted(zip(table["av"].to_pylist(), table["bv"].to_pylist(), strict=True))


@pytest.mark.slow
def test_a_job_whose_client_and_server_are_killed(tmp_path: Path, processes: Any) -> None:
    deltalake, data, port = pytest.importorskip("deltalake"), Input(tmp_path), free_port()
    for _ in range(2):
        data.add()
    server = processes("server", port)
    server.wait_for("serving")
    client = processes("client", tmp_path, port, "first")
    client.wait_for("added")
    data.add()
    assert client.wait_for("batches") == [3]
    client.kill()

    second = processes("client", tmp_path, port, "second")
    second.wait_for("started")
    for _ in range(2):
        data.add()
    assert second.wait_for("streams") == [{"a": 100, "b": 100}]
    server.kill()
    second.kill()

    data.add()
    port = free_port()
    processes("server", port).wait_for("serving")
    third = processes("client", tmp_path, port, "third")
    (refused,) = third.wait_for("refused")
    assert "dt.sinks.memory(), which over Spark Connect would stay empty" in refused
    (failed,) = third.wait_for("failed")
    assert failed.startswith("query 'failing': its sink call(fail) failed with batch 0: OSError: no disk for batch 0")

    assert written(tmp_path / "files") == data.joined(15, lambda *_: True)
    assert written(tmp_path / "added") == data.joined(15, lambda a, b: a != b, first=2)
    delta = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    rows = sorted(zip(delta["av"].to_pylist(), delta["bv"].to_pylist(), strict=True))
    assert rows == data.joined(9, lambda a, b: a < b)
