"""Savepoints: undo a change of an engine that an interrupt or a lack of memory has cut short.

An engine does not catch the interrupt. It leaves an open savepoint behind, and its owner (for `LocalSession`, in
`dovetail.session.synchronized`) rolls back at the next call:

1. The engine checks everything that can be refused, before it changes.
2. `with engine.savepoint():` sets `engine.open_savepoint`, and the block changes the engine. Until tuples expire, a change appends
   rows and sets flags. A rollback truncates the rows, and the plan and the shedder restore the flags. With `until_delivered=True`
   the savepoint stays open after the block.
3. Just before tuples expire, the engine replaces the savepoint by `IRREVERSIBLE`.
4. The owner sets `engine.open_savepoint = None` once it holds the results. This must be an assignment: Python handles an interrupt
   only where a function is called or returns and where a loop repeats, so none can come between it and `return`.
5. If the next call finds an open savepoint, the previous one was cut short. The owner calls `engine.rollback()`, and raises an error
   if that is not possible.

On Spark nothing is rolled back: the arrays of a failed attempt are discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.engine.shedding.shedder_savepoint import ShedderSavepoint
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.execution import ExecutionPlan

if TYPE_CHECKING:
    from dovetail.engine.shard import ShardEngine


class CountsBefore(NamedTuple):
    """Counters before a batch; what it added is `engine.measure.count_last_batch`."""

    progress: Mapping[str, tuple[Any, ...]]
    """By stream, as `StreamProgress.save` returns it."""
    shed: Mapping[str, tuple[int, int]]
    """By stream: the tuples shed, and the time of the last one."""
    results: Mapping[str, int]
    """By query."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """State of an engine before a change, as far as a rollback needs it."""

    plan: ExecutionPlan
    """The plan that a rollback adopts: the previous one, or the new one once it has been built."""
    batches: int
    start_time: int | None
    progress: Mapping[str, tuple[Any, ...]]
    stores: Mapping[WindowStore, tuple[int, int]]
    """Next row number of each store, and how often it had been compacted."""
    results: Mapping[str, int]
    """Number of results so far, by query."""
    shedding: ShedderSavepoint | None = None

    @property
    def counts(self) -> CountsBefore:
        return CountsBefore(self.progress, {} if self.shedding is None else self.shedding.counts, self.results)

    @classmethod
    def of(cls, engine: ShardEngine) -> Savepoint:
        return cls(
            engine.plan,
            engine.batches,
            engine.start_time,
            {name: progress.save() for name, progress in engine.progress.streams.items()},
            {store: (store.rows.head, store.rows.renumber_count) for store in engine.stores()},
            {name: collector.results for name, collector in engine.collectors.items()},
            engine.joined.shedder.savepoint() if engine.joined.shedder is not None else None,
        )


IRREVERSIBLE = Savepoint(ExecutionPlan(), -1, None, {}, {}, {})
"""The open savepoint from the moment tuples expire until the owner clears it: the change can no longer be undone."""


@contextmanager
def savepoint(engine: ShardEngine, *, until_delivered: bool) -> Iterator[None]:
    """Open a savepoint for the change in the block.

    If the block ends normally, the savepoint is released unless `until_delivered`.
    """
    engine.open_savepoint = Savepoint.of(engine)
    yield  # no `finally`: after an exception the savepoint stays open, which tells the next call to roll back
    if not until_delivered:
        engine.open_savepoint = None


def rollback(engine: ShardEngine) -> bool:
    """Undo the changes since the open savepoint; return False if that is not possible.

    The savepoint stays open: the caller clears it once its own state agrees with the engine. Counters of work and the statistics for
    driver policies keep the undone change.
    """
    saved = engine.open_savepoint
    if saved is None:
        return True
    if saved is IRREVERSIBLE or any(store.rows.is_moving for store in engine.stores()):
        return False
    shedder = engine.joined.shedder
    if shedder is not None and not shedder.can_roll_back:
        return False
    positions = {store: saved.stores[store] for store in engine.stores() if store in saved.stores}
    if any(compactions != store.rows.renumber_count for store, (_, compactions) in positions.items()):
        return False  # shedding compacted a window to make room: the rows that it shed are gone
    if shedder is not None and saved.shedding is not None:
        shedder.rollback(saved.shedding)
    for name in [name for name in engine.streams if name not in saved.progress]:
        del engine.streams[name]
    for store, (head, _) in positions.items():
        store.rows.head = head
        store.rebuild_chains()
    # `adopt` materializes joins that are newer than the savepoint again, from the tuples that are left.
    for name in [name for name, matches in engine.joined.materialized.items() if matches not in saved.stores]:
        del engine.joined.materialized[name]
    engine.adopt(saved.plan)
    for name, collector in engine.collectors.items():
        collector.results = saved.results.get(name, 0)
    for name, values in saved.progress.items():
        engine.progress[name].rollback(values)
    engine.batches, engine.start_time = saved.batches, saved.start_time
    return True
