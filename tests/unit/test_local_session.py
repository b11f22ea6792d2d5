"""LocalSession: what it refuses, that a refusal changes nothing, what it reports, and how it shows its plans."""

from __future__ import annotations

import json
import re
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import copysign
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import (
    ConfigError,
    DovetailError,
    DovetailWarning,
    PlanError,
    QueryError,
    SchemaError,
    StateError,
)
from dovetail.testing import assert_same_rows

PLANS = Path(__file__).resolve().parents[1] / "plans"
TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.string())])
PAIRS = "SELECT a.k, a.p AS left_p, b.p AS right_p FROM a [RANGE 10 s], b [RANGE 10 s] WHERE a.k = b.k"
COUNTED = "SELECT a.k, a.p AS left_p, b.p AS right_p FROM a [ROWS 2], b [RANGE 10 s] WHERE a.k = b.k"
SECOND = 1_000_000
Rows = Sequence[tuple[Any, ...]]
Batch = Mapping[str, Any]


def table(*rows: tuple[float, int | None, str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows of (seconds, key, payload)."""
    micros = [(round(row[0] * SECOND), *row[1:]) for row in rows]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in micros], schema)


def empty_session(config: dt.Config | None = None) -> dt.LocalSession:
    session = dt.LocalSession(config=config)
    for name in ("a", "b"):
        session.stream(name, SCHEMA, event_time="ts", lateness="1 second")
    return session


def running(config: dt.Config | None = None) -> dt.LocalSession:
    """A session with a time and a count window, and tuples in both."""
    session = empty_session(config)
    session.query("pairs", PAIRS)
    session.query("counted", COUNTED)
    session.push({"a": table((1, 1, "a1"), (2, 2, "a2")), "b": table((1, 1, "b1"), (2, None, "b2"))})
    return session


def go_on(session: dt.LocalSession) -> list[dict[str, pa.Table]]:
    return [
        session.push({"a": table((3, 1, "a3"), (3, 2, None)), "b": table((3.5, 2, "b3"))}),
        session.push({"b": table((4, 1, "b4"))}),
        session.push({"a": table((30, 1, "a5")), "b": table((31, 1, "b5"))}),
    ]


def same_results(left: Sequence[Mapping[str, pa.Table]], right: Sequence[Mapping[str, pa.Table]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert set(one) == set(other)
        for name in one:
            assert_same_rows(one[name], other[name], name)


def held(session: dt.LocalSession, stream: str) -> int:
    count = session.metrics()["streams"][stream]["state_tuples"]
    assert isinstance(count, int)
    return count


def timeless(description: Any) -> Any:
    """Without times, which differ between any two sessions."""
    told = json.dumps(description)
    return json.loads(
        told, object_hook=lambda entry: {k: v for k, v in entry.items() if k not in ("ms", "us", "timed")}
    )


def counters(session: dt.LocalSession) -> Any:
    return timeless(session.metrics())


def undisturbed(session: dt.LocalSession) -> None:
    """A session to which something bad was done must go on like one to which it was not."""
    fresh = running()
    assert counters(session) == counters(fresh)
    assert timeless(session.explain("dict")) == timeless(fresh.explain("dict"))
    assert session.snapshot() == fresh.snapshot()
    same_results(go_on(session), go_on(fresh))
    assert counters(session) == counters(fresh)


# -- bad batches ------------------------------------------------------------------------------------------------------------------

GOOD = table((3, 1, "x"))
KEYS = pa.array([1], pa.int64())
TIMES = pa.array([3 * SECOND], TS)
TEXT = pa.array(["x"])


def made(ts: pa.Array = TIMES, k: pa.Array = KEYS, p: pa.Array = TEXT, **more: pa.Array) -> pa.Table:
    return pa.table({"ts": ts, "k": k, "p": p, **more})


BAD_BATCHES: list[Any] = [
    pytest.param({"a": GOOD.drop_columns("k")}, SchemaError, "stream 'a': missing 'k'", id="missing column"),
    pytest.param({"a": made(z=KEYS)}, SchemaError, "stream 'a': not declared 'z'", id="extra column"),
    pytest.param(
        {"a": GOOD.drop_columns("k").append_column("z", KEYS)}, SchemaError, "missing 'k'; not declared 'z'", id="both"
    ),
    pytest.param(
        {"a": pa.Table.from_arrays([TIMES, KEYS, KEYS, TEXT], ["ts", "k", "k", "p"])},
        SchemaError,
        "a column stands twice in 'ts', 'k', 'k', 'p'",
        id="duplicate column",
    ),
    pytest.param(
        {"a": made(k=KEYS.cast(pa.int32()))}, SchemaError, "'k' has type int32; declared int64", id="narrow int"
    ),
    pytest.param({"a": made(k=KEYS.cast(pa.float64()))}, SchemaError, "'k' has type double", id="double for int"),
    pytest.param({"a": made(k=TEXT)}, SchemaError, "'k' has type string", id="text for int"),
    pytest.param({"a": made(p=KEYS)}, SchemaError, "'p' has type int64; declared string", id="int for text"),
    pytest.param({"a": made(p=pa.array([b"x"]))}, SchemaError, "'p' has type binary", id="binary for text"),
    pytest.param(
        {"a": made(p=pa.array([b"\xff"], pa.binary_view()))},
        SchemaError,
        "has type binary_view; declared string",
        id="binary view for text",
    ),
    pytest.param(
        {"a": made(ts=TIMES.cast(pa.timestamp("us")))}, SchemaError, "'ts' has type timestamp", id="no time zone"
    ),
    pytest.param({"a": made(ts=TIMES.cast(pa.int64()))}, SchemaError, "'ts' has type int64", id="time as number"),
    pytest.param({"a": made(k=pa.array(["12"], pa.string_view()))}, SchemaError, "'k' has type", id="digits in a view"),
    pytest.param(
        {"a": made(k=pa.array(["12"]).dictionary_encode())}, SchemaError, "'k' has type", id="digits in a dictionary"
    ),
    pytest.param(
        {"a": made(k=pa.array([1.0]).dictionary_encode())}, SchemaError, "'k' has type", id="doubles in a dictionary"
    ),
    pytest.param({"a": GOOD.to_pylist()}, SchemaError, "stream 'a': got list; expected a pyarrow.Table", id="list"),
    pytest.param({"a": None}, SchemaError, "got NoneType", id="None"),
    pytest.param({"c": GOOD}, ConfigError, "push got tuples for 'c'; declared streams: 'a', 'b'", id="unknown stream"),
    pytest.param({1: GOOD}, ConfigError, "push got tuples for 1", id="a number as stream"),
    pytest.param([GOOD], ConfigError, r"push got a list; expected \{stream name: table\}", id="not a mapping"),
    pytest.param(GOOD, ConfigError, "push got a Table", id="a bare table"),
]


@pytest.mark.parametrize(("batch", "error", "message"), BAD_BATCHES)
@pytest.mark.parametrize("with_good", ["alone", "after a good table"])
def test_bad_batch_changes_nothing(batch: Any, error: type[Exception], message: str, with_good: str) -> None:
    session = running()
    if with_good != "alone" and isinstance(batch, dict):
        batch = {"b": GOOD, **batch}
    with pytest.raises(error, match=message):
        session.push(batch)
    undisturbed(session)


@pytest.mark.parametrize("window", ["RANGE 10 s", "ROWS 5"])
@pytest.mark.parametrize(
    ("dtype", "extreme"),
    [
        pytest.param(pa.date32(), 2**31 - 1),
        pytest.param(pa.timestamp("s", "UTC"), 2**62),
        pytest.param(pa.timestamp("ns", "UTC"), -(2**63) + 1),
        pytest.param(pa.timestamp("ms", "UTC"), 5, id="harmless"),
    ],
)
def test_extreme_values_do_not_stop_the_stream(dtype: pa.DataType, extreme: int, window: str) -> None:
    # b.ts = a.v compares in timestamp[us]; an extreme v equals nothing, and all else goes on.
    columns = pa.schema([("ts", TS), ("v", dtype)])
    session = dt.LocalSession()
    session.stream("a", columns, "ts")
    session.stream("b", SCHEMA, "ts")
    session.query("q", "SELECT b.p FROM a [ROWS 5], b [RANGE 10 s] WHERE a.v = b.ts".replace("ROWS 5", window))

    def values(ts: int, *numbers: int) -> pa.Table:
        storage = pa.array(numbers, pa.int32() if dtype == pa.date32() else pa.int64())
        return pa.table({"ts": pa.array([ts] * len(numbers), TS), "v": storage.cast(dtype)})

    found = []
    for batch in (
        {"a": values(0, 0), "b": table((0, 1, "hit"))},
        {"a": values(1, extreme, extreme)},
        {"a": values(2, 0), "b": table((2, 1, "miss"))},
        {"a": values(3, 7_000), "b": table((3, 1, "miss"))},
    ):
        found += session.push(batch)["q"].column("p").to_pylist()
    assert found == ["hit", "hit"]  # the first and the third tuple of a


# -- good but unusual batches -----------------------------------------------------------------------------------------------------


def _chunked(whole: pa.Table) -> pa.Table:
    return pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)])


def _sliced(whole: pa.Table) -> pa.Table:
    around = pa.concat_tables(
        [table((0, 9, "before"), (0, None, None)), whole, table((99, 9, "after"))]
    ).combine_chunks()
    return around.slice(2, whole.num_rows)


def _encoded(column: str, dtype: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def encode(whole: pa.Table) -> pa.Table:
        values = whole.column(column)
        coded = values.dictionary_encode() if pa.types.is_dictionary(dtype) else values.cast(dtype)
        return whole.set_column(whole.column_names.index(column), column, coded)

    return encode


def _run_ends(whole: pa.Table) -> pa.Table:
    values = whole.column("k").combine_chunks()
    ends = pa.array(range(1, len(values) + 1), pa.int32())
    return whole.set_column(1, "k", pa.RunEndEncodedArray.from_arrays(ends, values))


SHAPES: dict[str, Callable[[pa.Table], Any]] = {
    "as it is": lambda whole: whole,
    "record batch": lambda whole: whole.combine_chunks().to_batches()[0],
    "sliced record batch": lambda whole: _sliced(whole).to_batches()[0],
    "chunks, one empty": _chunked,
    "slice of a larger table": _sliced,
    "chunks of a slice": lambda whole: _chunked(_sliced(whole)),
    "columns in another order": lambda whole: whole.select(["p", "ts", "k"]),
    "text as dictionary": _encoded("p", pa.dictionary(pa.int32(), pa.string())),
    "sliced dictionary": lambda whole: _encoded("p", pa.dictionary(pa.int32(), pa.string()))(_sliced(whole)),
    "keys as dictionary": _encoded("k", pa.dictionary(pa.int32(), pa.int64())),
    "times as dictionary": _encoded("ts", pa.dictionary(pa.int32(), TS)),
    "text as view": _encoded("p", pa.string_view()),
    "sliced view": lambda whole: _encoded("p", pa.string_view())(_sliced(whole)),
    "text as large text": _encoded("p", pa.large_string()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_of_the_input_does_not_matter(shape: str) -> None:
    rows = ((3, 1, "a3"), (4, 2, None), (5, None, "a5"), (6, 1, ""), (6, 1, "a7 is longer than the others"))
    whole = table(*rows)
    reshape = SHAPES[shape]
    assert pa.table({"x": [1]}).num_rows == 1
    session, fresh = running(), running()
    batch = {"a": whole, "b": table((5, 1, "b5"), (6, 2, "b6"))}
    reshaped = session.push({name: reshape(content) for name, content in batch.items()})
    same_results([reshaped, *go_on(session)], [fresh.push(batch), *go_on(fresh)])
    assert reshaped["pairs"].num_rows > 3


def test_run_ends_are_decoded() -> None:
    rows = (3, 1, "a3"), (3, 2, None)
    plain, coded = running(), running()
    same_results([coded.push({"a": _run_ends(table(*rows))})], [plain.push({"a": table(*rows)})])


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"a": SCHEMA.empty_table()},
        {"a": pa.Table.from_batches([], SCHEMA), "b": SCHEMA.empty_table()},
        {"b": pa.RecordBatch.from_pylist([], SCHEMA)},
        {"a": GOOD.slice(1)},
    ],
    ids=["no streams", "no rows", "no chunks", "no rows in a record batch", "empty slice"],
)
def test_empty_batches_give_empty_results_and_change_nothing(nothing: Batch) -> None:
    session, fresh = running(), running()
    results = session.push(nothing)
    assert {name: found.num_rows for name, found in results.items()} == {"pairs": 0, "counted": 0}
    for name, found in results.items():
        assert found.schema == pa.schema([("k", pa.int64()), ("left_p", pa.string()), ("right_p", pa.string())]), name
    assert counters(session) == counters(fresh)
    same_results(go_on(session), go_on(fresh))


def test_declared_encodings_are_removed() -> None:
    columns = pa.schema([("ts", TS), ("k", pa.dictionary(pa.int8(), pa.string())), ("v", pa.string_view())])
    session = dt.LocalSession()
    session.stream("a", columns, "ts")
    session.query("q", "SELECT x.k, y.v FROM a x [RANGE 1 s], a y [RANGE 1 s] WHERE x.k = y.k")
    plain = pa.table({"ts": pa.array([0, 1], TS), "k": ["u", "u"], "v": ["1", None]})
    coded = pa.table(
        {"ts": pa.array([2], TS), "k": pa.array(["u"]).dictionary_encode(), "v": pa.array(["3"], pa.string_view())}
    )
    found = [session.push({"a": batch})["q"] for batch in (plain, coded)]
    assert found[0].schema == pa.schema([("k", pa.string()), ("v", pa.string())])
    assert [batch.num_rows for batch in found] == [4, 5]


# -- declarations -----------------------------------------------------------------------------------------------------------------


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
    pytest.param(_declare(name="a"), ConfigError, "stream 'a' is already declared", id="stream twice"),
    pytest.param(_declare(event_time="t"), SchemaError, "event_time='t' is not one of its columns", id="no such time"),
    pytest.param(
        _declare(event_time="k"), SchemaError, "event time 'k' has type int64; it must be a timestamp", id="int time"
    ),
    pytest.param(_declare(event_time=None), DovetailError, "event_time", id="event time None"),
    pytest.param(_declare(schema=[("ts", TS)]), ConfigError, "got a list as schema", id="schema as list"),
    pytest.param(
        _declare(schema=GOOD),
        ConfigError,
        "got a Table as schema(.|\n)*Hint: write table.schema",
        id="table for schema",
    ),
    pytest.param(
        _declare(schema=GOOD.to_pandas()),
        ConfigError,
        "write pa.Schema.from_pandas.df, preserve_index=False",
        id="pandas",
    ),
    pytest.param(_declare(schema="ts TIMESTAMP"), ConfigError, "got a str as schema(.|\n)*write pa.schema", id="DDL"),
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
        "column 'u' has type dense_union.*unions cannot be kept",
        id="union",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", pa.list_(pa.sparse_union([pa.field("x", pa.int8())])))])),
        SchemaError,
        "column 'u' has type list.*unions cannot be kept",
        id="list of unions",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", Money())])),
        SchemaError,
        "column 'u' has type extension<.*cannot be kept(.|\n)*declare it as int64",
        id="extension type in Python",
    ),
    pytest.param(
        _declare(schema=pa.schema([("ts", TS), ("u", pa.fixed_shape_tensor(pa.int8(), [2, 2], permutation=[0, 1]))])),
        SchemaError,
        "an extension that cannot be kept(.|\n)*declare it as fixed_size_list",
        id="tensor",
    ),
    pytest.param(_declare(rate=0), ConfigError, "rate is 0; it must be above zero", id="rate 0"),
    pytest.param(_declare(rate=-1.5), ConfigError, "rate is -1.5", id="rate below 0"),
    pytest.param(_declare(rate=float("nan")), ConfigError, "rate is nan", id="rate NaN"),
    pytest.param(_declare(rate="fast"), ConfigError, "rate", id="rate as text"),
    pytest.param(_declare(lateness="-1 s"), ConfigError, "'-1 s' is negative", id="negative lateness"),
    pytest.param(_declare(lateness=-1), ConfigError, "negative", id="negative number"),
    pytest.param(_declare(lateness="soon"), ConfigError, "'soon' is not a duration", id="lateness not a duration"),
    pytest.param(_declare(lateness="5"), ConfigError, "'5' has no unit", id="lateness without unit"),
    pytest.param(_declare(lateness="5 parsecs"), ConfigError, "unknown unit 'parsecs'", id="unknown unit"),
    pytest.param(_declare(lateness=None), ConfigError, "not NoneType", id="lateness None"),
    pytest.param(_declare(lateness=float("inf")), ConfigError, "not a finite number", id="lateness infinite"),
    pytest.param(_declare(lateness=timedelta(days=-1)), ConfigError, "negative", id="negative timedelta"),
    pytest.param(_declare(lateness=1e-9), ConfigError, "not a whole number of microseconds", id="lateness too fine"),
    pytest.param(_declare(lateness="99999999 days"), ConfigError, "too long", id="lateness too long"),
    pytest.param(_declare(max_ahead="x"), ConfigError, "'x' is not a duration", id="max_ahead"),
    pytest.param(_declare(idle_after=[]), ConfigError, "not list", id="idle_after"),
    pytest.param(_declare(progress_by="z"), SchemaError, "progress_by='z' is not one of its columns", id="progress_by"),
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
    pytest.param(lambda s: s.explain("xml"), ConfigError, "'xml'; allowed: 'text', 'dict', 'mermaid'", id="explain"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_call_changes_nothing(
    call: Callable[[dt.LocalSession], object], error: type[Exception], message: str
) -> None:
    session = running()
    with pytest.raises(error, match=message):
        call(session)
    undisturbed(session)


def test_a_query_that_the_engine_refuses_leaves_nothing_behind() -> None:
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.month_day_nano_interval())])
    session = running()
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


BAD_CONFIGS: list[Any] = [
    ({"join": "merge"}, "Config(join=...) is 'merge'; allowed: 'auto', 'hash', 'nested-loop', 'hybrid'"),
    ({"nested_loop": "deep"}, "Config(nested_loop=...) is 'deep'; allowed: 'multi-way', 'naive', 'general'"),
    ({"evaluation": "now"}, "Config(evaluation=...) is 'now'; allowed: 'lazy', 'eager'"),
    ({"expiration": None}, "Config(expiration=...) is None; allowed: 'lazy', 'eager'"),
    ({"ordering": "random"}, "Config(ordering=...) is 'random'; allowed:"),
    ({"stage_rows": 0}, "Config(stage_rows=0): it must be at least 1"),
    ({"stage_rows": -7}, "Config(stage_rows=-7)"),
    ({"evaluation": "lazy", "expiration": "eager"}, "would lose results"),
    ({"expiration": "eager"}, "use expiration='lazy', or evaluation='eager' with either expiration"),
    ({"nested_loop": "naive"}, "needs join='nested-loop', not 'auto'"),
    ({"nested_loop": "general", "join": "hash"}, "needs join='nested-loop', not 'hash'"),
    (
        {"nested_loop": "general", "join": "nested-loop", "evaluation": "eager"},
        "is an algorithm for lazy evaluation; evaluation is 'eager'",
    ),
    pytest.param({"stage_rows": "many"}, "stage_rows"),
    ({"stage_rows": True}, "Config(stage_rows=True): it must be at least 1, and whole"),
    ({"adaptive": "no"}, "Config(adaptive=...) is 'no'; allowed: True, False"),
    ({"adaptve": True}, "Config(adaptve=...): there is no such option; allowed: 'join',"),
    ({"adaptve": True}, "Hint: did you mean 'adaptive'?"),
    ({"xyz": True}, "Config(xyz=...): there is no such option"),
    pytest.param({"stage_rows": 1.5}, "stage_rows"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CONFIGS)
def test_bad_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        dt.Config(**options)


@pytest.mark.parametrize("name", ["cpu_ms_per_second", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan"), pytest.param("1 GB")])
def test_bad_budget(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Budget({name}={value!r})")):
        dt.Budget(**{name: value})


def test_good_budget_and_error_bases() -> None:
    assert dt.Budget(cpu_ms_per_second=1.5, memory_bytes=1).memory_bytes == 1
    for error, base in (
        (ConfigError, ValueError),
        (SchemaError, ValueError),
        (PlanError, ValueError),
        (StateError, RuntimeError),
    ):
        assert issubclass(error, base)
        assert issubclass(error, DovetailError)


# -- life of a query --------------------------------------------------------------------------------------------------------------


def test_tuples_before_the_first_query_are_said() -> None:
    session = empty_session()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.push({}) == {}
    session = empty_session()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DovetailWarning, match=r"before any query was registered(.|\n)*Hint: call query"):
            session.push({"a": table((10, 1, "x"))})
    session.query("pairs", PAIRS)  # nothing has changed: the batch can come again
    found = session.push({"a": table((10, 1, "x")), "b": table((10, 1, "y"))})["pairs"]
    assert found.num_rows == 1


def test_push_without_queries_moves_time() -> None:
    session = empty_session()
    assert session.push({"a": table((10, 1, "x"))}) == {}
    assert session.push({"a": table((8, 1, "late"), (9, 1, "not late"))}) == {}
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["late"], streams["a"]["state_tuples"]) == (3, 1, 0)
    assert streams["a"]["event_time"] == 10 * SECOND
    assert streams["b"]["event_time"] is None
    session.query("pairs", PAIRS)
    # Time did not start anew with the query: a tuple at 8 s is still late, and the one pushed before is not seen.
    found = session.push({"a": table((8, 1, "late"), (9.5, 2, "x")), "b": table((10, 1, "y"), (10, 2, "z"))})["pairs"]
    assert found.to_pylist() == [{"k": 2, "left_p": "x", "right_p": "z"}]


def test_a_query_sees_tuples_after_its_registration_only() -> None:
    session = empty_session()
    session.query("early", PAIRS)
    session.push({"a": table((1, 1, "before"))})
    session.query("late", PAIRS)
    session.query("late counted", COUNTED)
    results = session.push({"b": table((2, 1, "y"))})
    assert (results["early"].num_rows, results["late"].num_rows) == (1, 0)
    results = session.push({"a": table((3, 1, "after")), "b": table((3, 1, "z"))})
    assert (results["early"].num_rows, results["late"].num_rows) == (3, 2)
    results = session.push({"a": table((30, 1, "far"))})
    assert results["late counted"].num_rows == 2


def test_a_dropped_query_is_gone_and_its_name_free() -> None:
    session = running()
    session.drop_query("pairs")
    assert set(session.push({"b": table((3, 1, "b3"))})) == {"counted"}
    assert "pairs" not in session.metrics()["queries"]
    session.query("pairs", PAIRS)
    assert session.push({"b": table((3, 1, "b3"))})["pairs"].num_rows == 0
    session.drop_query("pairs")
    session.drop_query("counted")
    assert session.push({"b": table((3, 1, "b3"))}) == {}
    assert session.metrics()["streams"]["a"]["state_tuples"] == 0


def test_a_stream_that_no_query_uses_keeps_nothing() -> None:
    session = running()
    session.stream("c", SCHEMA, "ts")
    before = session.metrics()["streams"]["a"]
    for second in range(10):
        session.push({"c": table((second, 1, "c"))})
    assert session.metrics()["streams"]["c"]["state_tuples"] == 0
    assert session.metrics()["streams"]["a"] == before
    with pytest.raises(SchemaError, match="stream 'c': missing"):
        session.push({"c": GOOD.drop_columns("k")})


def test_more_queries_than_flags_in_a_word() -> None:
    # Each alias of each query is a bit of a row: 100 queries need two words, and freed bits are used again.
    session = empty_session()
    for number in range(100):
        session.query(f"q{number}", f"{PAIRS} AND a.k > {number % 5}")
    for number in range(0, 100, 2):
        session.drop_query(f"q{number}")
    for number in range(0, 100, 4):
        session.query(f"q{number}", f"{PAIRS} AND b.k <= {number % 5}")
    session = dt.LocalSession.restore(session.snapshot())
    keys = table(*((1, k, "x") for k in range(5)))
    found = session.push({"a": keys, "b": keys})
    assert len(found) == 75
    for name, result in found.items():
        number = int(name[1:])
        assert result.num_rows == (number % 5 + 1 if number % 4 == 0 else 4 - number % 5), name


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("x", pa.int64(), [None, 5]), ("x?", pa.int64(), [7, 8])),
        (("x", pa.string(), ["aa", "b"]), ("x@", pa.int64(), [7, 8])),
        (("x", pa.string(), ["aa", "b"]), ("x#", pa.int64(), [7, 8])),
        (("x", pa.list_(pa.int32()), [[1], [2]]), ("x>", pa.int64(), [7, 8])),
    ],
    ids=["x and x?", "x and x@", "x and x#", "x and x>"],
)
def test_column_names_do_not_collide(first: tuple[str, Any, list[Any]], second: tuple[str, Any, list[Any]]) -> None:
    columns = pa.schema([("ts", TS), ("k", pa.int64()), *((name, dtype) for name, dtype, _ in (first, second))])
    session = dt.LocalSession()
    for stream in ("a", "b"):
        session.stream(stream, columns, "ts")
    session.query("q", "SELECT * FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k")
    arrays = [pa.array(values, dtype) for _, dtype, values in (first, second)]
    whole = pa.Table.from_arrays([pa.array([0, 1], TS), pa.array([1, 2]), *arrays], schema=columns)
    found = session.push({"a": whole, "b": whole})["q"].sort_by("a_k")
    for name, _, values in (first, second):
        assert found.column(f"a_{name}").to_pylist() == values
        assert found.column(f"b_{name}").to_pylist() == values


def test_key_names_do_not_collide() -> None:
    columns = pa.schema([("ts", TS), ("a", pa.int64()), ("b", pa.int64()), ("a|.b", pa.int64())])
    session = dt.LocalSession()
    session.stream("s", columns, "ts")
    session.stream("u", columns, "ts")
    session.query("both", "SELECT x.a FROM s x [RANGE 1 s], u y [RANGE 1 s] WHERE x.a = y.a AND x.b = y.b")
    session.query("one", "SELECT x.a FROM s x [RANGE 1 s], u y [RANGE 1 s] WHERE x.`a|.b` = y.`a|.b`")
    whole = pa.Table.from_arrays(
        [pa.array([0, 1], TS), pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], schema=columns
    )
    found = session.push({"s": whole, "u": whole})
    assert (found["both"].num_rows, found["one"].num_rows) == (2, 2)


# -- progress ---------------------------------------------------------------------------------------------------------------------


def test_advance_lets_go_of_state_and_settles_results() -> None:
    #        1 s      2 s                     5 s
    # a      a1 a2 ..................... advance; watermark 4 s: a1, a2 and b1 are settled
    # b      b1
    session = empty_session()
    session.query("pairs", PAIRS)
    session.query("counted", COUNTED)
    session.push({"a": table((1, 1, "a1"), (2, 1, "a2")), "b": table((1, 1, "b1"))})
    settled = session.advance({"a": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)})
    assert settled["pairs"].num_rows == 0
    assert sorted(settled["counted"].column("left_p").to_pylist()) == ["a1", "a2"]
    session.advance({"b": 100 * SECOND})
    assert session.metrics()["streams"]["a"]["event_time"] == 5 * SECOND
    session.advance({"a": 100 * SECOND})
    # What is left of b is not settled for the count window's sake; the windows of `pairs` are empty.
    assert held(session, "b") <= 1
    session.advance({"a": 3 * SECOND})
    assert session.metrics()["streams"]["a"]["event_time"] == 100 * SECOND
    session.push({"a": table((98, 1, "late"), (99, 1, "not late"))})
    assert session.metrics()["streams"]["a"]["late"] == 1


def test_advance_takes_naive_datetimes_as_utc() -> None:
    session = empty_session()
    session.advance({"a": datetime(1970, 1, 2)})  # noqa: DTZ001 - on purpose
    assert session.metrics()["streams"]["a"]["event_time"] == 86_400 * SECOND


def test_max_ahead_sets_tuples_aside() -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts", max_ahead="10 seconds")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    now = datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC)
    session.push({"a": table((20, 1, "now"), (30, 1, "just"), (30.000001, 1, "ahead"), (9999, 1, "far"))}, now=now)
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["ahead"], streams["a"]["late"]) == (4, 2, 0)
    assert streams["a"]["event_time"] == 30 * SECOND
    assert sorted(session.push({"b": table((25, 1, "b"))}, now=now)["pairs"].column("left_p").to_pylist()) == [
        "just",
        "now",
    ]


@pytest.mark.parametrize("heard", [False, True])
def test_an_idle_stream_holds_no_state(*, heard: bool) -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts", idle_after="1 minute")
    session.query("pairs", PAIRS)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    session.push({"b": table((0, 1, "b"))} if heard else {}, now=start)
    for step in range(1, 100):
        session.push({"a": table((10 * step, 1, "a"))}, now=start + timedelta(seconds=10 * step))
    assert held(session, "a") < 10


def test_an_unrelated_silent_stream_does_not_keep_another_from_being_idle() -> None:
    session = dt.LocalSession()
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts", idle_after="1 minute")
    session.stream("unrelated", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    session.push({"b": table((0, 1, "b"))}, now=start)
    for step in range(1, 100):
        session.push({"a": table((10 * step, 1, "a"))}, now=start + timedelta(seconds=10 * step))
    assert held(session, "a") < 10


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.string(), ["x", "y"]),
        (pa.int32(), [1, None]),
        (pa.bool_(), [True, False]),
        pytest.param(pa.binary(), [b"x", b"y"]),
        pytest.param(pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
        pytest.param(pa.decimal128(5, 2), [Decimal("1.5"), Decimal(2)]),
        pytest.param(TS, [0, 1]),
        pytest.param(pa.float64(), [float("nan"), 1.0]),
    ],
    ids=str,
)
def test_progress_by_any_column_survives_a_snapshot(dtype: pa.DataType, values: list[Any]) -> None:
    # Two partitions; progress is that of the slower one.
    #   first    1 s        5 s
    #   second   1 s   3 s
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("p", pa.string()), ("part", dtype)])
    session = dt.LocalSession()
    session.stream("a", columns, "ts", progress_by="part")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)

    def push(*rows: tuple[int, Any]) -> None:
        times = pa.array([second * SECOND for second, _ in rows], TS)
        session.push(
            {
                "a": made(
                    times,
                    pa.array([1] * len(rows)),
                    pa.array(["x"] * len(rows)),
                    part=pa.array([v for _, v in rows], dtype),
                )
            }
        )

    push((1, values[0]), (1, values[1]))
    push((5, values[0]))
    push((2, values[1]))
    assert session.metrics()["streams"]["a"]["event_time"] == 2 * SECOND
    session = dt.LocalSession.restore(session.snapshot())
    push((3, values[1]))
    assert session.metrics()["streams"]["a"]["event_time"] == 3 * SECOND
    push((3, values[0]))
    assert session.metrics()["streams"]["a"]["late"] == 0


def test_progress_by_a_nested_column_is_refused() -> None:
    session = dt.LocalSession()
    with pytest.raises(SchemaError, match="progress_by"):
        session.stream("a", pa.schema([("ts", TS), ("l", pa.list_(pa.int32()))]), "ts", progress_by="l")


# -- metrics ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("join", "access", "looked"), [("hash", "hash", [0, 2]), ("nested-loop", "scan", [0, 4])])
def test_metrics_of_a_small_case(join: str, access: str, looked: list[int]) -> None:
    # Streams go in the order of their declaration. New tuples of a meet an empty b; those of b meet both of a.
    #     a   0s:1  1s:2
    #     b         1s:1  2s:1
    session = dt.LocalSession(config=dt.Config(join=join))
    session.stream("a", SCHEMA, "ts")
    session.stream("b", SCHEMA, "ts")
    session.query("pairs", PAIRS)
    session.push({"b": table((1, 1, "b1"), (2, 1, "b2")), "a": table((0, 1, "a0"), (1, 2, "a1"))})
    metrics = counters(session)
    assert set(metrics) == {"streams", "queries", "joins", "nodes", "migrations"}
    stream = {"arrivals": 2, "late": 0, "ahead": 0, "event_time": 1 * SECOND, "state_tuples": 2}
    assert {name: metrics["streams"]["a"][name] for name in stream} == stream
    assert isinstance(metrics["streams"]["a"]["state_bytes"], int)
    assert metrics["streams"]["a"]["state_bytes"] > 0
    query = metrics["queries"]["pairs"]
    assert (query["results"], query["probes"], query["looked"], query["matches"]) == (2, 4, sum(looked), 2)
    paths: Any = query["paths"]
    for driver, other, rows, matches in (("a", "b", looked[0], 0), ("b", "a", looked[1], 2)):
        assert [stage["alias"] for stage in paths[driver]] == [driver, other]
        assert paths[driver][0]["access"] == "new"
        assert paths[driver][1] == {"alias": other, "access": access, "probes": 2, "looked": rows, "matches": matches}

    session.push({"a": table((0.5, 1, "late"), (1, 1, "not late"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["arrivals"], streams["a"]["late"], streams["a"]["state_tuples"]) == (4, 1, 3)
    assert session.metrics()["queries"]["pairs"]["results"] == 4

    session.push({"b": table((11, 9, "b"))})
    # a holds what b at 11 s or later can meet: from 1 s on. b waits for a, which stands at 1 s.
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (2, 3)
    session.push({"a": table((100, 9, "a"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (3, 0)
    session.push({"b": table((200, 9, "b"))})
    streams = session.metrics()["streams"]
    assert (streams["a"]["state_tuples"], streams["b"]["state_tuples"]) == (0, 1)


def test_metrics_survive_a_restart() -> None:
    session = running()
    restored = dt.LocalSession.restore(session.snapshot())
    assert restored.metrics()["streams"] == session.metrics()["streams"]
    for name, query in session.metrics()["queries"].items():
        assert restored.metrics()["queries"][name]["results"] == query["results"]


# -- snapshots --------------------------------------------------------------------------------------------------------------------


def test_a_restored_session_goes_on() -> None:
    session = running()
    session.selectivity("a.k = b.k", 0.5)
    restored = dt.LocalSession.restore(session.snapshot())
    assert timeless(restored.explain("dict")) == timeless(session.explain("dict"))
    assert restored.snapshot() == session.snapshot()
    same_results(go_on(restored), go_on(session))


def test_snapshots_keep_orders_hints_and_config() -> None:
    config = dt.Config(join="nested-loop", nested_loop="naive", stage_rows=3)
    session = empty_session(config)
    session.stream("c", SCHEMA, "ts", rate=7)
    sql = "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k"
    session.query("forced", sql, {"a": ("c", "a", "b"), "b": ("c", "a")})
    restored = dt.LocalSession.restore(session.snapshot())
    assert restored.explain("dict") == session.explain("dict")
    session.selectivity("a.k = b.k", 0.25)
    restored = dt.LocalSession.restore(session.snapshot())
    assert restored._registry.hints == session._registry.hints != {}
    assert restored._registry.config == config
    with pytest.raises(ConfigError, match="query 'forced' is already registered"):
        restored.query("forced", sql)


def test_a_restored_query_keeps_its_plan() -> None:
    session = empty_session()
    session.stream("c", SCHEMA, "ts")
    session.query("q", "SELECT a.k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s] WHERE a.k = b.k AND b.k = c.k")
    session.selectivity("a.k = c.k", 0.0001)
    assert dt.LocalSession.restore(session.snapshot()).explain() == session.explain()


@pytest.mark.parametrize("garbage", [b"", b"x", b"DOVETAIL", b"PAR1" * 100, "text", b"DOVETAIL" + b"\0" * 12], ids=repr)
def test_garbage_is_not_a_snapshot(garbage: Any) -> None:
    with pytest.raises(StateError, match=r"not a Dovetail snapshot|version 0"):
        dt.LocalSession.restore(garbage)


def test_things_of_the_wrong_kind_are_named() -> None:
    wrong: dict[str, Callable[[], object]] = {
        "None for a snapshot": lambda: dt.LocalSession.restore(None),  # type: ignore[arg-type]
        "a view for a snapshot": lambda: dt.LocalSession.restore(memoryview(clocked.snapshot())),  # type: ignore[arg-type]
        "a dict for a config": lambda: dt.LocalSession(config={"join": "hash"}),  # type: ignore[arg-type]
        "text for the clock": lambda: clocked.push({"a": GOOD}, now="noon"),  # type: ignore[arg-type]
    }
    clocked = dt.LocalSession()
    clocked.stream("a", SCHEMA, "ts", max_ahead=1)
    for name, call in wrong.items():
        with pytest.raises(DovetailError):
            pytest.fail(f"{name} was accepted: {call()}")


def test_other_versions_are_named() -> None:
    blob = running().snapshot()
    (version,) = struct.unpack_from("<I", blob, 8)
    other = blob[:8] + struct.pack("<I", version + 1) + blob[12:]
    with pytest.raises(StateError, match=f"format version {version + 1}; this release reads version {version}"):
        dt.LocalSession.restore(other)


def test_every_truncated_snapshot_is_refused() -> None:
    blob = running().snapshot()
    for size in [*range(0, len(blob), 7), len(blob) - 1]:
        with pytest.raises(StateError, match=r"not a Dovetail snapshot|damaged|cut short"):
            dt.LocalSession.restore(blob[:size])
    with pytest.raises(StateError, match=r"damaged|cut short"):
        dt.LocalSession.restore(blob + b"more")


def test_a_snapshot_with_a_flipped_bit_is_refused() -> None:
    blob = running().snapshot()
    rng = np.random.default_rng(0)
    for place in rng.integers(20, len(blob), 200):
        damaged = bytearray(blob)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(StateError):
            dt.LocalSession.restore(bytes(damaged))


# -- plans shown ------------------------------------------------------------------------------------------------------------------


def shop() -> dt.LocalSession:
    """The streams of the queries in tests/plans."""
    session = dt.LocalSession()
    impressions = pa.schema([("ts", TS), ("ad_id", pa.int64()), ("user_id", pa.int32())])
    clicks = pa.schema([("ts", TS), ("ad_id", pa.int64()), ("user_id", pa.int64())])
    orders = pa.schema([("ts", TS), ("user_id", pa.int64()), ("amount", pa.decimal128(10, 2))])
    session.stream("impressions", impressions, "ts", rate=100)
    session.stream("clicks", clicks, "ts", lateness="90 seconds", rate=5)
    session.stream("orders", orders, "ts", lateness="1500 ms", rate=0.5)
    return session


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.txt")), ids=lambda path: path.stem)
def test_explained_text(path: Path) -> None:
    sql, expected = path.read_text().split("\n----\n")
    session = shop()
    session.query(path.stem, sql)
    assert session.explain() == expected.rstrip("\n")
    assert dt.LocalSession.restore(session.snapshot()).explain() == expected.rstrip("\n")


def test_there_are_plans_to_compare() -> None:
    assert {"funnel", "latest"} <= {path.stem for path in PLANS.glob("*.txt")}


def test_explained_dict() -> None:
    session = shop()
    session.query("funnel", (PLANS / "funnel.txt").read_text().split("\n----\n")[0])
    explained: Any = session.explain("dict")
    assert (explained["evaluation"], explained["expiration"]) == ("lazy", "lazy")
    assert explained["streams"]["clicks"] == {
        "event_time": "ts",
        "lateness": "90 s",
        "rate": 5,
        "used_by": ["funnel.c"],
    }
    query = explained["queries"]["funnel"]
    assert query["inputs"]["o"] == {"stream": "orders", "window": "range 1 h"}
    assert query["output"] == ["ad_id", "user_id", "clicked_at", "amount"]
    assert set(query["paths"]) == {"i", "c", "o"}
    for driver, stages in query["paths"].items():
        assert stages[0]["alias"] == driver
        assert sorted(stage["alias"] for stage in stages) == ["c", "i", "o"]


def test_explained_mermaid_is_well_formed() -> None:
    session = shop()
    for path in PLANS.glob("*.txt"):
        session.query(f'{path.stem} "quoted" [x', path.read_text().split("\n----\n")[0])
    picture = str(session.explain("mermaid"))
    lines = picture.splitlines()
    assert lines[0] == "flowchart LR"
    opened = 0
    for line in lines:
        opened += line.strip().startswith("subgraph ") - (line.strip() == "end")
        assert opened in (0, 1)
        assert line.count('"') % 2 == 0
        unquoted = re.sub(r'"[^"]*"', "", line)
        for left, right in ("[]", "()"):
            assert unquoted.count(left) == unquoted.count(right), line
    assert opened == 0
    assert sum(line.strip().startswith("subgraph ") for line in lines) == len(list(PLANS.glob("*.txt")))
    defined = set(re.findall(r"^\s*(\w+)[\[(]", picture, re.MULTILINE))
    used = set(re.findall(r"^\s*(\w+) -- ", picture, re.MULTILINE)) | set(
        re.findall(r"--> (\w+)$", picture, re.MULTILINE)
    )
    assert used
    assert used <= defined
    assert "#quot;quoted#quot;" in picture


def test_explain_without_queries() -> None:
    assert str(empty_session().explain()).splitlines() == [
        "evaluation lazy, expiration lazy",
        "stream a: event time ts, lateness 1 s; used by no query",
        "stream b: event time ts, lateness 1 s; used by no query",
    ]
    assert dt.LocalSession().explain() == "evaluation lazy, expiration lazy"


def test_keys_that_are_equal_are_shown_as_each_stream_had_them() -> None:
    columns = pa.schema([("ts", TS), ("k", pa.int64()), ("f", pa.float64()), ("n", pa.int32())])
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, columns, "ts")
    session.query(
        "q",
        "SELECT b.k, a.k AS ak, a.f, b.f AS bf, a.n, b.n + 1 AS bn, a.k + 1 AS more FROM a [RANGE 1 s], b [RANGE 1 s] "
        "WHERE a.k = b.k AND a.f = b.f AND a.n = b.n + 1",
    )
    rows = {"a": [(0, 7, -0.0, 3)], "b": [(0, 7, 0.0, 2)]}
    found = session.push(
        {name: pa.table([list(c) for c in zip(*r, strict=True)], schema=columns) for name, r in rows.items()}
    )
    (row,) = found["q"].to_pylist()
    assert row == {"k": 7, "ak": 7, "f": -0.0, "bf": 0.0, "n": 3, "bn": 3, "more": 8}
    assert [copysign(1, row[name]) for name in ("f", "bf")] == [-1.0, 1.0]
