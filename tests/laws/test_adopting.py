"""A plan runs as printed, survives JSON, and can be adopted by running and rebuilt engines."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan_cases import Case, sizes
from random_plans import random_plan
from session_and_oracle import random_orders

import dovetail as dt
from dovetail.codec import from_json, to_json
from dovetail.config import JOINS, NESTED_LOOPS, ORDERINGS, STRATEGY_OPTIONS
from dovetail.engine.persist.snapshot import arena_manifest, attach
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.arena import Arena, MappedArena
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, assert_same_rows, random_scenario

SEEDS = st.integers(0, 2**32 - 1)


def through_json(plan: ExecutionPlan) -> ExecutionPlan:
    return from_json(ExecutionPlan, json.loads(json.dumps(to_json(plan))))


# -- what is printed ran ----------------------------------------------------------------------------------------------------------


def random_session(rng: random.Random) -> tuple[dt.LocalSession, dict[str, pa.Table]]:
    """Draw a session with overlapping queries, any strategy, ordering and budget, and some forced orders."""
    scenario = random_scenario(
        rng, aliases=rng.choice((2, 3, 4)), queries=2, pushes=1, count_windows=rng.random() < 0.2
    )
    join = rng.choice(("auto", *JOINS))
    loop = rng.choice(NESTED_LOOPS) if join == "nested-loop" else "multi-way"
    strategy = rng.choice(STRATEGY_OPTIONS) if loop == "multi-way" else "auto"
    config = dt.Config(join=join, nested_loop=loop, ordering=rng.choice(ORDERINGS), strategy=strategy)
    session = dt.LocalSession(rng.choice((None, dt.Budget(1e9, 1e15))), config)
    for stream in scenario.streams:
        session.stream(stream.name, stream.columns, stream.event_time, stream.lateness / 1e6, rng.choice((1, 5, 20)))
    for name, sql in scenario.sql.items():
        for copy in range(rng.choice((1, 2))):
            orders = random_orders(rng, parse_query(name, sql, scenario.catalog), config)
            try:
                session.query(f"{name}_{copy}", sql, orders if rng.random() < 0.3 else None)
            except dt.PlanError:
                continue  # an input without an equality, or too many sub-joins for an exact plan
    return session, scenario.pushes[0]


@settings(max_examples=3 * settings().max_examples)
@given(SEEDS)
def test_printed_orders_are_the_orders_that_run(seed: int) -> None:
    session, batch = random_session(random.Random(seed))
    before: Any = session.explain().to_dict()
    session.push(batch)
    after: Any = session.explain().to_dict()
    runs = {run.name: run for run in session._engine.runs}
    for shown in (before, after):
        printed = shown["queries"] | shown.get("joins", {})
        for name, run in runs.items():
            orders = {driver: [stage["alias"] for stage in path] for driver, path in printed[name]["paths"].items()}
            assert orders == {driver: list(runner.path.order) for driver, runner in run.runners.items()}
    if not runs or session._job.config.nested_loop != "multi-way":
        return  # naive and general nested loops place new tuples, and reorder, when a plan is lowered
    plan = session._job.joint_plan
    for join, step in zip(plan.joins, session._job.steps, strict=True):
        aliases = {source: alias for alias, source in step.consumers[0].sources.items()} if step.is_individual else {}
        if step.is_individual:
            aliases = plan.answer(step.name).aliases  # type: ignore[assignment]
        names = [_input(each.node, each.sources, step.materialized_inputs, aliases) for each in join.inputs]
        for name, others in zip(names, join.orders, strict=True):
            ran = [alias for alias in runs[step.name].runners[name].path.order if alias != name]
            assert ran == [names[number] for number in others]


def _input(node: str, sources: tuple[str, ...], stored: Mapping[str, Any], aliases: Mapping[str, str]) -> str:
    return node if node in stored else aliases.get(sources[0], sources[0])


# -- as data --------------------------------------------------------------------------------------------------------------------


@given(SEEDS)
def test_a_plan_survives_json(seed: int) -> None:
    case = Case(seed)
    engine, plan = case.empty(), through_json(case.lowered())
    assert plan == case.lowered()
    engine.adopt(plan)
    found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
    for batch in case.scenario.pushes:
        for name, table in engine.push(batch).items():
            found[name].append(table)
    case.check(found)


@given(SEEDS)
def test_the_plan_of_a_session_survives_json(seed: int) -> None:
    session, batch = random_session(random.Random(seed))
    session.push(batch)
    assert through_json(session._engine.plan) == session._engine.plan


# -- another plan ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=3 * settings().max_examples)
@given(SEEDS, st.booleans())
@example(1728983, False)
def test_an_engine_continues_exactly_with_any_other_plan(seed: int, tiny: bool) -> None:  # noqa: FBT001
    """After the change, results are those of an engine that always ran the new plan: the oracle's."""
    with sizes(tiny=tiny):
        case = Case(seed)
        engine = case.start()
        found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
        for batch in case.scenario.pushes:
            for name, table in engine.push(batch).items():
                found[name].append(table)
            case.plan = random_plan(case.rng, case.queries, case.scenario.catalog)
            engine.adopt(case.lowered(before=engine.plan))
        case.check(found)


