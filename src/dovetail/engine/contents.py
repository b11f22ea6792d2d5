"""The content of windows as tables.

It is the tuples that later results can contain, and the queries that see each.

A tuple is in the content while some query sees it and a result with it can still come, whether or not its row has been dropped. So the
content does not depend on when windows drop expired rows. Count windows also count tuples that no query sees; these are in it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array, UInt64Array
from dovetail.engine.group import LATEST_BATCH, JoinGroup
from dovetail.engine.kernels.times import FOREVER
from dovetail.engine.keys import values_of
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.window import WORD_BITS, WindowStore
from dovetail.engine.time.count_windows import CountWindowGroup
from dovetail.engine.time.intake import Batch, window_rows
from dovetail.errors import SchemaError
from dovetail.plan.execution import ExecutionPlan, WindowPlan
from dovetail.plan.names import window_name
from dovetail.query.expressions import Call, Column, Expression
from dovetail.query.model import CountWindow, TimeWindow
from dovetail.schema import StreamSchema, is_exact

QUERIES = "_queries"
"""Column with the names of the queries that see a tuple."""


@dataclass(frozen=True)
class WindowTuples:
    """Tuples of one stream that one window holds, with their flags."""

    window: WindowPlan
    ts: Int64Array
    flags: list[UInt64Array]
    """Flag words, each with one word per tuple."""
    ends: Callable[[CountWindow], Int64Array] = field(default=lambda _: np.zeros(0, np.int64))
    """Returns the last instants at which the tuples are in a count window."""

    def visible(self, plan: ExecutionPlan, watermarks: Mapping[str, int]) -> dict[str, BoolArray]:
        """Return, by query, the tuples that its later results can contain."""
        masks: dict[str, BoolArray] = {}
        for step in (step for step in plan.steps if step.group == self.window.group):
            sources = {source.name: source for source in step.sources}
            for consumer in step.consumers:
                used = [sources[name] for name in consumer.sources.values()]
                for source in (source for source in used if source.stream == self.window.stream):
                    horizon = min(watermarks[other.stream] for other in used if other is not source)
                    if isinstance(source.window, TimeWindow):
                        inside = self.ts >= horizon - consumer.spans[source.name]
                    else:
                        inside = self.ends(source.window) >= self._frontier(plan, horizon, watermarks)
                    mask = self._has_flag(self.window.bits[step.name, source.name]) & inside
                    masks[consumer.query] = masks[consumer.query] | mask if consumer.query in masks else mask
        return masks

    def counted(self, plan: ExecutionPlan, watermarks: Mapping[str, int]) -> BoolArray:
        """Return the tuples that have a place in a count window, whether or not a query sees them."""
        mask = np.zeros(len(self.ts), np.bool_)
        for retention in self.window.retention:
            if isinstance(retention.window, CountWindow):
                horizon = min(watermarks[other] for other in retention.others)
                mask |= self.ends(retention.window) >= self._frontier(plan, horizon, watermarks)
        return mask

    def _frontier(self, plan: ExecutionPlan, horizon: int, watermarks: Mapping[str, int]) -> int:
        """Return the earliest latest event time that a result with count windows can still have."""
        streams = next(step.count_window_streams for step in plan.steps if step.group == self.window.group)
        return min(horizon, *(watermarks[stream] for stream in streams))

    def _has_flag(self, bit: int) -> BoolArray:
        mask: BoolArray = self.flags[bit // WORD_BITS] & np.uint64(1 << bit % WORD_BITS) != 0
        return mask

    def content(
        self,
        plan: ExecutionPlan,
        watermarks: Mapping[str, int],
        tuples: Callable[[Int64Array], pa.Table],
        selected: BoolArray | None = None,
    ) -> pa.Table:
        """Return the content as a table; `tuples` returns the columns of those at some positions.

        `selected`: tuples to which the table is restricted.
        """
        masks = self.visible(plan, watermarks)
        inside = np.logical_or.reduce([self.counted(plan, watermarks), *masks.values()])
        if selected is not None:
            inside = inside & selected
        positions = np.flatnonzero(inside)
        return tuples(positions).append_column(QUERIES, _names_of({q: mask[positions] for q, mask in masks.items()}))


def _names_of(masks: Mapping[str, BoolArray]) -> pa.ListArray:
    """Return, for each tuple, the names of the queries whose masks select it."""
    names = sorted(masks)
    selected = np.stack([masks[name] for name in names], axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(selected, axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(names, pa.string()).take(pa.array(np.nonzero(selected)[1])))


def check_added_column(schema: StreamSchema, name: str) -> None:
    """Refuse a stream that has a column of the name that a table gets in addition."""
    if name in schema.columns.names:
        raise SchemaError(
            f"stream {schema.name!r} has a column {name!r}, which tables of its tuples have in addition",
            "give the column of the stream another name",
        )


def empty_window(schema: StreamSchema) -> pa.Table:
    """Return the content of a window that has had no tuple."""
    return schema.columns.append(pa.field(QUERIES, pa.list_(pa.string()))).empty_table()


def window_contents(engine: ShardEngine) -> dict[str, pa.Table]:
    """Return the content of each window of an engine, by its name in `explain`.

    Tables have the columns that windows keep. If queries with different count windows read a stream, the names of its windows end with
    those of the queries.
    """
    contents: dict[str, pa.Table] = {}
    watermarks = engine.progress.watermarks
    for group in engine.groups:
        for stream in group.windows:
            schema = engine.streams[stream]
            check_added_column(schema, QUERIES)
            is_settled = group is not engine.joined
            name = window_name(stream, settled=is_settled)
            if sum(stream in other.windows for other in engine.count_window_groups.values()) > is_settled > 0:
                name += f" of {', '.join(sorted(group.installed.queries))}"
            tables = [tuples.content(engine.plan, watermarks, columns) for tuples, columns in _stored(group, schema)]
            contents[name] = pa.concat_tables(tables)
    return contents


def _stored(group: JoinGroup, schema: StreamSchema) -> Iterator[tuple[WindowTuples, Callable[[Int64Array], pa.Table]]]:
    """Yield the rows of a stream's window, then the tuples that wait for a count window."""
    store, window = group.windows[schema.name], group.plans[schema.name]
    names, columns = gather_columns(store, window, schema)
    flags = [store.live_values(store.flag_name(word)).view(np.uint64) for word in range(window.words)]

    def ends(count_window: CountWindow) -> Int64Array:
        return store.live_values(store.count_window_ends[count_window].ends)

    yield WindowTuples(window, store.live_values("ts"), flags, ends), columns
    if isinstance(group, CountWindowGroup):
        pending = group.pending[schema.name]
        ts, take = pending.live_values("ts").copy(), _columns(pending, schema, schema.columns.names, {})
        everything = take(np.arange(len(ts)))
        batch = Batch({name: everything.column(name).combine_chunks() for name in schema.columns.names}, ts)
        flags = flag_words(batch, window, LATEST_BATCH)
        forever = np.full(len(ts), FOREVER)
        yield WindowTuples(window, ts, flags, lambda _: forever), _columns(pending, schema, names, {})


