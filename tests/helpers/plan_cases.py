"""Overlapping queries under a random plan, with an engine to run them and the oracle to check them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from random_plans import overlapping, random_plan

import dovetail as dt
from dovetail.config import INTERLEAVING, POLICIES
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage import rows
from dovetail.engine.storage import window as window_store
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.columns import nested, texts
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.optimizer.expressions import with_expressions
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.subset import restrict_plan
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle, RandomCase, assert_same_rows, random_scenario

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
        """Lower the plan of all queries, or of those in `left`."""
        plan = restrict_plan(self.plan, left or self.queries)
        assert plan is not None
        steps = Lowering(self.scenario.catalog, self.config).steps(with_expressions(plan, self.plans))
        return ExecutionPlan.of(steps, before)

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


@contextmanager
def sizes(*, tiny: bool) -> Iterator[Path]:
    """Yield a directory; with `tiny`, windows grow, move and are rewritten in every batch."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        if tiny:
            for module, name, value in TINY:
                patch.setattr(module, name, value)
            patch.setattr(window_store, "_SMALLEST_REWRITE", 4)
        yield Path(directory)
