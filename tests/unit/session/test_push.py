"""`push`: a bad batch changes nothing, and the layout of a good one does not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from two_streams import (
    GOOD,
    KEYS,
    SCHEMA,
    TEXT,
    TIMES,
    TS,
    assert_same_results,
    assert_undisturbed,
    batch_of,
    counters,
    push_more,
    running_session,
    table,
)

import dovetail as dt
from dovetail.errors import ConfigError, SchemaError

BAD_BATCHES: list[Any] = [
    pytest.param({"a": GOOD.drop_columns("k")}, SchemaError, "stream 'a': missing 'k'", id="missing column"),
    pytest.param({"a": batch_of(z=KEYS)}, SchemaError, "stream 'a': not declared 'z'", id="extra column"),
    pytest.param(
        {"a": GOOD.drop_columns("k").append_column("z", KEYS)}, SchemaError, "missing 'k'; not declared 'z'", id="both"
    ),
    pytest.param(
        {"a": pa.Table.from_arrays([TIMES, KEYS, KEYS, TEXT], ["ts", "k", "k", "p"])},
        SchemaError,
        "a column occurs twice in 'ts', 'k', 'k', 'p'",
        id="duplicate column",
    ),
    pytest.param({"a": batch_of(k=KEYS.cast(pa.float64()))}, SchemaError, "'k' has type double", id="double for int"),
    pytest.param({"a": batch_of(k=TEXT)}, SchemaError, "'k' has type string", id="text for int"),
    pytest.param({"a": batch_of(p=KEYS)}, SchemaError, "'p' has type int64; declared string", id="int for text"),
    pytest.param({"a": batch_of(p=pa.array([b"x"]))}, SchemaError, "'p' has type binary", id="binary for text"),
    pytest.param(
        {"a": batch_of(p=pa.array([b"\xff"], pa.binary_view()))},
        SchemaError,
        "has type binary_view; declared string",
        id="binary view for text",
    ),
    pytest.param({"a": batch_of(ts=TIMES.cast(pa.int64()))}, SchemaError, "'ts' has type int64", id="time as number"),
    pytest.param(
        {"a": batch_of(k=pa.array(["12"], pa.string_view()))}, SchemaError, "'k' has type", id="digits in a view"
    ),
    pytest.param(
        {"a": batch_of(k=pa.array(["12"]).dictionary_encode())},
        SchemaError,
        "'k' has type",
        id="digits in a dictionary",
    ),
    pytest.param(
        {"a": batch_of(k=pa.array([1.0]).dictionary_encode())},
        SchemaError,
        "'k' has type",
        id="doubles in a dictionary",
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
    session = running_session()
    if with_good != "alone" and isinstance(batch, dict):
        batch = {"b": GOOD, **batch}
    with pytest.raises(error, match=message):
        session.push(batch)
    assert_undisturbed(session)


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
    # b.ts = a.v compares in timestamp[us]; an extreme v matches nothing and affects nothing else.
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
    session, fresh = running_session(), running_session()
    batch = {"a": whole, "b": table((5, 1, "b5"), (6, 2, "b6"))}
    reshaped = session.push({name: reshape(content) for name, content in batch.items()})
    assert_same_results([reshaped, *push_more(session)], [fresh.push(batch), *push_more(fresh)])
    assert reshaped["pairs"].num_rows > 3


def test_run_end_encoding_is_decoded() -> None:
    rows = (3, 1, "a3"), (3, 2, None)
    plain, coded = running_session(), running_session()
    assert_same_results([coded.push({"a": _run_ends(table(*rows))})], [plain.push({"a": table(*rows)})])


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
def test_empty_batches_give_empty_results_and_change_nothing(nothing: Mapping[str, Any]) -> None:
    session, fresh = running_session(), running_session()
    results = session.push(nothing)
    assert {name: found.num_rows for name, found in results.items()} == {"pairs": 0, "counted": 0}
    for name, found in results.items():
        assert found.schema == pa.schema([("k", pa.int64()), ("left_p", pa.string()), ("right_p", pa.string())]), name
    assert without_batches(counters(session)) == without_batches(counters(fresh))
    assert_same_results(push_more(session), push_more(fresh))


def without_batches(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name not in ("batches", "last_batch")}


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
