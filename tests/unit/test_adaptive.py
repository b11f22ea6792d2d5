"""Probe orders that change while a query runs: results never do, and the orders follow the data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.codec import from_json, to_json
from dovetail.engine.join.watch import MOST_CREDIT, SHARE, ProbeWatch, consider_cost, look_cost
from dovetail.engine.persist.snapshot import attach, left_in_arena
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import MappedArena
from dovetail.optimizer.adapt.reorder import Replanner, measured_graph
from dovetail.optimizer.adapt.selectivity import GraphShape, Shares
from dovetail.optimizer.graph.from_query import declared_rates
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.stats.probes import Cost, Measured, ProbeCounts, ProbeKey, ProbeOrderChange
from dovetail.testing import Oracle, assert_same_rows, random_scenario
from dovetail.workloads import drift


class Restless(Replanner):
    """Changes every order, at random, whenever it is asked."""

    rng = random.Random(0)

    def __call__(self, plan: QueryPlan, measured: Measured) -> tuple[QueryPlan, list[ProbeOrderChange]] | None:  # noqa: ARG002
        orders, changes = {}, []
        for path in plan.paths:
            others = [alias for alias in plan.query.aliases if alias != path.driver]
            self.rng.shuffle(others)
            orders[path.driver] = (path.driver, *others)
            changes.append(ProbeOrderChange(path.driver, path.order[1:], tuple(others), 1.0, 1.0))
        return self.with_orders(plan, orders), changes


@pytest.mark.parametrize("seed", range(12))
def test_results_do_not_depend_on_changing_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.engine.join.watch.LOOK_AFTER", 1)
    monkeypatch.setattr("dovetail.engine.join.watch.MOST_PATIENCE", 1)
    monkeypatch.setattr("dovetail.session.local.Replanner", Restless)
    rng = random.Random(seed)
    scenario = random_scenario(rng, pushes=6)
    session = dt.LocalSession(config=dt.Config(join=rng.choice(("auto", "nested-loop", "hybrid"))))
    oracle = Oracle(scenario.streams)
    for s in scenario.streams:
        session.stream(s.name, s.columns, s.event_time, s.lateness / 1e6, s.rate)
    for name, sql in scenario.sql.items():
        session.query(name, sql)
        oracle.add_query(parse_query(name, sql, scenario.catalog))
    found: dict[str, list[pa.Table]] = {name: [] for name in scenario.sql}
    for push in scenario.pushes:
        for name, table in session.push(push).items():
            found[name].append(table)
        oracle.push(push)
        if rng.random() < 0.3:
            session = dt.LocalSession.restore(session.snapshot())
    for name in scenario.sql:
        wanted = oracle.results_table(name)
        assert_same_rows(pa.concat_tables(found[name]), wanted, scenario.sql[name])


# -- the orders follow the data ---------------------------------------------------------------------------------------------

COLUMNS = drift.COLUMNS


def run(config: dt.Config, *, told: bool = False) -> tuple[list[pa.Table], int, dt.LocalSession]:
    """Run the drifting workload; `told`, the orders that suit the second half are set at its first batch."""
    session = dt.LocalSession(config=config)
    drift.declare(session, lambda _: drift.COLUMNS)
    return pushed(session, drift.batch, drift.ORDERS_AFTER if told else None)


def pushed(
    session: dt.LocalSession, batch: Callable[[int], dict[str, pa.Table]], told: Mapping[str, tuple[str, ...]] | None
) -> tuple[list[pa.Table], int, dt.LocalSession]:
    """Push all batches; set the orders `told` at the first of the second half."""
    rows = []
    for number in range(drift.BATCHES):
        if told and number == drift.BATCHES // 2:
            engine = session._engine
            step = engine.run_of("q").step
            told_plan = Replanner(engine.config).with_orders(step.plan, told)
            engine.adopt(engine.plan.with_steps([replace(step, plan=told_plan)]))
        rows.append(session.push(batch(number))["q"])
    return rows, drift.work(session.metrics()["queries"]["q"]), session


def test_orders_follow_a_drift() -> None:
    static_rows, static, _ = run(dt.Config(adaptive=False, driver_policy="declared"))
    adaptive_rows, adaptive, session = run(dt.Config(driver_policy="declared"))
    _, told, _ = run(dt.Config(driver_policy="declared"), told=True)
    assert_same_rows(pa.concat_tables(adaptive_rows), pa.concat_tables(static_rows))
    assert adaptive <= 1.15 * told
    assert static >= 3 * told
    changes: Any = session.metrics()["queries"]["q"]["changes"]
    assert len(changes) <= 6
    (change,) = [change for change in changes if change["driver"] == "c"]
    assert (change["before"], change["after"]) == (("b", "a"), ("a", "b"))
    assert 0 <= change["batch"] - drift.BATCHES // 2 <= 3
    assert change["measured_after"] < change["measured_before"] / 3
    assert change["predicted_after"] < change["predicted_before"]


RATES = ({"a": 40, "b": 800, "c": 400}, {"a": 800, "b": 40, "c": 400})
"""Tuples per second before and after half of the time: `a` and `b` change places, and pairs match alike all the time."""


def faster_and_slower(number: int) -> dict[str, pa.Table]:
    rng, tables = np.random.default_rng(number), {}
    for name, rows in RATES[number >= drift.BATCHES // 2].items():
        ts = pa.array(number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows)), TIMESTAMP)
        tables[name] = pa.table([ts, *(rng.integers(0, 40, rows) for _ in range(3))], schema=COLUMNS)
    return tables


def test_orders_follow_rates_that_drift() -> None:
    def measured(config: dt.Config, told: Mapping[str, tuple[str, ...]] | None = None) -> Any:
        session = dt.LocalSession(config=config)
        for name, rate in RATES[0].items():
            session.stream(name, COLUMNS, "ts", rate=float(rate))
        for pair in ("a.x = b.x", "b.y = c.y", "c.z = a.z"):
            session.selectivity(pair, 1 / 40)
        session.query("q", drift.SQL)
        return pushed(session, faster_and_slower, told)

    still = dt.Config(adaptive=False, driver_policy="declared")
    # The slower of the two others first.
    _, told, _ = measured(still, {"a": ("a", "b", "c"), "b": ("b", "c", "a"), "c": ("c", "b", "a")})
    static_rows, static, _ = measured(still)
    adaptive_rows, adaptive, session = measured(dt.Config(driver_policy="declared"))
    assert_same_rows(pa.concat_tables(adaptive_rows), pa.concat_tables(static_rows))
    assert static >= 3 * told
    assert told < adaptive < 1.1 * told
    changes: Any = session.metrics()["queries"]["q"]["changes"]
    assert {change["driver"]: change["after"] for change in changes} == {
        "a": ("b", "c"),
        "b": ("c", "a"),
        "c": ("b", "a"),
    }
    assert all(0 <= change["batch"] - drift.BATCHES // 2 <= 3 for change in changes)


def test_a_given_order_stays() -> None:
    session = dt.LocalSession()
    for name in "abc":
        session.stream(name, COLUMNS, "ts", rate=float(drift.ROWS))
    session.query("q", drift.SQL, {"a": ("c", "b")})
    for batch in range(drift.BATCHES):
        session.push(drift.batch(batch))
    metrics: Any = session.metrics()["queries"]["q"]
    assert "a" not in [change["driver"] for change in metrics["changes"]]


def test_orders_do_not_flap() -> None:
    session = dt.LocalSession()
    for name in "abc":
        session.stream(name, COLUMNS, "ts", rate=float(drift.ROWS))
    session.query("q", drift.SQL)
    rng = np.random.default_rng(5)
    for batch in range(40):  # all pairs match alike: no order is better than the other
        ts = pa.array(np.arange(drift.ROWS) * 2000 + batch * 1_000_000, TIMESTAMP)
        session.push({
            name: pa.table([ts, *(rng.integers(0, 100, drift.ROWS) for _ in range(3))], schema=COLUMNS) for name in "abc"
        })  # fmt: skip
    metrics: Any = session.metrics()["queries"]["q"]
    assert all(change["batch"] < 10 for change in metrics["changes"])


def test_a_promise_that_was_not_kept_is_not_believed_again() -> None:
    """Batches larger than the windows: what probes find depends on which stream comes first in a batch, so that estimates promise the
    last stream a gain from each of two orders to the other, which neither has."""
    columns = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
    session = dt.LocalSession()
    names = [f"s{number}" for number in range(5)]
    for name in names:
        session.stream(name, columns, "ts", rate=500.0)
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in names)
    session.query("q", f"SELECT s0.k FROM {windows} WHERE s0.k = s1.k AND s1.k = s2.k AND s2.k = s3.k AND s3.k = s4.k")
    rng = np.random.default_rng(3)
    rows = 6500
    for batch in range(40):
        ts = pa.array((np.arange(rows) + batch * rows) * 2000, TIMESTAMP)
        session.push({name: pa.table([ts, rng.integers(0, 5000, rows)], schema=columns) for name in names})
    changes: Any = session.metrics()["queries"]["q"]["changes"]
    assert len([change for change in changes if change["driver"] == "s4"]) <= 4


def test_what_an_order_cost_is_forgotten_when_costs_drift() -> None:
    plans = Measured({}, {}, {}, {"a": {("b", "c"): Cost(3.0, 30.0), ("c", "b"): Cost(1.0, 30.0)}})
    assert plans.gain("a", ("b", "c"), ("c", "b"), "produced") == 2.0
    assert plans.gain("a", ("b", "c"), ("c", "b"), "comparisons") == 1.0
    assert plans.gain("b", ("b", "c"), ("c", "b"), "produced") is None
    watch = ProbeWatch()

    def look(order: str, produced: int) -> None:
        counted = [[100, 0, 100, 0], [100, 0, produced, 50_000]]
        watch.look({"a": SimpleNamespace(path=SimpleNamespace(order=("a", order)), since_last=lambda: counted)}, 0)  # type: ignore[dict-item]

    look("b", 200)
    look("c", 220)
    look("b", 220)
    assert {order: cost.produced for order, cost in watch.tried["a"].items()} == pytest.approx(
        {("b",): 2.1, ("c",): 2.2}
    )
    assert from_json(ProbeWatch, json.loads(json.dumps(to_json(watch)))).tried == watch.tried
    look("b", 500)
    assert watch.tried["a"] == {("b",): Cost(5.0, 0.0)}


def test_a_probe_that_two_paths_make_is_one_probe() -> None:
    """Of one batch, the first stream meets windows without the others' new tuples and the last one meets all of them, so what two
    paths find with the same probe may differ by more than a drift does."""

    def path(order: str, matches: int) -> Any:
        counted = [[100, 0, 1000, 0], [1000, 0, 1000, 50_000], [1000, 0, matches, 50_000]]
        return SimpleNamespace(path=SimpleNamespace(order=tuple(order)), since_last=lambda: counted)

    watch = ProbeWatch()
    runners = {"a": path("acb", 500), "c": path("cab", 1500)}
    considered = [look for look in range(32) if watch.look(runners, 1_000_000 * look)]
    assert considered == [0, 1, 3, 7, 15, 31]
    assert watch.found[frozenset("ac"), "b"].selectivity == pytest.approx(2000 / 100_000)


# -- watching has a price ------------------------------------------------------------------------------------------------------


def test_a_steady_join_of_ten_streams_is_seldom_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: 60 graphs for each time that orders were considered, and that after each batch, made it 16 times slower."""
    made: list[object] = []
    make = dt.JoinGraph.__init__

    def counted(graph: dt.JoinGraph, *given: Any, **options: Any) -> None:
        made.append(graph)
        make(graph, *given, **options)

    columns = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
    names = [f"s{number}" for number in range(10)]
    session = dt.LocalSession()
    for name in names:
        session.stream(name, columns, "ts", rate=1000.0)
    windows = ", ".join(f"{name} [RANGE 1 SECOND]" for name in names)
    equal = " AND ".join(f"s{number}.k = s{number + 1}.k" for number in range(9))
    session.query("q", f"SELECT s0.k FROM {windows} WHERE {equal}")
    session.explain()
    monkeypatch.setattr(dt.JoinGraph, "__init__", counted)
    rng = np.random.default_rng(1)
    for batch in range(30):
        ts = pa.array(np.arange(1000) * 1000 + batch * 1_000_000, TIMESTAMP)
        session.push({name: pa.table([ts, rng.integers(0, 1000, 1000)], schema=columns) for name in names})
    assert session._engine.run_of("q").watch.found  # it has looked
    assert 1 <= len(made) <= 5


