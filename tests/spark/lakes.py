"""Tables of Delta and Iceberg for tests without Spark: checkpoints that claim them, shards that write, and what a reader sees."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import dovetail as dt
from dovetail.schema import TIMESTAMP
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.sinks.lake import LakeCommitter, LakeSink
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.stage import WrittenFile

FORMATS = ("delta", "iceberg")
SCHEMA = pa.schema([("ts", TIMESTAMP), ("v", pa.int64())])
LOCAL: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "local[2]"))
"""All that sinks of tables want of a Spark session."""


def catalog_in(folder: Path, **properties: str) -> Catalog:
    """Return a catalog in a file; its tables are in `folder` too unless `properties` say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    warehouse = properties.pop("warehouse", f"file://{folder}/tables")
    return SqlCatalog("tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse, **properties)


def sink_in(folder: Path, format: str) -> LakeSink:  # noqa: A002
    """Return the sink of a table in a folder."""
    if format == "delta":
        return dt.sinks.delta(folder / "table")
    return dt.sinks.iceberg(catalog_in(folder), "ns.table")


def checkpoint_of(identity: str, last_batch: int = -1) -> Checkpoint:
    """Return a checkpoint that has begun so many batches; it has no directory."""
    place = Directory(f"file:/checkpoints/{identity}", Path(f"/checkpoints/{identity}"))
    return Checkpoint(place, identity, "{}", lacks_identity=False, last_batch=last_batch, next_batch=last_batch)


def use_of(identity: str = "c1", last_batch: int = -1, schema: pa.Schema = SCHEMA, query: str = "q") -> SinkUse:
    return SinkUse(cast("Any", LOCAL), query, schema, checkpoint_of(identity, last_batch))


class Run:
    """One start of a driver."""

    def __init__(self, sink: LakeSink, use: SinkUse | None = None) -> None:
        self.use = use or use_of()
        sink.check(self.use)
        self._lock = sink.claim(self.use)
        committer = sink.committer(self.use, os.urandom(16).hex())
        assert isinstance(committer, LakeCommitter)
        self.committer = committer
        committer.prepare()

    def write(self, batch: int, values: Mapping[int, list[int]]) -> list[WrittenFile]:
        """Write values by shard, as workers do."""
        files = []
        for shard, part in values.items():
            rows = {"ts": pa.array([1_000_000 * batch] * len(part), TIMESTAMP), "v": pa.array(part, pa.int64())}
            with self.committer.stage.writer(batch, shard, self.use.schema) as file:
                file.write_table(pa.table(rows, schema=self.use.schema))
            assert file.written is not None
            files.append(WrittenFile.from_json(file.written.to_json()))
        return files

    def run(self, batch: int, values: Mapping[int, list[int]], content: int = 1) -> None:
        """Write and commit a batch."""
        files = self.write(batch, values)
        self.committer.check(batch, files)
        self.committer.commit(batch, files, content)

    def end(self) -> None:
        """Release what a process that dies releases."""
        if self._lock is not None:
            self._lock.release()


def rows_in(folder: Path, format: str) -> pa.Table:  # noqa: A002
    """Return what the format's own reader sees."""
    if format == "delta":
        return DeltaTable(folder / "table").to_pyarrow_table()
    return catalog_in(folder).load_table("ns.table").scan().to_arrow()


def seen(folder: Path, format: str) -> dict[int, list[int]]:  # noqa: A002
    """Return the values in a table, by batch."""
    found: dict[int, list[int]] = {}
    for row in rows_in(folder, format).to_pylist():
        found.setdefault(row["batch_id"], []).append(row["v"])
    return {batch: sorted(values) for batch, values in sorted(found.items())}


def versions(folder: Path, format: str) -> int:  # noqa: A002
    """Return the number of changes of a table."""
    if format == "delta":
        return DeltaTable(folder / "table").version()
    with closing(sqlite3.connect(folder / "catalog.db")) as database:
        ((location,),) = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return int(Path(location).name.partition("-")[0])


def seen_rows(folder: Path, format: str) -> dict[int, int]:  # noqa: A002
    """Return the number of rows in a table, by batch."""
    return dict(Counter(rows_in(folder, format)["batch_id"].to_pylist()))
