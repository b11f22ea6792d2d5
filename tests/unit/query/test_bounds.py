"""Bounds between event times become windows that lose no result and are as short as possible."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail as dt
from dovetail.errors import DovetailWarning, QueryError
from dovetail.query.model import CountWindow, JoinQuery, TimeWindow
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

TS = pa.timestamp("us", tz="UTC")
TIMES = {"impressions": "shown", "clicks": "ts", "orders": "placed"}
COLUMNS = {name: pa.schema({time: TS, "k": pa.int64(), "other": TS}) for name, time in TIMES.items()}
STREAMS = {name: StreamSchema(name, COLUMNS[name], time) for name, time in TIMES.items()}
SECOND, MINUTE, HOUR = 10**6, 60 * 10**6, 3600 * 10**6
PAIR = "SELECT i.k FROM impressions i, clicks c WHERE i.k = c.k AND "
THREE = "SELECT i.k FROM impressions i, clicks c, orders o WHERE i.k = c.k AND c.k = o.k AND "


def micros(query: JoinQuery) -> tuple[int, ...]:
    return tuple(ref.window.micros for ref in query.refs if isinstance(ref.window, TimeWindow))


@pytest.mark.parametrize(
    ("condition", "impressions", "clicks"),
    [
        ("c.ts = i.shown", 0, 0),
        ("c.ts = i.shown + INTERVAL 1 HOUR", HOUR, 0),
        ("c.ts >= i.shown AND c.ts <= i.shown + INTERVAL 1 HOUR", HOUR, 0),
        ("c.ts > i.shown AND c.ts < i.shown + interval 1 hour", HOUR - 1, 0),
        ("ts >= shown AND ts <= shown + INTERVAL '1' HOUR", HOUR, 0),
        ("c.ts BETWEEN i.shown AND i.shown + INTERVAL '1 hour'", HOUR, 0),
        ("c.ts BETWEEN i.shown - INTERVAL 5 SECONDS AND i.shown + INTERVAL 1 MINUTE", MINUTE, 5 * SECOND),
        ("c.ts - i.shown BETWEEN INTERVAL -5 SECONDS AND INTERVAL 1 MINUTE", MINUTE, 5 * SECOND),
        ("i.shown + INTERVAL 1 HOUR >= c.ts AND i.shown <= c.ts", HOUR, 0),
        ("INTERVAL 1 HOUR >= c.ts - i.shown AND NOT c.ts < i.shown", HOUR, 0),
        ("NOT (c.ts > i.shown + INTERVAL 1 HOUR OR i.shown > c.ts)", HOUR, 0),
        ("c.ts - INTERVAL 30 MINUTES <= i.shown + INTERVAL 30 MINUTES AND c.ts >= i.shown", HOUR, 0),
        ("c.ts + (INTERVAL 1 HOUR - INTERVAL 1 MINUTE) >= i.shown AND c.ts <= i.shown", 0, HOUR - MINUTE),
        ("ABS(c.ts - i.shown) <= INTERVAL 5 MINUTES", 5 * MINUTE, 5 * MINUTE),
        ("ABS(i.shown - c.ts) < INTERVAL 5 MINUTES", 5 * MINUTE - 1, 5 * MINUTE - 1),
        ("-(c.ts - i.shown) <= INTERVAL 1 SECOND AND c.ts <= i.shown", 0, SECOND),
        ("c.ts <= i.shown + INTERVAL 1 HOUR 30 MINUTES AND c.ts >= i.shown", 90 * MINUTE, 0),
        ("c.ts <= i.shown + INTERVAL '01:30' HOUR TO MINUTE AND c.ts >= i.shown", 90 * MINUTE, 0),
        ("c.ts > i.shown + INTERVAL 1 MINUTE AND c.ts <= i.shown + INTERVAL 2 MINUTES", 2 * MINUTE, 0),
    ],
)
def test_bounds_are_windows(condition: str, impressions: int, clicks: int) -> None:
    query = parse_query("q", PAIR + condition, STREAMS)
    assert micros(query) == (impressions, clicks)
    assert query.warnings == ()
    assert query.equalities[0].text == "i.k = c.k"
    kept = {text for _, texts in query.inferred for text in texts}
    assert kept <= {each.text for each in query.conditions} | {each.text for each in query.equalities}


@pytest.mark.parametrize(
    "condition",
    [
        "c.other BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR",
        "(c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR OR c.k = 1)",
        "NOT c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR",
        "CAST(c.ts AS DATE) = CAST(i.shown AS DATE)",
        "c.ts <> i.shown",
        "i.other = c.ts",
        "c.ts <= COALESCE(i.shown, c.ts) AND c.ts >= i.shown",
    ],
)
def test_other_conditions_bound_nothing(condition: str) -> None:
    with pytest.raises(QueryError, match="has no window"):
        parse_query("q", PAIR + condition, STREAMS)


@pytest.mark.parametrize(
    "dtype", [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("ns", "Asia/Kolkata")], ids=str
)
def test_event_times_of_any_unit(dtype: pa.DataType) -> None:
    streams = {name: StreamSchema(name, pa.schema({"ts": dtype, "k": pa.int64()}), "ts") for name in "ab"}
    sql = "SELECT a.k FROM a, b WHERE a.k = b.k AND b.ts >= a.ts AND b.ts < a.ts + INTERVAL 1 SECOND"
    assert micros(parse_query("q", sql, streams)) == (SECOND - 1, 0)


def test_bounds_go_through_several_aliases() -> None:
    sql = THREE + "c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR AND o.placed - c.ts <= INTERVAL 30 MINUTES AND "
    query = parse_query("q", sql + "o.placed >= c.ts", STREAMS)
    assert micros(query) == (90 * MINUTE, 30 * MINUTE, 0)
    assert dict(query.inferred)["i"] == (
        "c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR",
        "o.placed - c.ts <= INTERVAL 30 MINUTES",
    )


def test_explicit_windows_count_as_bounds_and_are_kept() -> None:
    sql = PAIR.replace("clicks c", "clicks c [RANGE 5 MINUTES]") + "c.ts <= i.shown + INTERVAL 1 HOUR"
    query = parse_query("q", sql, STREAMS)
    assert micros(query) == (HOUR, 5 * MINUTE)  # not the five minutes to its right
    assert dict(query.inferred) == {"i": ("c.ts <= i.shown + INTERVAL 1 HOUR",)}
    three = THREE.replace("orders o", "orders o [RANGE 5 MINUTES]") + "o.placed >= c.ts AND c.ts = i.shown"
    assert micros(parse_query("q", three, STREAMS)) == (5 * MINUTE, 5 * MINUTE, 5 * MINUTE)


def test_an_explicit_window_bounds_other_aliases() -> None:
    sql = THREE.replace("orders o", "orders o [RANGE 5 MINUTES]")
    query = parse_query(
        "q", sql + "c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR AND o.placed <= i.shown", STREAMS
    )
    # Nothing is more than 5 minutes after o, and o is before i, so c is at most 5 minutes after i.
    assert micros(query) == (5 * MINUTE, 0, 5 * MINUTE)
    assert dict(query.inferred)["i"] == ("o [RANGE 5 MINUTES]", "o.placed <= i.shown")
    assert query.warnings == (
        (
            "query 'q': [RANGE 5 MINUTES] of alias 'o' excludes results that 'c.ts BETWEEN i.shown AND i.shown + INTERVAL "
            "1 HOUR' would allow: c.ts may be up to 1 h after i.shown, with this window only up to 5 min after it; "
            "write o [RANGE 1 HOUR] to keep them, or a condition as tight as the window"
        ),
    )


def test_count_windows_bound_no_time() -> None:
    sql = PAIR.replace("clicks c", "clicks c [ROWS 3]")
    query = parse_query("q", sql + "c.ts >= i.shown", STREAMS)
    assert [ref.window for ref in query.refs] == [CountWindow(3), CountWindow(3)]
    query = parse_query("q", sql + "c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR", STREAMS)
    assert [ref.window for ref in query.refs] == [TimeWindow(HOUR), CountWindow(3)]


# -- warnings -----------------------------------------------------------------------------------------------------------------------

CUT = PAIR.replace("impressions i", "impressions i [RANGE 10 MINUTES]")
WARNINGS = {
    CUT + "c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR": (
        "query 'q': [RANGE 10 MINUTES] of alias 'i' excludes results that "
        "'c.ts BETWEEN i.shown AND i.shown + INTERVAL 1 HOUR' would allow: c.ts may be up to 1 h after i.shown, "
        "with this window only up to 10 min after it; write i [RANGE 1 HOUR] to keep them, or a condition as tight "
        "as the window"
    ),
    CUT + "c.ts >= i.shown AND c.ts < i.shown + INTERVAL 90 MINUTES": (
        "query 'q': [RANGE 10 MINUTES] of alias 'i' excludes results that "
        "'c.ts < i.shown + INTERVAL 90 MINUTES' would allow: c.ts may be less than 1 h 30 min after i.shown, "
        "with this window only up to 10 min after it; write i [RANGE 90 MINUTES] to keep them, or a condition as tight "
        "as the window"
    ),
    CUT.replace("clicks c", "clicks c [ROWS 9]") + "c.ts > i.shown + INTERVAL 1 HOUR": (
        "query 'q': there can be no result: 'i [RANGE 10 MINUTES]' and 'c.ts > i.shown + INTERVAL 1 HOUR' "
        "contradict each other"
    ),
    PAIR + "c.ts > i.shown AND i.shown > c.ts": (
        "query 'q': there can be no result: 'i.shown > c.ts' and 'c.ts > i.shown' contradict each other"
    ),
    PAIR + "c.ts BETWEEN i.shown AND i.shown - INTERVAL 1 SECOND": (
        "query 'q': there can be no result: 'c.ts BETWEEN i.shown AND i.shown - INTERVAL 1 SECOND' never holds"
    ),
    THREE.replace("orders o", "orders o [RANGE 5 MINUTES]") + "c.ts <= i.shown + INTERVAL 1 HOUR": (
        "query 'q': [RANGE 5 MINUTES] of alias 'i' excludes results that 'c.ts <= i.shown + INTERVAL 1 HOUR' "
        "would allow: c.ts may be up to 1 h after i.shown, with this window only up to 5 min after it; "
        "write i [RANGE 1 HOUR] to keep them, or a condition as tight as the window"
    ),
}


def declared(session: dt.LocalSession) -> dt.LocalSession:
    for name, columns in COLUMNS.items():
        session.stream(name, columns, event_time=TIMES[name])
    return session


@pytest.mark.parametrize("sql", WARNINGS)
def test_suspicious_bounds_warn_once(sql: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_query("q", sql, STREAMS).warnings == (WARNINGS[sql],)  # workers parse again without a warning
    session = declared(dt.LocalSession())
    with pytest.warns(DovetailWarning) as caught:
        session.query("q", sql)
    assert [(str(each.message), each.filename) for each in caught] == [(WARNINGS[sql], __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dt.LocalSession.restore(session.snapshot())


def test_following_a_warning_silences_it() -> None:
    for sql, text in WARNINGS.items():
        found = re.search(r"write (\w+) (\[RANGE [^]]+\])", text)
        if found:
            name = {"i": "impressions i"}[found[1]]
            followed = re.sub(rf"{name}( \[[^]]*\])?", f"{name} {found[2]}", sql)
            assert parse_query("q", followed, STREAMS).warnings == ()


# -- errors -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        (
            PAIR + "c.ts <= i.shown + INTERVAL 1 HOUR",
            "alias 'c' has no window: no condition limits how long after c.ts i.shown may be",
            "add c.ts >= i.shown, or write clicks c [RANGE 1 HOUR]",
        ),
        (
            PAIR + "c.ts < i.shown + INTERVAL 1 HOUR",
            "alias 'c' has no window: no condition limits how long after c.ts i.shown may be",
            "add c.ts >= i.shown, or write clicks c [RANGE 1 HOUR]",
        ),
        (
            PAIR + "c.ts >= i.shown",
            "alias 'i' has no window: no condition limits how long after i.shown c.ts may be",
            "add c.ts <= i.shown + INTERVAL 10 MINUTES, or write impressions i [RANGE 10 MINUTES]",
        ),
        (
            PAIR + "c.ts > i.shown + INTERVAL 30 MINUTES",
            "alias 'i' has no window: no condition limits how long after i.shown c.ts may be",
            "add c.ts <= i.shown + INTERVAL 1 HOUR, or write impressions i [RANGE 1 HOUR]",
        ),
        (
            THREE + "c.ts BETWEEN i.shown AND i.shown + INTERVAL 20 MINUTES",
            "alias 'i' has no window: no condition limits how long after i.shown o.placed may be",
            (
                "add o.placed BETWEEN i.shown AND i.shown + INTERVAL 20 MINUTES, or write impressions i [RANGE 20 MINUTES], "
                "clicks c [RANGE 20 MINUTES], orders o [RANGE 20 MINUTES]"
            ),
        ),
        (
            PAIR + "c.other <= i.other",
            "alias 'i' has no window",
            (
                "write impressions i [RANGE 10 MINUTES], clicks c [RANGE 10 MINUTES], or "
                "add c.ts BETWEEN i.shown AND i.shown + INTERVAL 10 MINUTES"
            ),
        ),
    ],
)
def test_an_unbounded_alias_is_refused_in_the_users_words(sql: str, message: str, hint: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse_query("q", sql, STREAMS)
    assert (refused.value.message, refused.value.hint) == (message, hint)
    check_followed(sql, hint, STREAMS)


def check_followed(sql: str, hint: str, streams: dict[str, StreamSchema]) -> None:
    """Apply each suggestion of a hint and check that the query is accepted without a warning."""
    added = re.search(r"add (.*?)(?:, or write|$)", hint)
    if added:
        assert parse_query("q", f"{sql} AND {added[1]}", streams).warnings == ()
    written, where = sql.split(" WHERE ")
    head = written
    for stream, bracket in re.findall(r"(\w+(?: \w+)?) (\[RANGE [^]]*\])", hint):
        head = re.sub(rf"\b{stream}\b(?! \[)", f"{stream} {bracket}", head, count=1)
    assert head != written
    assert parse_query("q", f"{head} WHERE {where}", streams).warnings == ()


# -- explain ------------------------------------------------------------------------------------------------------------------------


def test_explain_shows_windows_and_their_origin() -> None:
    session = declared(dt.LocalSession())
    session.query("q", PAIR + "c.ts >= i.shown AND c.ts < i.shown + INTERVAL 1 HOUR")
    text = session.explain().text
    assert "input i: impressions, range under 1 h, inferred from c.ts < i.shown + INTERVAL 1 HOUR" in text
    assert "input c: clicks, range 0 s, inferred from c.ts >= i.shown" in text
    told = session.explain().to_dict()
    assert isinstance(told, dict)
    assert told["queries"]["q"]["inputs"]["i"] == {
        "stream": "impressions",
        "window": "range under 1 h",
        "follows_from": ["c.ts < i.shown + INTERVAL 1 HOUR"],
    }


# -- the law ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """`ts_left - ts_right <= most` in some spelling, with `most` from -2 to 2."""

    left: int
    right: int
    most: int
    spelling: int

    def text(self) -> str:
        one, other = "abcde"[self.left], "abcde"[self.right]
        size = f"INTERVAL {abs(self.most)} MICROSECONDS"
        plus = f"{other}.ts {'-' if self.most < 0 else '+'} {size}"
        signed = f"INTERVAL {self.most} MICROSECONDS"
        looser = f"INTERVAL {self.most + 1} MICROSECONDS"
        return (
            f"{one}.ts <= {plus}",
            f"{plus} >= {one}.ts",
            f"{one}.ts - {other}.ts <= {signed}",
            f"{one}.ts - {other}.ts < {looser}",
            f"NOT {one}.ts - {signed} > {other}.ts",
            f"{other}.ts - {one}.ts > -({looser})",
        )[self.spelling]


@st.composite
def joins(draw: st.DrawFn) -> tuple[int, list[Said], dict[int, int]]:
    count = draw(st.integers(2, 5))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    said = st.builds(lambda p, most, how: Said(p[0], p[1], most, how), pairs, st.integers(-2, 2), st.integers(0, 5))
    brackets = draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 2), max_size=draw(st.integers(0, count))))
    return count, draw(st.lists(said, min_size=1, max_size=2 * count)), brackets


FAR = 8
"""No chain of bounds is longer than four times two."""


def furthest(count: int, allowed: np.ndarray) -> dict[tuple[int, int], int]:
    """Return the largest difference of each pair over all allowed times; at least FAR + 1 if unbounded."""
    times = np.nonzero(allowed)
    return {(i, j): int((times[i] - times[j]).max()) for i in range(count) for j in range(count) if i != j}


@given(joins())
def test_derived_windows_lose_nothing_and_are_tight(join: tuple[int, list[Said], dict[int, int]]) -> None:
    count, said, brackets = join
    times = np.indices((2 * FAR + 2,) * count, dtype=np.int8)
    conditions = np.ones(times.shape[1:], np.bool_)
    for each in said:
        conditions &= times[each.left] - times[each.right] <= each.most
    everything = conditions.copy()
    for alias, length in brackets.items():
        for other in range(count):
            everything &= times[other] - times[alias] <= length

    names = "abcde"[:count]
    entries = [f"s {n} [RANGE {brackets[i]} us]" if i in brackets else f"s {n}" for i, n in enumerate(names)]
    joined = " AND ".join([*(f"{x}.k = {y}.k" for x, y in pairwise(names)), *(each.text() for each in said)])
    sql = f"SELECT a.k FROM {', '.join(entries)} WHERE {joined}"
    streams = {"s": StreamSchema("s", pa.schema({"ts": TS, "k": pa.int64()}), "ts")}

    impossible = not everything.any()
    most = {} if impossible else furthest(count, everything)
    window, lost = {}, []
    for alias in range(count):
        reach = max([0, *(most[other, alias] for other in range(count) if other != alias)]) if most else 0
        right = [brackets[other] for other in range(alias, count) if other in brackets]
        if alias not in brackets and reach <= FAR:
            window[alias] = reach
        elif right:
            window[alias] = right[0]
        else:
            lost.append(names[alias])
    if lost:
        with pytest.raises(QueryError, match=f"alias '{lost[0]}' has no window") as refused:
            parse_query("q", sql, streams)
        hint = refused.value.hint
        assert hint is not None
        if not brackets:
            check_followed(sql, hint, streams)
        return
    query = parse_query("q", sql, streams)
    assert micros(query) == tuple(window[alias] for alias in range(count))
    final = conditions.copy()
    for alias in {*range(count)} - {names.index(name) for name, _ in query.inferred}:
        for other in range(count):
            final &= times[other] - times[alias] <= window[alias]
    if not final.any():
        assert len(query.warnings) == 1
        assert "there can be no result" in query.warnings[0]
        return
    written, reached = furthest(count, conditions), furthest(count, final)
    cut = {pair for pair, most in written.items() if reached[pair] < most <= FAR}
    assert bool(query.warnings) == bool(cut)
    for text in query.warnings:
        told = re.search(r"of alias '(\w)' excludes .*: (\w).ts may be .* (?:after|before) (\w).ts, with", text)
        assert told is not None
        assert (names.index(told[2]), names.index(told[3])) in cut
        assert told[1] not in dict(query.inferred)
