"""A checkpoint that is cut again for other shards: the job's results over its whole life are the oracle's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from job import STREAMS, Job
from pipeline import Pipeline, layout_of
from pyspark.sql import SparkSession
from test_late_queries import BASE, DECLARED, Changing, batch, bounds
from test_shards import random_options, spark_scenario
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, StateError
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP
from dovetail.spark.checkpoint import reshard as module
from dovetail.spark.checkpoint.checkpoint import RESHARDED, UNFINISHED, Checkpoint
from dovetail.spark.checkpoint.compatibility import pinned_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.repartition import RepartitionPlan, first_copies
from dovetail.spark.state.log import MANIFEST, ShardManifest
from dovetail.spark.worker.router import cells_of
from dovetail.testing import Oracle, assert_same_rows

CUBE = (
    "SELECT a.ts AS a_ts, b.v AS b_v, c.ts AS c_ts FROM a [RANGE 8 s], b [RANGE 8 s], c [RANGE 8 s] "
    "WHERE a.k = b.k AND b.j = c.j"
)
ROWS = "SELECT a.ts AS a_ts, a.v AS a_v, b.ts AS b_ts FROM a [PARTITION BY k ROWS 3], b [RANGE 8 s] WHERE a.k = b.k"
SPREAD = "SELECT a.v AS a_v, b.v AS b_v, a.ts AS a_ts FROM a [RANGE 3 s], b [RANGE 3 s] WHERE a.v < b.v"
LATE = "SELECT a.ts AS a_ts, c.v AS c_v FROM a [RANGE 5 s], c [RANGE 5 s] WHERE a.k = c.k AND a.v > 0"
FILLED = BASE.replace("8 s", "6 s")


# -- without Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_any_query_between_any_numbers_of_shards(seed: int, tmp_path: Path) -> None:
    rng = random.Random(7000 + seed)
    scenario = spark_scenario(rng, pushes=6)
    streams = tuple(replace(s, progress_by=random_options(s, rng)["progress_by"]) for s in scenario.streams)
    pushes = [{name: pa.concat_tables([t, t.slice(0, 2)]) for name, t in push.items()} for push in scenario.pushes]
    pipeline, oracle = Pipeline(layout_of(streams, scenario.sql, 4), tmp_path, rng), Oracle(streams)
    queries = {name: parse_query(name, sql, scenario.catalog) for name, sql in scenario.sql.items()}
    for query in queries.values():
        oracle.add_query(query)
    found: dict[str, list[pa.Table]] = {name: [] for name in scenario.sql}
    for push in pushes:
        if rng.random() < 0.6:
            pipeline.reshard(rng.choice((1, 2, 4, 6, 7)), {stream.name: rng.choice((1, 9)) for stream in streams})
        for name, tables in pipeline.run(push).items():
            found[name] += tables
        oracle.push(push)
    for name, query in queries.items():
        expected = oracle.results_table(name)
        actual = pa.concat_tables(found[name]) if found[name] else expected.slice(0, 0)
        assert_same_rows(actual, expected, query.sql)
    shards = [pipeline.metrics[shard] for shard in pipeline.plan.shard_list if shard in pipeline.metrics]
    for stream in {ref.stream for query in queries.values() for ref in query.refs}:
        counted = sum(shard["streams"][stream]["arrivals"] for shard in shards)
        assert counted == sum(len(push.get(stream, ())) for push in pushes)


class Moving(Changing):
    """Queries that come and go, plans that change, and shards that are cut again meanwhile."""

    def reshard(self) -> None:
        before = [group.first_shard for group in self.layout.placement.groups]
        self.pipeline.reshard(self.rng.choice((1, 3, 4, 6)))
        after = [group.first_shard for group in self.layout.placement.groups]
        self.kept = {new: self.kept[old] for old, new in zip(before, after, strict=True) if old in self.kept}
        self.batches += 1  # the one without input
        self.came.append(self.came[-1])


@pytest.mark.parametrize("seed", range(10))
def test_queries_come_and_go_and_shards_change(tmp_path: Path, seed: int) -> None:
    case = Moving(seed, tmp_path)
    for number in range(9):
        if number and case.rng.random() < 0.4:
            case.add(f"late{number}", backfill=case.rng.random() < 0.7)
        if number and case.rng.random() < 0.3 and len(case.sql) > 1:
            case.drop(case.rng.choice(list(case.sql)))
        if number and case.rng.random() < 0.3:
            case.migrate()
        if number and case.rng.random() < 0.5:
            case.reshard()
        case.run()
    for name in case.sql:
        case.check(name)


def held(spoil: Callable[[dict[int, bytes]], None], tmp_path: Path) -> tuple[Pipeline, RepartitionPlan]:
    """Shards with tuples, one of whose states is spoiled after the driver has read the manifests."""
    rng = random.Random(1)
    pipeline = Pipeline(layout_of(tuple(STREAMS.values()), {"cube": CUBE}, 4), tmp_path, rng)
    for number in range(3):
        pipeline.run(batch(rng, number))
    plan = pipeline.repartition_plan(pipeline.resharded(7))
    spoil(pipeline.states[0].content)
    return pipeline, plan


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda found: found.pop(0), "segment 0 of stream '.' is missing from the checkpoint"),
        (lambda found: found.update({0: found[0][:-1] + b"x"}), "its digest does not match"),
        (lambda found: found.pop(MANIFEST), "the manifest of shard 0 is missing"),
    ],
)
def test_what_is_lost_or_damaged_is_an_error(
    spoil: Callable[[dict[int, bytes]], None], message: str, tmp_path: Path
) -> None:
    pipeline, plan = held(spoil, tmp_path)
    with pytest.raises(StateError, match=message):
        pipeline.repartition(plan)


def test_a_shard_that_was_not_read_is_an_error(tmp_path: Path) -> None:
    pipeline, plan = held(lambda _: None, tmp_path)
    rows = pipeline.repartition(replace(plan, shards_to_read=plan.shards_to_read - {0}))
    with pytest.raises(StateError, match="the manifest of shard id 0 differs from the one the state reader returned"):
        pipeline.take(replace(plan, tokens={**plan.tokens, 0: "another"}), rows)
    with pytest.raises(StateError, match="the log of shard id 0 was not read"):
        pipeline.take(plan, rows)


def test_a_checkpoint_that_sheds_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, config = random.Random(1), dt.Config(shedding=dt.Shedding("fifo", 40))
    layout = layout_of(tuple(STREAMS.values()), {"key": BASE}, 4, config)
    pipeline = Pipeline(layout, tmp_path, rng)
    for number in range(3):
        pipeline.run(batch(rng, number))
    manifests = {
        shard: ShardManifest.from_json(state.content[MANIFEST], pipeline.plan.digest)
        for shard, state in pipeline.states.items()
        if state.content
    }
    monkeypatch.setattr(module, "_check_offsets_and_state", lambda _: None)
    monkeypatch.setattr(module, "_manifests", lambda *_: manifests)
    monkeypatch.setattr(module, "with_shard_ids", lambda _, it: replace(it, shard_ids=tuple(range(it.placement.total))))
    checkpoint, spark = (
        Checkpoint(Directory("", tmp_path), "", pinned_json(layout), False, 2, 3),
        cast("SparkSession", None),
    )
    with pytest.raises(StateError, match="tuples of this checkpoint may have been shed"):
        module.Resharding.of(spark, checkpoint, 7, {})
    kept = {shard: replace(manifest, shedding=None) for shard, manifest in manifests.items()}
    monkeypatch.setattr(module, "_manifests", lambda *_: kept)
    assert module.Resharding.of(spark, checkpoint, 7, {}).new_layout.requested_shards == 7


def test_rows_that_got_columns_stay_where_they_are() -> None:
    (group,) = layout_of(tuple(STREAMS.values()), {"spread": SPREAD}, 4).for_workers("").groups
    table = pa.table({"ts": pa.array(range(40), TIMESTAMP), "v": list(range(40))})
    cells, rows = cells_of(group, "a", table)
    assert set(cells) == {0, 1, 2, 3}
    for cell in range(4):
        own = table.take(pa.array(rows[cells == cell]))
        assert first_copies(group, cell, "a", own.append_column("k", pa.nulls(len(own), pa.int64()))).all()


# -- on Spark -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.core
def test_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, {"key": BASE, "cube": CUBE, "rows": ROWS}, seed=24)
    job.start(4, "first")
    job.run(2)
    job.add("filled", FILLED, bounds(job.oracle, [parse_query("key", BASE, DECLARED)]))
    job.run(1)
    reached = job.running._reports.earliest_visible()
    job.running.stop()
    before = job.check()

    assert "a.k = b.k in 7 parts" in dt.reshard(spark, tmp_path / "first", tmp_path / "second", 7)
    shutil.rmtree(tmp_path / "first")
    job.expect_query("late", LATE)
    with pytest.warns(DovetailWarning, match="query 'late' is new"):
        job.start(7, "second")
    job.run(2)
    between = job.check()
    assert all(between[name] > count for name, count in before.items())
    assert job.running._reports.earliest_visible()["filled"] == reached["filled"]
    job.running.stop()

    paths = [str(tmp_path / "second"), str(tmp_path / "third")]
    answer = CliRunner().invoke(app, ["reshard", *paths, "--shards", "4", "--rate", "c=50"])
    assert answer.exit_code == 0, answer.output
    assert "b.j = c.j in 4 parts" in answer.output
    job.start(4, "third")
    assert job.running.changes is None
    job.run(1)
    after = job.check()
    assert all(after[name] > count for name, count in between.items())
    counted = job.running.metrics()["streams"]
    for name in STREAMS:
        assert counted[name]["arrivals"] == sum(len(pushed[name]) for pushed in job.pushed)
    job.running.stop()


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with data in its windows."""
    job = Job(spark, tmp_path_factory.mktemp("job"), {"key": BASE})
    job.start(2, "checkpoint")
    job.run(2)
    job.running.stop()
    return job


