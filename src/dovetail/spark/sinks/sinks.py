"""Sinks for results: Parquet directories, tables, memory, callables, and any Spark data source.

A sink gets every batch of its query once, and again, unchanged, when the batch is replayed. A sink that outlives the process belongs
to one query of one checkpoint; see `owners`.
"""

from __future__ import annotations

import os
import uuid
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructType

from dovetail.errors import ConfigError, DovetailWarning, StateError, listed
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.compat import from_arrow_schema
from dovetail.spark.sinks.owners import SinkUse, check_directory, claim_directory
from dovetail.spark.sinks.staging import (
    Staging,
    check_owner_file,
    count_rows,
    discard_batch,
    has_plain_types,
    record_batch,
)

_PROPERTY = "dovetail.owner"
WriteMode: TypeAlias = Literal["append", "overwrite"]
"""Modes of Spark's writers; its other ones skip, or fail at, every batch but the first."""


class Sink(ABC):
    """Base class: a destination for the results of one query, batch by batch."""

    @abstractmethod
    def write(self, results: DataFrame, batch_id: int) -> None:
        """Write one batch; after a failure the session calls it again with the same batch id and rows."""

    def discard(self, batch_id: int) -> None:  # noqa: B027
        """Remove the output of an earlier attempt at this batch; called when the replay has no results."""

    def check(self, use: SinkUse) -> None:  # noqa: B027
        """Refuse a query that must not write here, without changing anything."""

    def claim(self, use: SinkUse) -> Lock | None:  # noqa: ARG002
        """Make this query the owner of the sink, or refuse it."""
        return None

    def directory(self, use: SinkUse) -> Directory | None:  # noqa: ARG002
        """Return the directory that the sink writes to, if any; those of two queries must not overlap."""
        return None

    def staging(self, use: SinkUse, run_id: str) -> Staging | None:  # noqa: ARG002
        """Return the staging directory for shards that write Parquet themselves; None if Spark must write."""
        return None

    def verify(self, batch_id: int, rows: int) -> None:  # noqa: B027
        """Raise an error if a batch that `write` has written lacks some of its `rows`.

        Check only where that is cheap.
        """


class ParquetSink(Sink):
    """Write to a directory, exactly once; read it back with `spark.read.parquet(path)`.

    Each batch has its own subdirectory, which a replay overwrites: no row is lost or duplicated.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ConfigError(f"dt.sinks.parquet got {path!r}; expected the path of a directory, as text")
        self.path = os.fspath(path)
        self._directory: Directory | None = None

    def __repr__(self) -> str:
        return f"parquet({self.path!r})"

    def directory(self, use: SinkUse) -> Directory:
        return Directory.of(use.spark, self.path)

    def check(self, use: SinkUse) -> None:
        _check_columns(use)
        check_directory(self.directory(use), use)

    def claim(self, use: SinkUse) -> Lock | None:
        self._directory = self.directory(use)
        return claim_directory(self._directory, use)

    def write(self, results: DataFrame, batch_id: int) -> None:
        directory = self._claimed
        check_owner_file(directory)
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
        directory = self._claimed
        if directory.local is not None:
            discard_batch(directory.local, batch_id)
        else:
            directory.remove(f"batch_id={batch_id}")

    @property
    def _claimed(self) -> Directory:
        if self._directory is None:
            raise StateError(f"{self} has not been claimed by a query", "start a session with it")
        return self._directory

    def verify(self, batch_id: int, rows: int) -> None:
        local = self._claimed.local
        if local is None:
            return
        written = sum(count_rows(file) for file in (local / f"batch_id={batch_id}").glob("*.parquet"))
        if written != rows:
            raise StateError(
                f"Spark has written {written:,} of {rows:,} results to {local} as the driver sees it",
                "workers must share that disk with the driver; else use a path on a file system that all can reach",
            )

    def staging(self, use: SinkUse, run_id: str) -> Staging | None:
        """Return a staging directory if shards share the driver's disk: a `file:` path, or a local master."""
        local = self.directory(use).local
        is_shared = self.path.startswith("file:") or str(use.spark.conf.get("spark.master", "")).startswith("local")
        can_stage = is_shared and has_plain_types(use.schema)
        return Staging(str(local), run_id, use.query) if local is not None and can_stage else None


