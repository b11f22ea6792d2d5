"""Where results go. Each sink gets every batch of its query once, and again, the same, when the batch is replayed.

A sink that outlives the process belongs to one query of one checkpoint; see `owners`.
"""

from __future__ import annotations

import os
import uuid
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructType

from dovetail.errors import ConfigError, DovetailWarning, StateError, listed
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.sinks.owners import SinkUse, check_directory, claim_directory
from dovetail.spark.sinks.staging import Staging, check_owned, discard_batch, plain_types, record_batch, rows_in

_PROPERTY = "dovetail.owner"


class Sink(ABC):
    """Takes the results of one query, batch by batch."""

    @abstractmethod
    def write(self, results: DataFrame, batch_id: int) -> None:
        """Write one batch; called again with the same batch id and rows after a failure."""

    def discard(self, batch_id: int) -> None:  # noqa: B027
        """Remove what an earlier attempt at this batch wrote; called when the replay has no results."""

    def check(self, use: SinkUse) -> None:  # noqa: B027
        """Refuse a query that must not write here; nothing is changed."""

    def claim(self, use: SinkUse) -> Lock | None:  # noqa: ARG002
        """Belong to this query from now on, or refuse it."""
        return None

    def directory(self, use: SinkUse) -> Directory | None:  # noqa: ARG002
        """The directory that it writes to, if it is one."""
        return None

    def staging(self, use: SinkUse, run_id: str) -> Staging | None:  # noqa: ARG002
        """Where shards may write results as Parquet themselves; None if Spark must."""
        return None

    def verify(self, batch_id: int, rows: int) -> None:  # noqa: B027
        """Raise if a batch that Spark has written is not there, where that can be seen without reading it."""


class ParquetSink(Sink):
    """Write to a directory, exactly once: read it back with `spark.read.parquet(path)`.

    One directory per batch, overwritten on replay: no row is lost and none is there twice.
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
        check_owned(directory)
        results.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/batch_id={batch_id}")
        try:
            check_owned(directory)
        except StateError:
            # Spark has made the directory again; with a batch and no owner, the next start would refuse it.
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
        found = sum(rows_in(file) for file in (local / f"batch_id={batch_id}").glob("*.parquet"))
        if found != rows:
            raise StateError(
                f"Spark has written {found:,} of {rows:,} results to {local} as the driver sees it",
                "workers must share that disk with the driver; else use a path on a file system that all can reach",
            )

    def staging(self, use: SinkUse, run_id: str) -> Staging | None:
        """Shards write to a disk that they share with the driver: `file:` says so, and a local master has but one."""
        local = self.directory(use).local
        shared = self.path.startswith("file:") or str(use.spark.conf.get("spark.master", "")).startswith("local")
        can_stage = shared and plain_types(use.schema)
        return Staging(str(local), run_id, use.query) if local is not None and can_stage else None


class MemorySink(Sink):
    """Keep results in the driver, for tests and notebooks; `.table()` gives them. A replayed batch replaces itself."""

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
        """All results so far; None when there was none."""
        return pa.concat_tables(self.batches.values()) if self.batches else None


class CallableSink(Sink):
    """Call `function(results, batch_id)` for every batch that has results; it may do with the DataFrame what it likes."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        if not callable(function):
            raise ConfigError(f"dt.sinks.call got {function!r}; expected a function of a DataFrame and a batch id")
        self._function = function

    def __repr__(self) -> str:
        return f"call({getattr(self._function, '__name__', self._function)})"

    def write(self, results: DataFrame, batch_id: int) -> None:
        self._function(results, batch_id)


