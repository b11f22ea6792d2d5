"""Probe orders follow a drift on Spark as they do in one process; the results stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_session import Source

import dovetail as dt
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.testing import assert_same_rows
from dovetail.workloads import drift

TOGETHER = 4
"""Seconds of the workload in one micro-batch."""


def pushes() -> list[dict[str, pa.Table]]:
    seconds = [drift.batch(number) for number in range(drift.BATCHES)]
    return [
        {name: pa.concat_tables([second[name] for second in seconds[first : first + TOGETHER]]) for name in "abc"}
        for first in range(0, len(seconds), TOGETHER)
    ]


def told(batches: list[dict[str, pa.Table]], *, adaptive: bool) -> tuple[list[pa.Table], int]:
    """Results, and probes, of one process that changes to the right orders at the swap, or not at all."""
    session = dt.LocalSession(config=dt.Config(adaptive=False, driver_policy="declared"))
    drift.declare(session, lambda _: drift.COLUMNS)
    found = []
    for number, push in enumerate(batches):
        if adaptive and number == len(batches) // 2:
            engine = session._engine
            step = engine.run_of("q").step
            plan = Replanner(engine.config).with_orders(step.plan, drift.ORDERS_AFTER)
            engine.adopt(engine.plan.with_steps([replace(step, plan=plan)]))
        found.append(session.push(push)["q"])
    return found, drift.probe_count(session.metrics()["queries"]["q"])


@pytest.mark.slow
def test_orders_follow_a_drift_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    batches = pushes()
    source = Source(spark, tmp_path / "in")
    source.add(batches)
    session = dt.Session(spark, shards=1, config=dt.Config(driver_policy="declared"))
    drift.declare(session, lambda name: source.frame(name, drift.COLUMNS))
    sink = dt.sinks.memory()
    running = session.start({"q": sink}, str(tmp_path / "checkpoint"), {"availableNow": True})
    running.await_termination()
    found, best = told(batches, adaptive=True)
    _, static = told(batches, adaptive=False)
    wanted = pa.concat_tables(found)
    results = sink.table()
    assert results is not None
    assert_same_rows(results.cast(wanted.schema), wanted)
    query: Any = running.metrics()["shards"][0]["queries"]["q"]
    (change,) = [change for change in query["changes"] if change["driver"] == "c"]
    assert 0 < change["batch"] - len(batches) // 2 <= 3
    assert drift.probe_count(query) <= 1.15 * best
    assert static >= 3 * best
    assert "order of new c changed from b, a to a, b" in str(running.explain())
