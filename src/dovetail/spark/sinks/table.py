"""Tables of Spark's catalog."""

from __future__ import annotations

import uuid

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructType

from dovetail.errors import ConfigError, listed
from dovetail.spark.compat import from_arrow_schema
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sink import Sink, check_columns

_PROPERTY = "dovetail.owner"


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


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
