"""`dt.sources.kafka` without a broker: arguments, a session without the connector, and how records become rows."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.errors import ConfigError, SchemaError
from dovetail.spark.compat import INSTALLED
from dovetail.spark.sources import _check_records, _columns, _explained, _parsed

FIELDS = "ts timestamp, user bigint"


def kafka(
    spark: SparkSession, servers: Any = "localhost:9092", topic: Any = "clicks", schema: Any = FIELDS, **more: Any
) -> Any:
    return dt.sources.kafka(spark, servers, topic, schema, **more)


@pytest.mark.skipif("DOVETAIL_KAFKA" in os.environ, reason="this session has the connector")
def test_a_session_without_the_connector_is_told_the_package_of_its_version(spark: SparkSession) -> None:
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{INSTALLED}"
    with pytest.raises(ConfigError, match=f"has no connector for Kafka\nHint: start Python again.*{package}"):
        kafka(spark)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": None}, r"servers=...\) is None; expected text\nHint: write 'localhost:9092'"),
        ({"topic": ""}, r"topic=...\) is ''; expected text\nHint: write 'clicks'"),
        ({"topic": "clicks,orders"}, "a stream reads one topic"),
        ({"schema": 3}, r"schema=...\) is 3; expected the fields of a record"),
        ({"schema": "ts timstamp"}, r"schema='ts timstamp'\): \[UNSUPPORTED_DATATYPE\]"),
        ({"schema": "ts timestamp, kafka_offset bigint"}, "has 'kafka_offset', which the source adds itself"),
        ({"starting": "now"}, r"starting=...\) is 'now'; allowed: 'earliest', 'latest'"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=message):
        kafka(spark, **arguments)


@pytest.mark.core
def test_a_record_that_does_not_fit_is_null_as_a_whole(spark: SparkSession) -> None:
    fitting = {
        '{"ts": "2026-11-01T00:00:00Z", "user": 1}': (0, 1),
        '{"ts": "2026-11-01T00:00:01.5+01:00"}': (1.5 - 3600, None),
        '{"user": 2, "other": "x"}': (None, 2),
        '{"ts": 1793491200, "user": null}': (0, None),
    }
    others = [
        "",
        "null",
        "x",
        "[1]",
        '{"ts": "yesterday", "user": 1}',
        '{"ts": "2026-11-01T00:00:02Z", "user": "ann"}',
        None,
    ]
    values = [(value, number) for number, value in enumerate([*fitting, *others])]
    raw = spark.createDataFrame(values, "value string, offset long").selectExpr(
        "cast(value AS binary) AS value", "7 AS partition", "offset", "timestamp '2026-11-02 00:00:00' AS timestamp"
    )
    rows = _columns(raw, _parsed(FIELDS)).orderBy("kafka_offset")
    assert rows.columns == ["ts", "user", "kafka_partition", "kafka_offset", "kafka_timestamp"]
    found = rows.selectExpr(
        "unix_micros(ts) / 1e6 - 1793491200", "user", "kafka_timestamp IS NULL", "kafka_partition", "kafka_offset"
    ).collect()
    wanted = [(*row, False) for row in fitting.values()] + [(None, None, True)] * len(others)
    assert [tuple(row) for row in found] == [(*row, 7, number) for number, row in enumerate(wanted)]


def test_a_schema_is_compared_with_some_records() -> None:
    fields = _parsed(FIELDS)
    with pytest.raises(SchemaError, match="none of the first 2 records fits the schema"):
        _check_records("t", fields, [("x", False), ("y", False), (None, False)], "earliest")
    with pytest.raises(SchemaError, match=r"no field 'ts', 'user' in the first 1 records\nHint: fields there: 'a'"):
        _check_records("t", fields, [('{"a": 1}', True)], "earliest")
    with pytest.raises(SchemaError, match=r"'ts' is 1793491200000 in a record; .*\nHint: .*F.timestamp_millis\('ts'\)"):
        _check_records("t", fields, [('{"ts": 1793491200000, "user": 1}', True)], "earliest")
    with pytest.warns(dt.DovetailWarning, match=r"1 of the first 2 records do not fit the schema .* is 'x'"):
        _check_records("t", fields, [('{"ts": 1793491200, "user": 1}', True), ("x", False)], "earliest")
    with pytest.warns(
        dt.DovetailWarning, match=r"no field 'user' in the first 1 records.*\nHint: did you mean 'usr'\?"
    ):
        _check_records("t", fields, [('{"ts": 1793491200, "usr": 1}', True)], "earliest")
    for sample in ([], [(None, False)]):
        _check_records("t", fields, sample, "earliest")
    _check_records("t", fields, [("x", False)], "latest")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "java.util.concurrent.ExecutionException: ...UnknownTopicOrPartitionException: ...",
            "does not exist\nHint: .*--topic clicks",
        ),
        (
            "...errors.TimeoutException: Timed out waiting for a node assignment.",
            "no broker answers\nHint: servers are",
        ),
        ("...ConfigException: No resolvable bootstrap urls given in bootstrap.servers", "the servers have no address"),
        ("...InvalidTopicException: Invalid topic", "a name that Kafka does not allow"),
        ("An error occurred.\n: x.SslException: no keystore\n at ...", "cannot be read: x.SslException: no keystore"),
    ],
)
def test_what_kafka_says_is_explained(spark: SparkSession, text: str, message: str) -> None:
    error = _explained(text, spark, "localhost:9092", "clicks")
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise error


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(AttributeError, match=r"dt.sources has no attribute 'kafca'\nHint: did you mean 'kafka'\?"):
        dt.sources.kafca  # type: ignore[attr-defined]  # noqa: B018
