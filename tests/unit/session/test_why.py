"""One case of each reason why a result is missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt

SCHEMA = pa.schema({"ts": pa.timestamp("us", "UTC"), "ad": pa.int64(), "site": pa.string()})
SEEN = """SELECT c.ad, v.ts AS viewed FROM views v [RANGE 1 MINUTE], clicks c [RANGE 1 MINUTE]
    WHERE v.ad = c.ad AND v.site <> 'maps'"""


def at(seconds: float) -> datetime:
    return datetime(2026, 11, 1, 12, tzinfo=UTC) + timedelta(seconds=seconds)


def events(*rows: tuple[float | None, int | None, str | None]) -> pa.Table:
    """Each row: seconds after noon, ad, site."""
    times, ads, sites = zip(*rows, strict=True)
    return pa.table([[None if time is None else at(time) for time in times], ads, sites], schema=SCHEMA)


VIEWS = events(
    (0, 1, "news"), (10, 2, "news"), (20, 3, "maps"), (70, 4, "news"), (65, None, "news"), (9e4, 5, "a"), (None, 6, "b")
)
CLICKS = events((30, 1, "app"), (50, 4, "app"), (70, 9, "app"))


def session_with(sql: str = SEEN, config: dt.Config | None = None) -> dt.LocalSession:
    session = dt.LocalSession(config=config)
    for name in ("views", "clicks"):
        session.stream(name, SCHEMA, event_time="ts", lateness="5 seconds", max_ahead="1 hour")
    session.query("seen", sql)
    return session


@pytest.fixture(scope="module")
def pushed() -> tuple[dt.LocalSession, dict[str, pa.Table]]:
    session, dropped = session_with(), dict[str, pa.Table]()
    session.push({"views": VIEWS, "clicks": CLICKS}, at(100), dropped)
    session.push({"views": events((40, 7, "news"))}, at(100), dropped)
    return session, dropped


CASES: dict[str, tuple[dict[str, dict[str, Any]], str, str]] = {
    "late": ({"v": {"ad": 7}}, "late", "the row of v was dropped: it was late"),
    "ahead": ({"v": {"ad": 5}}, "ahead", "the row of v was dropped: it was further ahead of the clock"),
    "NULL time, looked up": ({"v": {"ad": 6}}, "no event time", "the row of v was dropped: it had no usable event time"),
    "NULL time, given": ({"v": {"ad": 6, "ts": None}}, "no event time", "the row of v has no event time"),
    "expired row": (
        {"v": {"ad": 1, "ts": at(0), "site": "news"}}, "expired",
        "no window holds such a row of v: its window has passed, as rows of the other streams are after 2026-11-01 12:01:05",
    ),
    "too far apart": (
        {"v": {"ts": at(0)}, "c": {"ts": at(61)}}, "expired",
        "the window of v had passed: its row is 1 min 1 s before that of c, and the window is 1 min",
    ),
    "filtered": ({"v": {"ad": 3, "site": "maps"}}, "filtered", "the row of v fails the filter v.site <> 'maps'"),
    "filtered by NULL": ({"v": {"site": None}}, "filtered", "the row of v fails the filter v.site <> 'maps'"),
    "NULL key": ({"v": {"ad": None, "ts": at(65)}}, "null key", "the key of v in v.ad = c.ad is NULL, which equals nothing"),
    "rows that do not match": ({"v": {"ad": 4}, "c": {"ad": 9}}, "no partner", "the rows of c and v do not meet v.ad = c.ad"),
    "no partner": (
        {"v": {"ad": 2}}, "no partner",
        "none of the 3 rows of c in its window meets v.ad = c.ad with v. Rows of c before 2026-11-01 12:00:05 have left it; if one",
    ),
    "never came": (
        {"v": {"ad": 8, "ts": at(69), "site": "x"}}, "not there",
        "no window holds such a row of v: its window has not passed, so it did not come, or its values are others",
    ),
    "given": ({"v": {"ad": 4}, "c": {"ad": 4}}, "given", "the rows match and are in their windows: the result was given when"),
    "given with a partner": ({"c": {"ad": 4}}, "given", "the rows match and are in their windows"),
    "too little is given": (
        {"v": {"ad": 3}}, "unknown",
        "no window holds such a row of v. Give its ts and site, too: its window may have passed, and windows do not hold rows that",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_reason(pushed: tuple[dt.LocalSession, dict[str, pa.Table]], case: str) -> None:
    session, dropped = pushed
    rows, reason, sentence = CASES[case]
    why = session.why("seen", rows, dropped)
    assert (why.reason, why.sentence[: len(sentence)]) == (reason, sentence)
    assert str(why) == why.sentence
    assert repr(why) == f"<Why: {reason}: {why.sentence}>"
    assert why._repr_html_().startswith(f"<pre>&lt;Why: {reason}")


def test_without_a_record_nobody_knows(pushed: tuple[dt.LocalSession, dict[str, pa.Table]]) -> None:
    why = pushed[0].why("seen", {"v": {"ad": 7, "ts": at(40), "site": "news"}})
    assert why.reason == "unknown"
    assert (
        "or it was dropped, as other tuples of stream 'views': 1 late, 1 ahead, 1 without an event time" in why.sentence
    )
    assert why.sentence.endswith("push(batch, dropped=tables), on Spark start(..., dropped=sink)")


def test_where_nothing_was_dropped_no_record_is_needed() -> None:
    session = session_with()
    session.push({"views": events((0, 1, "a"), (99, 2, "a")), "clicks": events((99, 3, None))}, at(100))
    assert session.why("seen", {"v": {"ad": 1, "ts": at(0), "site": "a"}}).reason == "expired"


def test_rows_from_before_a_query() -> None:
    session = session_with()
    session.push({"views": events((0, 1, "a")), "clicks": events((0, 3, None))}, at(10))
    session.add_query("late", SEEN)
    assert session.why("late", {"v": {"ad": 1}}).reason == "before query"
    assert session.why("seen", {"v": {"ad": 1}}).reason == "no partner"
    session.drop_query("seen")
    session.push({"views": events((40, 2, "a")), "clicks": events((40, 3, None))}, at(40))
    why = session.why("late", {"v": {"ad": 9, "ts": at(-10), "site": "a"}})
    assert (why.reason, "once the query was added" in why.sentence) == ("before query", True)


def test_shed_rows() -> None:
    session = session_with(config=dt.Config(shedding=dt.Shedding(policy="fifo", max_tuples=4)))
    dropped: dict[str, pa.Table] = {}
    for second in range(6):
        session.push({"views": events((second, second, "a")), "clicks": events((second, 10, None))}, at(10), dropped)
    shed = dropped["views"]
    assert set(shed.column("_reason").to_pylist()) == {"shed"}
    assert session.why("seen", {"v": {"ad": shed.column("ad")[0].as_py()}}, dropped).reason == "shed"


def test_count_windows_wait() -> None:
    session = session_with("SELECT c.ad FROM views v [ROWS 2], clicks c [RANGE 1 MINUTE] WHERE v.ad = c.ad")
    session.push({"views": events((0, 1, None), (1, 2, None)), "clicks": events((1, 2, None))}, at(10))
    assert session.why("seen", {"v": {"ad": 2}, "c": {"ad": 2}}).reason == "waiting"
    session.push({"views": events((30, 3, None)), "clicks": events((30, 3, None))}, at(30))
    assert session.why("seen", {"v": {"ad": 2}, "c": {"ad": 2}}).reason == "unknown"
    assert session.why("seen", {"v": {"ad": 7, "ts": at(0)}}).reason == "unknown"


def test_three_rows_of_which_two_do_not_match() -> None:
    session = session_with(
        "SELECT v.ad FROM views v [RANGE 1 MINUTE], clicks c [RANGE 1 MINUTE], clicks d [RANGE 1 MINUTE] "
        "WHERE v.ad = c.ad AND v.ad = d.ad AND c.site < d.site"
    )
    session.push({"views": events((0, 1, "a")), "clicks": events((0, 1, "a"), (1, 1, "a"))}, at(10))
    assert session.why("seen", {"v": {"ad": 1}}).reason == "no partner"
    session.push({"clicks": events((2, 1, "b"))}, at(10))
    assert session.why("seen", {"v": {"ad": 1}}).reason == "given"


@pytest.mark.parametrize(
    ("query", "rows", "message"),
    [
        ("sen", {"v": {"ad": 1}}, "did you mean 'seen'"),
        ("seen", {"x": {"ad": 1}}, "query 'seen' has no alias 'x'; it has 'v', 'c'"),
        ("seen", {"v": {"adx": 1}}, "the stream of 'v' has no column 'adx'.*\nHint: did you mean 'ad'"),
        ("seen", {"v": {"ad": "one"}}, "the row of 'v' does not fit the types of its stream"),
        ("seen", {}, r"why\(\) needs a dict of columns.*\nHint: write why\('seen', \{'v': \{...\}\}\)"),
        ("seen", {"v": 1}, r"why\(\) needs a dict of columns"),
    ],
)
def test_mistakes(pushed: tuple[dt.LocalSession, Any], query: str, rows: Any, message: str) -> None:
    with pytest.raises(dt.ConfigError, match=message):
        pushed[0].why(query, rows)
