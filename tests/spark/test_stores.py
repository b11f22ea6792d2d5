"""Sinks in an object store: the S3 of moto on loopback, in a process of its own, if there is one.

moto needs another python-dateutil than the pinned one, so it is not among the requirements: install `moto[s3] flask flask-cors` into a
virtual environment and set DOVETAIL_MOTO_SERVER to its `moto_server`.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from lakes import SCHEMA, Run, catalog_in, checkpoint_of, use_of
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.errors import ConfigError, StateError
from dovetail.spark.checkpoint.store_directory import StoreDirectory
from dovetail.spark.sinks import parquet_store
from dovetail.spark.sinks.lake import LakeSink
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.parquet_store import StoreCommitter
from dovetail.spark.sinks.sink import Sink
from dovetail.spark.sinks.stage import WrittenFile
from dovetail.spark.sinks.staging import LocalCommitter
from dovetail.spark.sinks.stores import open_store

MOTO = os.environ.get("DOVETAIL_MOTO_SERVER")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Storage options of an S3 with a bucket `lake`."""
    if not MOTO:
        pytest.skip("no moto_server: set DOVETAIL_MOTO_SERVER, see above")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [MOTO, "-H", "127.0.0.1", "-p", port]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                    break
            time.sleep(0.1)
        pafs.S3FileSystem(
            access_key="test", secret_key=options["AWS_SECRET_ACCESS_KEY"], region="us-east-1", scheme="http",
            endpoint_override=options["AWS_ENDPOINT_URL"], allow_bucket_creation=True,
        ).create_dir("lake")  # fmt: skip
        yield options
    finally:
        process.kill()
        process.wait()


class StoreRun:
    """One start of a driver that writes a directory of Parquet files."""

    def __init__(self, sink: Sink, last_batch: int = -1, run_id: str = "") -> None:
        use = use_of(last_batch=last_batch)
        sink.check(use)
        sink.claim(use)
        committer = sink.committer(use, run_id or os.urandom(16).hex())
        assert isinstance(committer, StoreCommitter)
        self.committer = committer
        committer.prepare()
        self.stage = pickle.loads(pickle.dumps(committer.stage))  # noqa: S301 - as it travels to workers

    def write(self, batch: int, values: dict[int, list[int]]) -> list[WrittenFile]:
        files = []
        for shard, part in values.items():
            with self.stage.writer(batch, shard, SCHEMA) as file:
                file.write_table(pa.table([[batch] * len(part), part], schema=SCHEMA))
            files.append(cast("WrittenFile", file.written))
        return files

    def run(self, batch: int, values: dict[int, list[int]]) -> None:
        files = self.write(batch, values)
        self.committer.check(batch, files)
        self.committer.commit(batch, files)


@pytest.fixture
def local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a store without a server: the same code on Arrow's local file system."""

    def open_folder(uri: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str]:  # noqa: ARG001
        return pafs.LocalFileSystem(), str(tmp_path / uri.removeprefix("store://"))

    monkeypatch.setattr("dovetail.spark.sinks.parquet.open_store", open_folder)
    return "store://lake"


def directory_at(uri: str, options: Mapping[str, str] | None = None) -> StoreDirectory:
    directory = dt.sinks.parquet(uri, options or {}).directory(use_of())
    assert isinstance(directory, StoreDirectory)
    return directory


