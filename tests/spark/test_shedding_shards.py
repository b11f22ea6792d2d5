"""Shedding in shards: it depends on the input alone, whatever fails and is rebuilt, and the log keeps the held tuples only."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline import Pipeline, layout_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from shed_runs import COLUMNS, OTHERS, QUERIES, SECOND, TS, Input, expected, selected
from test_session import Source

import dovetail as dt
from dovetail.config import SHEDDING, Config, Shedding, SheddingPolicy
from dovetail.engine.shedding import join_sample
from dovetail.engine.storage import rows
from dovetail.errors import ConfigError, StateError
from dovetail.schema import StreamSchema
from dovetail.spark.checkpoint.reshard import resharded
from dovetail.spark.driver.job_diff import compare, without_query
from dovetail.spark.driver.layout import Layout
from dovetail.spark.state import log
from dovetail.spark.worker import processor
from dovetail.stats.recall import LossEstimate, Recall

SEEDS = st.integers(0, 2**32 - 1)


def streams(lateness: float) -> tuple[StreamSchema, ...]:
    return tuple(StreamSchema(name, COLUMNS, "ts", int(lateness * SECOND)) for name in "abc")


def layout(queries: Mapping[str, str], config: Config, shards: int, lateness: float = 0.0) -> Layout:
    return layout_of(streams(lateness), {name: selected(sql) for name, sql in queries.items()}, shards, config)


class Shards:
    """Shards, their results and their metrics."""

    def __init__(self, made: Layout, folder: Path, seed: int) -> None:
        self.pipeline = Pipeline(made, folder, random.Random(seed))
        self.pipeline.known = [self.pipeline.plan]
        self.found: dict[str, Counter[Any]] = {name: Counter() for name, _ in made.queries}
        self.folder = folder

    def push(self, number: int, batch: Mapping[str, pa.Table], fail: float = 0.0) -> None:
        for name, tables in self.pipeline.run(batch, fail=fail, batch=number).items():
            for table in tables:
                columns = [column.cast(pa.int64()).to_pylist() for column in table.columns]
                self.found[name].update(zip(*columns, strict=True))

    def lose_arrays(self) -> None:
        """Remove the arrays, so that all is rebuilt from the log."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def measurements(self) -> list[Any]:
        """By shard: shed tuples, held tuples and recall.

        Until a shard sheds, its windows may hold expired tuples that a rebuild omits; then their size is None.
        """
        return [
            [
                {
                    name: (it["shed"], it.get("last_shed"), it["state_tuples"] if has_shed else None)
                    for name, it in found["streams"].items()
                },
                {name: it["recall"] for name, it in found["queries"].items()},
            ]
            for found, has_shed in self._measured
        ]

    @property
    def held(self) -> int:
        """Tuples in all windows."""
        return sum(it["state_tuples"] for found, _ in self._measured for it in found["streams"].values())

    @property
    def _measured(self) -> list[tuple[Any, bool]]:
        """By shard: its metrics, and whether it has shed tuples."""
        found = [found for _, found in sorted(self.pipeline.metrics.items()) if "streams" in found]
        return [(it, any(stream["shed"] for stream in it["streams"].values())) for it in found]

    @property
    def logged(self) -> int:
        return sum(segment["rows"] for state in self.pipeline.states.values() for segment in state.manifest["segments"])


@st.composite
def configs(draw: st.DrawFn) -> Config:
    shedding = Shedding(
        draw(st.sampled_from(SHEDDING)),
        draw(st.integers(12, 80)),
        per=draw(st.sampled_from(("session", "window"))),
        seed=draw(st.integers(0, 99)),
    )
    return Config(shedding=shedding, adaptive=draw(st.booleans()))


def some_queries(rng: random.Random, config: Config) -> dict[str, str]:
    assert config.shedding is not None
    texts = [*QUERIES, *(OTHERS if config.shedding.policy in ("auto", "random", "fifo") else ())]
    return {f"q{number}": sql for number, sql in enumerate(rng.sample(texts, rng.choice((1, 1, 2))))}


