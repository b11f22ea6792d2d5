"""Types: whatever Arrow type goes in as payload comes out identical; equalities compare as Spark does, hash collisions or not."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.engine import keys as engine_keys
from dovetail.engine.join import stages as engine_stages
from dovetail.engine.kernels.index import GOLDEN
from dovetail.engine.storage import rows as engine_rows
from dovetail.engine.storage.columns import nested, texts
from dovetail.errors import QueryError
from dovetail.schema import StreamSchema, stored_type

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))
from session_and_oracle import Pair

TS = pa.timestamp("us", tz="UTC")
UTC_NS = pa.timestamp("ns", tz="UTC")
Make = Callable[[int], Any]
"""From a row number to a value; equal numbers give equal values."""

# -- payload ----------------------------------------------------------------------------------------------------------------------


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
    """Every seventh value is NULL."""
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
def test_tuples_of_one_time_enter_count_windows_in_the_same_order(dtype: pa.DataType) -> None:
    """Whatever the order in which they come: of six tuples of one time the last two are joined."""
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
def test_rare_payload(dtype: pa.DataType, value: Any) -> None:
    session = payload_session(dtype)
    tables = batch(pa.int8(), lambda i: i, 0, 2)
    payload = pa.array([value, None], dtype)
    session.push({"a": tables["a"].set_column(2, "p", payload)})
    session = dt.LocalSession.restore(session.snapshot())
    found = session.push({"b": tables["b"]})["q"].sort_by("k")
    assert found.column("p").combine_chunks().equals(payload.cast(stored_type(dtype)))


# -- keys -------------------------------------------------------------------------------------------------------------------------

CENTS = [Decimal(number) / 100 for number in range(-20, 100)]
BIG = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63 - 1, -(2**63), 0]
NUMBERS = [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 0.1, 5e-324, 2.0**53]
LONG = [
    "",
    "a",
    "a\0",
    "é",
    *(prefix + tail for prefix in ("x" * 8, "x" * 1000) for tail in ("", "a", "b", "ab", "ba")),
]
SECONDS_2024 = 1_704_067_200

KEYS: list[Any] = [
    ("int32 = int64", pa.int32(), [0, 1, -1, 2**31 - 1], pa.int64(), [0, 1, -1, 2**31 - 1, 2**32, 2**32 + 1]),
    ("int8 = int16", pa.int8(), [0, -1, 127, -128], pa.int16(), [0, -1, 127, -128, 128, 255, 256]),
    ("uint8 = int8", pa.uint8(), [0, 255, 127, 128], pa.int8(), [0, -1, 127, -128]),
    ("uint32 = int32", pa.uint32(), [0, 2**32 - 1, 2**31], pa.int32(), [0, -1, -(2**31)]),
    ("uint64 = int64", pa.uint64(), [0, 2**64 - 1, 2**63, 5], pa.int64(), [0, -1, -(2**63), 5]),
    ("uint64 = double", pa.uint64(), [0, 2**64 - 1, 2**63, 2**53 + 1], pa.float64(), [0.0, 2.0**64, 2.0**63, 2.0**53]),
    ("int64 = double at 2**53", pa.int64(), BIG, pa.float64(), [float(number) for number in BIG]),
    ("int64 = float", pa.int64(), [2**24, 2**24 + 1, 3], pa.float32(), [2.0**24, 3.0]),
    ("double", pa.float64(), NUMBERS, pa.float64(), NUMBERS),
    ("float = double", pa.float32(), NUMBERS, pa.float64(), [*NUMBERS, float(np.float32(0.1))]),
    ("half = double", pa.float16(), [np.float16(x) for x in NUMBERS[:7]], pa.float64(), [*NUMBERS, float(np.float16(0.1))]),
    ("float, NaNs of other bits", pa.float64(), [math.nan, -math.nan], pa.float32(), [math.nan, 1.0]),
    pytest.param("decimal = double", pa.decimal128(10, 2), CENTS, pa.float64(), [float(cent) for cent in CENTS]),
    ("decimal = float", pa.decimal128(10, 2), CENTS, pa.float32(), [float(cent) for cent in CENTS]),
    ("decimal = int", pa.decimal128(10, 2), CENTS, pa.int32(), [-1, 0, 1, 2, 3]),
    ("decimal scales", pa.decimal128(10, 2), CENTS, pa.decimal128(12, 4),
     [cent + Decimal("0.0001") * (i % 2) for i, cent in enumerate(CENTS)]),
    ("wide decimals", pa.decimal128(38, 0), [Decimal(10**37), Decimal(1), Decimal(-1), Decimal(2**64)], pa.decimal128(30, 2),
     [Decimal(1), Decimal(-1), Decimal(2**64), Decimal("1.01")]),
    ("decimals that lose scale", pa.decimal128(38, 0), [Decimal(1), Decimal(2)], pa.decimal128(38, 37),
     [Decimal(1), Decimal("1.5"), Decimal("1.6")]),
    ("decimal widths", pa.decimal32(9, 2), [Decimal("1.25"), Decimal(-1)], pa.decimal256(30, 4),
     [Decimal("1.25"), Decimal(-1), Decimal("1.2501")]),
    ("decimal64", pa.decimal64(18, 0), [Decimal(10**17), Decimal(-1)], pa.decimal128(18, 0), [Decimal(10**17), Decimal(-1)]),
    ("string = large string", pa.string(), LONG, pa.large_string(), LONG),
    ("binary = large binary", pa.binary(), [t.encode() for t in LONG], pa.large_binary(), [t.encode() for t in LONG]),
    ("fixed binary = binary", pa.binary(3), [b"abc", b"abd", b"\0\0\0"], pa.binary(), [b"abc", b"ab", b"\0\0\0", b"\0\0"]),
    ("boolean", pa.bool_(), [True, False], pa.bool_(), [True, True, False]),
    ("date = timestamp", pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 1, 1), date(9999, 12, 31)], TS,
     [0, 1, -1, -86_400_000_000, SECONDS_2024 * 1_000_000]),
    ("date64 = date32", pa.date64(), [date(1970, 1, 1), date(1969, 12, 31)], pa.date32(), [date(1970, 1, 1), date(1969, 12, 31)]),
    ("timestamps of two units", UTC_NS, [0, 1, 999, 1000, -1, -1000, 1_000_000], pa.timestamp("ms", "UTC"), [0, 1, -1]),
    ("timestamps of two zones", pa.timestamp("us", "Asia/Tokyo"), [0, 1], TS, [0, 1, 2]),
    ("timestamps without zone", pa.timestamp("ns"), [0, 1000, -1], pa.timestamp("s"), [0, 1, -1]),
    ("durations", pa.duration("ms"), [0, 1, -1], pa.duration("us"), [0, 1000, -1000, 1]),
    pytest.param("negative nanoseconds", pa.duration("ns"), [0, 1, 999, 1000, -1], pa.duration("us"), [0, 1, -1]),
    pytest.param("durations that do not fit", pa.duration("s"), [2**62, 0], pa.duration("us"), [0]),
]  # fmt: skip
KEYS = [case if hasattr(case, "marks") else pytest.param(*case, id=case[0]) for case in KEYS]
CONFIGS = {
    "hash": dt.Config(join="hash"),
    "nested-loop": dt.Config(join="nested-loop"),
    "eager": dt.Config(evaluation="eager", expiration="eager"),
}


def tabled(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.Table.from_arrays([pa.array(values, field.type) for values, field in columns], schema=schema)


def key_pair(left: pa.DataType, right: pa.DataType, config: dt.Config) -> Pair:
    streams = [
        StreamSchema(name, pa.schema([("ts", TS), ("k", dtype)]), "ts") for name, dtype in (("a", left), ("b", right))
    ]
    pair = Pair(streams, config)
    pair.add(
        "q", "SELECT a.ts AS i, b.ts AS j FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.k = b.k", random.Random(0), config
    )
    return pair


def keyed(dtype: pa.DataType, values: Sequence[Any], first: int = 0) -> pa.Table:
    times = pa.array(range(first, first + len(values)), TS)
    return pa.table({"ts": times, "k": pa.array(values, dtype)})


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("name", "left", "left_values", "right", "right_values"), KEYS)
def test_equal_keys(
    name: str, left: pa.DataType, left_values: list[Any], right: pa.DataType, right_values: list[Any], config: str
) -> None:
    pair = key_pair(left, right, CONFIGS[config])
    pair.push({"a": keyed(left, [*left_values, None])})
    pair.push({"b": keyed(right, [None, *right_values, None], 200)})
    pair.push({"a": keyed(left, left_values[::-1], 600), "b": keyed(right, right_values, 600)})
    pair.check_all()
    assert pair.found["q"][1].num_rows, f"{name}: nothing matched, so nothing was tested"


@pytest.mark.parametrize(
    "dtype",
    [
        pa.time32("s"),
        pa.time64("us"),
        pa.list_(pa.int32()),
        pa.struct({"a": pa.int32()}),
        pa.map_(pa.string(), pa.int32()),
    ],
    ids=str,
)
def test_types_without_equality_are_refused(dtype: pa.DataType) -> None:
    with pytest.raises(QueryError, match="can be selected but not compared"):
        key_pair(dtype, dtype, dt.Config())


# -- collisions -------------------------------------------------------------------------------------------------------------------


def _same_code(*arguments: Any) -> None:
    """Stands for `hash_bytes` and `mix`, whose last argument is the output."""
    arguments[-1][:] = 42


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """All strings, long decimals and composite keys get one code; only values can tell them apart."""
    monkeypatch.setattr(engine_keys, "hash_bytes", _same_code)
    monkeypatch.setattr(engine_keys, "mix", _same_code)
    monkeypatch.setattr(engine_stages, "mix", _same_code)


@pytest.mark.usefixtures("colliding")
def test_the_fixture_makes_codes_collide() -> None:
    assert set(engine_keys.codes_of(pa.array(["x", "y"])).tolist()) == {42}
    assert set(engine_keys.combine([np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64)]).tolist()) == {42}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.string(), LONG),
        (pa.large_string(), LONG),
        (pa.binary(), [t.encode() for t in LONG]),
        (pa.binary(3), [b"abc", b"abd", b"\0\0\0"]),
        (pa.decimal128(38, 2), CENTS[:60]),
        (pa.decimal256(30, 2), CENTS[:60]),
        (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("colliding")
def test_colliding_values_are_told_apart(dtype: pa.DataType, values: list[Any], config: str) -> None:
    pair = key_pair(dtype, dtype, CONFIGS[config])
    pair.push({"a": keyed(dtype, [*values, None])})
    pair.push({"b": keyed(dtype, [None, *values, values[0]], 100)})
    pair.check_all()
    assert pair.found["q"][1].num_rows == len(values) + 1


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("colliding")
def test_colliding_composite_keys_are_told_apart(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_stages, "_leading", lambda _: [])  # compiled stages mix codes as they were compiled to
    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("y", pa.int32()), ("s", pa.string())])
    pair = Pair([StreamSchema(name, schema, "ts") for name in "abc"], CONFIGS[config])
    rng = random.Random(5)
    two = "SELECT a.ts AS i, b.ts AS j FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x AND a.y = b.y"
    three = """SELECT a.ts AS i, b.ts AS j, c.ts AS k FROM a [RANGE 1 s], b [RANGE 1 s], c [RANGE 1 s]
        WHERE a.x = b.x AND a.y = b.y AND b.x = c.x AND b.s = c.s AND a.y = c.y"""
    pair.add("two", two, rng, CONFIGS[config])
    pair.add("text", two.replace("a.y = b.y", "a.s = b.s"), rng, CONFIGS[config])
    pair.add("three", three, rng, CONFIGS[config])
    for first in (0, 100):
        rows = {
            name: [(first + i, rng.randint(0, 3), rng.randint(0, 2), rng.choice(("u", "v", None))) for i in range(15)]
            for name in "abc"
        }
        pair.push({name: tabled(schema, content) for name, content in rows.items()})
    pair.check_all()
    assert all(sum(found.num_rows for found in pair.found[name]) > 10 for name in ("two", "text", "three"))


@pytest.mark.parametrize("config", CONFIGS)
def test_composite_keys_whose_codes_are_equal_are_told_apart(config: str) -> None:
    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("y", pa.int64())])
    x, nothing = np.array([1, 2**40 + 7, -3], np.int64), np.zeros(3, np.uint64)
    halves = engine_keys.combine([x.view(np.uint64), nothing]) * np.uint64(pow(int(GOLDEN), -1, 2**64))
    y = halves.view(np.int64)  # what is mixed in last is undone by itself
    assert len(set(engine_keys.combine([x.view(np.uint64), halves]).tolist())) == 1
    pair = Pair([StreamSchema(name, schema, "ts") for name in "ab"], CONFIGS[config])
    sql = "SELECT a.ts AS i, b.ts AS j FROM a [RANGE 1 s], b [RANGE 1 s] WHERE a.x = b.x AND a.y = b.y"
    pair.add("q", sql, random.Random(1), CONFIGS[config])
    for first, name in ((0, "a"), (100, "b")):
        rows = [(first + i, int(one), int(other)) for i, (one, other) in enumerate(zip(x, y, strict=True))]
        pair.push({name: tabled(schema, rows)})
    pair.check_all()
    assert sum(found.num_rows for found in pair.found["q"]) == 3


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.string(), ["u", "v", None]),
        (pa.large_string(), ["u", "v", None]),
        (pa.int64(), [1, 2, None]),
        (pa.float64(), [0.0, -0.0, math.nan, None]),
        (pa.binary(1), [b"u", b"v", None]),
        (pa.decimal128(38, 2), [Decimal(1), Decimal(2), None]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("colliding")
def test_colliding_partitions_are_told_apart(dtype: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("c", dtype)])
    config = dt.Config()
    pair = Pair([StreamSchema(name, schema, "ts") for name in "ab"], config)
    sql = "SELECT a.ts AS i, b.ts AS j FROM a [PARTITION BY c ROWS 2], b [RANGE 5 us] WHERE a.x = b.x"
    rng = random.Random(3)
    pair.add("q", sql, rng, config)
    for first in range(0, 60, 20):
        rows = [(first + i, rng.randint(0, 1), rng.choice(values)) for i in range(20)]
        whole = tabled(schema, rows)
        pair.push({"a": whole, "b": whole})
        pair.check_all()
    assert sum(found.num_rows for found in pair.found["q"]) > 20


# -- values that no function can take -----------------------------------------------------------------------------------------------


def _bytes_as_text(*values: bytes) -> pa.Array:
    """Strings that are no UTF-8, which Arrow lets through unless asked."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("column", "expression", "expected"),
    [
        (_bytes_as_text(b"\xff\xfe", b"AB", b"\xc3\x84"), "lower(a.v)", [None, "ab", "ä"]),
        (_bytes_as_text(b"\xff\xfe", b"ab", b"\xc3\xa4"), "upper(a.v)", [None, "AB", "Ä"]),
        (_bytes_as_text(b" \xff ", b" b ", b"c"), "trim(a.v)", [None, "b", "c"]),
        (_bytes_as_text(b"\xff\xfe", b"abc", b""), "substring(a.v, 1, 2)", [None, "ab", ""]),
        (_bytes_as_text(b"\xff\xfe", b"abc", b""), "substring(a.v, -2, 2)", [None, "bc", ""]),
        (
            pa.array([2**62, 0, -(2**62)], pa.int64()).view(pa.date64()),
            "CAST(a.v AS STRING)",
            [None, "1970-01-01", None],
        ),
        (
            pa.array([2**62, 86_400_000, -(2**62)], pa.int64()).view(pa.date64()),
            "CAST(a.v AS TIMESTAMP) > TIMESTAMP '1970-01-01 00:00:00'",
            [None, True, None],
        ),
        (
            pa.array([2**31 - 1, 0, -(2**31)], pa.int32()).view(pa.date32()),
            "CAST(a.v AS STRING)",
            [None, "1970-01-01", None],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["output", "condition"])
def test_a_value_that_a_function_cannot_take_gives_null(
    column: pa.Array, expression: str, expected: list[object], place: str
) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("v", column.type)])
    session = dt.LocalSession()
    for name in "ab":
        session.stream(name, schema, "ts")
    join = "FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.n = b.n"
    if place == "output":
        session.query("q", f"SELECT a.n, {expression} AS x {join}")
    else:
        session.query("q", f"SELECT a.n {join} AND (({expression}) IS NULL OR b.n < 0)")
    table = pa.table([pa.array([0, 0, 0], schema.field("ts").type), [0, 1, 2], column], schema=schema)
    rows = session.push({"a": table, "b": table})["q"].sort_by("n").to_pylist()
    if place == "output":
        assert [row["x"] for row in rows] == expected
    else:
        assert [row["n"] for row in rows] == [number for number, value in enumerate(expected) if value is None]
