"""Random queries on a real Spark, several scenarios to a run, equal the oracle."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_session import Source, check

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, RandomCase, random_scenario

RUNS = {1: range(7), 2: range(100, 107), 3: range(200, 207), 5: range(300, 307)}
"""Seeds by number of shards: 28 scenarios."""
_SPARKS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


def spark_type(dtype: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else _SPARKS.get(dtype, dtype)


def renamed(scenario: RandomCase, number: int) -> RandomCase:
    """A scenario in Spark's types whose streams and queries have names of their own."""
    name = f"r{number}_".__add__
    streams = []
    for stream in scenario.streams:
        columns = pa.schema([field.with_type(spark_type(field.type)) for field in stream.columns])
        streams.append(replace(stream, name=name(stream.name), columns=columns))
    schemas = {stream.name: stream.columns for stream in streams}
    sql = {name(query): re.sub(r"\bs(\d)\b", rf"r{number}_s\1", text) for query, text in scenario.sql.items()}
    pushes = tuple(
        {
            stream: push[old].cast(schemas[stream], safe=False) if old in push else schemas[stream].empty_table()
            for stream in schemas
            if (old := stream.split("_", 1)[1])
        }
        for push in scenario.pushes
    )
    return RandomCase(tuple(streams), sql, pushes)


@pytest.mark.parametrize("shards", RUNS)
def test_random_queries_equal_the_oracle(spark: SparkSession, tmp_path: Path, shards: int) -> None:
    scenarios = []
    for number, seed in enumerate(RUNS[shards]):
        rng = random.Random(seed)
        options = {"aliases": rng.choice((2, 3, 3, 4)), "pushes": rng.choice((2, 3)), "nested_payload": False}
        scenarios.append(renamed(random_scenario(rng, **options), number))
    streams: list[StreamSchema] = [stream for scenario in scenarios for stream in scenario.streams]
    oracle = Oracle(streams)
    session = dt.Session(spark, shards=shards)
    source = Source(spark, tmp_path / "in")
    for stream in streams:
        pushes = [push[stream.name] for s in scenarios for push in s.pushes if stream.name in push]
        source.add_files(stream.name, pushes)
        frame = source.frame(stream.name, stream.columns)
        session.stream(stream.name, frame, stream.event_time, stream.lateness / 1e6, stream.rate)
    sinks = {}
    for scenario in scenarios:
        for name, sql in scenario.sql.items():
            session.query(name, sql)
            oracle.add_query(parse_query(name, sql, {s.name: s for s in streams}))
            sinks[name] = dt.sinks.memory()
    session.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True}).await_termination()
    for step in range(max(len(scenario.pushes) for scenario in scenarios)):
        oracle.push({n: t for s in scenarios for n, t in (s.pushes[step] if step < len(s.pushes) else {}).items()})
    assert check(sinks, oracle) > 100