@settings(max_examples=max(5, settings().max_examples // 3))
@given(SEEDS, configs(), st.integers(2, 7), st.sampled_from((1, 2, 4)), st.sampled_from((0.0, 2.0)))
def test_a_rebuild_sheds_and_keeps_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, config: Config, batches: int, shards: int, lateness: float
) -> None:
    """Failed attempts, lost arrays, rewritten segments and slices change nothing."""
    rng = random.Random(seed)
    shedding = config.shedding
    assert shedding is not None
    least = 6 * shards  # a tuple for each window in each shard of two groups
    config = replace(config, shedding=replace(shedding, max_tuples=max(least, shedding.max_tuples or 0)))
    queries = some_queries(rng, config)
    data = Input.drawn(rng, rng.choice((25, 60)))
    pushes = data.split(rng, batches) if not lateness else data.split_with_disorder(rng, batches)
    made, folder = layout(queries, config, shards, lateness), tmp_path_factory.mktemp("shards")
    calm, rough = (Shards(made, folder / name, seed) for name in ("calm", "rough"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "MAX_SMALL_SEGMENTS", rng.choice((1, 2, 8)))
        if rng.random() < 0.5:  # segments hold what was shed, too
            patch.setattr(log.ShardLog, "rewrite_sparse", lambda *_: None)
        patch.setattr(log, "MAX_ENTRY_BYTES", rng.choice((100, 1 << 20)))
        patch.setattr(processor, "SLICE_ROWS", rng.choice((5, 1 << 15)))
        patch.setattr(processor, "SAMPLE_STEP", 1)
        patch.setattr(join_sample, "MIN_SAMPLE", rng.choice((40, 1 << 16)))  # keys are sampled, and event times rounded
        patch.setattr(join_sample, "MIN_LOG", rng.choice((5, 4096)))
        patch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", rng.choice((4, 4096)))
        for number, batch in enumerate(pushes):
            calm.push(number, batch)
            rough.push(number, batch, fail=0.3)
            assert rough.found == calm.found
            assert rough.measurements == calm.measurements
            if rng.random() < 0.4:
                rough.lose_arrays()
    for name, (_, results) in expected(queries, pushes, lateness).items():
        assert calm.found[name] <= Counter(results)
        shed = sum(found[0] for own, _ in calm.measurements for found in own.values())
        assert shed or calm.found[name] == Counter(results)


def with_backlog(data: Input, rng: random.Random, batches: int) -> list[dict[str, pa.Table]]:
    """Cut each stream into batches of its own size, so that one may be far ahead of another."""
    cut: list[dict[str, pa.Table]] = [{} for _ in range(batches)]
    for stream, table in data.tables.items():
        ends = sorted(rng.randrange(table.num_rows + 1) for _ in range(batches - 1))
        for number, (first, end) in enumerate(pairwise([0, *ends, table.num_rows])):
            if end > first:
                cut[number][stream] = table.slice(first, end - first)
    return cut


@settings(max_examples=max(5, settings().max_examples // 3))
@given(SEEDS, st.sampled_from(SHEDDING), st.integers(2, 7), st.sampled_from((1, 2, 4)))
def test_recall_is_exact_after_restarts_and_with_a_backlog(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: SheddingPolicy, batches: int, shards: int
) -> None:
    """Samples follow all keys of such small input, so that estimate and interval are the fraction of results that was not lost."""
    rng = random.Random(seed)
    config, queries = (
        Config(shedding=Shedding(policy, rng.randrange(12, 60), seed=seed % 9)),
        {"q": rng.choice(QUERIES[:2])},
    )
    data = Input.drawn(rng, 60)
    pushes = with_backlog(data, rng, batches)
    run = Shards(layout(queries, config, shards), tmp_path_factory.mktemp("shards"), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "SAMPLE_STEP", 1)
        for number, batch in enumerate(pushes):
            run.push(number, batch, fail=0.3)
            if rng.random() < 0.3:
                run.lose_arrays()
    ((_, results),) = expected(queries, pushes, 0.0).values()
    recall = Recall.of(0, LossEstimate())
    for _, recalls in run.measurements:
        of_shard = recalls["q"]
        recall += Recall.of(of_shard["given"], LossEstimate(**of_shard["lost"]))
    true = run.found["q"].total() / len(results) if results else 1.0
    assert recall.low == recall.estimate == recall.high == pytest.approx(true)


@pytest.mark.parametrize("smallest_rewrite", [1, 4096])
def test_a_rebuild_keeps_expired_tuples_behind_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smallest_rewrite: int
) -> None:
    """Out of order, a tuple stays until those that arrived before it have expired; it fills the cap, so a rebuild keeps it."""
    monkeypatch.setattr("dovetail.engine.storage.window._SMALLEST_REWRITE", smallest_rewrite)
    batches: list[dict[str, list[float]]] = [
        {"a": [10], "b": [5] * 8},  # one is shed
        {"a": [8.5] * 3},
        {"b": [15]},  # tuples of a from 9 s on are needed
        {"a": [14], "b": [15]},
        {"a": [15] * 4, "b": [16]},
    ]
    made = layout({"q": QUERIES[0]}, Config(shedding=Shedding("fifo", 8)), 1, lateness=2)
    calm, rough = (Shards(made, tmp_path / name, 0) for name in ("calm", "rough"))
    for number, batch in enumerate(batches):
        tables = {
            stream: pa.table(
                [pa.array([int(time * SECOND) for time in times], TS), *[[1] * len(times)] * 3], schema=COLUMNS
            )
            for stream, times in batch.items()
        }
        calm.push(number, tables)
        rough.push(number, tables)
        assert rough.found == calm.found
        assert rough.measurements == calm.measurements
        if number == 2:
            assert rough.measurements[0][0]["a"][2] == 4
        rough.lose_arrays()
    assert rough.pipeline.rebuilt == len(batches) - 1


@pytest.mark.parametrize("policy", SHEDDING)
def test_one_shard_sheds_what_a_local_session_does(tmp_path: Path, policy: SheddingPolicy) -> None:
    rng = random.Random(3)
    pushes = Input.drawn(rng, 60).split(rng, 5)
    config = Config(shedding=Shedding(policy, 40))
    shard = Shards(layout({"q": QUERIES[1]}, config, 1), tmp_path, 0)
    local = dt.LocalSession(config=config)
    for stream in "abc":
        local.stream(stream, COLUMNS, event_time="ts")
    local.query("q", selected(QUERIES[1]))
    for number, batch in enumerate(pushes):
        shard.push(number, batch)
        local.push(batch)
    (measurements, recall), measured = shard.measurements[0], local.metrics()
    assert sum(shed for shed, _, _ in measurements.values()) > 0
    assert {name: figure[0] for name, figure in measurements.items()} == {
        name: found["shed"] for name, found in measured["streams"].items()
    }
    assert recall["q"] == measured["queries"]["q"]["recall"]


def test_the_log_keeps_few_shed_tuples(tmp_path: Path) -> None:
    """The log holds at most about twice as many tuples as the windows, however long a window is."""
    rng = random.Random(1)
    config = Config(shedding=Shedding("fifo", 60))
    shards = Shards(layout({"q": QUERIES[1].replace("5 s", "20 s")}, config, 2), tmp_path, 0)
    for number, batch in enumerate(Input.drawn(rng, 400).split(rng, 30)):
        shards.push(number, batch)
        assert shards.held <= 60
        assert shards.held <= shards.logged <= 2 * shards.held + 20


def test_bytes_stay_within_their_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SMALLEST_CAPACITY", 8)
    monkeypatch.setattr("dovetail.engine.shedding.caps.SMALLEST_CAPACITY", 8)
    monkeypatch.setattr(log, "MAX_SMALL_SEGMENTS", 4)
    rng, cap = random.Random(2), 9000
    calm, rough = (
        Shards(layout({"q": QUERIES[1]}, Config(shedding=Shedding("fifo", max_bytes=cap)), 2), tmp_path / name, 0)
        for name in ("calm", "rough")
    )
    for number, batch in enumerate(Input.drawn(rng, 120).split(rng, 20)):
        calm.push(number, batch)
        rough.push(number, batch)
        assert rough.found == calm.found
        rough.lose_arrays()
        for found in (*calm.pipeline.metrics.values(), *rough.pipeline.metrics.values()):
            assert sum(it["state_bytes"] for it in found["streams"].values()) <= cap // 2
    assert sum(found[0] for own, _ in calm.measurements for found in own.values()) > 0


def test_a_rebuild_omits_expired_tuples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments contain expired tuples; 24 tuples of each stream are in its window, as many as fit."""
    monkeypatch.setattr(rows, "SMALLEST_CAPACITY", 8)
    monkeypatch.setattr("dovetail.engine.shedding.caps.SMALLEST_CAPACITY", 8)
    monkeypatch.setattr(log, "MAX_SMALL_SEGMENTS", 4)
    cap = 9000
    shards = Shards(layout({"q": QUERIES[1]}, Config(shedding=Shedding("fifo", max_bytes=cap)), 1), tmp_path, 0)
    for second in range(14):
        table = pa.table([pa.array([second * SECOND + n for n in range(4)], TS), *[range(4)] * 3], schema=COLUMNS)
        shards.push(second, dict.fromkeys("abc", table))
        measurements = shards.pipeline.metrics[0]["streams"].values()
        assert sum(it["state_bytes"] for it in measurements) <= cap
        assert not any(it["shed"] for it in measurements)
        shards.lose_arrays()
    assert shards.logged > 3 * 24


def test_the_cap_changes_with_a_restart(tmp_path: Path) -> None:
    """A smaller cap holds from the next batch on; without a cap shed tuples stay lost, and later results are exact."""
    rng = random.Random(5)
    pushes = Input.drawn(rng, 100).split(rng, 9)
    sql = {"q": QUERIES[1]}
    shards = Shards(layout(sql, Config(shedding=Shedding("arrival-order", 60)), 2), tmp_path, 0)
    for number, batch in enumerate(pushes):
        if number in (3, 6):
            config = Config(shedding=Shedding("arrival-order", 24)) if number == 3 else Config()
            before = shards.pipeline.layout
            made = replace(before, job=replace(before.job, config=config))
            shards.pipeline.layout, shards.pipeline.plan = made, made.for_workers(shards.pipeline.plan.digest)
            shards.pipeline.known = [shards.pipeline.plan]
            shards.lose_arrays()
        shards.push(number, batch)
        if 3 <= number < 6:
            assert shards.held <= 24
    assert all(state.manifest["shedding"] is None for state in shards.pipeline.states.values())
    ((_, results),) = expected(sql, pushes, 0.0).values()
    assert shards.found["q"] <= Counter(results)
    last = Counter(result for result in results if min(result[1::2]) >= _begin(pushes[6]))
    assert last <= shards.found["q"]


def _begin(batch: Mapping[str, pa.Table]) -> int:
    return min(int(table.column("ts").cast(pa.int64()).to_numpy().min()) for table in batch.values())


def test_shards_shed_the_same_after_a_query_is_dropped(tmp_path: Path) -> None:
    """Holds for shared-memory arrays and for rebuilt ones."""
    rng = random.Random(7)
    pushes = Input.drawn(rng, 80).split(rng, 6)
    made = layout({"q": QUERIES[1], "r": QUERIES[0]}, Config(shedding=Shedding("output", 40)), 2)
    calm, rough = (Shards(made, tmp_path / name, 0) for name in ("calm", "rough"))
    for number, batch in enumerate(pushes):
        for each in (calm, rough):
            if number == 3:
                pipeline, left = each.pipeline, without_query(made, "r")
                before = pipeline.plan
                pipeline.layout, pipeline.plan = left, left.for_workers(before.digest, before, number)
                pipeline.known = [before]
                if each is rough:
                    each.lose_arrays()
            each.push(number, batch)
        assert rough.found == calm.found
        assert [own for own, _ in rough.measurements] == [own for own, _ in calm.measurements]


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    rng = random.Random(3)
    shards = Shards(layout({"q": QUERIES[1]}, Config(shedding=Shedding("fifo", 20)), 1), tmp_path, 0)
    first, second = Input.drawn(rng, 60).split(rng, 2)
    shards.push(0, first)
    state = shards.pipeline.states[0]
    (number,) = state.manifest["shedding"]["entries"]
    state.content[number] = state.content[number][:-1] + b"x"
    shards.lose_arrays()
    with pytest.raises(StateError, match="the state of the shedder is missing from the checkpoint, or damaged"):
        shards.push(1, second)


def test_small_caps_and_resharding_are_refused(tmp_path: Path) -> None:
    small = layout({"q": QUERIES[1]}, Config(shedding=Shedding(max_tuples=5)), 4)
    with pytest.raises(ConfigError, match="less than one tuple for each of 3 windows in each of 4 shards") as refusal:
        small.for_workers("")
    assert "max_tuples=12" in str(refusal.value)
    few = layout({"q": QUERIES[1]}, Config(shedding=Shedding(max_bytes=1000)), 4)
    with pytest.raises(ConfigError, match=r"smallest arrays of windows in each of 4 shards"):
        few.for_workers("")
    shards = Shards(layout({"q": QUERIES[1]}, Config(shedding=Shedding(max_tuples=20)), 2), tmp_path, 0)
    shards.push(0, Input.drawn(random.Random(0), 20).tables)
    with pytest.raises(StateError, match="may have been shed"):
        shards.pipeline.repartition_plan(resharded(shards.pipeline.layout, 3, {}))


def test_a_changed_query_starts_anew() -> None:
    config = Config(shedding=Shedding(max_tuples=40))
    old, new = layout({"q": QUERIES[1]}, config, 2), layout({"q": QUERIES[1].replace("5 s", "6 s")}, config, 2)
    assert "the query starts with empty windows" in compare(new, old).changed["q"]


@pytest.mark.slow
@pytest.mark.core
def test_a_job_continues_shedding_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    # A tuple in every batch: Spark reads a file of each stream at a time.
    pushes = [
        {stream: batch.get(stream, COLUMNS.empty_table()) for stream in "abc"}
        for batch in Input.drawn(rng, 150).split(rng, 6)
    ]
    source, cap = Source(spark, tmp_path / "in"), 60
    observed: list[Any] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802
        def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802
        def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802
        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            observed.append(event.progress.observedMetrics["dovetail"])

    listener, shed = Listener(), 0
    spark.streams.addListener(listener)
    try:
        for begin in (0, 3):
            source.add(pushes[begin : begin + 3])
            session = dt.Session(spark, shards=2, config=Config(shedding=Shedding("arrival-order", cap)))
            for stream in "abc":
                session.stream(stream, source.frame(stream, COLUMNS), "ts")
            session.query("q", selected(QUERIES[1]))
            sinks = {"q": dt.sinks.parquet(str(tmp_path / "out"))}
            running = session.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True})
            running.await_termination()
            metrics, text = running.metrics(), running.explain().text
            assert sum(stream["state_tuples"] for stream in metrics["streams"].values()) <= cap
            before, shed = shed, sum(stream["shed"] for stream in metrics["streams"].values())
            assert shed > before
            recall: Any = metrics["queries"]["q"]["recall"]
            assert 0 < recall["low"] <= recall["estimate"] <= recall["high"] <= 1
            assert f"recall {recall['estimate']:.3f}" in text
        while len(observed) < len(pushes):  # Spark reports it a little later
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    ((_, results),) = expected({"q": QUERIES[1]}, pushes, 0.0).values()
    columns = [
        column.cast(pa.int64()).to_pylist()
        for column in pq.read_table(tmp_path / "out").drop_columns("batch_id").columns
    ]
    found = Counter(zip(*columns, strict=True))
    assert found <= Counter(results)
    assert recall["given"] == found.total()
    assert observed[-1]["streams.a.shed"] == metrics["streams"]["a"]["shed"]
    assert observed[-1]["queries.q.recall.low"] == pytest.approx(recall["low"])


def test_backfill_is_refused_where_tuples_are_shed() -> None:
    local = dt.LocalSession(config=Config(shedding=Shedding(max_tuples=9)))
    for stream in "ab":
        local.stream(stream, COLUMNS, event_time="ts")
    local.query("q", QUERIES[0].replace("{n}", "a.n AS n"))
    local.push({})
    with pytest.raises(ConfigError, match="some may have been shed"):
        local.add_query("r", QUERIES[0].replace("{n}", "a.n AS n"), backfill=True)
