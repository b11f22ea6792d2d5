"""Mistakes with a running session: unknown names, units of event times, backfill that shows little. Nothing is started."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pipeline import Pipeline, layout_of

from dovetail.errors import ConfigError
from dovetail.optimizer.planner import plan_query
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.session.registered_query import QueryStart, RegisteredQuery
from dovetail.spark.driver.backfill_warnings import invisible_to_backfill
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.driver.job_diff import projected, with_query
from dovetail.spark.driver.layout import Layout
from dovetail.spark.running import RunningSession

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.int64()), ("v", pa.int64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts", 1_000_000) for name in "abc")
CATALOG = {stream.name: stream for stream in STREAMS}
SQL = "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
IN_2026 = 1_767_268_800_000_000


def running_session(layout: Layout) -> RunningSession:
    job = RunningJob(layout.job, layout, (), {}, cast("Any", None), {}, {})
    return RunningSession(cast("Any", None), job, "run")


# -- unknown names --------------------------------------------------------------------------------------------------------

SPARK_PROPERTY = "that is a property of Spark's query: write running.query."
CALLS: list[tuple[Callable[[Any], object], type[Exception], str, str]] = [
    (lambda r: r.push, AttributeError, "RunningSession has no attribute 'push'", "from the frames of streams"),
    (lambda r: r.start, AttributeError, "has no attribute 'start'", "that is a method of dt.Session"),
    (lambda r: r.lastProgress, AttributeError, "has no attribute 'lastProgress'", f"{SPARK_PROPERTY}lastProgress"),
    (lambda r: r.awaitTermination, AttributeError, "'awaitTermination'", "did you mean 'await_termination'?"),
    (lambda r: r.metric, AttributeError, "has no attribute 'metric'", "did you mean 'metrics'?"),
    (lambda r: r.remove_query, AttributeError, "has no attribute 'remove_query'", "drop_query(name) stops a query"),
    (lambda r: r.close, AttributeError, "has no attribute 'close'", "stop() ends the job"),
    (lambda r: r.to_pandas, AttributeError, "has no attribute 'to_pandas'", "results are in the sinks"),
    (
        lambda r: r.add_query("r", SQL, None, backfil=True),
        ConfigError,
        "RunningSession.add_query(backfil=...): there is no such argument",
        "did you mean 'backfill'?",
    ),
    (lambda r: r.add_query("r", query=SQL, sink=None), ConfigError, "add_query(query=...)", "write sql=..."),
    (lambda r: r.await_termination(timout=1), ConfigError, "await_termination(timout=...)", "did you mean 'timeout'?"),
]


@pytest.mark.parametrize(("call", "kind", "message", "hint"), CALLS)
def test_calls_of_something_else(call: Callable[[Any], object], kind: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        call(running_session(layout_of(STREAMS, {"q": SQL}, 2)))
    assert hint in str(error.value).partition("\nHint: ")[2]


def test_attributes_that_a_running_session_has_not_are_absent() -> None:
    running = running_session(layout_of(STREAMS, {"q": SQL}, 2))
    assert not hasattr(running, "_ipython_display_")
    assert not hasattr(running, "push")


# -- units of event times ---------------------------------------------------------------------------------------------------


def _at(time: int) -> pa.Table:
    return pa.table([pa.array([time], TIMESTAMP), [1], [1], [1]], schema=COLUMNS)


def warnings_of(running: RunningSession, pipeline: Pipeline, **times: int) -> list[str]:
    pipeline.run({name: _at(time) for name, time in times.items()})
    running._reports._shards = pipeline.metrics
    return list(running._reports.new_warnings())


def test_milliseconds_read_as_microseconds_warn_once(tmp_path: Path) -> None:
    pipeline = Pipeline(layout_of(STREAMS, {"q": SQL}, 2), tmp_path, random.Random(1))
    running = running_session(pipeline.layout)
    assert warnings_of(running, pipeline, a=IN_2026) == []
    (text,) = warnings_of(running, pipeline, b=IN_2026 // 1000)
    assert text.startswith(
        "stream 'b' is at 1970-01-21 and stream 'a' at 2026-01-01: milliseconds were probably read as microseconds"
    )
    assert "F.timestamp_millis(number) on Spark; first: from pyspark.sql import functions as F" in text
    assert warnings_of(running, pipeline, a=IN_2026 + 1, b=IN_2026 // 1000 + 1) == []


# -- backfill ---------------------------------------------------------------------------------------------------------------


def backfill_warnings(sql: str) -> list[str]:
    """Return the warnings of a query that is added to a job whose query keeps `k` of two streams."""
    first = parse_query("q", SQL, CATALOG)
    before = layout_of(tuple(projected(stream, [first]) for stream in STREAMS), {"q": SQL}, 2)
    query = parse_query("r", sql, CATALOG)
    plan = plan_query(query, CATALOG, before.job.config)
    after = with_query(before, RegisteredQuery(plan, start=QueryStart(3, backfill=True)), CATALOG)
    return list(invisible_to_backfill(before, after, query))


LITTLE = [
    (SQL.replace("a.k = b.k", "a.j = b.j"), "shows nothing", "shards of its own, whose windows are empty"),
    (
        SQL.replace("SELECT a.k", "SELECT a.v, b.v AS w"),
        "shows less",
        "windows of 'a' did not keep 'v'; windows of 'b'",
    ),
    (SQL.replace("FROM", "FROM c [RANGE 10 SECONDS],") + " AND c.k = a.k", "shows less", "read stream 'c' before"),
]


@pytest.mark.parametrize(("sql", "how_much", "reason"), LITTLE)
def test_backfill_that_shows_little_says_why(sql: str, how_much: str, reason: str) -> None:
    (text,) = backfill_warnings(sql)
    assert text.startswith(f"query 'r': backfill=True {how_much}")
    assert reason in text
    assert "\nHint: " in text


def test_backfill_that_shows_everything_says_nothing() -> None:
    assert backfill_warnings(SQL) == []
    assert backfill_warnings(SQL.replace("10", "5").replace("SELECT a.k", "SELECT b.ts")) == []
