"""Queries that share joins and stored sub-joins give the oracle's results, whatever the plan."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import overlapping, random_plan

import dovetail as dt
from dovetail.config import INTERLEAVING, POLICIES
from dovetail.engine.persist.snapshot import attach, left_in_arena, read_snapshot, write_snapshot
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage import rows
from dovetail.engine.storage import window as window_store
from dovetail.engine.storage.arena import Arena, MappedArena
from dovetail.engine.storage.columns import nested, texts
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.subset import part_of
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, RandomCase, assert_same_rows, random_scenario

SEEDS = st.integers(0, 2**32 - 1)
TINY = (
    (rows, "SMALLEST_CAPACITY", 8),
    (nested, "_MOST_CHUNKS", 2),
    (texts, "_SMALLEST_HEAP", 8),
    (texts, "_LARGE_HEAP", 16),
)


class Case:
    """Overlapping queries under a random plan."""

    def __init__(self, seed: int, **options: object) -> None:
        self.rng = random.Random(seed)
        wanted = {"aliases": self.rng.choice((3, 3, 4, 5)), "count_windows": False, "pushes": 5} | options
        self.scenario: RandomCase = random_scenario(self.rng, **wanted)
        catalog = self.scenario.catalog
        bound = {name: parse_query(name, sql, catalog) for name, sql in self.scenario.sql.items()}
        self.queries: dict[str, JoinQuery] = overlapping(self.rng, bound)
        self.config = dt.Config(
            join=self.rng.choice(("auto", "auto", "hybrid", "nested-loop")),
            stage_rows=self.rng.choice((1 << 17, 3, 1)),
            adaptive=self.rng.random() < 0.5,
            driver_policy=self.rng.choice([policy for policy in POLICIES if policy not in INTERLEAVING]),
        )
        self.pushed: list[dict[str, pa.Table]] = []
        self.plan = random_plan(self.rng, self.queries, catalog)
        self.plans = {name: plan_query(query, catalog, self.config) for name, query in self.queries.items()}

    def lowered(self, left: Collection[str] = (), before: ExecutionPlan | None = None) -> ExecutionPlan:
        """What is run, or what is left of it for some queries."""
        plan = part_of(self.plan, left or self.queries)
        assert plan is not None
        return ExecutionPlan.of(Lowering(self.scenario.catalog, self.config).steps(plan, self.plans), before)

    def empty(self, arena: Arena | None = None) -> ShardEngine:
        engine = ShardEngine(self.config, arena, replan=Replanner(self.config))
        for stream in self.scenario.streams:
            engine.add_stream(stream)
        return engine

    def start(self, arena: Arena | None = None) -> ShardEngine:
        engine = self.empty(arena)
        engine.adopt(self.lowered())
        return engine

    def oracle(self) -> Oracle:
        oracle = Oracle(self.scenario.streams)
        for query in self.queries.values():
            oracle.add_query(query)
        for batch in self.scenario.pushes:
            oracle.push(batch)
        return oracle

    def check(self, found: dict[str, list[pa.Table]]) -> None:
        oracle = self.oracle()
        for name in self.queries:
            expected = oracle.results_table(name)
            actual = pa.concat_tables(found[name]) if found[name] else expected.slice(0, 0)
            assert_same_rows(actual, expected, f"{name} under {self.plan!r}")


def snapshot(case: Case, engine: ShardEngine, _: Path) -> ShardEngine:
    stored = read_snapshot(write_snapshot(engine, {}))
    other = case.empty()
    stored.fill(other, case.lowered(engine.plan.answers))
    return other


def hand_over(case: Case, engine: ShardEngine, directory: Path) -> ShardEngine:
    """To another process that opens the same arrays."""
    stored = json.loads(json.dumps(left_in_arena(engine)))
    plan = case.lowered(engine.plan.answers, engine.plan)
    return attach(MappedArena(directory), stored, plan, replan=engine.replan)


def replay(case: Case, engine: ShardEngine, _: Path) -> ShardEngine:
    """From the tuples that windows need, as a log keeps them; only what is accepted wherever it is cut can be."""
    other = case.start()
    held = {}
    for stream in case.scenario.streams:
        pushed = [batch[stream.name] for batch in case.pushed if stream.name in batch]
        oldest = engine.oldest(stream.name)
        if pushed and oldest is not None:
            table = pa.concat_tables(pushed)
            times = table["ts"].cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
            held[stream.name] = table.filter(pc.greater_equal(times, oldest))
    other.load([(0, held)], {stream.name: engine.progress[stream.name].to_json() for stream in case.scenario.streams})
    return other


Restart: TypeAlias = Callable[[Case, ShardEngine, Path], ShardEngine]
RESTARTS = (None, None, snapshot, hand_over, replay)


@contextmanager
def sizes(*, tiny: bool) -> Iterator[Path]:
    """A directory; and, if `tiny`, windows that grow, move and are rewritten all the time."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        if tiny:
            for module, name, value in TINY:
                patch.setattr(module, name, value)
            patch.setattr(window_store, "_SMALLEST_REWRITE", 4)
        yield Path(directory)


@settings(max_examples=5 * settings().max_examples)
@given(SEEDS, st.booleans(), st.sampled_from(RESTARTS))
def test_every_plan_gives_the_oracles_results(seed: int, tiny: bool, restart: Restart | None) -> None:  # noqa: FBT001
    with sizes(tiny=tiny) as directory:
        case = Case(seed, **({"late": False} if restart is replay else {}))
        engine = case.start(MappedArena(directory) if restart is hand_over else None)
        found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
        for batch in case.scenario.pushes:
            for name, table in engine.push(batch).items():
                found[name].append(table)
            case.pushed.append(batch)
            if restart is not None:
                engine = restart(case, engine, directory)
        case.check(found)


@settings(max_examples=2 * settings().max_examples)
@given(SEEDS, st.booleans(), st.sampled_from((None, None, snapshot, hand_over)))
def test_a_dropped_query_takes_along_what_only_it_needed(seed: int, tiny: bool, restart: Restart | None) -> None:  # noqa: FBT001
    with sizes(tiny=tiny) as directory:
        case = Case(seed)
        engine = case.start(MappedArena(directory) if restart is hand_over else None)
        found: dict[str, list[pa.Table]] = {name: [] for name in case.queries}
        left = list(case.queries)
        for batch in case.scenario.pushes:
            for name, table in engine.push(batch).items():
                found[name].append(table)
            if len(left) > 1:
                name = left.pop(case.rng.randrange(len(left)))
                engine.adopt(case.lowered(left, engine.plan).in_orders_of(engine.plan))
            if restart is not None:
                engine = restart(case, engine, directory)
        needed = {node.id for name in left for node in case.plan.below(name)}
        assert len(engine.joined.runs) == sum(join.id in needed for join in case.plan.joins)
        read = {each.node for join in case.plan.joins if join.id in needed for each in join.inputs}
        assert set(engine.joined.states) == {state.id for state in case.plan.states if state.id in read}
        refs = [ref for name in left for ref in case.queries[name].refs]
        assert set(engine.joined.windows) == {ref.stream for ref in refs}
        for stream, window in engine.joined.plans.items():
            assert window.longest == max(
                ref.window.micros for ref in refs if ref.stream == stream and isinstance(ref.window, TimeWindow)
            )
        for name in left:
            assert_same_rows(pa.concat_tables(found[name]), case.oracle().results_table(name))