def check_directory_sink(uri: str, options: dict[str, str]) -> None:
    directory = directory_at(uri, options)
    files, path = directory.files, directory.path

    def seen() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        table = ds.dataset(path, format="parquet", filesystem=files, partitioning="hive").to_table()
        for row in table.to_pylist():
            found.setdefault(row["batch_id"], []).append(row["v"])
        return {batch: sorted(values) for batch, values in sorted(found.items())}

    run = StoreRun(dt.sinks.parquet(uri, options))
    run.run(0, {0: [1, 2], 2: [3]})
    run.run(1, {0: [4], 1: [5]})
    lost = run.write(2, {0: [6]})
    files.delete_file(run.committer.stage.path(lost[0]))
    with pytest.raises(StateError, match=r"shard 0 reported 1 results in .* is not there"):
        run.committer.check(2, lost)
    pending = run.write(2, {0: [6]})
    again = StoreRun(dt.sinks.parquet(uri, options), last_batch=2)  # a copy of the checkpoint, or a replay after a kill
    with pytest.raises(StateError, match=r"this one is stale and has not written batch 2"):
        run.committer.check(2, pending)
    again.run(1, {1: [7]})  # a replay under a changed job
    again.run(2, {0: [6]})
    assert seen() == {0: [1, 2, 3], 1: [7], 2: [6]}
    again.committer.discard(2)
    again.committer.discard(2)
    assert seen() == {0: [1, 2, 3], 1: [7]}
    again.committer.clear()
    names = {Path(info.path).name for info in files.get_file_info(pafs.FileSelector(path))}
    assert names == {"_dovetail.json", "_dovetail.run", "batch_id=0", "batch_id=1"}
    with pytest.raises(StateError, match="holds batch 1, but the checkpoint"):
        StoreRun(dt.sinks.parquet(uri, options))
    foreign = dt.sinks.parquet(f"{uri}/batch_id=0", options)
    with pytest.raises(ConfigError, match="which no query of Dovetail wrote"):
        StoreRun(foreign)


def test_a_directory_through_arrow(local_store: str) -> None:
    check_directory_sink(f"{local_store}/out", {})


def test_a_local_path_needs_no_store(spark: SparkSession, tmp_path: Path) -> None:
    """With options too it is locked, recorded, and written by shards only if they share the disk."""
    use = SinkUse(spark, "q", SCHEMA, checkpoint_of("c1"))
    for path in (str(tmp_path / "plain"), f"file://{tmp_path}/uri"):
        sink = dt.sinks.parquet(path, {"AWS_REGION": "eu-central-1"})
        lock = sink.claim(use)
        assert lock is not None
        with pytest.raises(StateError, match="a session that is running writes to"):
            dt.sinks.parquet(path, {}).claim(use)
        lock.release()
        assert isinstance(sink.committer(use, "1"), LocalCommitter)


