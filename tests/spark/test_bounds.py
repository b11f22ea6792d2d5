"""Published stream-stream joins, without windows, give the rows of Spark's own join over the same data.

Each example is an inner join with a time bound from the guides and tutorials of Spark and Flink (and of companies that
run them), put into one set of columns. Spark's batch SQL over the same rows is the judge. Most rows lie at the edges of
the bounds, or one microsecond beside them.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_session import Source

import dovetail as dt
from dovetail.errors import QueryError
from dovetail.schema import TIMESTAMP

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3600 * 10**6, 86_400 * 10**6
START = 1_700_000_000 * SECOND
TIMES = {"impressions": "impressionTime", "clicks": "clickTime", "orders": "order_time", "shipments": "ship_time"}
COLUMNS = {
    name: pa.schema({time: TIMESTAMP, f"{name}_id": pa.int64(), "id": pa.int64()}) for name, time in TIMES.items()
}
ADS = "SELECT impressions_id, clicks_id FROM impressions i JOIN clicks c ON i.id = c.id AND "
SHOP = "SELECT orders_id, shipments_id FROM orders o, shipments s WHERE o.id = s.id AND "
EXAMPLES = {
    # Spark, Structured Streaming guide: inner joins with watermarks, and the kinds of time constraints it names.
    "clicks within an hour": ADS + "clickTime >= impressionTime AND clickTime <= impressionTime + interval 1 hour",
    "left between right and later": ADS + "impressionTime BETWEEN clickTime AND clickTime + INTERVAL 1 HOUR",
    # Spark, tests of stream-stream joins: strict on both sides.
    "strict": ADS
    + "impressionTime > clickTime - interval 10 seconds AND impressionTime < clickTime + interval 5 seconds",
    # High Performance Spark: around each other.
    "around": ADS
    + "c.clickTime >= i.impressionTime - interval 5 minutes AND c.clickTime <= i.impressionTime + interval 5 minutes",
    # Databricks: a short reaction.
    "within minutes": ADS + "clickTime BETWEEN impressionTime AND impressionTime + INTERVAL 3 MINUTES",
    # Flink, SQL: the three predicates that make an interval join.
    "equal": SHOP + "o.order_time = s.ship_time",
    "half open": SHOP + "o.order_time >= s.ship_time AND o.order_time < s.ship_time + INTERVAL '10' MINUTE",
    "between": SHOP + "o.order_time BETWEEN s.ship_time - INTERVAL '10' SECOND AND s.ship_time + INTERVAL '5' SECOND",
    # Flink, SQL: orders that were shipped within four hours.
    "four hours": SHOP + "o.order_time BETWEEN s.ship_time - INTERVAL '4' HOUR AND s.ship_time",
    # Flink's cookbook: three days to fulfil an order.
    "three days": SHOP + "o.order_time BETWEEN s.ship_time - INTERVAL '3' DAY AND s.ship_time",
    # Huawei, Flink SQL: the other way round.
    "an hour": SHOP + "o.order_time BETWEEN s.ship_time AND s.ship_time + INTERVAL '1' HOUR",
    # Confluent, tutorial on joining streams: a week.
    "a week": SHOP + "s.ship_time BETWEEN o.order_time AND o.order_time + INTERVAL '7' DAYS",
    # Flink, Table API: an upper and a lower bound on different sides.
    "both sides": SHOP
    + "o.order_time >= s.ship_time - INTERVAL '5' MINUTE AND o.order_time - INTERVAL '10' MINUTE < s.ship_time",
    # Chains of such joins, which Spark's streams refuse and Flink runs one after another.
    "chain": "SELECT impressions_id, clicks_id, orders_id FROM impressions i JOIN clicks c ON i.id = c.id AND clickTime "
    "BETWEEN impressionTime AND impressionTime + interval 3 minutes JOIN orders o ON c.id = o.id AND "
    "order_time - clickTime <= INTERVAL '01:00' HOUR TO MINUTE AND order_time >= clickTime",
    "triangle": "SELECT impressions_id, clicks_id, orders_id FROM impressions i, clicks c, orders o WHERE i.id = c.id AND "
    "c.id = o.id AND ABS(i.impressionTime - c.clickTime) <= INTERVAL 10 SECONDS AND o.order_time > c.clickTime AND "
    "o.order_time < i.impressionTime + INTERVAL 5 MINUTES",
}
EDGES = [0, 5 * SECOND, 10 * SECOND, 3 * MINUTE, 5 * MINUTE, 10 * MINUTE, HOUR, 4 * HOUR, 3 * DAY, 7 * DAY]


def tables(rng: random.Random, rows: int) -> dict[str, pa.Table]:
    """Rows whose distances in time are those of the bounds, or nearly."""
    found = {}
    for name, schema in COLUMNS.items():
        times = [
            START + rng.randrange(3) * MINUTE + rng.choice((-1, 1)) * rng.choice(EDGES) + rng.choice((-1, 0, 0, 1))
            for _ in range(rows)
        ]
        columns = [pa.array(times, pa.int64()).cast(TIMESTAMP), list(range(rows)), [rng.randrange(3) for _ in times]]
        found[name] = pa.table(columns, schema=schema)
    return found


def rows_of(table: pa.Table) -> list[tuple[int, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> dict[str, pa.Table]:
    made = tables(random.Random(7), 120)
    for name, table in made.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return made


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, data: dict[str, pa.Table]) -> dict[str, list[tuple[int, ...]]]:
    assert data
    return {name: sorted(tuple(row) for row in spark.sql(sql).collect()) for name, sql in EXAMPLES.items()}


def batches(data: dict[str, pa.Table], count: int) -> list[dict[str, pa.Table]]:
    return [
        {name: table.slice(n * len(table) // count, len(table) // count) for name, table in data.items()}
        for n in range(count)
    ]


def test_published_joins_give_sparks_rows(data: dict[str, pa.Table], wanted: dict[str, list[tuple[int, ...]]]) -> None:
    session = dt.LocalSession()
    for name, schema in COLUMNS.items():
        session.stream(name, schema, event_time=TIMES[name], lateness="30 days")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, sql in EXAMPLES.items():
            session.query(name, sql)
    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in EXAMPLES}
    for batch in batches(data, 4):
        for name, table in session.push(batch).items():
            found[name] += rows_of(table)
    for name in EXAMPLES:
        assert sorted(found[name]) == wanted[name], name
        assert len(wanted[name]) > 30, name


STREAMED = ("clicks within an hour", "half open", "triangle")


def test_published_joins_give_sparks_rows_on_streams(
    spark: SparkSession, tmp_path: Path, data: dict[str, pa.Table], wanted: dict[str, list[tuple[int, ...]]]
) -> None:
    source = Source(spark, tmp_path / "in")
    source.add(batches(data, 2))
    session = dt.Session(spark, shards=2)
    for name, schema in COLUMNS.items():
        session.stream(name, source.frame(name, schema), event_time=TIMES[name], lateness="30 days")
    for name in STREAMED:
        session.query(name, EXAMPLES[name])
    assert "from clickTime <= impressionTime + interval 1 hour" in session.explain().text
    sinks = {name: dt.sinks.memory() for name in STREAMED}
    session.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True}).await_termination()
    for name, sink in sinks.items():
        found = sink.table()
        assert found is not None
        assert rows_of(found) == wanted[name], name


def test_one_sided_bounds_have_no_window_and_the_hint_names_what_is_missing(data: dict[str, pa.Table]) -> None:
    """Spark joins such streams and keeps their state for ever."""
    assert data
    session = dt.LocalSession()
    for name, schema in COLUMNS.items():
        session.stream(name, schema, event_time=TIMES[name])
    with pytest.raises(QueryError) as refused:
        session.query("q", ADS + "impressionTime < clickTime - interval 5 seconds")
    assert refused.value.hint == (
        "add c.clickTime <= i.impressionTime + INTERVAL 10 SECONDS, or write impressions i [RANGE 10 SECONDS]"
    )
    session.query("q", ADS.replace("impressions i", "impressions i [RANGE 10 SECONDS]") + "impressionTime < clickTime")
