"""From a user's table to tuples ready for a window: checked, judged by time, sorted, with filters, keys and codes computed.

A table that does not fit its stream's declaration is an error. A tuple without a usable event time (NULL, or out of range) belongs
to no window: it is refused, counted and left out, here as on Spark, where raising would replay it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.times import survey
from dovetail.engine.keys import codes_of, combine
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.buffers import fixed_values, valid_mask
from dovetail.engine.storage.window import WORD_BITS
from dovetail.engine.time.progress import LATEST, Observed, StreamProgress, partition_heads, too_far
from dovetail.errors import ConfigError, SchemaError, listed
from dovetail.plan.execution import View, WindowPlan
from dovetail.query.expressions import Column, Expression
from dovetail.schema import NUMBER, StreamSchema, stored_type, type_name

Reach: TypeAlias = Mapping[int, Mapping[str, int]]
"""By start batch of a query and by stream: the earliest event time that its backfill sees."""
_MICROS = {"ms": 1_000, "s": 1_000_000}
_SAME_TEXT = ({pa.string(), pa.large_string()}, {pa.binary(), pa.large_binary()})
_INT64 = np.dtype(np.int64)
_NO_FLAGS = np.uint64(0)


@dataclass(slots=True)
class Batch:
    """Tuples of one stream."""

    columns: dict[str, pa.Array]
    ts: Int64Array
    in_order: bool = True
    """Whether they are sorted by event time."""
    refused: int = 0
    """Tuples that were left out because their event time was NULL."""
    numbers: Int64Array | None = None
    """By what they are known outside of the engine, if they are."""

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, places: Int64Array) -> Batch:
        indices = pa.array(places)
        columns = {name: values.take(indices) for name, values in self.columns.items()}
        numbers = self.numbers[places] if self.numbers is not None else None
        return Batch(columns, self.ts[places], self.in_order, numbers=numbers)


_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
}
"""Types whose offsets are checked; what is no UTF-8 is let through."""


class TableReader:
    """Checks pushed tables against a stream's declaration.

    `numbered`: they have one more column, `NUMBER`, by which their tuples are known outside of the engine.
    """

    def __init__(self, schema: StreamSchema, *, numbered: bool = False) -> None:
        if numbered and NUMBER in schema.columns.names:
            raise ConfigError(
                f"stream {schema.name!r} has a column {NUMBER!r}, which numbers tuples where they may be shed",
                "give it another name",
            )
        self._numbered = numbered
        self._schema = schema
        self._columns = schema.columns
        self._names = schema.columns.names
        self._event_time = schema.event_time
        self._unit = schema.columns.field(schema.event_time).type.unit
        self._checked = [
            (field.name, _BYTES.get(field.type, field.type))
            for field in schema.columns
            if field.type in _BYTES or pa.types.is_nested(field.type)
        ]

    def read(self, table: object) -> Batch:
        """The tuples of a table, order unchanged."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise SchemaError(
                f"stream {self._schema.name!r}: got {type(table).__name__}; expected a pyarrow.Table or RecordBatch",
                "for pandas or Polars data use pa.Table.from_pandas(df) or df.to_arrow()",
            )
        numbers: Int64Array | None = None
        found: pa.Table = table
        if self._numbered:
            numbers, found = found.column(NUMBER).to_numpy(), found.drop_columns([NUMBER])
        batches = found.to_batches() if found.schema.equals(self._columns) else []
        if len(batches) == 1:
            columns = dict(zip(self._names, batches[0].columns, strict=True))
        else:
            _check_names(self._schema, found.column_names)
            columns = {f.name: _conform(self._schema.name, f, found.column(f.name)) for f in self._columns}
        for name, dtype in self._checked:
            values = columns[name]
            try:
                (values if values.type == dtype else values.view(dtype)).validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"stream {self._schema.name!r}: column {name!r} is damaged: {error}") from None
        refused = columns[self._event_time].null_count
        if refused:
            timed = columns[self._event_time].is_valid()
            columns = {name: values.filter(timed) for name, values in columns.items()}
            numbers = numbers if numbers is None else numbers[timed.to_numpy(zero_copy_only=False)]
        ts = self._micros(fixed_values(columns[self._event_time], _INT64))
        return Batch(columns, ts, refused=refused, numbers=numbers)

    def _micros(self, numbers: Int64Array) -> Int64Array:
        """Event times as int64 UTC microseconds; finer units are cut off downwards, and what is out of range stays so."""
        if self._unit == "us":
            return numbers
        if self._unit == "ns":
            return numbers // 1000
        factor = _MICROS[self._unit]
        beyond = LATEST // factor + 1
        return np.clip(numbers, -beyond, beyond) * factor


@dataclass(slots=True)
class Judged:
    """A batch after its times were looked at: what is accepted, in time order, and what the stream's progress needs to know."""

    accepted: Batch
    seen: Observed


