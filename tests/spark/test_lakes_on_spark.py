"""Jobs on Spark that write to Delta and Iceberg: after failures and kills the tables hold the oracle's rows."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from child_job import kill_a_worker, wait_for_batch
from lakes import rows_in, seen_rows, sink_in, versions
from pyspark.sql import DataFrame, SparkSession
from test_faults import FAULTS, LIVES, started
from test_session import QUERIES, Source, batches, expected, session

import dovetail as dt
from dovetail.errors import DovetailError
from dovetail.spark.driver.reports import ResultCounts, ShardReports
from dovetail.testing import assert_same_rows

FORMATS = {"chain": "delta", "band": "iceberg"}


@pytest.mark.slow
@pytest.mark.core
def test_tables_hold_the_oracles_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch 1 is in both tables when the job fails, so its replay adds nothing; batch 3 loses a file and is not committed."""
    pushes, source = batches(seed=31, count=4), Source(spark, tmp_path / "in")
    source.add(pushes)
    queries = {name: QUERIES[name] for name in (*FORMATS, "self")}
    broken = [True]

    def fail(results: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        if broken and batch_id == 1:
            raise OSError("no space")

    def start() -> dt.RunningSession:
        sinks: dict[str, Any] = {name: sink_in(tmp_path / name, kind) for name, kind in FORMATS.items()}
        sinks["self"] = dt.sinks.call(fail)
        return session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", {"availableNow": True})

    def changes() -> dict[str, int]:
        return {name: versions(tmp_path / name, kind) for name, kind in FORMATS.items()}

    with pytest.raises(DovetailError, match="no space"):
        start().await_termination()
    broken.clear()
    before, collect = changes(), ShardReports.collect

    def careless(reports: ShardReports, frame: DataFrame, batch_id: int) -> ResultCounts:
        counts = collect(reports, frame, batch_id)
        for file in (tmp_path / "chain" / "table").glob("*-3-shard-*.parquet"):
            file.unlink()
        return counts

    with monkeypatch.context() as patch:
        patch.setattr(ShardReports, "collect", careless)
        with pytest.raises(
            DovetailError, match=r"query 'chain': its sink delta.* failed with batch 3: batch 3: shard \d"
        ):
            start().await_termination()
    assert changes() == {name: version + 2 for name, version in before.items()}  # the start, and batch 2
    running, snapshots = start(), []
    while not running.await_termination(0.05):
        snapshots += [(name, seen_rows(tmp_path / name, kind)) for name, kind in FORMATS.items()]
    oracle = expected(pushes, queries)
    for name, kind in FORMATS.items():
        wanted = oracle.results_table(name)
        assert wanted.num_rows > 10
        assert_same_rows(rows_in(tmp_path / name, kind).drop_columns(["batch_id"]).cast(wanted.schema), wanted, name)
    final = {name: seen_rows(tmp_path / name, kind) for name, kind in FORMATS.items()}
    assert snapshots
    for name, counts in snapshots:  # whatever a reader sees meanwhile is whole
        assert counts.items() <= final[name].items()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-(-FAULTS // LIVES)))
def test_workers_and_the_driver_are_killed_while_tables_are_written(seed: int, tmp_path: Path) -> None:
    rng = random.Random(900 + seed)
    with started(tmp_path, seed, tables=True) as job:
        for _ in range(LIVES):
            assert wait_for_batch(job, job.begun() + rng.randint(1, 2))
            kill_a_worker(job, rng)
            assert wait_for_batch(job, job.begun() + rng.randint(0, 1))
            time.sleep(rng.uniform(0, 1))
            job.crash(workers_too=rng.random() < 0.5)
            job.start()
        job.finish()
        job.check()
        assert not job.live()
