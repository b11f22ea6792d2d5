"""Dropped tuples in a sink of their own, and why a result is missing."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pipeline import Pipeline, layout_of
from pyspark.sql import SparkSession
from test_session import Source
from test_shards import spark_scenario

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError
from dovetail.schema import TIMESTAMP
from dovetail.spark.worker.json_rows import json_rows
from dovetail.testing import Oracle

NOW = 10_000_000
COLUMNS = pa.schema({"ts": TIMESTAMP, "ad": pa.int64(), "site": pa.string()})
SEEN = """SELECT c.ad, v.site FROM views v [RANGE 1 MINUTE], clicks c [RANGE 1 MINUTE]
    WHERE v.ad = c.ad AND v.site <> 'maps'"""


# -- without Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_each_dropped_tuple_comes_once_with_its_reason(seed: int, tmp_path: Path) -> None:
    """Whatever the shards, the cuts and the attempts that fail, dropped and accepted tuples are the input."""
    rng = random.Random(9000 + seed)
    scenario = spark_scenario(rng, pushes=4, late=True, nested_payload=False)
    streams = tuple(replace(stream, max_ahead=rng.choice((None, 5_000_000))) for stream in scenario.streams)
    pipeline = Pipeline(layout_of(streams, scenario.sql, rng.choice((1, 4, 6))), tmp_path, rng)
    pipeline.records_dropped, oracle = True, Oracle(streams)
    expected: Counter[tuple[str, str]] = Counter()
    for push in scenario.pushes:
        faulty = {name: with_null_times(table, scenario.catalog[name].event_time, rng) for name, table in push.items()}
        pipeline.run(faulty, fail=0.2, now=NOW)
        valid = {n: t.filter(t.column(scenario.catalog[n].event_time).is_valid()) for n, t in faulty.items()}
        oracle.push(valid, NOW)
        for name, table in faulty.items():
            expected.update((name, row) for row in json_rows(table).to_pylist())
    rows = [row for table in pipeline.dropped for row in table.to_pylist()]
    accepted = [(s.name, row) for s in streams for row in json_rows(oracle._streams[s.name].table()).to_pylist()]
    assert Counter((row["stream"], row["row"]) for row in rows) + Counter(accepted) == expected
    counts = Counter((row["stream"], row["reason"]) for row in rows)
    for stream in streams:
        assert counts[stream.name, "late"] == oracle.late[stream.name]
        assert counts[stream.name, "ahead"] == oracle.ahead[stream.name]
    assert all((row["event_time"] is None) == (row["reason"] == "no event time") for row in rows)
    assert {row["shard"] for row in rows} <= {None}


def with_null_times(table: pa.Table, event_time: str, rng: random.Random) -> pa.Table:
    index = table.schema.get_field_index(event_time)
    mask = pa.array([rng.random() < 0.1 for _ in range(table.num_rows)], pa.bool_())
    times = pc.if_else(mask, pa.scalar(None, table.schema.field(index).type), table.column(index))
    return table.set_column(index, table.schema.field(index), times)


def test_nothing_is_sent_or_collected_unless_it_is_wanted(tmp_path: Path) -> None:
    scenario = spark_scenario(random.Random(1), pushes=3, late=True)
    wanted, unwanted = (
        Pipeline(layout_of(scenario.streams, scenario.sql, 4), tmp_path / str(n), random.Random(0)) for n in (0, 1)
    )
    wanted.records_dropped = True
    for push in scenario.pushes:
        table = {n: with_null_times(t, scenario.catalog[n].event_time, random.Random(3)) for n, t in push.items()}
        assert all(len(row) < 1000 for row in unwanted._cut(table, 2, None).query("kind > 3")["content"])
        for pipeline in (wanted, unwanted):
            pipeline.run(table)
    assert wanted.dropped
    assert not unwanted.dropped


# -- on Spark -----------------------------------------------------------------------------------------------------------------


def events(*rows: tuple[float | None, int | None, str | None]) -> pa.Table:
    """Each row: seconds, ad, site."""
    times, ads, sites = zip(*rows, strict=True)
    micros = [None if seconds is None else round(seconds * 1e6) for seconds in times]
    return pa.table([pa.array(micros, TIMESTAMP), list(ads), list(sites)], schema=COLUMNS)


PUSHES: list[dict[str, Any]] = [
    {
        "views": events((0, 1, "news"), (10, 2, "news"), (20, 3, "maps"), (70, 4, "news"), (None, 5, 'né"ws')),
        "clicks": events((30, 1, None), (70, 9, None)),
    },
    {"views": events((40, 6, "news"), (71, None, "news")), "clicks": events((72, 4, None), (1, None, None))},
]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def dropped_rows(path: Path) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    assert table.num_rows == len(set(map(str, table.to_pylist())))
    return sorted(
        (row["batch_id"], row["stream"], row["reason"], row["event_time"], json.loads(row["row"])["ad"])
        for row in table.to_pylist()
    )


def test_dropped_tuples_windows_and_reasons(spark: SparkSession, tmp_path: Path) -> None:
    """One job: its dropped tuples in Parquet, also after a batch that failed was replayed, its windows, and `why`."""
    failures = [1]

    def fail_once(_: Any, batch: int) -> None:
        if batch == failures[-1]:
            failures.append(-1)
            raise OSError("no")

    source, out = Source(spark, tmp_path / "in"), tmp_path / "dropped"

    def start(sinks: dict[str, Any], **options: Any) -> dt.RunningSession:
        session = dt.Session(spark, shards=2)
        for name in ("views", "clicks"):
            session.stream(name, source.frame(name, COLUMNS), "ts", "5 seconds")
        session.query("seen", SEEN)
        session.query("again", SEEN.replace("<> 'maps'", "= 'news'"))
        return session.start(sinks, tmp_path / "checkpoint", **options)

    source.add(PUSHES[:1])
    sinks = {"seen": dt.sinks.parquet(tmp_path / "seen"), "again": dt.sinks.call(fail_once)}
    with pytest.raises(ConfigError, match=r"start\(dropped=\.\.\.\) is .*; expected a sink"):
        start(sinks, dropped=str(out))
    with pytest.raises(ConfigError, match="needs a sink of its own"):
        start(sinks, dropped=sinks["seen"])
    running = start(sinks, dropped=dt.sinks.parquet(out))
    running.query.processAllAvailable()
    source.add(PUSHES[1:])
    with pytest.raises(DovetailError, match="'again'"):
        running.await_termination()
    running = start(sinks, dropped=dt.sinks.parquet(out))
    running.query.processAllAvailable()
    assert dropped_rows(out) == [
        (0, "views", "no event time", None, 5),
        (1, "clicks", "late", at(1), None),
        (1, "views", "late", at(40), 6),
    ]
    windows = dt.read_state(tmp_path / "checkpoint")
    assert windows["views"].sort_by("ts").select(["ad", "_batch", "_queries"]).to_pylist() == [
        {"ad": 2, "_batch": 0, "_queries": ["again", "seen"]},
        {"ad": 4, "_batch": 0, "_queries": ["again", "seen"]},
    ]
    assert sorted(windows["clicks"].column("ad").to_pylist()) == [1, 4, 9]
    why = running.why
    assert (reason := why("seen", {"v": {"ad": 6, "ts": at(40)}})).reason == "late"
    assert reason.batch == 1
    assert why("seen", {"v": {"ad": 5}}).reason == "no event time"
    assert why("seen", {"v": {"ad": 1, "ts": at(0), "site": "news"}}).reason == "expired"
    assert why("seen", {"v": {"ad": 3, "site": "maps"}}).reason == "filtered"
    assert why("seen", {"v": {"ad": 2}}).reason == "no partner"
    given = why("seen", {"v": {"ad": 4, "site": "news"}, "c": {"ad": 4}})
    assert (given.reason, given.batch) == ("given", 1)
    running.stop()
    assert why("seen", {"v": {"ad": 8, "ts": at(70), "site": "a"}}).reason == "not there"
    assert "tuples" not in str(running.metrics()["last_batch"]["queries"])
