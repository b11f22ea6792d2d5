"""One shard's part of a micro-batch, as the router sent it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import pandas as pd
import pyarrow as pa

from dovetail.codec import from_json
from dovetail.engine.time.progress import LATEST, ArrivalStats, StreamProgress
from dovetail.schema import StreamSchema
from dovetail.spark.state.log import event_times
from dovetail.spark.wire import Report, RoutedKind, from_ipc, read_routed_rows


@dataclass
class ShardInput:
    """One shard's part of a micro-batch."""

    tuples: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)
    """By stream: pieces of encoded tuples, each with its number of first copies, see `wire`."""
    unplaced: dict[int, list[bytes]] = field(default_factory=dict)
    """By stream: event times of tuples that go to no shard."""
    arrivals: dict[int, ArrivalStats] = field(default_factory=dict)
    now: int | None = None
    dropped: list[tuple[int, RoutedKind, bytes]] = field(default_factory=list)
    """Stream, reason and content of tuples that the router dropped, if they are wanted."""

    @classmethod
    def read(cls, frames: Iterable[pd.DataFrame]) -> ShardInput:
        """Read the rows that the router sent to this shard."""
        shard_input = cls()
        for stream, kind, first_copies, content in read_routed_rows(frames):
            match kind:
                case RoutedKind.TUPLES:
                    shard_input.tuples.setdefault(stream, []).append((content, first_copies))
                case RoutedKind.UNPLACED:
                    shard_input.unplaced.setdefault(stream, []).append(content)
                case RoutedKind.AHEAD | RoutedKind.NO_EVENT_TIME:
                    shard_input.dropped.append((stream, kind, content))
                case RoutedKind.REPORT:
                    shard_input._observe(stream, from_json(Report, json.loads(content)))
        for pieces in shard_input.tuples.values():
            pieces.sort()  # tasks finish in any order; a replay must see the same one
        shard_input.dropped.sort()
        for unplaced in shard_input.unplaced.values():
            unplaced.sort()
        return shard_input

    def _observe(self, stream: int, report: Report) -> None:
        arrivals = ArrivalStats(
            report.arrived, ahead=report.ahead, refused=report.refused, max_event_time=report.max_event_time
        )
        arrivals.partition_max_times = dict(report.partition_max_times)
        self.arrivals.setdefault(stream, ArrivalStats()).add(arrivals)
        if report.now is not None:
            self.now = max(report.now, self.now or report.now)


def drop_late(
    pieces: Sequence[tuple[bytes, int | None]],
    progress: StreamProgress,
    arrivals: ArrivalStats,
    on_late: Callable[[StreamSchema, pa.Table], None] | None = None,
) -> pa.Table:
    """Return the tuples that are not late, and count in `arrivals` the late ones that this shard counts.

    Those that it counts are also given to `on_late`. With None as the number of first copies, it counts all of a piece.
    Pieces are put in order of their first event time, so that an ordered stream needs no sorting.
    """
    tables = []
    for content, first_copies in pieces:
        table = from_ipc(content)
        times = event_times(table, progress.schema.event_time).to_numpy()
        is_on_time = progress.on_time(times, arrivals, first_copies)
        remaining = table if is_on_time is None else table.filter(pa.array(is_on_time))
        tables.append((int(times.min(initial=LATEST)), remaining))
        if on_late is not None and is_on_time is not None:
            on_late(progress.schema, table.slice(0, first_copies).filter(pa.array(~is_on_time[:first_copies])))
    tables.sort(key=itemgetter(0))
    return pa.concat_tables([table for _, table in tables])
