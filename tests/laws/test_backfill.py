"""Queries that come while data flows, and see what the windows hold: exactly what the definition says."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.config import POLICIES
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("j", pa.string()), ("v", pa.int64())])
STREAMS = tuple(
    StreamSchema(name, COLUMNS, "ts", lateness) for name, lateness in (("a", 0), ("b", 2_000_000), ("c", 500_000))
)
CATALOG = {stream.name: stream for stream in STREAMS}
BASE = "SELECT * FROM a [RANGE {0} s], b [RANGE {1} s], c [RANGE {2} s] WHERE a.{3} = b.{3} AND b.{3} = c.{3}"


def base(rng: random.Random, key: str) -> str:
    return BASE.format(*(rng.choice((1, 3, 8)) for _ in range(3)), key)


def later(rng: random.Random) -> str:
    """A query over two or three of the streams, by either key or both, with filters of its own."""
    names = rng.sample("abc", rng.choice((2, 3)))
    keys = [rng.choice(("k", "j")) for _ in names[1:]]
    where = [f"{one}.{key} = {other}.{key}" for one, other, key in zip(names, names[1:], keys, strict=False)]
    if rng.random() < 0.3:
        where.append(f"{names[0]}.{'j' if keys[0] == 'k' else 'k'} = {names[1]}.{'j' if keys[0] == 'k' else 'k'}")
    where += rng.choice(([], [f"{names[0]}.v > 1"], [f"{names[0]}.v > {names[1]}.v"], [f"{names[1]}.v + 1 <> 3"]))
    inputs = ", ".join(f"{name} [RANGE {rng.choice((1, 2, 8, 20))} s]" for name in names)
    outputs = [f"{name}.{column} AS {name}_{column}" for name in names for column in ("ts", "v")]
    return f"SELECT {', '.join(outputs)} FROM {inputs} WHERE {' AND '.join(where)}"


def batch(rng: random.Random, number: int) -> dict[str, pa.Table]:
    found = {}
    for name in rng.sample("abc", rng.choice((1, 2, 3, 3))):
        rows = [
            {
                "ts": 1_000_000 * number + rng.randrange(2_000_000),
                "k": rng.choice((None, 1, 2, 2)),
                "j": rng.choice(("x", "y", "y", None)),
                "v": rng.randrange(4),
            }
            for _ in range(rng.randrange(5))
        ]
        found[name] = pa.Table.from_pylist(rows, COLUMNS)
    return found


def bounds(oracle: Oracle, queries: Iterable[JoinQuery]) -> dict[str, int]:
    """From which event time on each stream's window has to hold tuples, for the queries that run."""
    marks: dict[str, Any] = {
        name: None if reached is None else reached - CATALOG[name].lateness for name, reached in oracle.progress.items()
    }
    found = dict.fromkeys("abc", 1 << 60)
    for query in queries:
        for ref in query.refs:
            others = [marks[other.stream] for other in query.refs if other.stream != ref.stream]
            known = -(1 << 60) if None in others else min(others)
            assert isinstance(ref.window, TimeWindow)
            found[ref.stream] = min(found[ref.stream], known - ref.window.micros)
    return found


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(0, 2**32 - 1))
def test_queries_that_come_later_see_what_they_were_promised(seed: int) -> None:
    rng = random.Random(seed)
    session = dt.LocalSession(config=dt.Config(driver_policy=rng.choice(POLICIES), adaptive=rng.random() < 0.5))
    oracle = Oracle(STREAMS)
    for stream in STREAMS:
        session.stream(stream.name, stream.columns, "ts", stream.lateness / 1e6)
    sql: dict[str, str] = {}
    kept = dict.fromkeys("abc", -(1 << 60))
    found: dict[str, list[pa.Table]] = {}
    for key in "kj":
        sql[key] = base(rng, key)
        session.query(key, sql[key])
        oracle.add_query(parse_query(key, sql[key], CATALOG))
    for number in range(8):
        if number and rng.random() < 0.5:
            name, backfill = f"q{number}", rng.random() < 0.7
            sql[name] = later(rng)
            session.add_query(name, sql[name], backfill=backfill)
            oracle.add_query(parse_query(name, sql[name], CATALOG), dict(kept) if backfill else None)
        if number and rng.random() < 0.2 and len(sql) > 2:
            name = rng.choice([name for name in sql if name not in "kj"])
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


def check(oracle: Oracle, sql: dict[str, str], found: dict[str, list[pa.Table]], name: str) -> None:
    expected = oracle.results_table(name)
    actual = pa.concat_tables(found[name]) if name in found else expected.slice(0, 0)
    found.setdefault(name, [])
    assert_same_rows(actual, expected, f"{name}: {sql[name]}")
