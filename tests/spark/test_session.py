"""Sessions on a real Spark: random queries against the oracle, restarts, sinks, refusals."""

from __future__ import annotations

import gc
import os
import random
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import dovetail as dt
from dovetail.errors import ConfigError, StateError
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.compat import from_arrow_schema
from dovetail.spark.driver.pipeline import choose_shard_ids
from dovetail.spark.sinks.sinks import MemorySink
from dovetail.spark.wire import FRAME_BYTES
from dovetail.spark.worker.callbacks import ShardProcessor
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.string()), ("v", pa.float64()), ("d", pa.date32())])
STREAMS = {
    name: StreamSchema(name, COLUMNS, "ts", lateness=2_000_000, rate=rate)
    for name, rate in zip("abcd", (4, 2, 1, 1), strict=True)
}
BATCHES = 4

QUERIES = {
    "common key": "SELECT a.v, b.v AS bv, c.v AS cv FROM a [RANGE 5 s], b [RANGE 4 s], c [RANGE 3 s] WHERE a.x = b.x AND b.x = c.x",
    "the same windows": "SELECT a.v + b.v AS s FROM a [RANGE 1 s], b [RANGE 2 s], c [RANGE 9 s] "
    "WHERE a.x = b.x AND b.x = c.x AND c.v < 0.5",
    "chain": "SELECT a.ts, a.d, a.y, a.v, b.v AS bv, c.v AS cv, cast(a.x AS decimal(10, 2)) AS dx, a.x > 1 AS big, "
    "cast(a.x AS tinyint) AS tiny FROM a [RANGE 5 s], b [RANGE 4 s], c [RANGE 3 s] WHERE a.x = b.x AND b.y = c.y",
    "star": "SELECT a.ts, b.v AS bv, c.v AS cv, d.v AS dv FROM a [RANGE 2 s], b [RANGE 2 s], c [RANGE 2 s], d [RANGE 2 s] "
    "WHERE a.x = b.x AND a.y = c.y AND a.d = d.d",
    "cycle": "SELECT a.v, b.v AS bv, c.v AS cv FROM a [RANGE 5 s], b [RANGE 5 s], c [RANGE 5 s] "
    "WHERE a.x = b.x AND b.y = c.y AND c.d = a.d",
    "theta": "SELECT a.v, b.v AS bv FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.v < b.v AND a.x = 1",
    "band": "SELECT a.v, b.v AS bv FROM a [RANGE 3 s], b [RANGE 3 s] WHERE a.x = b.x AND b.v BETWEEN a.v - 0.1 AND a.v + 0.1",
    "self": "SELECT p.v, q.v AS qv FROM a p [RANGE 2 s], a q [RANGE 3 s] WHERE p.x = q.x AND p.y = q.y",
    "self chain": "SELECT p.v, q.v AS qv, c.v AS cv FROM a p [RANGE 2 s], a q [RANGE 2 s], c [RANGE 2 s] "
    "WHERE p.y = q.y AND q.x = c.x",
    "self theta": "SELECT p.v, q.v AS qv FROM c p [RANGE 1 s], c q [RANGE 1 s] WHERE p.v < q.v",
    "rows": "SELECT a.v, b.v AS bv FROM a [ROWS 3], b [RANGE 5 s] WHERE a.x = b.x",
    "rows per value": "SELECT a.v, b.v AS bv FROM a [PARTITION BY x ROWS 2], b [RANGE 5 s] WHERE a.x = b.x",
    "mixed types": "SELECT a.v, b.d FROM a [RANGE 3 s], b [RANGE 3 s] WHERE a.x + 1 = b.x * 1.0 AND a.y <> b.y",
}


