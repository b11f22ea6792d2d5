"""The plan log and its epochs: shards refuse state that an earlier attempt at a batch has left, and counters are never lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pipeline import Pipeline, layout_of
from pyspark.sql import SparkSession
from test_late_queries import BASE, COLUMNS, DECLARED, OTHER_SHARDS, SAME_SHARDS, Live, batch
from test_session import Listener

import dovetail as dt
from dovetail.errors import DovetailError, StateError
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.plan_log import PlanLogEntry, in_force, read_entries, write_entry
from dovetail.spark.driver.reports import ShardReports
from dovetail.spark.wire import ResultKind, ResultRow


def entry_of(first: int, epoch: int) -> PlanLogEntry:
    return PlanLogEntry(first, f"contract {epoch}", f"plan {epoch}", epoch=epoch)


@pytest.mark.parametrize(
    ("firsts", "next_batch", "epochs"),
    [
        ([], 0, []),
        ([0], 0, [0]),
        ([0, 3, 5], 7, [0, 1, 2]),
        ([0, 3, 3], 7, [0, 2]),
        ([0, 3, 5, 3], 7, [0, 3]),
        ([0, 3, 5], 4, [0, 1]),
        ([0, 3, 5, 4], 4, [0, 1, 3]),
    ],
)
def test_an_entry_replaces_all_from_its_first_batch_on(firsts: list[int], next_batch: int, epochs: list[int]) -> None:
    log = [entry_of(first, epoch) for epoch, first in enumerate(firsts)]
    assert [each.epoch for each in in_force(log, next_batch)] == epochs


def pipeline_with_state(tmp_path: Path) -> Pipeline:
    """Two shards that have run batches 0 and 1 in epoch 0."""
    pipeline = Pipeline(layout_of(tuple(DECLARED.values()), {"base": BASE}, 2), tmp_path, random.Random(1))
    pipeline.plan = replace(pipeline.plan, epochs=((0, 0),))
    for number in range(2):
        pipeline.run(batch(pipeline.rng, number), batch=number)
    return pipeline


def test_a_shard_refuses_the_state_of_another_attempt(tmp_path: Path) -> None:
    pipeline = pipeline_with_state(tmp_path)
    pipeline.plan = replace(pipeline.plan, first_batch=1, epoch=1, epochs=((0, 0), (1, 1)))
    message = "epoch 0 wrote its state of batch 1, but epoch 1 completed that batch"
    with pytest.raises(StateError, match=message):
        pipeline.run(batch(pipeline.rng, 2), batch=2)


def test_a_shard_goes_on_from_the_state_of_an_earlier_epoch(tmp_path: Path) -> None:
    pipeline = pipeline_with_state(tmp_path)
    pipeline.plan = replace(pipeline.plan, first_batch=2, epoch=1, epochs=((0, 0), (2, 1)))
    pipeline.run(batch(pipeline.rng, 2), batch=2)
    assert {state.manifest["epoch"] for state in pipeline.states.values()} == {1}


def test_a_shard_refuses_state_that_is_ahead(tmp_path: Path) -> None:
    pipeline = pipeline_with_state(tmp_path)
    with pytest.raises(StateError, match="cannot run batch 1: its state already contains batch 1"):
        pipeline.run(batch(pipeline.rng, 1), batch=1)


class Encoded:
    """Stands for the frame of a batch: the reports of its shards."""

    def __init__(self, continued: dict[int, int | None]) -> None:
        self.rows = []
        for shard, batch_id in continued.items():
            nodes: dict[str, Any] = {kind: {} for kind in ("windows", "joins", "states", "results")}
            report = {"shard": shard, "last_batch": batch_id, "rebuilt": False, "streams": {}, "nodes": nodes}
            report["batch"] = {"streams": {}, "queries": {}}
            self.rows.append(ResultRow(shard, 0, ResultKind.METRICS, 0, json.dumps(report).encode()))


def test_a_shard_without_the_last_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = ShardReports(layout_of(tuple(DECLARED.values()), {"base": BASE, "other": OTHER_SHARDS}, 2))
    monkeypatch.setattr("dovetail.spark.driver.reports.collect_results", lambda encoded: encoded.rows)
    reports.collect(Encoded(dict.fromkeys(range(4))), 0)  # type: ignore[arg-type]
    reports.collect(Encoded(dict.fromkeys(range(4), 0)), 2)  # type: ignore[arg-type]
    for behind in (None, 0):
        with pytest.raises(StateError, match="batch 3: the checkpoint lacks the state of batch 2 for shards 1"):
            reports.collect(Encoded({0: 2, 1: behind, 2: 2, 3: 2}), 3)  # type: ignore[arg-type]


# -- on Spark -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_counters_outlive_the_shards_that_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Counters go on when a query is dropped, when a batch is replayed, and after a restart; listeners see the right query."""
    live = Live(spark, tmp_path, seed=5)
    live.start(base=BASE, other=OTHER_SHARDS, more=SAME_SHARDS)
    live.run(3)
    live.running.drop_query("base")
    live.running.drop_query("more")
    listener = Listener()
    spark.streams.addListener(listener)
    live.run(2)
    check_counters(live)
    deadline = monotonic() + 30
    while len(listener.seen) < 2 and monotonic() < deadline:
        sleep(0.1)
    assert "last_batch.queries.base.results" not in listener.seen[-1]
    given = sum(seen["last_batch.queries.other.results"] for seen in listener.seen)
    spark.streams.removeListener(listener)
    sink = live.sinks["other"]
    assert given == sum(sink.batches[number].num_rows for number in sorted(sink.batches) if number > 3)

    live.running.stop()
    live.start(other=OTHER_SHARDS)
    live.run(1)
    check_counters(live)
    live.running.stop()


