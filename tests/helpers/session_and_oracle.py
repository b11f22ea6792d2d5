"""Run a random case through a session and through the oracle."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa
from hypothesis import strategies as st

import dovetail as dt
from dovetail.config import JOINS, NESTED_LOOPS, ORDERINGS, POLICIES, Mode
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, RandomCase, assert_same_rows

MODES: tuple[tuple[Mode, Mode], ...] = (("lazy", "lazy"), ("eager", "lazy"), ("eager", "eager"))


@st.composite
def configs(draw: st.DrawFn) -> dt.Config:
    """Draw a configuration that affects how queries run."""
    join = draw(st.sampled_from(JOINS))
    evaluation, expiration = draw(st.sampled_from(MODES))
    loops = [loop for loop in NESTED_LOOPS if evaluation == "lazy" or loop != "general"]
    nested_loop = draw(st.sampled_from(loops)) if join == "nested-loop" else "multi-way"
    stage_rows = draw(st.sampled_from((1 << 17, 64, 3, 1)))
    ordering = draw(st.sampled_from(ORDERINGS))
    adaptive = draw(st.booleans())
    policy = draw(st.sampled_from(POLICIES)) if evaluation == "lazy" else "timestamp"
    return dt.Config(
        driver_policy=policy,
        adaptive=adaptive,
        join=join,
        nested_loop=nested_loop,
        ordering=ordering,
        evaluation=evaluation,
        expiration=expiration,
        stage_rows=stage_rows,
    )


def random_orders(rng: random.Random, query: JoinQuery, config: dt.Config) -> dict[str, Sequence[str]]:
    """Force random probe orders on some inputs."""
    orders: dict[str, Sequence[str]] = {}
    for alias in query.aliases:
        if rng.random() < 0.5:
            order = [other for other in query.aliases if other != alias]
            rng.shuffle(order)
            if config.join == "nested-loop" and rng.random() < 0.5:
                order.insert(rng.randrange(len(order) + 1), alias)
            orders[alias] = order
    return orders


def declare(session: dt.LocalSession, streams: Sequence[StreamSchema]) -> None:
    for s in streams:
        session.stream(s.name, s.columns, s.event_time, s.lateness / 1e6, s.rate, progress_by=s.progress_by)


class Pair:
    """A session and the oracle, given the same input."""

    def __init__(self, streams: Sequence[StreamSchema], config: dt.Config) -> None:
        self.session = dt.LocalSession(config=config)
        declare(self.session, streams)
        self.oracle = Oracle(streams)
        self.catalog = {s.name: s for s in streams}
        self.found: dict[str, list[pa.Table]] = {}
        self.sql: dict[str, str] = {}
        self.nothing: dict[str, pa.Table] = {}

    def add(self, name: str, sql: str, rng: random.Random, config: dt.Config, *, forced: bool = True) -> None:
        query = parse_query(name, sql, self.catalog)
        orders = random_orders(rng, query, config) if forced else None
        try:
            self.session.query(name, sql, orders)
        except dt.PlanError:
            if config.join != "hash":
                raise
            return
        self.oracle.add_query(query)
        self.found[name] = []
        self.nothing[name] = query.schema.empty_table()
        self.sql[name] = sql

    def drop(self, name: str) -> None:
        self.check(name)
        self.session.drop_query(name)
        self.oracle.drop_query(name)
        del self.found[name], self.sql[name]

    def push(self, batch: Mapping[str, pa.Table], piece_rows: int | None = None) -> None:
        if piece_rows is None:
            self._collect(self.session.push(batch))
        else:
            pieces = {name: [self.nothing[name]] for name in self.found}
            for name, table in self.session.push_iter(batch, piece_rows=piece_rows):
                pieces[name].append(table)
            self._collect({name: pa.concat_tables(tables) for name, tables in pieces.items()})
        self.oracle.push(batch)

    def advance(self, times: Mapping[str, int]) -> None:
        self._collect(self.session.advance(times))
        self.oracle.advance(times)

    def _collect(self, results: Mapping[str, pa.Table]) -> None:
        assert set(results) == set(self.found)
        for name, table in results.items():
            self.found[name].append(table)

    def restart(self) -> None:
        self.session = dt.LocalSession.restore(self.session.snapshot())

    def check(self, name: str) -> None:
        expected = self.oracle.results_table(name)
        actual = pa.concat_tables(self.found[name]) if self.found[name] else expected.slice(0, 0)
        assert_same_rows(actual, expected, f"query {name}: {self.sql[name]}")

    def check_all(self) -> None:
        for name in self.found:
            self.check(name)
        metrics = self.session.metrics()["streams"]
        for name in self.catalog:
            assert metrics[name]["late"] == self.oracle.late.get(name, 0)


def run(scenario: RandomCase, config: dt.Config, seed: int) -> Pair:
    """Push a random case through both and compare all results."""
    rng = random.Random(seed)
    pair = Pair(scenario.streams, config)
    for name, sql in scenario.sql.items():
        pair.add(name, sql, rng, config)
    for batch in scenario.pushes:
        pair.push(batch, rng.choice((None, 1, 3, 100)))
    pair.check_all()
    return pair
