"""The sources of `dt.sources`: topics of Kafka, checked before anything starts.

`kafka` reads a few records first, so a missing connector, an unknown topic, an unreachable server and a schema that does not fit are
errors where the stream is declared; Spark reports them from inside the first micro-batch, or reads NULLs. A record that does not fit
the schema becomes a row of NULLs as a whole: without an event time it is dropped and counted, see `kafka`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from dovetail.errors import ConfigError, SchemaError, listed, suggestion, warn
from dovetail.spark.driver.arguments import check_spark

Starting: TypeAlias = Literal["earliest", "latest"]
"""Where a new checkpoint begins to read."""
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
KAFKA_COLUMNS = {"kafka_partition": "partition", "kafka_offset": "offset", "kafka_timestamp": "timestamp"}
"""Columns of a stream beside those of the schema, and their names in Spark's source."""
_CORRUPT = "_dovetail_corrupt"
_SAMPLED = 100
# Spark waits for minutes by default; these hold for the check only.
_IMPATIENT = {
    "kafka.default.api.timeout.ms": "30000",
    "kafka.request.timeout.ms": "30000",
    "fetchOffset.numRetries": "1",
}
_SERVERS_HINT = (
    "servers are 'host:port', several with commas between, as this machine reaches them; the check waits 30 seconds"
)
_OPTIONS_HINT = "give what the brokers ask for in options, such as {'kafka.security.protocol': 'SSL'}"
_LARGEST_SECONDS = 1e11
"""A larger number, of seconds since 1970, is past the year 5000."""


