"""A checkpoint that is cut again for other shards: the job's results over its whole life are the oracle's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_late_queries import BASE, COLUMNS, DECLARED, batch, bounds
from test_session import Source

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, assert_same_rows

STREAMS = DECLARED | {"c": StreamSchema("c", COLUMNS, "ts", 500_000, progress_by="j")}
QUERIES = {
    "key": BASE,
    "cube": "SELECT a.ts AS a_ts, b.v AS b_v, c.ts AS c_ts FROM a [RANGE 8 s], b [RANGE 8 s], c [RANGE 8 s] "
    "WHERE a.k = b.k AND b.j = c.j",
    "two ways": "SELECT p.ts AS p_ts, q.v AS q_v, b.ts AS b_ts FROM a p [RANGE 4 s], a q [RANGE 4 s], b [RANGE 4 s] "
    "WHERE p.j = q.j AND q.k = b.k",
    "rows": "SELECT a.ts AS a_ts, a.v AS a_v, b.ts AS b_ts FROM a [PARTITION BY k ROWS 3], b [RANGE 8 s] WHERE a.k = b.k",
    "all rows": "SELECT a.ts AS a_ts, b.ts AS b_ts, b.v AS b_v FROM a [ROWS 4], b [RANGE 8 s] WHERE a.j = b.j",
    "theta": "SELECT a.v AS a_v, b.v AS b_v, a.ts AS a_ts FROM a [RANGE 3 s], b [RANGE 3 s] WHERE a.v < b.v",
}
LATE = "SELECT a.ts AS a_ts, c.v AS c_v FROM a [RANGE 5 s], c [RANGE 5 s] WHERE a.k = c.k AND a.v > 0"
FILLED = BASE.replace("8 s", "6 s")


class Job:
    """A job whose checkpoint moves on, and the oracle, which knows nothing of that."""

    def __init__(self, spark: SparkSession, folder: Path, sql: dict[str, str], seed: int = 0) -> None:
        self.spark, self.folder, self.sql, self.rng = spark, folder, dict(sql), random.Random(seed)
        self.source = Source(spark, folder / "in")
        self.source.add([{name: COLUMNS.empty_table() for name in STREAMS}])
        self.sinks: dict[str, Any] = {}
        self.oracle = Oracle(STREAMS.values())
        self.batches = 0
        for name in sql:
            self._expect(name)

    def _expect(self, name: str, held: dict[str, Any] | None = None) -> None:
        self.sinks[name] = dt.sinks.memory()
        self.oracle.add_query(parse_query(name, self.sql[name], STREAMS), held)

    def session(self, shards: int, **rates: float) -> dt.Session:
        session = dt.Session(self.spark, shards=shards)
        for name, stream in STREAMS.items():
            frame, late = self.source.frame(name, COLUMNS), stream.lateness / 1e6
            session.stream(name, frame, "ts", late, rates.get(name), progress_by=stream.progress_by)
        for name, sql in self.sql.items():
            session.query(name, sql)
        return session

    def start(self, shards: int, checkpoint: str, **rates: float) -> None:
        sinks = {name: self.sinks[name] for name in self.sql}
        self.running = self.session(shards, **rates).start(sinks, self.folder / checkpoint)

    def run(self, count: int) -> None:
        for _ in range(count):
            pushed = {name: COLUMNS.empty_table() for name in STREAMS} | batch(self.rng, self.batches)
            for name, table in pushed.items():  # some tuples come twice, and both count
                pushed[name] = pa.concat_tables([table, table.slice(0, self.rng.randrange(3))])
            self.source.add([pushed])
            self.running.query.processAllAvailable()
            self.oracle.push(pushed)
            self.batches += 1

    def add(self, name: str, sql: str, held: dict[str, Any] | None = None) -> None:
        self.sql[name] = sql
        self._expect(name, held)
        self.running.add_query(name, sql, self.sinks[name], backfill=held is not None)

    def drop(self, name: str) -> None:
        self.running.drop_query(name)
        self.oracle.drop_query(name)
        del self.sql[name]

    def check(self) -> dict[str, int]:
        """Compare all results so far; give their numbers."""
        for name in self.sql:
            wanted, found = self.oracle.results_table(name), self.sinks[name].table()
            assert_same_rows(wanted.slice(0, 0) if found is None else found.cast(wanted.schema), wanted, name)
        return {name: self.oracle.results_table(name).num_rows for name in self.sql}


@pytest.mark.slow
def test_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, QUERIES)
    job.start(4, "first")
    job.run(3)
    job.add("late", LATE)
    job.add("filled", FILLED, bounds(job.oracle, [parse_query("key", BASE, DECLARED)]))
    job.run(1)
    job.drop("theta")  # its shards are still to give back what they hold
    job.running.stop()
    before = job.check()

    described = dt.migrate(spark, tmp_path / "first", tmp_path / "second", 7)
    print(described)
    job.start(7, "second")
    job.run(3)
    between = job.check()
    print(before, between)
    assert all(between[name] > before[name] for name in between)
    job.running.stop()

    dt.migrate(spark, tmp_path / "second", tmp_path / "third", 4)
    job.start(4, "third")
    job.run(3)
    after = job.check()
    print(after)
    assert all(after[name] > between[name] for name in after)
    print(job.running.metrics()["streams"])
    job.running.stop()
