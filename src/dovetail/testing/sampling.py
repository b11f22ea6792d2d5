"""Random data of a scenario: stream schemas, key values, event times, batches.

Key columns have kinds. A query may equate any two columns of one kind, whatever their types, and the values of a kind include those
on which comparisons go wrong: NaN, both zeros, texts with the same first eight bytes, numbers equal in one type but not in another.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal, get_args

import pyarrow as pa

from dovetail.errors import ConfigError
from dovetail.schema import StreamSchema
from dovetail.testing.values import arrow_column, cast_value, sort_key

Shape = Literal["common", "chain", "star", "cycle", "complete", "tree"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
Pushes = tuple[dict[str, pa.Table], ...]
SECOND = 1_000_000
HOUR = 3600 * SECOND
_MAX_RESULTS = 3_000
_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "integer": (pa.int64(), pa.int32(), pa.int16(), pa.uint32(), pa.uint8()),
    "number": (pa.int64(), pa.float64(), pa.float32(), pa.decimal128(10, 2), pa.int32(), pa.uint32()),
    "decimal": (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.int32()),
    "text": (pa.string(), pa.large_string()),
    "binary": (pa.binary(), pa.large_binary()),
    "date": (pa.date32(), pa.date32(), pa.timestamp("us", "UTC")),
    "timestamp": (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")),
    "boolean": (pa.bool_(),),
}
KINDS: tuple[str, ...] = tuple(_TYPES)
"""Kinds of key columns; a query may equate any two columns of one kind, whatever their types."""
_DOMAINS: dict[str, tuple[Any, ...]] = {
    "integer": (0, 1, 2, 3, 7, 200, -1, 5),
    # 0.1 differs between float, double and decimal; the last two are equal as doubles.
    "number": (0.0, 1.0, math.nan, 0.1, -0.0, 2.0, math.inf, 2.5, 2**53, 2**53 + 1),
    "decimal": (Decimal(1), Decimal("1.10"), Decimal(0), Decimal("2.005"), Decimal(-3), Decimal(99)),
    "text": ("a", "", "A", "é", "longer than eight 1", "longer than eight 2", "日本語", "a "),
    "binary": (b"", b"\x00", b"a", b"\xff", b"longer than eight 1", b"longer than eight 2"),
    "date": tuple(date(1970, 1, 1) + timedelta(days=days) for days in (0, 1, -1, 19_000, 365)),
    "timestamp": (0, 1_000, -1, 1_700_000_000_000_000, 1_700_000_000_000_001, 5_000_000),
    "boolean": (True, False),
}
_NUMBERS = {int: pa.int64(), float: pa.float64(), Decimal: pa.decimal128(38, 10)}
_PAYLOADS = (pa.list_(pa.int32()), pa.struct({"u": pa.int32(), "v": pa.string()}))


@dataclass(frozen=True)
class ScenarioOptions:
    """Features of a scenario; the generator chooses where an option is None."""

    aliases: int | None = None
    """Aliases of the first query, 2 to 6."""
    pushes: int | None = None
    """Number of batches, 1 to 6 when chosen."""
    queries: int | None = None
    """Number of queries over the same streams, 1 to 2 when chosen."""
    tuples: int | None = None
    """Maximum number of tuples per stream; fewer where the result would be large."""
    shape: Shape | None = None
    kinds: Sequence[str] = KINDS
    """Kinds of key columns to choose from."""
    self_joins: bool | None = None
    nulls: bool | None = None
    filters: bool | None = None
    theta: bool | None = None
    """Comparisons between aliases, some of them instead of equalities."""
    expression_keys: bool | None = None
    count_windows: bool | None = None
    late: bool | None = None
    """False: no tuple is late, however the streams are split into batches. Lateness is then an hour, and tuples may also be shuffled;
    or, with count windows, tuples arrive in time order, which must be kept."""
    nested_payload: bool | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and self.shape not in SHAPES:
            raise ConfigError.choice("shape", self.shape, SHAPES)
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError.choice("kinds", kind, KINDS)
        if self.aliases is not None and not 2 <= self.aliases <= 6:
            raise ConfigError(f"aliases is {self.aliases}; allowed: 2 to 6")


def random_stream(rng: random.Random, name: str, kinds: Sequence[str], options: ScenarioOptions) -> StreamSchema:
    """Return a stream with event time `ts`, small integer `x`, keys `k0`, `k1`, ..., and payload `p`, `d`."""
    time_types = [pa.timestamp("us", "UTC")] * 4 + [pa.timestamp("ns", "UTC"), pa.timestamp("ms", "UTC")]
    columns = [pa.field("ts", rng.choice(time_types)), pa.field("x", pa.int32())]
    columns += [pa.field(f"k{index}", rng.choice(_TYPES[kind])) for index, kind in enumerate(kinds)]
    columns.append(pa.field("p", pa.string()))
    payload = rng.choice(_PAYLOADS) if options.nested_payload and rng.random() < 0.7 else None
    if payload is not None:
        columns.append(pa.field("d", payload))
    rng.shuffle(columns)
    lateness = rng.choice((0, 0, SECOND, 3 * SECOND)) if options.late or options.count_windows else HOUR
    return StreamSchema(name, pa.schema(columns), "ts", lateness=lateness)


def recut(rng: random.Random, pushes: Sequence[Mapping[str, pa.Table]], count: int, *, shuffle: bool = False) -> Pushes:
    """Split the same input into `count` other batches, with every tuple exactly once.

    A stream's tuples keep their order of arrival unless `shuffle`. The split decides which tuples are late, because a tuple is
    compared with the watermark before its batch. So the accepted tuples, and with them the results as a multiset, stay the same
    only if no split can make a tuple late: if the lateness is at least the largest event time minus the smallest, or if each stream
    arrives in time order and is not shuffled. `random_scenario(late=False)` guarantees one of these. Results over count windows
    wait for the watermark after the last batch, which then stays the same too.
    """
    batches: list[dict[str, pa.Table]] = [{} for _ in range(count)]
    for name in dict.fromkeys(name for push in pushes for name in push):
        table = pa.concat_tables([push[name] for push in pushes if name in push])
        rows = list(range(table.num_rows))
        if shuffle:
            rng.shuffle(rows)
        bounds = [0, *sorted(rng.randint(0, len(rows)) for _ in range(count - 1)), len(rows)]
        for index in range(count):
            chosen = rows[bounds[index] : bounds[index + 1]]
            if chosen or rng.random() < 0.5:
                batches[index][name] = table.take(pa.array(chosen, pa.int64()))
    return tuple(batches)


def random_pushes(
    rng: random.Random, streams: Sequence[StreamSchema], kinds: Sequence[str], options: ScenarioOptions
) -> Pushes:
    """Return batches in which each stream's tuples arrive in time order, except for bounded disorder."""
    assert options.pushes is not None
    assert options.aliases is not None
    max_values = 5 if options.aliases < 4 else 3  # with more values, joins of many aliases would find no match
    domains = [rng.sample(_DOMAINS[kind], rng.randint(2, min(max_values, len(_DOMAINS[kind])))) for kind in kinds]
    size = _tuples_per_stream(_fewest_values(streams, domains), options)
    base = rng.choice((0, 1_700_000_000 * SECOND, -5 * SECOND))
    span, disorder = rng.choice((2, 10, 30)) * SECOND, rng.choice((0, 2 * SECOND, 5 * SECOND, 9 * SECOND))
    if options.count_windows and not options.late:
        disorder = 0  # the lateness is short so that the watermark moves, and then any disorder would make tuples late
    step = rng.choice((SECOND, SECOND, 250_000, 1_000))
    batches: list[dict[str, pa.Table]] = [{} for _ in range(options.pushes)]
    for stream in streams:
        times = [base + rng.randint(0, span // step) * step for _ in range(rng.randint((size + 1) // 2, size))]
        times.sort(key=lambda ts: ts + rng.randint(0, disorder))
        table = _table(rng, stream, times, domains, 0.15 if options.nulls else 0.0)
        for batch, part in zip(batches, recut(rng, [{stream.name: table}], options.pushes), strict=True):
            batch.update(part)
    return tuple(batches)


def _fewest_values(streams: Sequence[StreamSchema], domains: Sequence[Sequence[Any]]) -> int:
    """Return the smallest number of distinct values of a key column; types without NaN or 0.1 have fewer."""
    return min(
        len({sort_key(_as_type(value, stream.columns.field(f"k{index}").type)) for value in domain})
        for stream in streams
        for index, domain in enumerate(domains)
    )


def _tuples_per_stream(distinct: int, options: ScenarioOptions) -> int:
    """Return how many tuples give about `_MAX_RESULTS` results if keys have `distinct` values."""
    assert options.aliases is not None
    assert options.tuples is not None
    aliases = options.aliases
    if options.theta or options.expression_keys:
        distinct = min(distinct, 3)  # these match more often than an equality of keys
    enough = int((_MAX_RESULTS * distinct ** (aliases - 1)) ** (1 / aliases))
    return max(2, min(options.tuples, enough, 12 if aliases > 4 else 40))


def _table(
    rng: random.Random, stream: StreamSchema, times: Sequence[int], domains: Sequence[Sequence[Any]], nulls: float
) -> pa.Table:
    columns = []
    for column in stream.columns:
        absent = 0.0 if column.name == "ts" else nulls
        if column.name == "ts":
            values: list[Any] = list(times)
        elif column.name == "x":
            values = [rng.randint(0, 5) for _ in times]
        elif column.name == "p":
            values, absent = ["".join(rng.choices("abcdé", k=16)) for _ in times], 0.2
        elif column.name == "d":
            values = [_nested(rng, column.type) for _ in times]
        else:
            values = [_as_type(rng.choice(domains[int(column.name[1:])]), column.type) for _ in times]
        values = [None if rng.random() < absent else value for value in values]
        columns.append(arrow_column(values, column.type))
    return pa.Table.from_arrays(columns, schema=stream.columns)


def _nested(rng: random.Random, dtype: pa.DataType) -> Any:
    if pa.types.is_list(dtype):
        return [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
    return {"u": rng.randint(0, 3), "v": rng.choice(("a", None))}


def _as_type(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value of a domain to a column's type, or to zero where the type has no such value."""
    if isinstance(value, date) or pa.types.is_timestamp(dtype):
        micros = cast_value(value, pa.date32(), dtype) if isinstance(value, date) else value
        # Arrow refuses to lose microseconds.
        return micros // 1000 * 1000 if pa.types.is_timestamp(dtype) and dtype.unit == "ms" else micros
    if type(value) in _NUMBERS:
        converted = cast_value(value, _NUMBERS[type(value)], dtype)
        return cast_value(0, pa.int16(), dtype) if converted is None else converted
    return value
