"""Mistakes of users: each gets one warning or error that says what to write, and correct use gets none."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, QueryError, SchemaError
from dovetail.schema import StreamSchema
from dovetail.session.time_units import TimeUnits

TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string())])
WALL_CLOCK = SCHEMA.set(0, pa.field("ts", pa.timestamp("us")))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1, 13)  # noqa: DTZ001 - on purpose
ROWS = pa.table([[NOON], [1], ["x"]], schema=SCHEMA)
BATCH = {"a": ROWS, "b": ROWS}
SQL = "SELECT x.k, y.s FROM a x [RANGE 1 HOUR], b y [RANGE 1 HOUR] WHERE x.k = y.k"


def declared(schema: pa.Schema = SCHEMA, **options: Any) -> dt.LocalSession:
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, schema, event_time="ts", **options)
    return session


def ready(**options: Any) -> dt.LocalSession:
    session = declared(**options)
    session.query("q", SQL)
    return session


def running(**options: Any) -> dt.LocalSession:
    session = ready(**options)
    session.push(BATCH)
    return session


def at(time: datetime) -> pa.Table:
    return ROWS.set_column(0, "ts", pa.array([time], TS))


def numbered(micros: int) -> pa.Table:
    return ROWS.set_column(0, "ts", pa.array([micros], TS))


# -- warnings -------------------------------------------------------------------------------------------------------------------


def selectivity_of(condition: str, *, after: bool = False) -> None:
    session = ready() if after else declared()
    session.selectivity(condition, 0.1)
    if not after:
        session.query("q", SQL)
    session.push(BATCH)


def selectivity_of_a_running_query() -> None:
    session = running()
    session.selectivity("x.k = y.k", 0.1)
    session.push(BATCH)
    session.push(BATCH)


def selectivity_before_a_late_query() -> None:
    session = running()
    session.selectivity("u.k = v.k", 0.1)
    session.add_query("late", SQL.replace("x", "u").replace("y", "v"))
    session.push(BATCH)


def late_query(**options: Any) -> None:
    session = running()
    session.query("late", SQL, **options)
    session.query("later", SQL, **options)


def backfill(sql: str, *, with_c: bool = False) -> None:
    session = ready()
    if with_c:
        session.stream("c", SCHEMA, event_time="ts")
    session.push({**BATCH, **({"c": ROWS} if with_c else {})})
    session.query("late", sql, backfill=True)


def after_the_future() -> None:
    session = running()
    session.push({"a": at(datetime(2126, 1, 1, tzinfo=UTC))})
    session.push({"a": ROWS})
    session.push({"a": ROWS})


def all_refused() -> None:
    session = declared()
    with pytest.raises(QueryError):
        session.query("q", "SELECT x.k FROM a x")
    session.push(BATCH)


def advance_twice(time: datetime, schema: pa.Schema = SCHEMA) -> None:
    session = declared(schema)
    session.query("q", SQL)
    session.advance({"a": time})
    session.advance({"a": time})


def push_two(first: pa.Table, second: pa.Table) -> None:
    session = ready()
    session.push({"a": first})
    session.push({"b": second})


WARNED: dict[str, tuple[Callable[[], object], str, str]] = {
    "selectivity that no query uses": (
        lambda: selectivity_of("u.k = v.k"),
        "the selectivity 0.1 between 'u' and 'v' has no effect: no query joins them",
        "name aliases of a query, or streams; aliases: 'x', 'y'",
    ),
    "selectivity after its query": (
        lambda: selectivity_of("x.k = y.k", after=True),
        "the selectivity 0.1 between 'x' and 'y' has no effect: it was stated after 'q', which it is for",
        "call selectivity() before query()",
    ),
    "selectivity while its query runs": (
        selectivity_of_a_running_query,
        "the selectivity 0.1 between 'x' and 'y' has no effect: it was stated after 'q', which it is for",
        "call selectivity() before query()",
    ),
    "query after data": (
        late_query,
        "query 'late' was registered after tuples had been pushed: it sees nothing of them",
        "add_query(...) adds a query on purpose; backfill=True joins new tuples also with those in the windows",
    ),
    "backfill without the column": (
        lambda: backfill("SELECT x.s, y.s AS t FROM a x [RANGE 1 HOUR], b y [RANGE 1 HOUR] WHERE x.k = y.k"),
        "query 'late': backfill=True shows less than you may expect, because windows of 'a' did not keep 's'",
        "register it, or a query that selects these columns, before the first batch; the call returns how far backfill reaches",
    ),
    "backfill of another stream": (
        lambda: backfill("SELECT x.k FROM a x [RANGE 1 HOUR], c y [RANGE 1 HOUR] WHERE x.k = y.k", with_c=True),
        "because no query read stream 'c' before",
        "before the first batch; the call returns how far backfill reaches",
    ),
    "epoch milliseconds": (
        lambda: push_two(numbered(1_767_268_800_000), ROWS),
        "stream 'a' is at 1970-01-21 and stream 'b' at 2026-01-01: milliseconds were probably read as microseconds",
        "table['ts'].cast(pa.int64()).cast(pa.timestamp('ms', tz='UTC'))",
    ),
    "epoch seconds": (
        lambda: push_two(ROWS, numbered(1_767_268_800)),
        "stream 'b' is at 1970-01-01 and stream 'a' at 2026-01-01: seconds were probably read as microseconds",
        "cast(pa.timestamp('s', tz='UTC'))",
    ),
    "epoch nanoseconds": (
        lambda: push_two(numbered(1_767_268_800_000_000_000), ROWS),
        "stream 'a' is at the year 58009 and stream 'b' at 2026-01-01",
        "cast(pa.timestamp('ns', tz='UTC'))",
    ),
    "naive time of advance": (
        lambda: advance_twice(NAIVE),
        "advance: the time of 'a' is 2026-01-01 13:00:00, without a time zone: it is read as UTC",
        "write datetime.datetime(2026, 1, 1, 13, 0, tzinfo=datetime.UTC)",
    ),
    "zone for a wall clock": (
        lambda: advance_twice(datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))), WALL_CLOCK),
        "with a time zone, and its event times have none: it is read as 2026-01-01 12:00:00",
        "write datetime.datetime(2026, 1, 1, 13, 0)",
    ),
    "naive clock": (
        lambda: ready(max_ahead="1 h").push(BATCH, now=NAIVE),
        "push(now=...) is 2026-01-01 13:00:00, without a time zone: it is read as UTC",
        "write datetime.now(UTC)",
    ),
    "tuple from 2126": (
        after_the_future,
        "stream 'a': 1 tuple came too late and was dropped",
        "an earlier tuple was 36523 days 12 h ahead of it: drop such tuples with stream(..., max_ahead='1 hour')",
    ),
    "push before any query": (lambda: declared().push(BATCH), "before any query was registered", "call query() first"),
    "push after a refused query": (
        all_refused,
        "push got tuples after every query was refused: they are counted and dropped",
        "correct the query 'q'; its error says how",
    ),
}


@pytest.mark.parametrize("mistake", WARNED)
def test_warned_once(mistake: str) -> None:
    call, message, hint = WARNED[mistake]
    with pytest.warns(DovetailWarning, match=re.escape(message)) as caught:
        call()
    (text,) = [str(warning.message) for warning in caught]
    assert hint in text.partition("\nHint: ")[2]


@pytest.mark.parametrize("batch", [{"a": "in/a.csv"}, {"a": ROWS, "z": ROWS}, {"a": ROWS.select(["ts"])}], ids=str)
def test_a_refused_push_before_any_query_does_not_warn_of_dropped_tuples(batch: dict[str, Any]) -> None:
    session = declared()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DovetailWarning)
        with pytest.raises(DovetailError):
            session.push(batch)
    with pytest.warns(DovetailWarning, match="before any query was registered"):
        session.push(BATCH)


def max_ahead_drops_the_future() -> None:
    session = declared(max_ahead="1 hour")
    session.query("q", SQL)
    session.push({"a": at(datetime(2126, 1, 1, tzinfo=UTC)), "b": ROWS}, now=NOON)
    assert session.push(BATCH, now=NOON)["q"].num_rows == 2


def selectivity_by_stream() -> None:
    selectivity_of("a.k = b.k")


def selectivity_of_one_of_two() -> None:
    session = declared()
    session.selectivity("x.k = y.k", 0.1)
    session.query("q", SQL)
    session.query("r", SQL.replace("x", "u").replace("y", "v"))
    session.push(BATCH)


def query_before_tuples() -> None:
    session = ready()
    session.push({"a": ROWS.slice(0, 0)})
    session.query("late", SQL)


def other_decades() -> None:
    push_two(at(datetime(1985, 1, 1, tzinfo=UTC)), ROWS)


def small_numbers() -> None:
    push_two(numbered(5), numbered(5_000_000))


def one_stream_in_1970() -> None:
    push_two(numbered(0), ROWS)


MEANT: list[Callable[[], object]] = [
    max_ahead_drops_the_future,
    selectivity_by_stream,
    selectivity_of_one_of_two,
    query_before_tuples,
    selectivity_before_a_late_query,
    lambda: declared().selectivity("X.`K` = y.k", 0.1),
    lambda: running().add_query("late", SQL),
    lambda: backfill(SQL),
    lambda: backfill("SELECT x.ts, x.k, y.s FROM a x [RANGE 1 HOUR], b y [RANGE 1 HOUR] WHERE x.k = y.k"),
    lambda: late_query(backfill=True),
    other_decades,
    small_numbers,
    one_stream_in_1970,
    lambda: advance_twice(NOON),
    lambda: advance_twice(NAIVE, WALL_CLOCK),
    lambda: ready(max_ahead="1 h").push(BATCH, now=NOON),
]


@pytest.mark.parametrize("call", MEANT)
def test_correct_use_gives_no_warning(call: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DovetailWarning)
        call()


def test_where_warnings_are_errors_a_push_with_another_time_unit_passes_when_repeated() -> None:
    session, schema = dt.LocalSession(), pa.schema({"ts": pa.timestamp("us", tz="UTC"), "k": pa.int64()})
    for name in "ab":
        session.stream(name, schema, event_time="ts")
    session.query("q", "SELECT a.k FROM a [RANGE 9 s], b [RANGE 9 s] WHERE a.k = b.k")
    now = 1_767_268_800_000_000
    session.push({"a": pa.table([[now], [1]], schema=schema)})
    batch = {"b": pa.table([[now // 1000], [1]], schema=schema)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DovetailWarning, match="milliseconds were probably read as microseconds"):
            session.push(batch)
        session.push(batch)
    assert session.metrics()["streams"]["b"]["arrivals"] == 1


def test_time_units_by_the_first_tuples_only() -> None:
    units, micros = TimeUnits(), 1_767_268_800_000_000
    a, b, c = (StreamSchema(name, SCHEMA, "ts") for name in "abc")
    assert not [*units.new_warnings(a, micros), *units.new_warnings(b, micros + 10**12)]
    assert len([*units.new_warnings(c, micros // 1000), *units.new_warnings(c, micros // 1000)]) == 1
    assert not [*units.new_warnings(a, micros // 1000)]


# -- errors ---------------------------------------------------------------------------------------------------------------------

LOCAL = "LocalSession runs in this process: push() returns the results; on Spark use dt.Session(spark)"
REFUSED: list[tuple[Callable[[], object], type[Exception], str, str]] = [
    (
        lambda: ready().push({"c": ROWS}),
        ConfigError,
        "push got tuples for 'c'",
        "declare a stream before pushing to it",
    ),
    (
        lambda: declared().selectivity("a.user = b.k", 0.1),
        QueryError,
        "stream 'a' has no column 'user'; columns: 'ts', 'k', 's'\n  line 1: a.user = b.k\n          ^^^^^^",
        "write one of the columns of 'a'",
    ),
    (
        lambda: declared().selectivity("x.kk = y.k", 0.1),
        QueryError,
        "no stream has a column 'kk'; columns: 'ts', 'k', 's'\n  line 1: x.kk = y.k\n          ^^^^",
        "did you mean 'k'?",
    ),
    (
        lambda: dt.LocalSession().selectivity("x.k = y.k", 0.1),
        QueryError,
        "no stream is declared",
        "declare streams first: session.stream(name, ...)",
    ),
    (lambda: ready().push(ROWS), ConfigError, "push got a Table", "write push({'a': table})"),
    (lambda: ready().push(a=ROWS), ConfigError, "push(a=...): there is no such argument", "push({'a': table})"),  # type: ignore[call-arg]
    (lambda: ready().push(tables=BATCH), ConfigError, "push(tables=...)", "write batch=..."),  # type: ignore[call-arg]
    (lambda: ready().advance({"A": NOON}), ConfigError, "advance names 'A'", "did you mean 'a'?"),
    (lambda: ready().advance({"a": "noon"}), ConfigError, "is 'noon'", "write datetime(2026, 1, 31"),  # type: ignore[dict-item]
    (lambda: ready().push(BATCH, now=5), ConfigError, "push(now=...) is 5", "write datetime.now(UTC)"),  # type: ignore[arg-type]
    (lambda: declared(watermark="5 s"), ConfigError, "LocalSession.stream(watermark=...)", "write lateness=..."),
    (lambda: declared(latenes="5 s"), ConfigError, "LocalSession.stream(latenes=...)", "did you mean 'lateness'?"),
    (
        lambda: declared(window="5 s"),
        ConfigError,
        "LocalSession.stream(window=...)",
        "FROM stream alias [RANGE 1 HOUR]",
    ),
    (lambda: dt.LocalSession(buget=None), ConfigError, "LocalSession(buget=...)", "did you mean 'budget'?"),  # type: ignore[call-arg]
    (lambda: dt.LocalSession(dt.Config()), ConfigError, "is a Config; expected", "write config=..."),  # type: ignore[arg-type]
    (
        lambda: dt.LocalSession().stream("c", SCHEMA, event_time="tss"),
        SchemaError,
        "stream 'c': event_time='tss' is not a column; columns: 'ts', 'k', 's'",
        "did you mean 'ts'?",
    ),
    (
        lambda: dt.LocalSession().stream("c", SCHEMA, event_time="created"),
        SchemaError,
        "event_time='created' is not a column",
        "timestamp columns: 'ts'",
    ),
    (
        lambda: dt.LocalSession().stream("c", SCHEMA, event_time="ts", progress_by="partition"),
        SchemaError,
        "progress_by='partition' is not a column",
        "name one of its columns",
    ),
    (lambda: dt.LocalSession().start, AttributeError, "LocalSession has no attribute 'start'", LOCAL),
    (lambda: dt.LocalSession().dataframe, AttributeError, "has no attribute 'dataframe'", LOCAL),
    (lambda: dt.LocalSession().stop, AttributeError, "has no attribute 'stop'", "a LocalSession needs no end"),
    (lambda: dt.LocalSession().sql, AttributeError, "has no attribute 'sql'", "query(name, sql) registers a query"),
    (lambda: dt.LocalSession().send, AttributeError, "has no attribute 'send'", "push({stream: table}) joins a batch"),
    (lambda: dt.LocalSession().metric, AttributeError, "has no attribute 'metric'", "did you mean 'metrics'?"),
    (lambda: dt.Localsession, AttributeError, "has no attribute 'Localsession'", "did you mean 'LocalSession'?"),
]


@pytest.mark.parametrize(("call", "kind", "message", "hint"), REFUSED)
def test_refused(call: Callable[[], object], kind: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert hint in str(error.value).partition("\nHint: ")[2]
    assert isinstance(error.value, DovetailError | AttributeError)


def test_attributes_that_a_session_has_not_are_absent() -> None:
    assert not hasattr(dt.LocalSession(), "start")
    assert not hasattr(dt.LocalSession(), "__nothing__")
