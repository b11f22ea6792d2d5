"""Queries that come while data flows: what they see of what was there, what explain says of it, what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError

COLUMNS = pa.schema([("ts", pa.timestamp("s", tz="UTC")), ("k", pa.int64()), ("v", pa.int64())])
BASE = "SELECT a.v AS av, b.v AS bv FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k AND a.v < 5"


def table(*rows: tuple[int, int, int]) -> pa.Table:
    return pa.table(list(zip(*rows, strict=True)), schema=COLUMNS)


@pytest.fixture
def session() -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("base", BASE)
    session.push({"a": table((1, 1, 1), (2, 1, 9), (3, 1, 3)), "b": table((1, 2, 0))})
    return session


def late(session: dt.LocalSession, sql: str, *, backfill: bool = True) -> list[dict[str, Any]]:
    """What a query gives that comes now, for a tuple of b that meets all of a."""
    session.add_query("late", sql, backfill=backfill)
    found: list[dict[str, Any]] = session.push({"b": table((4, 1, 7))})["late"].to_pylist()
    return found


def shown_of(session: dt.LocalSession) -> Any:
    explanation: Any = session.explain("dict")
    return explanation["queries"]["late"]


def test_a_query_begins_with_empty_windows(session: dt.LocalSession) -> None:
    assert late(session, BASE, backfill=False) == []
    assert "sees tuples of batch 1 and later\n" in str(session.explain())


def test_new_tuples_meet_those_that_are_there(session: dt.LocalSession) -> None:
    assert late(session, BASE.replace("a.v < 5", "a.v < 3")) == [{"av": 1, "bv": 7}]
    shown = shown_of(session)
    assert shown["since"] == 1
    assert shown["held_from"] == {"a": "1970-01-01T00:00:01.000000+00:00", "b": "1970-01-01T00:00:01.000000+00:00"}
    told = "sees tuples of batch 1 and later; of those before it a from 1970-01-01T00:00:01.000000+00:00, b from"
    assert told in str(session.explain())


def test_what_no_query_has_seen_was_not_kept(session: dt.LocalSession) -> None:
    """The tuple with v = 9 passed no filter."""
    assert late(session, BASE.replace("a.v < 5", "a.v > 2")) == [{"av": 3, "bv": 7}]


def test_what_no_query_has_read_was_not_kept(session: dt.LocalSession) -> None:
    assert late(session, BASE.replace("a.v AS av", "a.ts AS av")) == []
    assert shown_of(session)["held_from"]["a"] is None
    assert "of those before it a none, b from" in str(session.explain())


def test_results_whose_tuples_were_all_there_are_not_given(session: dt.LocalSession) -> None:
    session.push({"b": table((4, 1, 7))})
    session.query("late", BASE, backfill=True)
    found = session.push({"b": table((5, 1, 8))})["late"].sort_by("av")
    assert found.to_pylist() == [{"av": 1, "bv": 8}, {"av": 3, "bv": 8}]


def test_before_the_first_batch_there_is_nothing_to_see() -> None:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, COLUMNS, "ts")
    session.query("q", BASE, backfill=True)
    assert session.push({"a": table((1, 1, 1)), "b": table((1, 1, 2))})["q"].num_rows == 1
    assert "sees tuples" not in str(session.explain())


def test_count_windows_are_refused(session: dt.LocalSession) -> None:
    with pytest.raises(ConfigError, match="query 'late' has count windows: which tuples were the last ones"):
        session.query("late", BASE.replace("a [RANGE 10 s]", "a [ROWS 2]"), backfill=True)
    assert session.push({"b": table((4, 1, 7))}).keys() == {"base"}


def test_backfill_is_yes_or_no(session: dt.LocalSession) -> None:
    with pytest.raises(ConfigError, match="backfill"):
        session.query("late", BASE, backfill="yes")  # type: ignore[arg-type]
