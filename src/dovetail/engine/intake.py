"""From a user's table to tuples ready for a window: checked, judged by time, sorted, with filters, keys and codes computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.rows import is_sorted
from dovetail.engine.keys import codes_of, combine
from dovetail.engine.window_store import Arrivals, KeyId, WindowStore
from dovetail.errors import SchemaError, listed
from dovetail.query.expressions import Column, Expression
from dovetail.schema import StreamSchema, sql_type, type_name

_EARLIEST, _LATEST = -(1 << 61), 1 << 61
_WORD_BITS = 64


@dataclass(slots=True)
class Batch:
    """Accepted tuples of one stream, sorted by event time."""

    columns: dict[str, pa.Array]
    ts: Int64Array

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, places: Int64Array) -> Batch:
        indices = pa.array(places)
        return Batch({name: values.take(indices) for name, values in self.columns.items()}, self.ts[places])


def read_batch(schema: StreamSchema, table: object) -> Batch:
    """Check a pushed table against its stream's declaration; order unchanged."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise SchemaError(
            f"stream {schema.name!r}: got {type(table).__name__}; expected a pyarrow.Table or RecordBatch",
            "for pandas or Polars data use pa.Table.from_pandas(df) or df.to_arrow()",
        )
    _check_names(schema, table.column_names)
    columns = {field.name: _conform(schema.name, field, table.column(field.name)) for field in schema.columns}
    times = columns[schema.event_time]
    if times.null_count:
        raise SchemaError(
            f"stream {schema.name!r}: {times.null_count} of {len(times)} event times in column "
            f"{schema.event_time!r} are NULL",
            "drop or repair those tuples first; a tuple without a time belongs to no window",
        )
    return Batch(columns, event_times(schema, times))


def event_times(schema: StreamSchema, times: pa.Array) -> Int64Array:
    """Event times as int64 UTC microseconds; finer units are cut off downwards."""
    unit = times.type.unit
    numbers: Int64Array = np.asarray(times.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if unit == "ns":
        return numbers // 1000
    factor = {"us": 1, "ms": 1000, "s": 1_000_000}[unit]
    if len(numbers) and (numbers.max() > _LATEST // factor or numbers.min() < _EARLIEST // factor):
        raise SchemaError(f"stream {schema.name!r}: an event time in column {schema.event_time!r} is out of range")
    return numbers if factor == 1 else numbers * factor


def _check_names(schema: StreamSchema, found: list[str]) -> None:
    expected = schema.columns.names
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing or extra:
        faults = [f"missing {listed(missing)}"] * bool(missing) + [f"not declared {listed(extra)}"] * bool(extra)
        raise SchemaError(f"stream {schema.name!r}: {'; '.join(faults)}; declared columns: {listed(expected)}")
    if len(found) != len(expected):
        raise SchemaError(f"stream {schema.name!r}: a column stands twice in {listed(found)}")


def _conform(stream: str, field: pa.Field, values: pa.ChunkedArray) -> pa.Array:
    if values.type != field.type:
        encoded = pa.types.is_dictionary(values.type) or pa.types.is_run_end_encoded(values.type)
        same_kind = sql_type(values.type) is not None and sql_type(values.type) == sql_type(field.type)
        text = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}
        if not encoded and not (same_kind and values.type in text) and values.type not in (pa.string_view(), pa.binary_view()):
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} has type {values.type}; declared {field.type} "
                f"({type_name(field.type)})",
                "cast the table to the declared schema before pushing it",
            )
        try:
            values = values.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} has type {values.type}, which does not fit {field.type}: {error}"
            ) from None
    if values.num_chunks == 1:
        return values.chunk(0)
    return values.combine_chunks() if values.num_chunks else pa.array([], field.type)


def in_time_order(batch: Batch) -> Batch:
    """The batch sorted by event time; itself when it already is."""
    return batch if is_sorted(batch.ts) else batch.take(np.argsort(batch.ts, kind="stable"))


