"""A job on Spark that is stopped, moved and started again, and the oracle, which knows nothing of that."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from test_late_queries import COLUMNS, DECLARED, batch
from test_session import Source

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, assert_same_rows

STREAMS = DECLARED | {"c": StreamSchema("c", COLUMNS, "ts", 500_000, progress_by="j")}


class Job:
    """Streams a, b and c from files in `folder`/in, a batch at a time; some of their tuples come twice."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        sql: Mapping[str, str],
        seed: int = 0,
        sink: Callable[[str], Any] = lambda _: dt.sinks.memory(),
    ) -> None:
        self.spark, self.folder, self.sql, self.rng = spark, folder, dict(sql), random.Random(seed)
        self.source = Source(spark, folder / "in")
        self.sink, self.sinks = sink, {name: sink(name) for name in sql}
        self.oracle = Oracle(STREAMS.values())
        self.pushed: list[dict[str, pa.Table]] = []
        for name, text in sql.items():
            self.oracle.add_query(parse_query(name, text, STREAMS))

    def session(self, shards: int) -> dt.Session:
        session = dt.Session(self.spark, shards=shards)
        for name, stream in STREAMS.items():
            frame, lateness = self.source.frame(name, COLUMNS), stream.lateness / 1e6
            session.stream(name, frame, "ts", lateness, progress_by=stream.progress_by)
        for name, sql in self.sql.items():
            session.query(name, sql)
        return session

    def start(self, shards: int, checkpoint: str) -> None:
        if not self.pushed:
            self.source.add([{name: COLUMNS.empty_table() for name in STREAMS}])  # Spark wants a directory to be there
        sinks = {name: self.sinks[name] for name in self.sql}
        self.running = self.session(shards).start(sinks, self.folder / checkpoint)

    def run(self, count: int) -> None:
        for _ in range(count):
            made = {name: COLUMNS.empty_table() for name in STREAMS} | batch(self.rng, len(self.pushed))
            pushed = {name: pa.concat_tables([t, t.slice(0, self.rng.randrange(3))]) for name, t in made.items()}
            self.source.add([pushed])
            self.running.query.processAllAvailable()
            self.expect(pushed)

    def expect(self, pushed: dict[str, pa.Table]) -> None:
        self.oracle.push(pushed)
        self.pushed.append(pushed)

    def expect_query(self, name: str, sql: str, held: dict[str, Any] | None = None) -> None:
        self.sql[name], self.sinks[name] = sql, self.sink(name)
        self.oracle.add_query(parse_query(name, sql, STREAMS), held)

    def add(self, name: str, sql: str, held: dict[str, Any] | None = None) -> None:
        self.expect_query(name, sql, held)
        self.running.add_query(name, sql, self.sinks[name], backfill=held is not None)

    def drop(self, name: str) -> None:
        self.running.drop_query(name)
        self.oracle.drop_query(name)
        del self.sql[name]

    def check(self, results: Callable[[str], pa.Table | None] | None = None) -> dict[str, int]:
        """Compare all results so far; give their numbers."""
        found = {}
        for name in self.sql:
            wanted, actual = self.oracle.results_table(name), (results or self._collected)(name)
            assert_same_rows(wanted.slice(0, 0) if actual is None else actual.cast(wanted.schema), wanted, name)
            found[name] = wanted.num_rows
        return found

    def _collected(self, name: str) -> pa.Table | None:
        found: pa.Table | None = self.sinks[name].table()
        return found