class MemorySink(Sink):
    """Keep results in the driver, for tests and notebooks; a replayed batch replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}
        self._owner: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return "memory()"

    def check(self, use: SinkUse) -> None:
        if self._owner is not None and self._owner != (use.owner.checkpoint, use.owner.query):
            raise ConfigError(
                f"query {use.query!r}: its dt.sinks.memory() has been used with another checkpoint or query, whose batches have "
                "the same numbers",
                "give it a dt.sinks.memory() of its own",
            )

    def claim(self, use: SinkUse) -> None:
        self.check(use)
        self._owner = (use.owner.checkpoint, use.owner.query)

    def write(self, results: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = results.toArrow()

    def discard(self, batch_id: int) -> None:
        self.batches.pop(batch_id, None)

    def table(self) -> pa.Table | None:
        """Return all results so far, or None if no batch had any."""
        return pa.concat_tables(self.batches.values()) if self.batches else None


class CallableSink(Sink):
    """Call `function(results, batch_id)`, with a DataFrame, for every batch that has results."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        if not callable(function):
            raise ConfigError(f"dt.sinks.call got {function!r}; expected a function of a DataFrame and a batch id")
        self._function = function

    def __repr__(self) -> str:
        return f"call({getattr(self._function, '__name__', self._function)})"

    def write(self, results: DataFrame, batch_id: int) -> None:
        self._function(results, batch_id)


class FormatSink(Sink):
    """Write with any Spark data source, with a column `batch_id`; a failure may duplicate a batch."""

    def __init__(self, name: str, mode: WriteMode = "append", **options: str) -> None:
        if mode not in get_args(WriteMode):
            raise ConfigError.choice("dt.sinks.format(mode=...)", mode, get_args(WriteMode))
        if mode == "overwrite" and name != "noop":
            warnings.warn(
                "dt.sinks.format(mode='overwrite'): each batch replaces all that were written before it; use 'append' to keep them",
                DovetailWarning,
                stacklevel=2,
            )
        self._format, self._mode, self._options = name, mode, options

    def __repr__(self) -> str:
        return f"format({self._format!r})"

    def check(self, use: SinkUse) -> None:
        _check_columns(use)

    def write(self, results: DataFrame, batch_id: int) -> None:
        tagged = results.withColumn("batch_id", F.lit(batch_id))
        tagged.write.format(self._format).mode(self._mode).options(**self._options).save()


