"""The tuples that a shard drops in a batch, as rows of the table of dropped tuples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.engine.contents import gather_columns
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.drops import AHEAD, LATE, NO_EVENT_TIME, SHED
from dovetail.schema import StreamSchema
from dovetail.spark.wire import DROPPED_SCHEMA, RoutedKind, from_ipc
from dovetail.spark.worker.json_rows import json_rows


@dataclass
class DropLog:
    """Collects what one attempt at a batch drops."""

    shard: int
    tables: list[pa.Table] = field(default_factory=list)

    def add(self, schema: StreamSchema, tuples: pa.Table, reason: str, shard: int | None = None) -> None:
        """Add tuples that were dropped for one reason; `shard` is that of copies that only it dropped."""
        if not tuples.num_rows:
            return
        count = tuples.num_rows
        times = tuples.column(schema.event_time).cast(pa.int64()).cast(pa.timestamp("us", "UTC"))
        columns = {
            "stream": pa.repeat(schema.name, count),
            "reason": pa.repeat(reason, count),
            "event_time": pa.nulls(count, times.type) if reason == NO_EVENT_TIME else times,
            "shard": pa.repeat(pa.scalar(shard, pa.int32()), count),
            "row": json_rows(tuples),
        }
        self.tables.append(pa.table([columns[name] for name in DROPPED_SCHEMA.names], schema=DROPPED_SCHEMA))

    def add_late(self, schema: StreamSchema, tuples: pa.Table) -> None:
        self.add(schema, tuples, LATE)

    def add_unusable(self, streams: Sequence[StreamSchema], pieces: Iterable[tuple[int, RoutedKind, bytes]]) -> None:
        """Add the tuples that the router dropped."""
        for stream_index, kind, content in pieces:
            reason = AHEAD if kind is RoutedKind.AHEAD else NO_EVENT_TIME
            self.add(streams[stream_index], from_ipc(content), reason)

    def watch(self, engine: ShardEngine) -> None:
        """Add the tuples that an engine sheds from now on."""
        shedder = engine.joined.shedder
        if shedder is None:
            return

        def add_shed(stream: str, store: WindowStore, rows: Int64Array) -> None:
            schema = engine.streams[stream]
            _, columns = gather_columns(store, engine.joined.plans[stream], schema)
            self.add(schema, columns(rows - store.rows.tail), SHED, self.shard)

        shedder.on_shed = add_shed

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows of the table of dropped tuples."""
        if self.tables:
            yield pa.concat_tables(self.tables)