def flag_words(
    batch: Batch, window: WindowPlan, batch_number: int, backfill_from: Mapping[int, Mapping[str, int]] | None = None
) -> list[UInt64Array]:
    """Return the flag words of tuples that arrived with a batch."""
    rows = window_rows(batch, window, all_rows=True, batch_number=batch_number, backfill_starts=backfill_from)
    return [np.broadcast_to(np.asarray(word, np.uint64), len(batch)) for word in rows.flags]


def _exact_column(expression: Expression) -> Column | None:
    """Return the column whose values follow from the codes of a key, if there is one."""
    if isinstance(expression, Call) and expression.operation == "cast" and pa.types.is_integer(expression.type):
        (expression,) = expression.arguments
        is_exact_column = isinstance(expression, Column) and pa.types.is_integer(expression.type)
    else:
        is_exact_column = isinstance(expression, Column) and is_exact(expression.type)
    return expression if isinstance(expression, Column) and is_exact_column else None


def gather_columns(
    store: WindowStore, window: WindowPlan, schema: StreamSchema
) -> tuple[list[str], Callable[[Int64Array], pa.Table]]:
    """Return the columns of its stream that a window keeps, and a function that gathers live rows."""
    kept = {schema.event_time, *(name[1:] for name, e in window.kept.columns.items() if isinstance(e, Column))}
    keys = {part.name: code for code, e in window.kept.parts.items() if (part := _exact_column(e)) is not None}
    names = [name for name in schema.columns.names if name in kept or name in keys]
    return names, _columns(store, schema, names, keys)


def _columns(
    store: WindowStore, schema: StreamSchema, names: list[str], keys: Mapping[str, str]
) -> Callable[[Int64Array], pa.Table]:
    """Return a function that gathers columns of live rows; `keys` gives the codes of columns."""

    def column(field: pa.Field, positions: Int64Array) -> pa.Array:
        if f".{field.name}" in store.columns:
            return store.take(f".{field.name}", positions + store.rows.tail)
        if field.name == schema.event_time:  # every window has it in microseconds
            micros = pa.array(store.live_values("ts")[positions])
            return micros.cast(pa.timestamp("us", field.type.tz)).cast(field.type)
        codes = store.live_values(store.codes[(keys[field.name],)])[positions].view(np.uint64)
        is_integer = pa.types.is_integer(field.type)
        return values_of(codes, pa.int64()).cast(field.type) if is_integer else values_of(codes, field.type)

    fields = [schema.columns.field(name) for name in names]
    return lambda positions: pa.table([column(field, positions) for field in fields], schema=pa.schema(fields))