class TableSink(Sink):
    """Write to a table of Spark's catalog, exactly once; create it if it does not exist.

    The table is partitioned by a column `batch_id`: each batch replaces its own partition, so replays change nothing.
    """

    def __init__(self, name: str, format: str = "parquet") -> None:  # noqa: A002
        if not isinstance(name, str) or not name:
            raise ConfigError(f"dt.sinks.table got {name!r}; expected the name of a table, as text")
        self.name, self._format = name, format

    def __repr__(self) -> str:
        return f"table({self.name!r})"

    def check(self, use: SinkUse) -> None:
        _check_columns(use)
        if use.spark.catalog.tableExists(self.name):
            self._check_schema(use)
            last = use.spark.sql(f"SELECT max(batch_id) AS last FROM {self.name}").collect()[0]["last"]  # noqa: S608
            use.check_owner(self._read_owner(use), [] if last is None else [int(last)], f"the table {self.name}")

    def claim(self, use: SinkUse) -> None:
        self.check(use)
        owner = _quoted(use.owner.to_json())
        if not use.spark.catalog.tableExists(self.name):
            self._create(use, owner)
            use.warn_of_earlier_results(f"the table {self.name}")
        elif self._read_owner(use) is None:
            use.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_PROPERTY}' = {owner})")
        self.check(use)  # if two claimed it at once, the last one is the owner

    def _create(self, use: SinkUse, owner: str) -> None:
        columns = from_arrow_schema(use.schema).add("batch_id", LongType()).toDDL()
        try:
            use.spark.sql(
                f"CREATE TABLE {self.name} ({columns}) USING {self._format} PARTITIONED BY (batch_id) "
                f"TBLPROPERTIES ('{_PROPERTY}' = {owner})"
            )
        except PySparkException as error:
            if error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS":
                return  # another start was first; the caller checks the owner next
            hint = "create it yourself, partitioned by a column batch_id bigint, or fix the problem above"
            if error.getCondition() == "LOCATION_ALREADY_EXISTS":
                hint = (
                    "the files of a dropped table are still there: an in-memory catalog loses its tables when the driver ends. Use a "
                    "persistent catalog, or dt.sinks.parquet(path)"
                )
            raise ConfigError(f"the table {self.name} cannot be created: {str(error).splitlines()[0]}", hint) from error

    def _read_owner(self, use: SinkUse) -> str | None:
        properties = {row["key"]: row["value"] for row in use.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()}
        return properties.get(_PROPERTY)

    def _check_schema(self, use: SinkUse) -> None:
        """Refuse a table with other columns or partitions than the results: inserts go by position."""
        expected = _columns_text(from_arrow_schema(use.schema).add("batch_id", LongType()))
        actual = _columns_text(use.spark.table(self.name).schema)
        partitions = [column.name for column in use.spark.catalog.listColumns(self.name) if column.isPartition]
        if actual.casefold() != expected.casefold() or partitions != ["batch_id"]:
            by = f"partitioned by {listed(partitions)}" if partitions else "not partitioned"
            raise ConfigError(
                f"query {use.query!r}: the table {self.name} has the columns ({actual}), {by}; results have ({expected}), "
                "partitioned by batch_id",
                "use another table: it is made for you if it does not exist",
            )

    def write(self, results: DataFrame, batch_id: int) -> None:
        spark = results.sparkSession
        view = f"dovetail_{uuid.uuid4().hex}"
        results.createOrReplaceTempView(view)
        try:
            # `insertInto` with a dynamic overwrite has been seen to remove the other batches.
            spark.sql(f"INSERT OVERWRITE TABLE {self.name} PARTITION (batch_id = {batch_id}) SELECT * FROM {view}")  # noqa: S608
        finally:
            spark.catalog.dropTempView(view)

    def discard(self, batch_id: int) -> None:
        """Overwrite the batch's partition with no rows: some formats cannot drop a partition."""
        spark = SparkSession.active()
        spark.catalog.refreshTable(self.name)
        table = spark.table(self.name)
        if not table.where(F.col("batch_id") == batch_id).isEmpty():
            columns = StructType(table.schema.fields[:-1])  # the last is batch_id
            self.write(spark.createDataFrame([], columns), batch_id)


def _columns_text(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _check_columns(use: SinkUse) -> None:
    """Refuse a column named `batch_id`, and names that Spark does not distinguish."""
    count = Counter(name.casefold() for name in use.schema.names)
    if "batch_id" in count:
        raise ConfigError(
            f"query {use.query!r} selects a column batch_id; the sink has one of that name, with the batch's number",
            "give the column another name with AS",
        )
    duplicates = [name for name in use.schema.names if count[name.casefold()] > 1]
    if duplicates:
        raise ConfigError(
            f"query {use.query!r} selects the columns {listed(duplicates)}, which Spark reads as one",
            "rename one with AS",
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


parquet, table, memory, call, format = ParquetSink, TableSink, MemorySink, CallableSink, FormatSink  # noqa: A001
