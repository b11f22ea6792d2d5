"""Join keys of any two types match as in Spark, even when hash codes collide."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from math import copysign
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from session_and_oracle import Pair

import dovetail as dt
from dovetail.engine import keys as engine_keys
from dovetail.engine.join import stages as engine_stages
from dovetail.engine.kernels.index import GOLDEN
from dovetail.errors import QueryError
from dovetail.schema import StreamSchema

TS = pa.timestamp("us", tz="UTC")
UTC_NS = pa.timestamp("ns", tz="UTC")


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
def test_keys_of_two_types_match_as_in_the_oracle(
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
    """Replaces `hash_bytes` and `mix`, whose last argument is the output."""
    arguments[-1][:] = 42


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all strings, long decimals and composite keys one code, so only values distinguish them."""
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
def test_values_with_colliding_codes_do_not_match(dtype: pa.DataType, values: list[Any], config: str) -> None:
    pair = key_pair(dtype, dtype, CONFIGS[config])
    pair.push({"a": keyed(dtype, [*values, None])})
    pair.push({"b": keyed(dtype, [None, *values, values[0]], 100)})
    pair.check_all()
    assert pair.found["q"][1].num_rows == len(values) + 1


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("colliding")
def test_composite_keys_with_colliding_codes_do_not_match(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_stages, "_leading", lambda _: [])  # compiled stages ignore the patched `mix`
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
def test_composite_keys_with_equal_mixed_codes_do_not_match(config: str) -> None:
    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("y", pa.int64())])
    x, nothing = np.array([1, 2**40 + 7, -3], np.int64), np.zeros(3, np.uint64)
    halves = engine_keys.combine([x.view(np.uint64), nothing]) * np.uint64(pow(int(GOLDEN), -1, 2**64))
    y = halves.view(np.int64)  # the last part cancels the mix of the first
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
def test_partitions_with_colliding_codes_stay_separate(dtype: pa.DataType, values: list[Any]) -> None:
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


def test_equal_keys_are_output_as_in_their_own_stream() -> None:
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


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, -5, 2**63 - 1, -(2**63)], pa.int64()),
        pa.array([1, None, -128], pa.int8()),
        pa.array([0.0, None, -1.5, math.inf, 5e-324], pa.float64()),
        pa.array([0.5, None, -1.5], pa.float32()),
        pa.array([True, None, False]),
        pa.array([date(1969, 1, 1), None, date(2024, 1, 1)]),
        pa.array([-1, None, 1], TS),
        pa.array([Decimal("-0.01"), None, Decimal("99999999.99")], pa.decimal128(10, 2)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_exact_codes(values: pa.Array) -> None:
    assert engine_keys.values_of(engine_keys.codes_of(values), values.type).equals(values)
    without_nulls = values.drop_null()
    assert engine_keys.values_of(engine_keys.codes_of(without_nulls), values.type).equals(without_nulls)
