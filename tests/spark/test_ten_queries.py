"""Ten overlapping queries on Spark give the oracle's results under every kind of plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from ten_queries import COLUMNS, PRICES, TEN, batches, declare, oracle
from test_session import Source

import dovetail as dt
from dovetail import calibrate
from dovetail.config import StrategyOption
from dovetail.testing import assert_same_rows


@pytest.fixture(autouse=True)
def _same_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_calibrated", lambda: (PRICES, PRICES))


@pytest.mark.parametrize("strategy", ["mjoin", "bjtree", "exchange", "shared"])
def test_results_are_the_oracles(spark: SparkSession, tmp_path: Path, strategy: StrategyOption) -> None:
    pushes = batches(3)
    source = Source(spark, tmp_path / "in")
    budget = dt.Budget(cpu_ms_per_second=1000, memory_bytes=1 << 30)
    sinks = {name: dt.sinks.memory() for name in TEN}
    for part in (pushes[:2], pushes[2:]):  # the second start rebuilds stored sub-joins from the checkpoint
        source.add(part)
        session = dt.Session(spark, budget, shards=2, config=dt.Config(strategy=strategy))
        declare(session, lambda name: source.frame(name, COLUMNS))
        running = session.start(sinks, str(tmp_path / "checkpoint"), {"availableNow": True})
        running.await_termination()
    wanted = oracle(pushes)
    for name, sink in sinks.items():
        expected, found = wanted.results_table(name), sink.table()
        assert found is not None
        assert_same_rows(found.cast(expected.schema), expected, name)
    shown = str(running.explain())
    assert "memory" in shown
    assert ("materialized as state:" in shown) == (strategy != "mjoin")
    assert "(shared)" in shown  # q1 and q7 are one join
    assert "measured cpu" in shown
