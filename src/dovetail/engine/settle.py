"""Count windows: tuples wait until their time is settled, then join in one agreed order.

The last n tuples at some instant are known only when no earlier tuple can come any more. So the queries with count windows over the
same streams get windows of their own, entered in (event time, content) order by tuples below the *frontier*, the smallest watermark
of those streams. A tuple's count window ends when the n-th tuple after it enters; ends below the frontier never change again, and
every result of settled tuples is therefore final. Filters and NULL keys hide tuples from a query, but the count includes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray
from dovetail.config import Config
from dovetail.engine.arena import Arena
from dovetail.engine.group import JoinGroup
from dovetail.engine.intake import Batch, in_content_order
from dovetail.engine.progress import Progress
from dovetail.engine.shared_window import SharedWindow
from dovetail.engine.window_store import LONG_AGO, Arrivals, WindowStore
from dovetail.query.model import CountWindow, TimeWindow
from dovetail.schema import StreamSchema


class SettledGroup(JoinGroup):
    """A `JoinGroup` whose tuples enter when they are settled."""

    def __init__(
        self, name: str, streams: Mapping[str, StreamSchema], config: Config, arena: Arena, frontier: frozenset[str]
    ) -> None:
        super().__init__(name, streams, config, arena)
        self.frontier = frontier
        self.pending: dict[str, WindowStore] = {}

    def _window(self, stream: str) -> SharedWindow:
        if stream not in self.pending:
            name = f"{self.name}.{stream}.pending"
            store = WindowStore(self._arena, name, self._streams[stream], self.position(name))
            for field in self._streams[stream].columns:
                store.add_column(f".{field.name}", field.type)
            self.pending[stream] = store
        return super()._window(stream)

    def drop_query(self, name: str) -> None:
        super().drop_query(name)
        self.pending = {stream: store for stream, store in self.pending.items() if stream in self.windows}

    def stores(self, stream: str) -> list[WindowStore]:
        waiting = [self.pending[stream]] if stream in self.pending else []
        return super().stores(stream) + waiting

    def wait(self, batches: Mapping[str, Batch]) -> None:
        """Take in tuples that may not be settled yet."""
        for stream, batch in batches.items():
            if stream in self.pending and len(batch):
                self.pending[stream].append(Arrivals(batch.ts, batch.columns, {}, {}, []))

    def settle(self, progress: Progress) -> dict[str, list[pa.Table]]:
        """Let the tuples below the frontier join. They wait no longer, but are there until they expire."""
        found: dict[str, list[pa.Table]] = {}
        for ready in self._ready(LONG_AGO, progress.watermark(self.frontier)):
            for name, tables in self.join(ready, progress, together=True).items():
                found.setdefault(name, []).extend(tables)
        return found

    def settle_loaded(self, progress: Progress) -> None:
        """Let tuples below the frontier in whose results have been found before."""
        for ready in self._ready(LONG_AGO, progress.watermark(self.frontier)):
            self.load(ready)

    def _ready(self, first: int, frontier: int) -> Iterator[dict[str, Arrivals]]:
        """Tuples that wait from `first` to before `frontier`, in as many parts as Arrow arrays can hold."""
        try:
            found = {stream: _between(store, first, frontier) for stream, store in self.pending.items()}
        except OverflowError:
            times = np.unique(np.concatenate([store.living("ts") for store in self.pending.values()]))
            times = times[(times >= first) & (times < frontier)]
            if len(times) < 2:
                raise
            middle = int(times[len(times) // 2])
            yield from self._ready(first, middle)
            yield from self._ready(middle, frontier)
            return
        ready = {stream: batch for stream, batch in found.items() if batch is not None}
        if ready:
            yield self.prepare(ready, all_rows=True)

    def expire(self, progress: Progress) -> None:
        frontier = progress.watermark(self.frontier)
        for store in self.pending.values():
            _forget_before(store, frontier)
        for window in self.windows.values():
            if frontier > LONG_AGO:
                window.store.expire_where(partial(self._alive, window, frontier, progress))

    def _alive(self, window: SharedWindow, frontier: int, progress: Progress) -> BoolArray:
        store = window.store
        alive = np.zeros(len(store.rows), np.bool_)
        for (run, alias), ref in window.windows.items():
            horizon = min(frontier, self.horizon(self.runs[run].step.flat, alias, progress))
            if isinstance(ref.window, CountWindow):
                alive |= store.living(store.ledgers[ref.window].ends) >= horizon
            elif isinstance(ref.window, TimeWindow):
                alive |= store.living("ts") >= horizon - ref.window.micros
        return alive


def _between(store: WindowStore, first: int, frontier: int) -> Batch | None:
    """The tuples from `first` to before `frontier`, in (event time, content) order."""
    ready = (store.living("ts") >= first) & (store.living("ts") < frontier)
    if not ready.any():
        return None
    rows = store.rows
    numbers = np.flatnonzero(ready) + rows.tail
    columns = {name[1:]: store.take(name, numbers) for name in store.columns}
    return in_content_order(Batch(columns, rows["ts"][numbers - rows.base], in_order=False))


def _forget_before(store: WindowStore, frontier: int) -> None:
    waiting = store.living("ts") >= frontier
    if not waiting.all():
        for column in store.columns.values():
            column.before_keep(waiting)
        store.rows.keep(waiting)
