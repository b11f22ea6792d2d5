"""Intake: check a pushed table, drop its late tuples, and sort the others.

It also evaluates the filters and keys that windows keep.

A table that does not match its stream's declaration is an error. A tuple without a usable event time (NULL or out of range) belongs
to no window: it is dropped and counted, because on Spark an error would replay it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.evaluate import evaluate, is_true
from dovetail.engine.kernels.times import summarize_times
from dovetail.engine.keys import codes_of, combine
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.buffers import fixed_values, valid_mask
from dovetail.engine.storage.window import WORD_BITS
from dovetail.engine.time.progress import (
    LATEST,
    ArrivalStats,
    StreamProgress,
    latest_allowed,
    partition_max_times,
    usable,
)
from dovetail.errors import ConfigError, SchemaError, listed
from dovetail.plan.execution import View, WindowPlan
from dovetail.query.expressions import Column, Expression
from dovetail.schema import NUMBER_COLUMN, StreamSchema, stored_type, type_name

BackfillStarts: TypeAlias = Mapping[int, Mapping[str, int]]
"""Earliest event time that a backfilled query sees, by its start batch and by stream."""
_MICROS = {"ms": 1_000, "s": 1_000_000}
_SAME_TEXT = ({pa.string(), pa.large_string()}, {pa.binary(), pa.large_binary()})
_INT64 = np.dtype(np.int64)
_NO_FLAGS = np.uint64(0)
_FLAGS = [np.uint64(1 << bit) for bit in range(WORD_BITS)]


@dataclass(slots=True)
class Batch:
    """Tuples of one stream."""

    columns: dict[str, pa.Array]
    ts: Int64Array
    in_order: bool = True
    """Whether the tuples are sorted by event time."""
    refused: int = 0
    """Tuples dropped because their event time was NULL."""
    numbers: Int64Array | None = None
    """Each tuple's number in the shard's log, if tuples carry them."""

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, indices: Int64Array) -> Batch:
        arrow_indices = pa.array(indices)
        columns = {name: values.take(arrow_indices) for name, values in self.columns.items()}
        numbers = self.numbers[indices] if self.numbers is not None else None
        return Batch(columns, self.ts[indices], self.in_order, numbers=numbers)


_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
}
"""Types whose offsets are checked, and the type to check them as: invalid UTF-8 is accepted."""


class TableReader:
    """Reads pushed tables and checks them against a stream's declaration.

    `numbered`: tables have one more column, `NUMBER_COLUMN`, with each tuple's number in the shard's log.
    """

    def __init__(self, schema: StreamSchema, *, numbered: bool = False) -> None:
        if numbered and NUMBER_COLUMN in schema.columns.names:
            raise ConfigError(
                f"stream {schema.name!r} has a column {NUMBER_COLUMN!r}, which numbers tuples where they may be shed",
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
        """Return the tuples of a table, in the same order."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise SchemaError(
                f"stream {self._schema.name!r}: got {type(table).__name__}; expected a pyarrow.Table or RecordBatch",
                "for pandas or Polars data use pa.Table.from_pandas(df) or df.to_arrow()",
            )
        numbers: Int64Array | None = None
        content: pa.Table = table
        if self._numbered:
            numbers, content = content.column(NUMBER_COLUMN).to_numpy(), content.drop_columns([NUMBER_COLUMN])
        batches = content.to_batches() if content.schema.equals(self._columns) else []
        if len(batches) == 1:
            columns = dict(zip(self._names, batches[0].columns, strict=True))
        else:
            _check_names(self._schema, content.column_names)
            columns = {f.name: conform(self._schema.name, f, content.column(f.name)) for f in self._columns}
        for name, dtype in self._checked:
            values = columns[name]
            try:
                (values if values.type == dtype else values.view(dtype)).validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"stream {self._schema.name!r}: column {name!r} is damaged: {error}") from None
        refused = columns[self._event_time].null_count
        if refused:
            has_time = columns[self._event_time].is_valid()
            columns = {name: values.filter(has_time) for name, values in columns.items()}
            numbers = numbers if numbers is None else numbers[has_time.to_numpy(zero_copy_only=False)]
        ts = self._micros(fixed_values(columns[self._event_time], _INT64))
        return Batch(columns, ts, refused=refused, numbers=numbers)

    def _micros(self, times: Int64Array) -> Int64Array:
        """Convert event times to microseconds.

        Nanoseconds round down; times out of range stay out of range.
        """
        if self._unit == "us":
            return times
        if self._unit == "ns":
            return times // 1000
        factor = _MICROS[self._unit]
        beyond = LATEST // factor + 1
        return np.clip(times, -beyond, beyond) * factor


