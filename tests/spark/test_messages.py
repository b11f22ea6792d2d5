"""What users are told when they hand over the wrong thing: the message names it, and the hint works when followed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pipeline import layout_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, SchemaError, StateError
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.checkpoint.compatibility import digest, pinned_json
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.driver.arguments import check_trigger
from dovetail.spark.driver.builder import PROVIDER, STATE_FORMAT, check_session
from dovetail.spark.driver.job_diff import reconcile_layouts
from dovetail.spark.driver.layout import Layout, read_worker_plan

SQL = "SELECT a.value, b.value AS w FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.value = b.value"


@pytest.fixture
def session(session: dt.Session) -> dt.Session:
    session.query("pairs", SQL)
    return session


def refused(error: pytest.ExceptionInfo[DovetailError]) -> str:
    assert error.value.hint, "every refusal says what to do"
    return str(error.value)


# -- start ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sinks", "message", "hint"),
    [
        ("out", "start(sinks=...) is 'out' (str); expected a dict", "{'pairs': dt.sinks.parquet('out')}"),
        (None, "start(sinks=...) is NoneType; expected a dict", "{'pairs': dt.sinks.parquet('out')}"),
        (dt.sinks.memory(), "start(sinks=...) is memory(): 0 rows (MemorySink)", "{'pairs': dt.sinks.parquet('out')}"),
        ({"pairs": "out"}, "sinks['pairs'] is 'out' (str); expected a sink", "dt.sinks.parquet('out')"),
        ({"pairs": None}, "sinks['pairs'] is NoneType; expected a sink", "dt.sinks.parquet(path)"),
        ({"pairs": print}, "expected a sink", "dt.sinks.call(function)"),
        (
            {"pair": dt.sinks.memory()},
            "start got sinks for 'pair'; registered queries: 'pairs'",
            "did you mean 'pairs'?",
        ),
        ({}, "start got sinks for none", "give each query one sink"),
    ],
)
def test_sinks_that_are_none(session: dt.Session, tmp_path: Path, sinks: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        session.start(sinks, str(tmp_path / "c"))
    assert hint in refused(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("checkpoint", [None, 3, "", {"availableNow": True}, dt.sinks.memory()])
def test_a_checkpoint_is_a_path(session: dt.Session, checkpoint: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"start\(checkpoint=...\) is .*; expected the path of a checkpoint directory"
    ) as error:
        session.start({"pairs": dt.sinks.memory()}, checkpoint)
    refused(error)


@pytest.mark.parametrize(
    ("trigger", "message", "hint"),
    [
        ("10 seconds", "start(trigger=...) is '10 seconds' (str); expected a dict", '{"processingTime": "10 seconds"}'),
        (["availableNow"], "expected a dict", '{"availableNow": True}'),
        ({"availablenow": True}, "has the entry 'availablenow'", "did you mean 'availableNow'?"),
        ({"continuous": "1 second"}, "has the entry 'continuous'; allowed: 'processingTime'", "write"),
        ({"availableNow": "yes"}, "start(trigger={'availableNow': ...}) is 'yes' (str); expected True", "write"),
        ({"processingTime": 10}, "is 10 (int); expected text such as '10 seconds'", "write"),
        ({"availableNow": True, "once": True}, "has the entries 'availableNow', 'once'; give exactly one", "write"),
    ],
)
def test_triggers_that_are_none(trigger: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        check_trigger(trigger)
    assert hint in refused(error)


def test_triggers() -> None:
    assert check_trigger(None) == check_trigger({}) == {}
    assert check_trigger({"availableNow": True}) == {"availableNow": True}


def test_only_spark_knows_which_texts_are_intervals(session: dt.Session, tmp_path: Path) -> None:
    place = str(tmp_path / "c")
    sink = dt.sinks.memory()
    for _ in range(2):  # the first try holds nothing back
        with pytest.raises(ConfigError, match="sometimes") as error:
            session.start({"pairs": sink}, place, {"processingTime": "sometimes"})
        refused(error)


def test_one_memory_sink_is_for_one_query(session: dt.Session, tmp_path: Path) -> None:
    session.query("again", SQL)
    sink = dt.sinks.memory()
    with pytest.raises(ConfigError, match=r"one dt\.sinks\.memory\(\) for several queries"):
        session.start({"pairs": sink, "again": sink}, str(tmp_path / "c"))


@pytest.mark.parametrize("make", [dt.sinks.parquet, dt.sinks.table, dt.sinks.call])
def test_sinks_of_nothing(make: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make(None)


def test_modes_that_would_leave_out_batches() -> None:
    make: Any = dt.sinks.format
    for mode in ("ignore", "error", "often"):
        with pytest.raises(ConfigError, match=f"mode=.* is '{mode}'; allowed: 'append', 'overwrite'"):
            make("parquet", mode)
    with pytest.warns(DovetailWarning, match="each batch replaces all that were written before"):
        dt.sinks.format("parquet", "overwrite", path="out")
    dt.sinks.format("noop", "overwrite")


# -- streams and queries ----------------------------------------------------------------------------------------------------------


def test_a_static_frame_is_joined_to_a_streams_frame(
    spark: SparkSession, session: dt.Session, frame: DataFrame
) -> None:
    static = spark.createDataFrame([(1, "one")], "value bigint, name string")
    with pytest.raises(ConfigError, match="stream 'names': the DataFrame is not streaming") as error:
        session.stream("names", static, "name")
    assert "join it to a stream's frame first" in refused(error)
    session.stream("named", frame.join(static, "value"), "timestamp")
    with pytest.raises(ConfigError, match="stream 'x': got 'data' \\(str\\)"):
        session.stream("x", "data", "ts")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "made", "mended"),
    [
        ("string", "F.to_timestamp('ts')", lambda: F.to_timestamp("ts")),
        (
            "bigint",
            "F.timestamp_millis('ts')) for milliseconds since 1970; F.timestamp_seconds for seconds, F.timestamp_micros for",
            lambda: F.timestamp_millis("ts"),
        ),
        ("int", "F.timestamp_seconds", lambda: F.timestamp_seconds("ts")),
        ("date", "F.col('ts').cast('timestamp')", lambda: F.col("ts").cast("timestamp")),
    ],
)
def test_event_times_of_other_types(spark: SparkSession, frame: DataFrame, kind: str, made: str, mended: Any) -> None:
    session = dt.Session(spark)
    other = frame.selectExpr(f"cast(null AS {kind}) AS ts", "value")
    with pytest.raises(SchemaError, match=f"stream 's': event time 'ts' is {kind}; it must be a timestamp") as error:
        session.stream("s", other, "ts")
    assert made in refused(error)
    session.stream("s", other.withColumn("ts", mended()), "ts")


def test_a_name_that_is_taken(session: dt.Session) -> None:
    with pytest.raises(ConfigError, match="query 'pairs' is already registered") as error:
        session.query("pairs", SQL)
    assert "choose another name, or in a notebook make the session anew in this cell; drop_query() removes" in refused(
        error
    )
    assert not hasattr(session, "drop_query")
    assert hasattr(dt.LocalSession, "drop_query")


def test_two_settings_are_reported_at_once() -> None:
    context = SimpleNamespace(master="local[2]", pythonExec="/no/such/python")
    conf = {PROVIDER: "Hdfs", STATE_FORMAT: "1"}
    with pytest.raises(ConfigError) as error:
        check_session(SimpleNamespace(version="3.5.1", conf=conf, sparkContext=context))  # type: ignore[arg-type]
    for part in ("Spark is version 3.5.1", "is 'Hdfs'", "PYSPARK_PYTHON is '/no/such/python'"):
        assert part in error.value.message
    for part in ("pip install 'pyspark>=4.0'", ".config(", 'os.environ["PYSPARK_PYTHON"]'):
        assert part in refused(error)


# -- the frozen layout ------------------------------------------------------------------------------------------------------------

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("v", pa.float64())])
STREAMS = tuple(StreamSchema(name, COLUMNS, "ts") for name in "abc")
TEXT = "SELECT p.v, q.v AS w FROM a p [RANGE 5 s], b q [RANGE 4 s] WHERE p.x = q.x AND p.v > 1"
OTHER = "SELECT b.v FROM b [RANGE 5 s], c [RANGE 4 s] WHERE b.x = c.x"


def layout(sql: str, **others: str) -> Layout:
    return layout_of(STREAMS, {"q": sql, **others}, 4)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "select p.v, q.v AS w\nfrom a p [RANGE 5 s], b q [RANGE 4000 ms] -- as before\nwhere p.x = q.x and p.v > 1",
        "SELECT P.v, Q.v AS w FROM a AS P [RANGE 5 SECONDS], b Q [RANGE 4 s] WHERE P.x = Q.x AND (P.v > 1.0)",
    ],
)
def test_a_query_may_be_written_otherwise(text: str) -> None:
    old = layout(TEXT)
    new, changes = reconcile_layouts(layout(text), pinned_json(old), pinned_json(old))
    assert changes is None
    assert digest(new) == digest(old)  # which every shard has stored
    assert read_worker_plan(new.for_workers(digest(new)).to_json()).digest == digest(old)
    assert dict(new.queries)["q"] == text
    assert digest(reconcile_layouts(layout(TEXT), pinned_json(new), pinned_json(new))[0]) == digest(old)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("5 s", "6 s"),
        TEXT.replace("> 1", ">= 1"),
        TEXT.replace("AS w", "AS W"),
        TEXT.replace("p.v, q.v AS w", "q.v AS w, p.v"),
        TEXT.replace("FROM a p [RANGE 5 s], b q [RANGE 4 s]", "FROM b q [RANGE 4 s], a p [RANGE 5 s]"),
        TEXT.replace("a p", "c p"),
    ],
)
def test_another_query_is_one_that_has_changed(text: str) -> None:
    _, changes = reconcile_layouts(layout(text), pinned_json(layout(TEXT)), "")
    assert changes is not None
    assert (list(changes.changed), changes.kept) == (["q"], ())


def test_the_order_of_declarations_is_the_checkpoints(tmp_path: Path) -> None:
    """Spark finds its offsets by the order of sources, and shards are numbered by the order of queries."""
    old = layout(TEXT, r=OTHER)
    new = layout_of(STREAMS[::-1], {"r": OTHER, "q": TEXT}, 4)
    assert digest(new) != digest(old)
    again, _ = reconcile_layouts(new, pinned_json(old), pinned_json(old))
    assert [stream.name for stream in again.streams] == [stream.name for stream in old.streams]
    assert [name for name, _ in again.queries] == ["q", "r"]
    assert [group.first_shard for group in again.placement.groups] == [
        group.first_shard for group in old.placement.groups
    ]
    assert digest(again) == digest(old)
    assert not list(tmp_path.iterdir())


# -- paths and locks --------------------------------------------------------------------------------------------------------------


def test_a_path_means_what_it_means_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    for path in (f"{tmp_path}/a b%20c", f"file:{tmp_path}/x%20y", f"file://{tmp_path}/ü+"):
        spark.range(3).write.parquet(f"{path}/data")
        place = Directory.of(spark, path)
        assert place.local is not None
        assert place.names() == ["data"], path
        assert (place.local / "data").exists()
    with pytest.raises(ConfigError, match=r"Spark cannot use the path 'nosuch://x/y'.*nosuch") as error:
        Directory.of(spark, "nosuch://x/y")
    refused(error)


def test_spellings_of_one_directory(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    real = Directory.of(spark, f"{tmp_path}/real")
    for path in (
        f"{tmp_path}/real/",
        f"{tmp_path}//real",
        f"file://{tmp_path}/real",
        f"{tmp_path}/link",
        f"{tmp_path}/x/../real",
    ):
        other = Directory.of(spark, path)
        assert real.contains(other), path
        assert other.contains(real), path
    assert real.contains(Directory.of(spark, f"{tmp_path}/real/inside"))
    assert not real.contains(Directory.of(spark, f"{tmp_path}/real-not"))
    relative = Directory.of(spark, "out")
    monkeypatch.chdir(tmp_path)  # the JVM stays where it was
    assert Directory.of(spark, "out").local == relative.local


def elsewhere(spark: SparkSession, path: Path) -> Directory:
    """A directory reached through Hadoop only, as one on another file system is."""
    place = Directory.of(spark, str(path))
    return Directory(place.uri, None, place.files)


def test_small_files_on_any_file_system(spark: SparkSession, tmp_path: Path) -> None:
    for place in (Directory.of(spark, f"{tmp_path}/here"), elsewhere(spark, tmp_path / "there")):
        assert place.names() == []
        assert place.read("owner") is None
        assert place.create("owner", "süß\n")
        assert not place.create("owner", "another")
        assert place.read("owner") == "süß\n"
        assert [name for name in place.names() if not name.startswith(".")] == ["owner"]
        (tmp_path / "file").write_text("x", encoding="utf-8")
        blocked = place.within("..", "file", "below")
        with pytest.raises(ConfigError, match="cannot be"):
            blocked.create("owner", "x")


def test_a_copy_starts_over_if_a_file_vanishes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old/state").mkdir(parents=True)
    (tmp_path / "old/state/1.zip").write_text("x", encoding="utf-8")
    old, new = (Directory.of(spark, f"{tmp_path}/{name}") for name in ("old", "new"))
    copy, copies = Directory._copy, 0

    def copy_while_spark_renames(self: Directory, name: str, to: Directory) -> None:
        nonlocal copies
        copies += 1
        copy(self, name, to)
        if copies < 3:
            copy(self, "state/1.zip.tmp", to)

    monkeypatch.setattr(Directory, "_copy", copy_while_spark_renames)
    old.copy("state", new)
    assert (tmp_path / "new/state/1.zip").read_text(encoding="utf-8") == "x"
    assert copies == 3
    with pytest.raises(ConfigError, match=r"old/nothing cannot be copied to .*new: .*FileNotFoundException"):
        old.copy("nothing", new)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path)
    with pytest.raises(BlockingIOError):
        Lock(path)
    lock.release()
    lock.release()
    hold = f"from pathlib import Path\nfrom dovetail.spark.checkpoint.directories import Lock\nlock = Lock(Path({str(path)!r}))\n"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{hold}print('held', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError):
        Lock(path)
    child.kill()
    child.communicate()
    Lock(path).release()


def test_owner_files_that_cannot_be_read_are_not_taken_for_nobodys(tmp_path: Path) -> None:
    from dovetail.spark.sinks.owners import Owner  # noqa: PLC0415

    for text in ("", "{", json.dumps({"version": 9, "checkpoint": "x", "other": 1})):
        with pytest.raises(StateError, match="an owner that this release cannot read") as error:
            Owner.from_json(text, str(tmp_path))
        refused(error)