def judge(batch: Batch, progress: StreamProgress, now: int | None) -> Judged:
    """Refuse tuples out of range, set aside those too far ahead, drop late ones, sort the rest. Changes nothing."""
    seen = Observed(len(batch) + batch.refused, refused=batch.refused)
    watermark, limit = progress.watermark, too_far(progress.schema, now)
    if len(batch):
        surveyed = survey(batch.ts, watermark)
        if not -LATEST <= surveyed[2] <= surveyed[3] <= limit:
            batch = batch.take(np.flatnonzero(usable(batch.ts, limit, seen)))
            surveyed = survey(batch.ts, watermark) if len(batch) else surveyed
    if len(batch):
        late, in_order, smallest, largest = surveyed
        seen.late, batch.in_order, seen.largest = int(late), bool(in_order), int(largest)
        if progress.schema.progress_by is not None:
            seen.heads = partition_heads(batch.ts, batch.columns[progress.schema.progress_by])
        if seen.late:
            seen.late_by = progress.head - int(smallest)
            batch = batch.take(np.flatnonzero(batch.ts >= watermark))
    return Judged(in_time_order(batch), seen)


def usable(ts: Int64Array, limit: int, seen: Observed) -> BoolArray:
    """Which times are in range and not after `limit`; the others are counted in `seen`."""
    within = (ts >= -LATEST) & (ts <= LATEST)
    near: BoolArray = within & (ts <= limit)
    seen.ahead += int(np.count_nonzero(within & ~near))
    seen.refused += int(np.count_nonzero(~within))
    return near


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
        if not _same_values(values.type, field.type):
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} has type {values.type}; declared {field.type} "
                f"({type_name(field.type)})",
                "cast the table to the declared schema before pushing it",
            )
        try:
            if pa.types.is_run_end_encoded(values.type):
                chunks = [pc.run_end_decode(chunk) for chunk in values.chunks]
                values = pa.chunked_array(chunks, values.type.value_type)
            values = values.cast(field.type)
        except pa.ArrowException as error:
            raise SchemaError(f"stream {stream!r}: column {field.name!r} is damaged: {error}") from None
    if values.num_chunks == 1:
        return values.chunk(0)
    try:
        return values.combine_chunks() if values.num_chunks else pa.array([], field.type)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"stream {stream!r}: column {field.name!r} does not fit one Arrow array: {error}",
            "push it in smaller batches",
        ) from None


def _same_values(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether two types differ in encoding only."""
    plain = stored_type(found)
    return plain == declared or any(plain in group and declared in group for group in _SAME_TEXT)


def in_time_order(batch: Batch) -> Batch:
    """The batch sorted by event time; itself when it already is."""
    if batch.in_order:
        return batch
    ordered = batch.take(np.argsort(batch.ts, kind="stable"))
    ordered.in_order = True
    return ordered


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
    """Arrow arrays that Arrow can sort, whose order is the values' own: validity first, then NaN last, then the value."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    keys = {f"{name}?": values.is_valid().cast(pa.int8())}
    if pa.types.is_floating(values.type):
        keys[f"{name}~"] = pc.is_nan(values)
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif pa.types.is_nested(values.type) or pa.types.is_null(values.type) or pa.types.is_interval(values.type):
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


def arrivals(
    batch: Batch, window: WindowPlan, *, all_rows: bool, came: int, reach: Reach | None = None, unseen: bool = False
) -> NewRows:
    """Compute all that a window stores of tuples that came with batch `came`; unless `all_rows`, only of those that somebody sees.

    `unseen`: also say when the others came.
    """
    values, hidden = _Values(batch), None
    flags: list[UInt64Array | np.uint64] = [_NO_FLAGS] * window.words
    for view in window.views:
        word = view.bit // WORD_BITS
        if view.since <= came:
            flags[word] = flags[word] | values.visible(view)
        elif view.backfill and view.complete_from <= came and reach is not None and window.stream in reach[view.since]:
            time = reach[view.since][window.stream]
            flags[word] = flags[word] | np.where(batch.ts >= time, values.visible(view), _NO_FLAGS)
    if not all_rows:
        seen = (
            np.bitwise_or.reduce([np.broadcast_to(word, len(batch)) for word in flags]) if len(flags) > 1 else flags[0]
        )
        if isinstance(seen, np.ndarray) and not seen.all():
            places, hidden = np.flatnonzero(seen), batch.ts[seen == 0] if unseen else None
            batch = batch.take(places)
            flags = [word[places] if isinstance(word, np.ndarray) else word for word in flags]
            values = _Values(batch)
    kept = window.kept
    parts = {name: codes_of(values.get(name, part)) for name, part in kept.parts.items()}
    return NewRows(
        batch.ts,
        batch.columns,
        {name: values.get(name, each) for name, each in kept.columns.items() if not isinstance(each, Column)},
        {key: parts[key[0]] if len(key) == 1 else combine([parts[name] for name in key]) for key in kept.codes},
        flags,
        hidden,
        batch.numbers,
    )


class _Values:
    """Expressions over one batch, each evaluated once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._known: dict[str, pa.Array] = {}

    def get(self, name: str, expression: Expression) -> pa.Array:
        """The values of an expression whose text is `name`."""
        if isinstance(expression, Column):
            return self._batch.columns[expression.name]
        if name not in self._known:
            self._known[name] = evaluate(expression, lambda column: self._batch.columns[column.name], len(self._batch))
        return self._known[name]

    def visible(self, view: View) -> UInt64Array | np.uint64:
        mask, bit = None, np.uint64(1 << view.bit % WORD_BITS)
        for key in view.keys:
            valid = valid_mask(self.get("" if isinstance(key, Column) else str(key), key))
            if valid is not None:
                mask = valid if mask is None else mask & valid
        for condition in view.filters:
            true = is_true(self.get(str(condition), condition))
            mask = true if mask is None else mask & true
        return bit if mask is None else np.where(mask, bit, _NO_FLAGS)
