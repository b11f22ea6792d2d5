"""Faults: whatever is killed or damaged, and whenever, the output is the oracle's: nothing lost, nothing twice, or a clear error.

A child process runs `faults_job.py`; it, or a part of it, is killed with SIGKILL in the middle of a micro-batch. DOVETAIL_FAULTS says how
many kills of each kind there are (`make test-faults` sets 10). Only processes that descend from the job started here are ever killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults_job import COLUMNS, QUERIES, STREAMS, declare
from pipeline import Pipeline, layout_of
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.errors import StateError
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP
from dovetail.spark.live import LiveShard, live_root
from dovetail.spark.session import RunningSession
from dovetail.testing import Oracle, assert_same_rows

JOB = Path(__file__).with_name("faults_job.py")
FAULTS = int(os.environ.get("DOVETAIL_FAULTS", "2"))
TOGETHER = 2
"""Kills in one test: starting Spark costs far more than a kill."""
BATCHES = 9
"""One below ten, where Spark begins to merge and delete the logs that say which file was in which batch."""
CLUSTER = "local-cluster[2,1,1024]"
DEADLINE = 180.0

Push = dict[str, pa.Table]


def pushes(seed: int, count: int = BATCHES, rows: int = 40) -> list[Push]:
    """Ten seconds of each stream per batch, out of order, some of it late."""
    rng = random.Random(seed)

    def table(batch: int) -> pa.Table:
        seconds = [max(0.0, 10 * batch + rng.uniform(-3, 10)) for _ in range(rows)]
        return pa.table(
            [
                pa.array([int(s * 4) * 250_000 for s in seconds], TIMESTAMP),
                [rng.choice([1, 2, 3, 4, 5, None]) for _ in range(rows)],
                [rng.choice(["p", "q", "r", "s", None]) for _ in range(rows)],
                [rng.random() for _ in range(rows)],
            ],
            schema=COLUMNS,
        )

    return [{name: table(batch) for name in STREAMS} for batch in range(count)]


def write_input(folder: Path, batches: list[Push]) -> None:
    for number, push in enumerate(batches):
        for name, table in push.items():
            path = folder / "in" / name / f"{number:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files in the order of their times


def oracle_of(batches: list[Push]) -> Oracle:
    oracle = Oracle(STREAMS.values())
    for name, sql in QUERIES.items():
        oracle.add_query(parse_query(name, sql, STREAMS))
    for push in batches:
        oracle.push(push)
    return oracle


# -- a job and its processes --------------------------------------------------------------------------------------------------


class Job:
    """A job that may be killed and started again."""

    def __init__(self, folder: Path, batches: list[Push], master: str | None = None) -> None:
        self.folder, self.batches, self.master = folder, batches, master
        write_input(folder, batches)
        self.process: subprocess.Popen[bytes] | None = None
        self.deadline = time.monotonic() + DEADLINE

    def start(self) -> None:
        command = [sys.executable, str(JOB), str(self.folder), *([self.master] if self.master else [])]
        self.deadline = time.monotonic() + DEADLINE
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def is_running(self) -> bool:
        assert time.monotonic() < self.deadline, f"the job hangs\n{self.log[-3000:]}"
        return self.process is not None and self.process.poll() is None

    def begun(self) -> int:
        """Batches that were begun."""
        return len(self._entries("offsets"))

    def is_in_batch(self) -> bool:
        return self.begun() > len(self._entries("commits"))

    def _entries(self, log: str) -> list[Path]:
        folder = self.folder / "checkpoint" / log
        return [path for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []

    def processes(self) -> dict[int, str]:
        """The job's process and all that descend from it now, with their command lines; parents come first."""
        if not self.is_running():
            return {}
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    status = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    children.setdefault(int(status[1]), []).append(int(entry.name))
        found, waiting = {}, [self.pid]
        while waiting:
            pid = waiting.pop(0)
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            waiting += children.get(pid, [])
        return found

    def workers(self) -> list[int]:
        """Python workers: forked by a daemon, which the job's JVM, or that of an executor, has started."""
        daemons = [pid for pid, line in self.processes().items() if "pyspark.daemon" in line]
        return [pid for pid in daemons if parent(pid) in daemons]

    def executors(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if "CoarseGrainedExecutorBackend" in line]

    def kill(self, pid: int) -> None:
        """Kill one process, if it is still one of the job's."""
        if pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def crash(self, *, workers_too: bool) -> None:
        """The driver and its JVMs die at once; its Python workers with them, or a moment later when they notice."""
        processes = self.processes()
        for pid, line in processes.items():
            if workers_too or "pyspark.daemon" not in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)

    def finish(self) -> None:
        """Let the job end by itself, starting it if it does not run."""
        if not self.is_running():
            self.start()
        while self.is_running():
            time.sleep(0.1)
        assert self.process is not None
        assert self.process.returncode == 0, self.log[-5000:]

    def clear(self) -> None:
        self.crash(workers_too=True)
        runs = self.folder / "runs"
        for run in runs.read_text(encoding="utf-8").split() if runs.exists() else ():
            shutil.rmtree(live_root(run), ignore_errors=True)
        for name in ("checkpoint", "scratch"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    # -- what it read and wrote -----------------------------------------------------------------------------------------------

    def read_batches(self) -> list[Push]:
        """The input as Spark cut it into batches: a kill between its logs may put two files into one."""
        found: list[Push] = []
        before = [-1] * len(STREAMS)
        for entry in sorted(self._entries("offsets"), key=lambda path: int(path.name)):
            lines = entry.read_text(encoding="utf-8").splitlines()[2:]
            upto = [json.loads(line)["logOffset"] if line.startswith("{") else -1 for line in lines]
            push: dict[str, list[pa.Table]] = {}
            for source, (first, last) in enumerate(zip(before, upto, strict=True)):
                for number in range(first + 1, last + 1):
                    for path in self._files(source, number):
                        push.setdefault(path.parent.name, []).append(pq.read_table(path))
            found.append({name: pa.concat_tables(tables) for name, tables in push.items()})
            before = [max(pair) for pair in zip(before, upto, strict=True)]
        return found

    def _files(self, source: int, number: int) -> Iterator[Path]:
        log = self.folder / "checkpoint" / "sources" / str(source) / str(number)
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            yield Path(unquote(urlparse(json.loads(line)["path"]).path))

    def check(self) -> None:
        """The output is the oracle's, over the whole input, in the batches that were read."""
        read = self.read_batches()
        for name in STREAMS:
            total = sum(push[name].num_rows for push in read if name in push)
            assert total == sum(push[name].num_rows for push in self.batches), f"stream {name!r} was not read once"
        oracle = oracle_of(read)
        assert all(oracle.late.values()), "late tuples are part of the test"
        for name in QUERIES:
            wanted = oracle.results_table(name)
            assert wanted.num_rows > 100
            assert_same_rows(self._written(name).cast(wanted.schema), wanted, name)

    def _written(self, name: str) -> pa.Table:
        """What any reader sees that skips hidden files."""
        files = sorted((self.folder / "out" / name).glob("batch_id=*/**/*.parquet"))
        seen = [path for path in files if not any(part.startswith(("_", ".")) for part in path.parts)]
        return pa.concat_tables([pq.ParquetFile(path).read() for path in seen])


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_for_batch(job: Job, number: int) -> bool:
    """Wait until so many batches were begun and the last is under way; False if the job ends before."""
    while job.begun() < number or not job.is_in_batch():
        if not job.is_running():
            return False
        time.sleep(0.005)
    return True


def busy_worker(job: Job, rng: random.Random, seconds: float) -> int | None:
    """A Python worker that is inside an attempt at a shard now, or, if none is seen for so long, any."""
    until = time.monotonic() + seconds
    workers = job.workers()
    while workers and time.monotonic() < until:
        for pid in workers:
            with suppress(OSError):
                if "/work-" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"):
                    return pid
        time.sleep(0.001)
    return rng.choice(workers) if workers else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def job(folder: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(folder, pushes(seed=request.node.callspec.params["seed"]), request.node.get_closest_marker("master"))
    yield made
    made.clear()