def batches(seed: int, count: int = BATCHES, rows: int = 40) -> list[dict[str, pa.Table]]:
    """Ten seconds of each stream per batch, out of order within it, some of it late."""
    rng = random.Random(seed)

    def table(batch: int) -> pa.Table:
        seconds = [max(0.0, 10 * batch + rng.uniform(-3, 10)) for _ in range(rows)]
        return pa.table(
            [
                pa.array([int(s * 4) * 250_000 for s in seconds], TIMESTAMP),
                [rng.choice([1, 2, 3, 4, None]) for _ in range(rows)],
                [rng.choice(["p", "q", "r", None]) for _ in range(rows)],
                [rng.choice([rng.random(), float("nan")]) for _ in range(rows)],
                pa.array([rng.randrange(3) for _ in range(rows)], pa.int32()).cast(pa.date32()),
            ],
            schema=COLUMNS,
        )

    return [{name: table(batch) for name in STREAMS} for batch in range(count)]


class Source:
    """Parquet files, one per stream and batch, read one at a time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def add(self, pushes: list[dict[str, pa.Table]]) -> None:
        """Add a file per push to each stream; files of a push appear at nearly the same moment, to be read in one batch."""
        for push in pushes:
            written = [self._write(name, table) for name, table in push.items()]
            for path in written:
                path.rename(path.with_name(path.name[1:]))

    def add_files(self, name: str, tables: list[pa.Table]) -> None:
        self.add([{name: table} for table in tables])

    def _write(self, name: str, table: pa.Table) -> Path:
        """Write a file that Spark does not see yet. Spark reads the oldest file first and ignores files a week older than another."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir()))
        path = folder / f".{number:05}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_600_000_000 + number,) * 2)
        return path

    def frame(self, name: str, columns: pa.Schema = COLUMNS) -> DataFrame:
        reader = self._spark.readStream.schema(from_arrow_schema(columns)).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder / name))


def session(spark: SparkSession, source: Source, queries: Mapping[str, str], **options: Any) -> dt.Session:
    """Declare queries and the streams that they read: every micro-batch of a job looks for files of each of its streams."""
    made = dt.Session(spark, **options)
    read = {ref.stream for name, sql in queries.items() for ref in parse_query(name, sql, STREAMS).refs}
    for name, stream in STREAMS.items():
        if name in read:
            made.stream(name, source.frame(name), "ts", lateness="2 seconds", rate=stream.rate)
    for name, sql in queries.items():
        made.query(name, sql)
    return made


def expected(pushes: list[dict[str, pa.Table]], queries: Mapping[str, str]) -> Oracle:
    oracle = Oracle(STREAMS.values())
    for name, sql in queries.items():
        oracle.add_query(parse_query(name, sql, STREAMS))
    for push in pushes:
        oracle.push(push)
    return oracle


def check(sinks: Mapping[str, MemorySink], oracle: Oracle) -> int:
    total = 0
    for name, sink in sinks.items():
        wanted = oracle.results_table(name)
        found = sink.table()
        assert_same_rows(wanted.slice(0, 0) if found is None else found.cast(wanted.schema), wanted, name)
        total += wanted.num_rows
    return total


@pytest.mark.core
@pytest.mark.parametrize("shards", [4])
def test_queries_of_every_kind_equal_the_oracle(spark: SparkSession, tmp_path: Path, shards: int) -> None:
    pushes = batches(seed=shards)
    source = Source(spark, tmp_path / "in")
    source.add(pushes)
    sinks = {name: dt.sinks.memory() for name in QUERIES}
    running = session(spark, source, QUERIES, shards=shards).start(
        sinks, str(tmp_path / "checkpoint"), {"availableNow": True}
    )
    running.await_termination()
    oracle = expected(pushes, QUERIES)
    assert check(sinks, oracle) > 1000
    metrics = running.metrics()
    assert metrics["batches"] == BATCHES
    assert all(1 <= stream["skew"] <= shards for stream in metrics["streams"].values())
    assert any(stream["skew"] > 1 for stream in metrics["streams"].values())
    assert [stream["hottest"] for stream in metrics["streams"].values()] == [{}] * len(metrics["streams"])
    assert {name: entry["results"] for name, entry in metrics["queries"].items()} == {
        name: oracle.results_table(name).num_rows for name in QUERIES
    }


