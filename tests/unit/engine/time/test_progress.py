"""Progress of event time: `advance`, `max_ahead`, `idle_after` and `progress_by`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from two_streams import COUNTED, PAIRS, SCHEMA, SECOND, TS, batch_of, empty_session, state_tuples, table

import dovetail as dt
from dovetail._display import iso_time
from dovetail.errors import SchemaError


def test_advance_expires_state_and_releases_results() -> None:
    #        1 s      2 s                     5 s
    # a      a1 a2 ..................... advance; watermark 4 s: a1, a2 and b1 are released
    # b      b1
    session = empty_session()
    session.query("pairs", PAIRS)
    session.query("counted", COUNTED)
    session.push({"a": table((1, 1, "a1"), (2, 1, "a2")), "b": table((1, 1, "b1"))})
    settled = session.advance({"a": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)})
    assert settled["pairs"].num_rows == 0
    assert sorted(settled["counted"].column("left_p").to_pylist()) == ["a1", "a2"]
    session.advance({"b": 100 * SECOND})
    assert session.metrics()["streams"]["a"]["max_event_time"] == iso_time(5 * SECOND)
    session.advance({"a": 100 * SECOND})
    # A tuple of b may remain, not yet released because of the count window; the windows of `pairs` are empty.
    assert state_tuples(session, "b") <= 1
    session.advance({"a": 3 * SECOND})
    assert session.metrics()["streams"]["a"]["max_event_time"] == iso_time(100 * SECOND)
    session.push({"a": table((98, 1, "late"), (99, 1, "not late"))})
    assert session.metrics()["streams"]["a"]["late"] == 1


def test_advance_takes_naive_datetimes_as_utc() -> None:
    session = empty_session()
    session.advance({"a": datetime(1970, 1, 2)})  # noqa: DTZ001 - on purpose
    assert session.metrics()["streams"]["a"]["max_event_time"] == iso_time(86_400 * SECOND)


def test_max_ahead_drops_tuples_ahead_of_the_clock() -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts", max_ahead="10 seconds")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    now = datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC)
    session.push({"a": table((20, 1, "now"), (30, 1, "just"), (30.000001, 1, "ahead"), (9999, 1, "far"))}, now=now)
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["ahead"], streams["a"]["late"]) == (4, 2, 0)
    assert streams["a"]["max_event_time"] == iso_time(30 * SECOND)
    assert sorted(session.push({"b": table((25, 1, "b"))}, now=now)["pairs"].column("left_p").to_pylist()) == [
        "just",
        "now",
    ]


@pytest.mark.parametrize("heard", [False, True])
def test_an_idle_stream_does_not_delay_expiry(*, heard: bool) -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts", idle_after="1 minute")
    session.query("pairs", PAIRS)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    session.push({"b": table((0, 1, "b"))} if heard else {}, now=start)
    for step in range(1, 100):
        session.push({"a": table((10 * step, 1, "a"))}, now=start + timedelta(seconds=10 * step))
    assert state_tuples(session, "a") < 10


def test_an_unrelated_silent_stream_does_not_prevent_idleness() -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts", idle_after="1 minute")
    session.stream("unrelated", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    session.push({"b": table((0, 1, "b"))}, now=start)
    for step in range(1, 100):
        session.push({"a": table((10 * step, 1, "a"))}, now=start + timedelta(seconds=10 * step))
    assert state_tuples(session, "a") < 10


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.string(), ["x", "y"]),
        (pa.int32(), [1, None]),
        (pa.bool_(), [True, False]),
        pytest.param(pa.binary(), [b"x", b"y"]),
        pytest.param(pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
        pytest.param(pa.decimal128(5, 2), [Decimal("1.5"), Decimal(2)]),
        pytest.param(TS, [0, 1]),
        pytest.param(pa.float64(), [float("nan"), 1.0]),
    ],
    ids=str,
)
def test_progress_by_any_column_survives_a_snapshot(dtype: pa.DataType, values: list[Any]) -> None:
    # Two partitions; progress is that of the slower one.
    #   first    1 s        5 s
    #   second   1 s   3 s
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.string()), ("part", dtype)])
    session = dt.LocalSession()
    session.stream("a", columns, "ts", progress_by="part")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)

    def push(*rows: tuple[int, Any]) -> None:
        times = pa.array([second * SECOND for second, _ in rows], TS)
        session.push(
            {
                "a": batch_of(
                    times,
                    pa.array([1] * len(rows)),
                    pa.array(["x"] * len(rows)),
                    part=pa.array([v for _, v in rows], dtype),
                )
            }
        )

    push((1, values[0]), (1, values[1]))
    push((5, values[0]))
    push((2, values[1]))
    assert session.metrics()["streams"]["a"]["max_event_time"] == iso_time(2 * SECOND)
    session = dt.LocalSession.restore(session.snapshot())
    push((3, values[1]))
    assert session.metrics()["streams"]["a"]["max_event_time"] == iso_time(3 * SECOND)
    push((3, values[0]))
    assert session.metrics()["streams"]["a"]["late"] == 0


def test_progress_by_a_nested_column_is_refused() -> None:
    session = dt.LocalSession()
    with pytest.raises(SchemaError, match="progress_by"):
        session.stream("a", pa.schema([("ts", TS), ("l", pa.list_(pa.int32()))]), "ts", progress_by="l")
