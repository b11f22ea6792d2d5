"""Queries added to a running session: the earlier tuples they see, their `explain` text, refused options."""

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
        "a": "1970-01-01T00:00:01.000000+00:00",
        "b": "1970-01-01T00:00:01.000000+00:00",
    }
    told = "starts at batch 1; backfill: a from 1970-01-01T00:00:01.000000+00:00, b from"
    assert told in str(session.explain())


def test_tuples_filtered_out_by_all_earlier_queries_are_not_held(session: dt.LocalSession) -> None:
    """The tuple with v = 9 passed no earlier filter."""
    assert late(session, BASE.replace("a.v < 5", "a.v > 2")) == [{"av": 3, "bv": 7}]


def test_columns_no_earlier_query_read_are_not_held(session: dt.LocalSession) -> None:
    assert late(session, BASE.replace("a.v AS av", "a.ts AS av")) == []
    assert shown_of(session)["backfilled_from"]["a"] is None
    assert "backfill: a none, b from" in str(session.explain())


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
