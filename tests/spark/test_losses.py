"""What shards drop is reported, merged and said once by the driver, which goes on whatever the filter for warnings is."""

from __future__ import annotations

import logging
import random
import warnings
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pipeline import Pipeline, layout_of

from dovetail.errors import DovetailWarning
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.driver.failures import warn_or_log
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.running import RunningSession

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", 1_000_000) for name in "ab")
SQL = {"q": "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"}


def _table(*times: int | None) -> pa.Table:
    keys = [number if number % 3 else None for number in range(len(times))]  # some go to no shard
    return pa.table([pa.array(times, TIMESTAMP), pa.array(keys, pa.int64())], schema=COLUMNS)


def warn_of_losses(running: RunningSession) -> None:
    for text in running._reports.new_warnings():
        warn_or_log(text)


@pytest.fixture
def running(tmp_path: Path) -> RunningSession:
    """A session whose shards have been given late tuples, and one without a time."""
    pipeline = Pipeline(layout_of(STREAMS, SQL, 4), tmp_path, random.Random(1))
    pipeline.run({"a": _table(90_000_000), "b": _table(90_000_000)})
    pipeline.run({"a": _table(*range(1_000_000, 60_000_000, 1_000_000)), "b": _table(89_000_000, None)})
    job = RunningJob(pipeline.layout.job, pipeline.layout, (), {}, cast("Any", None), {}, {})
    session = RunningSession(cast("Any", None), job, "run")
    session._reports._shards = pipeline.metrics
    return session


def test_the_largest_lateness_of_all_shards_is_reported(running: RunningSession) -> None:
    streams = running.metrics()["streams"]
    assert (streams["a"]["late"], streams["a"]["lateness_needed"]) == (59, 89.0)
    assert (streams["b"]["late"], streams["b"]["lateness_needed"], streams["b"]["refused"]) == (0, 0.0, 1)


def test_the_driver_says_it_once(running: RunningSession) -> None:
    with pytest.warns(DovetailWarning) as said:
        warn_of_losses(running)
    assert [str(each.message).split(",")[0] for each in said] == [
        "stream 'a': 59 tuples came too late and were dropped",
        "stream 'b': 1 tuple was dropped",
    ]
    assert "lateness='1 min 29 s' would have kept them" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_losses(running)


def test_a_job_does_not_end_where_warnings_are_errors(
    running: RunningSession, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "dovetail"):
        warnings.simplefilter("error")
        warn_of_losses(running)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["stream 'a'", "stream 'b'"]
