"""Partition each stream's Arrow batches by shard: the first of the two callbacks.

Spark's shuffle then moves a few large rows instead of many small ones: one per task, stream and shard, with tuples as Arrow IPC
bytes. At its end each task also sends every shard one row with the largest event time it saw, so that Spark calls all shards and each
of them gets the progress of every stream, even without tuples. A tuple without an event time belongs to no window: it is counted and
dropped, because an error would replay it forever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.evaluate import evaluate
from dovetail.engine.keys import codes_of, combine, coordinates
from dovetail.engine.time.drops import AHEAD, unusable_reasons
from dovetail.engine.time.progress import LATEST, ArrivalStats, latest_allowed, partition_max_times, usable
from dovetail.query.expressions import Column, cast
from dovetail.schema import sql_type
from dovetail.spark.driver.layout import ShardGroupPlan, WorkerPlan
from dovetail.spark.driver.placement import EVERYWHERE, Route
from dovetail.spark.wire import CLOCK, SHARD_ID, Header, Report, RoutedKind, padding_rows, report_rows, tuple_rows
from dovetail.spark.worker.memory import release_memory

_LARGEST_PIECE = 1 << 20
"""Bytes of tuples that a task collects before it partitions them. Spark copies a row several times, into buffers of the largest."""
_PADDING_THRESHOLD_BYTES = 8 << 20
"""Bytes that a task sends to a shard before it adds padding."""

Batches = Iterator[pa.RecordBatch]


class Router:
    """One routing task: part of the stream with index `stream` in the plan."""

    def __init__(
        self,
        plan: WorkerPlan,
        stream: int,
        shard_ids: list[int],
        batch_id: int | None = None,
        *,
        sends_dropped: bool = False,
    ) -> None:
        self._groups = plan.groups
        active = plan.shard_list if batch_id is None else plan.active_shards(batch_id)
        self._active_ids = [shard_ids[shard] for shard in active]
        self._stream = stream
        self._schema = plan.streams[stream]
        self._shard_ids = shard_ids
        self._arrivals = ArrivalStats()
        self._now: int | None = None
        self._sent: Counter[int] = Counter()
        self._sends_dropped = sends_dropped
        self._dropped: list[tuple[Header, pa.Table]] = []
        """Dropped tuples that have not been sent yet."""

    def rows(self, batches: Batches) -> Batches:
        """Yield the rows for Spark's shuffle from the tuples that Spark reads."""
        tables: list[pa.Table] = []
        size = 0
        for record_batch in batches:
            tables.append(self._admit(record_batch))
            size += tables[-1].nbytes
            if self._dropped:
                yield tuple_rows(self._stream, self._dropped)
                self._dropped.clear()
            if size > _LARGEST_PIECE:
                yield from self._partition(pa.concat_tables(tables))
                tables, size = [], 0
        if size:
            yield from self._partition(pa.concat_tables(tables))
            tables.clear()
        if (stats := self._arrivals).arrived:
            times = [*stats.partition_max_times.items()]
            report = Report(stats.max_event_time, times, self._now, stats.arrived, stats.ahead, stats.refused)
            yield report_rows(self._stream, self._active_ids, report)
        release_memory()

    def _admit(self, record_batch: pa.RecordBatch) -> pa.Table:
        """Return the tuples with a usable event time, and count all of them."""
        columns = [_conform(record_batch.column(field.name), field.type) for field in self._schema.columns]
        table = pa.Table.from_arrays(columns, schema=self._schema.columns)
        if CLOCK in record_batch.schema.names and record_batch.num_rows:
            self._now = record_batch.column(CLOCK)[0].as_py()
        arrivals = ArrivalStats(table.num_rows)
        table = self._usable(table, arrivals)
        if table.num_rows:
            ts = self._times(table)
            arrivals.max_event_time = int(ts.max())
            if self._schema.progress_by is not None:
                arrivals.partition_max_times = partition_max_times(
                    ts, table.column(self._schema.progress_by).combine_chunks()
                )
        self._arrivals.add(arrivals)
        return table

    def _usable(self, table: pa.Table, arrivals: ArrivalStats) -> pa.Table:
        """Drop and count tuples whose event time is NULL, out of range, or too far ahead of the clock."""
        times = table.column(self._schema.event_time)
        if times.null_count:
            self._drop(table, np.flatnonzero(times.is_null().to_numpy()), RoutedKind.NO_EVENT_TIME)
            table = table.filter(times.is_valid())
            arrivals.refused = arrivals.arrived - table.num_rows
        limit = latest_allowed(self._schema, self._now)
        ts = self._times(table)
        if len(ts) and (int(ts.min()) < -LATEST or int(ts.max()) > limit):
            for reason, rows in unusable_reasons(ts, limit).items() if self._sends_dropped else ():
                self._drop(table, rows, RoutedKind.AHEAD if reason == AHEAD else RoutedKind.NO_EVENT_TIME)
            table = table.filter(pa.array(usable(ts, limit, arrivals)))
        return table

    def _drop(self, table: pa.Table, rows: Int64Array, kind: RoutedKind) -> None:
        """Send dropped tuples to the first shard, if they are wanted."""
        if self._sends_dropped and len(rows):
            self._dropped.append(((self._active_ids[0], kind, 0), table.take(pa.array(rows))))

    def _times(self, table: pa.Table) -> Int64Array:
        times: Int64Array = table.column(self._schema.event_time).cast(pa.int64()).to_numpy()
        return times

    def _partition(self, table: pa.Table) -> Batches:
        rows = tuple_rows(self._stream, self._parts(table.combine_chunks()))
        yield rows
        sizes = pc.binary_length(rows.column("content"))
        for shard_id, size in zip(rows.column(SHARD_ID).to_pylist(), sizes.to_pylist(), strict=True):
            self._sent[shard_id] += size
            if self._sent[shard_id] > _PADDING_THRESHOLD_BYTES:
                yield padding_rows(self._stream, shard_id, self._sent.pop(shard_id))

    def _parts(self, table: pa.Table) -> Iterator[tuple[Header, pa.Table]]:
        """Yield the tuples of each shard, then the event times of tuples that go to none."""
        sent = np.zeros(table.num_rows, np.bool_)
        for group in self._groups:
            cells, rows = cells_of(group, self._schema.name, table)
            is_first_copy = _first_copies(rows, sent)
            # Sort by cell, first copies before others; NumPy sorts 16-bit integers by radix.
            order = np.argsort((2 * cells + ~is_first_copy).astype(np.uint16), kind="stable")
            ends = np.searchsorted(cells[order], np.arange(group.shard_count), side="right")
            for cell, (start, stop) in enumerate(pairwise([0, *ends])):
                if stop > start:
                    copies = order[start:stop]
                    first_copies = int(np.count_nonzero(is_first_copy[copies]))
                    shard_id = self._shard_ids[group.first_shard + cell]
                    yield (shard_id, RoutedKind.TUPLES, first_copies), table.take(pa.array(rows[copies]))
        if not sent.all():  # NULL keys: such tuples are in no result
            content = table if self._sends_dropped else table.select([self._schema.event_time])
            yield (self._active_ids[0], RoutedKind.UNPLACED, 0), content.filter(pa.array(~sent))


