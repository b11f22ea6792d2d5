"""`dovetail run` of a job file survives `kill -9` of all its processes, and ends cleanly after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

import dovetail as dt
from dovetail import workloads

SECONDS, FILES = 40, 4
LONGEST_WAIT = float(os.environ.get("DOVETAIL_LONGEST_WAIT", "400"))
SQL = """SELECT i.ad_id, i.ts AS shown, c.user_id, c.ts AS clicked
FROM impressions i [RANGE 1 MIN], clicks c [RANGE 1 MIN] WHERE i.ad_id = c.ad_id AND i.user_id = c.user_id"""
JOB = """
checkpoint = "out/checkpoint"
shards = 1
spark = { cores = 1, memory = "1g" }
[streams.impressions]
path = "in/impressions"
event_time = "ts"
lateness = "1 min"
options = { maxFilesPerTrigger = 1 }
[streams.clicks]
path = "in/clicks"
event_time = "ts"
lateness = "1 min"
options = { maxFilesPerTrigger = 1 }
[queries.seen]
file = "seen.sql"
sink = { type = "parquet", path = "out/seen" }
"""


@contextmanager
def running(folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "dovetail.cli.main", "run", str(folder / "job.toml")]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + LONGEST_WAIT
    while not path.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)


def expected(workload: workloads.Workload) -> pa.Table:
    session = dt.LocalSession()
    tables = {name: workload.table(name, 0, SECONDS) for name in ("impressions", "clicks")}
    for name, table in tables.items():
        session.stream(name, table.schema, event_time="ts")
    session.query("seen", SQL)
    return dt.testing.expected(session, [tables])["seen"]


@pytest.mark.slow
def test_a_job_survives_a_kill_and_ends_after_an_interrupt(tmp_path: Path) -> None:
    workload = workloads.scenario("ad_funnel", rate=40.0)
    workloads.write_workload(workload, tmp_path / "in", SECONDS, FILES)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "seen.sql").write_text(f"{SQL};\n")
    commits, first, second = tmp_path / "out/checkpoint/commits", tmp_path / "1.log", tmp_path / "2.log"
    with running(tmp_path, first) as process:
        wait_for(commits / "1", process, first)
        os.killpg(process.pid, signal.SIGKILL)
    with running(tmp_path, second) as process:
        wait_for(commits / str(FILES - 1), process, second)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(LONGEST_WAIT) == 130, second.read_text()
    shown = second.read_text()
    assert "Ending after the current batch" in shown
    assert shown.endswith("Stopped.\n")
    assert "Traceback" not in shown
    results = dataset.dataset(tmp_path / "out" / "seen", partitioning="hive").to_table().drop_columns(["batch_id"])
    right = expected(workload)
    assert right.num_rows > 10
    dt.testing.assert_same_rows(results.cast(right.schema), right)