@pytest.mark.core
def test_a_restart_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    pushes = batches(seed=9)
    queries = {name: QUERIES[name] for name in ("chain", "rows", "self")}
    source = Source(spark, tmp_path / "in")
    sinks = {name: dt.sinks.memory() for name in queries}
    for part in (pushes[:2], pushes[2:]):
        source.add(part)
        made = session(spark, source, queries, shards=2)
        running = made.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True})
        running.await_termination()
    assert check(sinks, expected(pushes, queries)) > 100

    ended = weakref.ref(running)
    del running
    gc.collect()
    assert ended() is None, "it would keep its streaming query in the JVM for as long as the process lives"

    other = session(spark, source, queries, shards=3)
    with pytest.raises(StateError, match="it has 2 shards, this session 3"):
        other.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True})


def test_shard_ids_spread_and_depend_on_the_number_of_shards_only(spark: SparkSession) -> None:
    found = {count: choose_shard_ids(spark, count) for count in (1, 2, 4, 12)}
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert {count: choose_shard_ids(spark, count) for count in found} == found
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    for count, ids in found.items():
        for partitions in (p for p in range(1, count + 1) if count % p == 0):
            places = spark.createDataFrame([(i,) for i in ids], "id int").selectExpr(f"pmod(hash(id), {partitions}) p")
            assert {row["count"] for row in places.groupBy("p").count().collect()} == {count // partitions}


def test_the_builder_stays_callable(spark: SparkSession) -> None:
    assert dt.Session is not None
    assert callable(dt.spark.session)
    assert dt.spark.session() is spark


class Listener(StreamingQueryListener):
    """Keeps what each batch observed."""

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if "dovetail" in event.progress.observedMetrics:
            self.seen.append(event.progress.observedMetrics["dovetail"].asDict())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


@pytest.mark.core
def test_sinks_and_null_times(spark: SparkSession, tmp_path: Path) -> None:
    pushes = batches(seed=3, count=2)
    source = Source(spark, tmp_path / "in")
    holed = [dict(push) for push in pushes]
    times = holed[1]["a"]["ts"].to_pylist()
    nulls = pa.table([[None] * 3, *(holed[1]["a"].column(i).slice(0, 3) for i in range(1, 5))], schema=COLUMNS)
    holed[1]["a"] = pa.concat_tables([holed[1]["a"], nulls])
    assert len(times) == 40
    source.add(holed)
    names = ("chain", "self", "band", "common key", "mixed types")
    queries = {name: QUERIES[name] for name in names}
    seen: list[int] = []

    def careless(results: DataFrame, batch_id: int) -> None:
        results.limit(1).collect()
        seen.append(batch_id)

    sinks = {
        "chain": dt.sinks.parquet(str(tmp_path / "out")),
        "self": dt.sinks.call(careless),
        "band": dt.sinks.call(lambda *_: None),
        "common key": dt.sinks.memory(),
        "mixed types": dt.sinks.table("mixed_types"),
    }
    listener = Listener()
    spark.streams.addListener(listener)
    running = session(spark, source, queries, shards=2).start(
        sinks, str(tmp_path / "checkpoint"), {"availableNow": True}
    )
    running.await_termination()
    written = spark.table("mixed_types").drop("batch_id").toArrow()
    spark.sql("DROP TABLE mixed_types")
    spark.streams.removeListener(listener)
    oracle = expected(pushes, queries)
    wanted = oracle.results_table("mixed types")
    assert_same_rows(written.cast(wanted.schema), wanted)
    wanted = oracle.results_table("chain")
    written = spark.read.parquet(str(tmp_path / "out")).drop("batch_id").toArrow()
    assert_same_rows(written.cast(wanted.schema), wanted)
    memory = sinks["common key"]
    assert isinstance(memory, MemorySink)
    check({"common key": memory}, oracle)
    assert seen == [0, 1]
    assert running.metrics()["streams"]["a"]["refused"] == 3
    assert {entry.name for entry in (tmp_path / "out").glob("_*")} == {"_dovetail.batches", "_dovetail.json"}
    assert len(listener.seen) == 2
    assert sum(seen["last_batch.queries.chain.results"] for seen in listener.seen) == wanted.num_rows
    assert listener.seen[-1]["streams.a.refused"] == 3
    assert sum(seen["last_batch.streams.a.refused"] for seen in listener.seen) == 3
    check_listener(listener.seen[-1], running.metrics())
    assert {stream: listener.seen[-1][f"streams.{stream}.late"] for stream in "bc"} == {s: oracle.late[s] for s in "bc"}


def check_listener(seen: dict[str, Any], metrics: Any) -> None:
    """Check that each figure of the last batch equals the one that its name leads to in `metrics()`."""
    assert {name.split(".")[0] for name in seen} == {"streams", "last_batch", "log_bytes"}
    for path, value in seen.items():
        found = metrics
        for step in path.split("."):
            found = found[step]
        assert found == value, path


@pytest.mark.core
def test_a_dataframe_of_one_query(spark: SparkSession, tmp_path: Path) -> None:
    pushes = batches(seed=4, count=2)
    source = Source(spark, tmp_path / "in")
    source.add(pushes)
    frame = session(spark, source, QUERIES, shards=2).dataframe("chain")
    assert frame.isStreaming
    query = (
        frame.writeStream.format("memory").queryName("chain_results").outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    wanted = expected(pushes, {"chain": QUERIES["chain"]}).results_table("chain")
    assert_same_rows(spark.table("chain_results").toArrow().cast(wanted.schema), wanted)


def test_a_large_micro_batch_comes_in_frames(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 MB for one shard in one micro-batch, no frame is much larger than 64."""
    rows, size = 25_000, 4096
    seen = tmp_path / "frames"

    class Watched(ShardProcessor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            def frames() -> Iterator[Any]:
                for frame in rows:
                    with seen.open("a") as file:
                        file.write(f"{sum(len(content) for content in frame['content'] if content is not None)}\n")
                    yield frame

            yield from super().handleInputRows(key, frames(), timerValues)

    monkeypatch.setattr("dovetail.spark.driver.pipeline.ShardProcessor", Watched)
    columns = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("payload", pa.binary())])
    content = np.random.default_rng(1).bytes(rows * size)
    payloads = pa.array([content[place : place + size] for place in range(0, len(content), size)], pa.binary())
    whole = pa.table([pa.array(np.arange(rows) * 1000, TIMESTAMP), np.arange(rows), payloads], schema=columns)
    few = whole.take(pa.array(np.arange(0, rows, 1000)))
    source = Source(spark, tmp_path / "in")
    source.add([{"large": whole, "few": few}])
    made = dt.Session(spark, shards=1)
    for name in ("large", "few"):
        made.stream(name, source.frame(name, columns), "ts")
    made.query("q", "SELECT few.x, large.payload FROM few [RANGE 1 s], large [RANGE 1 s] WHERE few.x = large.x")
    sink = dt.sinks.parquet(str(tmp_path / "out"))
    made.start({"q": sink}, str(tmp_path / "checkpoint"), {"availableNow": True}).await_termination()
    found = pq.read_table(tmp_path / "out", columns=["x", "payload"]).sort_by("x")
    assert found.equals(few.select(["x", "payload"]))
    frames = [int(line) for line in seen.read_text().split()]
    assert sum(frames) > rows * size
    assert max(frames) < 1.25 * FRAME_BYTES


def test_refusals(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(spark, tmp_path / "in")
    source.add(batches(seed=4, count=1))
    made = session(spark, source, {"chain": QUERIES["chain"]})
    with pytest.raises(ConfigError, match="the DataFrame is not streaming"):
        made.stream("z", spark.range(3), "id")
    with pytest.raises(ConfigError, match="give each query one sink"):
        made.start({}, str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="registered queries: 'chain'"):
        made.start({"no": dt.sinks.memory()}, str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="there is no query 'no'"):
        made.dataframe("no")
    with pytest.raises(ConfigError, match="from 1 to 10,000"):
        dt.Session(spark, shards=0)
    assert "a.x = b.x in" in str(made.explain())
