"""Queries that come and go while data flows on Spark: they give what the definition says, also after rebuilds and crashes."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline import Pipeline, Segments, layout_of
from pyspark.sql import SparkSession
from test_session import Source

import dovetail as dt
from dovetail.config import StrategyOption
from dovetail.errors import BudgetError, ConfigError, QueryError, StateError
from dovetail.live.view_file import read_view
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.planner import plan_query
from dovetail.plan.shared_plan import Load
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.session.registered_query import QueryStart, RegisteredQuery
from dovetail.spark.driver.job_diff import projected, with_query, without_query
from dovetail.spark.driver.layout import Layout, read_worker_plan
from dovetail.spark.driver.reports import BatchEndState, ShardReports
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.string()), ("v", pa.int64())])
DECLARED = {
    name: StreamSchema(name, COLUMNS, "ts", lateness) for name, lateness in (("a", 0), ("b", 2_000_000), ("c", 500_000))
}


def some_query(rng: random.Random) -> str:
    """A query over two or three streams, by one key or two, with filters of its own."""
    names = rng.sample("abc", rng.choice((2, 3)))
    keys = [rng.choice(("k", "k", "j")) for _ in names[1:]]
    where = [f"{one}.{key} = {other}.{key}" for one, other, key in zip(names, names[1:], keys, strict=False)]
    where += rng.choice(([], [f"{names[0]}.v > 1"], [f"{names[0]}.v > {names[1]}.v"], [f"{names[1]}.v + 1 <> 3"]))
    inputs = ", ".join(f"{name} [RANGE {rng.choice((1, 2, 8))} s]" for name in names)
    outputs = [f"{name}.{column} AS {name}_{column}" for name in names for column in rng.choice((("ts",), ("ts", "v")))]
    return f"SELECT {', '.join(outputs)} FROM {inputs} WHERE {' AND '.join(where)}"


def batch(rng: random.Random, number: int) -> dict[str, pa.Table]:
    found = {}
    for name in rng.sample("abc", rng.choice((1, 2, 3, 3))):
        rows = [
            {
                "ts": 1_000_000 * number + rng.randrange(2_000_000),
                "k": rng.choice((None, 1, 2, 2)),
                "j": rng.choice(("x", "y", "y", None)),
                "v": rng.randrange(4),
            }
            for _ in range(rng.randrange(1, 5))
        ]
        found[name] = pa.Table.from_pylist(rows, COLUMNS)
    return found


class Changing:
    """The pipeline without Spark, given other plans between batches as the driver does; and the oracle."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.oracle = Oracle(DECLARED.values())
        self.sql = {"q0": some_query(self.rng), "q1": some_query(self.rng)}
        self.found: dict[str, list[pa.Table]] = {}
        queries = [self.query(name) for name in self.sql]
        streams = tuple(projected(stream, queries) for stream in DECLARED.values())
        self.pipeline = Pipeline(layout_of(streams, self.sql, self.rng.choice((1, 2, 4))), directory, self.rng)
        self.pipeline.known = [self.pipeline.plan]
        self.numbers = {"q0": 0, "q1": 1}
        self.batches = self.merged = 0
        self.kept: dict[int, dict[str, tuple[int, int]]] = {}
        """By first shard of a group and stream: from which time, and from which batch on, its log is to hold tuples."""
        self.came = [dict.fromkeys(DECLARED, 0)]
        """By batch: how many tuples of each stream there were before it."""
        for query in queries:
            self.oracle.add_query(query)

    def query(self, name: str) -> JoinQuery:
        return parse_query(name, self.sql[name], DECLARED)

    @property
    def layout(self) -> Layout:
        return self.pipeline.layout

    @property
    def progress(self) -> dict[str, Any] | None:
        """How far streams have come, as shards know it."""
        known = self.pipeline.states[self.pipeline.plan.shard_list[0]]
        return known.manifest["progress"] if known.content else None

    def migrate(self) -> None:
        """Plan the queries of the beginning, and those that came long ago, together in any way."""
        layout, heads = self.layout, self.progress or {}
        marks = {name: found["head"] - DECLARED[name].lateness for name, found in heads.items()}
        job = layout.job
        late = job.caught_up(marks) if marks else []
        plans = {name: plan for name, plan in job.plans.items() if name in {*job.planned_together, *late}}
        if plans:
            strategies: tuple[StrategyOption, ...] = ("mjoin", "bjtree", "bjtree", "shared", "exchange")
            config = replace(job.config, strategy=self.rng.choice(strategies))
            chosen = JointPlanning(plans, config, scopes=layout.placement.scopes).plan()
            self.change(replace(layout, job=job.replanned(Proposal("it was asked for", chosen, plans, Load()))))
            self.merged += len(late)

    def change(self, layout: Layout) -> None:
        before = self.pipeline.plan
        progress = self.progress
        heads = {name: int(found["head"]) for name, found in (progress or {}).items()}
        layout = self.pipeline.layout = replace(layout, job=layout.job.with_start_times(self.batches, heads))
        self.pipeline.plan = layout.for_workers(before.digest, before, self.batches, progress)
        read = read_worker_plan(self.pipeline.plan.to_json())
        assert read == self.pipeline.plan
        assert [group.plan for group in read.groups] == [group.plan for group in self.pipeline.plan.groups]
        self.pipeline.known.append(self.pipeline.plan)
        for shard in range(layout.placement.total):
            self.pipeline.states.setdefault(shard, Segments())

    def add(self, name: str, *, backfill: bool) -> None:
        self.sql[name] = some_query(self.rng)
        query = self.query(name)
        plan = plan_query(query, DECLARED, self.layout.job.config)
        registered = RegisteredQuery(plan, start=QueryStart(self.batches, backfill))
        self.change(with_query(self.layout, registered, DECLARED))
        assert self.layout.query_id(name) not in self.numbers.values()
        self.numbers[name] = self.layout.query_id(name)
        kept = self.kept.get(self.layout.placement.assignments[name].first_shard or 0, {})
        carried = self.layout.job.registered[name].start.complete_from
        held: dict[str, int | tuple[int, int]] = {}
        for stream, (time, first) in kept.items():
            held[stream] = time, self.came[max(first, carried.get(stream, 0))][stream]
        self.oracle.add_query(query, held if backfill else None)

    def drop(self, name: str) -> None:
        self.check(name)
        del self.sql[name]
        self.change(without_query(self.layout, name))
        self.oracle.drop_query(name)

    def run(self) -> None:
        pushed = batch(self.rng, self.batches)
        used = {stream.name: stream.columns.names for stream in self.layout.streams}
        carried = {name: table.select(used[name]) for name, table in pushed.items()}
        names = {number: name for name, number in self.numbers.items()}
        results = self.pipeline.run(carried, fail=0.1, names=names, batch=self.batches)
        for name, tables in results.items():
            self.found.setdefault(name, []).extend(tables)
        self.oracle.push(pushed)
        self.batches += 1
        self.came.append({name: len(self.oracle._stream(name).tuples) for name in DECLARED})
        self._note_kept()

    def _note_kept(self) -> None:
        for group in self.layout.placement.groups:
            kept = self.kept.setdefault(group.first_shard, {})
            now = bounds(self.oracle, group.queries)
            for stream in [stream for stream in kept if stream not in now]:
                del kept[stream]
            for stream, time in now.items():
                before, begun = kept.get(stream, (time, self.batches - 1))
                kept[stream] = (max(time, before), begun)
        firsts = {group.first_shard for group in self.layout.placement.groups}
        self.kept = {first: kept for first, kept in self.kept.items() if first in firsts}

    def check(self, name: str) -> None:
        expected = self.oracle.results_table(name)
        found = self.found.get(name, [])
        actual = pa.concat_tables(found) if found else expected.slice(0, 0)
        assert_same_rows(actual, expected, f"{name}: {self.sql[name]}")


