"""Window brackets: allowed positions, meaning, and unchanged offsets in the rest of the text."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot.dialects.dialect import Dialect

from dovetail.errors import QueryError
from dovetail.query.brackets import FromExtent, WindowBracket, applicable_bracket, extract_brackets
from dovetail.query.durations import UNITS
from dovetail.query.model import CountWindow, TimeWindow, Window
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

SELECT = "SELECT 1 FROM"
MINUTE = TimeWindow(60_000_000)


def taken(sql: str) -> tuple[str, tuple[FromExtent, ...]]:
    tokens, items = extract_brackets(sql, list(Dialect.get_or_raise("spark").tokenize(sql)))
    assert all(token.text in sql[token.start : token.end + 1] for token in tokens)
    return " ".join(sql[token.start : token.end + 1] for token in tokens), items


def window(bracket: str) -> Window:
    _, (item, _) = taken(f"{SELECT} a {bracket}, b")
    assert item.bracket is not None
    return item.bracket.window


@pytest.mark.parametrize(
    "item",
    [
        "a x [RANGE 1 MINUTE]",
        "a [RANGE 1 MINUTE] x",
        "a [RANGE 1 MINUTE] AS x",
        "a AS x [RANGE 1 MINUTE]",
        "a[range 1 minute]x",
        "a -- [ROWS 9]\n x /* [ROWS 8] */ [RANGE\n1\nMINUTE]",
        "`a[ROWS 7]` x [RANGE 1 /* ] */ MINUTE]",
    ],
)
def test_a_bracket_is_removed_wherever_it_stands(item: str) -> None:
    text, items = taken(f"{SELECT} {item}, b")
    assert [entry.bracket.window if entry.bracket else None for entry in items] == [MINUTE, None]
    assert "[RANGE" not in text.upper()
    assert text.endswith(", b")


@pytest.mark.parametrize(
    ("bracket", "expected"),
    [
        ("[RANGE 1.5 MINUTES]", TimeWindow(90_000_000)),
        ("[RANGE .5 sec]", TimeWindow(500_000)),
        ("[RANGE 10ms]", TimeWindow(10_000)),
        ("[RANGE 5s]", TimeWindow(5_000_000)),
        ("[RANGE 2d]", TimeWindow(172_800_000_000)),
        ("[Range 60 sec]", MINUTE),
        ("[rows 1]", CountWindow(1)),
        ("[ROWS 1000000]", CountWindow(1_000_000)),
        ("[PARTITION BY k ROWS 3]", CountWindow(3, "k")),
        ("[partition  by `k``1` rows 3]", CountWindow(3, "k`1")),
    ],
)
def test_kinds_of_windows(bracket: str, expected: Window) -> None:
    assert window(bracket) == expected


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit(unit: str) -> None:
    expected = TimeWindow(7 * UNITS[unit])
    assert [window(f"[RANGE 7 {unit}]"), window(f"[RANGE 7{unit.upper()}]")] == [expected, expected]


def test_extents_are_those_of_the_text() -> None:
    sql = "SELECT 1 FROM a x [ROWS 2], b [PARTITION BY k ROWS 3] y"
    _, (first, second) = taken(sql)
    assert sql[first.start : first.end] == "a x [ROWS 2]"
    assert sql[second.start : second.end] == "b [PARTITION BY k ROWS 3] y"
    assert second.bracket is not None
    assert second.bracket.partition is not None
    assert sql[slice(*second.bracket.partition)] == "k"
    assert sql[second.bracket.start : second.bracket.end] == "[PARTITION BY k ROWS 3]"


def test_an_entry_without_a_window_takes_the_next_to_its_right() -> None:
    one, two = WindowBracket(CountWindow(1), 4, 6), WindowBracket(CountWindow(2), 14, 16)
    items = [FromExtent(0, 1), FromExtent(3, 6, one), FromExtent(8, 9), FromExtent(11, 16, two), FromExtent(18, 19)]
    assert [applicable_bracket(items, item.start) for item in items] == [one, one, two, two, None]


def test_joins_and_conditions_are_distinguished() -> None:
    sql = "SELECT 1 FROM a JOIN b [ROWS 1] ON a.x IS DISTINCT FROM b.x CROSS JOIN c [ROWS 2], d [ROWS 3] WHERE a.x = 1"
    _, items = taken(sql)
    assert [item.bracket.window if item.bracket else None for item in items] == [
        None,
        CountWindow(1),
        CountWindow(2),
        CountWindow(3),
    ]


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("SELECT a.x«[0]» FROM a [ROWS 1]", "a bracket is not allowed here"),
        ("SELECT 1 FROM a [ROWS 1], b ON a.x«[0]» = 1", "a bracket is not allowed here"),
        ("SELECT 1 FROM a [ROWS 1], b WHERE a.x«['k']» = 1", "a bracket is not allowed here"),
        ("SELECT 1 FROM «[ROWS 1]» a, b", "this window has no stream before it"),
        ("SELECT 1 FROM a [ROWS 1] x «[ROWS 2]», b", "the stream already has a window"),
        ("SELECT 1 FROM (a «[»ROWS 1] JOIN b)", "a window cannot be inside parentheses"),
        ("SELECT 1 FROM a «[»ROWS 1, b", "this '[' is not closed"),
        ("SELECT 1 FROM a «[»ROWS 1 [ROWS 2], b", "this '[' is not closed"),
        ("SELECT 1 FROM a ROWS 1«]», b", "this ']' has no '[' before it"),
        ("SELECT 1 FROM a [ROWS 1],«,» b", "the name of a stream is missing here"),
        ("SELECT 1 FROM a [ROWS 1], «WHERE» 1 = 1", "the name of a stream is missing here"),
        ("SELECT 1 FROM a «[]», b", "this window is empty"),
        ("SELECT 1 FROM a [«SLIDE» 5 SECONDS], b", "'SLIDE' is not a kind of window"),
        ("SELECT 1 FROM a [«RANGE»], b", "RANGE needs a number and a unit"),
        ("SELECT 1 FROM a [RANGE «UNBOUNDED»], b", "RANGE needs a number and a unit, not 'UNBOUNDED'"),
        ("SELECT 1 FROM a [RANGE «MINUTES» 5], b", "RANGE needs a number and a unit, not 'MINUTES'"),
        ("SELECT 1 FROM a [RANGE «5»], b", "RANGE 5 has no unit"),
        ("SELECT 1 FROM a [RANGE «-5 SECONDS»], b", "duration '-5 SECONDS' is negative"),
        ("SELECT 1 FROM a [RANGE «0.5 us»], b", "duration '0.5 us' is not a whole number of microseconds"),
        (
            "SELECT 1 FROM a [RANGE «9999999 weeks»], b",
            "duration '9999999 weeks' is too long; the longest is 13343998 days",
        ),
        ("SELECT 1 FROM a [RANGE 5 SEC «SLIDE 1 SEC»], b", "'SLIDE 1 SEC' is not understood in a window"),
        (
            "SELECT 1 FROM a [RANGE 5 «MONTHS»], b",
            (
                "duration '5 MONTHS' has the unknown unit 'MONTHS'; "
                "allowed: microseconds, milliseconds, seconds, minutes, hours, days, weeks"
            ),
        ),
        ("SELECT 1 FROM a [«ROWS»], b", "ROWS needs a number"),
        ("SELECT 1 FROM a [ROWS «0»], b", "ROWS needs a whole number from 1, not '0'"),
        ("SELECT 1 FROM a [ROWS «-3»], b", "ROWS needs a whole number from 1, not '-3'"),
        ("SELECT 1 FROM a [ROWS «1.5»], b", "ROWS needs a whole number from 1, not '1.5'"),
        ("SELECT 1 FROM a [ROWS 5 «SEC»], b", "'SEC' is not understood in a window"),
        ("SELECT 1 FROM a [«PARTITION BY k»], b", "PARTITION BY needs one column and ROWS"),
        ("SELECT 1 FROM a [«PARTITION BY k, l ROWS 5»], b", "PARTITION BY needs one column and ROWS"),
    ],
)
def test_refused(marked: str, message: str) -> None:
    start, end = marked.index("«"), marked.index("»") - 1
    with pytest.raises(QueryError) as caught:
        taken(marked.replace("«", "").replace("»", ""))
    error = caught.value
    assert (error.message, error.start, error.end) == (message, start, end)
    assert error.hint


NEAR_MISSES = {
    "a (RANGE 1 HOUR), b [ROWS 1]": ("(RANGE 1 HOUR)", "[RANGE 1 HOUR]"),
    "a {RANGE 1 HOUR}, b [ROWS 1]": ("{RANGE 1 HOUR}", "[RANGE 1 HOUR]"),
    "a (ROWS 5) x, b [ROWS 1]": ("(ROWS 5)", "[ROWS 5]"),
    "a (PARTITION BY k ROWS 5), b [ROWS 1]": ("(PARTITION BY k ROWS 5)", "[PARTITION BY k ROWS 5]"),
    "a RANGE 1 HOUR, b [ROWS 1]": ("RANGE 1 HOUR", "[RANGE 1 HOUR]"),
    "a#time(1 hour), b [ROWS 1]": ("#time(1 hour)", "[RANGE 1 hour]"),
    "a#length(5), b [ROWS 1]": ("#length(5)", "[ROWS 5]"),
    "a JOIN b WITHIN 1 HOUR ON TRUE": ("WITHIN 1 HOUR", "[RANGE 1 HOUR]"),
    "a [1 HOUR], b [ROWS 1]": ("1 HOUR", "RANGE 1 HOUR"),
}


@pytest.mark.parametrize("entries", NEAR_MISSES)
def test_windows_of_other_systems_are_refused_with_our_syntax(entries: str) -> None:
    found, instead = NEAR_MISSES[entries]
    streams = {name: StreamSchema(name, pa.schema({"ts": pa.timestamp("us"), "k": pa.int64()}), "ts") for name in "ab"}
    sql = f"SELECT 1 AS one FROM {entries} WHERE 1 = 1"
    with pytest.raises(QueryError) as refused:
        parse_query("q", sql, streams)
    assert refused.value.hint == f"write [{instead.strip('[]')}]"
    with pytest.raises(QueryError, match="not joined"):  # with the hint applied, the windows are accepted
        parse_query("q", sql.replace(found, instead, 1), streams)


@pytest.mark.parametrize(
    ("window", "micros"),
    [
        ("[RANGE INTERVAL 1 HOUR]", 3_600_000_000),
        ("[RANGE INTERVAL '1' HOUR]", 3_600_000_000),
        ("[RANGE INTERVAL '1 hour']", 3_600_000_000),
        ("[range '90' minutes]", 5_400_000_000),
        ("[RANGE 1 HOUR 30 MINUTES]", 5_400_000_000),
        ("[RANGE '1 hour 30 minutes']", 5_400_000_000),
        ("[RANGE INTERVAL 1 HOUR 30 MINUTES]", 5_400_000_000),
    ],
)
def test_lengths_as_spark_and_flink_write_them(window: str, micros: int) -> None:
    streams = {name: StreamSchema(name, pa.schema({"ts": pa.timestamp("us"), "k": pa.int64()}), "ts") for name in "ab"}
    query = parse_query("q", f"SELECT a.k FROM a {window}, b [ROWS 1] WHERE a.k = b.k", streams)
    assert query.refs[0].window == TimeWindow(micros)


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("'1 hour 2'", "'1 hour 2' is not an interval"),
        ("'1 hour and a half'", "is not an interval"),
        ("'01:70' HOUR TO MINUTE", "'01:70' is not an interval HOUR TO MINUTE"),
        ("'2' YEAR TO MONTH", "an interval YEAR TO MONTH is not supported"),
        ("1 MONTH", "unknown unit 'MONTH'"),
        ("'1'", "not understood"),
    ],
)
def test_intervals_are_read_whole_or_refused(interval: str, message: str) -> None:
    streams = {name: StreamSchema(name, pa.schema({"ts": pa.timestamp("us"), "k": pa.int64()}), "ts") for name in "ab"}
    with pytest.raises(QueryError, match=message):
        parse_query("q", f"SELECT 1 AS one FROM a, b WHERE a.ts BETWEEN b.ts AND b.ts + INTERVAL {interval}", streams)
