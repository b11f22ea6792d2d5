"""Faults: whatever is killed or damaged, and whenever, the output is the oracle's: nothing lost, nothing twice, or a clear error.

A child process runs `faults_job.py`; it, or a part of it, is killed with SIGKILL in the middle of a micro-batch. DOVETAIL_FAULTS says
how many kills of each kind there are (`make test-faults` sets 10). Only processes that descend from the job started here are killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from child_job import ChildJob, kill_a_worker, wait_for_batch
from faults_job import COLUMNS, QUERIES, STREAMS, declare
from lakes import rows_in
from pipeline import Pipeline, layout_of
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.engine.storage.arena import MappedArena
from dovetail.errors import StateError
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.running import RunningSession
from dovetail.spark.state.log import MANIFEST
from dovetail.spark.state.shared_memory import SharedMemoryShard, shared_memory_root
from dovetail.testing import Oracle, assert_same_rows

JOB = Path(__file__).with_name("faults_job.py")
FAULTS = int(os.environ.get("DOVETAIL_FAULTS", "2"))
LIVES = 2
"""How often one test kills a worker and then the driver: starting Spark costs far more than a kill."""
BATCHES = 9
"""One below ten, where Spark begins to merge and delete the logs that say which file was in which batch."""
CLUSTER = "local-cluster[2,1,1024]"

Push = dict[str, pa.Table]


def pushes(seed: int, count: int = BATCHES, rows: int = 20) -> list[Push]:
    """Four seconds of each stream per batch, out of order, some of it late."""
    rng = random.Random(seed)

    def table(batch: int) -> pa.Table:
        seconds = [max(0.0, 4 * batch + rng.uniform(-4, 4)) for _ in range(rows)]
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


class Job(ChildJob):
    """A job over batches of files."""

    def __init__(self, folder: Path, batches: list[Push], master: str | None = None, *, tables: bool = False) -> None:
        super().__init__(folder, JOB)
        self.batches, self.tables = batches, tables
        self._arguments = [master] if master else []
        self._environment = {"DOVETAIL_FAULTS_TABLES": "1"} if tables else {}
        write_input(folder, batches)

    def start(self) -> None:  # type: ignore[override]
        super().start(*self._arguments, **self._environment)

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
        """What any reader sees that skips hidden files, or that reads tables."""
        if self.tables:
            rows = rows_in(self.folder / "out" / name, {"chain": "delta", "rows": "iceberg"}[name])
            return rows.drop_columns(["batch_id"])
        files = sorted((self.folder / "out" / name).glob("batch_id=*/**/*.parquet"))
        seen = [path for path in files if not any(part.startswith(("_", ".")) for part in path.parts)]
        return pa.concat_tables([pq.ParquetFile(path).read() for path in seen])


@contextmanager
def started(folder: Path, seed: int, master: str | None = None, *, tables: bool = False) -> Iterator[Job]:
    job = Job(folder, pushes(seed), master, tables=tables)
    job.start()
    try:
        yield job
    finally:
        job.clear()


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("seed", range(-(-FAULTS // LIVES)))
def test_workers_and_the_driver_are_killed_in_mid_batch(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    with started(tmp_path, seed) as job:
        for _ in range(LIVES):
            # The first batch of a life finds nothing alive: every shard is rebuilt from its log.
            assert wait_for_batch(job, job.begun() + rng.randint(1, 2))
            kill_a_worker(job, rng)
            again = rng.random() < 0.5  # the driver goes too before the batch has been tried again
            assert wait_for_batch(job, job.begun() + (0 if again else rng.randint(1, 2)))
            time.sleep(rng.uniform(0, 1))
            job.crash(workers_too=rng.random() < 0.5)
            job.start()
        job.finish()
        job.check()
        assert not job.live()


def refuse_rival(spark: SparkSession, job: Job, checkpoint: str, message: str) -> None:
    """Be a second driver that wants the job's sinks, with a checkpoint of its own or with the job's."""
    sinks = {name: dt.sinks.parquet(str(job.folder / "out" / name)) for name in QUERIES}
    with pytest.raises(StateError, match=message):
        declare(spark, job.folder).start(sinks, job.folder / checkpoint, {"availableNow": True})


@contextmanager
def paused(job: Job) -> Iterator[None]:
    """All of a job's processes stand still, alive."""
    pids = list(job.processes())
    for number, after in ((signal.SIGSTOP, False), (signal.SIGCONT, True)):
        if after:
            yield
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-(-FAULTS // LIVES)))
def test_other_drivers_are_refused_while_one_runs_and_after_it_was_killed(
    spark: SparkSession, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(600 + seed)
    with started(tmp_path, seed) as job:
        assert wait_for_batch(job, rng.randint(2, 3))
        with paused(job):
            refuse_rival(spark, job, "checkpoint", "is in use: this session, or another one, has been started with it")
        time.sleep(rng.uniform(0, 0.5))
        job.crash(workers_too=rng.random() < 0.5)
        refuse_rival(spark, job, "another", "of another checkpoint, which was")
        job.finish()
        job.check()
        assert not job.live()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-(-FAULTS // LIVES)))
def test_executors_are_killed_in_mid_batch(seed: int, tmp_path: Path) -> None:
    rng = random.Random(200 + seed)
    with started(tmp_path, seed, CLUSTER) as job:
        for kill in range(LIVES):
            assert wait_for_batch(job, 2 + 4 * kill + rng.randint(0, 2))
            time.sleep(rng.uniform(0, 1))
            job.note("executor")
            job.kill(rng.choice(job.executors()))
        job.finish()
        job.check()
        assert not job.live()


@pytest.mark.slow
@pytest.mark.core
def test_a_sink_fails_once(spark: SparkSession, tmp_path: Path) -> None:
    batches = pushes(seed=7, count=3)
    write_input(tmp_path, batches)
    memory = dt.sinks.memory()
    kept: dict[int, pa.Table] = {}
    calls: list[int] = []

    def fails_once(results: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        rows = results.toArrow()
        if len(calls) == 2:
            raise OSError("the disk is full")
        assert batch_id not in kept
        kept[batch_id] = rows

    def start() -> RunningSession:
        sinks = {"chain": memory, "rows": dt.sinks.call(fails_once)}
        return declare(spark, tmp_path).start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True})

    with pytest.raises(Exception, match="the disk is full"):
        start().await_termination()
    start().await_termination()
    assert calls == [0, 1, 1, 2]
    oracle = oracle_of(batches)
    for name, found in {"chain": memory.table(), "rows": pa.concat_tables(kept.values())}.items():
        wanted = oracle.results_table(name)
        assert found is not None
        assert_same_rows(found.cast(wanted.schema), wanted, name)


# -- damage, without Spark ------------------------------------------------------------------------------------------------------


class Damaged:
    """A pipeline after some batches, to be damaged, and what it must go on to give."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        self.folder = folder
        self.batches = pushes(seed=11, count=8)
        self.pipeline = Pipeline(layout_of(tuple(STREAMS.values()), QUERIES, 2), folder / "live", random.Random(0))
        self.found: dict[str, list[pa.Table]] = {name: [] for name in QUERIES}
        self.done = 0
        self.go_on(count)

    def go_on(self, count: int) -> None:
        for push in self.batches[self.done : self.done + count]:
            before = dict(self.pipeline.states)
            try:
                results = self.pipeline.run(push)
            except BaseException:
                self.pipeline.states = before  # Spark commits all shards of a batch or none
                raise
            for name, tables in results.items():
                self.found[name] += tables
            self.done += 1

    def lose_live(self) -> None:
        self.pipeline.live = self.folder / "another host"

    def state(self, shard: int) -> tuple[dict[str, Any], dict[int, bytes]]:
        segments = self.pipeline.states[shard]
        return segments.manifest, segments.content

    def live(self, shard: int) -> Path:
        return self.pipeline.live / str(shard) / str(self.state(shard)[0]["token"])

    def check(self) -> None:
        oracle = oracle_of(self.batches[: self.done])
        for name in QUERIES:
            wanted = oracle.results_table(name)
            assert_same_rows(pa.concat_tables(self.found[name]), wanted, name)


@pytest.mark.parametrize("place", [0, 0.5, 0.999])
@pytest.mark.parametrize("which", [0, -1])
def test_a_segment_with_a_flipped_bit_is_named(tmp_path: Path, place: float, which: int) -> None:
    damaged = Damaged(tmp_path)
    manifest, content = damaged.state(0)
    segment = manifest["segments"][which]
    whole = content[segment["number"]]
    at = int(place * len(whole))
    content[segment["number"]] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    damaged.lose_live()
    for _ in range(2):  # a second attempt must not find an empty window either
        with pytest.raises(
            StateError, match=rf"segment {segment['number']} of stream '{segment['stream']}' is damaged"
        ):
            damaged.go_on(1)
    content[segment["number"]] = whole
    damaged.go_on(2)
    damaged.check()


@pytest.mark.parametrize("which", [0, -1])
def test_a_missing_segment_is_named(tmp_path: Path, which: int) -> None:
    damaged = Damaged(tmp_path)
    manifest, content = damaged.state(0)
    segment = manifest["segments"][which]
    whole = content.pop(segment["number"])
    damaged.lose_live()
    for _ in range(2):
        with pytest.raises(
            StateError, match=rf"segment {segment['number']} of stream '{segment['stream']}' is missing"
        ):
            damaged.go_on(1)
    content[segment["number"]] = whole
    damaged.go_on(2)
    damaged.check()


def test_a_damaged_segment_is_not_compacted_into_a_sound_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Damaged(tmp_path)
    monkeypatch.setattr("dovetail.spark.state.log.MAX_SMALL_SEGMENTS", 0)
    manifest, content = damaged.state(0)
    segment = manifest["segments"][-1]
    content[segment["number"]] = content[segment["number"]][:-1] + b"?"
    with pytest.raises(StateError, match=rf"segment {segment['number']} of stream '{segment['stream']}' is damaged"):
        damaged.go_on(1)


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_state_version_is_refused(tmp_path: Path, version: int | None) -> None:
    damaged = Damaged(tmp_path)
    manifest, content = damaged.state(1)
    content[MANIFEST] = json.dumps(manifest | {"version": version}).encode()
    with pytest.raises(StateError, match=f"state version {version}; this release reads version 1"):
        damaged.go_on(1)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: Mapping[str, Callable[[Path], None]] = {"cut short": cut, "empty": empty, "missing": Path.unlink}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_live_shard_is_rebuilt_by_the_next_attempt(tmp_path: Path, damage: str, seed: int) -> None:
    damaged = Damaged(tmp_path)
    live = damaged.live(seed % 2)
    files = sorted(path for path in live.iterdir() if path.name != "engine.json")
    victim = live / "engine.json" if seed < 2 else random.Random(seed).choice(files)
    DAMAGES[damage](victim)
    with suppress(Exception):  # an attempt may fail, with any error: it takes the damaged shard with it
        damaged.go_on(1)
    damaged.go_on(3)
    damaged.check()


# -- what faults leave behind ---------------------------------------------------------------------------------------------------


class Failing:
    """A streaming query that ended with an error."""

    def awaitTermination(self) -> None:  # noqa: N802
        raise OSError("the disk is full")


def test_a_failed_query_leaves_nothing_in_shared_memory() -> None:
    run = f"test-{uuid.uuid4().hex}"
    SharedMemoryShard(shared_memory_root(run), 0).create()
    layout = layout_of(tuple(STREAMS.values()), QUERIES, 1)
    running = RunningSession(cast("Any", None), RunningJob(layout.job, layout, (), {}, cast("Any", None), {}, {}), run)
    running.query = cast("Any", Failing())
    try:
        with pytest.raises(OSError, match="the disk is full"):
            running.await_termination()
        assert not shared_memory_root(run).exists()
    finally:
        shutil.rmtree(shared_memory_root(run), ignore_errors=True)


def test_an_entry_that_vanishes_during_the_sweep_is_no_error(tmp_path: Path) -> None:
    shard = SharedMemoryShard(tmp_path, 0)
    (tmp_path / "0" / "gone").symlink_to(tmp_path / "renamed by another attempt")
    shard.create()


def test_the_space_of_an_array_is_reserved(tmp_path: Path) -> None:
    MappedArena(tmp_path).allocate("numbers", np.int64, 1 << 16)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_progress_is_exact_in_the_far_future(tmp_path: Path) -> None:
    pipeline = Pipeline(layout_of(tuple(STREAMS.values()), QUERIES, 1), tmp_path, random.Random(0))
    time_ = 2**53 + 3
    row = pa.table([pa.array([time_], TIMESTAMP), [1], ["p"], [0.5]], schema=COLUMNS)
    pipeline.run(dict.fromkeys(STREAMS, row))
    progress = pipeline.states[0].manifest["progress"]
    assert {name: entry["head"] for name, entry in progress.items()} == dict.fromkeys(STREAMS, time_)