@dataclass(slots=True)
class AcceptedBatch:
    """Tuples that may join, in event-time order, and the arrival counts of the batch they came in."""

    batch: Batch
    stats: ArrivalStats


def accept(batch: Batch, progress: StreamProgress, now: int | None) -> AcceptedBatch:
    """Drop tuples that are late or have no usable event time, and sort the others; only read `progress`."""
    stats = ArrivalStats(len(batch) + batch.refused, refused=batch.refused)
    limit = latest_allowed(progress.schema, now)
    if len(batch):
        in_order, smallest, largest = summarize_times(batch.ts)
        if not -LATEST <= smallest <= largest <= limit:
            batch = batch.take(np.flatnonzero(usable(batch.ts, limit, stats)))
            if len(batch):
                in_order, smallest, largest = summarize_times(batch.ts)
    if len(batch):
        batch.in_order, stats.max_event_time = bool(in_order), int(largest)
        if progress.schema.progress_by is not None:
            stats.partition_max_times = partition_max_times(batch.ts, batch.columns[progress.schema.progress_by])
        on_time = progress.on_time(batch.ts, stats, smallest=smallest)
        if on_time is not None:
            batch = batch.take(np.flatnonzero(on_time))
    return AcceptedBatch(in_time_order(batch), stats)


def _check_names(schema: StreamSchema, names: list[str]) -> None:
    expected = schema.columns.names
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    if missing or extra:
        faults = [f"missing {listed(missing)}"] * bool(missing) + [f"not declared {listed(extra)}"] * bool(extra)
        message = f"stream {schema.name!r}: {'; '.join(faults)}; declared columns: {listed(expected)}"
        raise SchemaError(message, _names_hint(expected, missing, extra))
    if len(names) != len(expected):
        raise SchemaError(
            f"stream {schema.name!r}: a column occurs twice in {listed(names)}",
            f"keep the first of each: table.select({[names.index(name) for name in dict.fromkeys(names)]})",
        )


def _names_hint(expected: list[str], missing: list[str], extra: list[str]) -> str:
    """Return how to make the columns of a table those of its stream."""
    by_folded = {name.casefold(): name for name in missing}
    close = {name: get_close_matches(name.casefold(), by_folded, n=1) for name in extra}
    renamed = {name: by_folded[matches[0]] for name, matches in close.items() if matches}
    if len(renamed) == len(missing) == len(set(renamed.values())) and len(renamed) == len(extra):
        return f"rename them: table.rename_columns({renamed})"
    if missing:
        return "push all declared columns; a column that no query reads need not be declared"
    return f"push only the declared columns: table.select({expected})"


def conform(stream: str, field: pa.Field, values: pa.ChunkedArray) -> pa.Array:
    """Return a column in its declared type, as one array; refuse other values."""
    if values.type != field.type:
        if not _same_values(values.type, field.type):
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} has type {values.type}; declared {field.type} "
                f"({type_name(field.type)})",
                "cast the table to the declared schema before pushing it: table.cast(schema)",
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


