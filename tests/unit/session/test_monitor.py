"""The monitor checks budgets while queries run and adapts plans to rates and selectivities."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import DovetailWarning
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats
from dovetail.plan.shared_plan import Load
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.session.monitor import Monitor
from dovetail.session.registered_query import QueryStart
from dovetail.stats.history import Migration
from dovetail.stats.probes import ProbeCounts

COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.int64())])
CHAIN = "SELECT a.ts, b.ts AS t, {0}.ts AS u FROM a [RANGE 5 s], b [RANGE 5 s], {0} [RANGE 5 s] WHERE a.k = b.k AND b.j = {0}.j"
SELECTIVE, WIDE = (20_000, 100), (40, 40_000)
"""Distinct values of k and j: pairs of a and b are few, or those of b and the third stream."""


class Streams:
    """Four streams whose rates and keys can be set."""

    def __init__(self, session: dt.LocalSession, rate: float | None = 1000.0) -> None:
        self.session, self.second, self.rng = session, 0, np.random.default_rng(1)
        self.results = 0
        for name in "abcd":
            session.stream(name, COLUMNS, "ts", rate=rate)

    def run(self, seconds: int, keys: tuple[int, int], rates: dict[str, int] | None = None) -> None:
        for _ in range(seconds):
            batch = {}
            for name in "abcd":
                rows = (rates or {}).get(name, 1000)
                times = np.sort(self.rng.integers(0, 1_000_000, rows)) + 1_000_000 * self.second
                values = [self.rng.integers(0, count, rows) for count in keys]
                batch[name] = pa.table([pa.array(times, COLUMNS[0].type), *map(pa.array, values)], schema=COLUMNS)
            self.second += 1
            self.results += sum(table.num_rows for table in self.session.push(batch).values())


def states(session: dt.LocalSession) -> set[str]:
    """Return the names of the materialized joins."""
    found: Any = session.metrics()["nodes"]["states"]
    return set(found)


def drifting(*, adaptive: bool) -> tuple[dt.LocalSession, int]:
    session = dt.LocalSession(config=dt.Config(strategy="exchange", adaptive=adaptive))
    streams = Streams(session)
    for name in "cd":
        session.query(f"with_{name}", CHAIN.format(name))
    streams.run(12, SELECTIVE)
    assert states(session) == {"state:a+b"}
    streams.run(15, WIDE)
    return session, streams.results


def test_a_plan_follows_selectivities() -> None:
    session, results = drifting(adaptive=True)
    assert states(session) == {"state:b+c", "state:b+d"}
    *_, last = session.metrics()["migrations"]
    assert "the selectivity of" in last["cause"]
    assert last["batch"] <= 16
    assert last["predicted_before"] > 1.2 * last["predicted_after"]
    assert {"measured_before", "measured_after", "seconds"} <= last.keys()
    assert f"migrated before batch {last['batch']}" in str(session.explain())
    described: Any = session.explain().to_dict()
    assert described["migrations"] == session.metrics()["migrations"]
    assert set(described["plan"]["results"]) >= states(session)
    still, same = drifting(adaptive=False)
    assert states(still) == {"state:a+b"}
    assert still.metrics()["migrations"] == []
    assert same == results


@pytest.mark.parametrize("rows", [1000, 250])
@pytest.mark.parametrize("budget", [dt.Budget(cpu_ms_per_second=5000), dt.Budget(cpu_ms_per_second=1e-2)])
def test_a_budgeted_plan_follows_a_drift_within_two_windows(
    rows: int, budget: dt.Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are 5 s; the second budget is exceeded by every plan."""
    monkeypatch.setattr(Job, "unit_costs", lambda *_: dt.optimizer.UnitCosts())
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e9))
    streams = Streams(session, rate=float(rows))
    session.selectivity("a.k = b.k", 1 / (20 * rows))
    session.selectivity("b.j = c.j", 10 / rows)
    for name in "cd":
        session.query(f"with_{name}", CHAIN.format(name))
    session._job = replace(session._job, budget=budget)
    session._monitor.budget = budget
    rates = dict.fromkeys("abcd", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DovetailWarning)
        streams.run(12, (20 * rows, rows // 10), rates)
        assert states(session) == {"state:a+b"}
        streams.run(10, (rows // 25, 40 * rows), rates)
    assert states(session) == {"state:b+c", "state:b+d"}
    assert min(m["batch"] for m in session.metrics()["migrations"] if m["batch"] >= 12) <= 12 + 2 * 5


def test_few_matches_are_no_drift() -> None:
    stats, probe = RuntimeStats(), (frozenset("a"), "b")
    for matches, expected in ((3, False), (30, True)):
        stats.probe_counts["q"] = {probe: ProbeCounts(1000, 1e7, matches)}
        stats.set_baseline()
        stats.probe_counts["q"] = {probe: ProbeCounts(1000, 1e7, matches / 3)}
        assert (stats.drift() is not None) is expected


def test_a_plan_follows_undeclared_rates() -> None:
    session = dt.LocalSession(config=dt.Config(strategy="exchange"))
    streams = Streams(session, rate=None)
    for name in "cd":
        session.query(f"with_{name}", CHAIN.format(name))
    rates = {"a": 3000, "b": 2000, "c": 30, "d": 20}
    streams.run(1, (2000, 200), rates)
    assert states(session) == {"state:a+b"}
    streams.run(14, (2000, 200), rates)
    assert states(session) == {"state:b+c", "state:b+d"}
    (migration,) = session.metrics()["migrations"]
    assert migration["cause"] == "windows have filled, and rates and selectivities have been measured"
    seen = session._monitor.stats.rates
    assert seen["with_c", "a"] == pytest.approx(3000, rel=0.1)
    assert seen["with_d", "d"] == pytest.approx(20, rel=0.3)
    streams.run(15, (2000, 200), {**rates, "a": 20, "c": 3000, "d": 3000})
    assert states(session) == {"state:a+b"}
    *_, last = session.metrics()["migrations"]
    assert "the rate of" in last["cause"]


def test_a_late_query_shares_joins_once_caught_up() -> None:
    session = dt.LocalSession()
    streams = Streams(session)
    session.query("first", CHAIN.format("c"))
    streams.run(3, SELECTIVE)
    session.add_query("late", CHAIN.format("c"))
    streams.run(3, SELECTIVE)
    assert session.explain().to_dict()["queries"]["late"]["since"] == 3
    streams.run(20, SELECTIVE)
    (migration,) = session.metrics()["migrations"]
    assert "late caught up" in migration["cause"]
    described: Any = session.explain().to_dict()
    assert described["queries"]["late"]["join"] == described["queries"]["first"]["join"]
    again = dt.LocalSession.restore(session.snapshot())
    assert again.explain().to_dict()["queries"] == described["queries"]


def test_a_failed_replan_does_not_fail_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise dt.PlanError("there is no plan")

    monkeypatch.setattr(Job, "propose", refuse)
    session, _ = drifting(adaptive=True)
    assert session._monitor._has_replanned  # a replan was attempted
    assert session.metrics()["migrations"] == []


def test_statistics_of_a_dropped_query_are_not_reused_for_its_name() -> None:
    """Measurements of the first query say nothing about the second."""
    session = dt.LocalSession(config=dt.Config(strategy="exchange"))
    streams = Streams(session)
    for name in "cd":
        session.query(f"with_{name}", CHAIN.format(name))
    streams.run(12, SELECTIVE)
    session.drop_query("with_c")
    session.query("with_c", "SELECT x.ts FROM c x [RANGE 5 s], d y [RANGE 5 s] WHERE x.j = y.j")
    picture, plans = session._monitor.stats, session._job.plans
    known = picture.planner_stats({name: plan.query for name, plan in plans.items()}, plans)
    assert set(known["with_c"].rates) == {"x", "y"}
    assert known["with_c"].selectivities == {}
    streams.run(12, SELECTIVE)
    assert {probe[1] for probe in picture.probe_counts["with_c"]} == {"x", "y"}


def test_a_budget_breach_warns_once() -> None:
    session = dt.LocalSession(dt.Budget(memory_bytes=6e6), dt.Config(adaptive=False))
    streams = Streams(session, rate=100.0)
    session.query("q", CHAIN.format("c"))
    streams.run(8, (100_000, 100_000), dict.fromkeys("abcd", 2000))
    assert session.metrics()["breaches"] == []
    with pytest.warns(DovetailWarning, match="memory_bytes is .* at batch .*; the budget is 6e.06") as warned:
        streams.run(20, (100_000, 100_000), dict.fromkeys("abcd", 12_000))
    assert len(warned) == 1  # once, not with every batch
    metrics: Any = session.metrics()
    assert metrics["budget"]["memory_bytes"]["used"] > metrics["budget"]["memory_bytes"]["limit"] == 6e6
    assert metrics["budget"]["cpu_ms_per_second"] == {"used": pytest.approx(0, abs=1e4), "limit": None}
    (breach,) = metrics["breaches"]
    assert breach["resource"] == "memory_bytes"


def test_materialized_joins_are_dropped_when_memory_exceeds_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pairs than estimated are materialized: the join is dropped and no result is lost."""
    monkeypatch.setattr(
        Job, "unit_costs", lambda *_: dt.optimizer.UnitCosts()
    )  # unit costs at which a join is materialized at first

    def run(budget: dt.Budget) -> tuple[dt.LocalSession, int]:
        session = dt.LocalSession(budget)
        streams = Streams(session)
        for name in "cd":
            session.query(f"with_{name}", CHAIN.format(name))
        streams.run(12, (20_000, 40))
        assert states(session) == {"state:a+b"}
        streams.run(8, (300, 40))
        return session, streams.results

    free, results = run(dt.Budget(memory_bytes=1e9))
    windows, stored = (
        sum(part["bytes"] for part in free.metrics()["nodes"][kind].values()) for kind in ("windows", "states")
    )
    assert stored > windows / 2
    limited, same = run(dt.Budget(memory_bytes=1.3 * windows))
    assert any("memory_bytes is" in each["cause"] for each in limited.metrics()["migrations"])
    assert not states(limited)
    assert same == results


def test_replanning_that_does_not_help_is_retried_ever_less_often() -> None:
    monitor = Monitor(dt.Budget(memory_bytes=100), _has_replanned=True)
    tries = 0
    monitor.used = Load(0.0, 99.0)
    for _ in range(200):
        if monitor._budget_cause() is not None:
            tries += 1
            monitor.record_replan(helped=False)
    assert 4 < tries < 12
    monitor.used = Load(0.0, 10.0)
    assert monitor._budget_cause() is None
    monitor.used = Load(0.0, 99.0)
    assert monitor._budget_cause() is not None


def test_a_query_catches_up_one_window_after_its_start() -> None:
    streams = {name: StreamSchema(name, COLUMNS, "ts", 1_000_000) for name in "ab"}
    query = parse_query("q", "SELECT a.k FROM a [RANGE 5 s], b [RANGE 9 s] WHERE a.k = b.k", streams)
    start, far = QueryStart(3, max_event_times={"a": 100_000_000, "b": 100_000_000}), dict.fromkeys("ab", 1 << 60)

    def after(a: int, b: int) -> bool:
        return start.has_caught_up(query, {"a": a * 1_000_000, "b": b * 1_000_000}, streams)

    assert not after(200, 105)  # a later tuple of b may match the last one of a
    assert after(200, 106)
    assert not after(109, 200)
    assert after(110, 200)
    assert not QueryStart(3, max_event_times={"a": 0}).has_caught_up(query, far, streams)  # b has no start watermark
    parted = {**streams, "b": StreamSchema("b", COLUMNS, "ts", progress_by="j")}
    assert not start.has_caught_up(query, far, parted)
    rows = parse_query("q", "SELECT a.k FROM a [ROWS 5], b [RANGE 9 s] WHERE a.k = b.k", streams)
    assert not start.has_caught_up(rows, far, streams)


def test_a_migration_as_text() -> None:
    made = Migration(7, "it rained", 4.0, 2.0, 0.25)
    assert str(made) == "migrated before batch 7 in 0.25 s, because it rained: cpu 4 -> 2 ms/s expected"


def test_a_late_query_is_planned_alone_while_others_hold_earlier_tuples() -> None:
    """Otherwise a later backfill would take columns that only the late query keeps for those of earlier tuples."""
    schema = pa.schema([("ts", pa.timestamp("s", tz="UTC")), ("k", pa.int64()), ("x", pa.int64())])
    join = "FROM a [RANGE {0} SECONDS], b [RANGE {0} SECONDS] WHERE a.k = b.k"
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, schema, event_time="ts")

    def caught_up_after(second: int) -> list[str]:
        table = pa.table([[second], [second], [second]], schema=schema)
        session.push({"a": table, "b": table})
        progress = session._engine.progress.streams
        return session._job.caught_up({name: stream.watermark for name, stream in progress.items()})

    session.query("long", f"SELECT a.k {join.format(100)}")
    caught_up_after(0)
    session.query("late", f"SELECT a.x {join.format(1)}")
    assert caught_up_after(50) == caught_up_after(100) == []
    assert caught_up_after(101) == ["late"]
