"""Plans change while queries are added and dropped, and results are always the oracle's."""

from __future__ import annotations

import random
from unittest.mock import patch

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from late_queries import CATALOG, STREAMS, base, batch, bounds, check, later
from random_plans import random_plan

import dovetail as dt
from dovetail.config import INTERLEAVING, POLICIES, STRATEGIES, Strategy
from dovetail.optimizer.adapt import proposal
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.plan.shared_plan import Load
from dovetail.query.sql import parse_query
from dovetail.session import monitor as monitoring
from dovetail.testing import Oracle

SEEDS = st.integers(0, 2**32 - 1)


class Migrating:
    """A session whose plan changes between batches, at random or by its monitor, and the oracle."""

    def __init__(self, seed: int, strategy: Strategy) -> None:
        self.rng = random.Random(seed)
        policy = self.rng.choice([policy for policy in POLICIES if policy not in INTERLEAVING])
        self.session = dt.LocalSession(config=dt.Config(driver_policy=policy, strategy=strategy))
        self.oracle = Oracle(STREAMS)
        for stream in STREAMS:
            self.session.stream(stream.name, stream.columns, "ts", stream.lateness / 1e6)
        self.sql: dict[str, str] = {}
        self.found: dict[str, list[pa.Table]] = {}
        self.kept = dict.fromkeys("abc", -(1 << 60))
        self.migrations = 0
        self.merged = 0
        for key in "kj":
            self.sql[key] = base(self.rng, key)
            self.session.query(key, self.sql[key])
            self.oracle.add_query(parse_query(key, self.sql[key], CATALOG))

    def change(self, number: int) -> None:
        """Add and drop queries at random."""
        rng = self.rng
        if rng.random() < 0.4:
            name, backfill = f"q{number}", rng.random() < 0.5
            self.sql[name] = later(rng)
            self.session.add_query(name, self.sql[name], backfill=backfill)
            query = parse_query(name, self.sql[name], CATALOG)
            self.oracle.add_query(query, dict(self.kept) if backfill else None)
        if rng.random() < 0.1 and len(self.sql) > 3:
            name = rng.choice([name for name in self.sql if name not in "kj"])
            check(self.oracle, self.sql, self.found, name)
            self.session.drop_query(name)
            self.oracle.drop_query(name)
            del self.sql[name], self.found[name]
        if rng.random() < 0.1:
            self.session = dt.LocalSession.restore(self.session.snapshot())

    def migrate(self) -> None:
        """Adopt any plan of the queries that can be planned together."""
        session, job = self.session, self.session._job
        marks = {name: each.watermark for name, each in session._engine.progress.streams.items()}
        late = job.caught_up(marks)
        plans = {name: job.plans[name] for name in (*job.planned_together, *late)}
        plan = random_plan(self.rng, {name: plan.query for name, plan in plans.items()}, CATALOG)
        session._migrate(Proposal("it was asked for", plan, plans, Load()), 0.0)
        self.migrations += 1
        self.merged += len(late)

    def push(self, number: int) -> None:
        push = batch(self.rng, number)
        for name, table in self.session.push(push).items():
            self.found.setdefault(name, []).append(table)
        self.oracle.push(push)
        now = bounds(self.oracle, [parse_query(name, text, CATALOG) for name, text in self.sql.items()])
        self.kept = {name: max(self.kept[name], now[name]) for name in self.kept}

    def check(self) -> None:
        for name in self.sql:
            check(self.oracle, self.sql, self.found, name)


@given(SEEDS)
@example(2225015)  # once failed: a view with fewer keys passed rows with NULL to one with more
def test_any_plan_may_be_adopted_between_any_batches(seed: int) -> None:
    case = Migrating(seed, "mjoin")
    case.push(0)
    for number in range(1, 14):
        case.change(number)
        if case.rng.random() < 0.5:
            case.migrate()
        case.push(number)
    case.check()


@given(SEEDS, st.sampled_from(STRATEGIES))
def test_a_monitor_that_keeps_changing_plans_changes_no_results(seed: int, strategy: Strategy) -> None:
    with (
        patch.multiple(monitoring, CHECK_AFTER_TUPLES=1, CHECK_AFTER_PER_STAGE=0),
        patch.object(proposal, "MIN_CPU_RATIO", 0.0),
    ):
        case = Migrating(seed, strategy)
        case.session._monitor.stats.drift = lambda: "it always does"  # type: ignore[method-assign, assignment, return-value]
        for number in range(14):
            case.push(number)
            case.change(number + 1)
    case.check()
