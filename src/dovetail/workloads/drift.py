"""Drifting selectivities: a cycle of three streams, of which two selectivities swap half-way.

Before the swap, `c` and `a` match often and `b` rarely matches either; after it, `b` and `c` match often instead. The best probe order
for new tuples of `c` is then the worst, and vice versa. Rates are equal, and windows are one second long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from dovetail.config import reject_unknown_options
from dovetail.workloads.arrivals import Arrivals
from dovetail.workloads.columns import GeneratedColumn, Switch, Uniform
from dovetail.workloads.scenario import Scenario
from dovetail.workloads.workload import Stream, Workload

SQL = """SELECT a.ts AS a_ts, b.ts AS b_ts, c.ts AS c_ts FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s]
    WHERE a.x = b.x AND b.y = c.y AND c.z = a.z"""
BATCHES = 160
ROWS = 400
OFTEN, SELDOM = 40, 4000
"""Numbers of distinct values with which pairs match often, and rarely."""
ORDERS_AFTER = {"a": ("a", "b", "c"), "b": ("b", "a", "c"), "c": ("c", "a", "b")}
"""Best probe orders for the second half."""


@reject_unknown_options
@dataclass(frozen=True)
class Drift(Scenario):
    """Streams `a`, `b` and `c` with join columns `x`, `y` and `z`."""

    rate: float = float(ROWS)
    """Tuples of each stream per second."""
    arrivals: str = "uniform"
    lateness_seconds: float = 0.0
    late_share: float = 0.0
    swap_seconds: float = BATCHES / 2
    """Seconds after which `y` and `z` swap their selectivities."""
    often: int = OFTEN
    seldom: int = SELDOM

    def build(self) -> Workload:
        often, seldom = Uniform(self.often), Uniform(self.seldom)
        columns: dict[str, GeneratedColumn] = {
            "x": seldom,
            "y": Switch(seldom, often, self.swap_seconds),
            "z": Switch(often, seldom, self.swap_seconds),
        }
        spacing = "jittered" if self.arrivals == "uniform" else None
        events = Arrivals(self.rate, self.arrivals, self.period, self.bias, self.turned, spacing)
        hints = {"a.x = b.x": 1 / self.seldom, "b.y = c.y": 1 / self.seldom, "c.z = a.z": 1 / self.often}
        sources = tuple(Stream(name, events, columns, self.delay) for name in "abc")
        return Workload("drift", sources, {"q": SQL}, hints, self.seed, start=0)


@cache
def _workload() -> Workload:
    return Drift().workload


COLUMNS = _workload().columns("a")


def declare(session: Any, source: Callable[[str], Any]) -> None:
    """Declare streams and query in any session, with selectivity hints that are right for the first half."""
    _workload().declare(session, source)


def batch(number: int) -> dict[str, pa.Table]:
    """Return one second of each stream."""
    return {name: _workload().table(name, number, number + 1) for name in "abc"}


def probe_count(metrics: Mapping[str, Any]) -> int:
    """Return the number of probes in a query's metrics."""
    return int(metrics["probes"])
