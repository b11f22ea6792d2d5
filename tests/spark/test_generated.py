"""Generated streams on Spark: precisely the tuples that the workload has, in any partitions, and after a restart in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import dovetail as dt
from dovetail.spark.compat import GENERATED_SOURCE, INSTALLED, is_at_least, version_text
from dovetail.spark.generated import FORMAT, register_workloads
from dovetail.testing import assert_same_rows
from dovetail.workloads import Arrivals, Stream, Uniform, Workload, scenario

pytestmark = pytest.mark.skipif(
    not is_at_least(INSTALLED, GENERATED_SOURCE), reason=f"needs PySpark {version_text(GENERATED_SOURCE)}"
)

SETTINGS: dict[str, Any] = {"seed": 11, "rate": 300.0, "routers": 3}


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register_workloads(spark)


def options(**more: Any) -> dict[str, str]:
    given = {"scenario": "packets", "stream": "r2", "batch_seconds": 4, "partitions": 3, **SETTINGS, **more}
    return {name: str(value) for name, value in given.items()}


def reading(spark: SparkSession, **more: Any) -> DataStreamReader:
    return spark.readStream.format(FORMAT).options(**options(**more))


def run(frame: DataFrame, folder: Path) -> None:
    """Read all there is, into Parquet files."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    try:
        query.awaitTermination()
    finally:
        query.stop()


def written(spark: SparkSession, folder: Path) -> pa.Table:
    return spark.read.parquet(str(folder / "out")).toArrow()


def test_a_table_has_the_generated_tuples(spark: SparkSession) -> None:
    found = spark.read.format(FORMAT).options(**options(seconds=10)).load()
    assert found.rdd.getNumPartitions() == 3
    assert_same_rows(found.toArrow(), scenario("packets", **SETTINGS).table("r2", 0, 10))


@pytest.mark.slow
@pytest.mark.core
def test_a_restart_in_the_middle_goes_on_with_the_next_tuple(spark: SparkSession, tmp_path: Path) -> None:
    # 10 s are two batches and a half: the second run begins off the grid of batches, with other partitions.
    run(reading(spark, seconds=10).load(), tmp_path)
    first = written(spark, tmp_path)
    workload = scenario("packets", **SETTINGS)
    assert_same_rows(first, workload.table("r2", 0, 10))
    run(reading(spark, seconds=17, partitions=2, batch_seconds=5).load(), tmp_path)
    assert_same_rows(written(spark, tmp_path), workload.table("r2", 0, 17))
    run(reading(spark, seconds=17).load(), tmp_path)
    assert written(spark, tmp_path).num_rows == workload.table("r2", 0, 17).num_rows


@pytest.mark.slow
def test_a_batch_that_failed_is_read_again_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that fails in the middle leaves an offset without a commit: the same range is asked for once more."""
    seen: dict[int, list[pa.Table]] = {}

    def fail_once(batch: DataFrame, number: int) -> None:
        seen.setdefault(number, []).append(batch.toArrow())
        if number == 1 and len(seen[number]) == 1:
            raise RuntimeError("the sink is full")

    def start() -> None:
        frame = reading(spark, seconds=12).load()
        writer = frame.writeStream.foreachBatch(fail_once).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="the sink is full"):
        start()
    start()
    assert [len(tables) for _, tables in sorted(seen.items())] == [1, 2, 1]
    assert_same_rows(*seen[1])
    found = pa.concat_tables([tables[-1] for tables in seen.values()])
    assert_same_rows(found, scenario("packets", **SETTINGS).table("r2", 0, 12))


def test_other_settings_do_not_fit_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    run(reading(spark, seconds=4).load(), tmp_path)
    with pytest.raises(PySparkException, match="the rest would not fit"):
        run(reading(spark, seconds=8, seed=12).load(), tmp_path)


@pytest.mark.slow
@pytest.mark.core
def test_generated_streams_can_be_joined(spark: SparkSession, tmp_path: Path) -> None:
    workload = scenario("packets", **SETTINGS)
    session = dt.Session(spark, shards=2)
    workload.declare(session, lambda name: reading(spark, stream=name, seconds=8).load())
    sink = dt.sinks.memory()
    session.start({"passed_all": sink}, str(tmp_path / "checkpoint"), {"availableNow": True}).await_termination()
    local = dt.LocalSession()
    workload.declare(local)
    batches = [{stream.name: workload.table(stream.name, at, at + 4) for stream in workload.streams} for at in (0, 4)]
    wanted = pa.concat_tables([local.push(batch)["passed_all"] for batch in batches])
    results = sink.table()
    assert results is not None
    assert wanted.num_rows > 100
    assert_same_rows(results.select(wanted.column_names), wanted)


def test_workloads_of_ones_own_can_be_read(spark: SparkSession) -> None:
    own = Workload("mine", (Stream("s", Arrivals(50, "uniform"), {"k": Uniform(9)}),), seed=3)
    register_workloads(spark, own)
    given = {"scenario": "mine", "stream": "s", "seconds": "4"}
    assert_same_rows(spark.read.format(FORMAT).options(**given).load().toArrow(), own.table("s", 0, 4))
    with pytest.raises(dt.ConfigError, match="workloads named 'news'"):
        register_workloads(spark, Workload("news", own.sources))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"stream": "r9"}, r"option 'stream' is 'r9'; allowed: 'r1', 'r2', 'r3'"),
        ({"scenario": "funnel"}, r"the scenario is 'funnel'; allowed: 'ad_funnel'"),
        ({"router": 3}, r"there is no setting 'router'; allowed: .*\n?Hint: did you mean 'routers'\?"),
        ({"batch_seconds": "soon"}, r"option 'batch_seconds' is 'soon'; it must be a number above zero"),
        ({"partitions": 1.5}, r"option 'partitions' is '1.5'; it must be a whole number above zero"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, more: dict[str, Any], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        reading(spark, **more).load()


def test_what_ends_needs_an_end(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="option 'seconds' is missing; trigger availableNow"):
        run(reading(spark).load(), tmp_path)
    with pytest.raises(PySparkException, match="option 'seconds' is missing; a table must have an end"):
        spark.read.format(FORMAT).options(**options()).load().count()
