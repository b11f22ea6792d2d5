"""Odd but valid Arrow values survive a restart and never cause an error from inside a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.storage.columns import texts
from dovetail.errors import ConfigError, QueryError, SchemaError

TS = pa.timestamp("us", tz="UTC")
JOIN = "SELECT a.v, b.k FROM a [{}], b [RANGE 1 HOUR] WHERE a.k = b.k"


def _session(dtype: pa.DataType, window: str = "RANGE 1 HOUR", **options: Any) -> dt.LocalSession:
    session = dt.LocalSession()
    session.stream("a", pa.schema([("ts", TS), ("k", pa.int64()), ("v", dtype)]), "ts", **options)
    session.stream("b", pa.schema([("ts", TS), ("k", pa.int64())]), "ts", **options)
    session.query("q", JOIN.format(window))
    return session


def _left(values: pa.Array, second: int = 0) -> pa.Table:
    times = pa.array([second * 1_000_000] * len(values), TS)
    return pa.table([times, pa.array(range(len(values)), pa.int64()), values], names=["ts", "k", "v"])


def _right(count: int, second: int = 0) -> pa.Table:
    return pa.table([pa.array([second * 1_000_000] * count, TS), pa.array(range(count), pa.int64())], names=["ts", "k"])


ODD = {
    "no UTF-8": pa.array([b"\xff", b"a"], pa.binary()).view(pa.string()),
    "no UTF-8, large": pa.array([b"\xff", b"a"], pa.large_binary()).view(pa.large_string()),
    "a date with a time": pa.array([1, 86_400_000], pa.int64()).view(pa.date64()),
    "seconds of no day": pa.array([10**6, -5], pa.int32()).view(pa.time32("s")),
    "microseconds of no day": pa.array([10**15, -5], pa.int64()).view(pa.time64("us")),
    "too many digits": pa.array([b"\xff" * 15 + b"\x00", b"\x01" * 16], pa.binary(16)).view(pa.decimal128(3, 0)),
}


@pytest.mark.parametrize("window", ["RANGE 1 HOUR", "ROWS 5"])
@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_odd_values_survive_a_restart(values: pa.Array, window: str) -> None:
    session = _session(values.type, window)
    session.push({"a": _left(values)})
    session = dt.LocalSession.restore(session.snapshot())
    found = session.push({"b": _right(len(values))})["q"]
    more = session.advance({"a": 10_000_000, "b": 10_000_000})["q"]
    kept = pa.concat_tables([found, more]).sort_by("k").column("v").combine_chunks()
    assert kept.buffers()[-1].to_pybytes()[: values.nbytes] == values.buffers()[-1].to_pybytes()[: values.nbytes]


def _offsets(*offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abcdef")]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), ODD["no UTF-8"]), "column 'v' is damaged: .*UTF8"),
        (
            pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["x"]), safe=False),
            "column 'v' is damaged: Index 5 out of bounds",
        ),
        (_offsets(0, 2_000_000_000, 2_000_000_000, 2), "column 'v' is damaged: Offset invariant failure"),
        (_offsets(0, -2_000_000_000, 1, 2), "column 'v' is damaged: Offset invariant failure"),
        (_offsets(0, 3, 1, 2), "column 'v' is damaged: Offset invariant failure"),
    ],
    ids=["nested", "dictionary", "far beyond", "far before", "falling"],
)
def test_damaged_columns_are_named(column: pa.Array, message: str) -> None:
    session = _session(pa.list_(pa.string()) if pa.types.is_list(column.type) else pa.string())
    with pytest.raises(SchemaError, match=f"stream 'a': {message}"):
        session.push({"a": _left(column)})
    assert session.push({"b": _right(1)})["q"].num_rows == 0


def test_nested_values_are_copied() -> None:
    session, numbers = _session(pa.list_(pa.int64())), np.array([7, 8])
    session.push({"a": _left(pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(numbers)))})
    numbers[:] = 99
    assert session.push({"b": _right(2)})["q"].column("v").to_pylist() == [[7], [8]]


def test_progress_by_invalid_utf8() -> None:
    session = dt.LocalSession()
    session.stream("a", pa.schema([("ts", TS), ("k", pa.int64()), ("v", pa.string())]), "ts", progress_by="v")
    session.stream("b", pa.schema([("ts", TS), ("k", pa.int64())]), "ts")
    session.query("q", JOIN.format("RANGE 1 HOUR"))
    session.push({"a": _left(ODD["no UTF-8"])})
    session = dt.LocalSession.restore(session.snapshot())
    assert session.push({"b": _right(2)})["q"].num_rows == 2


@pytest.mark.parametrize("window", ["RANGE 1 HOUR", "ROWS 100"])
def test_more_text_than_an_arrow_array_holds(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of two gigabytes is lowered, so snapshots, releases and results are written in parts."""
    monkeypatch.setattr(texts, "_LARGEST_OFFSET", 50)
    session = _session(pa.string(), window, lateness="20 seconds")
    for second in range(5):
        session.push({"a": _left(pa.array([f"{second}{number}" * 10 for number in range(2)]), second)})
    session = dt.LocalSession.restore(session.snapshot())
    found = session.push({"b": _right(2, 30)})["q"]
    later = session.push({"a": _left(pa.array(["x"]), 100), "b": _right(1, 100)})["q"]
    last = session.advance({"a": 300_000_000, "b": 300_000_000})["q"]
    values = sorted(value for table in (found, later, last) for value in table.column("v").to_pylist() if value != "x")
    assert values == sorted(
        f"{second}{number}" * 10 for second in range(5) for number in range(2) for _ in range(2 - number)
    )


@pytest.mark.parametrize(
    "budget", [dt.Budget(memory_bytes=2**70), dt.Budget(cpu_ms_per_second=10**30), dt.Budget(memory_bytes=1e300)]
)
def test_huge_budgets_survive_a_restart(budget: dt.Budget) -> None:
    session = dt.LocalSession(budget)
    session.stream("a", pa.schema([("ts", TS)]), "ts", rate=2**70)
    assert dt.LocalSession.restore(session.snapshot())._job.budget == budget


def test_names_and_numbers_that_cannot_be_serialized_are_refused() -> None:
    session = _session(pa.string())
    for call in (
        lambda: session.stream("\ud800", pa.schema([("ts", TS)]), "ts"),
        lambda: session.query("\ud800", JOIN.format("ROWS 1")),
        lambda: session.stream("c", pa.schema([("ts", TS)]), "ts", rate=10**400),
    ):
        with pytest.raises(ConfigError):
            call()  # type: ignore[no-untyped-call]
    with pytest.raises(QueryError, match="half of a surrogate pair"):
        session.query("x", JOIN.format("ROWS 1") + " AND a.v <> '\ud800'")
    with pytest.raises(QueryError, match="ROWS takes at most 1,152,921,504,606,846,976"):
        session.query("x", JOIN.format("ROWS 9223372036854775807"))