def bounds(oracle: Oracle, queries: Iterable[JoinQuery]) -> dict[str, int]:
    """From which event time on the log of some queries has to hold tuples."""
    found: dict[str, int] = {}
    for query in queries:
        for ref in query.refs:
            reached = [(oracle.progress[other.stream], other.stream) for other in query.refs if other is not ref]
            marks = [None if head is None else head - DECLARED[name].lateness for head, name in reached]
            known = -(1 << 61) if None in marks else min(mark for mark in marks if mark is not None)
            assert isinstance(ref.window, TimeWindow)
            found[ref.stream] = min(known - ref.window.micros, found.get(ref.stream, 1 << 62))
    return found


@given(st.integers(0, 2**32 - 1))
def test_queries_come_and_go_and_plans_migrate(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    case = Changing(seed, tmp_path_factory.mktemp("live"))
    rng = case.rng
    for number in range(11):
        if number and rng.random() < 0.4:
            case.add(f"late{number}", backfill=rng.random() < 0.7)
        if number and rng.random() < 0.3 and len(case.sql) > 1:
            case.drop(rng.choice(list(case.sql)))
        if number and rng.random() < 0.3:
            case.migrate()
        if rng.random() < 0.2:
            case.pipeline.live = tmp_path_factory.mktemp("live")  # another host: all shards are rebuilt
        case.run()
    for name in case.sql:
        case.check(name)
    active = set(case.pipeline.plan.shard_list)
    assert {shard for shard, state in case.pipeline.states.items() if state.content} <= active | set(
        case.pipeline.plan.retired
    )


# -- on Spark -------------------------------------------------------------------------------------------------------------------------

BASE = "SELECT a.ts AS a_ts, b.ts AS b_ts FROM a [RANGE 8 s], b [RANGE 8 s] WHERE a.k = b.k"
SAME_SHARDS = "SELECT a.ts AS a_ts, b.v AS b_v FROM a [RANGE 3 s], b [RANGE 2 s] WHERE a.k = b.k AND a.v > 0"
OTHER_SHARDS = "SELECT b.v AS b_v, c.v AS c_v FROM b [RANGE 5 s], c [RANGE 5 s] WHERE b.j = c.j"


class Live:
    """A job on Spark, a batch at a time, and the oracle."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder, self.rng = spark, folder, random.Random(seed)
        self.source = Source(spark, folder / "in")
        self.source.add([{name: COLUMNS.empty_table() for name in DECLARED}])
        self.oracle = Oracle(DECLARED.values())
        self.sinks: dict[str, Any] = {}
        self.sql: dict[str, str] = {}
        self.batches = 0
        self.pushed: list[dict[str, pa.Table]] = []

    def start(self, **queries: str) -> None:
        session = dt.Session(self.spark, shards=2)
        for name, stream in DECLARED.items():
            session.stream(name, self.source.frame(name, COLUMNS), "ts", lateness=stream.lateness / 1e6)
        for name, sql in queries.items():
            session.query(name, sql)
            if name not in self.sql:
                self.sql[name], self.sinks[name] = sql, dt.sinks.memory()
                self.oracle.add_query(parse_query(name, sql, DECLARED))
        self.running = session.start({name: self.sinks[name] for name in queries}, str(self.folder / "checkpoint"))

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            pushed = batch(self.rng, self.batches)
            pushed = {name: pushed.get(name, COLUMNS.empty_table()) for name in DECLARED}
            self.source.add([pushed])
            self.running.query.processAllAvailable()
            self.oracle.push(pushed)
            self.pushed.append(pushed)
            self.batches += 1

    def add(self, name: str, sql: str, held: dict[str, int | tuple[int, int]] | None = None) -> None:
        self.sql[name], self.sinks[name] = sql, dt.sinks.memory()
        assert self.running.add_query(name, sql, self.sinks[name], backfill=held is not None) > 0
        self.oracle.add_query(parse_query(name, sql, DECLARED), held)

    def check(self, *names: str) -> int:
        total = 0
        for name in names:
            wanted = self.oracle.results_table(name)
            found = self.sinks[name].table()
            assert_same_rows(wanted.slice(0, 0) if found is None else found.cast(wanted.schema), wanted, name)
            total += wanted.num_rows
        return total


@pytest.mark.slow
@pytest.mark.core
def test_queries_come_and_go_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    live = Live(spark, tmp_path, seed=1)
    live.start(base=BASE)
    live.run(3)
    live.add("apart", OTHER_SHARDS)
    live.run(2)
    live.add("same", SAME_SHARDS)  # column v is new
    live.run(2)
    held = live.running._reports.earliest_visible
    live.add("filled", BASE.replace("8 s", "4 s"), bounds(live.oracle, [parse_query("base", BASE, DECLARED)]))  # type: ignore[arg-type]
    live.run(2)
    assert set(held()["filled"]) == {"a", "b"}
    assert "starts at batch" in str(live.running.explain())
    assert live.check("base", "same", "apart", "filled") > 50

    out = dt.sinks.parquet(tmp_path / "out")
    for _ in range(2):  # a name and a directory that are free again can be used again
        live.running.add_query("again", BASE, out)
        live.running.drop_query("again")
    live.running.drop_query("same")
    gone = live.sinks["same"].table().num_rows
    live.running.drop_query("apart")
    live.run(2)
    assert live.sinks["same"].table().num_rows == gone
    live.check("base", "filled")
    assert set(live.running.metrics()["shards"]) == {0, 1}  # those of the query that is gone are gone

    metrics = json.loads(json.dumps(live.running.metrics()))
    page = live.running.monitor()
    with urllib.request.urlopen(f"{page.url}data") as answer:  # noqa: S310 - our own page
        assert json.loads(answer.read())["metrics"] == metrics
    page.stop()
    live.running.stop()
    view = read_view(tmp_path / "checkpoint")  # as a page in another process sees it
    assert (view["state"], view["metrics"]) == ("has ended", metrics)
    changes = [change["what"] for change in view["changes"]]
    assert changes[:2] == ["started with 'base'", "added 'apart'"]
    assert changes[-2:] == ["added 'filled'", "dropped 'apart', 'same'"]  # of one batch
    live.start(base=BASE, filled=BASE.replace("8 s", "4 s"))
    live.run(1)
    live.check("base", "filled")
    live.running.stop()
    with pytest.raises(StateError, match="the job has ended"):
        live.running.add_query("late", BASE, dt.sinks.memory())


@pytest.mark.slow
def test_what_cannot_be_changed_leaves_a_job_unharmed(spark: SparkSession, tmp_path: Path) -> None:
    live = Live(spark, tmp_path, seed=2)
    live.start(base=BASE)
    running, memory = live.running, dt.sinks.memory
    query = running.query
    changes: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ConfigError, "query 'base' is already registered", lambda: running.add_query("base", BASE, memory())),
        (ConfigError, "there is no query 'other'", lambda: running.drop_query("other")),
        (ConfigError, "query 'base' is the last one that runs", lambda: running.drop_query("base")),
        (QueryError, "'z'", lambda: running.add_query("q", BASE.replace("FROM a", "FROM z"), memory())),
        (ConfigError, "expected a sink", lambda: running.add_query("q", BASE, "out")),  # type: ignore[arg-type]
        (ConfigError, "count windows", lambda: running.add_query(
            "q", BASE.replace("a [RANGE 8 s]", "a [ROWS 2]"), memory(), backfill=True)),
        (ConfigError, "used with another checkpoint or query", lambda: running.add_query("q", BASE, live.sinks["base"])),
    ]  # fmt: skip
    for error, message, change in changes:
        with pytest.raises(error, match=message):
            change()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.spark.checkpoint.plan_log.MAX_PACKED_BYTES", 1000)
        with pytest.raises(ConfigError, match="divide the queries among several sessions"):
            running.add_query("q", BASE, memory())
    assert running.query is query
    live.run(2)
    live.check("base")
    running.add_query("q", SAME_SHARDS, memory())  # a name that was refused can come
    running.stop()


@pytest.mark.slow
def test_a_query_that_does_not_fit_is_refused_and_the_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    live = Live(spark, tmp_path, seed=3)
    session = dt.Session(spark, dt.Budget(memory_bytes=40_000), shards=2)
    for name in DECLARED:
        session.stream(name, live.source.frame(name, COLUMNS), "ts", rate=10)
    session.query("base", BASE)
    live.running = session.start({"base": dt.sinks.memory()}, str(tmp_path / "checkpoint"))
    with pytest.raises(BudgetError):
        live.running.add_query("huge", BASE.replace("8 s", "9 h"), dt.sinks.memory())
    live.run(1)
    assert live.running.query.isActive
    live.running.stop()


def test_a_late_query_over_some_of_the_streams_fits_a_budget() -> None:
    sql = "SELECT a.ts AS t FROM a [RANGE 2 s], b [RANGE 2 s], c [RANGE 2 s] WHERE a.k = b.k AND b.k = c.k"
    job = replace(layout_of(tuple(DECLARED.values()), {"all": sql}, 2).job, budget=dt.Budget(memory_bytes=1 << 30))
    late = job.plan_individually("some", "SELECT a.ts AS t FROM a [RANGE 2 s], b [RANGE 2 s] WHERE a.k = b.k", None)
    assert job.plan_late_query(late).joins


def test_a_batch_that_may_run_again_does_not_meet_what_was_before_a_query() -> None:
    """A query outgrows its beginning by how far streams were before the batch at hand, which the new plan may join again."""
    sql = "SELECT a.ts AS t FROM a [RANGE 2 s], b [RANGE 2 s] WHERE a.k = b.k"
    layout = layout_of(tuple(DECLARED.values()), {"q": sql, "late": sql}, 1)
    heads = dict.fromkeys(DECLARED, 10_000_000)
    registered = dict(layout.job.registered)
    registered["late"] = replace(registered["late"], start=QueryStart(3, max_event_times=heads))
    reports = ShardReports(replace(layout, job=replace(layout.job, registered=registered)))
    far, near = ({name: {"head": time} for name in DECLARED} for time in (15_000_000, 11_000_000))
    reports.recent_batches = {6: BatchEndState(near), 7: BatchEndState(far)}
    assert reports.caught_up(7) == []
    assert reports.caught_up(8) == ["late"]
