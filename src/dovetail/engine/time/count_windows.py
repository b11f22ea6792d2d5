"""Count windows: tuples wait until their time is settled, then join in one agreed order.

The last n tuples at some instant are known only when no earlier tuple can come any more. So the queries with count windows over the
same streams get windows of their own, entered in (event time, content) order by tuples below the *frontier*, the smallest watermark
of those streams. A tuple's count window ends when the n-th tuple after it enters; ends below the frontier never change again, and
every result of settled tuples is therefore final. Filters and NULL keys hide tuples from a query, but the count includes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.change.adopt import Adoption, Installed, Positions
from dovetail.engine.group import JoinGroup
from dovetail.engine.join.drivers import Ranks, ranks_of
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.expiry import alive
from dovetail.engine.time.intake import Batch, in_content_order
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import StoredPlan, WindowPlan
from dovetail.plan.needs import Kept
from dovetail.plan.steps import JoinStep
from dovetail.query.expressions import Column
from dovetail.schema import StreamSchema


class SettledGroup(JoinGroup):
    """A `JoinGroup` whose tuples enter when they are settled."""

    def __init__(self, step: JoinStep, streams: Mapping[str, StreamSchema], config: Config, arena: Arena) -> None:
        """Make a group for `step` and those like it: with count windows on the same streams, from the same batch on."""
        super().__init__(step.group, streams, config, arena)
        self.frontier = frozenset(step.frontier)
        self.since = step.since

    def extended(
        self,
        windows: Sequence[WindowPlan],
        stored: Sequence[StoredPlan],
        steps: Sequence[JoinStep],
        now: int,
        positions: Positions | None = None,
    ) -> Installed:
        """See `JoinGroup.extended`; a window's tuples wait with all their columns."""
        adoption = self._adoption(now, positions)
        waiting = {plan.stream: self.pending.get(plan.stream) or self._waiting(plan, adoption) for plan in windows}
        return replace(adoption.make(windows, stored, steps), pending=waiting)

    @property
    def pending(self) -> dict[str, WindowStore]:
        return self.installed.pending

    def _waiting(self, plan: WindowPlan, adoption: Adoption) -> WindowStore:
        store = adoption.store(f"{plan.name}.pending", plan.stream)
        columns = {f".{each.name}": Column("", each.name, each.type) for each in self._streams[plan.stream].columns}
        store.extend(Kept(columns, {}, (), ()))
        return store

    def stores(self, stream: str) -> list[WindowStore]:
        waiting = [self.pending[stream]] if stream in self.pending else []
        return super().stores(stream) + waiting

    def wait(self, batches: Mapping[str, Batch]) -> None:
        """Take in tuples that may not be settled yet."""
        for stream, batch in batches.items():
            if stream in self.pending and len(batch):
                self.pending[stream].append(NewRows(batch.ts, batch.columns, {}, {}, []))

    def settle(self, progress: Progress) -> dict[str, list[pa.Table]]:
        """Let the tuples below the frontier join. They wait no longer, but are there until they expire."""
        found: dict[str, list[pa.Table]] = {}
        for ready in self._ready(LONG_AGO, progress.watermark(self.frontier)):
            for part in self.join(ready, progress):
                for name, tables in part.items():
                    found.setdefault(name, []).extend(tables)
        return found

    def _pieces(
        self,
        incoming: Mapping[str, NewRows],
        rows: int | None,  # noqa: ARG002 - the other groups' pieces are smaller
    ) -> Iterator[tuple[Mapping[str, NewRows], Ranks | None]]:
        """All at once: when a count window ends, the tuples after it say."""
        chosen = {stream: incoming[stream] for stream in self._choice.order({s: len(a) for s, a in incoming.items()})}
        yield chosen, ranks_of(chosen, self._config.driver_policy)

    def settle_loaded(self, progress: Progress) -> None:
        """Let tuples below the frontier in whose results have been found before."""
        for ready in self._ready(LONG_AGO, progress.watermark(self.frontier)):
            self.load(ready)

    def _ready(self, first: int, frontier: int) -> Iterator[dict[str, NewRows]]:
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
        for stream, store in self.windows.items():
            if frontier > LONG_AGO:
                store.expire_where(partial(alive, self.plans[stream], store, frontier, progress))


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
