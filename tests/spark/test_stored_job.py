"""A checkpoint that an earlier commit has stored goes on: its results before and after are the oracle's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from stored_job import PLACE, SHARDS, unpack


@pytest.mark.slow
def test_a_stored_checkpoint_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    job = unpack(spark, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PLACE.encode() in path.read_bytes()]

    def results(name: str) -> pa.Table:
        return pq.read_table(tmp_path / "out" / name, partitioning=None)

    before = job.check(results)
    job.start(SHARDS, "checkpoint")
    assert job.running.changes is None
    job.run(2)
    job.running.stop()
    after = job.check(results)
    assert all(after[name] > before[name] > 0 for name in after)
