"""Sinks belong to one query of one checkpoint: nobody else can write there, and no batch is shown unless all of it is there."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from test_session import QUERIES, Source, batches, expected, session

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, StateError
from dovetail.schema import TIMESTAMP
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.driver.reports import ResultCounts, ShardReports
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sink import Sink
from dovetail.spark.sinks.staging import OWNER_FILE, RECORD
from dovetail.testing import assert_same_rows

SCHEMA = pa.schema([("ts", TIMESTAMP), ("v", pa.int64())])
HISTORIES = Path(__file__).with_name("sink_histories.py")
FAULTS = int(os.environ.get("DOVETAIL_FAULTS", "2"))
NOW = {"availableNow": True}


@pytest.fixture
def table_name(spark: SparkSession) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:8]}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


class Claims:
    """Checkpoints that claim sinks, without a query that runs."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def use(self, checkpoint: str, query: str = "q", schema: pa.Schema = SCHEMA, begun: int = -1) -> SinkUse:
        """A query of a checkpoint that has begun so many batches."""
        place = Directory.of(self._spark, str(self._folder / checkpoint))
        for batch in range(begun + 1):
            place.within("offsets").create(str(batch), "")
        if begun >= 0:
            place.within("dovetail").create("layout.json", "{}")
            place.within("dovetail").create("_identity.json", json.dumps({"identity": checkpoint}))
        opened = Checkpoint.open(place)
        opened.release()
        if begun < 0:
            opened._write_identity()
        return SinkUse(self._spark, query, schema, opened)

    def claim(self, sink: Sink, use: SinkUse) -> None:
        sink.check(use)
        lock = sink.claim(use)
        if lock is not None:
            lock.release()

    def refusal(self, sink: Sink, use: SinkUse) -> str:
        with pytest.raises((StateError, ConfigError)) as error:
            self.claim(sink, use)
        assert error.value.hint
        return str(error.value)


@pytest.fixture
def claims(spark: SparkSession, tmp_path: Path) -> Claims:
    return Claims(spark, tmp_path)


# -- directories ------------------------------------------------------------------------------------------------------------------


def test_a_memory_sink_shows_its_number_of_rows() -> None:
    sink = dt.sinks.memory()
    assert repr(sink) == "memory(): 0 rows"
    sink.batches = {0: pa.table({"k": range(1000)}), 3: pa.table({"k": range(500)})}
    assert repr(sink) == "memory(): 1,500 rows"


def test_a_directory_is_one_querys_of_one_checkpoint(claims: Claims, tmp_path: Path) -> None:
    for spelling in (f"{tmp_path}/out", f"{tmp_path}/out/", f"file:{tmp_path}/out"):
        claims.claim(dt.sinks.parquet(spelling), claims.use("first"))
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for spelling in ("out", "out/", "link"):
        sink = dt.sinks.parquet(f"{tmp_path}/{spelling}")
        message = claims.refusal(sink, claims.use("second"))
        assert "belongs to query 'q' of another checkpoint" in message
        assert f"{tmp_path}/first" in message
        assert "a new checkpoint needs new sinks" in message
        assert "belongs to query 'q' of this checkpoint" in claims.refusal(sink, claims.use("first", "r"))
    assert "is inside" in claims.refusal(dt.sinks.parquet(f"{tmp_path}/out/more"), claims.use("second"))
    claims.claim(dt.sinks.parquet(tmp_path / "new"), claims.use("second"))  # what the hint says


def test_a_directory_with_anything_else_is_refused(claims: Claims, tmp_path: Path) -> None:
    for name in ("part-0.parquet", "_spark_metadata", "sub/x", "batch_id=old/x"):
        path = tmp_path / f"out-{name.partition('/')[0]}" / name
        path.parent.mkdir(parents=True)
        path.touch()
        sink = dt.sinks.parquet(tmp_path / f"out-{name.partition('/')[0]}")
        assert "which no query of Dovetail wrote" in claims.refusal(sink, claims.use("c"))
    (tmp_path / "file").touch()
    assert "cannot be read as a directory" in claims.refusal(dt.sinks.parquet(tmp_path / "file"), claims.use("c"))
    assert "cannot be written" in claims.refusal(dt.sinks.parquet("/proc/out"), claims.use("c"))
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".DS_Store").touch()
    claims.claim(dt.sinks.parquet(tmp_path / "hidden"), claims.use("c"))


