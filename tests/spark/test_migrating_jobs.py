"""Plans that migrate while a job runs on Spark: the monitor sees streams change, every shard goes on by the new plan at one batch."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_session import Source

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.session import monitor as monitoring
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.int64())])
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "abcd"}
SQL = {
    f"with_{name}": f"SELECT a.ts AS at, b.ts AS bt, {name}.ts AS ct FROM a [RANGE 3 s], b [RANGE 3 s], {name} [RANGE 3 s] "
    f"WHERE a.k = b.k AND b.j = {name}.j"
    for name in "cd"
}
ROWS = 60


def batch(rng: np.random.Generator, number: int, keys: tuple[int, int]) -> dict[str, pa.Table]:
    found = {}
    for name in STREAMS:
        times = np.sort(rng.integers(1_000_000 * number, 1_000_000 * (number + 1), ROWS))
        columns = [pa.array(times, TIMESTAMP), *(pa.array(rng.integers(0, count, ROWS)) for count in keys)]
        found[name] = pa.table(columns, schema=COLUMNS)
    return found


@pytest.mark.slow
def test_a_job_migrates_when_selectivities_drift(spark: SparkSession, tmp_path: Path) -> None:
    rng, oracle, source = np.random.default_rng(1), Oracle(STREAMS.values()), Source(spark, tmp_path / "in")
    source.add([{name: COLUMNS.empty_table() for name in STREAMS}])
    session = dt.Session(spark, shards=2, config=dt.Config(strategy="exchange"))
    for name in STREAMS:
        session.stream(name, source.frame(name, COLUMNS), "ts", rate=ROWS)
    for name, sql in SQL.items():
        session.query(name, sql)
        oracle.add_query(parse_query(name, sql, STREAMS))
    sinks = {name: dt.sinks.memory() for name in SQL}
    checkpoint = tmp_path / "checkpoint"

    def run(number: int, keys: tuple[int, int]) -> None:
        pushed = batch(rng, number, keys)
        source.add([pushed])
        oracle.push(pushed)
        running.query.processAllAvailable()
        if running._planning is not None:
            running._planning.join()

    with patch.multiple(monitoring, CHECK_AFTER_TUPLES=1, CHECK_AFTER_PER_STAGE=0):
        running = session.start(sinks, str(checkpoint))
        for number in range(12):
            run(number, (400, 10) if number < 6 else (4, 400))
    migrations = running.metrics()["migrations"]
    assert migrations
    stored = sorted((checkpoint / "dovetail" / "_plans").glob("*.json"))
    causes = [json.loads(path.read_text())["cause"] for path in stored]
    assert [cause for cause in causes if cause] == [each["cause"] for each in migrations]
    running.stop()
    for name in SQL:
        expected = oracle.results_table(name)
        assert expected.num_rows > 100
        found = sinks[name].table()
        assert found is not None
        assert_same_rows(found.cast(expected.schema), expected, name)