def kafka(
    spark: SparkSession,
    servers: str,
    topic: str,
    schema: str | StructType,
    *,
    starting: Starting = "earliest",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a topic whose values are JSON objects as a streaming DataFrame.

    It has the columns of `schema`, and `kafka_partition`, `kafka_offset` and `kafka_timestamp`. A record that is no JSON object, or
    has a value of another type than the schema, has NULL in all columns but `kafka_partition` and `kafka_offset`: a session drops it
    and counts it as `refused` in `metrics()`. A field that a record lacks is NULL.

    Parameters
    ----------
    spark
        The session that the stream is declared on; it needs Spark's connector for Kafka.
    servers
        Brokers to ask first: `"host:9092"`, several with commas between.
    topic
        The name of one topic.
    schema
        The fields to read, as a `StructType` or as `"ts timestamp, user bigint"`.
    starting
        Where a new checkpoint begins. One that exists continues where it ended.
    options
        More options of the connector, such as `{"maxOffsetsPerTrigger": "500000"}` or those that begin with `kafka.`.
    """
    check_spark(spark, "sources.kafka")
    _check_texts(servers=servers, topic=topic)
    if starting not in get_args(Starting):
        raise ConfigError.choice("dt.sources.kafka(starting=...)", starting, get_args(Starting))
    fields = _parsed(schema)
    connection = {**(options or {}), "kafka.bootstrap.servers": servers, "subscribe": topic}
    _check_records(topic, fields, _sample(spark, servers, topic, fields, connection), starting)
    raw = spark.readStream.format("kafka").options(**connection).option("startingOffsets", starting).load()
    return _columns(raw, fields)


def _columns(raw: DataFrame, fields: StructType) -> DataFrame:
    """Return the columns of a stream; a record that does not fit keeps its partition and offset only."""
    parsed = raw.select(_record(fields).alias("record"), *KAFKA_COLUMNS.values())
    fits = F.col("record").isNotNull() & F.col("record")[_CORRUPT].isNull()
    columns = [F.when(fits, F.col("record")[field.name]).alias(field.name) for field in fields]
    sent_at = F.when(fits, F.col("timestamp"))
    return parsed.select(
        *columns,
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        sent_at.alias("kafka_timestamp"),
    )


def _record(fields: StructType) -> Column:
    """Return the parsed value of a record.

    Its field `_CORRUPT` is the whole text if any field does not fit.
    """
    target = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(F.col("value").cast("string"), target, {"columnNameOfCorruptRecord": _CORRUPT})


# -- checks ---------------------------------------------------------------------------------------------------------------------


def _check_texts(**arguments: Any) -> None:
    for name, value in arguments.items():
        if not (isinstance(value, str) and value):
            example = "localhost:9092" if name == "servers" else "clicks"
            raise ConfigError(
                f"dt.sources.kafka({name}=...) is {value!r}; expected text", f"write {example!r}, for example"
            )
    if "," in arguments["topic"]:
        first = arguments["topic"].partition(",")[0]
        raise ConfigError(
            f"dt.sources.kafka(topic={arguments['topic']!r}): a stream reads one topic",
            f"declare a stream for each, or join their frames: kafka(..., {first!r}, ...).unionByName(kafka(...))",
        )


def _parsed(schema: Any) -> StructType:
    """Return the fields to read."""
    example = "write 'ts timestamp, user bigint', or give a pyspark.sql.types.StructType"
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except PySparkException as error:
            reason = next(line for line in str(error).splitlines() if line)
            raise SchemaError(f"dt.sources.kafka(schema={schema!r}): {reason}", example) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise SchemaError(f"dt.sources.kafka(schema=...) is {schema!r}; expected the fields of a record", example)
    reserved = [name for name in schema.names if name.lower() in KAFKA_COLUMNS]
    if reserved:
        raise SchemaError(
            f"dt.sources.kafka: the schema has {listed(reserved)}, which the source adds itself",
            "leave it out; partition, offset and time of a record are in the columns kafka_...",
        )
    return schema


Sample: TypeAlias = Sequence[tuple[str | None, bool]]
"""Values of records, and whether each fits the schema."""


def _sample(spark: SparkSession, servers: str, topic: str, fields: StructType, connection: Mapping[str, str]) -> Sample:
    """Return some of the earliest records; raise `ConfigError` if they cannot be read."""
    try:
        raw = spark.read.format("kafka").options(**{**_IMPATIENT, **connection}).load()
        rows = raw.select(F.col("value").cast("string").alias("value"), _record(fields).alias("record"))
        fits = F.col("record").isNotNull() & F.col("record")[_CORRUPT].isNull()
        return [(row.value, row.fits) for row in rows.select("value", fits.alias("fits")).limit(_SAMPLED).collect()]
    except (PySparkException, Py4JError) as error:
        raise _explained(str(error), spark, servers, topic) from error


def _explained(text: str, spark: SparkSession, servers: str, topic: str) -> ConfigError:
    """Return the error for what Spark or Kafka said when the topic was read."""
    place = f"dt.sources.kafka: topic {topic!r} at {servers!r}"
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" in text:
        packages = f'conf={{"spark.jars.packages": "{CONNECTOR}:{spark.version}"}}'
        return ConfigError(
            "dt.sources.kafka: Spark has no connector for Kafka",
            f"start Python again, and Spark with spark = dt.spark.session({packages}); Spark loads jars only when it starts",
        )
    if "UnknownTopicOrPartition" in text:
        command = f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 3"
        return ConfigError(f"{place} does not exist", f"mind its spelling, or create it: {command}")
    if "InvalidTopic" in text:
        return ConfigError(f"{place} has a name that Kafka does not allow", "letters, digits, '.', '_' and '-'")
    if "TimeoutException" in text:
        return ConfigError(f"{place}: no broker answers", _SERVERS_HINT)
    if "bootstrap.servers" in text:
        return ConfigError(f"{place}: the servers have no address", _SERVERS_HINT)
    causes = [line.strip(" :") for line in text.splitlines() if "Exception: " in line]
    return ConfigError(f"{place} cannot be read: {(causes or text.splitlines())[-1]}", _OPTIONS_HINT)


def _check_records(topic: str, fields: StructType, sample: Sample, starting: Starting) -> None:
    """Refuse a schema that no record of the sample fits; warn of fields that none has."""
    records = [(text, fits) for text, fits in sample if text is not None]
    if not records or starting == "latest":  # what will be sent from now on may differ from what is there
        return
    place = f"topic {topic!r}"
    if not any(fits for _, fits in records):
        raise SchemaError(
            f"{place}: none of the first {len(records)} records fits the schema {fields.simpleString()}; the first is "
            f"{records[0][0][:200]!r}",
            "the schema names the fields of a JSON object and their types; a field with values of several types is a string",
        )
    misfits = [text for text, fits in records if not fits]
    if misfits:
        warn(
            f"{place}: {len(misfits)} of the first {len(records)} records do not fit the schema and will be dropped; the first is "
            f"{misfits[0][:200]!r}\nHint: metrics() counts them as refused; a field with values of several types is a string"
        )
    objects = [record for text, fits in records if fits for record in _objects(text)]
    _check_times(place, fields, objects)
    present = {name for record in objects for name in record}
    missing = [name for name in fields.names if name not in present]
    if not missing or not objects:
        return
    hint = suggestion(missing[0], present, f"fields there: {listed(sorted(present))}")
    message = f"{place}: no field {listed(missing)} in the first {len(objects)} records"
    if len(missing) == len(fields):
        raise SchemaError(message, hint)
    warn(f"{message}: the column is NULL there\nHint: {hint}")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield a record; not if it is JSON to Spark only, which is more lenient."""
    with suppress(ValueError):
        record = json.loads(text)
        if isinstance(record, dict):
            yield record


def _check_times(place: str, fields: StructType, objects: Sequence[Mapping[str, Any]]) -> None:
    """Refuse numbers that Spark would read as seconds, and that are not."""
    for field in fields:
        if isinstance(field.dataType, TimestampType):
            for record in objects:
                value = record.get(field.name)
                if isinstance(value, int | float) and abs(value) > _LARGEST_SECONDS:
                    unit = "millis" if abs(value) < 1e14 else "micros"
                    raise SchemaError(
                        f"{place}: {field.name!r} is {value} in a record; Spark reads a number as seconds since 1970",
                        f"write '{field.name} bigint' in the schema, and then "
                        f"frame.withColumn({field.name!r}, F.timestamp_{unit}({field.name!r}))",
                    )


_NAMES = ("kafka",)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        hint = suggestion(name, _NAMES, "the sources are kafka; any other streaming DataFrame is a source as well")
        raise AttributeError(f"dt.sources has no attribute {name!r}\nHint: {hint}", name=name, obj=None)


__all__ = ["kafka"]
