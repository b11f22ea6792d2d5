"""A call with a bad argument is refused with the reason and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from two_streams import PAIRS, SCHEMA, SECOND, TS, assert_undisturbed, running_session

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, PlanError, QueryError, SchemaError


class Money(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.int64(), "dovetail.tests.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Money:
        return cls()


def _declare(**options: Any) -> Callable[[dt.LocalSession], object]:
    arguments: dict[str, Any] = {"name": "c", "schema": SCHEMA, "event_time": "ts", **options}
    return lambda session: session.stream(**arguments)


BAD_CALLS: list[Any] = [
    # streams
    pytest.param(
        _declare(name="a"),
        ConfigError,
        "'a' is already declared(.|\n)*make the session anew in this cell",
        id="stream twice",
    ),
    pytest.param(_declare(event_time="t"), SchemaError, "event_time='t' is not a column", id="no such time"),
    pytest.param(
        _declare(event_time="k"), SchemaError, "event time 'k' has type int64; it must be a timestamp", id="int time"
    ),
    pytest.param(_declare(event_time=None), DovetailError, "event_time", id="event time None"),
    pytest.param(_declare(schema=[("ts", TS)]), ConfigError, "got a list as schema", id="schema as list"),
    pytest.param(
        _declare(schema="ts STAMP"), SchemaError, "stream 'c': column 'ts' has type 'STAMP'", id="columns as text"
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("x", pa.int8()), ("x", pa.int8())])),
        SchemaError,
        "declares a column twice: 'x'",
        id="column declared twice",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", pa.date32())])), SchemaError, "has type date32", id="date as event time"
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", pa.dense_union([pa.field("x", pa.int8())]))])),
        SchemaError,
        "column 'u' has type dense_union.*windows cannot hold unions",
        id="union",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", pa.list_(pa.sparse_union([pa.field("x", pa.int8())])))])),
        SchemaError,
        "column 'u' has type list.*windows cannot hold unions",
        id="list of unions",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", Money())])),
        SchemaError,
        "column 'u' has type extension<.*windows cannot hold(.|\n)*declare it as int64",
        id="extension type in Python",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", pa.fixed_shape_tensor(pa.int8(), [2, 2], permutation=[0, 1]))])),
        SchemaError,
        "an extension that windows cannot hold(.|\n)*declare it as fixed_size_list",
        id="tensor",
    ),
    pytest.param(_declare(rate=0), ConfigError, "rate is 0; allowed are numbers above zero", id="rate 0"),
    pytest.param(_declare(rate=-1.5), ConfigError, "rate is -1.5", id="rate below 0"),
    pytest.param(_declare(rate=float("nan")), ConfigError, "rate is nan", id="rate NaN"),
    pytest.param(_declare(rate="fast"), ConfigError, "rate", id="rate as text"),
    pytest.param(_declare(lateness="-1 s"), ConfigError, "'-1 s' is negative", id="negative lateness"),
    pytest.param(_declare(lateness=-1), ConfigError, "negative", id="negative number"),
    pytest.param(_declare(lateness="soon"), ConfigError, "'soon' is not a duration", id="lateness not a duration"),
    pytest.param(_declare(lateness="5"), ConfigError, "'5' has no unit", id="lateness without unit"),
    pytest.param(_declare(lateness="5 parsecs"), ConfigError, "unknown unit 'parsecs'", id="unknown unit"),
    pytest.param(_declare(lateness=None), ConfigError, "duration None is not text", id="lateness None"),
    pytest.param(_declare(lateness=float("inf")), ConfigError, "not a finite number", id="lateness infinite"),
    pytest.param(_declare(lateness=timedelta(days=-1)), ConfigError, "negative", id="negative timedelta"),
    pytest.param(_declare(lateness=1e-9), ConfigError, "not a whole number of microseconds", id="lateness too fine"),
    pytest.param(_declare(lateness="99999999 days"), ConfigError, "too long", id="lateness too long"),
    pytest.param(_declare(max_ahead="x"), ConfigError, "'x' is not a duration", id="max_ahead"),
    pytest.param(_declare(idle_after=[]), ConfigError, r"duration \[\] is not text", id="idle_after"),
    pytest.param(_declare(progress_by="z"), SchemaError, "progress_by='z' is not a column", id="progress_by"),
    # queries
    pytest.param(
        lambda s: s.query("pairs", PAIRS), ConfigError, "query 'pairs' is already registered", id="query twice"
    ),
    pytest.param(
        lambda s: s.drop_query("no"), ConfigError, "there is no query 'no'; registered: 'pairs', 'counted'", id="drop"
    ),
    pytest.param(lambda s: s.query("q", PAIRS.replace("a.k =", "a.z =")), QueryError, "no column 'z'", id="bad column"),
    pytest.param(lambda s: s.query("q", ""), QueryError, "query", id="empty text"),
    pytest.param(lambda s: s.query("q", None), QueryError, "a query is text, not NoneType", id="query None"),
    pytest.param(lambda s: s.query(None, PAIRS), DovetailError, "name", id="query name None"),
    pytest.param(
        lambda s: s.query("q", PAIRS, {"z": ("a", "b")}),
        PlanError,
        "probe orders name 'z'; its aliases are 'a', 'b'",
        id="alias",
    ),
    pytest.param(
        lambda s: s.query("q", PAIRS, {"a": ()}), PlanError, "the probe order of 'a' is none; it must name", id="short"
    ),
    pytest.param(lambda s: s.query("q", PAIRS, {"a": ("b", "b")}), PlanError, "is 'b', 'b'", id="twice in an order"),
    pytest.param(lambda s: s.query("q", PAIRS, {"a": ("b", "c")}), PlanError, "is 'b', 'c'", id="foreign alias"),
    pytest.param(
        lambda s: s.query("q", PAIRS, {"a": ("b", "a")}),
        PlanError,
        "only Config.join='nested-loop'.",
        id="driver further in",
    ),
    pytest.param(lambda s: s.query("q", PAIRS, ["a"]), DovetailError, "order", id="orders as list"),
    pytest.param(lambda s: s.query("q", PAIRS, {"a": 5}), DovetailError, "order", id="order as number"),
    # hints
    pytest.param(lambda s: s.selectivity("a.k = b.k", 0), ConfigError, "must be above 0 and at most 1", id="hint 0"),
    pytest.param(lambda s: s.selectivity("a.k = b.k", 1.5), ConfigError, "'a.k = b.k', 1.5", id="hint above 1"),
    pytest.param(lambda s: s.selectivity("a.k = b.k", float("nan")), ConfigError, "at most 1", id="hint NaN"),
    pytest.param(
        lambda s: s.selectivity("k = k", 0.5), ConfigError, "it must name two aliases", id="hint without aliases"
    ),
    pytest.param(lambda s: s.selectivity("a.k = a.p", 0.5), ConfigError, "two aliases", id="hint of one alias"),
    pytest.param(lambda s: s.selectivity("a.k = b.k", "x"), DovetailError, ".", id="hint as text"),
    # time
    pytest.param(
        lambda s: s.advance({"z": 0}), ConfigError, "advance names 'z'; declared streams: 'a', 'b'", id="advance"
    ),
    pytest.param(lambda s: s.advance({"a": 9 * SECOND, "z": 0}), ConfigError, "'z'", id="advance half known"),
    pytest.param(lambda s: s.advance({"a": "2024-01-01"}), DovetailError, ".", id="advance to text"),
    pytest.param(lambda s: s.advance({"a": 1 << 70}), DovetailError, ".", id="advance too far"),
    pytest.param(lambda s: s.advance(5), DovetailError, ".", id="advance by number"),
    # forms
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_call_changes_nothing(
    call: Callable[[dt.LocalSession], object], error: type[Exception], message: str
) -> None:
    session = running_session()
    with pytest.raises(error, match=message):
        call(session)
    assert_undisturbed(session)


def test_a_query_refused_by_the_engine_leaves_no_trace() -> None:
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.month_day_nano_interval())])
    session = running_session()
    session.stream("c", columns, "ts")
    sql = "SELECT c.p FROM a [RANGE 10 s], c [RANGE 10 s] WHERE a.k = c.k"
    try:
        session.query("q", sql)
    except (DovetailError, TypeError):
        session.explain()
        session.query("q", PAIRS)
    assert "q" in session.push({})


def test_rate_and_lateness_forms() -> None:
    for lateness in ("2 seconds", 2, 2.0, timedelta(seconds=2)):
        session = dt.LocalSession()
        session.stream("a", SCHEMA, "ts", lateness, rate=3)
        assert "lateness 2 s, rate 3/s" in str(session.explain())
