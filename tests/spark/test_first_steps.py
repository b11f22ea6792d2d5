"""First steps that go wrong: the session, its checkpoint and its sinks. No streaming query is started."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, DovetailWarning
from dovetail.spark.compat import hide_pandas_warning
from dovetail.spark.driver import builder
from dovetail.spark.driver.arguments import warn_of_many_shards
from dovetail.spark.driver.builder import PROVIDER, ROCKSDB, check_session
from dovetail.spark.driver.failures import warn_or_log, worker_error
from dovetail.spark.running import RunningSession

SQL = "SELECT a.value FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.value = b.value"


@pytest.fixture
def session(session: dt.Session) -> dt.Session:
    session.query("q", SQL)
    return session


def test_a_stopped_spark_session(
    spark: SparkSession, session: dt.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(spark.sparkContext, "_jsc", None)  # as `spark.stop()` leaves it
        calls: list[Any] = [
            lambda: dt.Session(spark),
            lambda: session.start({"q": dt.sinks.memory()}, tmp_path / "c"),
            lambda: session.dataframe("q"),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="the Spark session has been stopped") as error:
                call()
            assert "spark = dt.spark.session()" in str(error.value.hint)
    assert not (tmp_path / "c").exists()


def test_explain_before_any_query(spark: SparkSession, frame: DataFrame) -> None:
    session = dt.Session(spark)
    assert str(session.explain()) == "no streams"  # as a LocalSession's
    session.stream("a", frame, "timestamp")
    assert "stream a: event time timestamp" in str(session.explain())
    with pytest.raises(ConfigError, match="there is no query 'q'; registered: none"):
        session.dataframe("q")
    with pytest.raises(ConfigError, match="the session has no query\nHint: add one with query"):
        session.compare("c")


def test_a_new_memory_sink_for_an_old_checkpoint(spark: SparkSession) -> None:
    def use(next_batch: int, *, is_added_later: bool = False) -> Any:
        checkpoint = SimpleNamespace(next_batch=next_batch, directory=SimpleNamespace(uri="file:/c"))
        owner = SimpleNamespace(checkpoint="c", query="q")
        return SimpleNamespace(
            query="q", checkpoint=checkpoint, owner=owner, is_added_later=is_added_later, spark=spark
        )

    with pytest.warns(DovetailWarning) as caught:
        dt.sinks.memory().claim(use(3))
    assert str(caught[0].message) == (
        "query 'q': the checkpoint file:/c has completed the batches up to 2, whose results this dt.sinks.memory() does not have\n"
        "Hint: start with a new checkpoint to read all input again, or use dt.sinks.parquet(path), which keeps results"
    )
    sink = dt.sinks.memory()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.claim(use(0))
        sink.claim(use(3))  # it has the results
        dt.sinks.memory().claim(use(3, is_added_later=True))


def test_a_misspelt_sink() -> None:
    with pytest.raises(
        AttributeError, match=re.escape("dt.sinks has no attribute 'parqet'\nHint: did you mean 'parquet'?")
    ):
        dt.sinks.parqet  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match="Hint: the sinks are call, delta, format, iceberg, memory, parquet, table"
    ):
        dt.sinks.xyz  # type: ignore[attr-defined]  # noqa: B018


def test_a_default_of_many_shards() -> None:
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    with pytest.warns(DovetailWarning, match="the session has 400 shards, .* for 2 cores") as caught:
        warn_of_many_shards(spark, 400)
    assert "Hint: spark.conf.set('spark.sql.shuffle.partitions', 2), then dt.Session(spark, shards=4)" in str(
        caught[0].message
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_many_shards(spark, 64)
        spark.sparkContext.defaultParallelism = 50
        warn_of_many_shards(spark, 400)
        warn_of_many_shards(SimpleNamespace(), 400)  # Spark Connect


def test_a_start_with_the_default_of_many_shards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningSession, "_begin", lambda _: None)
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "33")
    frame = own.readStream.format("rate").load()
    for shards, count in ((None, 1), (66, 0)):
        session = dt.Session(own, shards=shards)
        session.stream("a", frame, "timestamp")
        session.stream("b", frame, "timestamp")
        session.query("q", SQL)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DovetailWarning)
            session.start({"q": dt.sinks.memory()}, tmp_path / str(shards))._clear()
        assert [str(each.message).partition(",")[0] for each in caught] == ["the session has 66 shards"] * count


def test_several_faults_of_a_session_have_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        builder, "worker_faults", lambda _: [("PYSPARK_PYTHON is 'x'", 'os.environ["X"] = y before it')]
    )
    spark: Any = SimpleNamespace(
        version="4.0.0",
        conf={PROVIDER: "HDFSBacked", builder.STATE_FORMAT: "1"},
        sparkContext=SimpleNamespace(master="local[2]", pythonExec="x", _jsc=object()),
    )
    with pytest.raises(ConfigError) as error:
        check_session(spark)
    assert str(error.value).splitlines() == [
        "the Spark session lacks 2 things that Dovetail needs:",
        f"  {PROVIDER} is 'HDFSBacked'; needed: '{ROCKSDB}', the only one that holds several states per shard",
        "  PYSPARK_PYTHON is 'x'",
        "Hint: call spark.stop() and build the session again, with",
        f'  .config("{PROVIDER}", "{ROCKSDB}") on the builder, or use dt.spark.session(), which has it',
        '  os.environ["X"] = y before it',
    ]


def test_a_warning_of_a_batch_shows_no_line_of_ours() -> None:
    with pytest.warns(DovetailWarning) as caught:
        warn_or_log("stream 'a': 1 tuple was dropped")
    assert (caught[0].filename, caught[0].lineno) == ("dovetail", 0)
    assert warnings.formatwarning("x", DovetailWarning, "dovetail", 0) == "dovetail:0: DovetailWarning: x\n"


def test_only_pyspark_s_warning_of_pandas_3_is_hidden() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        hide_pandas_warning()
        warnings.warn("PySpark does not yet fully support pandas >= 3.0.0. Some features", FutureWarning, stacklevel=1)
        assert not caught
        warnings.warn("PySpark does not yet fully support something else", FutureWarning, stacklevel=1)
        warnings.warn("PySpark does not yet fully support pandas >= 3.0.0.", UserWarning, stacklevel=1)
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            lambda s: s.start(),
            "Session.start() needs the arguments 'sinks', 'checkpoint'",
            'write sinks={"q": dt.sinks.parquet("out/q")}, checkpoint="out/checkpoint"',
        ),
        (
            lambda s: s.start({}),
            "Session.start() needs the argument 'checkpoint'",
            'write checkpoint="out/checkpoint"',
        ),
        (
            lambda s: s.start(checkpoint="c"),
            "Session.start() needs the argument 'sinks'",
            'write sinks={"q": dt.sinks.parquet("out/q")}',
        ),
        (lambda _: dt.Session(), "Session() needs the argument 'spark'", "write spark=dt.spark.session()"),  # type: ignore[call-arg]
        (lambda s: s.stream("c", None), "Session.stream() needs the argument 'event_time'", 'write event_time="ts"'),
        (lambda s: s.dataframe(), "Session.dataframe() needs the argument 'name'", "write name=..."),
    ],
)
def test_missing_arguments(session: dt.Session, call: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        call(session)
    assert (error.value.message, error.value.hint) == (message, hint)


NOT_CONNECTED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker failed to connect back.\n"
    "JVM stacktrace:\norg.apache.spark.SparkException: Python worker failed to connect back.\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:1)\n"
    "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back\n"
)
BUSY = (
    "Spark started a Python process for the job, and it did not connect to Spark in time\n"
    "Hint: the machine is busy; start again with the same checkpoint"
)


class QueryWithoutWorker:
    """A streaming query that ends before its first batch, or without an error."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: ARG002, N802
        if self._fails:
            raise StreamingQueryException(NOT_CONNECTED)
        return True

    def exception(self) -> None:
        return None