def test_results_without_an_owner_are_another_checkpoints(claims: Claims, tmp_path: Path) -> None:
    (tmp_path / "out" / "batch_id=0").mkdir(parents=True)
    sink = dt.sinks.parquet(tmp_path / "out")
    for use in (claims.use("new"), claims.use("used", begun=3)):
        assert "does not say of which checkpoint" in claims.refusal(sink, use)


def test_a_checkpoint_of_an_earlier_release_goes_on_with_its_sinks(
    claims: Claims, spark: SparkSession, tmp_path: Path
) -> None:
    place = Directory.of(spark, str(tmp_path / "c"))
    place.within("offsets").create("4", "")
    place.within("dovetail").create("part-00000.txt", "{}")
    place.create("metadata", '{"id":"of-spark"}')
    (tmp_path / "out" / "batch_id=4").mkdir(parents=True)
    for killed in (True, False):  # before its identity is written, and not
        opened = Checkpoint.open(place)
        assert (opened.lacks_identity, opened.identity, opened.last_batch) == (True, "of-spark", 4)
        claims.claim(dt.sinks.parquet(tmp_path / "out"), SinkUse(spark, "q", SCHEMA, opened))
        if not killed:
            opened.save_identity()
        opened.release()
    opened = Checkpoint.open(place)
    assert (opened.lacks_identity, opened.identity) == (False, "of-spark")
    claims.claim(dt.sinks.parquet(tmp_path / "out"), SinkUse(spark, "q", SCHEMA, opened))
    opened.release()


def test_a_sink_is_never_ahead_of_its_checkpoint(claims: Claims, tmp_path: Path) -> None:
    """Somebody emptied the checkpoint, or put an old copy back: its batches would overwrite others of the same number."""
    sink = dt.sinks.parquet(tmp_path / "out")
    with pytest.warns(DovetailWarning, match="is new, but the checkpoint is at batch 3\\. Earlier results stay"):
        claims.claim(sink, claims.use("c", begun=3))
    for batch in range(5):
        (tmp_path / "out" / f"batch_id={batch}").mkdir()
    message = claims.refusal(sink, claims.use("c", begun=3))
    assert "holds batch 4, but the checkpoint" in message
    (tmp_path / "out" / "batch_id=4").rmdir()  # what the hint says
    claims.claim(sink, claims.use("c", begun=3))


def test_a_checkpoint_of_somebody_else(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "offsets" / "0").touch()
    with pytest.raises(StateError, match="the checkpoint of another streaming query, or lost its layout"):
        Checkpoint.open(Directory.of(spark, str(tmp_path / "c")))
    with pytest.raises(ConfigError, match="cannot be written"):
        Checkpoint.open(Directory.of(spark, "/proc/c"))


def test_one_session_at_a_time_has_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    place = Directory.of(spark, str(tmp_path / "c"))
    first = Checkpoint.open(place)
    with pytest.raises(StateError, match="is in use: this session, or another one, has been started with it"):
        Checkpoint.open(place)
    first.release()
    Checkpoint.open(place).release()


def test_a_directory_on_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop's ViewFs, which is no `file:` to us: Spark writes there, and we reach it through Hadoop only."""
    mount = f"m{uuid.uuid4().hex[:8]}"
    (tmp_path / "disk").mkdir()
    spark.conf.set(f"fs.viewfs.mounttable.{mount}.link./disk", f"file://{tmp_path}/disk")
    try:
        root = f"viewfs://{mount}/disk"
        assert Directory.of(spark, root).local is None
        claims = Claims(spark, tmp_path)
        sink = dt.sinks.parquet(f"{root}/out")
        use = claims.use("first")
        claims.claim(sink, use)
        assert sink.committer(use, "run") is None
        sink.write(spark.range(3).toDF("v"), 0)
        assert spark.read.parquet(f"{root}/out").count() == 3
        assert "of another checkpoint" in claims.refusal(dt.sinks.parquet(f"{root}/out/"), claims.use("second"))
        spark.range(3).write.parquet(f"{root}/foreign")
        assert "which no query of Dovetail wrote" in claims.refusal(
            dt.sinks.parquet(f"{root}/foreign"), claims.use("second")
        )
        checkpoint = Checkpoint.open(Directory.of(spark, f"{root}/c"))
        assert checkpoint._write_identity()
        assert not checkpoint._write_identity()
        assert Checkpoint.open(Directory.of(spark, f"{root}/c")).identity == checkpoint.identity
    finally:
        spark.conf.unset(f"fs.viewfs.mounttable.{mount}.link./disk")


