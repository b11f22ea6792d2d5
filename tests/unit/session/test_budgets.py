"""Budgets of sessions: admitted and refused queries, and estimates near the measurement."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from ten_queries import COLUMNS, PRICES, TEN, declare

import dovetail as dt
from dovetail import calibrate
from dovetail.config import Strategy
from dovetail.errors import BudgetError, ConfigError
from dovetail.optimizer import explain_shared, joint
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.session.monitor import Meter
from dovetail.workloads import overlap

PAIRS = "SELECT a.v, b.v AS bv FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.x = b.x"


@pytest.fixture(autouse=True)
def _same_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_calibrated", lambda: (PRICES, PRICES))


def pair_session(budget: dt.Budget, rate: float = 1000.0) -> dt.LocalSession:
    session = dt.LocalSession(budget)
    for name in "ab":
        session.stream(name, COLUMNS, "ts", rate=rate)
    return session


@pytest.mark.parametrize("resource", ["cpu_ms_per_second", "memory_bytes"])
def test_a_budget_must_be_above_zero(resource: str) -> None:
    for nothing in (0, -1, float("nan"), "much"):
        with pytest.raises(ConfigError, match=rf"Budget\({resource}=.*above zero"):
            dt.Budget(**{resource: nothing})  # type: ignore[arg-type]


def test_a_session_accepts_only_a_budget() -> None:
    with pytest.raises(ConfigError, match=r"LocalSession\(budget=...\) is a int; expected a dovetail.Budget"):
        dt.LocalSession(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "resource", "option"),
    [
        (dt.Budget(memory_bytes=1000), "bytes of memory", "memory_bytes"),
        (dt.Budget(cpu_ms_per_second=1e-3), "ms of CPU per second", "cpu_ms_per_second"),
    ],
)
def test_a_query_over_budget_is_refused_with_resource_and_option(budget: dt.Budget, resource: str, option: str) -> None:
    session = pair_session(budget)
    with pytest.raises(BudgetError) as raised:
        session.query("pairs", PAIRS)
    text = str(raised.value)
    assert "'pairs'" in text
    assert resource in text
    assert f"Budget({option}=...)" in text
    assert "smaller window in 'pairs'" in text
    assert session.push({}) == {}  # the session continues without it


@pytest.mark.parametrize("strategy", ["auto", "mjoin", "shared", "exact", "exchange"])
def test_shedding_is_offered_only_where_it_is_allowed(strategy: Strategy) -> None:
    long = PAIRS.replace("10 s", "1 HOUR")
    for sql, is_offered in ((long, True), (long.replace("RANGE 1 HOUR", "ROWS 4000000"), False)):
        session = dt.LocalSession(dt.Budget(memory_bytes=4 << 20), dt.Config(strategy=strategy))
        for name in "ab":
            session.stream(name, COLUMNS, "ts", rate=1000.0)
        with pytest.raises(BudgetError, match="larger Budget") as raised:
            session.query("long", sql)
        assert ("dt.Shedding(max_bytes=4194304)" in str(raised.value)) == is_offered
        assert ("a smaller window in 'long' (try" in str(raised.value)) == is_offered  # in seconds
        assert ("smaller windows in 'long', " in str(raised.value)) != is_offered


def test_a_refused_query_leaves_the_others_running() -> None:
    session = pair_session(dt.Budget(memory_bytes=10 << 20))
    session.query("pairs", PAIRS)
    with pytest.raises(BudgetError, match="query 'long' alone needs"):
        session.query("long", PAIRS.replace("10 s", "1 HOUR"))
    assert set(session.push({})) == {"pairs"}
    assert "of 10 MiB" in str(session.explain())


def test_a_later_query_gets_the_remaining_budget() -> None:
    session = pair_session(dt.Budget(memory_bytes=6 << 20))
    session.query("pairs", PAIRS)
    session.push({})
    session.query("again", PAIRS.replace("10 s", "5 s"))
    with pytest.raises(BudgetError, match="no plan fits the budget"):
        session.query("third", PAIRS)
    session.drop_query("pairs")
    session.query("third", PAIRS.replace("10 s", "5 s"))
    restored = dt.LocalSession.restore(session.snapshot())
    assert set(restored.push({})) == {"again", "third"}
    with pytest.raises(BudgetError):
        restored.query("pairs", PAIRS.replace("10 s", "20 s"))


def test_less_memory_materializes_less() -> None:
    kept: list[list[float]] = []
    for memory in (None, 1.01):
        limit = None if memory is None else memory * kept[0][0]
        session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e6, memory_bytes=limit))
        overlap.declare(session, lambda _: overlap.COLUMNS, 8, 2000.0)
        plan: Any = session.explain().to_dict()["plan"]
        kinds = (plan["windows"], {name: entry for name, entry in plan["results"].items() if entry["stored"]})
        kept.append([sum(entry["memory_bytes"] for entry in kind.values()) for kind in kinds])
        assert plan["fits_budget"]
    assert kept[0][0] == kept[1][0]
    assert kept[1][1] <= 0.01 * kept[0][0] < kept[0][1]


def test_two_queries_with_the_same_text_are_one_join() -> None:
    session = pair_session(dt.Budget(cpu_ms_per_second=1e6))
    session.query("one", PAIRS)
    session.query("two", PAIRS)
    session.query("three", PAIRS.replace("10 s", "4 s"))
    tables = {name: pa.table([[0, 5_000_000], [1, 1], ["p", "q"], [0.5, 1.5]], schema=COLUMNS) for name in "ab"}
    counted = {name: table.num_rows for name, table in session.push(tables).items()}
    assert counted == {"one": 4, "two": 4, "three": 2}
    assert len(session.metrics()["joins"]) == 1
    shown = str(session.explain())
    assert "for one, two, three (shared)" in shown
    assert "window of a narrowed to 4 s" in shown


def test_disjoint_queries_are_planned_together() -> None:
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e6))
    for name in "abcd":
        session.stream(name, COLUMNS, "ts", rate=10.0)
    session.query("left", PAIRS)
    session.query("right", "SELECT c.v FROM c [RANGE 1 s], d [RANGE 1 s] WHERE c.x = d.x")
    found: Any = session.explain().to_dict()
    assert all(len(entry["queries"]) == 1 for kind in ("windows", "joins") for entry in found["plan"][kind].values())


def test_one_alias_may_mean_different_windows() -> None:
    session = pair_session(dt.Budget(cpu_ms_per_second=1e6))
    session.query("one", PAIRS)
    session.query("two", "SELECT a.v FROM b a [RANGE 1 s], a b [RANGE 3 s] WHERE a.x = b.x")
    found: Any = session.explain().to_dict()
    assert found["plan"]["queries"]["two"]["aliases"] == {"a": "b", "b": "a"}
    assert found["plan"]["queries"]["two"]["narrower_windows"] == {"a": 3.0, "b": 1.0}


def test_a_duplicate_query_name_is_refused() -> None:
    session = pair_session(dt.Budget(cpu_ms_per_second=1e6))
    session.query("one", PAIRS)
    with pytest.raises(ConfigError, match="query 'one' is already registered"):
        session.query("one", PAIRS)


def test_materializing_strategies_need_lazy_evaluation() -> None:
    with pytest.raises(ConfigError, match="may materialize joins"):
        dt.Config(strategy="shared", evaluation="eager")
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e6), dt.Config(evaluation="eager"))
    declare(session, lambda _: COLUMNS)
    found: Any = session.explain().to_dict()
    assert found["plan"]["strategy"] == "mjoin"
    assert set(found["queries"]) == set(TEN)


@pytest.mark.parametrize("strategy", dt.config.STRATEGIES)
def test_every_strategy_plans_the_windows_that_the_engine_keeps(strategy: Strategy) -> None:
    """An engine has one window per stream for all queries, so the plan must have one, too."""
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e6), dt.Config(strategy=strategy))
    overlap.declare(session, lambda _: overlap.COLUMNS, 2, 100.0)
    session.push({name: overlap.table(name, 0, 100, 100.0) for name in overlap.STREAMS})
    plan = session._job.joint_plan
    planned = {(node.stream, round(node.window_seconds * 1e6)) for node in plan.windows}
    assert len(planned) == len(plan.windows)
    assert planned == {(window.stream, window.longest_micros) for window in session._engine.plan.windows}


def test_measured_memory_is_near_the_estimate() -> None:
    """Bytes are within a factor of two, except for small windows, whose arrays have spare room. Times: benchmarks/estimates.py."""
    rate = 4000.0
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=1e6))
    overlap.declare(session, lambda _: overlap.COLUMNS, 8, rate)
    for second in range(30):
        session.push({name: overlap.table(name, int(second * rate), int(rate), rate) for name in overlap.STREAMS})
    found: Any = session.explain().to_dict()
    kept = {**found["plan"]["windows"], **{n: e for n, e in found["plan"]["results"].items() if e["stored"]}}
    assert len(kept) > len(overlap.STREAMS)
    for name, entry in kept.items():
        assert entry["memory_bytes"] < 1 << 20 or 0.5 < entry["measured"]["memory_bytes"] / entry["memory_bytes"] < 2, (
            name
        )
    for kind in ("windows", "joins"):
        assert all(entry["measured"]["cpu_ms_per_second"] > 0 for entry in found["plan"][kind].values())
    plan = session._job.joint_plan
    assert "measured cpu" in str(explain_shared(plan, session.metrics()["nodes"]))


# -- unknown selectivities ----------------------------------------------------------------------------------------------------------

RARE = "SELECT a.v, b.v AS bv FROM a [RANGE 60 s], b [RANGE 60 s] WHERE a.x = b.x"


def push_seconds(session: dt.LocalSession, seconds: range, distinct: int, rows: int = 1000) -> None:
    rng = np.random.default_rng(7)
    for second in seconds:
        times = pa.array(np.sort(rng.integers(0, 1_000_000, rows)) + 1_000_000 * second, COLUMNS[0].type)
        rest = [pa.array(["p"] * rows), pa.array(rng.random(rows))]
        batch = {
            name: pa.table([times, pa.array(rng.integers(0, distinct, rows)), *rest], schema=COLUMNS) for name in "ab"
        }
        session.push(batch)


def test_an_unknown_selectivity_admits_a_query() -> None:
    """By the assumed 0.01 the query takes many times the budget; few of its tuples match."""
    session = pair_session(dt.Budget(cpu_ms_per_second=5))
    session.query("rare", RARE)
    assert plan_of(session).load.cpu > 50
    session.query("second", RARE.replace("60 s", "50 s"))
    push_seconds(session, range(3), 1 << 40)
    session.query("late", RARE.replace("60 s", "30 s"))
    assert set(session.push({})) == {"rare", "second", "late"}
    assert session.metrics()["breaches"] == []


def test_the_delivery_of_results_alone_takes_the_budget() -> None:
    """The figures of the error must agree, and its shorter window must help."""
    session = pair_session(dt.Budget(cpu_ms_per_second=1))
    session.selectivity("a.x = b.x", 0.1)
    with pytest.raises(BudgetError, match=r"^query 'rare': no plan fits the budget: ") as raised:
        session.query("rare", RARE)
    figures = re.search(r"needs ([\d.e+]+) ms of CPU per second; the limit is 1$", raised.value.message)
    shorter = re.fullmatch(
        r"use a smaller window in 'rare' \(try ([\d.]+) s instead of 60 s\), or a larger .*", str(raised.value.hint)
    )
    assert figures is not None
    assert shorter is not None
    assert float(shorter[1]) == pytest.approx(60 / float(figures[1]), rel=0.01)
    session.query("rare", RARE.replace("60 s", f"{float(shorter[1]) / 2} s"))


def test_a_stated_selectivity_is_enforced_at_once() -> None:
    session = pair_session(dt.Budget(cpu_ms_per_second=5))
    session.selectivity("a.x = b.x", 0.01)
    with pytest.raises(BudgetError, match=r"the best one found needs .* ms of CPU per second; the limit is 5"):
        session.query("rare", RARE)


def test_a_measured_selectivity_is_enforced() -> None:
    """Once matches were counted, running queries leave nothing for another one."""
    session = pair_session(dt.Budget(cpu_ms_per_second=5))
    session.query("many", RARE.replace("60 s", "2 s"))
    with (
        pytest.warns(dt.DovetailWarning, match="cpu_ms_per_second is .*; the budget is 5"),
        patch.object(Meter, "take_load", lambda *_: Load(1e6, 0.0)),
    ):
        push_seconds(session, range(14), 2, rows=300)
    with pytest.raises(BudgetError, match=r"running queries leave too little of the budget: .* CPU"):
        session.query("late", RARE)
    session.drop_query("many")
    session.query("late", RARE)


def test_a_refusal_names_what_was_assumed() -> None:
    session = dt.LocalSession(dt.Budget(cpu_ms_per_second=0.001))
    session.stream("a", COLUMNS, "ts", rate=1000.0)
    session.stream("b", COLUMNS, "ts")
    with pytest.raises(BudgetError) as raised:
        session.query("rare", RARE)
    assert "assumed, because it is not stated: 1 tuple/s of 'b' and no matches of a.x = b.x" in raised.value.message
    assert raised.value.resource == "CPU"
    assert str(raised.value.hint).endswith("state it with stream('b', ..., rate=...) and selectivity('a.x = b.x', ...)")
    small = dt.LocalSession(dt.Budget(memory_bytes=1000))
    for name in "ab":
        small.stream(name, COLUMNS, "ts", rate=1000.0)
    with pytest.raises(BudgetError) as raised:
        small.query("rare", RARE)
    assert "assumed" not in str(raised.value)  # memory depends on no selectivity


def test_memory_limits_a_query_with_unknown_selectivities() -> None:
    session = pair_session(dt.Budget(cpu_ms_per_second=5, memory_bytes=20 << 20))
    session.query("rare", RARE)
    plan = plan_of(session)
    assert plan.load.cpu > 5 == plan.limits.cpu
    assert plan.load.memory < 20 << 20
    with pytest.raises(BudgetError, match="bytes of memory"):
        session.query("long", RARE.replace("60 s", "1 HOUR"))


# -- prices -------------------------------------------------------------------------------------------------------------------------


def star_session(
    queries: int, budget: dt.Budget | None, shares: tuple[float, float] | None = None, **config: Any
) -> dt.LocalSession:
    """Return a session whose queries join `a` and `b` with one other stream each: a join to materialize, or stages to share.

    `shares`: selectivity of `a` with `b`, and of `b` with the other stream.
    """
    session = dt.LocalSession(budget, config=dt.Config(**config))
    for name in ("a", "b", *(f"c{number}" for number in range(queries))):
        session.stream(name, COLUMNS, "ts", rate=100)
    for number in range(queries):
        if shares is not None:
            session.selectivity("a.x = b.x", shares[0])
            session.selectivity(f"b.y = c{number}.y", shares[1])
        tables = f"a [RANGE 10 s], b [RANGE 10 s], c{number} [RANGE 10 s]"
        session.query(f"q{number}", f"SELECT a.v FROM {tables} WHERE a.x = b.x AND b.y = c{number}.y")
    return session


def plan_of(session: dt.LocalSession) -> SharedPlan:
    return session._job.joint_plan


def test_joins_are_not_materialized_on_default_selectivities() -> None:
    budget = dt.Budget(memory_bytes=1 << 30)
    assert not plan_of(star_session(2, budget)).materialized
    assert plan_of(star_session(2, budget, strategy="exchange")).materialized


def test_declared_selectivities_materialize_a_join_that_saves_work() -> None:
    session = star_session(2, dt.Budget(memory_bytes=1 << 30), (0.0001, 0.9))
    assert [state.id for state in plan_of(session).materialized] == ["state:a+b"]


def test_shared_stages_lower_the_estimated_cpu() -> None:
    together = plan_of(star_session(8, None))
    with patch.object(joint, "can_share_orders", return_value=False):
        alone = plan_of(star_session(8, None))
    assert together.load.cpu < alone.load.cpu
    assert together.load.memory == alone.load.memory


def test_per_batch_costs_scale_with_the_batch_rate() -> None:
    units = calibrate.calibrate().unit_costs({}, 2.0)
    often = units.with_batch_rate(10)
    assert (often.batch_store, often.batch_stage) == (10 * units.batch_store, 10 * units.batch_stage)
    assert (often.insert, often.join, often.probe) == (units.insert, units.join, units.probe)


def test_the_monitor_measures_the_batch_rate() -> None:
    session = star_session(2, dt.Budget(memory_bytes=1 << 30))
    rng = np.random.default_rng(1)
    for number in range(40):
        times = pa.array(
            np.sort(rng.integers(number * 250_000, (number + 1) * 250_000, 500)), pa.timestamp("us", "UTC")
        )
        tables = {
            name: pa.table(
                [times, *(pa.array(rng.integers(0, 1 << 40, 500)) for _ in COLUMNS.names[1:])], COLUMNS.names
            )
            for name in ("a", "b", "c0", "c1")
        }
        session.push({name: table.cast(COLUMNS) for name, table in tables.items()})
    assert session._monitor.batch_rate == pytest.approx(4, rel=0.1)
