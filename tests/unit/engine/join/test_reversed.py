"""The first probe of a path from the other side: the same results and counts, chosen where it saves probes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.join import reversed as reversed_probe
from dovetail.schema import TIMESTAMP
from dovetail.testing import assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("t", pa.string()), ("n", pa.int64())])
PAIR = "SELECT a.n, b.n AS bn FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.k = b.k"
FAST, SLOW = 1000, 10


def batch(second: int, fast: str = "a") -> dict[str, pa.Table]:
    tables = {}
    for name in "abc":
        rows = FAST if name == fast else SLOW
        rng = np.random.default_rng([second, ord(name)])
        keys = rng.integers(0, 50, rows)
        tables[name] = pa.table(
            [
                pa.array(np.sort(rng.integers(0, 1_000_000, rows)) + 1_000_000 * second, TIMESTAMP),
                pa.array(keys, mask=keys == 7),
                pa.array([f"text {key % 5}" for key in keys]),
                pa.array(rng.integers(0, 9, rows)),
            ],
            schema=COLUMNS,
        )
    return tables


def run(sql: str, seconds: int = 6, **config: Any) -> tuple[pa.Table, Any]:
    """Return the results of a query, and the counts of the path of `a`."""
    session = dt.LocalSession(config=dt.Config(adaptive=False, **config))
    for name in "abc":
        session.stream(name, COLUMNS, "ts", rate=FAST if name == "a" else SLOW)
    session.query("q", sql)
    results = [session.push(batch(second))["q"] for second in range(seconds)]
    return pa.concat_tables(results), session._engine.run_of("q").runners["a"].counts


@pytest.mark.parametrize(
    "sql",
    [
        PAIR,
        PAIR + " AND a.t = b.t",
        PAIR + " AND a.n > b.n AND a.n < 8",
        PAIR.replace("9 s", "2 s").replace("a.k = b.k", "a.t = b.t AND a.n = b.n"),
        "SELECT a.n, c.n AS cn FROM a [RANGE 9 s], b [RANGE 3 s], c [RANGE 9 s] WHERE a.k = b.k AND b.t = c.t",
        "SELECT x.n, y.n AS yn FROM b x [RANGE 9 s], a [RANGE 1 s], a y [RANGE 2 s] WHERE a.k = x.k AND y.k = x.k",
    ],
)
@pytest.mark.parametrize("config", [{}, {"stage_rows": 16}, {"driver_policy": "output-rate"}])
def test_both_sides_give_the_same_results_and_selectivities(
    sql: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, counts = run(sql, **config)
    monkeypatch.setattr(reversed_probe, "MIN_RATIO", 1e9)
    expected, plain = run(sql, **config)
    assert expected.num_rows > 100
    assert_same_rows(results, expected)
    for stage, plain_stage in zip(counts, plain, strict=True):
        assert (stage[0], *stage[2:]) == (plain_stage[0], *plain_stage[2:])


def test_few_rows_are_read_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of `a` has a thousand tuples, the window of `b` at most a hundred."""
    used: list[Any] = []
    run_reversed = reversed_probe.ReversedProbe.run

    def record(self: Any, *given: Any) -> Any:
        used.append(self)
        return run_reversed(self, *given)

    monkeypatch.setattr(reversed_probe.ReversedProbe, "run", record)
    run(PAIR)
    assert len(used) == 6  # all batches of a, none of b
    used.clear()
    run(PAIR, driver_policy="timestamp")  # each tuple has bounds of its own
    run(PAIR, join="nested-loop")
    run(PAIR.replace("b [RANGE 9 s]", "b [RANGE 3 s]").replace("FROM a ", "FROM b a ").replace(" b [", " a b ["))
    assert {self._path.order for self in used} == {("a", "b")}


def test_a_large_window_is_probed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    session = dt.LocalSession()
    for name in "abc":
        session.stream(name, COLUMNS, "ts")
    session.query("q", "SELECT a.n, b.n AS bn FROM a [RANGE 9 s], b [RANGE 900 s] WHERE a.k = b.k")
    session.push({"b": batch(0, fast="b")["b"]})
    monkeypatch.setattr(reversed_probe.ReversedProbe, "run", None)
    assert session.push({"a": batch(1)["a"]})["q"].num_rows > 0