def check_counters(live: Live) -> None:
    counted, late = live.running.metrics()["streams"], live.oracle.late
    for name in DECLARED:
        arrived = sum(push[name].num_rows for push in live.pushed)
        assert (counted[name]["arrivals"], counted[name]["late"]) == (arrived, late[name])


@pytest.mark.slow
def test_a_replayed_batch_is_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    """The sink fails after a batch was counted; the same session goes on, and its counters with it."""
    live = Live(spark, tmp_path, seed=9)
    live.start(base=BASE)
    live.run(2)
    for _ in range(2):  # Spark runs the last batch again
        live.running.query.stop()
        last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())
        for left in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
            left.unlink()
        live.running._begin()
        live.running.query.processAllAvailable()
    metrics = live.running.metrics()
    assert metrics["batches"] == last + 1
    assert metrics["queries"]["base"]["results"] == live.oracle.results_table("base").num_rows
    check_counters(live)
    live.running.stop()


@pytest.mark.slow
def test_a_renamed_checkpoint_is_refused_and_a_link_helps(spark: SparkSession, tmp_path: Path) -> None:
    live = Live(spark, tmp_path, seed=2)
    live.start(base=BASE)
    live.run(1)
    live.running.stop()
    old, new = tmp_path / "checkpoint", tmp_path / "moved"
    old.rename(new)
    session = dt.Session(spark, shards=2)
    for name in DECLARED:
        session.stream(name, live.source.frame(name, COLUMNS), "ts", lateness=DECLARED[name].lateness / 1e6)
    session.query("base", BASE)
    with pytest.raises(StateError, match=f"was created as file:{old}; Spark still reads its files there"):
        session.start({"base": live.sinks["base"]}, new)
    old.symlink_to(new)
    live.running = session.start({"base": live.sinks["base"]}, new)
    live.run(1)
    live.check("base")
    live.running.stop()


def test_a_checkpoint_without_offsets_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "state" / "0" / "0").mkdir(parents=True)
    with pytest.raises(StateError, match="has state but no offset log"):
        Checkpoint.open(Directory.of(spark, str(tmp_path)))


def test_the_state_of_uncommitted_batches_is_discarded(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "state" / "0" / "1"
    store.mkdir(parents=True)
    kept = ["4.changelog", ".4.changelog.crc", "3.zip", "x.sst", "_metadata"]
    stale = ["5.changelog", "5.changelog.crc", ".5.changelog.crc", "6.zip", "5_ab-c.changelog"]
    for name in kept + stale:
        (store / name).write_text("")
    checkpoint = Checkpoint(
        Directory.of(spark, str(tmp_path)), "id", None, lacks_identity=False, last_batch=4, next_batch=5
    )
    checkpoint.discard_uncommitted_state(4)
    assert sorted(path.name for path in store.iterdir()) == sorted(kept)


@pytest.mark.slow
def test_a_change_without_a_batch_can_be_taken_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query is dropped by a start that completes no batch; the next start has it again, and it continues."""
    live = Live(spark, tmp_path, seed=3)
    live.start(base=BASE, other=OTHER_SHARDS)
    live.run(2)
    live.running.stop()
    with pytest.warns(dt.DovetailWarning, match="query 'other' is dropped"):
        live.start(base=BASE)
    live.running.stop()
    live.start(base=BASE, other=OTHER_SHARDS)
    assert live.running.changes is None
    live.run(1)
    assert live.check("base", "other") > 0
    check_counters(live)

    append_entry = Checkpoint.append_entry

    def append_and_interrupt(self: Checkpoint, entry: PlanLogEntry) -> Checkpoint:
        patched.undo()
        append_entry(self, entry)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "append_entry", append_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            live.running.drop_query("other")
    live.run(2)  # the second batch reads the state that the first one has written under another epoch
    assert live.check("base", "other") > 0
    check_counters(live)

    def fail(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(type(live.running._pipeline), "writer", fail)
    with pytest.raises(RuntimeError):
        live.running.drop_query("other")
    with pytest.raises(DovetailError, match="not be started again after a change: RuntimeError: no room"):
        live.running.await_termination()


def test_a_damaged_plan_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    own = Directory.of(spark, str(tmp_path))
    for epoch in (0, 1):
        write_entry(own, entry_of(epoch, epoch))
    assert [entry.epoch for entry in read_entries(own)] == [0, 1]
    for epoch, hint in ((1, "remove that file and start again"), (0, "restore the checkpoint directory")):
        (tmp_path / "_plans" / f"{epoch:08}.json").write_text('{"first": ', encoding="utf-8")
        with pytest.raises(StateError, match=f"{epoch:08}.json is damaged or was not written completely") as error:
            read_entries(own)
        assert str(error.value.hint).startswith(hint)
