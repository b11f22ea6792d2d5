"""More queries than bits in one word of flags share the same windows."""

from __future__ import annotations

import random

import pyarrow as pa
from session_and_oracle import Pair

import dovetail as dt
from dovetail.schema import TIMESTAMP
from dovetail.testing import random_scenario

CONFIG = dt.Config()


def sql(number: int) -> str:
    seconds = 1 + number % 7
    return (
        f"SELECT a.x AS left_x, b.x AS right_x FROM s1 a [RANGE {seconds} SECONDS], s2 b [RANGE 3 SECONDS] "
        f"WHERE a.k0 = b.k0 AND a.x >= {number % 5} AND b.x <> {number % 4} "
        f"AND a.x <> {1000 + number} AND b.x <> {1000 + number}"
    )


def test_a_hundred_queries_share_two_windows_while_added_and_dropped() -> None:
    rng = random.Random(4)
    scenario = random_scenario(rng, aliases=2, self_joins=False, pushes=6, tuples=40, kinds=("integer",), late=False)
    pair = Pair(scenario.streams, CONFIG)
    for number in range(100):
        pair.add(f"q{number}", sql(number), rng, CONFIG)
    for step, batch in enumerate(scenario.pushes):
        pair.push(batch)
        for number in range(step * 10, step * 10 + 10):
            pair.drop(f"q{number}")
            pair.add(f"again{number}", sql(number), rng, CONFIG)
    pair.check_all()
    engine = pair.session._engine
    assert {window.flag_words for window in engine.joined.windows.values()} == {2}
    assert sum(table.num_rows for tables in pair.found.values() for table in tables) > 1000


def test_dropping_all_queries_frees_the_windows() -> None:
    rng = random.Random(4)
    scenario = random_scenario(rng, aliases=2, self_joins=False, pushes=2, tuples=40, kinds=("integer",), late=False)
    pair = Pair(scenario.streams, CONFIG)
    pair.add("q", sql(1), rng, CONFIG)
    pair.push(scenario.pushes[0])
    assert any(stream["state_tuples"] for stream in pair.session.metrics()["streams"].values())
    pair.drop("q")
    assert not any(stream["state_tuples"] for stream in pair.session.metrics()["streams"].values())
    pair.push(scenario.pushes[1])


def test_a_composite_key_is_added_to_filled_windows() -> None:
    columns = pa.schema([("ts", TIMESTAMP), ("j", pa.int64()), ("k", pa.int64())])
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, columns, "ts")
    session.query("one", "SELECT a.j FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.j = b.j")
    rows = pa.table([pa.array([0, 1], TIMESTAMP), [1, 2], [1, 2]], schema=columns)
    session.push({"a": rows, "b": rows})
    session.query("both", "SELECT a.j FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.j = b.j AND a.k = b.k")
    found = session.push({"a": rows, "b": rows})
    assert found["one"].num_rows == 3  # the later tuple with itself, old and new; the earlier one is late
    assert found["both"].num_rows == 1


def test_a_query_keeps_its_counters_when_its_join_is_no_longer_shared() -> None:
    columns = pa.schema([("ts", TIMESTAMP), ("k", pa.int64())])
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, columns, "ts")
    for name in ("one", "two"):
        session.query(name, "SELECT a.k FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.k = b.k")
    rows = pa.table([pa.array([0, 1], TIMESTAMP), [1, 2]], schema=columns)
    session.push({"a": rows, "b": rows})
    assert [run.name for run in session._engine.runs] == ["join:one"]
    session.drop_query("one")
    assert [run.name for run in session._engine.runs] == ["two"]
    assert session.metrics()["queries"]["two"]["results"] == 2
    later = pa.table([pa.array([2, 3], TIMESTAMP), [1, 2]], schema=columns)
    assert session.push({"a": later})["two"].num_rows == 2
    assert session.metrics()["queries"]["two"]["results"] == 4