class FormatSink(Sink):
    """Write with any Spark data source; results may come twice after a failure, with the same `batch_id`, which is a column."""

    def __init__(self, name: str, mode: str = "append", **options: str) -> None:
        if mode not in ("append", "overwrite"):  # the others leave out, or fail at, every batch but the first
            raise ConfigError.choice("dt.sinks.format(mode=...)", mode, ("append", "overwrite"))
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
    """Write to a table of Spark's catalog, exactly once; it is created if it does not exist, with a `batch_id` column.

    It is partitioned by that column: each batch replaces its own partition, so replays change nothing.
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
            use.check_owner(self._stored(use), [] if last is None else [int(last)], f"the table {self.name}")

    def claim(self, use: SinkUse) -> None:
        self.check(use)
        owner = _quoted(use.owner.to_json())
        if not use.spark.catalog.tableExists(self.name):
            self._create(use, owner)
            use.warn_of_earlier_results(f"the table {self.name}")
        elif self._stored(use) is None:
            use.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_PROPERTY}' = {owner})")
        self.check(use)  # two may have claimed it at once: the last one holds

    def _create(self, use: SinkUse, owner: str) -> None:
        columns = from_arrow_schema(use.schema).add("batch_id", LongType()).toDDL()
        try:
            use.spark.sql(
                f"CREATE TABLE {self.name} ({columns}) USING {self._format} PARTITIONED BY (batch_id) "
                f"TBLPROPERTIES ('{_PROPERTY}' = {owner})"
            )
        except PySparkException as error:
            if error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS":
                return  # another start was first; whose it is, is looked at next
            hint = "create it yourself, partitioned by a column batch_id bigint, or mend what Spark says"
            if error.getCondition() == "LOCATION_ALREADY_EXISTS":
                hint = (
                    "the catalog has forgotten a table of that name, as one in memory does when its driver ends: use a catalog that "
                    "lasts, or dt.sinks.parquet(path)"
                )
            raise ConfigError(f"the table {self.name} cannot be created: {str(error).splitlines()[0]}", hint) from error

    def _stored(self, use: SinkUse) -> str | None:
        found = {row["key"]: row["value"] for row in use.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()}
        return found.get(_PROPERTY)

    def _check_schema(self, use: SinkUse) -> None:
        """Results are inserted by position: the table must have the query's columns, then `batch_id`, by which it is partitioned."""
        wanted = from_arrow_schema(use.schema).add("batch_id", LongType())
        found = use.spark.table(self.name).schema
        parts = [column.name for column in use.spark.catalog.listColumns(self.name) if column.isPartition]
        texts = [
            ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema) for schema in (found, wanted)
        ]
        if texts[0].casefold() != texts[1].casefold() or parts != ["batch_id"]:
            by = f"partitioned by {listed(parts)}" if parts else "not partitioned"
            raise ConfigError(
                f"query {use.query!r}: the table {self.name} has the columns ({texts[0]}), {by}; results have ({texts[1]}), "
                "partitioned by batch_id",
                "use another table: it is made for you if it does not exist",
            )

    def write(self, results: DataFrame, batch_id: int) -> None:
        spark = results.sparkSession
        view = f"dovetail_{uuid.uuid4().hex}"
        results.createOrReplaceTempView(view)
        try:
            # `insertInto` with a dynamic overwrite was seen to remove the other batches.
            spark.sql(f"INSERT OVERWRITE TABLE {self.name} PARTITION (batch_id = {batch_id}) SELECT * FROM {view}")  # noqa: S608
        finally:
            spark.catalog.dropTempView(view)

    def discard(self, batch_id: int) -> None:
        """Overwrite the batch's partition with nothing: not every format that can be written can drop one."""
        spark = SparkSession.active()
        spark.catalog.refreshTable(self.name)
        table = spark.table(self.name)
        if not table.where(F.col("batch_id") == batch_id).isEmpty():
            columns = StructType(table.schema.fields[:-1])  # the last is batch_id
            self.write(spark.createDataFrame([], columns), batch_id)


def _check_columns(use: SinkUse) -> None:
    """Refuse columns that would be lost beside `batch_id`, or that Spark does not tell apart."""
    count = Counter(name.casefold() for name in use.schema.names)
    if "batch_id" in count:
        raise ConfigError(
            f"query {use.query!r} selects a column batch_id; the sink has one of that name, with the batch's number",
            "give the column another name with AS",
        )
    twice = [name for name in use.schema.names if count[name.casefold()] > 1]
    if twice:
        raise ConfigError(
            f"query {use.query!r} selects the columns {listed(twice)}, which Spark reads as one",
            "name them apart with AS",
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


parquet, table, memory, call, format = ParquetSink, TableSink, MemorySink, CallableSink, FormatSink  # noqa: A001