def waiting_for(monkeypatch: pytest.MonkeyPatch, *fails: bool) -> tuple[RunningSession, list[bool]]:
    """A session whose streaming queries fail, or end, one after the other, and those not yet started."""
    job: Any = SimpleNamespace(
        layout=SimpleNamespace(job=SimpleNamespace(budget=None, queries={}, streams={})), committers={}, locks={}
    )
    left = list(fails)
    pipeline: Any = SimpleNamespace(
        writer=lambda *_: SimpleNamespace(start=lambda: QueryWithoutWorker(fails=left.pop(0)))
    )
    monkeypatch.setattr("dovetail.spark.running.ShardReports", lambda _: None)
    running = RunningSession(pipeline, job, "run")
    running._begin()
    return running, left


def test_a_python_process_that_does_not_connect() -> None:
    error = worker_error(RuntimeError(NOT_CONNECTED))
    assert str(error) == BUSY


def test_a_query_without_its_python_process_is_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    running, left = waiting_for(monkeypatch, True, False)
    assert running.await_termination()
    assert not left
    running, left = waiting_for(monkeypatch, True, True, False)
    with pytest.raises(DovetailError, match=re.escape(BUSY)):
        running.await_termination()
    assert left == [False]


def test_a_query_that_has_written_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running, left = waiting_for(monkeypatch, True, False)
    running._writer.last_batch = 0
    with pytest.raises(DovetailError, match=re.escape(BUSY)):
        running.await_termination()
    assert left == [False]