def copied(job: Job, place: Path) -> Path:
    shutil.copytree(job.folder / "checkpoint", place)
    return place


@pytest.mark.slow
def test_an_interrupted_resharding_harms_nobody(stopped: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, session = copied(stopped, tmp_path / "old"), tmp_path / "new", stopped.session(2)

    def killed(method: str, name: str) -> None:
        true = getattr(Directory, method)

        def die(self: Directory, given: str, *more: Any) -> Any:
            if given == name:
                raise KeyboardInterrupt
            return true(self, given, *more)

        with monkeypatch.context() as patch:
            patch.setattr(Directory, method, die)
            with pytest.raises(KeyboardInterrupt):
                dt.reshard(stopped.spark, old, new, 3)

    for method, name in (("copy", "state"), ("create", RESHARDED)):  # before and after the batch that Spark runs
        killed(method, name)
        assert session.compare(old).is_same
        with pytest.raises(StateError, match=r"is unfinished: its resharding from .*old was interrupted"):
            stopped.session(3).compare(new)
    with pytest.raises(ConfigError, match=r"unfinished resharding of .*old"):
        dt.reshard(stopped.spark, copied(stopped, tmp_path / "other"), new, 3)
    killed("remove", UNFINISHED)  # a second try; it is over as soon as the old one has its note
    with pytest.raises(StateError, match=r"old has been resharded to .*new, which has its sinks now"):
        session.compare(old)
    with pytest.raises(StateError, match="has been resharded to"):
        dt.reshard(stopped.spark, old, new, 3)
    stopped.running = stopped.session(3).start(stopped.sinks, new)
    stopped.run(1)
    stopped.check()
    stopped.running.stop()


@pytest.mark.slow
def test_what_cannot_be_resharded_is_refused_and_nothing_is_touched(stopped: Job, tmp_path: Path) -> None:
    old, new, spark = copied(stopped, tmp_path / "old"), tmp_path / "new", stopped.spark
    begun, full, empty = copied(stopped, tmp_path / "begun"), tmp_path / "full", tmp_path / "empty"
    max((begun / "commits").glob("[0-9]*")).unlink()
    full.mkdir()
    (full / "mine").touch()
    (empty / "dovetail").mkdir(parents=True)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "_lock" and path.is_file()}
    refused: list[tuple[type[DovetailError], str, Callable[[], Any]]] = [
        (ConfigError, "there is no checkpoint at .*none", lambda: dt.reshard(spark, tmp_path / "none", new, 3)),
        (ConfigError, "there is no checkpoint at .*full", lambda: dt.reshard(spark, full, new, 3)),
        (StateError, "has no completed batch", lambda: dt.reshard(spark, empty, new, 3)),
        (ConfigError, "has 2 shards already, and these rates give the same splits", lambda: dt.reshard(spark, old, new, 2)),
        (ConfigError, "full holds 'mine'", lambda: dt.reshard(spark, old, full, 3)),
        (ConfigError, "begun holds ", lambda: dt.reshard(spark, old, begun, 3)),
        (ConfigError, "overlap", lambda: dt.reshard(spark, old, old / "new", 3)),
        (StateError, "batch 2 of .* was begun and is not completed", lambda: dt.reshard(spark, begun, new, 3)),
        (ConfigError, r"reshard\(shards=0\)", lambda: dt.reshard(spark, old, new, 0)),
        (ConfigError, r"reshard\(new=...\) is None", lambda: dt.reshard(spark, old, None, 3)),  # type: ignore[arg-type]
        (ConfigError, "has 'z'; streams of the checkpoint: 'a', 'b', 'c'", lambda: dt.reshard(spark, old, new, 3, {"z": 1})),
        (ConfigError, "stream 'a': rate is 0", lambda: dt.reshard(spark, old, new, 3, {"a": 0})),
    ]  # fmt: skip
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()
    taken = Checkpoint.open(Directory.of(spark, str(old)))
    with pytest.raises(StateError, match="is in use"):
        dt.reshard(spark, old, new, 3)
    taken.release()
    answer = CliRunner().invoke(app, ["reshard", str(old), str(new), "--shards", "3", "--rate", "a:1"])
    assert answer.exit_code == 2
    assert "Hint: write --rate clicks=100" in answer.output
    found = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "_lock" and path.is_file()}
    assert found == files
    assert not new.exists()
