"""Results emitted in pieces equal the results in one piece, and memory stays within the stated limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.config import DriverPolicy
from dovetail.engine.join import path as probe
from dovetail.engine.shard import ShardEngine
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.testing import assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.string()), ("n", pa.int64())])
STREAMS = {name: StreamSchema(name, COLUMNS, "ts") for name in "abc"}
SQL = {
    "all": "SELECT a.n AS a, b.n AS b, c.n AS c FROM a [RANGE 9 s], b [RANGE 9 s], c [RANGE 9 s] WHERE a.k = b.k AND b.k = c.k",
    "some": "SELECT a.n AS a, b.n AS b FROM a [RANGE 9 s], b [RANGE 2 s] WHERE a.k = b.k AND a.n > b.n",
    "last": "SELECT a.n AS a, b.n AS b FROM a [ROWS 20], b [RANGE 9 s] WHERE a.k = b.k",
}


def engine(config: dt.Config) -> ShardEngine:
    made = ShardEngine(config)
    for stream in STREAMS.values():
        made.add_stream(stream)
    plans = [plan_query(parse_query(name, sql, STREAMS), STREAMS, config) for name, sql in SQL.items()]
    made.adopt(ExecutionPlan.of(map(Lowering(STREAMS, config).individual_step, plans)))
    return made


@pytest.mark.parametrize("policy", ["declared", "output-rate", "timestamp"])
def test_results_of_a_hot_key_are_emitted_in_pieces(monkeypatch: pytest.MonkeyPatch, policy: DriverPolicy) -> None:
    config = dt.Config(driver_policy=policy, stage_rows=16)
    plain, piecewise = engine(config), engine(config)
    monkeypatch.setattr(probe, "EMIT_ROWS", 100)
    given: dict[str, list[pa.Table]] = {name: [] for name in SQL}
    expected: dict[str, list[pa.Table]] = {name: [] for name in SQL}
    for second in range(3):
        rows = [{"ts": second * 1_000_000 + n, "k": "hot" if n % 5 else str(n), "n": n} for n in range(12)]
        batch = {name: pa.Table.from_pylist(rows, COLUMNS) for name in STREAMS}
        for name, table in plain.push(batch).items():
            expected[name].append(table)
        taken = piecewise.push(batch, results_to=lambda name, table: given[name].append(table))
        for name, table in taken.items():
            given[name].append(table)
        held = [run.matches.rows.shape[1] for run in piecewise.runs]
        assert max(held) <= max(1024, 2 * (100 + 16))
    for name in SQL:
        assert max(table.num_rows for table in given[name]) <= 100 + 16
        assert_same_rows(pa.concat_tables(given[name]), pa.concat_tables(expected[name]), name)
    assert len(given["all"]) > 20
    assert piecewise.collectors["all"].results == plain.collectors["all"].results > 2_000
