"""Errors of refused queries: message, underline and hint."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.errors import QueryError
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema


def stream(name: str, zone: str | None, columns: dict[str, pa.DataType]) -> StreamSchema:
    fields = [pa.field("ts", pa.timestamp("us", tz=zone)), *(pa.field(key, dtype) for key, dtype in columns.items())]
    return StreamSchema(name, pa.schema(fields), "ts")


STREAMS = {
    schema.name: schema
    for schema in (
        stream("clicks", "UTC", {"id": pa.int64(), "user": pa.string(), "ok": pa.bool_(), "tags": pa.list_(pa.int8())}),
        stream(
            "orders", "UTC", {"id": pa.int32(), "user": pa.string(), "price": pa.decimal128(30, 2), "day": pa.date32()}
        ),
        stream("local", None, {"id": pa.int32()}),
    )
}
JOIN = "FROM clicks c, orders o [ROWS 9] WHERE c.id = o.id"
SHAPE = "write SELECT columns FROM stream alias [RANGE n UNIT], ... WHERE conditions"
AGGREGATE = (
    "aggregate the query's results instead: results['q'].group_by('k').aggregate([('v', 'sum')]) in Arrow; on Spark see "
    "docs/coming-from-spark.md#aggregation-after-the-join"
)
SUBQUERY = "name its streams in FROM, each with a window, and put its conditions into WHERE"
SEMI_JOIN = "write it as a join: its stream in FROM, with a window, and its conditions in WHERE; each match is a result"
SCALAR = "compute the value first and write it as a constant, or join its stream in FROM, with a window"
ENDLESS = "a continuous query never ends; apply this to its results"
CASTS = "supported casts: between numbers, between dates and timestamps, and from integers, decimals, booleans and dates to string"
ON = "write JOIN ... ON a.key = b.key"
TIMES = "times take intervals: ts + INTERVAL 5 MINUTES, ts1 - ts2"
MIXED_TIMES = (
    "timestamp is an instant, timestamp_ntz a wall-clock reading: declare both streams with one kind; for 'local' write "
    "F.col('ts').cast('timestamp') in PySpark, pc.assume_timezone(table['ts'], 'UTC') in Arrow; "
    "first: from pyspark.sql import functions as F; import pyarrow.compute as pc"
)
COMPUTE = "compute it in a column before the stream enters the join"
FUNCTIONS = (
    "allowed: ABS, COALESCE, CONCAT, GREATEST, IF, IFNULL, LEAST, LENGTH, LOWER, NULLIF, NVL, "
    "SUBSTR, SUBSTRING, TRIM, UPPER"
)
DOCUMENTATION = "docs/query-language.md lists what is supported"


def refusal(sql: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        parse_query("q", sql, STREAMS)
    return caught.value


def check(marked: str, message: str, hint: str | None) -> None:
    """Check that the text between « and » is underlined."""
    start, end = marked.index("«"), marked.index("»") - 1
    error = refusal(marked.replace("«", "").replace("»", ""))
    assert (error.message, error.hint) == (message, hint)
    assert (error.start, error.end) == (start, end)


WHOLE_TEXTS = {
    "SELECT c.id\nFROM clikcs c, orders o [ROWS 9]\nWHERE c.id = o.id": """\
there is no stream 'clikcs'; declared: 'clicks', 'orders', 'local'
  line 2: FROM clikcs c, orders o [ROWS 9]
               ^^^^^^
Hint: did you mean 'clicks'?""",
    "SELECT c.usr\nFROM clicks c, orders o [ROWS 9]": """\
stream 'clicks' has no column 'usr'; columns: 'ts', 'id', 'user', 'ok', 'tags'
  line 1: SELECT c.usr
                 ^^^^^
Hint: did you mean 'user'?""",
    "SELECT *\nFROM clicks c [ROWS 9],\n     orders o\nWHERE c.id = o.id": """\
alias 'o' has no window
  line 3:      orders o
               ^^^^^^^^
Hint: write orders o [RANGE 10 MINUTES], or add c.ts BETWEEN o.ts AND o.ts + INTERVAL 10 MINUTES""",
    "SELECT *\nFROM clicks c [RANGE 10 PARSECS], orders o [ROWS 9]": """\
duration '10 PARSECS' has the unknown unit 'PARSECS'; allowed: microseconds, milliseconds, seconds, minutes, hours, days, weeks
  line 2: FROM clicks c [RANGE 10 PARSECS], orders o [ROWS 9]
                                  ^^^^^^^
