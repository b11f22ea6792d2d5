"""A sample has rows that match across streams, in batches that contain each row once."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.cli.queries.sample import sample_batches

TIME = pa.timestamp("us", "UTC")


def plan_of(tables: dict[str, pa.Table], sql: str) -> dict[str, object]:
    session = dt.LocalSession()
    for name, table in tables.items():
        session.stream(name, table.schema, event_time="ts")
    session.query("q", sql)
    return session.explain().to_dict()


def table(count: int, keys: int, seconds: float = 1.0) -> pa.Table:
    times = pa.array([int(number * seconds * 1e6) for number in range(count)], TIME)
    return pa.table({"ts": times, "k": [number * 7919 % keys for number in range(count)]})


@pytest.mark.parametrize(
    "condition", ["a.k = b.k AND b.k = c.k", "a.k = b.k AND a.ts < c.ts", "a.k + 1 = b.k AND b.k = c.k"]
)
def test_rows_are_chosen_that_match(condition: str) -> None:
    tables = {"a": table(9000, 5000), "b": table(5000, 5000), "c": table(300, 5000, 20.0)}
    sql = f"SELECT a.k FROM a [RANGE 1 DAY], b [RANGE 1 DAY], c [RANGE 1 DAY] WHERE {condition}"
    batches = sample_batches(tables, plan_of(tables, sql), 40)
    sizes = {name: sum(batch[name].num_rows for batch in batches) for name in tables}
    assert all(10 <= size <= 60 for size in sizes.values()), sizes
    rows = {name: pa.concat_tables([batch[name] for batch in batches]) for name in tables}
    linked = ("a", "b") if "+" not in condition else ("b", "c")
    common = set(rows[linked[0]]["k"].to_pylist()) & set(rows[linked[1]]["k"].to_pylist())
    assert len(common) >= 10
    assert all(part["ts"].to_pylist() == sorted(part["ts"].to_pylist()) for part in rows.values())


def test_streams_of_other_lengths_are_cut_at_a_common_time() -> None:
    tables = {"a": table(100, 5), "b": table(50, 5, 100.0)}
    sql = "SELECT a.k FROM a [RANGE 1 MIN], b [RANGE 1 MIN] WHERE a.k = b.k"
    batches = sample_batches(tables, plan_of(tables, sql), 1000)
    assert [batch["a"].num_rows for batch in batches] == [33, 33, 34]
    assert sum(batch["b"].num_rows for batch in batches) == 1


def test_empty_streams_have_an_empty_sample() -> None:
    tables = {"a": table(5, 1).slice(5), "b": table(5, 5)}
    sql = "SELECT a.k FROM a [RANGE 1 MIN], b [RANGE 1 MIN] WHERE a.k = b.k"
    assert sum(batch["a"].num_rows for batch in sample_batches(tables, plan_of(tables, sql), 10)) == 0