class Path10:
    """Stands for the runner of one of ten inputs."""

    part = 1.0

    def __init__(self, number: int) -> None:
        self.path = SimpleNamespace(order=tuple(f"s{(number + place) % 10}" for place in range(10)))
        self.counts = [[0, 0, 0, 0] for _ in range(10)]
        self.noted = [[0, 0, 0, 0] for _ in range(10)]

    def push(self, tuples: int, matches: int) -> None:
        for place, counted in enumerate(self.counts):
            added = (tuples, 0, matches if place else tuples, tuples * 1000)
            counted[:] = [n + more for n, more in zip(counted, added, strict=True)]

    def since_last(self) -> list[list[int]]:
        new = [[n - o for n, o in zip(now, old, strict=True)] for now, old in zip(self.counts, self.noted, strict=True)]
        self.forget()
        return new

    def forget(self) -> None:
        self.noted = [list(counted) for counted in self.counts]

    @property
    def produced(self) -> tuple[int, int]:
        return self.counts[0][2], sum(counted[2] for counted in self.counts)


def watched(matches: Callable[[int], int], batches: int, watch: ProbeWatch) -> tuple[list[int], list[int], float]:
    """In which batches counters were looked at and orders considered, and how many tuples were produced."""
    runners: Any = {f"s{number}": Path10(number) for number in range(10)}
    looked, considered = [], []
    for batch in range(batches):
        for runner in runners.values():
            runner.push(1000, matches(batch))
        watch.fresh += 10_000
        if watch.is_ready(runners, batch * 1_000_000, 1_000_000):
            looked.append(batch)
            if watch.look(runners, batch * 1_000_000):
                considered.append(batch)
    return looked, considered, sum(counted[2] for runner in runners.values() for counted in runner.counts)