Hint: short forms such as ms, sec, min, h and d work too; months and years have no fixed length""",
    "SELECT *\nFROM clicks c, orders o [ROWS 9]\nWHERE c.id = o.user": """\
cannot compare bigint with string
  line 3: WHERE c.id = o.user
                ^^^^^^^^^^^^^
Hint: to compare as text, CAST the bigint AS STRING""",
    "SELECT *\nFROM clicks c, orders o [ROWS 9]\nWHERE c.id > 5": """\
alias 'o' is not joined to 'c'
  line 2: FROM clicks c, orders o [ROWS 9]
                         ^^^^^^^^
Hint: add a condition between them, e.g. c.key = o.key""",
    "SELECT c.id, count(*)\nFROM clicks c, orders o [ROWS 9]\nWHERE c.id = o.id\nGROUP BY c.id": f"""\
GROUP BY is not supported
  line 4: GROUP BY c.id
          ^^^^^^^^
Hint: {AGGREGATE}""",
    "": f"the query is empty\nHint: {SHAPE}",
}


@pytest.mark.parametrize(("sql", "text"), WHOLE_TEXTS.items())
def test_whole_text(sql: str, text: str) -> None:
    assert str(refusal(sql)) == text


def test_position_is_kept_as_data() -> None:
    error = refusal("SELECT *\nFROM clicks c,\n  ordres o [ROWS 9]")
    assert (error.line, error.column, error.sql[error.start : error.end]) == (3, 3, "ordres")


@pytest.mark.parametrize(
    ("marked", "message", "hint"),
    [
        (
            f"SELECT «x.id» {JOIN}",
            "there is no alias 'x'; in FROM: 'c', 'o'",
            "qualify columns with an alias of the FROM list",
        ),
        (
            f"SELECT «x.*» {JOIN}",
            "there is no alias 'x'; in FROM: 'c', 'o'",
            "qualify columns with an alias of the FROM list",
        ),
        (
            f"SELECT «clicks.id» {JOIN}",
            "there is no alias 'clicks'; in FROM: 'c', 'o'",
            "the alias of this stream is 'c'",
        ),
        (f"SELECT «id» {JOIN}", "column 'id' is ambiguous: c.id, o.id", "qualify it, e.g. c.id"),
        (
            f"SELECT «prise» {JOIN}",
            (
                "no stream in FROM has a column 'prise'; "
                "columns: c.ts, c.id, c.user, c.ok, c.tags, o.ts, o.id, o.user, o.price, o.day"
            ),
            "did you mean 'price'?",
        ),
        (
            "SELECT * FROM «nowhere.at_all» x, orders o [ROWS 9]",
            "there is no stream 'nowhere.at_all'; declared: 'clicks', 'orders', 'local'",
            "declare it first: session.stream(name, ...)",
        ),
        (
            "SELECT * FROM clicks c [PARTITION BY «usr» ROWS 3], orders o [ROWS 9]",
            "stream 'clicks' has no column 'usr'; columns: 'ts', 'id', 'user', 'ok', 'tags'",
            "did you mean 'user'?",
        ),
        (
            "SELECT * FROM clicks c, orders «c» [ROWS 9]",
            "alias 'c' is used twice",
            "give this one another name, e.g. orders c2",
        ),
        (
            "SELECT * FROM clicks c, orders «C» [ROWS 9]",
            "alias 'C' is used twice",
            "give this one another name, e.g. orders C2",
        ),
        (
            "SELECT * FROM «clicks c» [ROWS 9]",
            "the query reads one stream only",
            "join two streams or more; for one stream, filter its DataFrame or table",
        ),
        (
            "SELECT * FROM clicks a, clicks b, «orders c», orders d [ROWS 9] WHERE a.id = b.id AND c.id = d.id",
            "aliases 'c', 'd' are not joined to 'a', 'b'",
            "add a condition between them, e.g. a.key = c.key",
        ),
        (
            "SELECT * FROM clicks c CROSS JOIN «orders o» [ROWS 9]",
            "alias 'o' is not joined to 'c'",
            "add a condition between them, e.g. c.key = o.key",
        ),
        (
            "SELECT * FROM clicks c, «local l» [ROWS 9] WHERE c.id = l.id",
            "the event time of 'local' is timestamp_ntz, that of 'clicks' is timestamp",
            MIXED_TIMES,
        ),
        (
            "SELECT * FROM local l [ROWS 9], «clicks c» WHERE c.id = l.id",
            "the event time of 'clicks' is timestamp, that of 'local' is timestamp_ntz",
            MIXED_TIMES,
        ),
        (
            "SELECT * FROM «clicks c(x, y)», orders o [ROWS 9]",
            "FROM allows only a name, an alias and a window per stream",
            "remove the rest",
        ),
    ],
)
def test_names(marked: str, message: str, hint: str) -> None:
    check(marked, message, hint)


@pytest.mark.parametrize(
    ("marked", "message", "hint"),
    [
        (f"«WITH» x AS (SELECT 1) SELECT * {JOIN}", "WITH is not supported", SUBQUERY),
        (f"SELECT «DISTINCT» c.id {JOIN}", "DISTINCT is not supported", ENDLESS),
        (f"SELECT c.id {JOIN} «GROUP  BY» c.id", "GROUP BY is not supported", AGGREGATE),
        (f"SELECT c.id {JOIN} «HAVING» c.id > 1", "HAVING is not supported", AGGREGATE),
        (f"SELECT c.id {JOIN} «QUALIFY» c.id > 1", "QUALIFY is not supported", AGGREGATE),
        (f"SELECT c.id {JOIN} «ORDER BY» c.id", "ORDER BY is not supported", ENDLESS),
        (f"SELECT c.id {JOIN} «LIMIT» 5", "LIMIT is not supported", ENDLESS),
        (f"SELECT c.id {JOIN} «OFFSET» 5", "OFFSET is not supported", ENDLESS),
        (
            f"SELECT c.id {JOIN} «UNION» ALL SELECT 1",
            "UNION is not supported",
            "register each SELECT as a query of its own",
        ),
        (f"SELECT («SELECT» 1) {JOIN}", "subqueries are not supported", SCALAR),
        (f"SELECT c.id {JOIN} AND c.id IN («SELECT» 1)", "subqueries are not supported", SEMI_JOIN),
        (f"SELECT c.id {JOIN} AND EXISTS («SELECT» 1)", "subqueries are not supported", SEMI_JOIN),
        ("SELECT * FROM («SELECT» * FROM clicks [ROWS 1]) x", "subqueries are not supported", SUBQUERY),
        (
            "SELECT * FROM clicks c, orders o [ROWS 9] «LATERAL» VIEW explode(c.tags) t AS x WHERE c.id = o.id",
            "LATERAL is not supported",
            "explode the column before the stream enters the join",
        ),
        (f"SELECT «count(*)» {JOIN}", "aggregate COUNT is not supported", AGGREGATE),
        (f"SELECT 1 + «Sum(c.id + 1)» AS s {JOIN}", "aggregate SUM is not supported", AGGREGATE),
        (f"SELECT c.id {JOIN} AND «max(c.id)» > 1", "aggregate MAX is not supported", AGGREGATE),
        (f"SELECT «sum(c.id) OVER (PARTITION BY c.id)» {JOIN}", "window functions are not supported", AGGREGATE),
        (
            "SELECT * FROM clicks c «LEFT OUTER JOIN» orders o [ROWS 9] ON c.id = o.id",
            "LEFT OUTER JOIN is not supported",
            "only inner joins are supported",
        ),
        (
            "SELECT * FROM clicks c «FULL JOIN» orders o [ROWS 9] ON c.id = o.id",
            "FULL JOIN is not supported",
            "only inner joins are supported",
        ),
        (
            "SELECT * FROM clicks c «LEFT SEMI JOIN» orders o [ROWS 9] ON c.id = o.id",
            "LEFT SEMI JOIN is not supported",
            "only inner joins are supported",
        ),
        (
            "SELECT * FROM clicks c «ANTI JOIN» orders o [ROWS 9] ON c.id = o.id",
            "ANTI JOIN is not supported",
            "only inner joins are supported",
        ),
        ("SELECT * FROM clicks c «NATURAL JOIN» orders o [ROWS 9]", "NATURAL JOIN is not supported", ON),
        ("SELECT * FROM clicks c JOIN orders o [ROWS 9] «USING» (id)", "USING is not supported", ON),
        (f"SELECT «foo(c.id)» {JOIN}", f"function FOO is not supported; {FUNCTIONS}", COMPUTE),
        (f"SELECT «lowr(c.user)» {JOIN}", f"function LOWR is not supported; {FUNCTIONS}", "did you mean 'LOWER'?"),
        (f"SELECT «c.id & 1» {JOIN}", "'c.id & 1' is not supported here", DOCUMENTATION),
        (
            f"SELECT «c.user ILIKE 'a'» {JOIN}",
            "ILIKE is not supported",
            "write LOWER(c.user) LIKE a pattern in lower case",
        ),
        (f"SELECT «* EXCEPT (id)» {JOIN}", "EXCEPT and REPLACE after '*' are not supported", "name the columns"),
    ],
)
def test_constructs_that_do_not_run(marked: str, message: str, hint: str) -> None:
    check(marked, message, hint)


@pytest.mark.parametrize(
    ("marked", "message", "hint"),
    [
        ("«SELECT 1»", "the query has no FROM", "name two streams or more to join"),
        ("«INSERT» INTO clicks SELECT 1", "a query starts with SELECT, not 'INSERT'", SHAPE),
        ("«SELEC» 1", "a query starts with SELECT, not 'SELEC'", SHAPE),
        (f"SELECT 1 {JOIN}; «SELECT» 2", "this is more than one statement", "register each one under its own name"),
        (f"SELECT c.id a «b» {JOIN}", "syntax error near 'b'", SHAPE),
        (f"SELECT c.id {JOIN} «AND»", "syntax error near 'AND'", SHAPE),
        (f"SELECT c.id {JOIN} AND (c.id = «1»", "syntax error near '1'", "a ')' is missing"),
        (f"SELECT «'»abc {JOIN}", "this quote is not closed", "add the closing quote"),
        (f"SELECT 'it''s', «`»abc {JOIN}", "this backtick is not closed", "add the closing backtick"),
        (f"SELECT c.id -- '\n {JOIN} «/*» abc", "this comment is not closed", "add the closing comment"),
        (f"SELECT c.id, «FROM» {JOIN[5:]}", "an entry of the select list is empty", "remove the comma"),
        (f"SELECT c.id,«,» c.user {JOIN}", "syntax error near ','", SHAPE),
        (f"SELECT c.id {JOIN} AND «AND» c.ok", "syntax error near 'AND'", SHAPE),
        (f"«SELECT map(c.id) {JOIN}»", "a function has arguments that cannot be parsed", SHAPE),
        (f"SELECT concat(«,» 'a') {JOIN}", "syntax error near ','", SHAPE),
        (f"SELECT c.id AS «,» c.user {JOIN}", "syntax error near ','", SHAPE),
        (f"SELECT c.id {JOIN} AND c.id «BETWEEN» 1 2", "syntax error near 'BETWEEN'", "add or remove a 'AND'"),
        (f"SELECT CASE «WHEN» c.ok 1 END {JOIN}", "syntax error near 'WHEN'", "add or remove a 'THEN'"),
        (f"SELECT c.id {JOIN} AND CAST«(»c.id AS INT < 5", "syntax error near '('", "add or remove a ')'"),
    ],
)
def test_syntax(marked: str, message: str, hint: str) -> None:
    check(marked, message, hint)


@pytest.mark.parametrize(
    ("marked", "message", "hint"),
    [
        (
            f"SELECT c.id {JOIN} AND «c.ts > '2024-01-01'»",
            "cannot compare timestamp with string",
            "write a constant as TIMESTAMP '2024-01-01'; strings are not converted implicitly",
        ),
        (
            f"SELECT c.id {JOIN} AND «c.ts > TIMESTAMP_NTZ '2024-01-01'»",
            "cannot compare timestamp with timestamp_ntz",
            "write TIMESTAMP '2024-01-01 00:00:00': the other side has a time zone",
        ),
        (
            f"SELECT c.id {JOIN} AND «c.ok = 1»",
            "cannot compare boolean with int",
            "convert one of them before it enters the stream",
        ),
        (
            f"SELECT c.id {JOIN} AND «c.id IN (1, 'a')»",
            "cannot compare bigint with string",
            "to compare as text, CAST the bigint AS STRING",
        ),
        (
            f"SELECT c.id {JOIN} AND «c.tags» = c.tags",
            "column c.tags has type list<item: int8>: it can be selected but not compared or computed with",
            "select it as it is, or add a simpler column to the stream",
        ),
        (
            f"SELECT c.id {JOIN} AND «c.id»",
            "a condition must be boolean, not bigint",
            "write a comparison, e.g. x <> 0",
        ),
        (
            f"SELECT c.id {JOIN} AND NOT «c.user»",
            "the operand of NOT must be boolean, not string",
            "write a comparison",
        ),
        (
            f"SELECT c.id {JOIN} AND (c.ok OR «o.id»)",
            "an operand of OR must be boolean, not int",
            "write a comparison, e.g. x <> 0",
        ),
        (f"SELECT c.id {JOIN} AND «1 = 2»", "this condition refers to no stream", "remove it, or compare columns"),
        (f"SELECT c.id {JOIN} AND «NULL = 1»", "this condition refers to no stream", "remove it, or compare columns"),
        (f"SELECT «c.user + 1» {JOIN}", "cannot add string and int", "concatenate strings with ||"),
        (f"SELECT «c.ok * 2» {JOIN}", "cannot multiply boolean and int", "arithmetic needs numbers"),
        (f"SELECT «c.ts + 5» {JOIN}", "cannot add timestamp and int", TIMES),
        (f"SELECT «c.ts + o.ts» {JOIN}", "cannot add timestamp and timestamp", TIMES),
        (f"SELECT «- c.user» {JOIN}", "cannot negate string", "this needs a number or an interval"),
        (
            f"SELECT «o.price * o.price» {JOIN}",
            "the result of decimal(30,2) and decimal(30,2) needs 61 digits; a decimal holds 38",
            "cast one side: CAST(x AS DOUBLE), or to a smaller decimal",
        ),
        (f"SELECT «lower(c.id)» {JOIN}", "LOWER needs a string, not bigint", "write CAST(x AS STRING)"),
        (f"SELECT «c.user || c.ts» {JOIN}", "CONCAT needs a string, not timestamp", "use a string column"),
        (
            f"SELECT «CASE WHEN c.ok THEN 1 ELSE 'a' END» {JOIN}",
            "CASE or IF mixes int and string",
            "to compare as text, CAST the int AS STRING",
        ),
        (
            f"SELECT «c.user LIKE o.user» {JOIN}",
            "LIKE needs a constant pattern",
            "write the pattern as text: name LIKE 'A%'",
        ),
        (f"SELECT «CAST(c.user AS INT)» {JOIN}", "cannot cast string to int", CASTS),
        (f"SELECT «CAST(c.ok AS INT)» {JOIN}", "cannot cast boolean to int", CASTS),
        (f"SELECT «CAST(c.ts AS TIMESTAMP_NTZ)» {JOIN}", "cannot cast timestamp to timestamp_ntz", CASTS),
        (
            f"SELECT «DATE '2024-02-30'» {JOIN}",
            "'2024-02-30' is not a date",
            "write '2024-01-31' or '2024-01-31 12:30:00.5'",
        ),
        (f"SELECT «NULL» {JOIN}", "this column has no type", "write CAST(NULL AS type)"),
        (
            f"SELECT «c.ts.x» {JOIN}",
            "fields of nested values are not supported",
            "add the field to the stream as a column",
        ),
        (
            f"SELECT INTERVAL 2 «MONTHS» {JOIN}",
            (
                "duration '2 MONTHS' has the unknown unit 'MONTHS'; "
                "allowed: microseconds, milliseconds, seconds, minutes, hours, days, weeks"
            ),
            "short forms such as ms, sec, min, h and d work too; months and years have no fixed length",
        ),
    ],
)
def test_types(marked: str, message: str, hint: str) -> None:
    check(marked, message, hint)


@pytest.mark.parametrize(
    ("marked", "name"),
    [
        (f"SELECT c.id AS x, «o.id AS x» {JOIN}", "x"),
        (f"SELECT c.id AS price, «o.price» {JOIN}", "price"),
        (f"SELECT c.id, «c.id» {JOIN}", "c_id"),
        (f"SELECT *, «c.id AS o_id» {JOIN}", "o_id"),
        (f"SELECT c.id + 1, «c.id + 1» {JOIN}", "c.id + 1"),
    ],
)
def test_clashing_output_names(marked: str, name: str) -> None:
    check(marked, f"two columns are named {name!r}", "rename one with AS")


def test_a_query_that_is_not_text() -> None:
    with pytest.raises(QueryError) as caught:
        parse_query("q", 5, STREAMS)  # type: ignore[arg-type]
    assert str(caught.value) == f"a query is text, not int\nHint: {SHAPE}"


def test_deep_nesting_is_refused_rather_than_crashing() -> None:
    error = refusal(f"SELECT * {JOIN} AND {'(' * 5000}c.ok{')' * 5000}")
    assert error.message == "the query is nested too deeply; at most 100 nested operations are allowed"
