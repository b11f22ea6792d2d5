"""Three streams joined in a circle whose selectivities change places half-way.

Before the swap `c` and `a` match often and `b` seldom matches either; afterwards `b` and `c` match often instead. An order that was
right for new tuples of `c` is then wrong, and the other way round. Rates are equal and windows hold a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.schema import TIMESTAMP

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int64()), ("z", pa.int64())])
SQL = """SELECT a.ts AS a_ts, b.ts AS b_ts, c.ts AS c_ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s]
    WHERE a.x = b.x AND b.y = c.y AND c.z = a.z"""
BATCHES = 160
ROWS = 400
OFTEN, SELDOM = 40, 4000
"""Distinct values of a column by which pairs match often, and seldom."""
ORDERS_AFTER = {"a": ("a", "b", "c"), "b": ("b", "a", "c"), "c": ("c", "a", "b")}
"""Probe orders that suit the second half."""


def declare(session: Any, source: Callable[[str], Any]) -> None:
    """Declare streams and query in any session, with hints that hold for the first half."""
    for name in "abc":
        session.stream(name, source(name), "ts", rate=float(ROWS))
    session.selectivity("a.x = b.x", 1 / SELDOM)
    session.selectivity("b.y = c.y", 1 / SELDOM)
    session.selectivity("c.z = a.z", 1 / OFTEN)
    session.query("q", SQL)


def batch(number: int) -> dict[str, pa.Table]:
    """One second of each stream."""
    rng = np.random.default_rng(number)
    values = {"x": SELDOM, "y": SELDOM, "z": OFTEN}
    if number >= BATCHES // 2:
        values = {"x": SELDOM, "y": OFTEN, "z": SELDOM}

    def table() -> pa.Table:
        ts = np.sort(rng.integers(number * 1_000_000, (number + 1) * 1_000_000, ROWS))
        keys = [rng.integers(0, count, ROWS) for count in values.values()]
        return pa.table([pa.array(ts, TIMESTAMP), *keys], schema=COLUMNS)

    return {name: table() for name in "abc"}


def work(metrics: Mapping[str, Any]) -> int:
    """Probes of a query, by its metrics."""
    return int(metrics["probes"])
