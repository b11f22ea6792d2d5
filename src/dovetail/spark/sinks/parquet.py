"""Directories of Parquet files, one subdirectory per batch."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from dovetail.errors import ConfigError, StateError
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.checkpoint.store_directory import StoreDirectory
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import Owner, SinkUse, check_directory, check_owned_directory, claim_directory
from dovetail.spark.sinks.parquet_store import StoreCommitter
from dovetail.spark.sinks.sink import Sink, check_columns, check_types, shares_disk
from dovetail.spark.sinks.stage import BATCH_COLUMN, has_plain_types
from dovetail.spark.sinks.staging import (
    BATCH_NAME,
    LocalCommitter,
    LocalStage,
    check_owner_file,
    count_rows,
    discard_batch,
    record_batch,
)
from dovetail.spark.sinks.stores import check_options, local_path, open_store


class ParquetSink(Sink):
    """Write to a directory, exactly once; read it back with `spark.read.parquet(path)`.

    Each batch has its own subdirectory, which a replay overwrites: no row is lost or duplicated.

    Parameters
    ----------
    path
        Directory: a path or a URI as Spark reads it.
    storage_options
        Options of an object store, such as `{"AWS_REGION": "eu-central-1"}`, or an empty dict: shards then write there themselves,
        through Arrow, instead of Spark and Hadoop. A local path needs none and ignores them.
    """

    def __init__(self, path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ConfigError(
                f"dt.sinks.parquet got {path!r}; expected the path of a directory, as text",
                'write, for example, dt.sinks.parquet("out/funnel")',
            )
        self.path = os.fspath(path)
        options = check_options("parquet", storage_options)
        is_store = storage_options is not None and local_path(self.path) is None
        self._options = options if is_store else None
        self._claim: tuple[Directory, Owner] | None = None

    def __repr__(self) -> str:
        return f"parquet({self.path!r})"

    def directory(self, use: SinkUse) -> Directory:
        if self._options is None:
            return directory_at(use.spark, self.path)
        return StoreDirectory.at(self.path, *open_store(self.path, self._options))

    def check(self, use: SinkUse) -> None:
        check_columns(use)
        if self._options is not None:
            check_types(use, repr(self))
        check_directory(self.directory(use), use)

    def claim(self, use: SinkUse) -> Lock | None:
        directory = self.directory(use)
        self._claim = directory, use.owner
        return claim_directory(directory, use)

    def write(self, results: DataFrame, batch_id: int) -> None:
        directory, owner = self._claimed
        check_owned_directory(directory, owner)
        results.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/batch_id={batch_id}")
        try:
            check_owner_file(directory)
        except StateError:
            # Spark has recreated the directory; with a batch and no owner, the next start would refuse it.
            directory.remove(f"batch_id={batch_id}")
            raise
        if directory.local is not None:
            record_batch(directory.local, batch_id, "written")

    def discard(self, batch_id: int) -> None:
        directory, owner = self._claimed
        if directory.local is not None:
            discard_batch(directory.local, batch_id)
        else:
            check_owned_directory(directory, owner)
            directory.remove(f"batch_id={batch_id}")

    def find(self, condition: pc.Expression) -> pa.Table | None:
        local = self._claim[0].local if self._claim is not None else None
        if local is None:
            return None
        import pyarrow.dataset as ds  # noqa: PLC0415 - it loads pandas

        batches = [entry for entry in local.iterdir() if BATCH_NAME.fullmatch(entry.name)]
        tables = [
            found.append_column(BATCH_COLUMN, pa.repeat(int(entry.name.partition("=")[2]), found.num_rows))
            for entry in batches
            if (found := ds.dataset(entry).to_table(filter=condition)).num_rows
        ]
        return pa.concat_tables(tables) if tables else pa.table({BATCH_COLUMN: pa.array([], pa.int64())})

    @property
    def _claimed(self) -> tuple[Directory, Owner]:
        """The directory and its owner."""
        if self._claim is None:
            raise StateError(f"{self} has not been claimed by a query", "start a session with it")
        return self._claim

    def verify(self, batch_id: int, rows: int) -> None:
        local = self._claimed[0].local
        if local is None:
            return
        written = sum(count_rows(file) for file in (local / f"batch_id={batch_id}").glob("*.parquet"))
        if written != rows:
            raise StateError(
                f"Spark has written {written:,} of {rows:,} results to {local} as the driver sees it",
                "workers must share that disk with the driver; else use a path on a file system that all can reach",
            )

    def committer(self, use: SinkUse, run_id: str) -> Committer | None:
        """Return a committer if shards share the driver's disk: a `file:` path, or a local master."""
        directory = self.directory(use)
        if isinstance(directory, StoreDirectory):
            return StoreCommitter(directory, use, run_id)
        local = directory.local
        can_stage = shares_disk(self.path, use) and has_plain_types(use.schema)
        return LocalCommitter(LocalStage(str(local), run_id, use.query)) if local is not None and can_stage else None