def test_noise_costs_no_more_than_its_share() -> None:
    """Every other batch matches ten times as often: each look finds a drift, and watching goes on within its credit."""
    looked, considered, produced = watched(lambda batch: 100 + 900 * (batch % 2), 2000, ProbeWatch())
    spent = len(looked) * look_cost(10) + len(considered) * consider_cost(10)
    assert spent <= SHARE * produced + MOST_CREDIT + 4 * (look_cost(10) + consider_cost(10))
    assert len(considered) >= 0.3 * SHARE * produced / consider_cost(10)  # looks do not eat up what orders need


@pytest.mark.parametrize("at", [300, 301, 1000])
def test_a_drift_is_noticed_at_once_after_a_long_peace(at: int) -> None:
    _, considered, _ = watched(lambda batch: 100 if batch < at else 1000, at + 10, ProbeWatch())
    assert any(at <= batch <= at + 2 for batch in considered)


def test_what_watching_may_cost_survives_a_restart() -> None:
    watch = ProbeWatch()
    watched(lambda batch: 100 if batch < 50 else 1000, 51, watch)
    stored = json.loads(json.dumps(to_json(watch)))
    assert json.loads(json.dumps(to_json(from_json(ProbeWatch, stored)))) == stored
    assert 0 < stored["credit"] < MOST_CREDIT + 4 * (look_cost(10) + consider_cost(10))


