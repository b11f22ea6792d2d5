"""Two streams and two queries on a local session, with calls and checks for tests of sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import dovetail as dt
from dovetail.testing import assert_same_rows

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.string())])
PAIRS = "SELECT a.k, a.p AS left_p, b.p AS right_p FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
COUNTED = "SELECT a.k, a.p AS left_p, b.p AS right_p FROM a [ROWS 2], b [RANGE 10 s] WHERE a.k = b.k"
SECOND = 1_000_000


def table(*rows: tuple[float, int | None, str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Build a table from rows of (seconds, key, payload)."""
    micros = [(round(row[0] * SECOND), *row[1:]) for row in rows]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in micros], schema)


def empty_session(config: dt.Config | None = None) -> dt.LocalSession:
    session = dt.LocalSession(config=config)
    for name in ("a", "b"):
        session.stream(name, SCHEMA, event_time="ts", lateness="1 second")
    return session


def running_session(config: dt.Config | None = None) -> dt.LocalSession:
    """Return a session with a time and a count window, and tuples in both."""
    session = empty_session(config)
    session.query("pairs", PAIRS)
    session.query("counted", COUNTED)
    session.push({"a": table((1, 1, "a1"), (2, 2, "a2")), "b": table((1, 1, "b1"), (2, None, "b2"))})
    return session


def push_more(session: dt.LocalSession) -> list[dict[str, pa.Table]]:
    return [
        session.push({"a": table((3, 1, "a3"), (3, 2, None)), "b": table((3.5, 2, "b3"))}),
        session.push({"b": table((4, 1, "b4"))}),
        session.push({"a": table((30, 1, "a5")), "b": table((31, 1, "b5"))}),
    ]


def assert_same_results(left: Sequence[Mapping[str, pa.Table]], right: Sequence[Mapping[str, pa.Table]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert set(one) == set(other)
        for name in one:
            assert_same_rows(one[name], other[name], name)


def state_tuples(session: dt.LocalSession, stream: str) -> int:
    count = session.metrics()["streams"][stream]["state_tuples"]
    assert isinstance(count, int)
    return count


def without_times(description: Any) -> Any:
    """Drop measured times, which differ between any two sessions, and measured rates, which no snapshot holds."""
    dropped = ("ms", "us", "timed", "lag_seconds", "measured_rate")
    return json.loads(
        json.dumps(description), object_hook=lambda entry: {k: v for k, v in entry.items() if k not in dropped}
    )


def counters(session: dt.LocalSession) -> Any:
    return without_times(session.metrics())


def assert_undisturbed(session: dt.LocalSession) -> None:
    """Check that a session continues exactly like a fresh one that saw no bad call."""
    fresh = running_session()
    assert counters(session) == counters(fresh)
    assert without_times(session.explain().to_dict()) == without_times(fresh.explain().to_dict())
    assert session.snapshot() == fresh.snapshot()
    assert_same_results(push_more(session), push_more(fresh))
    assert counters(session) == counters(fresh)


GOOD = table((3, 1, "x"))
KEYS = pa.array([1], pa.int64())
TIMES = pa.array([3 * SECOND], TS)
TEXT = pa.array(["x"])


def batch_of(ts: pa.Array = TIMES, k: pa.Array = KEYS, p: pa.Array = TEXT, **more: pa.Array) -> pa.Table:
    return pa.table({"ts": ts, "k": k, "p": p, **more})
