"""Counters and times of queries that share probe stages."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.plan import prefixes
from dovetail.schema import TIMESTAMP
from dovetail.testing import assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.string()), ("v", pa.int64())])
QUERIES = {
    "plain": "SELECT a.ts, c.v FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.k = b.k AND b.k = c.k",
    "filtered": "SELECT a.ts, c.v FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.k = b.k AND b.k = c.k AND a.v < 3",
    "narrow": "SELECT a.ts, d.v FROM a [RANGE 2 s], b [RANGE 5 s], d [RANGE 9 s] WHERE a.k = b.k AND b.k = d.k",
    "hashed": "SELECT a.ts, d.v FROM a [RANGE 9 s], b [RANGE 9 s], d [RANGE 9 s] WHERE a.k = b.k AND b.j = d.j",
    "checked": "SELECT a.ts, b.v FROM a [RANGE 9 s], b [RANGE 9 s], d [RANGE 9 s] WHERE a.k = b.k AND a.v < b.v AND b.k = d.k",
    "twice": "SELECT x.ts, y.v FROM a x [RANGE 3 s], a y [RANGE 4 s], b [RANGE 9 s] WHERE x.k = y.k AND y.k = b.k AND x.ts < y.ts",
}


def ran(seed: int = 1) -> tuple[dt.LocalSession, dict[str, list[pa.Table]]]:
    session, rng = dt.LocalSession(config=dt.Config(adaptive=False)), random.Random(seed)
    for name in "abcd":
        session.stream(name, COLUMNS, "ts", rate=10.0)
    for name, text in QUERIES.items():
        session.query(name, text)
    found: dict[str, list[pa.Table]] = {name: [] for name in QUERIES}
    for second in range(20):
        batch = {}
        for name in "abcd":
            times = sorted(int(1e6 * (second + rng.random())) for _ in range(10))
            keys, values = [rng.randrange(8) for _ in times], [rng.randrange(6) for _ in times]
            batch[name] = pa.table([times, keys, [str(key % 3) for key in keys], values], schema=COLUMNS)
        for name, table in session.push(batch).items():
            found[name].append(table)
    return session, found


def work(session: dt.LocalSession) -> dict[str, Any]:
    """Return the input and output counts per query, driver and stage."""
    queries: Any = session.metrics()["queries"]
    return {
        name: {
            driver: [(stage["alias"], stage["probes"], stage["matches"]) for stage in path]
            for driver, path in query["paths"].items()
        }
        for name, query in queries.items()
    }


def test_counters_of_a_query_do_not_depend_on_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    # keep the same orders with and without sharing
    monkeypatch.setattr("dovetail.optimizer.joint.can_share_orders", lambda _: False)
    shared, results = ran()
    assert "shared with" in str(shared.explain())
    monkeypatch.setattr(prefixes, "MIN_SAVED_STAGES", 1000)
    apart, expected = ran()
    assert "shared with" not in str(apart.explain())
    assert work(shared) == work(apart)
    for name, tables in results.items():
        assert_same_rows(pa.concat_tables(tables), pa.concat_tables(expected[name]), name)


def test_path_times_add_up_to_tree_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = [0.0]

    def clock() -> float:
        counted[0] += 1.0
        return counted[0]

    monkeypatch.setattr("dovetail.engine.join.tree.perf_counter", clock)
    for module in ("path", "stages"):  # paths that continue alone
        monkeypatch.setattr(f"dovetail.engine.join.{module}.perf_counter", lambda: 0.0)
    session, _ = ran()
    nodes: Any = session.metrics()["nodes"]
    spent = sum(part["ms"] for part in nodes["joins"].values())
    # Two streams, twenty walks each: a second or more per walk by this clock.
    assert spent == pytest.approx(round(spent / 1000) * 1000)
    assert spent >= 40_000


def test_shared_stages_are_charged_in_equal_parts() -> None:
    session = dt.LocalSession()
    for name in "abc":
        session.stream(name, COLUMNS, "ts", rate=10.0)
    for most in range(20):
        session.query(f"q{most}", f"{QUERIES['plain']} AND c.v < {most}")
    session.push({name: pa.table([[0], [1], ["x"], [1]], schema=COLUMNS) for name in "abc"})
    paid = [runner.cost_fraction for run in session._engine.runs for runner in run.runners.values()]
    assert len(paid) == 3 * 20
    assert paid == pytest.approx([(1 / 20 + 1 / 20 + 1) / 3] * 60)  # new tuples and pairs are shared, results are not
