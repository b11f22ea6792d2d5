"""Payload of any Arrow type comes out of a join as it went in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine.storage import rows as engine_rows
from dovetail.engine.storage.columns import nested, texts
from dovetail.schema import stored_type

TS = pa.timestamp("us", tz="UTC")
Make = Callable[[int], Any]
"""Maps a row number to a value; equal numbers give equal values."""


def signed(bits: int) -> Make:
    return lambda i: (i * 7919) % (1 << bits) - (1 << (bits - 1))


def unsigned(bits: int) -> Make:
    return lambda i: (1 << bits) - 1 - (i * 7919) % (1 << bits)


def decimal(digits: int, scale: int) -> Make:
    return lambda i: Decimal((i % 2, tuple(map(int, str(10**digits - 1 - i))), -scale))


def text(i: int) -> str:
    return "é" * (i % 40) + str(i)


PAYLOADS: dict[pa.DataType, Make] = {
    pa.int8(): signed(8),
    pa.int16(): signed(16),
    pa.int32(): signed(32),
    pa.int64(): lambda i: (1 << 63) - 1 - i,
    pa.uint8(): unsigned(8),
    pa.uint16(): unsigned(16),
    pa.uint32(): unsigned(32),
    pa.uint64(): unsigned(64),
    pa.float16(): lambda i: np.float16(i % 2048 - 1000.5),
    pa.float32(): lambda i: [0.1, -0.0, math.nan, math.inf, 1e-45][i % 5] if i % 2 else i / 3,
    pa.float64(): lambda i: [0.1, -0.0, math.nan, -math.inf, 5e-324][i % 5] if i % 2 else i / 3,
    pa.decimal32(9, 2): decimal(9, 2),
    pa.decimal64(18, 4): decimal(18, 4),
    pa.decimal128(38, 10): decimal(38, 10),
    pa.decimal128(5, -2): lambda i: Decimal(i % 1000).scaleb(2),
    pa.decimal256(76, 20): decimal(76, 20),
    pa.string(): text,
    pa.large_string(): text,
    pa.binary(): lambda i: bytes([i % 256]) * (i % 50),
    pa.large_binary(): lambda i: bytes([i % 256]) * (i % 50),
    pa.binary(3): lambda i: i.to_bytes(3, "little"),
    pa.binary(0): lambda _: b"",
    pa.bool_(): lambda i: i % 3 == 0,
    pa.date32(): lambda i: i - 10_000,
    pa.date64(): lambda i: (i - 10_000) * 86_400_000,
    pa.time32("s"): lambda i: i,
    pa.time32("ms"): lambda i: i,
    pa.time64("us"): lambda i: i * 1_000_003,
    pa.time64("ns"): lambda i: i * 1_000_003,
    pa.struct({"a": pa.int32(), "b": pa.string()}): lambda i: {"a": i, "b": None if i % 3 else text(i)},
    pa.list_(pa.int32()): lambda i: list(range(i % 5)),
    pa.large_list(pa.string()): lambda i: [text(i), None][: i % 3],
    pa.list_(pa.int16(), 2): lambda i: [i % 100, None],
    pa.list_(pa.struct({"x": pa.float64(), "y": pa.binary()})): lambda i: [{"x": i / 2, "y": b"y"}, None][: i % 3],
    pa.list_(pa.list_(pa.string())): lambda i: [[text(i)], None, []][: i % 4],
    pa.map_(pa.string(), pa.int32()): lambda i: [(text(i), i), ("k", None)][: i % 3],
    pa.struct({"m": pa.map_(pa.int8(), pa.list_(pa.float32()))}): lambda i: {"m": [(i % 100, [0.5])]},
    pa.list_(pa.dictionary(pa.int8(), pa.string())): lambda i: ["abc"[i % 3]],
    pa.struct([]): lambda _: {},
    **{
        pa.timestamp(unit, zone): (lambda i: i * 1_000_003 - 10**9)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC")
    },
    pa.timestamp("us", "Asia/Tokyo"): lambda i: i,
    **{pa.duration(unit): (lambda i: i * 1_000_003 - 10**9) for unit in ("s", "ms", "us", "ns")},
}


def column(dtype: pa.DataType, make: Make, numbers: Sequence[int]) -> pa.Array:
    """Build a column with every seventh value NULL."""
    values = [None if number % 7 == 3 else make(number) for number in numbers]
    storage = {pa.date32(): pa.int32(), pa.date64(): pa.int64()}.get(dtype)
    return pa.array(values, storage).cast(dtype) if storage else pa.array(values, dtype)


def identical(actual: pa.Array, expected: pa.Array) -> None:
    actual.validate(full=True)
    assert actual.type == expected.type
    if pa.types.is_floating(expected.type):
        assert _bits(actual) == _bits(expected)  # equals() says that NaN differs from itself and that -0.0 is 0.0
    elif "dictionary" in str(expected.type):
        assert actual.to_pylist() == expected.to_pylist()  # equals() compares the dictionaries too
    else:
        assert actual.equals(expected), "values differ"


def _bits(values: pa.Array) -> list[int | None]:
    width = values.type.bit_width // 8
    content = np.frombuffer(values.buffers()[1], f"u{width}", len(values), values.offset * width)
    return [int(v) if valid else None for v, valid in zip(content, values.is_valid().to_pylist(), strict=True)]


def payload_session(dtype: pa.DataType) -> dt.LocalSession:
    schema = pa.schema([("ts", TS), ("k", pa.int64()), ("p", dtype)])
    session = dt.LocalSession()
    session.stream("a", schema, "ts")
    session.stream("b", schema.remove(2), "ts")
    session.query("q", "SELECT a.k, a.p FROM a [RANGE 2000 us], b [RANGE 2000 us] WHERE a.k = b.k")
    return session


def batch(dtype: pa.DataType, make: Make, first: int, stop: int) -> dict[str, pa.Table]:
    numbers = list(range(first, stop))
    times, keys = pa.array(numbers, TS), pa.array(numbers, pa.int64())
    payload = column(dtype, make, numbers)
    left = pa.Table.from_arrays([times, keys, payload], schema=pa.schema([("ts", TS), ("k", pa.int64()), ("p", dtype)]))
    return {"a": left, "b": pa.table({"ts": times, "k": keys})}


@pytest.mark.parametrize("dtype", PAYLOADS, ids=str)
@pytest.mark.parametrize("tiny", [False, True], ids=["", "tiny arrays"])
def test_payload_comes_out_as_it_went_in(dtype: pa.DataType, tiny: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    # Row n of a meets row n of b one push later. The window holds 2,000 rows, so by the end three quarters have expired; arrays
    # of 1,024 rows have grown, or, with tiny ones, have moved in every push.
    if tiny:
        monkeypatch.setattr(engine_rows, "SMALLEST_CAPACITY", 8)
        monkeypatch.setattr(texts, "_SMALLEST_HEAP", 4)
        monkeypatch.setattr(texts, "_LARGE_HEAP", 16)
        monkeypatch.setattr(nested, "_MOST_CHUNKS", 2)
    make = PAYLOADS[dtype]
    session = payload_session(dtype)
    last: pa.Table | None = None
    cuts = [0, 1, 3, 500, 501, 1500, 2500, 3000] if tiny else [0, 1, 700, 2500, 4100, 4101, 6000, 8000]
    for first, stop in pairwise(cuts):
        tables = batch(dtype, make, first, stop)
        found = session.push({"a": tables["a"], **({"b": last} if last else {})})["q"].sort_by("k")
        if last:
            expected = column(dtype, make, last.column("k").to_pylist())
            identical(found.column("p").combine_chunks(), expected)
        last = tables["b"]
        if stop in (501, 4100):
            session = dt.LocalSession.restore(session.snapshot())
    held: Any = session.metrics()["streams"]["a"]["state_tuples"]
    assert held <= 5000


ORDERED = {
    **PAYLOADS,
    pa.month_day_nano_interval(): lambda i: pa.MonthDayNano([i % 3, 1, i]),
    pa.uuid(): lambda i: i.to_bytes(16, "big"),
}


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
def test_ties_enter_count_windows_in_content_order(dtype: pa.DataType) -> None:
    """For any order of arrival, the same two of six tuples with one event time are joined."""
    storage = dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype
    values = column(storage, ORDERED[dtype], [3, 1, 4, 0, 5])
    values = pa.concat_arrays([values, pa.nulls(1, storage)])
    found = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 5, 0, 3, 1, 4]):
        session = dt.LocalSession()
        session.stream("a", pa.schema({"ts": TS, "k": pa.int64(), "p": dtype}), "ts")
        session.stream("b", pa.schema({"ts": TS, "k": pa.int64()}), "ts")
        session.query("q", "SELECT a.p FROM a [ROWS 2], b [ROWS 1] WHERE a.k = b.k")
        came, payload = pa.array([1] * 6, TS), values.take(pa.array(order))
        if storage != dtype:
            payload = pa.ExtensionArray.from_storage(dtype, payload)
        session.push({"a": pa.table([came, [7] * 6, payload], names=["ts", "k", "p"])})
        session.push({"b": pa.table({"ts": pa.array([2], TS), "k": [7]})})
        results = session.advance({"a": 10**7, "b": 10**7})["q"].column("p").combine_chunks()
        found.append(results.storage if storage != dtype else results)
    assert len(found[0]) == 2
    for other in found[1:]:
        identical(other, found[0])


@pytest.mark.parametrize("dtype", PAYLOADS, ids=str)
def test_sliced_and_all_null_payload(dtype: pa.DataType) -> None:
    make = PAYLOADS[dtype]
    session = payload_session(dtype)
    whole = batch(dtype, make, 0, 40)
    session.push({"a": whole["a"].slice(5, 20), "b": whole["b"].slice(0, 0)})
    nulls = batch(dtype, make, 25, 30)["a"].set_column(2, "p", pa.nulls(5, dtype))
    session.push({"a": nulls})
    found = session.push({"b": whole["b"].slice(3)})["q"].sort_by("k")
    assert found.column("k").to_pylist() == list(range(5, 30))
    got = found.column("p").combine_chunks()
    identical(got.slice(0, 20), column(dtype, make, list(range(5, 25))))
    assert got.slice(20).null_count == 5


@pytest.mark.parametrize("values", [["x", None, "y"], [1, None, 1]], ids=["text", "numbers"])
def test_dictionary_payload_comes_out_decoded(values: list[Any]) -> None:
    coded = pa.array(values).dictionary_encode()
    session = payload_session(coded.type)
    tables = batch(pa.int8(), lambda i: i, 0, 3)
    found = session.push({"a": tables["a"].set_column(2, "p", coded), "b": tables["b"]})["q"].sort_by("k")
    assert found.column("p").to_pylist() == values
    assert found.column("p").type == coded.type.value_type


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        pytest.param(pa.null(), None),
        pytest.param(pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3])),
        (pa.list_(pa.string_view()), ["x"]),  # comes out as list<string>
        (pa.list_view(pa.int32()), [1, 2]),
        (pa.uuid(), b"0123456789abcdef"),
    ],
    ids=str,
)
def test_payload_of_rare_types(dtype: pa.DataType, value: Any) -> None:
    session = payload_session(dtype)
    tables = batch(pa.int8(), lambda i: i, 0, 2)
    payload = pa.array([value, None], dtype)
    session.push({"a": tables["a"].set_column(2, "p", payload)})
    session = dt.LocalSession.restore(session.snapshot())
    found = session.push({"b": tables["b"]})["q"].sort_by("k")
    assert found.column("p").combine_chunks().equals(payload.cast(stored_type(dtype)))