def test_of_many_joins_each_is_glanced_at_when_it_has_paid_for_it() -> None:
    """Paths that make more of each tuple pay for glances sooner; alone, both are looked at as often."""
    glances = {}
    for matches in (10, 100):
        for joins in (1, 1000):
            watch, runner, glances[matches, joins] = ProbeWatch(), Path10(0), 0
            runners: Any = {f"s{number}": runner for number in range(10)}
            for batch in range(200):
                runner.push(1000, matches)
                watch.fresh += 1000
                watch.is_ready(runners, batch * 1_000_000, 1_000_000, joins)
                glances[matches, joins] += watch.fresh == 0
    assert glances[10, 1] == glances[100, 1] >= 100
    assert glances[10, 1000] < glances[100, 1000] < glances[100, 1]


# -- fitting ----------------------------------------------------------------------------------------------------------------

STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "abcd"}


def found(selectivity: float, probes: float = 1000.0) -> ProbeCounts:
    return ProbeCounts(probes, probes * 100, probes * 100 * selectivity)


def fitted(query: JoinQuery, steps: dict[ProbeKey, ProbeCounts]) -> dt.JoinGraph:
    rates, shares = declared_rates(query, STREAMS), Shares(GraphShape.of(query), {})
    return measured_graph(query, rates, shares, Measured({}, dict.fromkeys(query.aliases, 100.0), steps))


