"""Mistakes on Spark: each gets an error or a warning whose hint works. No streaming query is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.errors import ConfigError, DovetailWarning, QueryError, SchemaError, StateError
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.driver import builder
from dovetail.spark.driver.builder import PROVIDER, ROCKSDB
from dovetail.spark.driver.failures import worker_error
from dovetail.spark.running import RunningSession

SQL = "SELECT a.value FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.value = b.value"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.fixture
def session(session: dt.Session) -> dt.Session:
    session.query("q", SQL)
    return session


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("local[2]", "Session(spark=...) is 'local[2]' (str)", "write dt.Session(dt.spark.session(cores=2))"),
        ("local[*]", "Session(spark=...) is 'local[*]' (str)", "write dt.Session(dt.spark.session(cores='*'))"),
        ("spark://host", "Session(spark=...) is 'spark://host' (str)", "write dt.Session(dt.spark.session())"),
        (None, "Session(spark=...) is NoneType", "write dt.Session(dt.spark.session())"),
    ],
)
def test_what_is_no_spark_session(given: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        dt.Session(given)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("budget", "hint"), [(4, "write shards=4"), ("4", "write dt.Session(spark, dt.Budget(memory_bytes=1e9))")]
)
def test_what_is_no_budget(spark: SparkSession, budget: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("Session(budget=...) is a")) as error:
        dt.Session(spark, budget)
    assert error.value.hint == hint


RUNNING = "that is a method of what start(...) returns: running = session.start(...)"
CALLS: list[tuple[Callable[[Any], object], type[Exception], str, str]] = [
    (lambda s: s.push, AttributeError, "Session has no attribute 'push'", "push() is of dt.LocalSession"),
    (lambda s: s.metrics, AttributeError, "Session has no attribute 'metrics'", RUNNING),
    (lambda s: s.add_query, AttributeError, "Session has no attribute 'add_query'", RUNNING),
    (lambda s: s.snapshot, AttributeError, "Session has no attribute 'snapshot'", "the checkpoint holds the state"),
    (lambda s: s.querry, AttributeError, "Session has no attribute 'querry'", "did you mean 'query'?"),
    (lambda s: s.start(sink={}), ConfigError, "Session.start(sink=...): there is no such argument", "write sinks=..."),
    (lambda s: s.start({}, checkpointLocation="c"), ConfigError, "checkpointLocation", "write checkpoint=..."),
    (lambda s: s.start({}, "c", availableNow=True), ConfigError, "availableNow", 'trigger={"availableNow": True}'),
    (lambda s: s.dataframe("Q"), ConfigError, "there is no query 'Q'; registered: 'q'", "did you mean 'q'?"),
    (lambda s: s.dataframe("other"), ConfigError, "there is no query 'other'", "add one with query()"),
    (lambda s: s.stream("c", None, "ts", watermark="1 s"), ConfigError, "watermark", "write lateness=..."),
    (lambda s: s.query("r", SQL, backfil=True), ConfigError, "Session.query(backfil=...)", "help() lists them"),
]


@pytest.mark.parametrize(("call", "kind", "message", "hint"), CALLS)
def test_calls_of_something_else(
    session: dt.Session, call: Callable[[Any], object], kind: type[Exception], message: str, hint: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        call(session)
    assert hint in str(error.value).partition("\nHint: ")[2]


def test_an_event_time_that_is_no_column(session: dt.Session, frame: DataFrame) -> None:
    with pytest.raises(
        SchemaError, match="event_time='timestmp' is not a column; columns: 'timestamp', 'value'"
    ) as error:
        session.stream("c", frame, "timestmp")
    assert error.value.hint == "did you mean 'timestamp'?"


def test_an_event_time_that_is_no_text(session: dt.Session, frame: DataFrame) -> None:
    with pytest.raises(SchemaError, match="stream 'c': event_time is a Column; expected the name of a column") as error:
        session.stream("c", frame, cast("Any", frame.timestamp))
    assert error.value.hint == "write event_time='timestamp'"


@pytest.mark.parametrize(
    ("timeout", "hint"),
    [
        ("5 s", "write await_termination(5)"),
        (timedelta(minutes=2), "write await_termination(120)"),
        ("soon", "write await_termination(60), for example"),
        (-1, "write await_termination(60), for example"),
    ],
)
def test_a_timeout_that_is_no_number_of_seconds(timeout: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match="expected a number of seconds") as error:
        RunningSession.await_termination(cast("Any", SimpleNamespace()), timeout)
    assert error.value.hint == hint


@pytest.mark.parametrize("call", [lambda s: s.compare("c"), lambda s: s.query("r", SQL), lambda s: s.dataframe("q")])
def test_a_session_whose_spark_has_been_stopped(session: dt.Session, call: Callable[[Any], object]) -> None:
    session._spark = cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
    with pytest.raises(ConfigError, match="the Spark session has been stopped") as error:
        call(session)
    assert "dt.spark.session()" in str(error.value.hint)


def test_a_frame_of_a_stopped_spark_session(
    session: dt.Session, frame: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
    monkeypatch.setattr(type(frame), "sparkSession", stopped)
    with pytest.raises(
        ConfigError, match="stream 'c': its DataFrame was read with a SparkSession that has been stopped"
    ) as error:
        session.stream("c", frame, "timestamp")
    assert error.value.hint == "make the frame again with the session that runs: frame = spark.readStream..."


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("a.valu = b.value", "stream 'a' has no column 'valu'; columns: 'timestamp', 'value'"),
        ("x.valu = y.value", "no stream has a column 'valu'; columns: 'timestamp', 'value'"),
    ],
)
def test_a_selectivity_of_an_unknown_column(session: dt.Session, condition: str, message: str) -> None:
    with pytest.raises(QueryError, match=re.escape(message)) as error:
        session.selectivity(condition, 0.1)
    assert error.value.hint == "did you mean 'value'?"


SINK: Any = dt.sinks
WRONG: list[tuple[Callable[[], object], type[Exception], str, str]] = [
    (lambda: SINK.parquet(), ConfigError, "dt.sinks.parquet() needs the argument 'path'", 'path="out/results"'),  # noqa: PLW0108
    (lambda: SINK.parquet(""), ConfigError, "dt.sinks.parquet got ''", 'dt.sinks.parquet("out/funnel")'),
    (lambda: SINK.parquet("out", mode="append"), ConfigError, "dt.sinks.parquet(mode=...): there is no", "help()"),
    (lambda: SINK.memory("x"), ConfigError, "dt.sinks.memory() takes no arguments; got 1", "leave out"),
    (lambda: SINK.call(lambda rows: rows), ConfigError, "cannot be called with a DataFrame and", "def write("),
    (lambda: SINK.csv, AttributeError, "dt.sinks has no attribute 'csv'", "write dt.sinks.format('csv', ...)"),
    (lambda: dt.reshard(cast("Any", None), "a", "b", 2), ConfigError, "reshard(spark=...) is None", "dt.reshard("),
    (lambda: dt.spark.session(memory=cast("Any", 2)), ConfigError, "memory is 2; allowed: a number", "memory='2g'"),
]


@pytest.mark.parametrize(("call", "kind", "message", "hint"), WRONG)
def test_wrong_arguments(call: Callable[[], object], kind: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert hint in str(error.value).partition("\nHint: ")[2]


def test_the_delay_of_a_watermark_is_the_lateness(session: dt.Session, frame: DataFrame) -> None:
    late = frame.withWatermark("timestamp", "90 seconds")
    session.stream("c", late, "timestamp")
    session.stream("d", late, "timestamp", "5 seconds")
    streams = session._job.streams
    assert [streams[name].lateness for name in "acd"] == [0, 90_000_000, 5_000_000]


def test_a_watermark_on_another_column(session: dt.Session, frame: DataFrame) -> None:
    other = frame.selectExpr("timestamp AS ts", "timestamp AS seen", "value").withWatermark("seen", "1 minute")
    with pytest.warns(DovetailWarning, match="has a watermark on 'seen', which is not its event time 'ts'") as caught:
        session.stream("c", other, "ts")
    assert "Hint: write stream(..., lateness='60 seconds')" in str(caught[0].message)


def test_a_selectivity_that_no_query_uses(session: dt.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.selectivity("u.value = v.value", 0.1)
    monkeypatch.setattr(session, "_start", lambda *_: None)
    with pytest.warns(
        DovetailWarning, match="the selectivity 0.1 between 'u' and 'v' has no effect: no query joins them"
    ):
        session.start({"q": dt.sinks.memory()}, tmp_path / "c")


@pytest.mark.parametrize("content", [None, "empty", "other files"])
def test_compare_takes_a_checkpoint(session: dt.Session, tmp_path: Path, content: str | None) -> None:
    place = tmp_path / "c"
    if content is not None:
        place.mkdir()
    if content == "other files":
        (place / "clicks.csv").touch()
    said = "has other files" if content == "other files" else "is empty or does not exist"
    with pytest.raises(StateError, match=f"holds no checkpoint: it {said}") as error:
        session.compare(place)
    assert "the directory that start(checkpoint=...) was given" in str(error.value.hint)
    assert place.exists() == (content is not None)


def test_a_new_checkpoint_among_other_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").touch()
    with pytest.warns(
        DovetailWarning, match=r"holds other files: 'clicks.csv'\nHint: give the checkpoint a directory of its own"
    ):
        Checkpoint.open(Directory.of(spark, str(tmp_path))).release()
    Checkpoint.open(Directory.of(spark, str(tmp_path / "checkpoint"))).release()


def test_a_session_without_our_settings(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    own = spark.newSession()
    own.conf.set(PROVIDER, HDFS)
    with pytest.raises(ConfigError, match="HDFSBackedStateStoreProvider"):
        dt.Session(own)
    monkeypatch.setattr(builder, "_active_session", lambda: own)
    ready = dt.spark.session(cores=2)
    assert (ready.conf.get(PROVIDER), own.conf.get(PROVIDER)) == (ROCKSDB, HDFS)
    assert ready.sparkContext is own.sparkContext
    assert ready.conf.get("spark.sql.shuffle.partitions") == "2"
    dt.Session(ready)


def traced(path: str) -> str:
    """Return Spark's text for an error in a Python worker; its last frame is in a file."""
    return (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure\n"
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
        "Traceback (most recent call last):\n"
        '  File "/lib/pyspark/worker.py", line 20, in main\n    process()\n'
        f'  File "{path}", line 3, in price_of\n    raise ValueError(k)\nValueError: no such product: 7\n SQLSTATE: 38000\n'
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n"
    )


def test_the_message_of_the_users_own_error_comes_first() -> None:
    error = RuntimeError(traced("/home/me/prices.py"))
    failure = worker_error(error)
    assert failure is not None
    assert failure.message.splitlines() == [
        "ValueError: no such product: 7",
        "raised by price_of() in /home/me/prices.py, line 3, which a source or a frame of a stream calls",
    ]
    assert failure.hint == "correct it and start again with the same checkpoint: the batch is replayed"
    assert failure.__cause__ is error


@pytest.mark.parametrize("path", ["/lib/dovetail/spark/worker/router.py", "/lib/pyspark/sql/worker.py"])
def test_an_error_that_is_not_the_users_is_not_taken_for_theirs(path: str) -> None:
    assert worker_error(RuntimeError(traced(path))) is None