def _same_values(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Whether two types differ in their encoding only."""
    plain = stored_type(actual)
    return plain == declared or any(plain in group and declared in group for group in _SAME_TEXT)


def in_time_order(batch: Batch) -> Batch:
    """Return the batch sorted by event time; the same object if it already is."""
    if batch.in_order:
        return batch
    ordered = batch.take(np.argsort(batch.ts, kind="stable"))
    ordered.in_order = True
    return ordered


def in_content_order(batch: Batch) -> Batch:
    """Return the batch sorted by (event time, row content).

    Columns are compared in declared order, NULL first and NaN last.

    Content breaks ties, so that a count window holds the same tuples in whatever order they arrived.
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
    """Return arrays that Arrow can sort and that order the values: NULL first, then by value, NaN last."""
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
    """Return the ranks of nested values.

    Arrow cannot sort them, so this works in Python, for batches with ties only.
    """
    keys = [_nested_key(value) for value in values.to_pylist()]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return pa.array([ranks[key] for key in keys], pa.int64())


def _nested_key(value: object) -> tuple[object, ...]:
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *map(_nested_key, value.values()))
    if isinstance(value, list | tuple):
        return (1, *map(_nested_key, value))
    return (1, value != value, value)  # noqa: PLR0124 - only NaN differs from itself


def window_rows(
    batch: Batch,
    window: WindowPlan,
    *,
    all_rows: bool,
    batch_number: int,
    backfill_starts: BackfillStarts | None = None,
    keep_unseen: bool = False,
) -> NewRows:
    """Compute what a window keeps of tuples that arrived with batch `batch_number`.

    It keeps flags, codes and computed columns.

    Tuples that no view sees are dropped unless `all_rows`; with `keep_unseen` the result has their event times.
    """
    values, unseen = _Values(batch), None
    flags: list[UInt64Array | np.uint64] = [_NO_FLAGS] * window.words
    for view in window.views:
        word = view.bit // WORD_BITS
        if view.first_batch <= batch_number:
            visible = values.visible(view)
            flags[word] = visible if flags[word] is _NO_FLAGS else flags[word] | visible
        elif view.backfill and view.complete_from <= batch_number and backfill_starts is not None:
            start = backfill_starts[view.first_batch].get(window.stream)
            if start is not None:
                flags[word] = flags[word] | np.where(batch.ts >= start, values.visible(view), _NO_FLAGS)
    if not all_rows:
        visible = (
            np.bitwise_or.reduce([np.broadcast_to(word, len(batch)) for word in flags]) if len(flags) > 1 else flags[0]
        )
        if isinstance(visible, np.ndarray) and not visible.all():
            indices, unseen = np.flatnonzero(visible), batch.ts[visible == 0] if keep_unseen else None
            batch = batch.take(indices)
            flags = [word[indices] if isinstance(word, np.ndarray) else word for word in flags]
            values = _Values(batch)
    contents = window.kept
    parts = {name: codes_of(values.get(name, part)) for name, part in contents.parts.items()}
    computed = {name: values.get(name, e) for name, e in contents.columns.items() if not isinstance(e, Column)}
    codes = {key: parts[key[0]] if len(key) == 1 else combine([parts[name] for name in key]) for key in contents.codes}
    return NewRows(batch.ts, batch.columns, computed, codes, flags, unseen, batch.numbers)


class _Values:
    """Evaluates expressions over one batch, each once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._cache: dict[str, pa.Array] = {}

    def get(self, name: str, expression: Expression) -> pa.Array:
        """Return the values of an expression whose text is `name`."""
        if isinstance(expression, Column):
            return self._batch.columns[expression.name]
        if name not in self._cache:
            self._cache[name] = evaluate(expression, lambda column: self._batch.columns[column.name], len(self._batch))
        return self._cache[name]

    def visible(self, view: View) -> UInt64Array | np.uint64:
        """Return the view's flag for each tuple that it sees, else 0; a single word if it sees all."""
        visible, flag = None, _FLAGS[view.bit % WORD_BITS]
        for key in view.keys:
            valid = valid_mask(self.get("" if isinstance(key, Column) else str(key), key))
            if valid is not None:
                visible = valid if visible is None else visible & valid
        for condition in view.filters:
            true = is_true(self.get(str(condition), condition))
            visible = true if visible is None else visible & true
        return flag if visible is None else np.where(visible, flag, _NO_FLAGS)