def test_a_batch_that_spark_wrote_elsewhere_is_noticed(spark: SparkSession, claims: Claims, tmp_path: Path) -> None:
    sink = dt.sinks.parquet(tmp_path / "out")
    claims.claim(sink, claims.use("c"))
    sink.write(spark.range(5).toDF("v"), 0)
    sink.verify(0, 5)
    next((tmp_path / "out" / "batch_id=0").glob("*.parquet")).unlink()
    with pytest.raises(StateError, match=r"Spark has written \d of 5 results"):
        sink.verify(0, 5)


# -- tables and others --------------------------------------------------------------------------------------------------------------


def test_a_table_is_one_querys_of_one_checkpoint(spark: SparkSession, claims: Claims, table_name: str) -> None:
    sink = dt.sinks.table(table_name)
    claims.claim(sink, claims.use("first"))
    assert [field.name for field in spark.table(table_name).schema] == ["ts", "v", "batch_id"]
    claims.claim(dt.sinks.table(f"default.{table_name.upper()}"), claims.use("first"))
    for other in (claims.use("second"), claims.use("first", "r")):
        assert "belongs to query 'q' of" in claims.refusal(sink, other)
    rows = spark.createDataFrame([(None, 1), (None, 2)], "ts timestamp, v bigint")
    for _ in range(2):
        sink.write(rows, 0)
    assert spark.table(table_name).count() == 2
    assert "holds batch 0, but the checkpoint" in claims.refusal(sink, claims.use("first"))


def test_a_table_without_an_owner(spark: SparkSession, claims: Claims, table_name: str) -> None:
    spark.sql(
        f"CREATE TABLE {table_name} (ts timestamp, v bigint, batch_id bigint) USING parquet PARTITIONED BY (batch_id)"
    )
    spark.sql(f"INSERT INTO {table_name} VALUES (null, 1, 0)")
    sink = dt.sinks.table(table_name)
    assert "does not say of which checkpoint" in claims.refusal(sink, claims.use("c"))
    spark.sql(f"TRUNCATE TABLE {table_name}")
    claims.claim(sink, claims.use("c"))
    assert "of another checkpoint" in claims.refusal(sink, claims.use("d"))


@pytest.mark.parametrize(
    "columns",
    [
        "(v bigint, ts timestamp, batch_id bigint) USING parquet PARTITIONED BY (batch_id)",
        "(ts timestamp, v string, batch_id bigint) USING parquet PARTITIONED BY (batch_id)",
        "(ts timestamp, v bigint, more int, batch_id bigint) USING parquet PARTITIONED BY (batch_id)",
        "(ts timestamp, v bigint, batch_id bigint) USING parquet PARTITIONED BY (v)",
    ],
)
def test_a_table_of_other_columns(spark: SparkSession, claims: Claims, table_name: str, columns: str) -> None:
    """Results are inserted by position: two columns of one type would change places without a word."""
    spark.sql(f"CREATE TABLE {table_name} {columns}")
    message = claims.refusal(dt.sinks.table(table_name), claims.use("c"))
    assert f"the table {table_name} has the columns (" in message
    assert "results have (ts timestamp, v bigint, batch_id bigint), partitioned by batch_id" in message


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_batches_need_no_partitions(spark: SparkSession, claims: Claims, table_name: str, kind: str) -> None:
    """A replay replaces its own files, also those of a batch that was killed half way, and nothing of other batches."""
    sink = dt.sinks.table(table_name, kind)
    claims.claim(sink, claims.use("c"))
    assert not any(column.isPartition for column in spark.catalog.listColumns(table_name))

    def write(batch: int, *values: int) -> None:
        rows = [(None, value) for value in values]
        sink.write(spark.createDataFrame(rows, "ts timestamp, v bigint").repartition(3), batch)

    def seen() -> list[tuple[int, int]]:
        return sorted((row.batch_id, row.v) for row in spark.table(table_name).collect())

    for batch in (1, 10):
        write(batch, batch, batch + 1, batch + 2)
    assert seen() == [(1, 1), (1, 2), (1, 3), (10, 10), (10, 11), (10, 12)]
    write(1, 7)
    assert seen() == [(1, 7), (10, 10), (10, 11), (10, 12)]
    assert "holds batch 10, but" in claims.refusal(dt.sinks.table(table_name), claims.use("c"))
    sink.discard(10)
    sink.discard(10)
    assert seen() == [(1, 7)]


