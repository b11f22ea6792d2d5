"""A checkpoint with data in its windows, as this release writes it, and how it was made: `python tests/spark/stored_job.py [archive]`.

The archive beside this file holds the input, the checkpoint and the results of a job that was stopped. Spark keeps whole paths in the
logs of file sources and in the state's metadata; in the archive `PLACE` stands for the directory of the job, and `unpack` writes the
directory that it unpacks to in its stead. Checksums of Hadoop are left out: they would be those of the other paths.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from job import STREAMS, Job
from pyspark.sql import SparkSession
from test_late_queries import BASE, DECLARED, bounds

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.spark.driver import builder

ARCHIVE = Path(__file__).with_name("stored_job.zip")
PLACE = "/the-place-of-the-stored-job"
SHARDS = 2
QUERIES = {
    "key": BASE,
    "cube": "SELECT a.ts AS a_ts, b.v AS b_v, c.ts AS c_ts FROM a [RANGE 8 s], b [RANGE 8 s], c [RANGE 8 s] "
    "WHERE a.k = b.k AND b.j = c.j",
    "rows": "SELECT a.ts AS a_ts, a.v AS a_v, b.ts AS b_ts FROM a [PARTITION BY k ROWS 3], b [RANGE 8 s] WHERE a.k = b.k",
}
FILLED = BASE.replace("8 s", "6 s")
BEFORE, AFTER = 3, 2
"""Batches before and after the query came that is filled with what windows held."""


def stored(spark: SparkSession, folder: Path) -> Job:
    """A job whose results go to `folder`/out."""
    return Job(spark, folder, QUERIES, seed=5, sink=lambda name: dt.sinks.parquet(folder / "out" / name))


def held(job: Job) -> dict[str, int]:
    """What the query that comes later may see of what was there."""
    return bounds(job.oracle, [parse_query("key", BASE, DECLARED)])


def make(spark: SparkSession, folder: Path, archive: Path) -> None:
    """Run the job and write its archive."""
    job = stored(spark, folder)
    job.start(SHARDS, "checkpoint")
    job.run(BEFORE)
    job.add("filled", FILLED, held(job))
    job.run(AFTER)
    job.running.stop()
    for path in folder.rglob(".*.crc"):
        path.unlink()
    (folder / "checkpoint" / "dovetail" / "_lock").unlink()
    rewrite(folder, str(folder), PLACE)
    shutil.make_archive(str(archive.with_suffix("")), "zip", folder)


def unpack(spark: SparkSession, folder: Path, archive: Path) -> Job:
    """The job as it was stopped, in a directory of its own; the oracle has seen what it had seen."""
    shutil.unpack_archive(archive, folder)
    rewrite(folder, PLACE, str(folder))
    job = stored(spark, folder)
    for number in range(1, 1 + BEFORE + AFTER):  # the first files are empty
        if number == 1 + BEFORE:
            job.expect_query("filled", FILLED, held(job))
        job.expect({name: pq.read_table(folder / "in" / name / f"{number:05}.parquet") for name in STREAMS})
    return job


def rewrite(folder: Path, before: str, after: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and before.encode() in (content := path.read_bytes()):
            path.write_bytes(content.replace(before.encode(), after.encode()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        target = Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE
        make(builder.session(cores=2, memory="1g"), Path(directory), target)
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes\n")
