"""`metrics()` names the hot keys of each window."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt

COUNT = 4000
TIMES = pa.array(np.arange(COUNT) * 1000).cast(pa.timestamp("us", tz="UTC"))


def hottest(keys: pa.Array, selected: str = "a.n AS n") -> object:
    """Return the hot keys reported for stream `a` with these keys."""
    session = dt.LocalSession()
    for name in ("a", "b"):
        session.stream(name, pa.schema([("ts", TIMES.type), ("k", keys.type), ("n", pa.int64())]), event_time="ts")
    session.query("q", f"SELECT {selected} FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k")
    session.push({"a": pa.table({"ts": TIMES[: len(keys)], "k": keys, "n": pa.array(range(len(keys)))})})
    return session.metrics()["streams"]["a"]["hottest"]


def mixed(hot: object, others: list[object]) -> list[object]:
    """Return keys of which half are `hot`."""
    return [hot if number % 2 else others[number % len(others)] for number in range(COUNT)]


@pytest.mark.parametrize(
    ("kind", "hot", "others"),
    [
        (pa.int64(), 7, list(range(10, 510))),
        (pa.int32(), -7, list(range(10, 510))),
        (pa.float64(), 0.5, [float(number) for number in range(10, 510)]),
        (pa.string(), "hot", [f"value {number}" for number in range(500)]),
        (pa.date32(), date(2026, 2, 3), [date.fromordinal(700_000 + number) for number in range(500)]),
        (pa.timestamp("us", tz="UTC"), datetime(2026, 2, 3, tzinfo=UTC), [datetime(1900 + n, 1, 1, tzinfo=UTC) for n in range(90)]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("selected", ["a.n AS n", "a.k AS k"])
def test_a_value_of_half_the_tuples_is_hot(kind: pa.DataType, hot: object, others: list[object], selected: str) -> None:
    found = hottest(pa.array(mixed(hot, others), kind), selected)
    assert isinstance(found, dict)
    ((text, count),) = found["k"].items()
    assert text == str(hot)
    assert count == pytest.approx(COUNT / 2, rel=0.15)


def test_evenly_distributed_values_are_not_hot() -> None:
    assert hottest(pa.array(np.arange(COUNT) % 100)) == {}


def test_periodic_keys_are_not_hot() -> None:
    assert hottest(pa.array(np.arange(COUNT) % 32)) == {}


def test_null_is_never_hot() -> None:
    assert hottest(pa.array(mixed(None, list(range(500))), pa.int64())) == {}


def test_a_short_window_is_not_sampled() -> None:
    assert hottest(pa.array([7] * 999)) == {}