def test_tables_that_keep_their_partitions(spark: SparkSession, claims: Claims, table_name: str) -> None:
    claims.claim(dt.sinks.table(table_name, partitioned=True), claims.use("c"))
    sink = dt.sinks.table(table_name)  # as with the table of an earlier release
    claims.claim(sink, claims.use("c"))
    rows = spark.createDataFrame([(None, 1)], "ts timestamp, v bigint")
    for batch in (0, 1, 1):
        sink.write(rows, batch)
    assert spark.sql(f"SHOW PARTITIONS {table_name}").count() == 2
    assert spark.table(table_name).count() == 2
    wrong: Any = 1
    with pytest.raises(ConfigError, match=r"table\(partitioned=...\) is 1"):
        dt.sinks.table(table_name, partitioned=wrong)


def test_a_table_that_the_catalog_has_forgotten(spark: SparkSession, claims: Claims, table_name: str) -> None:
    sink = dt.sinks.table(table_name)
    claims.claim(sink, claims.use("c"))
    described = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE EXTENDED {table_name}").collect()}
    left = Path(urlsplit(described["Location"]).path)
    spark.sql(f"DROP TABLE {table_name}")
    left.mkdir(parents=True)
    (left / "part").touch()
    try:
        assert "the files of a dropped table are still there" in claims.refusal(sink, claims.use("c"))
    finally:
        shutil.rmtree(left)


def test_columns_that_a_sink_would_lose(claims: Claims, tmp_path: Path) -> None:
    taken = pa.schema([("Batch_ID", pa.int64())])
    for sink in (dt.sinks.parquet(tmp_path / "out"), dt.sinks.table("t"), dt.sinks.format("parquet", path="out")):
        assert "selects a column batch_id" in claims.refusal(sink, claims.use("c", schema=taken))
    twice = pa.schema([("v", pa.int64()), ("V", pa.int64())])
    assert "which Spark reads as one" in claims.refusal(
        dt.sinks.parquet(tmp_path / "out"), claims.use("c", schema=twice)
    )


def test_a_memory_sink_is_not_for_two_checkpoints(claims: Claims) -> None:
    sink = dt.sinks.memory()
    for _ in range(2):
        claims.claim(sink, claims.use("first"))
    assert "another checkpoint or query" in claims.refusal(sink, claims.use("second"))
    claims.claim(dt.sinks.memory(), claims.use("second"))


# -- on Spark -----------------------------------------------------------------------------------------------------------------------


