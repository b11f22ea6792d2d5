"""Sessions of three streams that shed, and their input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string()), ("v", pa.int64())])
SECOND = 1_000_000
PAIRS = "SELECT a.v AS i, b.v AS j FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
CHAIN = "SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s], c [RANGE 10 s] WHERE a.k = b.k AND b.v = c.v"
THETA = "SELECT a.v AS i FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.v < b.v"


def session(
    shedding: dt.Shedding | None, *queries: str, budget: dt.Budget | None = None, **options: Any
) -> dt.LocalSession:
    """Return a session with streams `a`, `b` and `c`; queries are named q0, q1, ..."""
    new = dt.LocalSession(budget, dt.Config(shedding=shedding, **options))
    for name in "abc":
        new.stream(name, SCHEMA, event_time="ts", rate=100.0)
    for number, sql in enumerate(queries):
        new.query(f"q{number}", sql)
    return new


def tuples(count: int, keys: int, seed: int = 0, first: int = 0, seconds: int = 20) -> pa.Table:
    """Return tuples in event-time order, from `first` on."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(first * SECOND, (first + seconds) * SECOND, count))
    values = rng.integers(0, keys, count)
    texts = pa.array([f"text {value}" for value in values])
    return pa.table([pa.array(times, TS), values, texts, np.arange(count)], schema=SCHEMA)


def metrics(of: dt.LocalSession) -> Any:
    return of.metrics()