def _conform(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast Spark's Arrow column to its declared type: this relabels time zones and removes encodings."""
    return values if values.type == dtype else values.cast(dtype)


def _first_copies(rows: Int64Array, sent: BoolArray) -> BoolArray:
    """Mark the copies that are a tuple's first; `sent` carries sent tuples from group to group."""
    first = ~sent[rows]
    first[1:] &= rows[1:] != rows[:-1]
    sent[rows] = True
    return first


def cells_of(group: ShardGroupPlan, stream: str, table: pa.Table) -> tuple[Int64Array, Int64Array]:
    """Return cell and row of each copy of a tuple, sorted by row, then by cell."""
    copies = [_cells_along(group, route, table) for route in group.routes.get(stream, ())]
    if not copies:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cells, rows = (np.concatenate(part) for part in zip(*copies, strict=True))
    if len(copies) > 1:
        pairs = np.unique(rows * group.shard_count + cells)
        cells, rows = pairs % group.shard_count, pairs // group.shard_count
    return cells, rows


def _cells_along(group: ShardGroupPlan, route: Route, table: pa.Table) -> tuple[Int64Array, Int64Array]:
    base = np.zeros(table.num_rows, np.int64)
    offsets = np.zeros(1, np.int64)
    valid = np.ones(table.num_rows, np.bool_)
    for axis, splits in zip(route, group.splits, strict=True):
        base, offsets = base * splits, offsets * splits
        if axis == EVERYWHERE:
            offsets = (offsets[:, None] + np.arange(splits)[None, :]).ravel()
        elif splits > 1 or axis is not None:
            codes, present = _codes(axis, table)
            base += coordinates(codes, splits)
            if not group.has_count_windows:
                valid &= present  # NULL equals nothing; a count window counts it all the same
    rows = np.flatnonzero(valid)
    cells = (base[rows][:, None] + offsets[None, :]).ravel()
    return cells, np.repeat(rows, len(offsets))


def _codes(axis: object, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of one key, or of the whole row, and where they are not NULL."""

    def column(wanted: Column) -> pa.Array:
        values = table.column(wanted.name)
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()

    if axis is None:
        parts = []
        for field in table.schema:
            kind = sql_type(field.type)
            if kind is not None:
                expression = cast(Column("", field.name, field.type), kind)
                parts.append(codes_of(evaluate(expression, column, table.num_rows)))
        return combine(parts), np.ones(table.num_rows, np.bool_)
    values = evaluate(axis, column, table.num_rows)  # type: ignore[arg-type]
    return codes_of(values), values.is_valid().to_numpy(zero_copy_only=False)