def in_content_order(batch: Batch) -> Batch:
    """The batch sorted by (event time, row content), columns in declared order, NULL first, NaN last.

    A count window must hold the same tuples whatever order they arrived in, so ties of time are broken by content.
    """
    batch = in_time_order(batch)
    ties = batch.ts[1:] == batch.ts[:-1]
    if not ties.any():
        return batch
    keys: dict[str, pa.Array] = {"": pa.array(batch.ts)}
    for name, values in batch.columns.items():
        keys.update(_order_keys(name, values))
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending", "at_start") for name in keys])
    return batch.take(order.to_numpy())


def _order_keys(name: str, values: pa.Array) -> dict[str, pa.Array]:
    """Arrow arrays whose order is the values' own: validity first, then NaN last, then the value."""
    keys = {f"{name}?": values.is_valid().cast(pa.int8())}
    if pa.types.is_floating(values.type):
        keys[f"{name}~"] = pc.is_nan(values)
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif pa.types.is_nested(values.type) or pa.types.is_null(values.type):
        values = _nested_ranks(values)
    keys[f"{name}="] = values
    return keys


def _nested_ranks(values: pa.Array) -> pa.Array:
    """Numbers that order nested values element by element. Arrow cannot, so this works in Python, for batches with ties only."""
    keys = [_nested_key(value) for value in values.to_pylist()]
    rank = {key: number for number, key in enumerate(sorted(set(keys)))}
    return pa.array([rank[key] for key in keys], pa.int64())


def _nested_key(value: object) -> tuple[object, ...]:
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *map(_nested_key, value.values()))
    if isinstance(value, list | tuple):
        return (1, *map(_nested_key, value))
    return (1, value != value, value)  # noqa: PLR0124 - only NaN differs from itself


@dataclass(frozen=True, slots=True)
class Usage:
    """How one alias of one query uses a window: which of its rows it may see."""

    query: str
    alias: str
    filters: tuple[Expression, ...]
    keys: tuple[Expression, ...]
    """Expressions that must not be NULL."""
    word: int
    bit: int


@dataclass(slots=True)
class Needs:
    """What a window must hold for its usages: expressions by name, keys by their parts' names."""

    columns: dict[str, Expression]
    parts: dict[str, Expression]
    codes: set[KeyId]


def arrivals(batch: Batch, store: WindowStore, needs: Needs, usages: Iterable[Usage], *, all_rows: bool) -> Arrivals:
    """Compute all that a window stores of a batch. Rows that no usage can see are left out unless `all_rows`."""
    values = _Values(batch)
    flags = [np.zeros(len(batch), np.uint64) for _ in range(store.flag_words)]
    for usage in usages:
        flags[usage.word] |= values.visible(usage)
    if not all_rows and len(batch):
        seen = np.bitwise_or.reduce(flags) != 0 if flags else np.zeros(len(batch), np.bool_)
        if not seen.all():
            places = np.flatnonzero(seen)
            batch = batch.take(places)
            flags = [word[places] for word in flags]
            values = _Values(batch)
    part_codes = {name: codes_of(values[part]) for name, part in needs.parts.items()}
    return Arrivals(
        batch.ts,
        {name: values[expression] for name, expression in needs.columns.items()},
        {key: combine([part_codes[name] for name in key]) for key in needs.codes},
        flags,
    )


class _Values:
    """Expressions over one batch, each evaluated once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._known: dict[Expression, pa.Array] = {}

    def __getitem__(self, expression: Expression) -> pa.Array:
        if expression not in self._known:
            self._known[expression] = evaluate(expression, self._column, len(self._batch))
        return self._known[expression]

    def _column(self, column: Column) -> pa.Array:
        return self._batch.columns[column.name]

    def visible(self, usage: Usage) -> UInt64Array:
        mask = None
        for key in usage.keys:
            values = self[key]
            if values.null_count:
                valid = values.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
        for condition in usage.filters:
            true = is_true(self[condition])
            mask = true if mask is None else mask & true
        bit = np.uint64(usage.bit)
        if mask is None:
            return np.full(len(self._batch), bit, np.uint64)
        return np.where(mask, bit, np.uint64(0))


def free_bit(taken: Mapping[tuple[int, int], object] | Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The first (word, bit) that no usage has."""
    used = set(taken)
    place = 0
    while (place // _WORD_BITS, 1 << (place % _WORD_BITS)) in used:
        place += 1
    return place // _WORD_BITS, 1 << (place % _WORD_BITS)
