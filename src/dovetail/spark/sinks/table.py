"""Tables of Spark's catalog.

A table in a file format of Spark has one directory for all batches. Spark writes a batch to a hidden directory in it, and the driver
moves the files to names that begin with the batch; a replay removes the files of that name first. Other formats need a partition per
batch, which a replay overwrites: nothing else replaces rows in all of them.
"""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructType

from dovetail.errors import ConfigError, listed
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.compat import from_arrow_schema
from dovetail.spark.sinks.owners import OWNER_PROPERTY, SinkUse
from dovetail.spark.sinks.sink import Sink, check_columns
from dovetail.spark.sinks.stage import BATCH_COLUMN

_FILE_FORMATS = ("parquet", "orc", "json", "csv")
"""Formats whose tables consist of the files in a directory."""
_STAGING = "_dovetail-staging"
"""Directory for a batch that is being written, hidden from readers."""


class TableSink(Sink):
    """Write to a table of Spark's catalog, exactly once; create it if it does not exist.

    The last column is `batch_id`. A replayed batch replaces its own rows, by its files or its partition.

    Parameters
    ----------
    name
        Name of the table.
    format
        Format of a new table; `parquet`, `orc`, `json` and `csv` need no partitions.
    partitioned
        Whether a new table is partitioned by `batch_id`; always true for other formats.
    """

    def __init__(self, name: str, format: str = "parquet", *, partitioned: bool = False) -> None:  # noqa: A002
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"dt.sinks.table got {name!r}; expected the name of a table, as text",
                'write, for example, dt.sinks.table("funnel")',
            )
        if not isinstance(partitioned, bool):
            raise ConfigError.choice("dt.sinks.table(partitioned=...)", partitioned, (True, False))
        self.name, self._format = name, format
        self._is_partitioned = partitioned or format.lower() not in _FILE_FORMATS
        self._files: TableFiles | None = None

    def __repr__(self) -> str:
        return f"table({self.name!r})"

    def check(self, use: SinkUse) -> None:
        check_columns(use)
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
            use.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{OWNER_PROPERTY}' = {owner})")
        self.check(use)  # if two claimed it at once, the last one is the owner
        self._files = None if self._is_partitioned else TableFiles(use.spark, self.name)

    def _create(self, use: SinkUse, owner: str) -> None:
        columns = from_arrow_schema(use.schema).add(BATCH_COLUMN, LongType()).toDDL()
        try:
            use.spark.sql(
                f"CREATE TABLE {self.name} ({columns}) USING {self._format} "
                f"{'PARTITIONED BY (batch_id) ' if self._is_partitioned else ''}TBLPROPERTIES ('{OWNER_PROPERTY}' = {owner})"
            )
        except PySparkException as error:
            if error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS":
                return  # another start was first; the caller checks the owner next
            hint = "create it yourself, with a last column batch_id bigint, or fix the problem above"
            if error.getCondition() == "LOCATION_ALREADY_EXISTS":
                hint = (
                    "the files of a dropped table are still there: an in-memory catalog loses its tables when the driver ends. Use a "
                    "persistent catalog, or dt.sinks.parquet(path)"
                )
            raise ConfigError(f"the table {self.name} cannot be created: {str(error).splitlines()[0]}", hint) from error

    def _read_owner(self, use: SinkUse) -> str | None:
        properties = {row["key"]: row["value"] for row in use.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()}
        return properties.get(OWNER_PROPERTY)

    def _check_schema(self, use: SinkUse) -> None:
        """Refuse a table with other columns or partitions than the results: inserts go by position.

        A table that exists stays partitioned, or not, as it is.
        """
        expected = _columns_text(from_arrow_schema(use.schema).add(BATCH_COLUMN, LongType()))
        actual = _columns_text(use.spark.table(self.name).schema)
        partitions = [column.name for column in use.spark.catalog.listColumns(self.name) if column.isPartition]
        is_flat = not partitions and _details(use.spark, self.name).get("Provider", "").lower() in _FILE_FORMATS
        if actual.casefold() == expected.casefold() and (is_flat or partitions == [BATCH_COLUMN]):
            self._is_partitioned = not is_flat
        else:
            by = f"partitioned by {listed(partitions)}" if partitions else "not partitioned"
            raise ConfigError(
                f"query {use.query!r}: the table {self.name} has the columns ({actual}), {by}; results have ({expected}), "
                "partitioned by batch_id",
                "use another table: it is made for you if it does not exist",
            )

    def write(self, results: DataFrame, batch_id: int) -> None:
        if self._files is not None:
            self._files.write(results, batch_id)
            return
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
        if self._files is not None:
            self._files.remove(batch_id)
            return
        spark = SparkSession.active()
        spark.catalog.refreshTable(self.name)
        table = spark.table(self.name)
        if not table.where(F.col(BATCH_COLUMN) == batch_id).isEmpty():
            columns = StructType(table.schema.fields[:-1])  # the last is batch_id
            self.write(spark.createDataFrame([], columns), batch_id)


class TableFiles:
    """The files of a table without partitions; their names begin with their batch."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        details = _details(spark, name)
        self._spark: SparkSession | None = spark
        self._name, self._format = name, details["Provider"]
        self._directory = directory_at(spark, details["Location"])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_spark": None}

    def write(self, results: DataFrame, batch_id: int) -> None:
        """Write a batch in place of an earlier attempt at it."""
        staging = self._directory.within(_STAGING)
        rows = results.withColumn(BATCH_COLUMN, F.lit(batch_id).cast("bigint"))
        rows.write.format(self._format).mode("overwrite").save(staging.uri)
        self._remove_files(batch_id)
        for index, name in enumerate(name for name in staging.names() if not name.startswith(("_", "."))):
            staging.move(name, self._directory, f"{_prefix(batch_id)}{index:05}-{name}")
        self._directory.remove(_STAGING)
        self._refresh(results.sparkSession)

    def remove(self, batch_id: int) -> None:
        """Remove a batch, if it is there."""
        if self._remove_files(batch_id):
            self._refresh(SparkSession.active())

    def _remove_files(self, batch_id: int) -> list[str]:
        names = [name for name in self._directory.names() if name.startswith(_prefix(batch_id))]
        for name in names:
            self._directory.remove(name)
        return names

    def _refresh(self, spark: SparkSession) -> None:
        """Let the session of the batch and that of the job list the files again."""
        for session in {spark, self._spark or spark}:
            session.catalog.refreshTable(self._name)


def _prefix(batch_id: int) -> str:
    return f"batch-{batch_id}-"


def _details(spark: SparkSession, name: str) -> dict[str, str]:
    """Return what Spark describes of a table beside its columns, which come first."""
    return {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()}


def _columns_text(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
