"""Constants mean on Spark what they mean to Spark, in the session's time zone; a checkpoint keeps to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_session import Source

import dovetail as dt
from dovetail.errors import QueryError, StateError
from dovetail.query.expressions import Literal
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema

ZONE = "spark.sql.session.timeZone"
ZONES = ("America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "+05:30", "UTC")
COLUMNS = pa.schema({"ts": TIMESTAMP, "k": pa.int64()})
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "ab"}
FROM = "FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k"


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.set(ZONE, "UTC")


def constants() -> list[str]:
    """Around changes of the clock in several zones, and anywhere between 1850 and 2400."""
    rng = random.Random(3)
    times = ["2024-03-10 02:30:00", "2024-03-10 01:59:59.999999", "2024-11-03 01:30:00", "2024-03-31 02:00:00"]
    times += [
        "2018-11-04 00:00:00",
        "2018-11-04 00:30:00",
        "2018-02-17 23:30:00",
        "2011-12-30 12:00:00",
        "1883-11-18 12:03:00",
    ]
    for _ in range(60):
        moment = datetime(rng.randrange(1850, 2400), 1, 1) + timedelta(seconds=rng.randrange(366 * 86_400))  # noqa: DTZ001
        times.append(moment.isoformat(" "))
    found = [f"TIMESTAMP '{text}'" for text in times] + [f"CAST(DATE '{text[:10]}' AS TIMESTAMP)" for text in times]
    zoned = ("2024-03-10 02:30:00Z", "2024-03-10 02:30:00+05:30", "2024-03-10 02:30:00 Asia/Kolkata", "2024-01-31")
    return found + [f"TIMESTAMP '{text}'" for text in zoned]


@pytest.mark.parametrize("zone", ZONES)
def test_constants_are_sparks(elsewhere: SparkSession, zone: str) -> None:
    elsewhere.conf.set(ZONE, zone)
    texts = constants()
    wanted = elsewhere.sql(f"SELECT {', '.join(f'unix_micros({text})' for text in texts)}").collect()[0]
    selected = ", ".join(f"{text} AS c{number}" for number, text in enumerate(texts))
    outputs = parse_query("q", f"SELECT {selected} {FROM}", STREAMS, zone).outputs
    found = [output.expression.value for output in outputs if isinstance(output.expression, Literal)]
    assert dict(zip(texts, found, strict=True)) == dict(zip(texts, wanted, strict=True))


def test_what_is_refused_is_what_spark_counts_on_the_wall_clock(elsewhere: SparkSession) -> None:
    """In the night of a change Spark's day has 23 hours, and two instants an hour apart show two hours."""
    elsewhere.conf.set(ZONE, "America/Los_Angeles")
    row = elsewhere.sql(
        "SELECT unix_micros(t + INTERVAL 24 HOURS) - unix_micros(t) AS day, "
        "unix_micros(t + INTERVAL 12 HOURS + INTERVAL 12 HOURS) - unix_micros(t) AS hours, "
        "TIMESTAMP '2024-03-10 03:30:00' - TIMESTAMP '2024-03-10 01:30:00' AS apart "
        "FROM VALUES (TIMESTAMP '2024-03-09 12:00:00') AS v(t)"
    ).collect()[0]
    assert (row.day, row.hours, row.apart) == (23 * 3600 * 10**6, 24 * 3600 * 10**6, timedelta(hours=2))
    for condition in (
        "b.ts <= a.ts + INTERVAL 24 HOURS",
        "b.ts - a.ts <= INTERVAL 1 HOUR",
        "a.ts > CAST(b.ts AS DATE)",
    ):
        with pytest.raises(QueryError, match="time zone 'America/Los_Angeles'"):
            parse_query("q", f"SELECT a.k {FROM} AND {condition}", STREAMS, "America/Los_Angeles")


@pytest.mark.core
def test_a_session_elsewhere_finds_what_spark_finds_and_stays_there(elsewhere: SparkSession, tmp_path: Path) -> None:
    start = datetime(2024, 3, 10, tzinfo=UTC)
    times = [start + timedelta(minutes=15 * step) for step in range(96)]
    table = pa.table([pa.array(times, TIMESTAMP), [step % 4 for step in range(96)]], schema=COLUMNS)
    source = Source(elsewhere, tmp_path / "in")
    source.add([{"a": table, "b": table}])
    conditions = (
        "a.ts >= TIMESTAMP '2024-03-10 02:30:00' AND a.ts < TIMESTAMP '2024-03-10 06:00:00' AND b.ts > DATE '2024-03-10' "
        "AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 HOUR"
    )
    sql = f"SELECT a.ts AS ats, b.ts AS bts FROM a, b WHERE a.k = b.k AND {conditions}"
    elsewhere.conf.set(ZONE, "America/Los_Angeles")
    for name in "ab":
        elsewhere.createDataFrame(table).createOrReplaceTempView(name)
    micros = "SELECT unix_micros(ats) AS ats, unix_micros(bts) AS bts FROM"
    wanted = sorted(tuple(row) for row in elsewhere.sql(f"{micros} ({sql})").collect())
    assert len(wanted) > 10

    def registered() -> dt.Session:
        session = dt.Session(elsewhere, shards=1)
        for name in "ab":
            session.stream(name, source.frame(name, COLUMNS), event_time="ts")
        session.query("q", sql)
        return session

    sink, checkpoint = dt.sinks.memory(), str(tmp_path / "checkpoint")
    session = registered()
    elsewhere.conf.set(ZONE, "Asia/Kolkata")  # what counts is the zone when the query was registered
    session.start({"q": sink}, checkpoint, {"availableNow": True}).await_termination()
    found = sink.table()
    assert found is not None
    numbers = [column.cast(TIMESTAMP).cast(pa.int64()).to_pylist() for column in found.columns]
    assert sorted(zip(*numbers, strict=True)) == wanted
    with pytest.raises(StateError, match="read in time zone America/Los_Angeles, now in Asia/Kolkata"):
        registered().start({"q": dt.sinks.memory()}, checkpoint)
