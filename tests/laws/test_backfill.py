"""Queries added with backfill see exactly the held tuples that the definition promises."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from late_queries import CATALOG, STREAMS, base, batch, bounds, check, keyless_base, later

import dovetail as dt
from dovetail.config import POLICIES
from dovetail.query.sql import parse_query
from dovetail.testing import Oracle


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(0, 2**32 - 1))
def test_late_queries_see_what_backfill_defines(seed: int) -> None:
    rng = random.Random(seed)
    check_late_queries(rng, {key: base(rng, key) for key in "kj"})


@given(st.integers(0, 2**32 - 1))
def test_late_queries_compute_keys_from_held_columns(seed: int) -> None:
    rng = random.Random(seed)
    check_late_queries(rng, {"base": keyless_base(rng)}, computed=0.4)


def check_late_queries(rng: random.Random, first: dict[str, str], computed: float = 0.0) -> None:
    """Run the `first` queries, add and drop others between batches, and compare all with the oracle."""
    session = dt.LocalSession(config=dt.Config(driver_policy=rng.choice(POLICIES), adaptive=rng.random() < 0.5))
    oracle = Oracle(STREAMS)
    for stream in STREAMS:
        session.stream(stream.name, stream.columns, "ts", stream.lateness / 1e6)
    sql: dict[str, str] = {}
    kept = dict.fromkeys("abc", -(1 << 60))
    found: dict[str, list[pa.Table]] = {}
    for name, text in first.items():
        sql[name] = text
        session.query(name, text)
        oracle.add_query(parse_query(name, text, CATALOG))
    for number in range(8):
        if number and rng.random() < 0.5:
            name, backfill = f"q{number}", rng.random() < 0.7
            sql[name] = later(rng, computed)
            session.add_query(name, sql[name], backfill=backfill)
            oracle.add_query(parse_query(name, sql[name], CATALOG), dict(kept) if backfill else None)
        if number and rng.random() < 0.2 and len(sql) > len(first):
            name = rng.choice([name for name in sql if name not in first])
            check(oracle, sql, found, name)
            session.drop_query(name)
            oracle.drop_query(name)
            del sql[name], found[name]
        if rng.random() < 0.2:
            session = dt.LocalSession.restore(session.snapshot())
        push = batch(rng, number)
        for name, table in session.push(push).items():
            found.setdefault(name, []).append(table)
        oracle.push(push)
        now = bounds(oracle, [parse_query(name, text, CATALOG) for name, text in sql.items()])
        kept = {name: max(kept[name], now[name]) for name in kept}
    for name in sql:
        check(oracle, sql, found, name)
