"""Dropped tuples are counted, and reported once with a hint before anything changes."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail._display import iso_time
from dovetail.errors import DovetailWarning

SQL = "SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"


def _session(unit: str = "us", **options: Any) -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, _schema(unit), event_time="ts", **options)
    session.query("q", SQL)
    return session


def _schema(unit: str) -> pa.Schema:
    return pa.schema({"ts": pa.timestamp(unit, tz="UTC"), "k": pa.int64()})


def _table(*times: int | None, unit: str = "us") -> pa.Table:
    return pa.table([pa.array(times, pa.int64()), [1] * len(times)], names=["ts", "k"]).cast(_schema(unit))


def test_the_first_late_tuples_warn_with_the_lateness_needed() -> None:
    session = _session(lateness="1 second")
    session.push({"a": _table(95_000_000), "b": _table(95_000_000)})
    with pytest.warns(DovetailWarning, match="stream 'a': 2 tuples came too late .* 1 min 30 s behind") as said:
        session.push({"a": _table(5_000_000, 94_000_000, 60_000_000)})
    assert "its lateness is 1 s\nHint: lateness='1 min 30 s' would have kept them" in str(said[0].message)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.push({"a": _table(4_000_000)})
    streams = session.metrics()["streams"]
    assert (streams["a"]["late"], streams["a"]["lateness_needed"]) == (3, 91.0)
    assert (streams["b"]["late"], streams["b"]["lateness_needed"]) == (0, 0.0)
    with pytest.warns(DovetailWarning, match="stream 'b': 1 tuple came too late and was dropped"):
        session.push({"b": _table(0)})
    assert dt.LocalSession.restore(session.snapshot()).metrics()["streams"]["a"]["lateness_needed"] == 91.0


def test_the_lateness_in_the_hint_keeps_the_tuples() -> None:
    session = _session(lateness="1 minute 30 seconds")
    session.push({"a": _table(95_000_000), "b": _table(95_000_000)})
    session.push({"a": _table(5_000_000, 94_000_000, 60_000_000)})
    assert session.metrics()["streams"]["a"]["late"] == 0


def test_a_warning_raised_as_an_error_changes_nothing() -> None:
    session = _session()
    session.push({"a": _table(10_000_000), "b": _table(10_000_000)})
    batch = {"a": _table(1, 11_000_000)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DovetailWarning):
            session.push(batch)
        assert session.metrics()["streams"]["a"]["arrivals"] == 1
        assert session.push(batch)["q"].num_rows == 1
    assert session.metrics()["streams"]["a"]["late"] == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_tuple_without_a_usable_time_is_dropped_counted_and_reported(unit: str) -> None:
    session = _session(unit)
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    far = [] if unit == "ns" else [2**63 - 1, -(2**63) + 1]  # nanoseconds end in the year 2262
    with pytest.warns(DovetailWarning, match="dropped, because column 'ts' is NULL or out of range"):
        found = session.push({"a": _table(None, second, *far, unit=unit), "b": _table(second, None, unit=unit)})["q"]
    assert found.num_rows == 1
    streams = session.metrics()["streams"]
    assert [streams["a"][name] for name in ("arrivals", "refused", "late", "ahead")] == [
        2 + len(far),
        1 + len(far),
        0,
        0,
    ]
    assert [streams["b"][name] for name in ("arrivals", "refused", "state_tuples")] == [2, 1, 1]
    assert streams["a"]["max_event_time"] == iso_time(1_000_000)


def test_a_batch_of_refused_tuples_only() -> None:
    session = _session()
    session.push({"a": _table(None, 2**62), "b": _table(5)})
    assert session.metrics()["streams"]["a"]["refused"] == 2
    assert session.push({"a": _table(6)})["q"].num_rows == 1


def test_an_event_time_out_of_range_is_refused_not_ahead() -> None:
    session = _session(max_ahead="1 hour")
    session.push({"a": _table(0, 7_200_000_000, 2**62)}, now=datetime(1970, 1, 1, tzinfo=UTC))
    counted = session.metrics()["streams"]["a"]
    assert [counted[name] for name in ("arrivals", "ahead", "refused")] == [3, 1, 1]
