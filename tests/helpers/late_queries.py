"""Random queries that are added between batches, and a check of their results against the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from dovetail.query.model import JoinQuery, TimeWindow
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


def keyless_base(rng: random.Random) -> str:
    """Draw a query that sees all tuples and keeps all columns but the event time, and no key of `later`."""
    outputs = ", ".join(f"{name}.{column} AS {name}_{column}" for name in "abc" for column in "kjv")
    return base(rng, "v").replace("*", outputs)


def later(rng: random.Random, computed: float = 0.0) -> str:
    """Draw a query over two or three streams, by either key or both, with its own filters.

    `computed`: how often it compares the keys of an equality by an expression.
    """
    names = rng.sample("abc", rng.choice((2, 3)))
    keys = [rng.choice(("k", "j")) for _ in names[1:]]
    where = [f"{one}.{key} = {other}.{key}" for one, other, key in zip(names, names[1:], keys, strict=False)]
    if rng.random() < 0.3:
        where.append(f"{names[0]}.{'j' if keys[0] == 'k' else 'k'} = {names[1]}.{'j' if keys[0] == 'k' else 'k'}")
    if rng.random() < computed:
        where[0] = (
            f"{names[0]}.k + 1 = {names[1]}.k + 1" if keys[0] == "k" else f"upper({names[0]}.j) = upper({names[1]}.j)"
        )
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
    """Return the oldest event time that each stream's window must hold for the running queries."""
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


def check(oracle: Oracle, sql: dict[str, str], found: dict[str, list[pa.Table]], name: str) -> None:
    expected = oracle.results_table(name)
    actual = pa.concat_tables(found[name]) if name in found else expected.slice(0, 0)
    found.setdefault(name, [])
    assert_same_rows(actual, expected, f"{name}: {sql[name]}")
