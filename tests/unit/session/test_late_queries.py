"""Queries added to a running session: the earlier tuples they see, their `explain` text, refused options."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError

NUMBERS = [(name, pa.int64()) for name in "kvw"]
COLUMNS = pa.schema([("ts", pa.timestamp("s", tz="UTC")), *NUMBERS, ("t", pa.string())])
BASE = "SELECT a.v AS av, b.v AS bv FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k AND a.v < 5"


def table(*rows: tuple[Any, ...]) -> pa.Table:
    """Return tuples of `ts`, `k` and `v`, and of `w` and `t` where given."""
    return pa.table(list(zip(*(row + (None,) * (5 - len(row)) for row in rows), strict=True)), schema=COLUMNS)


@pytest.fixture
def session() -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("base", BASE)
    session.push({"a": table((1, 1, 1), (2, 1, 9), (3, 1, 3)), "b": table((1, 2, 0))})
    return session


def late(session: dt.LocalSession, sql: str, *, backfill: bool = True) -> list[dict[str, Any]]:
    """Add a query and return its results for a tuple of b that matches all of a."""
    session.add_query("late", sql, backfill=backfill)
    found: list[dict[str, Any]] = session.push({"b": table((4, 1, 7))})["late"].to_pylist()
    return found


def shown_of(session: dt.LocalSession) -> Any:
    explanation: Any = session.explain().to_dict()
    return explanation["queries"]["late"]


def test_without_backfill_a_query_starts_with_empty_windows(session: dt.LocalSession) -> None:
    assert late(session, BASE, backfill=False) == []
    assert "starts at batch 1\n" in str(session.explain())


def test_with_backfill_new_tuples_match_held_tuples(session: dt.LocalSession) -> None:
    assert late(session, BASE.replace("a.v < 5", "a.v < 3")) == [{"av": 1, "bv": 7}]
    shown = shown_of(session)
    assert shown["since"] == 1
    assert shown["backfilled_from"] == {
        "a": "1970-01-01T00:00:01.000000Z",
        "b": "1970-01-01T00:00:01.000000Z",
    }
    told = "starts at batch 1; backfill: a from 1970-01-01T00:00:01.000000Z, b from"
    assert told in str(session.explain())


def test_tuples_filtered_out_by_all_earlier_queries_are_not_held(session: dt.LocalSession) -> None:
    """The tuple with v = 9 passed no earlier filter."""
    assert late(session, BASE.replace("a.v < 5", "a.v > 2")) == [{"av": 3, "bv": 7}]


def test_columns_no_earlier_query_read_are_not_held(session: dt.LocalSession) -> None:
    assert late(session, BASE.replace("a.v AS av", "a.w AS av")) == []
    assert shown_of(session)["backfilled_from"]["a"] is None
    assert "backfill: a none, b from" in str(session.explain())


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_event_time_is_always_held(unit: str) -> None:
    columns = COLUMNS.set(0, pa.field("ts", pa.timestamp(unit, tz="UTC")))
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, columns, "ts")
    session.query("base", BASE)
    session.push({"a": table((1, 1, 1), (3, 1, 3)).cast(columns)})
    sql = BASE.replace("a.v AS av", "a.ts AS av").replace("a.v < 5", "a.ts > TIMESTAMP '1970-01-01 00:00:02Z'")
    session.query("late", sql, backfill=True)
    times = session.push({"b": table((4, 1, 7)).cast(columns)})["late"].column("av")
    assert (
        times.cast(pa.int64()).to_pylist()
        == pa.array([3], pa.timestamp("s")).cast(pa.timestamp(unit)).cast(pa.int64()).to_pylist()
    )


@pytest.mark.parametrize(
    "where", ["a.w = b.w", "a.w = b.w AND a.k = b.k", "a.w * 2 = b.w * 2", "upper(a.t) = upper(b.t)"]
)
def test_a_key_is_computed_from_held_columns(where: str) -> None:
    """No query has compared these values before, but their columns are held."""
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("base", BASE.replace("SELECT ", "SELECT a.w AS aw, b.w AS bw, a.t AS at, b.t AS bt, "))
    session.push({"a": table((1, 1, 1, 5, "x"), (2, 1, 4, None, None), (3, 1, 3, 6, "y"))})
    reach = session.query("late", BASE.replace("a.k = b.k", where), backfill=True)
    assert reach == {"a": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "b": None}
    found = session.push({"b": table((4, 1, 7, 6, "Y"), (4, 1, 8, None, None))})
    assert found["late"].to_pylist() == [{"av": 3, "bv": 7}]
    assert found["base"].num_rows == 6
    # Indexes contain both the computed codes and those of new tuples.
    found = session.push({"a": table((5, 1, 2, 6, "Y")), "b": table((5, 1, 9, 6, "y"))})
    assert found["late"].sort_by([("av", "ascending"), ("bv", "ascending")]).to_pylist() == [
        {"av": 2, "bv": 7},
        {"av": 2, "bv": 9},
        {"av": 3, "bv": 9},
    ]


def test_an_index_in_use_gets_computed_codes() -> None:
    """A query with a filter has the code of `w`; of the rows that it does not see, only the column is held."""
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("base", BASE.replace("SELECT ", "SELECT a.w AS aw, b.w AS bw, "))
    session.query("few", BASE.replace("a.k = b.k AND a.v < 5", "a.w = b.w AND a.v < 2"))
    session.push({"a": table((1, 1, 1, 5), (2, 1, 4, 5), (3, 1, 3, 6))})
    session.query("late", BASE.replace("a.k = b.k", "a.w = b.w"), backfill=True)
    found = session.push({"b": table((4, 1, 7, 5))})
    assert found["late"].sort_by("av").to_pylist() == [{"av": 1, "bv": 7}, {"av": 4, "bv": 7}]
    assert found["few"].to_pylist() == [{"av": 1, "bv": 7}]


@pytest.mark.parametrize(
    ("second", "reach"), [(-(10**11), datetime.min.replace(tzinfo=UTC)), (10**12, datetime.max.replace(tzinfo=UTC))]
)
def test_backfill_reports_times_that_python_has_no_datetime_for(second: int, reach: datetime) -> None:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("base", BASE)
    session.push({name: table((second, 1, 1)) for name in "ab"})
    assert session.query("late", BASE, backfill=True) == dict.fromkeys("ab", reach)
    assert session.push({"b": table((second, 1, 7))})["late"].to_pylist() == [{"av": 1, "bv": 7}]


def test_without_backfill_the_call_reports_nothing(session: dt.LocalSession) -> None:
    assert session.add_query("late", BASE) is None
    declared = dt.LocalSession()
    for name in "ab":
        declared.stream(name, COLUMNS, "ts")
    assert declared.query("first", BASE, backfill=True) == {"a": None, "b": None}


def test_results_of_held_tuples_alone_are_not_emitted(session: dt.LocalSession) -> None:
    session.push({"b": table((4, 1, 7))})
    session.query("late", BASE, backfill=True)
    found = session.push({"b": table((5, 1, 8))})["late"].sort_by("av")
    assert found.to_pylist() == [{"av": 1, "bv": 8}, {"av": 3, "bv": 8}]


def test_backfill_before_the_first_batch_finds_nothing() -> None:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("q", BASE, backfill=True)
    assert session.push({"a": table((1, 1, 1)), "b": table((1, 1, 2))})["q"].num_rows == 1
    assert "starts at batch" not in str(session.explain())


def test_count_windows_are_refused(session: dt.LocalSession) -> None:
    with pytest.raises(ConfigError, match="query 'late' has count windows: the latest tuples from before it"):
        session.query("late", BASE.replace("a [RANGE 10 s]", "a [ROWS 2]"), backfill=True)
    assert session.push({"b": table((4, 1, 7))}).keys() == {"base"}


def test_backfill_must_be_a_bool(session: dt.LocalSession) -> None:
    with pytest.raises(ConfigError, match="backfill"):
        session.query("late", BASE, backfill="yes")  # type: ignore[arg-type]
