"""Hints lead on: each refused query, what it is told, and the query that follows the hint literally, which runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import QueryError
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

AWARE = pa.schema(
    {
        "ts": pa.timestamp("us", tz="UTC"),
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.float64(),
        "day": pa.date32(),
        "paid": pa.bool_(),
        "page": pa.string(),
        "key-2": pa.int64(),
        "hour": pa.int32(),
    }
)
NAIVE = AWARE.set(0, pa.field("ts", pa.timestamp("us")))
STREAMS = {
    name: StreamSchema(name, AWARE if name != "local" else NAIVE, "ts")
    for name in ("clicks", "orders", "local", "my-clicks", "2024", "dotted.name")
}
FROM = "FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR]"
JOIN = f"{FROM} WHERE c.id = o.id"
LOCAL = "FROM local c [RANGE 1 HOUR], local o [RANGE 1 HOUR] WHERE c.id = o.id"
ANTI_JOIN = "only inner joins are supported: a row without a match has no result"
IMPORTS = "; first: from pyspark.sql import functions as F; import pyarrow.compute as pc"
COLUMN = "compute it in a column before the stream enters the join"
FROM_HINT = "name its streams in FROM, each with a window, and put its conditions into WHERE"
SEMI_JOIN = "write it as a join: its stream in FROM, with a window, and its conditions in WHERE; each match is a result"
NO_CLOCK = (
    "a query has no clock: compare event times with each other, or with a constant, TIMESTAMP '2026-01-31 12:30:00'"
)
NO_FIXED_LENGTH = "short forms such as ms, sec, min, h and d work too; months and years have no fixed length"
REGEX = (
    f"use LIKE with % and _, or {COLUMN}: F.col('name').rlike(pattern) in PySpark, "
    f"pc.match_substring_regex(table['name'], pattern) in Arrow{IMPORTS}"
)


def parsed(sql: str) -> JoinQuery:
    return parse_query("q", sql, STREAMS)


REFUSED: list[Any] = [
    # subqueries
    (
        "SELECT c.id FROM («SELECT» * FROM clicks WHERE price > 1) c, orders o [RANGE 1 HOUR] WHERE c.id = o.id",
        "subqueries are not supported",
        FROM_HINT,
        f"SELECT c.id {JOIN} AND c.price > 1",
    ),
    (
        "«WITH» x AS (SELECT * FROM clicks WHERE price > 1) SELECT x.id FROM x, orders o [RANGE 1 HOUR] WHERE x.id = o.id",
        "WITH is not supported",
        FROM_HINT,
        "SELECT x.id FROM clicks x [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE x.id = o.id AND x.price > 1",
    ),
    (
        f"SELECT c.id {JOIN} AND EXISTS («SELECT» 1 FROM clicks d WHERE d.name = c.name)",
        "subqueries are not supported",
        SEMI_JOIN,
        (
            "SELECT c.id FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR], clicks d [RANGE 1 HOUR] "
            "WHERE c.id = o.id AND d.name = c.name"
        ),
    ),
    (
        f"SELECT c.id {JOIN} AND c.name IN («SELECT» name FROM clicks)",
        "subqueries are not supported",
        SEMI_JOIN,
        (
            "SELECT c.id FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR], clicks d [RANGE 1 HOUR] "
            "WHERE c.id = o.id AND d.name = c.name"
        ),
    ),
    (
        f"SELECT c.id {JOIN} AND c.price > («SELECT» max(price) FROM orders)",
        "subqueries are not supported",
        "compute the value first and write it as a constant, or join its stream in FROM, with a window",
        f"SELECT c.id {JOIN} AND c.price > 99.5",
    ),
    # times
    (
        f"SELECT c.id {JOIN} AND «timestampdiff»(MINUTE, c.ts, o.ts) < 5",
        "function TIMESTAMPDIFF is not supported",
        "subtract the times: o.ts - c.ts < INTERVAL 5 MINUTES",
        f"SELECT c.id {JOIN} AND o.ts - c.ts < INTERVAL 5 MINUTES",
    ),
    (
        f"SELECT c.id {JOIN} AND «datediff»(o.ts, c.ts) < 5",
        "function DATEDIFF is not supported",
        "subtract the times: o.ts - c.ts < INTERVAL 5 MINUTES",
        f"SELECT c.id {JOIN} AND o.ts - c.ts < INTERVAL 5 MINUTES",
    ),
    (
        f"SELECT c.id {JOIN} AND «dateadd»(HOUR, 1, c.ts) > o.ts",
        "function DATEADD is not supported",
        "add an interval: c.ts + INTERVAL 5 MINUTES",
        f"SELECT c.id {JOIN} AND c.ts + INTERVAL 5 MINUTES > o.ts",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts > «now()»",
        "function NOW is not supported",
        NO_CLOCK,
        f"SELECT c.id {JOIN} AND c.ts > TIMESTAMP '2026-01-31 12:30:00'",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts > «current_timestamp»",
        "function CURRENT_TIMESTAMP is not supported",
        NO_CLOCK,
        f"SELECT c.id {JOIN} AND c.ts > o.ts",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts < o.ts + «'1 hour'»::interval",
        "casts to interval are not supported",
        "write INTERVAL '1 hour'",
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL '1 hour'",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts < o.ts + 5 «MINUTES»",
        "syntax error near 'MINUTES'",
        "write INTERVAL 5 MINUTES",
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL 5 MINUTES",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.ts - o.ts < 300»",
        "cannot compare interval with int",
        "a length of time needs a unit: write INTERVAL 300 SECONDS",
        f"SELECT c.id {JOIN} AND c.ts - o.ts < INTERVAL 300 SECONDS",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.ts - o.ts < '5 minutes'»",
        "cannot compare interval with string",
        "write INTERVAL '5 minutes'",
        f"SELECT c.id {JOIN} AND c.ts - o.ts < INTERVAL '5 minutes'",
    ),
    (
        f"SELECT c.id {JOIN} AND «EXTRACT(HOUR FROM c.ts)» = 5",
        "EXTRACT is not supported",
        f"{COLUMN}: F.hour('ts') in PySpark, pc.hour(table['ts']) in Arrow{IMPORTS}",
        f"SELECT c.id {JOIN} AND c.hour = 5",
    ),
    (
        f"SELECT c.id {JOIN} AND «hour»(c.ts) = 5",
        "function HOUR is not supported",
        f"{COLUMN}: F.hour('ts') in PySpark, pc.hour(table['ts']) in Arrow{IMPORTS}",
        f"SELECT c.id {JOIN} AND c.hour = 5",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL 1 «MONTH»",
        "duration '1 MONTH' has the unknown unit 'MONTH'",
        NO_FIXED_LENGTH,
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL 59 min",
    ),
    (
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL «'1 month'»",
        "duration '1 month' has the unknown unit 'month'",
        NO_FIXED_LENGTH,
        f"SELECT c.id {JOIN} AND c.ts < o.ts + INTERVAL '59 minutes'",
    ),
    # kinds of timestamps
    (
        f"SELECT c.id {LOCAL} AND «c.ts > TIMESTAMP '2026-01-01 08:30:00'»",
        "cannot compare timestamp_ntz with timestamp",
        "write TIMESTAMP_NTZ '2026-01-01 08:30:00': the other side has no time zone",
        f"SELECT c.id {LOCAL} AND c.ts > TIMESTAMP_NTZ '2026-01-01 08:30:00'",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.ts > TIMESTAMP_NTZ '2026-01-01 08:30:00'»",
        "cannot compare timestamp with timestamp_ntz",
        "write TIMESTAMP '2026-01-01 08:30:00': the other side has a time zone",
        f"SELECT c.id {JOIN} AND c.ts > TIMESTAMP '2026-01-01 08:30:00'",
    ),
    (
        f"SELECT c.id {LOCAL} AND «c.ts > '2026-01-01 08:30:00'»",
        "cannot compare timestamp_ntz with string",
        "write a constant as TIMESTAMP_NTZ '2026-01-01 08:30:00'; strings are not converted implicitly",
        f"SELECT c.id {LOCAL} AND c.ts > TIMESTAMP_NTZ '2026-01-01 08:30:00'",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.day = '2026-01-01'»",
        "cannot compare date with string",
        "write a constant as DATE '2026-01-01'; strings are not converted implicitly",
        f"SELECT c.id {JOIN} AND c.day = DATE '2026-01-01'",
    ),
    # text
    (f"SELECT c.id {JOIN} AND «c.name RLIKE 'a'»", "regular expressions are not supported", REGEX, None),
    (
        f"SELECT c.id {JOIN} AND «c.name REGEXP 'a'»",
        "regular expressions are not supported",
        REGEX,
        f"SELECT c.id {JOIN} AND c.name LIKE '%a%'",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.name ILIKE 'A%'»",
        "ILIKE is not supported",
        "write LOWER(c.name) LIKE a pattern in lower case",
        f"SELECT c.id {JOIN} AND LOWER(c.name) LIKE 'a%'",
    ),
    # names
    (
        f'SELECT «"c"."id"» {JOIN}',
        '"c"."id" is text, not a name',
        "quote names with backticks: `c`.`id`",
        f"SELECT `c`.`id` {JOIN}",
    ),
    (
        f"SELECT c.id {JOIN} AND «\"page\" = 'x'»",
        "this condition refers to no stream",
        '"page" is text, as in Spark; for a column write `page`',
        "SELECT c.id FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id AND c.`page` = 'x'",
    ),
    (
        "SELECT c.id FROM my«-»clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
        "syntax error near '-'",
        "write the name of the stream in backticks: `my-clicks`",
        "SELECT c.id FROM `my-clicks` c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
    ),
    (
        "SELECT c.id FROM «2024» c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
        "syntax error near '2024'",
        "write the name of the stream in backticks: `2024`",
        "SELECT c.id FROM `2024` c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
    ),
    (
        "SELECT c.id FROM «my_clicks» c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
        "there is no stream 'my_clicks'",
        "did you mean `my-clicks`?",
        "SELECT c.id FROM `my-clicks` c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE c.id = o.id",
    ),
    (
        f"SELECT «c.key_2» {JOIN}",
        "stream 'clicks' has no column 'key_2'",
        "did you mean `key-2`?",
        f"SELECT c.`key-2` {JOIN}",
    ),
    (
        "SELECT c.id FROM «`my-clicks`» JOIN orders c ON c.id = `my-clicks`.id",
        "alias 'my-clicks' has no window",
        (
            "write `my-clicks` [RANGE 10 MINUTES], orders c [RANGE 10 MINUTES], "
            "or add c.ts BETWEEN `my-clicks`.ts AND `my-clicks`.ts + INTERVAL 10 MINUTES"
        ),
        "SELECT c.id FROM `my-clicks` [RANGE 10 MINUTES], orders c [RANGE 10 MINUTES] WHERE c.id = `my-clicks`.id",
    ),
    # other languages
    (f"SELECT c.id {JOIN} «&&» c.paid", "syntax error near '&&'", "write AND", f"SELECT c.id {JOIN} AND c.paid"),
    (
        f"SELECT c.id {JOIN} AND c.id = «:»x",
        "parameters are not supported",
        "a query has no parameters: write the value itself, e.g. with an f-string",
        f"SELECT c.id {JOIN} AND c.id = 5",
    ),
    (
        f"SELECT c.id {JOIN} AND «make_interval»(0, 0, 0, 0, 1) > c.ts - o.ts",
        "function MAKE_INTERVAL is not supported",
        "write INTERVAL 5 MINUTES or INTERVAL '1 hour 30 minutes'",
        f"SELECT c.id {JOIN} AND INTERVAL 5 MINUTES > c.ts - o.ts",
    ),
    (
        f"SELECT c.id {JOIN} AND «unix_timestamp»(c.ts) < 5",
        "function UNIX_TIMESTAMP is not supported",
        "compare the times themselves: o.ts - c.ts < INTERVAL 5 MINUTES, c.ts > TIMESTAMP '2026-01-31 12:30:00'",
        f"SELECT c.id {JOIN} AND o.ts - c.ts < INTERVAL 5 MINUTES AND c.ts > TIMESTAMP '2026-01-31 12:30:00'",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.ts > 1767225600»",
        "cannot compare timestamp with int",
        "numbers are no times: write a constant as TIMESTAMP '2026-01-31 12:30:00', and make times of a column first",
        f"SELECT c.id {JOIN} AND c.ts > TIMESTAMP '2026-01-31 12:30:00'",
    ),
    (
        f"SELECT c.id {JOIN} AND «c.id = '5'»",
        "cannot compare bigint with string",
        "write a number without quotes: 5",
        f"SELECT c.id {JOIN} AND c.id = 5",
    ),
    (
        f'SELECT c.id {JOIN} AND c.id = «"id"»',
        '"id" is text, as in Spark, not the column id',
        "write `id` for the column, or 'id' for the text",
        f"SELECT c.id {JOIN} AND c.id = o.`id`",
    ),
    (
        "SELECT c.id FROM clicks c [RANGE 1 HOUR], orders o [RANGE 1 HOUR] «ON» c.id = o.id",
        "syntax error near 'ON'",
        "after commas write WHERE; ON belongs to JOIN: FROM a JOIN b ON a.key = b.key",
        "SELECT c.id FROM clicks c [RANGE 1 HOUR] JOIN orders o [RANGE 1 HOUR] ON c.id = o.id",
    ),
    *(
        (f"SELECT c.id {JOIN} AND {condition} («SELECT» 1)", "subqueries are not supported", ANTI_JOIN, None)
        for condition in ("NOT EXISTS", "c.id NOT IN", "NOT c.id IN")
    ),
    (
        f"SELECT c.id {JOIN} AND «window»(c.ts, '5 minutes') = c.ts",
        "function WINDOW is not supported",
        "windows slide with every tuple: write stream alias [RANGE 5 MINUTES] in FROM, and group the results",
        "SELECT c.id FROM clicks c [RANGE 5 MINUTES], orders o [RANGE 5 MINUTES] WHERE c.id = o.id",
    ),
]


@pytest.mark.parametrize(("marked", "message", "hint", "followed"), REFUSED)
def test_a_hint_leads_on(marked: str, message: str, hint: str, followed: str | None) -> None:
    start, end = marked.index("«"), marked.index("»") - 1
    with pytest.raises(QueryError) as caught:
        parsed(marked.replace("«", "").replace("»", ""))
    error = caught.value
    assert error.message.startswith(message)
    assert error.hint == hint
    assert error.start == start
    assert error.end >= end
    if followed is not None:
        assert not parsed(followed).warnings


RESERVED = [
    ("SELECT x.id FROM «select» x [RANGE 1 HOUR], orders o [RANGE 1 HOUR] WHERE x.id = o.id", "`select`"),
    ("SELECT o.id FROM orders o [RANGE 1 HOUR] JOIN «values» [RANGE 1 HOUR] ON «values».id = o.id", "`values`"),
    ("SELECT o.«when» FROM orders o [RANGE 1 HOUR], `select` x [RANGE 1 HOUR] WHERE x.id = o.id", "`when`"),
]


@pytest.mark.parametrize(("marked", "backticks"), RESERVED)
def test_names_that_are_words_of_sql_need_backticks(marked: str, backticks: str) -> None:
    columns = pa.schema({"ts": pa.timestamp("us", tz="UTC"), "id": pa.int64(), "when": pa.int64()})
    streams = {name: StreamSchema(name, columns, "ts") for name in ("orders", "select", "values")}
    word = backticks.strip("`")
    with pytest.raises(QueryError, match=f"'{word}' is a word of SQL") as caught:
        parse_query("q", marked.replace("«", "").replace("»", ""), streams)
    assert caught.value.hint == f"write the name in backticks: {backticks}"
    assert caught.value.start == marked.index("«")
    parse_query("q", marked.replace("«", "`").replace("»", "`"), streams)


def test_an_error_beside_a_word_of_sql_is_kept() -> None:
    with pytest.raises(QueryError, match="no column 'nothing'"):
        parsed(f"SELECT c.nothing, c.ts {JOIN}")


NEVER: dict[str, str] = {
    "c.name = NULL": "'c.name = NULL' never holds",
    "c.name <> NULL": "'c.name <> NULL' never holds",
    "NOT (c.name = NULL)": "'NOT (c.name = NULL)' never holds",
    "c.id NOT IN (1, NULL)": "'c.id NOT IN (1, NULL)' never holds",
    "c.id > 5 AND c.id < 3": "'c.id > 5' and 'c.id < 3' contradict each other",
    "c.id > 5 AND c.id < 6": "'c.id > 5' and 'c.id < 6' contradict each other",
    "c.id = 5 AND c.id = 6": "'c.id = 5' and 'c.id = 6' contradict each other",
    "c.id = 5 AND 6 = o.id": "'c.id = 5' and '6 = o.id' contradict each other",
    "c.id IN (1, 2) AND o.id IN (3, 4)": "'c.id IN (1, 2)' and 'o.id IN (3, 4)' contradict each other",
    "c.id >= 5 AND NOT o.id >= 5": "'c.id >= 5' and 'NOT o.id >= 5' contradict each other",
    "c.price BETWEEN 10 AND 5": "'c.price BETWEEN 10 AND 5' never holds",
    "c.name = 'a' AND c.name = 'b'": "\"c.name = 'a'\" and \"c.name = 'b'\" contradict each other",
    "c.name > 'b' AND c.name = 'a'": "\"c.name > 'b'\" and \"c.name = 'a'\" contradict each other",
    "c.day = DATE '2026-01-01' AND c.day > DATE '2026-01-02'": "contradict each other",
    "c.ts < TIMESTAMP '2026-01-01' AND c.ts > TIMESTAMP '2026-01-02'": "contradict each other",
    "c.price <> c.price": "'c.price <> c.price' never holds",
    "c.paid AND NOT c.paid": "'c.paid' and 'NOT c.paid' contradict each other",
    "c.id IS NULL": "'c.id IS NULL' and 'c.id = o.id' contradict each other",
    "c.ts > o.ts AND o.ts > c.ts": "contradict each other",
}
POSSIBLE = [
    "c.id > 5 AND c.id <= 6",
    "c.price > 5 AND c.price < 6",
    "c.price >= 5 AND c.price <= 5",
    "c.id > 5 AND o.price < 3",
    "c.price > 5 AND o.price < 3",
    "(c.id > 5 OR c.id < 3) AND c.id <> 4",
    "NOT (c.id > 5 AND c.id < 3)",
    "c.id IN (1, 2) AND o.id IN (2, 3)",
    "c.id IN (1, NULL)",
    "c.name IS NULL AND o.name IS NULL",
    "c.name <=> NULL",
    "c.paid AND o.paid = FALSE",
    "c.id = 1 AND c.price = 2",
    "c.name <> 'a' AND c.name <> 'b'",
    "c.price = c.price",
    "COALESCE(c.name, 'x') = 'x' AND c.name LIKE 'a%'",
]


@pytest.mark.parametrize("condition", NEVER)
def test_conditions_that_never_hold(condition: str) -> None:
    (warning,) = parsed(f"SELECT c.id {JOIN} AND {condition}").warnings
    assert warning.startswith("query 'q': there can be no result: ")
    assert NEVER[condition] in warning
    assert ("write IS NULL, IS NOT NULL or <=>" in warning) == (" NULL" in condition and "IS" not in condition)


@pytest.mark.parametrize("condition", POSSIBLE)
def test_conditions_that_may_hold(condition: str) -> None:
    assert not parsed(f"SELECT c.id {JOIN} AND {condition}").warnings


@pytest.mark.parametrize(
    ("condition", "column", "hint"),
    [
        ('c.name = "page"', "page", "`page`"),
        ('"page" <> c.name', "page", "`page`"),
        ('c.name IN ("page", "other")', "page", "`page`"),
        ("c.name BETWEEN 'a' AND \"page\"", "page", "`page`"),
        ('LOWER(c.name) = "page"', "page", "`page`"),
        ('LOWER("page") = c.name', "page", "`page`"),
        ('c.name = "o.name"', "o.name", "`o`.`name`"),
    ],
)
def test_double_quotes_make_text(condition: str, column: str, hint: str) -> None:
    (warning,) = parsed(f"SELECT c.id {JOIN} AND {condition}").warnings
    text = condition.split('"')[1]
    assert f'"{text}" is text, as in Spark, not the column {column}' in warning
    assert f"write {hint} for the column, or '{text}' for the text" in warning
    assert not parsed(f"SELECT c.id {JOIN} AND c.name = '{text}'").warnings


MEANT_QUOTES = [
    'c.name = "done"',
    'c."name" = "x"',
    "c.name = 'page'",
    "c.name = `o`.`name`",
    'c.name = "PAGE"',
    'c.name = "Page"',
    'c.name = "paid"',
    'c.name IN ("id", "price", "o.paid")',
    'LOWER(c.name) <> "day"',
]
"""Conditions on text that equals no column, or one in another case or of a type that text is not compared with."""


@pytest.mark.parametrize("condition", MEANT_QUOTES)
def test_quotes_that_are_meant(condition: str) -> None:
    assert not parsed(f'SELECT c.id AS "name" {JOIN} AND {condition}').warnings
