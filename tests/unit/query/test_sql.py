"""Every construct of the query language is bound to the expected model."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from dovetail.query.expressions import OPERATIONS, Call, Column, Expression, Literal
from dovetail.query.model import (
    CountWindow,
    Equality,
    JoinQuery,
    Key,
    Output,
    StreamRef,
    TimeWindow,
    equality_classes,
)
from dovetail.query.sql import parse_query
from dovetail.schema import MICROSECOND, TIMESTAMP, TIMESTAMP_NTZ, StreamSchema

TIME = pa.timestamp("us", tz="UTC")
BOOLEAN, INT, BIGINT, DOUBLE, STRING = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string()


def stream(name: str, columns: dict[str, pa.DataType], time: pa.DataType = TIME) -> StreamSchema:
    return StreamSchema(name, pa.schema([pa.field("ts", time), *(pa.field(k, t) for k, t in columns.items())]), "ts")


STREAMS = {
    schema.name: schema
    for schema in (
        stream("impressions", {"ad_id": BIGINT, "user_id": STRING, "Shown": INT}),
        stream("clicks", {"ad_id": INT, "user_id": STRING, "ok": BOOLEAN, "day": pa.date32(), "raw": pa.binary()}),
        stream("orders", {"user_id": STRING, "amount": pa.decimal128(10, 2), "rate": pa.float32(), "n": pa.uint32()}),
        stream("wall", {"k": INT}, pa.timestamp("us")),
        stream("Temperature", {"loc": STRING, "value": DOUBLE}, pa.timestamp("ms", tz="Europe/Berlin")),
        stream("Humidity", {"loc": STRING, "value": DOUBLE}),
    )
}
SELECT = "SELECT c.ok, o.n FROM"
KEY = "c.user_id = o.user_id"
PAIR = f"FROM clicks c, orders o [ROWS 9] WHERE {KEY}"


def parse(sql: str) -> JoinQuery:
    return parse_query("q", sql, STREAMS)


def selected(expression: str) -> Expression:
    return parse(f"SELECT {expression} AS x {PAIR}").outputs[0].expression


def test_the_readme_query_field_by_field() -> None:
    sql = """
        SELECT i.ad_id, i.user_id, c.ts AS clicked_at, o.amount
        FROM impressions i [RANGE 10 MINUTES], clicks c [RANGE 10 MINUTES], orders o [RANGE 1 HOUR]
        WHERE i.ad_id = c.ad_id AND c.user_id = o.user_id AND o.amount > 10"""
    query = parse_query("funnel", sql, STREAMS)
    by_ad = Equality(
        Key("i", Column("i", "ad_id", BIGINT)), Key("c", Column("c", "ad_id", INT)), BIGINT, "i.ad_id = c.ad_id"
    )
    by_user = Equality(
        Key("c", Column("c", "user_id", STRING)),
        Key("o", Column("o", "user_id", STRING)),
        STRING,
        "c.user_id = o.user_id",
    )
    assert (query.name, query.sql) == ("funnel", sql)
    assert query.refs == (
        StreamRef("i", "impressions", TimeWindow(600_000_000)),
        StreamRef("c", "clicks", TimeWindow(600_000_000)),
        StreamRef("o", "orders", TimeWindow(3_600_000_000)),
    )
    assert query.equalities == (by_ad, by_user)
    assert query.classes == equality_classes([by_ad, by_user])
    assert query.conditions == ()
    (kept,) = query.filters
    assert kept.text == "o.amount > 10"
    amount = Call("cast", (Column("o", "amount", pa.decimal128(10, 2)),), pa.decimal128(12, 2))
    assert kept.expression == Call("gt", (amount, Literal(Decimal("10.00"), pa.decimal128(12, 2))), BOOLEAN)
    assert query.outputs == (
        Output("ad_id", Column("i", "ad_id", BIGINT)),
        Output("user_id", Column("i", "user_id", STRING)),
        Output("clicked_at", Column("c", "ts", TIME)),
        Output("amount", Column("o", "amount", pa.decimal128(10, 2))),
    )


def test_paper_001_query_1_runs_as_printed() -> None:
    query = parse("Select * From Temperature T, Humidity H [Range 60 sec] Where T.loc = H.loc")
    minute = TimeWindow(60_000_000)
    assert query.refs == (StreamRef("T", "Temperature", minute), StreamRef("H", "Humidity", minute))
    assert query.schema.names == ["T_ts", "T_loc", "T_value", "H_ts", "H_loc", "H_value"]
    assert query.schema.field("T_ts").type == pa.timestamp("ms", tz="Europe/Berlin")


@pytest.mark.parametrize(
    "text",
    [
        "clicks c [RANGE 1 MINUTE], orders o [RANGE 1 MINUTE] WHERE c.user_id = o.user_id",
        "clicks [RANGE 1 MINUTE] c, orders [RANGE 1 MINUTE] o WHERE c.user_id = o.user_id",
        "clicks [RANGE 1 MINUTE] AS c, orders AS o [RANGE 60 SEC] WHERE c.user_id = o.user_id",
        "clicks c, orders o [RANGE 60000 ms] WHERE (c.user_id = o.user_id)",
        "clicks c JOIN orders o [RANGE 1 MIN] ON c.user_id = o.user_id",
        "clicks c [RANGE 1 MIN] INNER JOIN orders o [RANGE 1 MIN] ON ((c.user_id = o.user_id))",
        "clicks c CROSS JOIN orders o [RANGE 1 MIN] WHERE 1 = 1 AND c.user_id = o.user_id AND TRUE;",
        "`clicks` `c` [RANGE 1 MIN], -- windows\n ORDERS o [RANGE 1 m] /* here */ WHERE c.user_id = o.user_id;",
    ],
)
def test_every_way_to_write_one_join(text: str) -> None:
    query = parse(f"{SELECT} {text}")
    minute = TimeWindow(60_000_000)
    assert query.refs == (StreamRef("c", "clicks", minute), StreamRef("o", "orders", minute))
    (edge,) = query.equalities
    assert (str(edge.left.expression), str(edge.right.expression)) == ("c.user_id", "o.user_id")
    assert edge.text == "c.user_id = o.user_id"
    assert (query.conditions, query.filters) == ((), ())
    assert query.schema.names == ["ok", "n"]


def test_bare_names_are_their_own_aliases() -> None:
    query = parse("SELECT clicks.ok FROM clicks [ROWS 3], orders [PARTITION BY USER_ID ROWS 2] WHERE ad_id = n")
    assert query.refs == (
        StreamRef("clicks", "clicks", CountWindow(3)),
        StreamRef("orders", "orders", CountWindow(2, "user_id")),
    )


def test_self_join() -> None:
    query = parse("SELECT a.ad_id FROM clicks a, clicks b [RANGE 1 s] WHERE a.ad_id = b.ad_id AND a.ts < b.ts")
    assert [ref.stream for ref in query.refs] == ["clicks", "clicks"]
    assert [condition.text for condition in query.conditions] == ["a.ts < b.ts"]


def test_nested_on_clauses_all_count() -> None:
    query = parse(
        "SELECT c.ok FROM impressions i JOIN clicks c JOIN orders o [ROWS 2] "
        "ON c.user_id = o.user_id ON i.ad_id = c.ad_id"
    )
    assert {edge.text for edge in query.equalities} == {"c.user_id = o.user_id", "i.ad_id = c.ad_id"}


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT c.*, o.n", ["c_ts", "c_ad_id", "c_user_id", "c_ok", "c_day", "c_raw", "n"]),
        ("SELECT c.user_id, o.user_id, n", ["c_user_id", "o_user_id", "n"]),
        ("SELECT c.user_id AS User, o.user_id", ["User", "user_id"]),
        ("SELECT c.user_id who", ["who"]),
        ("SELECT o.n  +\n 1, (o.n)", ["o.n + 1", "n"]),
        ("SELECT ALL o.n * 2", ["o.n * 2"]),
        ("SELECT O.N, C.OK", ["n", "ok"]),
    ],
)
def test_output_names(sql: str, names: list[str]) -> None:
    assert parse(f"{sql} {PAIR}").schema.names == names


def test_exact_names_win_over_case() -> None:
    streams = {"s": stream("s", {"k": INT, "K": BIGINT}), "t": stream("t", {"j": INT})}
    query = parse_query("q", "SELECT k AS a, K AS b FROM s, t [ROWS 1] WHERE s.k = t.j", streams)
    assert [str(output.expression) for output in query.outputs] == ["s.k", "s.K"]


@pytest.mark.parametrize(
    ("text", "kind", "expression"),
    [
        ("c.ok", "filter", "c.ok"),
        ("NOT c.ok", "filter", "not(c.ok)"),
        ("c.ad_id = 3", "filter", "eq(c.ad_id, 3)"),
        ("c.ad_id = c.ad_id", "filter", "eq(c.ad_id, c.ad_id)"),
        ("c.ad_id IS NOT NULL", "filter", "not(is_null(c.ad_id))"),
        ("lower(c.user_id) = o.user_id", "equality", "eq(lower(c.user_id), o.user_id)"),
        ("(c.ad_id) == (o.n)", "equality", "eq(cast(c.ad_id, int64), cast(o.n, int64))"),
        ("c.ad_id + 1 = o.n - c.ad_id", "condition", None),
        ("c.ad_id <=> o.n", "condition", "null_safe_eq(cast(c.ad_id, int64), cast(o.n, int64))"),
        (
            "c.ts BETWEEN o.ts AND o.ts + INTERVAL 5 MINUTES",
            "condition",
            "and(ge(c.ts, o.ts), le(c.ts, add(o.ts, 300000000)))",
        ),
        ("abs(c.ts - o.ts) <= INTERVAL '5' SECOND", "condition", "le(abs(subtract(c.ts, o.ts)), 5000000)"),
        ("CASE WHEN c.ok THEN o.n = 1 END", "condition", "if(c.ok, eq(cast(o.n, int64), 1), None)"),
        ("c.user_id NOT LIKE 'a%'", "filter", "not(like(c.user_id, 'a%'))"),
        ("c.ad_id NOT IN (1, 2)", "filter", "not(in(c.ad_id, 1, 2))"),
        ("c.ad_id BETWEEN 1 AND NULL", "filter", "and(ge(c.ad_id, 1), le(c.ad_id, None))"),
    ],
)
def test_conjuncts_are_sorted_and_keep_their_text(text: str, kind: str, expression: str | None) -> None:
    for query in (parse(f"SELECT c.ok {PAIR} AND\n{text}"), parse(f"SELECT c.ok {PAIR} AND ( {text} ) AND 1 = 1")):
        found = {
            "filter": [(item.text, item.expression) for item in query.filters],
            "condition": [(item.text, item.expression) for item in query.conditions],
            "equality": [(edge.text, edge.expression) for edge in query.equalities if edge.text != KEY],
        }
        assert {name: [item[0] for item in items] for name, items in found.items() if items} == {kind: [text]}
        assert expression is None or str(found[kind][0][1]) == expression


def test_parenthesised_or_keeps_its_text_without_the_parentheses() -> None:
    query = parse(f"SELECT c.ok {PAIR} AND (c.ok or o.n = 1) AND ((c.ad_id > 1 AND o.n < 2))")
    assert [condition.text for condition in query.conditions] == ["c.ok or o.n = 1"]
    assert [condition.text for condition in query.filters] == ["c.ad_id > 1", "o.n < 2"]


def test_equality_keys_keep_their_own_types() -> None:
    (_, edge) = parse(f"SELECT c.ok {PAIR} AND c.ad_id = o.n").equalities
    assert edge.left == Key("c", Column("c", "ad_id", INT))
    assert edge.right == Key("o", Call("cast", (Column("o", "n", pa.uint32()),), BIGINT))
    assert edge.type == BIGINT


@pytest.mark.parametrize(
    ("text", "value", "dtype"),
    [
        ("5", 5, INT),
        ("-5", -5, INT),
        ("2147483647", 2**31 - 1, INT),
        ("2147483648", 2**31, BIGINT),
        ("-2147483648", -(2**31), INT),
        ("- 9223372036854775808", -(2**63), BIGINT),
        ("9223372036854775808", Decimal(2**63), pa.decimal128(19, 0)),
        ("5L", 5, BIGINT),
        ("1.5", Decimal("1.5"), pa.decimal128(2, 1)),
        ("-0.05", Decimal("-0.05"), pa.decimal128(2, 2)),
        ("100.00", Decimal("100.00"), pa.decimal128(5, 2)),
        ("1.5BD", Decimal("1.5"), pa.decimal128(2, 1)),
        ("1e3", 1000.0, DOUBLE),
        ("1.5D", 1.5, DOUBLE),
        ("'it''s'", "it's", STRING),
        ("TRUE", True, BOOLEAN),
        ("X'1F'", b"\x1f", pa.binary()),
        ("DATE '2024-02-29'", date(2024, 2, 29), pa.date32()),
        ("CAST('2024-02-29' AS DATE)", date(2024, 2, 29), pa.date32()),
        ("TIMESTAMP '1970-01-01 00:00:01.5'", 1_500_000, TIMESTAMP),
        ("TIMESTAMP '1970-01-01T01:00:00+01:00'", 0, TIMESTAMP),
        ("TIMESTAMP_NTZ '1970-01-02'", 86_400_000_000, TIMESTAMP_NTZ),
        ("INTERVAL '5' MINUTE", 300_000_000, MICROSECOND),
        ("INTERVAL 5 MINUTES", 300_000_000, MICROSECOND),
        ("INTERVAL '5 minutes'", 300_000_000, MICROSECOND),
        ("INTERVAL '1.5' HOUR", 5_400_000_000, MICROSECOND),
        ("INTERVAL -2 DAYS", -172_800_000_000, MICROSECOND),
        ("CAST(NULL AS BIGINT)", None, BIGINT),
        ("CAST(7 AS DECIMAL(5, 2))", Decimal("7.00"), pa.decimal128(5, 2)),
    ],
)
def test_literals(text: str, value: object, dtype: pa.DataType) -> None:
    literal = selected(text)
    assert literal == Literal(value, dtype)
    assert isinstance(literal, Literal)
    assert type(literal.value) is type(value)


@pytest.mark.parametrize(
    ("text", "expected", "dtype"),
    [
        ("c.ad_id + 1", "add(c.ad_id, 1)", INT),
        ("c.ad_id - o.n", "subtract(cast(c.ad_id, int64), cast(o.n, int64))", BIGINT),
        ("o.rate * 2", "multiply(cast(o.rate, double), 2.0)", DOUBLE),
        ("c.ad_id / 2", "divide(cast(c.ad_id, double), 2.0)", DOUBLE),
        ("c.ad_id % 10", "modulo(c.ad_id, 10)", INT),
        ("mod(o.amount, 3)", "modulo(cast(o.amount, decimal128(12, 2)), Decimal('3.00'))", pa.decimal128(12, 2)),
        (
            "o.amount + c.ad_id",
            "add(cast(o.amount, decimal128(13, 2)), cast(cast(c.ad_id, decimal128(10, 0)), decimal128(13, 2)))",
            pa.decimal128(13, 2),
        ),
        ("o.amount + 1", "add(cast(o.amount, decimal128(11, 2)), Decimal('1.00'))", pa.decimal128(11, 2)),
        ("o.amount * 1.5", "multiply(o.amount, Decimal('1.5'))", pa.decimal128(13, 3)),
        ("o.amount * c.ad_id", "multiply(o.amount, cast(c.ad_id, decimal128(10, 0)))", pa.decimal128(21, 2)),
        ("-(o.amount)", "negate(o.amount)", pa.decimal128(10, 2)),
        ("ABS(c.ad_id)", "abs(c.ad_id)", INT),
        ("c.ts - o.ts", "subtract(c.ts, o.ts)", MICROSECOND),
        ("INTERVAL 1 DAY + c.ts", "add(c.ts, 86400000000)", TIMESTAMP),
        ("c.day - INTERVAL 1 DAY", "subtract(cast(c.day, timestamp[us, tz=UTC]), 86400000000)", TIMESTAMP),
        ("c.day < c.ts", "lt(cast(c.day, timestamp[us, tz=UTC]), c.ts)", BOOLEAN),
        ("c.ts >= DATE '1970-01-02'", "ge(c.ts, 86400000000)", BOOLEAN),
        ("c.ad_id = NULL", "eq(c.ad_id, None)", BOOLEAN),
        ("c.ad_id <> 1.5", "ne(cast(c.ad_id, decimal128(11, 1)), Decimal('1.5'))", BOOLEAN),
        ("o.rate != 1", "ne(cast(o.rate, double), 1.0)", BOOLEAN),
        ("c.ad_id IS DISTINCT FROM 1", "not(null_safe_eq(c.ad_id, 1))", BOOLEAN),
        ("c.ad_id IS NOT DISTINCT FROM 1", "null_safe_eq(c.ad_id, 1)", BOOLEAN),
        ("c.ok IS TRUE", "null_safe_eq(c.ok, True)", BOOLEAN),
        ("c.ok IS NOT FALSE", "not(null_safe_eq(c.ok, False))", BOOLEAN),
        ("c.ad_id NOT BETWEEN 1 AND 2", "not(and(ge(c.ad_id, 1), le(c.ad_id, 2)))", BOOLEAN),
        ("c.ad_id IN (1, 2, 3)", "in(c.ad_id, 1, 2, 3)", BOOLEAN),
        ("c.ok AND NULL OR NOT c.ok", "or(and(c.ok, None), not(c.ok))", BOOLEAN),
        ("CASE WHEN c.ok THEN 1 WHEN c.ad_id > 5 THEN 2.5 END", None, pa.decimal128(11, 1)),
        ("CASE c.ad_id WHEN 1 THEN 'a' ELSE 'b' END", "if(eq(c.ad_id, 1), 'a', 'b')", STRING),
        ("IF(c.ok, c.ad_id, NULL)", "if(c.ok, c.ad_id, None)", INT),
        ("NULLIF(c.ad_id, 0)", "if(eq(c.ad_id, 0), None, c.ad_id)", INT),
        ("COALESCE(c.ad_id, o.n, 0)", "coalesce(cast(c.ad_id, int64), cast(o.n, int64), 0)", BIGINT),
        ("NVL(c.user_id, '')", "coalesce(c.user_id, '')", STRING),
        ("IFNULL(c.user_id, '')", "coalesce(c.user_id, '')", STRING),
        ("LEAST(c.ad_id, 1)", "least(c.ad_id, 1)", INT),
        ("GREATEST(c.ts, c.day)", "greatest(c.ts, cast(c.day, timestamp[us, tz=UTC]))", TIMESTAMP),
        ("c.user_id || '-' || o.user_id", "concat(c.user_id, '-', o.user_id)", STRING),
        ("CONCAT(c.user_id, 'x')", "concat(c.user_id, 'x')", STRING),
        ("UPPER(TRIM(c.user_id))", "upper(trim(c.user_id))", STRING),
        ("LENGTH(c.user_id) + LENGTH(c.raw)", "add(length(c.user_id), length(c.raw))", INT),
        ("SUBSTRING(c.user_id, 2, 3)", "substring(c.user_id, 2, 3)", STRING),
        ("SUBSTR(c.user_id, -2)", "substring(c.user_id, -2, 2147483647)", STRING),
        ("c.user_id LIKE 'a_%'", "like(c.user_id, 'a_%')", BOOLEAN),
        ("CAST(o.amount AS DOUBLE)", "cast(o.amount, double)", DOUBLE),
        ("TRY_CAST(o.amount AS INT)", "cast(o.amount, int32)", INT),
        ("CAST(c.ad_id AS STRING)", "cast(c.ad_id, string)", STRING),
        ("CAST(c.ts AS DATE)", "cast(c.ts, date32[day])", pa.date32()),
        ("CAST(c.ad_id AS INT)", "c.ad_id", INT),
    ],
)
def test_expressions(text: str, expected: str | None, dtype: pa.DataType) -> None:
    expression = selected(text)
    assert expected is None or str(expression) == expected
    assert expression.type == dtype
    assert {call.operation for call in calls(expression)} <= set(OPERATIONS)


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ("TINYINT BYTE", pa.int8()),
        ("SMALLINT SHORT", pa.int16()),
        ("INT INTEGER", pa.int32()),
        ("BIGINT LONG", pa.int64()),
        ("FLOAT REAL", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DECIMAL DECIMAL(10) DECIMAL(10,0)", pa.decimal128(10, 0)),
        ("DECIMAL(38,38)", pa.decimal128(38, 38)),
        ("STRING VARCHAR(9) TEXT", pa.string()),
        ("BOOLEAN", pa.bool_()),
        ("DATE", pa.date32()),
        ("TIMESTAMP", TIMESTAMP),
        ("TIMESTAMP_NTZ", TIMESTAMP_NTZ),
        ("BINARY", pa.binary()),
    ],
)
def test_type_names(names: str, dtype: pa.DataType) -> None:
    assert {selected(f"CAST(NULL AS {name})") for name in names.split()} == {Literal(None, dtype)}


def test_case_takes_the_first_branch_that_holds() -> None:
    expression = selected("CASE WHEN c.ok THEN 1 WHEN c.ad_id > 5 THEN 2 END")
    assert str(expression) == "if(c.ok, 1, if(gt(c.ad_id, 5), 2, None))"
    assert {call.type for call in calls(expression) if call.operation == "if"} == {INT}


def test_stored_types_are_cast_to_sql_types_only_when_computed_with() -> None:
    query = parse(
        "SELECT T.ts, T.ts + INTERVAL 1 SECOND AS later FROM Temperature T, Humidity H [ROWS 1] WHERE T.loc = H.loc"
    )
    stored = pa.timestamp("ms", tz="Europe/Berlin")
    plain, later = (output.expression for output in query.outputs)
    assert plain == Column("T", "ts", stored)
    assert later == Call("add", (Call("cast", (plain,), TIMESTAMP), Literal(1_000_000, MICROSECOND)), TIMESTAMP)


def test_long_lists_stay_shallow() -> None:
    many = ", ".join(map(str, range(3000)))
    (kept,) = parse(f"SELECT c.ok {PAIR} AND c.ad_id IN ({many})").filters
    assert depth(kept.expression) < 20


def test_wall_clock_streams_join_each_other() -> None:
    query = parse("SELECT a.k FROM wall a, wall b [RANGE 1 s] WHERE a.k = b.k AND a.ts < TIMESTAMP_NTZ '2024-01-01'")
    assert [condition.text for condition in query.filters] == ["a.ts < TIMESTAMP_NTZ '2024-01-01'"]


def calls(expression: Expression) -> list[Call]:
    if not isinstance(expression, Call):
        return []
    return [expression, *(call for argument in expression.arguments for call in calls(argument))]


def depth(expression: Expression) -> int:
    return 1 + max(map(depth, expression.arguments)) if isinstance(expression, Call) else 1