def written(folder: Path) -> pa.Table:
    """What a plain reader sees."""
    return pq.read_table(folder, partitioning=None)


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """All files below a directory, with what would change if one were touched."""
    stats = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def test_a_new_checkpoint_does_not_overwrite_old_results(spark: SparkSession, tmp_path: Path, table_name: str) -> None:
    """What used to lose 8,000 of 30,000 results: a new checkpoint with the old sinks, as the error told people to."""
    pushes = batches(seed=7, count=2)
    source = Source(spark, tmp_path / "in")
    source.add(pushes)
    queries = {name: QUERIES[name] for name in ("chain", "band")}
    memory = dt.sinks.memory()
    sinks = {"chain": dt.sinks.parquet(tmp_path / "out"), "band": dt.sinks.table(table_name)}
    session(spark, source, queries, shards=2).start(sinks, tmp_path / "first", NOW).await_termination()
    before, rows = everything(tmp_path / "out"), spark.table(table_name).count()
    for changed in (
        {"chain": dt.sinks.parquet(f"{tmp_path}/out/"), "band": memory},
        {"chain": memory, "band": dt.sinks.table(table_name)},
        {"chain": memory, "band": dt.sinks.parquet(tmp_path / "out")},
    ):
        with pytest.raises(StateError, match="of another checkpoint"):
            session(spark, source, queries, shards=2).start(changed, tmp_path / "second", NOW)
    other = session(spark, source, {**queries, "band": QUERIES["theta"]}, shards=2)
    assert list(other.compare(tmp_path / "first").changed) == ["band"]
    both = {"chain": dt.sinks.parquet(tmp_path / "x"), "band": dt.sinks.parquet(f"file:{tmp_path}/x/")}
    with pytest.raises(ConfigError, match="is also that of"):
        session(spark, source, queries, shards=2).start(both, tmp_path / "second", NOW)
    inside = {"chain": dt.sinks.parquet(tmp_path / "x"), "band": dt.sinks.parquet(tmp_path / "x" / "y")}
    with pytest.raises(ConfigError, match="is inside that of"):
        session(spark, source, queries, shards=2).start(inside, tmp_path / "second", NOW)
    with pytest.raises(ConfigError, match=r"the directory of the checkpoint, .*, is inside that of query 'chain'"):
        session(spark, source, queries, shards=2).start(
            {"chain": both["chain"], "band": memory}, tmp_path / "x" / "c", NOW
        )
    assert everything(tmp_path / "out") == before
    assert spark.table(table_name).count() == rows
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").glob("_*"))
    wanted = expected(pushes, queries).results_table("chain")
    assert_same_rows(written(tmp_path / "out").cast(wanted.schema), wanted)


def test_a_session_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    """While it runs it takes no declarations, and its checkpoint and sinks are its own; afterwards they can be used again."""
    pushes = batches(seed=8, count=2)
    source = Source(spark, tmp_path / "in")
    source.add(pushes[:1])
    queries = {"chain": QUERIES["chain"]}
    made = session(spark, source, queries, shards=2)
    sinks = {"chain": dt.sinks.parquet(tmp_path / "out")}
    running = made.start(sinks, tmp_path / "c", {"processingTime": "0 seconds"})
    late: list[Callable[[], None]] = [
        lambda: made.query("late", QUERIES["band"]),
        lambda: made.stream("late", source.frame("a"), "ts"),
        lambda: made.selectivity("a.x = b.x", 0.5),
    ]
    for declare in late:
        with pytest.raises(ConfigError, match=r"cannot be declared after start\(\)") as error:
            declare()
        assert "use add_query() of what start() returned" in str(error.value)
    for checkpoint, message in (("c", "is in use"), ("d", "of another checkpoint")):
        with pytest.raises(StateError, match=message):
            session(spark, source, queries, shards=2).start(sinks, tmp_path / checkpoint, NOW)
    running.query.processAllAvailable()
    running.query.stop()  # not by us: what it holds is given back by the next start
    source.add(pushes[1:])
    again = made.start(sinks, tmp_path / "c", NOW)  # the same session may be started again
    again.await_termination()
    wanted = expected(pushes, queries).results_table("chain")
    assert_same_rows(written(tmp_path / "out").cast(wanted.schema), wanted)

    source.add(batches(seed=12, count=1))
    *_, last = sorted((tmp_path / "c" / "dovetail" / "_plans").glob("*.json"))
    revision = json.loads(last.read_text(encoding="utf-8"))
    plan = json.dumps({**json.loads(revision["plan"]), "digest": "another layout's"})
    last.write_text(json.dumps({**revision, "plan": plan}), encoding="utf-8")
    broken = made.start(sinks, tmp_path / "c", NOW)
    with pytest.raises(StateError) as raised:  # in a worker, whose traces are not what the user sees
        broken.await_termination()
    assert raised.value.message == "the checkpoint belongs to other streams, queries or another number of shards"
    assert raised.value.hint is not None
    assert "new checkpoint directory and new sinks" in raised.value.hint


