"""A batch that is replayed by a changed job: every query gets the results of the job that completes the batch.

A driver may be killed after a batch was joined and its results were written, and before Spark has written the batch's commit. Most
tests imitate that by removing the commit; one kills a driver at that very moment. DOVETAIL_REPLAYS is the number of random cases.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from replay_histories import RandomChanges, ReplayedJob, ReplayHistory, random_input, random_query
from replay_job import COLUMNS, JobRecord, QuerySpec, entry_numbers

REPLAYS = int(os.environ.get("DOVETAIL_REPLAYS", "0"))
"""Random cases; zero for those of CI."""
ROWS = 10
BY_K = QuerySpec({"a": 60, "b": 60}, ("k",))


def matching_input(number: int) -> dict[str, pa.Table]:
    """Ten tuples of each stream, all of which match each other; the event times of later batches are later."""
    rows = [
        {"ts": 1_000_000 * number + row, "k": 1, "j": "x", "v": ROWS * number + row, "w": row} for row in range(ROWS)
    ]
    return dict.fromkeys("ab", pa.Table.from_pylist(rows, COLUMNS))


def replay_with(spark: SparkSession, folder: Path, name: str, spec: QuerySpec) -> dict[int, int]:
    """Run batches 0 and 1, remove the commit of batch 1 and add a query; give its results by batch.

    Batch 1 is replayed in one start and batch 2 is run in the next, which reads the state that the replay has left.
    """
    job = ReplayedJob(spark, folder, {"qk": BY_K})
    for number in (0, 1):
        job.input.add(matching_input(number))
    job.run()
    job.remove_newest(commits=1)
    job.change(added={name: spec})
    job.run()
    job.input.add(matching_input(2))
    job.run()
    return job.check()[name]


@pytest.mark.slow
def test_a_new_query_sees_the_replayed_batch(spark: SparkSession, tmp_path: Path) -> None:
    results = replay_with(spark, tmp_path, "qj", QuerySpec({"a": 60, "b": 60}, ("j",)))
    assert results == {1: ROWS**2, 2: 3 * ROWS**2}


@pytest.mark.slow
def test_a_new_column_is_read_in_the_replayed_batch(spark: SparkSession, tmp_path: Path) -> None:
    results = replay_with(spark, tmp_path, "qv", QuerySpec({"a": 60, "b": 60}, ("k",), ("a.v",)))
    assert results == {1: ROWS**2, 2: 3 * ROWS**2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(REPLAYS or 2))
def test_random_histories(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    ReplayHistory(spark, tmp_path, seed).run()


# -- a driver that is killed --------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).with_name("replay_job.py")
DEADLINE = 180.0
LIVES = 2 if REPLAYS else 1
"""Kills in one test: starting Spark costs far more than a kill."""
KILLS = max(LIVES, REPLAYS // 5)


class KilledJob(JobRecord):
    """A job in a process of its own."""

    def run(self, kill_after: int | None = None) -> int:
        """Run until all input is read, or until the sinks hold batch `kill_after`; give the process's return code."""
        job, log = self.folder / "job.json", self.folder / "log"
        job.write_text(json.dumps({"lateness": self.lateness, "queries": self.texts}), encoding="utf-8")
        batch = [] if kill_after is None else [str(kill_after)]
        command = [sys.executable, str(PROGRAM), str(self.folder), str(job), *batch]
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        try:
            return process.wait(DEADLINE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-(-KILLS // LIVES)))
def test_killed_between_sink_and_commit(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    job = KilledJob(tmp_path, {"q0": QuerySpec({"a": 8, "b": 8}, ("k",)), "q1": random_query(rng, "ab")})
    changes = RandomChanges(rng, job)
    for number in range(6):
        job.input.add(random_input(rng, number, "ab"))
    batch = -1
    for change in rng.sample((changes.add, changes.read_column, changes.toggle_filter, changes.resize_window), LIVES):
        batch += rng.randint(1, 2)
        assert job.run(batch) == -signal.SIGKILL, job.log
        assert batch in entry_numbers(job.checkpoint / "offsets")
        assert job.next_batch == batch, "the commit was written"
        job.check()  # the sinks hold the batch
        job.change(**change())
    assert job.run() == 0, "\n".join([job.log, *job.lines])
    job.check()


# -- changes without a pause --------------------------------------------------------------------------------------------------


@contextmanager
def steady_input(job: ReplayedJob, rng: random.Random) -> Iterator[None]:
    """Add a file to each stream three times a second, as long as fewer than three wait to be read."""
    ended = threading.Event()

    def feed() -> None:
        number = 0
        while not ended.wait(0.3):
            if number < max(entry_numbers(job.checkpoint / "offsets"), default=-1) + 4:
                job.input.add(random_input(rng, number, "ab"))
                number += 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def _all_offsets(spark: SparkSession) -> Iterator[None]:
    """Let Spark keep the offsets of all batches: the test reads them in the end."""
    option = "spark.sql.streaming.minBatchesToRetain"
    before = spark.conf.get(option)
    spark.conf.set(option, "10000")
    yield
    spark.conf.set(option, str(before))


def change_without_pause(job: ReplayedJob, rng: random.Random, count: int) -> None:
    """Add and drop queries, each as soon as the call before has returned; at most three come and go at a time."""
    added: list[str] = []
    for number in range(count):
        if not added or (len(added) < 3 and rng.random() < 0.5):
            added.append(f"q{number}")
            job.add_query(added[-1], random_query(rng, "ab"), backfill=rng.random() < 0.5)
        else:
            job.drop_query(added.pop(rng.randrange(len(added))))


@pytest.mark.slow
@pytest.mark.usefixtures("_all_offsets")
def test_many_changes_in_a_row(spark: SparkSession, tmp_path: Path) -> None:
    count = 50 if REPLAYS else 5
    by_k, by_j = (QuerySpec({"a": 8, "b": 8}, (key,), ("a.v", "b.v")) for key in "kj")
    job = ReplayedJob(spark, tmp_path, {"by_k": by_k, "by_j": by_j})
    job.start(available_now=False)
    try:
        with steady_input(job, random.Random(1)):
            change_without_pause(job, random.Random(2), count)
        job.wait()
    finally:
        job.running.stop()
    job.check()
    job.check_counters()
    firsts = {change.first for change in job.changes[1:]}
    assert len(firsts) >= count - max(1, count // 10), f"{count} changes began with {len(firsts)} batches"
