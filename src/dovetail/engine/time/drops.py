"""Dropped tuples with the reason; computed only when somebody asks for them.

Late tuples, those too far ahead of the clock and those without a usable event time are found before a batch is pushed, by the rules of
`progress`. Shed tuples are taken from their windows when a shedder hides them; they have the columns that the windows keep.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int64Array
from dovetail.engine.contents import gather_columns
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.intake import TableReader, conform
from dovetail.engine.time.progress import ArrivalStats, StreamProgress, latest_allowed, usable

LATE, AHEAD, NO_EVENT_TIME, SHED = "late", "ahead", "no event time", "shed"
REASON = "_reason"
"""Column with the reason why a tuple was dropped."""


def with_reason(table: pa.Table, reason: str) -> pa.Table:
    """Return tuples that were dropped for one reason, with that reason."""
    return table.append_column(REASON, pa.repeat(pa.scalar(reason), table.num_rows))


def unusable_reasons(ts: Int64Array, limit: int) -> dict[str, Int64Array]:
    """Return, by reason, the positions of event times that are out of range or after `limit`."""
    is_usable, in_range = usable(ts, limit, ArrivalStats()), usable(ts, np.iinfo(np.int64).max, ArrivalStats())
    return {NO_EVENT_TIME: np.flatnonzero(~in_range), AHEAD: np.flatnonzero(in_range & ~is_usable)}


def dropped_on_arrival(table: pa.Table, progress: StreamProgress, now: int | None) -> list[pa.Table]:
    """Return the tuples of a table that the next push will drop, with their reasons."""
    schema = progress.schema
    TableReader(schema).read(table)  # refuses what the push refuses
    columns = [conform(schema.name, column, table.column(column.name)) for column in schema.columns]
    declared = pa.table(columns, schema=schema.columns)
    has_time = declared.column(schema.event_time).is_valid()
    parts = [with_reason(declared.filter(pc.invert(has_time)), NO_EVENT_TIME)]
    timed = declared.filter(has_time)
    ts, limit = TableReader(schema).read(timed).ts, latest_allowed(schema, now)
    positions = unusable_reasons(ts, limit)
    positions[LATE] = np.flatnonzero(usable(ts, limit, ArrivalStats()) & (ts < progress.watermark))
    parts += [with_reason(timed.take(pa.array(at)), reason) for reason, at in positions.items()]
    return [part for part in parts if part.num_rows]


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return tuples with all columns of a schema, of which those that a window does not keep are NULL."""
    columns = [
        table.column(column.name) if column.name in table.column_names else pa.nulls(table.num_rows, column.type)
        for column in schema
    ]
    return pa.table(columns, schema=schema)


@dataclass
class DropRecorder:
    """Collects the tuples that a push drops."""

    engine: ShardEngine
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    """By stream."""

    def add(self, stream: str, tables: Iterable[pa.Table]) -> None:
        """Add dropped tuples with their reasons."""
        self.tables.setdefault(stream, []).extend(tables)

    def deliver(self, dropped: MutableMapping[str, pa.Table]) -> None:
        """Append the collected tuples to tables by stream, in the declared columns."""
        for stream, tables in self.tables.items():
            schema = self.engine.streams[stream].columns.append(pa.field(REASON, pa.string()))
            before = [dropped[stream]] if stream in dropped else []
            if tables:
                dropped[stream] = pa.concat_tables(
                    [*before, *(_with_all_columns(table, schema) for table in tables)], promote_options="none"
                )

    def add_shed(self, stream: str, store: WindowStore, rows: Int64Array) -> None:
        """Add rows that a shedder is about to hide."""
        _, columns = gather_columns(store, self.engine.joined.plans[stream], self.engine.streams[stream])
        self.add(stream, [with_reason(columns(rows - store.rows.tail), SHED)])
