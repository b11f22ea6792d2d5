"""Results that are removed, disks that are full, and batches that are replayed without results."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from test_session import QUERIES, Source, batches, expected, session

import dovetail as dt
from dovetail.errors import DovetailError, DovetailWarning, StateError
from dovetail.schema import TIMESTAMP
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.driver.failures import first_lines
from dovetail.spark.sinks import parquet as parquet_module
from dovetail.spark.sinks.owners import SinkUse, check_directory
from dovetail.spark.sinks.parquet import ParquetSink
from dovetail.spark.sinks.staging import OWNER_FILE, RECORD, LocalCommitter, discard_batch, record_batch, update_record
from dovetail.testing import assert_same_rows

SCHEMA = pa.schema([("ts", TIMESTAMP), ("v", pa.int64())])
NOW = {"availableNow": True}


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of a certain size."""
    path.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path)],
        capture_output=True,
        check=False,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["/bin/umount", "-l", str(path)], check=True)


def use_of(spark: SparkSession, folder: Path, begun: int = -1, completed: int = -1) -> SinkUse:
    """A query of a checkpoint that has begun and completed batches."""
    directory = Directory.of(spark, str(folder / "checkpoint"))
    for log, last in (("offsets", begun), ("commits", completed)):
        for batch in range(last + 1):
            directory.within(log).create(str(batch), "")
    directory.within("dovetail").create("layout.json", "{}")
    directory.within("dovetail").create("_identity.json", '{"identity": "c"}')
    checkpoint = Checkpoint.open(directory)
    checkpoint.release()
    return SinkUse(spark, "q", SCHEMA, checkpoint)


def claim(sink: ParquetSink, use: SinkUse) -> None:
    lock = sink.claim(use)
    if lock is not None:
        lock.release()


def batches_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "_")))


# -- batches that are replayed without results ------------------------------------------------------------------------------------


