"""Ten overlapping queries and input for them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from dovetail.calibrate import UnitTimes
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.testing import Oracle

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.string()), ("v", pa.float64())])
RATES = dict(zip("abcde", (4.0, 4.0, 3.0, 2.0, 2.0), strict=True))
STREAMS = {name: StreamSchema(name, COLUMNS, "ts", lateness=2_000_000, rate=rate) for name, rate in RATES.items()}
TEN = {
    "q1": "SELECT a.v, b.v AS bv, c.v AS cv FROM a [RANGE 5 s], b [RANGE 5 s], c [RANGE 5 s] WHERE a.x = b.x AND b.x = c.x",
    "q2": "SELECT a.ts, d.v FROM a [RANGE 3 s], b [RANGE 5 s], d [RANGE 4 s] WHERE a.x = b.x AND a.x = d.x",
    "q3": "SELECT a.v, b.v AS bv, c.v AS cv, d.v AS dv FROM a [RANGE 5 s], b [RANGE 4 s], c [RANGE 3 s], d [RANGE 2 s] "
    "WHERE a.x = b.x AND b.x = c.x AND c.x = d.x",
    "q4": "SELECT b.v + d.v AS s FROM b [RANGE 4 s], c [RANGE 4 s], d [RANGE 4 s] WHERE b.x = c.x AND c.x = d.x AND c.v < 0.5",
    "q5": "SELECT a.y, b.y AS z FROM a [RANGE 8 s], b [RANGE 1 s] WHERE a.x = b.x",
    "q6": "SELECT a.v, e.v AS ev FROM a [RANGE 5 s], b [RANGE 5 s], c [RANGE 2 s], e [RANGE 3 s] "
    "WHERE a.x = b.x AND b.x = c.x AND c.x = e.x AND a.v < e.v",
    "q7": "SELECT r.ts, p.y FROM a p [RANGE 2 s], b q [RANGE 2 s], c r [RANGE 2 s] WHERE r.x = q.x AND q.x = p.x",
    "q8": "SELECT a.v, c.v AS cv FROM a [RANGE 4 s], b [RANGE 4 s], c [RANGE 4 s] WHERE a.x = b.x AND b.y = c.y",
    "q9": "SELECT a.v, d.v AS dv FROM a [RANGE 2 s], b [RANGE 6 s], d [RANGE 4 s] WHERE a.x = b.x AND b.y = d.y",
    "q10": "SELECT p.v, q.v AS qv, b.v AS bv FROM a p [RANGE 2 s], a q [RANGE 3 s], b [RANGE 3 s] "
    "WHERE p.x = q.x AND q.x = b.x AND p.v <= q.v",
}
PRICES = UnitTimes(
    insert=0.05,
    expire=0.001,
    probe=0.05,
    match=0.05,
    call=4.0,
    value=0.01,
    store=0.05,
    batch_result=0.0,
    batch_store=0.0,
)
"""Unit costs of some machine, so that a test's plan is the same on all."""
DISTINCT = 12
"""Values of `x`."""


def declare(session: Any, source: Any) -> None:
    """Declare streams and queries in any session; rare matches make some joins worth materializing."""
    for name, rate in RATES.items():
        session.stream(name, source(name), "ts", lateness="2 seconds", rate=rate)
    for left in RATES:
        for right in RATES:
            if left < right:
                session.selectivity(f"{left}.x = {right}.x", 1 / DISTINCT)
    for name, sql in TEN.items():
        session.query(name, sql)


def batches(seed: int, count: int = 4, seconds: int = 8) -> list[dict[str, pa.Table]]:
    """Yield batches of some seconds per stream: out of order, some tuples late, some values NULL."""
    rng = random.Random(seed)

    def table(name: str, batch: int) -> pa.Table:
        rows = int(RATES[name] * seconds)
        times = [max(0.0, seconds * batch + rng.uniform(-3, seconds)) for _ in range(rows)]
        return pa.table(
            [
                pa.array([int(s * 4) * 250_000 for s in times], TIMESTAMP),
                [rng.choice([*range(DISTINCT), None]) for _ in range(rows)],
                [rng.choice(["p", "q", "r", "s", None]) for _ in range(rows)],
                [rng.choice([rng.random(), rng.random(), float("nan")]) for _ in range(rows)],
            ],
            schema=COLUMNS,
        )

    return [{name: table(name, batch) for name in RATES} for batch in range(count)]


def oracle(pushes: list[dict[str, pa.Table]]) -> Oracle:
    found = Oracle(STREAMS.values())
    for name, sql in TEN.items():
        found.add_query(parse_query(name, sql, STREAMS))
    for push in pushes:
        found.push(push)
    return found
