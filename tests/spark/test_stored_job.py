"""A checkpoint that an earlier commit has stored goes on: its results before and after are the oracle's.

So does one that an earlier version of Spark has stored; `make test-versions` sets DOVETAIL_STORED_JOB to its archive.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from stored_job import ARCHIVE, PLACE, SHARDS, unpack

OF_EARLIER_SPARK = os.environ.get("DOVETAIL_STORED_JOB")


@pytest.mark.slow
def test_a_stored_checkpoint_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    continue_job(spark, tmp_path, ARCHIVE)


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.skipif(OF_EARLIER_SPARK is None, reason="`make test-versions` writes one")
def test_a_checkpoint_of_an_earlier_spark_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    continue_job(spark, tmp_path, Path(str(OF_EARLIER_SPARK)))


def continue_job(spark: SparkSession, folder: Path, archive: Path) -> None:
    job = unpack(spark, folder, archive)
    assert not [path for path in folder.rglob("*") if path.is_file() and PLACE.encode() in path.read_bytes()]

    def results(name: str) -> pa.Table:
        return pq.read_table(folder / "out" / name, partitioning=None)

    before = job.check(results)
    job.start(SHARDS, "checkpoint")
    assert job.running.changes is None
    job.run(2)
    job.running.stop()
    after = job.check(results)
    assert all(after[name] > before[name] > 0 for name in after)