def test_what_a_sink_says_comes_out(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A function that fails: its own error, short, with the query and the sink; the batch is replayed when it is mended."""
    pushes = batches(seed=9, count=2)
    source = Source(spark, tmp_path / "in")
    source.add(pushes)
    queries = {name: QUERIES[name] for name in ("chain", "band")}
    kept: dict[int, pa.Table] = {}
    broken = [True]

    def store(results: DataFrame, batch_id: int) -> None:
        if broken and batch_id == 1:
            raise OSError(28, "No space left on device")
        kept[batch_id] = results.toArrow()

    sinks = {"chain": dt.sinks.parquet(tmp_path / "out"), "band": dt.sinks.call(store)}
    running = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
    capfd.readouterr()
    with caplog.at_level(logging.ERROR, "dovetail"), pytest.raises(DovetailError) as error:
        running.await_termination()
    assert error.value.message == (
        "query 'band': its sink call(store) failed with batch 1: OSError: [Errno 28] No space left on device"
    )
    assert error.value.hint == "fix it and start again with the same checkpoint: the batch is replayed"
    assert isinstance(error.value.__cause__, OSError)
    assert error.value.message in caplog.text
    assert "at org.apache.spark" not in capfd.readouterr().err
    broken.clear()
    session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW).await_termination()
    oracle = expected(pushes, queries)
    for name, found in (("chain", written(tmp_path / "out")), ("band", pa.concat_tables(kept.values()))):
        wanted = oracle.results_table(name)
        assert_same_rows(found.cast(wanted.schema), wanted, name)


def test_results_that_vanish_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start used to sweep what a running one had staged: results were missing, and `metrics()` had them all."""
    source = Source(spark, tmp_path / "in")
    pushes = batches(seed=10, count=2)
    source.add(pushes)
    queries = {"chain": QUERIES["chain"]}
    sinks = {"chain": dt.sinks.parquet(tmp_path / "out")}
    collect = ShardReports.collect

    def careless(reports: ShardReports, *arguments: Any) -> ResultCounts:
        found = collect(reports, *arguments)
        for file in (tmp_path / "out").glob("_dovetail-*/1/shard-00001.parquet"):
            file.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ShardReports, "collect", careless)
        running = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
        with pytest.raises(
            DovetailError, match=r"batch 1 has .* results, of which .* holds .*: shard 1 reported"
        ) as error:
            running.await_termination()
    assert "The batch has not been committed" in str(error.value)
    assert [path.name for path in (tmp_path / "out").glob("batch_id=*")] == ["batch_id=0"]
    assert running.metrics()["queries"]["chain"]["results"] == written(tmp_path / "out").num_rows
    session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW).await_termination()
    wanted = expected(pushes, queries).results_table("chain")
    assert_same_rows(written(tmp_path / "out").cast(wanted.schema), wanted)


def test_a_batch_that_is_stopped_is_there_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """`stop()` while sinks are written, and staged files wait: no part of a batch is shown, and a restart gives the rest."""
    source = Source(spark, tmp_path / "in")
    pushes = batches(seed=11, count=2)
    source.add(pushes)
    queries = {name: QUERIES[name] for name in ("band", "chain")}
    reached = threading.Event()

    def slow(results: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        reached.set()
        time.sleep(1)

    sinks = {"band": dt.sinks.call(slow), "chain": dt.sinks.parquet(tmp_path / "out")}
    running = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
    assert reached.wait(120)
    running.stop()
    oracle = expected(pushes, queries)
    wanted = oracle.results_table("chain")
    shown = len(list((tmp_path / "out").glob("batch_id=*")))
    assert {entry.name for entry in (tmp_path / "out").glob("_*")} <= {OWNER_FILE, RECORD}
    before = written(tmp_path / "out").num_rows if shown else 0
    assert before == expected(pushes[:shown], queries).results_table("chain").num_rows
    session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW).await_termination()
    assert_same_rows(written(tmp_path / "out").cast(wanted.schema), wanted)


# -- histories ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_histories(tmp_path: Path) -> None:
    """Kills, restarts, new checkpoints on old sinks and second drivers: every committed result is there once, or a refusal."""
    count = 10 * FAULTS
    ended = subprocess.run(
        [sys.executable, str(HISTORIES), str(tmp_path), "0", str(count), "parquet"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    tally = json.loads(ended.stdout)
    assert tally["kills"] > 2 * count
    assert tally["refusals"] > count
