"""Where results go. Each sink gets every batch of its query once, and again, the same, when the batch is replayed."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail.spark.staging import Staging, local_path, plain_types


class Sink(ABC):
    """Takes the results of one query, batch by batch."""

    @abstractmethod
    def write(self, results: DataFrame, batch_id: int) -> None:
        """Write one batch; called again with the same batch id and rows after a failure."""

    def staging(self, results: pa.Schema, run: str, *, embedded: bool) -> Staging | None:  # noqa: ARG002
        """Where shards may write results as Parquet themselves; None if Spark must."""
        return None


class ParquetSink(Sink):
    """One directory per batch, overwritten on replay: no row is lost and none is there twice."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, results: DataFrame, batch_id: int) -> None:
        results.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/batch_id={batch_id}")

    def staging(self, results: pa.Schema, run: str, *, embedded: bool) -> Staging | None:
        place = local_path(self.path, embedded=embedded)
        return Staging(str(place), run) if place is not None and plain_types(results) else None


class MemorySink(Sink):
    """Collects results in the driver, for tests and notebooks; a replayed batch replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}

    def write(self, results: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = results.toArrow()

    def table(self) -> pa.Table | None:
        """All results so far; None when there was none."""
        return pa.concat_tables(self.batches.values()) if self.batches else None


class CallableSink(Sink):
    """Hands a normal DataFrame and the batch id to a function, which may do with it what it likes, or nothing."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def write(self, results: DataFrame, batch_id: int) -> None:
        self._function(results, batch_id)


class FormatSink(Sink):
    """Any `df.write.format`, with a `batch_id` column so that replays can be told apart: at least once."""

    def __init__(self, format: str, mode: str = "append", **options: str) -> None:  # noqa: A002
        self._format, self._mode, self._options = format, mode, options

    def write(self, results: DataFrame, batch_id: int) -> None:
        tagged = results.withColumn("batch_id", F.lit(batch_id))
        tagged.write.format(self._format).mode(self._mode).options(**self._options).save()


class TableSink(Sink):
    """A table of Spark's catalog, partitioned by `batch_id`: each batch replaces its own partition, so replays change nothing."""

    def __init__(self, name: str, format: str) -> None:  # noqa: A002
        self._name, self._format = name, format

    def write(self, results: DataFrame, batch_id: int) -> None:
        spark = results.sparkSession
        if not spark.catalog.tableExists(self._name):
            tagged = results.limit(0).withColumn("batch_id", F.lit(batch_id).cast("bigint"))
            tagged.write.format(self._format).partitionBy("batch_id").saveAsTable(self._name)
        view = f"dovetail_{uuid.uuid4().hex}"
        results.createOrReplaceTempView(view)
        try:
            # `insertInto` with a dynamic overwrite was seen to remove the other batches.
            spark.sql(f"INSERT OVERWRITE TABLE {self._name} PARTITION (batch_id = {batch_id}) SELECT * FROM {view}")  # noqa: S608
        finally:
            spark.catalog.dropTempView(view)


def parquet(path: str) -> Sink:
    """Write to a directory, exactly once: read it back with `spark.read.parquet(path)`."""
    return ParquetSink(path)


def table(name: str, format: str = "parquet") -> Sink:  # noqa: A002
    """Write to a table of Spark's catalog, exactly once; it is created on the first results, with a `batch_id` column."""
    return TableSink(name, format)


def memory() -> MemorySink:
    """Keep results in the driver; `.table()` gives them."""
    return MemorySink()


def call(function: Callable[[DataFrame, int], Any]) -> Sink:
    """Call `function(results, batch_id)` for every batch that has results."""
    return CallableSink(function)


def format(name: str, mode: str = "append", **options: str) -> Sink:  # noqa: A001
    """Write with any Spark data source; results may come twice after a failure, with the same `batch_id`."""
    return FormatSink(name, mode, **options)