def test_discarded_batches_of_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    sink = dt.sinks.parquet(tmp_path / "out")
    claim(sink, use_of(spark, tmp_path))
    for batch in (0, 1):
        sink.write(spark.range(3), batch)
    for _ in range(2):
        sink.discard(1)
        sink.discard(7)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [RECORD, OWNER_FILE, "batch_id=0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claim(sink, use_of(spark, tmp_path, 4, 4))  # nobody has removed it


def test_a_batch_is_discarded_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batch_id=3").mkdir()
    (tmp_path / "batch_id=3" / "x.parquet").touch()
    removed = shutil.rmtree

    def killed(path: Path, **options: Any) -> None:
        if path.exists():
            assert path.name.startswith("_")
            raise KeyboardInterrupt
        removed(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            discard_batch(tmp_path, 3)
    assert batches_in(tmp_path) == []
    discard_batch(tmp_path, 3)  # replayed
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]


def test_discarded_batches_of_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    mount = f"m{uuid.uuid4().hex[:8]}"
    (tmp_path / "disk").mkdir()
    spark.conf.set(f"fs.viewfs.mounttable.{mount}.link./disk", f"file://{tmp_path}/disk")
    try:
        sink = dt.sinks.parquet(f"viewfs://{mount}/disk/out")
        claim(sink, use_of(spark, tmp_path))
        for batch in (0, 1):
            sink.write(spark.range(3), batch)
        for _ in range(2):
            sink.discard(1)
        assert batches_in(tmp_path / "disk" / "out") == ["batch_id=0"]
        shutil.rmtree(tmp_path / "disk" / "out")
        with pytest.raises(StateError, match=f"the directory viewfs://{mount}/disk/out was removed while"):
            sink.write(spark.range(3), 2)
        assert not (tmp_path / "disk" / "out").exists()
    finally:
        spark.conf.unset(f"fs.viewfs.mounttable.{mount}.link./disk")


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_discarded_batches_of_a_table(spark: SparkSession, tmp_path: Path, format: str) -> None:  # noqa: A002
    name = f"t{uuid.uuid4().hex[:8]}"
    sink = dt.sinks.table(name, format)
    sink.claim(use_of(spark, tmp_path))
    rows = spark.createDataFrame([(None, 1), (None, 2)], "ts timestamp, v bigint")
    try:
        for batch in (0, 1):
            sink.write(rows, batch)
        for _ in range(2):
            sink.discard(1)
            sink.discard(7)
        assert [row["batch_id"] for row in spark.table(name).collect()] == [0, 0]
        sink.write(rows, 1)
        assert spark.table(name).count() == 4
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_discarded_batches_of_other_sinks(spark: SparkSession) -> None:
    memory = dt.sinks.memory()
    memory.write(spark.range(3), 0)
    for sink in (memory, dt.sinks.call(lambda _, batch: pytest.fail(f"called for {batch}")), dt.sinks.format("noop")):
        for _ in range(2):
            sink.discard(0)
    assert memory.table() is None


# -- directories that are removed while a job runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [True, False])
def test_a_directory_that_is_removed_while_the_job_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, staged: bool
) -> None:
    if not staged:
        monkeypatch.setattr(parquet_module, "has_plain_types", lambda _: False)
    source, out = Source(spark, tmp_path / "in"), tmp_path / "out"
    source.add(batches(seed=21, count=3))
    queries = {name: QUERIES[name] for name in ("chain", "band")}

    def remove(results: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        if batch_id == 0:
            shutil.rmtree(out)

    sinks = {"chain": dt.sinks.parquet(out), "band": dt.sinks.call(remove)}
    running = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
    with pytest.raises(DovetailError) as error:
        running.await_termination()
    assert error.value.message == (
        f"query 'chain': its sink parquet({str(out)!r}) failed with batch 1: the directory "
        f"{out if staged else out.as_uri().replace('///', '/')} was removed while the job was running; "
        "results of earlier batches are gone"
    )
    assert error.value.hint is not None
    assert error.value.hint.startswith("start again with the same checkpoint")
    assert not out.exists()
    with pytest.warns(DovetailWarning, match="is new, but the checkpoint is at batch 1"):
        again = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
    again.await_termination()
    assert batches_in(out) == ["batch_id=1", "batch_id=2"]
    assert (out / OWNER_FILE).exists()


def test_a_directory_that_is_removed_while_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = dt.sinks.parquet(out)
    claim(sink, use_of(spark, tmp_path))

    def parquet(path: str) -> None:
        shutil.rmtree(out)
        spark.range(3).write.parquet(path)

    writer = SimpleNamespace(mode=lambda _: SimpleNamespace(parquet=parquet))
    with pytest.raises(StateError):
        sink.write(cast("DataFrame", SimpleNamespace(write=writer)), 0)
    assert list(out.iterdir()) == []
    with pytest.warns(DovetailWarning, match="is new"):
        claim(sink, use_of(spark, tmp_path, 0))
    sink.write(spark.range(3), 0)


# -- batches that are removed between two starts ------------------------------------------------------------------------------------


def test_removed_batches_are_reported_once(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = dt.sinks.parquet(out)
    claim(sink, use_of(spark, tmp_path))
    for batch in range(10):
        sink.write(spark.range(1), batch)
    for batch in (0, 1, 2, 3, 4, 5, 9):
        shutil.rmtree(out / f"batch_id={batch}")
    with pytest.warns(DovetailWarning) as said:
        claim(sink, use_of(spark, tmp_path, 9, 8))  # batch 9 is replayed
    (text,) = [str(warning.message) for warning in said]
    assert text.startswith(
        f"query 'q': {out} lacks 6 of the batches that were written there (0, 1, 2, 3, 4, ...); Dovetail does not write them "
        "again\nHint: do nothing if you removed them on purpose"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claim(sink, use_of(spark, tmp_path, 9, 9))


def test_a_lock_is_given_back_where_warnings_are_errors(spark: SparkSession, tmp_path: Path) -> None:
    sink = dt.sinks.parquet(tmp_path / "out")
    claim(sink, use_of(spark, tmp_path))
    record_batch(tmp_path / "out", 0, "written")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DovetailWarning, match=r"lacks 1 of the batches that were written there \(0\)"):
            claim(sink, use_of(spark, tmp_path, 0, 0))
        claim(sink, use_of(spark, tmp_path, 0, 0))


def test_staged_batches_are_recorded(spark: SparkSession, tmp_path: Path) -> None:
    sink, use = dt.sinks.parquet(tmp_path / "out"), use_of(spark, tmp_path)
    claim(sink, use)
    committer = sink.committer(use, "run")
    assert isinstance(committer, LocalCommitter)
    assert committer.stage.query == "q"
    committer.prepare()
    with committer.stage.writer(0, 0, SCHEMA) as file:
        file.write_table(SCHEMA.empty_table())
    committer.commit(0, [])
    assert update_record(tmp_path / "out") == set()
    shutil.rmtree(tmp_path / "out" / "batch_id=0")
    assert update_record(tmp_path / "out") == {0}
    assert update_record(tmp_path / "out") == set()


def test_a_record_that_is_damaged_stops_nobody(spark: SparkSession, tmp_path: Path) -> None:
    out, use = tmp_path / "out", use_of(spark, tmp_path, 9, 9)
    sink = dt.sinks.parquet(out)
    with pytest.warns(DovetailWarning, match="is new"):
        claim(sink, use)
    for batch in (3, 4):
        (out / f"batch_id={batch}").mkdir()
    (out / RECORD).write_bytes(b"\xff\x00\n1 writ\n\n2 removed\n-5 written\nx written\n3 written\n3 removed\n6 written")
    with pytest.warns(DovetailWarning, match=r"lacks 1 of .* \(6\)"):
        claim(sink, use)
    assert (out / RECORD).read_text(encoding="ascii") == "3 written\n4 written\n"
    (out / RECORD).unlink()
    (out / RECORD).mkdir()
    claim(sink, use)
    check_directory(Directory.of(spark, str(out)), use)


def test_a_record_is_no_foreign_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    record_batch(tmp_path / "out", 0, "removed")
    check_directory(Directory.of(spark, str(tmp_path / "out")), use_of(spark, tmp_path))


# -- disks that are full ------------------------------------------------------------------------------------------------------------


def test_a_sink_on_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    """The error of a shard comes out short; with more room the same checkpoint gives all results."""
    pushes, queries = batches(seed=22, count=2), {"chain": QUERIES["chain"]}
    source = Source(spark, tmp_path / "in")
    source.add(pushes)
    with small_disk(tmp_path / "disk", "64k") as disk:
        out = disk / "out"
        sinks = {"chain": dt.sinks.parquet(out)}
        (disk / "others").write_bytes(bytes(44 << 10))
        running = session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW)
        with pytest.raises(StateError) as error:
            running.await_termination()
        assert re.fullmatch(
            rf"query 'chain': its sink parquet\('{out}'\) failed with batch [01]: no space is left for results: "
            rf"[\w. ]+ of 64 KiB are free in {out}",
            error.value.message,
        )
        assert (
            error.value.hint == "free space there, then start again with the same checkpoint, which replays the batch"
        )
        (disk / "others").unlink()  # what the hint says
        subprocess.run(["/bin/mount", "-o", "remount,size=8m", str(disk)], check=True)
        session(spark, source, queries, shards=2).start(sinks, tmp_path / "c", NOW).await_termination()
        wanted = expected(pushes, queries).results_table("chain")
        assert_same_rows(pq.read_table(out, partitioning=None).cast(wanted.schema), wanted)


def test_what_spark_says_of_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk, pytest.raises(Exception, match="TASK_WRITE_FAILED") as error:
        spark.range(100_000).selectExpr("uuid() AS u").write.parquet(str(disk / "out"))
    assert first_lines(error.value).endswith("caused by java.io.IOException: No space left on device")