def test_single_edges_are_what_was_measured() -> None:
    query = parse_query(
        "q", "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.y = c.y", STREAMS
    )
    steps = {(frozenset("a"), "b"): found(0.2), (frozenset("ab"), "c"): found(0.005)}
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == pytest.approx(0.2)
    assert graph.selectivity("b", "c") == pytest.approx(0.005)


def test_several_edges_have_the_measured_product() -> None:
    sql = "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.y = c.y AND a.y + 1 = c.x"
    query = parse_query("q", sql, STREAMS)
    steps = {(frozenset("a"), "b"): found(0.2), (frozenset("ab"), "c"): found(0.0001)}
    graph = fitted(query, steps)
    assert graph.extension("ab", "c") / 100 == pytest.approx(0.0001)


def test_a_common_key_has_the_measured_values() -> None:
    sql = "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.x = b.x AND b.x = c.x"
    query = parse_query("q", sql, STREAMS)
    steps = {
        (frozenset("a"), "b"): found(0.01),
        (frozenset("ab"), "c"): found(0.002),
        (frozenset("c"), "b"): found(0.002),
    }
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == pytest.approx(0.01)
    assert graph.selectivity("c", "b") == pytest.approx(0.002)
    assert graph.extension("ab", "c") / 100 == pytest.approx(0.002)


def test_few_probes_are_not_trusted() -> None:
    query = parse_query("q", "SELECT a.ts FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x", STREAMS)
    steps = {(frozenset("a"), "b"): found(0.5, probes=10)}
    graph = fitted(query, steps)
    assert graph.selectivity("a", "b") == 0.01


def test_an_estimate_names_the_next_best_order() -> None:
    streams = {name: StreamSchema(name, COLUMNS, "ts", rate=10.0) for name in "abc"}
    sql = "SELECT a.ts FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.x = b.x AND a.y = c.y"
    hints = {frozenset("ab"): 0.5, frozenset("ac"): 0.01}
    plan = plan_query(parse_query("q", sql, streams), streams, dt.Config(), PlanChoices(hints))
    path = plan.estimate.paths["a"]
    assert plan.paths[0].order == ("a", "c", "b")
    assert path.rows == pytest.approx((1.0, 1.0, 50.0))
    assert path.cost == pytest.approx(10 * 51)
    assert path.other == ("a", "b", "c")
    assert path.other_cost == pytest.approx(10 * 100)


def test_arrays_can_be_taken_over_after_orders_changed_what_is_indexed(tmp_path: Path) -> None:
    """A hybrid join indexes the large windows; which those are was declared wrongly, and was measured."""
    columns = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int64())])
    streams = {
        name: StreamSchema(name, columns, "ts", rate=rate) for name, rate in (("a", 1.0), ("b", 1.0), ("c", 100.0))
    }
    config = dt.Config(join="hybrid")
    sql = "SELECT a.ts FROM a [RANGE 5 s], b [RANGE 5 s], c [RANGE 5 s] WHERE a.x = b.x AND a.y = c.y AND b.y = c.x"
    step = Lowering(streams, config).own(plan_query(parse_query("q", sql, streams), streams, config))
    plan, replan = ExecutionPlan.of([step]), Replanner(config)
    engine = ShardEngine(config, MappedArena(tmp_path), replan)
    for stream in streams.values():
        engine.add_stream(stream)
    engine.adopt(plan)
    rng = random.Random(1)

    def table(second: int, rows: int, distinct: int) -> pa.Table:
        times = sorted(rng.randrange(second * 1_000_000, (second + 1) * 1_000_000) for _ in range(rows))
        keys = [[rng.randrange(count) for _ in times] for count in (distinct, 1000)]
        return pa.table([pa.array(times, TIMESTAMP), *keys], schema=columns)

    for second in range(60):
        engine.push({"a": table(second, 60, 20), "b": table(second, 100, 20), "c": table(second, 5, 1000)})
    assert engine.run_of("q").watch.changes
    stored = json.loads(json.dumps(left_in_arena(engine)))
    other = attach(MappedArena(tmp_path), stored, plan, replan=replan)
    assert other.run_of("q").plan.paths == engine.run_of("q").plan.paths
    assert set(other.push({"c": table(60, 50, 1000)})) == {"q"}
