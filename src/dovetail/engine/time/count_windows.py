"""Count windows: tuples wait until the watermark passes them, then join in one agreed order.

The last n tuples at some instant are known only when no earlier tuple can arrive. So queries with count windows over the same
streams have windows of their own. The *frontier* is the smallest watermark of the streams with count windows; the other streams of
these queries do not count. Tuples below it are settled: they enter the windows in (event time, content) order. A tuple's count window
ends when the n-th tuple after it enters; ends below the frontier never change, so every result of settled tuples is final. Filters
and NULL keys hide tuples from a query, but the count includes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.change.adopt import Adoption, InstalledPlan, Positions
from dovetail.engine.group import JoinGroup
from dovetail.engine.join.drivers import Ranks, rank_arrivals
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.expiry import needed_rows
from dovetail.engine.time.intake import Batch, in_content_order
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import MaterializedJoinPlan, WindowPlan
from dovetail.plan.needs import WindowContents
from dovetail.plan.steps import JoinStep
from dovetail.query.expressions import Column
from dovetail.schema import StreamSchema


class CountWindowGroup(JoinGroup):
    """A `JoinGroup` for count windows: tuples enter once they are settled."""

    def __init__(self, step: JoinStep, streams: Mapping[str, StreamSchema], config: Config, arena: Arena) -> None:
        """Create a group for `step` and others of the same group.

        They have the same start batch, and count windows over the same streams.
        """
        super().__init__(step.group, streams, config, arena)
        self.frontier = frozenset(step.count_window_streams)
        self.first_batch = step.first_batch

    def build(
        self,
        windows: Sequence[WindowPlan],
        materialized: Sequence[MaterializedJoinPlan],
        steps: Sequence[JoinStep],
        next_batch: int,
        positions: Positions | None = None,
    ) -> InstalledPlan:
        """Build what a new plan needs; see `JoinGroup.build`. Tuples wait with all their columns."""
        adoption = self._adoption(next_batch, positions)
        pending = {
            plan.stream: self.pending.get(plan.stream) or self._pending_store(plan, adoption) for plan in windows
        }
        return replace(adoption.build(windows, materialized, steps), pending=pending)

    @property
    def pending(self) -> dict[str, WindowStore]:
        return self.installed.pending

    def _pending_store(self, plan: WindowPlan, adoption: Adoption) -> WindowStore:
        store = adoption.store(f"{plan.name}.pending", plan.stream)
        fields = self._streams[plan.stream].columns
        columns = {f".{field.name}": Column("", field.name, field.type) for field in fields}
        store.extend(WindowContents(columns, {}, (), ()))
        return store

    def stores(self, stream: str) -> list[WindowStore]:
        pending = [self.pending[stream]] if stream in self.pending else []
        return super().stores(stream) + pending

    def add_pending(self, batches: Mapping[str, Batch]) -> None:
        """Add tuples that wait until they are settled."""
        for stream, batch in batches.items():
            if stream in self.pending and len(batch):
                self.pending[stream].append(NewRows(batch.ts, batch.columns, {}, {}, []))

    def join_settled(self, progress: Progress) -> dict[str, list[pa.Table]]:
        """Join the pending tuples below the frontier; `expire` removes them from the pending ones."""
        results: dict[str, list[pa.Table]] = {}
        for settled in self._settled(LONG_AGO, progress.watermark(self.frontier)):
            for part in self.join(settled, progress):
                for name, tables in part.items():
                    results.setdefault(name, []).extend(tables)
        return results

    def _pieces(
        self,
        incoming: Mapping[str, NewRows],
        rows: int | None,  # noqa: ARG002 - the base class needs it
    ) -> Iterator[tuple[Mapping[str, NewRows], Ranks | None]]:
        """Yield all arrivals at once: the end of a count window depends on the tuples after it."""
        ordered = {stream: incoming[stream] for stream in self._choice.order({s: len(a) for s, a in incoming.items()})}
        yield ordered, rank_arrivals(ordered, self._config.driver_policy)

    def load_settled(self, progress: Progress) -> None:
        """Append the pending tuples below the frontier, whose results were returned before, to the windows."""
        for settled in self._settled(LONG_AGO, progress.watermark(self.frontier)):
            self.load(settled)

    def _settled(self, first: int, frontier: int) -> Iterator[dict[str, NewRows]]:
        """Yield the pending tuples from `first` to before `frontier`, in parts that fit Arrow arrays."""
        try:
            batches = {stream: _between(store, first, frontier) for stream, store in self.pending.items()}
        except OverflowError:
            times = np.unique(np.concatenate([store.live_values("ts") for store in self.pending.values()]))
            times = times[(times >= first) & (times < frontier)]
            if len(times) < 2:
                raise
            middle = int(times[len(times) // 2])
            yield from self._settled(first, middle)
            yield from self._settled(middle, frontier)
            return
        settled = {stream: batch for stream, batch in batches.items() if batch is not None}
        if settled:
            yield self.prepare(settled, all_rows=True)

    def expire(self, progress: Progress) -> None:
        frontier = progress.watermark(self.frontier)
        for store in self.pending.values():
            _drop_before(store, frontier)
        for stream, store in self.windows.items():
            if frontier > LONG_AGO:
                store.expire_where(partial(needed_rows, self.plans[stream], store, frontier, progress))


def _between(store: WindowStore, first: int, frontier: int) -> Batch | None:
    """Return the tuples from `first` to before `frontier`, in (event time, content) order."""
    mask = (store.live_values("ts") >= first) & (store.live_values("ts") < frontier)
    if not mask.any():
        return None
    rows = store.rows
    row_numbers = np.flatnonzero(mask) + rows.tail
    columns = {name[1:]: store.take(name, row_numbers) for name in store.columns}
    return in_content_order(Batch(columns, rows["ts"][row_numbers - rows.base], in_order=False))


def _drop_before(store: WindowStore, frontier: int) -> None:
    waiting = store.live_values("ts") >= frontier
    if not waiting.all():
        for column in store.columns.values():
            column.before_compact(waiting)
        store.rows.compact(waiting)