# -- queries that come late -------------------------------------------------------------------------------------------------------


class Late:
    """Queries added between batches; like a shard's log, the log keeps the tuples that windows need."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scenario = random_scenario(
            self.rng, aliases=self.rng.choice((2, 3)), queries=4, pushes=7, late=False, count_windows=seed % 3 == 0
        )
        self.config = dt.Config(adaptive=False)
        self.catalog = self.scenario.catalog
        self.oracle = Oracle(self.scenario.streams)
        self.waiting = list(self.scenario.sql)
        self.plan = ExecutionPlan()
        self.log: list[tuple[int, Mapping[str, pa.Table]]] = []
        self.found: dict[str, list[pa.Table]] = {}

    def empty(self, arena: Arena | None = None) -> ShardEngine:
        engine = ShardEngine(self.config, arena)
        for stream in self.scenario.streams:
            engine.add_stream(stream)
        return engine

    def come(self, batch: int) -> None:
        """Add some queries before a batch."""
        for _ in range(self.rng.choice((0, 1, 1, 2)) if self.waiting else 0):
            if self.waiting:
                name = self.waiting.pop()
                query = parse_query(name, self.scenario.sql[name], self.catalog)
                step = Lowering(self.catalog, self.config, batch).individual_step(
                    plan_query(query, self.catalog, self.config)
                )
                self.plan = self.plan.with_steps([step])
                self.oracle.add_query(query)
                self.found[name] = []

    def rebuilt(self, engine: ShardEngine, arena: Arena | None = None) -> ShardEngine:
        """Rebuild an engine from the log, without tuples that no window needs."""
        other, kept = self.empty(arena), []
        other.adopt(self.plan)
        for came, tables in self.log:
            part = {}
            for name, table in tables.items():
                oldest, time = engine.oldest_event_time(name), self.catalog[name].event_time
                times = table[time].cast(pa.timestamp("us", table[time].type.tz), safe=False).cast(pa.int64())
                if oldest is not None:
                    part[name] = table.filter(pc.greater_equal(times, oldest))
            kept.append((came, part))
        progress = {name: engine.progress[name].to_json() for name in self.catalog}
        other.load(kept, progress, engine.batches)
        return other

    def check(self) -> None:
        for name, tables in self.found.items():
            expected = self.oracle.results_table(name)
            actual = pa.concat_tables(tables) if tables else expected.slice(0, 0)
            assert_same_rows(actual, expected, self.scenario.sql[name])


@settings(max_examples=3 * settings().max_examples)
@given(SEEDS, st.booleans())
def test_live_attached_and_rebuilt_engines_give_late_queries_the_same_results(seed: int, tiny: bool) -> None:  # noqa: FBT001
    with sizes(tiny=tiny) as directory, TemporaryDirectory() as second:
        case, number = Late(seed), 0
        engines = {"live": case.empty(), "attached": case.empty(MappedArena(directory)), "rebuilt": case.empty()}
        for batch in case.scenario.pushes:
            case.come(engines["live"].batches)
            for engine in engines.values():
                engine.adopt(case.plan)
            case.log.append((engines["live"].batches, batch))
            results = {kind: engine.push(batch) for kind, engine in engines.items()}
            for name in case.found:
                for kind in ("attached", "rebuilt"):
                    assert_same_rows(results[kind][name], results["live"][name], f"{kind}: {case.scenario.sql[name]}")
                case.found[name].append(results["live"][name])
            case.oracle.push(batch)
            stored = json.loads(json.dumps(arena_manifest(engines["attached"])))
            engines["attached"] = attach(MappedArena(directory), stored, case.plan)
            engines["rebuilt"] = case.rebuilt(engines["live"], MappedArena(Path(second) / str(number := number + 1)))
        case.check()


def test_a_rebuilt_engine_hides_tuples_from_before_a_query() -> None:
    """The smallest case has one tuple before the query and its partner after a rebuild."""
    columns = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64())])
    case = Late(1)
    case.scenario = replace(
        case.scenario,
        streams=tuple(replace(stream, name=name, columns=columns, event_time="ts") for stream, name in zip(
            (case.scenario.streams[0],) * 2, "ab", strict=True)),
        sql={"q": "SELECT a.k FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.k = b.k"},
    )  # fmt: skip
    case.catalog = case.scenario.catalog
    steps = [
        Lowering(case.catalog, case.config, since).individual_step(
            plan_query(parse_query(name, case.scenario.sql["q"], case.catalog), case.catalog, case.config)
        )
        for name, since in (("early", 0), ("late", 1))
    ]
    case.plan = ExecutionPlan.of(steps)
    first = {"a": pa.table([[1_000_000], [1]], schema=columns)}
    lived = case.empty()
    lived.adopt(ExecutionPlan.of(steps[:1]))
    lived.push(first)
    lived.adopt(case.plan)
    case.log = [(0, first)]
    rebuilt = case.rebuilt(lived)
    second = {"b": pa.table([[2_000_000], [1]], schema=columns)}
    for engine in (lived, rebuilt):
        assert {name: table.num_rows for name, table in engine.push(second).items()} == {"early": 1, "late": 0}