@pytest.mark.parametrize("when", ["before prepare", "before commit"])
def test_of_two_checkpoints_that_claim_a_directory_at_once_one_gives_way(
    local_store: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    uri = f"{local_store}/out"
    other = use_of("c2").owner.to_json()
    directory = directory_at(uri)
    if when == "before prepare":
        create = StoreDirectory.create

        def create_too(self: StoreDirectory, name: str, text: str) -> bool:
            was_created = create(self, name, text)
            self.replace(name, other)
            return was_created

        monkeypatch.setattr(StoreDirectory, "create", create_too)
        with pytest.raises(StateError, match=r"store://lake/out was replaced or given to another query"):
            StoreRun(dt.sinks.parquet(uri, {}))
        assert directory.names() == ["_dovetail.json"]  # nothing says that this run may commit
        return
    run = StoreRun(dt.sinks.parquet(uri, {}))
    run.run(0, {0: [1]})
    files = run.write(1, {0: [2]})
    directory.replace("_dovetail.json", other)
    with pytest.raises(StateError, match="given to another query while the job was running"):
        run.committer.check(1, files)
    with pytest.raises(StateError, match="given to another query while the job was running"):
        run.committer.discard(0)
    assert directory.within("batch_id=0").names() == ["shard-00000.parquet"]


def test_a_directory_that_spark_writes_to_has_the_same_owner_at_each_batch(
    local_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{local_store}/out"
    directory = directory_at(uri)
    sink = dt.sinks.parquet(uri)
    monkeypatch.setattr(sink, "directory", lambda _: directory)
    sink.claim(use_of())
    directory.within("batch_id=0").replace("part.parquet", "")
    directory.replace("_dovetail.json", use_of("c2").owner.to_json())
    with pytest.raises(StateError, match="given to another query while the job was running"):
        sink.write(cast("Any", None), 0)
    with pytest.raises(StateError, match="given to another query while the job was running"):
        sink.discard(0)
    assert directory.within("batch_id=0").names() == ["part.parquet"]


def test_a_commit_of_a_directory_that_is_killed_half_way(local_store: str, tmp_path: Path) -> None:
    uri = f"{local_store}/out"
    run = StoreRun(dt.sinks.parquet(uri, {}))
    files = run.write(0, {0: [1], 1: [2], 2: [3]})
    run.committer.stage.files.delete_file(run.committer.stage.path(files[1]))
    with pytest.raises(FileNotFoundError):
        run.committer.commit(0, files)  # the first of three is copied
    again = StoreRun(dt.sinks.parquet(uri, {}), last_batch=0)
    again.run(0, {1: [2], 2: [3], 0: [1]})
    assert sorted(ds.dataset(tmp_path / "lake" / "out", format="parquet").to_table()["v"].to_pylist()) == [1, 2, 3]
    assert parquet_store._RUN_FILE in {path.name for path in (tmp_path / "lake" / "out").iterdir()}
    (tmp_path / "lake" / "out" / "_dovetail.json").unlink()
    with pytest.raises(StateError, match="which says whose results these are, was removed"):
        again.committer.check(1, [])


def test_a_directory_in_s3(s3: dict[str, str]) -> None:
    check_directory_sink("s3://lake/out", s3)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_s3(tmp_path: Path, s3: dict[str, str], kind: str) -> None:
    def sink() -> LakeSink:
        if kind == "delta":
            return dt.sinks.delta("s3://lake/table", s3)
        return dt.sinks.iceberg(catalog(), "ns.table")

    def catalog() -> Any:
        keys = {"s3.endpoint": "ENDPOINT_URL", "s3.access-key-id": "ACCESS_KEY_ID", "s3.region": "REGION"}
        keys["s3.secret-access-key"] = "SECRET_ACCESS_KEY"
        properties = {name: s3[f"AWS_{option}"] for name, option in keys.items()}
        return catalog_in(tmp_path, warehouse="s3://lake/warehouse", **properties)

    def seen() -> list[tuple[int, int]]:
        if kind == "delta":
            table = DeltaTable("s3://lake/table", storage_options=s3).to_pyarrow_table()
        else:
            table = catalog().load_table("ns.table").scan().to_arrow()
        return sorted((row["batch_id"], row["v"]) for row in table.to_pylist())

    first = Run(sink())
    first.committer.stage = pickle.loads(pickle.dumps(first.committer.stage))  # noqa: S301 - as it travels to workers
    first.run(0, {0: [1, 2], 1: [3]})
    lost = first.write(1, {0: [9]})
    first.committer.stage.files.delete_file(first.committer.stage.path(lost[0]))
    with pytest.raises(StateError, match="is not there"):
        first.committer.check(1, lost)
    pending = first.write(1, {0: [4]})
    second = Run(sink(), use_of(last_batch=1))  # no lock keeps it out: the table does
    with pytest.raises(StateError, match="this one is stale"):
        first.committer.commit(1, pending)
    second.run(1, {0: [4]}, content=1)
    third = Run(sink(), use_of(last_batch=1))
    third.run(1, {0: [4]}, content=1)
    assert seen() == [(0, 1), (0, 2), (0, 3), (1, 4)]
    third.end()
    fourth = Run(sink(), use_of(last_batch=1))
    fourth.run(1, {1: [5]}, content=2)
    assert seen() == [(0, 1), (0, 2), (0, 3), (1, 5)]
    with pytest.raises(StateError, match="of another checkpoint"):
        Run(sink(), use_of("c2"))


def test_options_of_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    files, path = open_store(
        "s3://bucket/a/b/", {"aws_access_key_id": "k", "AWS_SECRET_ACCESS_KEY": "s", "region": "eu-west-1"}
    )
    assert (files.type_name, files.region, path) == ("s3", "eu-west-1", "bucket/a/b")
    assert files.equals(pickle.loads(pickle.dumps(files)))  # noqa: S301
    for path in ("nonsense://x/y", "s9://x"):
        with pytest.raises(ConfigError, match="cannot be used"):
            open_store(path, {})
