"""Savepoints: a change of an engine that is cut short is undone or completed, and loses nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import StrategyOption
from dovetail.engine.change.savepoint import IRREVERSIBLE
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import MappedArena
from dovetail.plan.execution import ExecutionPlan

SCHEMA = pa.schema({"ts": pa.timestamp("us", tz="UTC"), "k": pa.int64(), "j": pa.int64()})
CHAIN = "SELECT a.ts, b.ts AS t, {0}.ts AS u FROM a [RANGE 5 s], b [RANGE 5 s], {0} [RANGE 5 s] WHERE a.k = b.k AND b.j = {0}.j"


def _table(*rows: tuple[int, int, int]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


def _planned(strategy: StrategyOption) -> ShardEngine:
    session = dt.LocalSession(config=dt.Config(strategy=strategy))
    for name in "abcd":
        session.stream(name, SCHEMA, "ts", rate=1000.0)
    for name in "cd":
        session.query(f"with_{name}", CHAIN.format(name))
    session.push({})
    return session._engine


def _engine() -> ShardEngine:
    engine = _planned("mjoin")
    engine.push({"a": _table((1, 1, 0), (2, 1, 0)), "b": _table((3, 1, 7))})
    engine.open_savepoint = None
    return engine


def test_an_interrupted_adoption_keeps_the_matches_of_new_materialized_joins() -> None:
    engine = _engine()
    plan = ExecutionPlan.of(_planned("bjtree").plan.steps, engine.plan)
    with suppress(KeyboardInterrupt), engine.savepoint():
        engine.adopt(plan)
        raise KeyboardInterrupt
    assert engine.open_savepoint is not None
    assert engine.rollback()
    engine.open_savepoint = None
    assert engine.plan is plan
    assert engine.push({"c": _table((4, 0, 7))})["with_c"].num_rows == 2


def test_a_completed_change_without_results_releases_its_savepoint() -> None:
    engine = _engine()
    with engine.savepoint():
        engine.adopt(ExecutionPlan())
    assert engine.open_savepoint is None


def test_a_push_that_is_cut_short_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine()
    batch, progress = {"c": _table((4, 0, 7))}, engine.progress["c"].to_json()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "adapt", lambda: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            engine.push(batch)
    assert engine.progress["c"].to_json() != progress
    assert engine.rollback()
    assert engine.progress["c"].to_json() == progress
    assert engine.push(batch)["with_c"].num_rows == 2
    assert engine.open_savepoint is IRREVERSIBLE  # until the caller has the results
    assert not engine.rollback()


def test_a_shard_on_spark_that_sheds_keeps_no_copy_for_rollback(tmp_path: Path) -> None:
    engine = ShardEngine(dt.Config(shedding=dt.Shedding("fifo", 10)), MappedArena(tmp_path))
    with engine.savepoint(until_delivered=True):
        pass
    assert not engine.rollback()
