"""JoinGroup: windows that are filled in the same way, and the joins over them.

A window keeps every row and column that any of its joins needs. A join sees it through a view: one flag bit per row says whether the
row passed the view's filters, has no NULL key, and arrived once the view's queries were registered. So a query added later starts
with empty windows, whatever the stores already hold, unless backfill shows it their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.config import INTERLEAVING, Config
from dovetail.engine.change.adopt import Adoption, InstalledPlan, Positions
from dovetail.engine.join.drivers import DriverChoice, Ranks, rank_arrivals, split_interleaved
from dovetail.engine.join.stages import Bounds
from dovetail.engine.join.step import Driver, JoinRun
from dovetail.engine.join.tree import ProbeTrees
from dovetail.engine.shedding.shedder import Shedder
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time import expiry
from dovetail.engine.time.intake import BackfillStarts, Batch, window_rows
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import MaterializedJoinPlan, WindowPlan
from dovetail.plan.steps import JoinStep
from dovetail.schema import StreamSchema

LATEST_BATCH = 1 << 62
"""A batch number after all others: every registered query sees its tuples."""


class JoinGroup:
    """Windows that are filled in the same way, and the joins over them."""

    def __init__(
        self,
        name: str,
        streams: Mapping[str, StreamSchema],
        config: Config,
        arena: Arena,
        *,
        numbered: bool = False,
    ) -> None:
        """Start without windows; `numbered`: windows keep each tuple's number in the shard's log."""
        self.name = name
        self._numbered = numbered
        self._streams = streams
        self._config = config
        self._arena = arena
        self.installed = InstalledPlan()
        self.batches = 0
        """Batches joined so far."""
        self.arrived = 0
        """Tuples joined since `ShardEngine.adapt` last read this."""
        self.shedder = None
        """Sheds tuples. Numbered windows are those of a shard on Spark, which discards a failed batch instead of undoing it."""
        if config.shedding is not None:
            self.shedder = Shedder(config.shedding, streams, can_roll_back=not numbered)
        self.expiry = expiry.Expiry(lazy=config.expiration == "lazy" and config.shedding is None)
        self._choice = DriverChoice(config.driver_policy)
        self.results_to: Callable[[str, pa.Table], None] | None = None
        """Receives results during the join, so that they need not all fit into memory; None: `join` yields them all."""
        self._first_new: dict[str, int] = {}
        """By stream: the first row that interleaved arrivals added to its window."""
        self._runs_by_stream: dict[str, list[JoinRun]] = {}
        """Joins that read the tuples of each stream."""
        self._trees: ProbeTrees | None = None
        self._has_current_trees = False
        """Whether the trees are those of the installed plan; they are built when tuples arrive."""

    # -- plans --------------------------------------------------------------------------------------------------------------

    def build(
        self,
        windows: Sequence[WindowPlan],
        materialized: Sequence[MaterializedJoinPlan],
        steps: Sequence[JoinStep],
        next_batch: int,
        positions: Positions | None = None,
    ) -> InstalledPlan:
        """Build what a new plan needs, without installing it; see `Adoption`."""
        return self._adoption(next_batch, positions).build(windows, materialized, steps)

    def _adoption(self, next_batch: int, positions: Positions | None) -> Adoption:
        return Adoption(
            self.installed,
            self._streams,
            self._arena,
            self._config.stage_rows,
            next_batch,
            self.expiry.kept_from,
            positions,
            numbered=self._numbered,
        )

    def install(self, new: InstalledPlan) -> list[WindowStore]:
        """Replace the installed plan by a new one; return the stores that are no longer needed."""
        before = list(self.all_stores())
        for store in new.windows.values():
            store.referrers = []
        for matches in new.materialized.values():
            for source, window in matches.windows.items():
                window.referrers.append((matches, source))
        if self.shedder is not None:
            self.shedder.install(new)
        self.installed = new
        self._runs_by_stream = {stream: [] for stream in self.windows}
        for run in self.runs.values():
            for stream in dict.fromkeys(source.stream for source in run.step.sources):
                self._runs_by_stream[stream].append(run)
        self._choice.install(self.runs.values())
        if self._trees is not None:
            self._trees.close()
        self._has_current_trees = False
        needed = {store.name for store in self.all_stores()}
        return [store for store in before if store.name not in needed]

    def trim(self) -> None:
        """Free the arrays that the installed plan does not need."""
        for stream, plan in self.plans.items():
            self.windows[stream].trim(plan.kept, plan.expiry_tables)
        for matches in self.materialized.values():
            matches.trim(matches.plan.kept)

    @property
    def plans(self) -> dict[str, WindowPlan]:
        return self.installed.plans

    @property
    def windows(self) -> dict[str, WindowStore]:
        return self.installed.windows

    @property
    def materialized(self) -> dict[str, MaterializedJoin]:
        return self.installed.materialized

    @property
    def runs(self) -> dict[str, JoinRun]:
        return self.installed.runs

    def stores(self, stream: str) -> list[WindowStore]:
        """Return the stores that hold tuples of a stream."""
        return [self.windows[stream]] if stream in self.windows else []

    def all_stores(self) -> Iterator[WindowStore]:
        """Yield every store of tuples, then every materialized join."""
        for stream in sorted(self.windows):
            yield from self.stores(stream)
        yield from self.materialized.values()

    def earliest_visible(self, step: JoinStep) -> dict[str, int]:
        """Return the earliest event time that each source of a step sees.

        Sources without visible tuples are omitted.
        """
        earliest = {}
        for source in step.sources:
            store = self.windows[source.stream]
            words, mask = store.flags(self.plans[source.stream].bits[step.name, source.name])
            times = store.live_values("ts")[(words & mask) != 0]
            if len(times):
                earliest[source.name] = int(times.min())
        return earliest

    # -- joining ------------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        batches: Mapping[str, Batch],
        *,
        all_rows: bool = False,
        batch_number: int = LATEST_BATCH,
        backfill_starts: BackfillStarts | None = None,
    ) -> dict[str, NewRows]:
        """Compute the rows that windows append for tuples of batch `batch_number`.

        No window changes; see `window_rows`.
        """
        prepared = {}
        for stream, batch in batches.items():
            if stream in self.windows and len(batch):
                began = perf_counter()
                prepared[stream] = window_rows(
                    batch,
                    self.plans[stream],
                    all_rows=all_rows,
                    batch_number=batch_number,
                    backfill_starts=backfill_starts,
                    keep_unseen=self.shedder is not None,
                )
                self.windows[stream].seconds += perf_counter() - began
        return prepared

    def join(
        self, incoming: Mapping[str, NewRows], progress: Progress, piece_rows: int | None = None
    ) -> Iterator[dict[str, list[pa.Table]]]:
        """Append the arrivals, find the results they complete, and gather their columns.

        The driver policy orders the arrivals; each sees those before it. Yields results in parts: one for each slice between
        which tuples are shed, or for each piece of about `piece_rows` arrivals.
        """
        for part in (incoming,) if self.shedder is None else self.shedder.slices(incoming):
            self._reset_matches()
            for piece, ranks in self._pieces(part, piece_rows):
                if ranks is None:
                    for stream, arrived in piece.items():
                        self._join_stream(stream, arrived)
                else:
                    self._join_interleaved(piece, progress, ranks)
                if piece_rows is not None:
                    yield self._gather_results()
                    self._reset_matches()
            if piece_rows is None:
                yield self._gather_results()
        self.batches += 1
        sizes = {stream: len(arrived) for stream, arrived in incoming.items()}
        self.arrived += sum(sizes.values())
        self._choice.end_batch(sizes)

    def _reset_matches(self) -> None:
        """Clear the matches, and set whether joins emit results early."""
        for run in self.runs.values():
            run.matches.clear(self._config.stage_rows)
            run.matches.emit = (
                partial(self._emit, run) if self.results_to is not None and run.materialized is None else None
            )

    def _emit(self, run: JoinRun) -> None:
        assert self.results_to is not None  # noqa: S101 - runs emit only if it is set
        for name, tables in run.results():
            for table in tables:
                self.results_to(name, table)

    def _gather_results(self) -> dict[str, list[pa.Table]]:
        return {name: tables for run in self.runs.values() if len(run.matches) for name, tables in run.results()}

    def _pieces(
        self, incoming: Mapping[str, NewRows], rows: int | None
    ) -> Iterator[tuple[Mapping[str, NewRows], Ranks | None]]:
        """Yield the arrivals in join order.

        For interleaved ones, also yield how many of each stream precede each tuple.
        """
        policy = self._config.driver_policy
        if policy in INTERLEAVING:
            yield from split_interleaved(incoming, rank_arrivals(incoming, policy), rows)
            return
        waiting = {stream: len(arrived) for stream, arrived in incoming.items() if len(arrived)}
        for stream in self._choice.choose(waiting):
            count = waiting[stream]
            for first in range(0, count, rows or count):
                yield {stream: incoming[stream].slice(first, min(count, first + (rows or count)))}, None

    def _join_stream(self, stream: str, arrived: NewRows) -> None:
        """Run the new tuples of one stream through its joins, materialized joins before their readers."""
        store, began = self.windows[stream], perf_counter()
        first = store.append(arrived)
        store.seconds += perf_counter() - began
        new_rows = {stream: (first, first + len(arrived))}
        if not len(arrived):
            return
        trees = self._current_trees()
        tree_matches = trees.run(stream, new_rows)
        for run in trees.separate_runs[stream]:
            matches = run.matches
            count = tree_matches.pop(run.name, 0)
            first_match, total_before = len(matches) - count, matches.total - count
            for driver in run.drivers if len(new_rows) > 1 else run.drivers_by_feed.get(stream, ()):
                if driver.feed in new_rows and not driver.runner.runs_in_tree:
                    driver.runner.run(driver.bounds(new_rows), matches)
            if matches.total > total_before:
                self._choice.count_matches(run, matches.total - total_before)
                if run.materialized is not None:
                    assert run.step.materialized_as is not None  # noqa: S101 - the step is materialized
                    new_rows[run.step.materialized_as] = run.materialize(matches, first_match)
                    if not run.collectors:
                        matches.count = first_match
        for name, count in tree_matches.items():
            self._choice.count_matches(self.runs[name], count)
        self._choice.count_combinations(new_rows)

    def _current_trees(self) -> ProbeTrees:
        """Return the probe trees of the installed plan; build them if the plan is new."""
        if self._trees is None or not self._has_current_trees:
            self._trees = ProbeTrees(self.runs, self.windows, self._config.stage_rows, self._trees)
            self._has_current_trees = True
        return self._trees

    def _join_interleaved(self, incoming: Mapping[str, NewRows], progress: Progress, ranks: Ranks) -> None:
        """Append all new tuples, then join each with those before it.

        Each tuple has its own bounds, which probe trees do not support: every path runs alone. No such join reads a materialized join.
        """
        self._first_new = {}
        for stream, arrived in incoming.items():
            store, began = self.windows[stream], perf_counter()
            self._first_new[stream] = store.append(arrived)
            store.seconds += perf_counter() - began
        is_eager = self._config.expiration == "eager"
        for stream, arrived in incoming.items():
            floors = expiry.floors(self.plans, self.windows, arrived.ts, progress) if is_eager else {}
            for run in self._runs_by_stream[stream] if len(arrived) else ():
                total_before = run.matches.total
                for driver in run.drivers:
                    if driver.feed == stream:
                        bounds = self._bounds(driver, len(arrived), ranks, floors)
                        driver.runner.run(bounds, run.matches)
                self._choice.count_matches(run, run.matches.total - total_before)
        self._choice.count_combinations({stream: (0, len(arrived)) for stream, arrived in incoming.items()})

    def load(self, incoming: Mapping[str, NewRows]) -> None:
        """Append tuples whose results were returned before."""
        for stream, arrived in incoming.items():
            self.windows[stream].append(arrived)

    def materialize_all(self) -> None:
        """Fill the materialized joins, which must be empty, with the matches of all tuples in the windows."""
        for run in self.runs.values():
            if run.materialized is not None:
                run.materialize_all()

    def _bounds(
        self,
        driver: Driver,
        count: int,
        ranks: Ranks,
        floors: Mapping[str, Int64Array],
    ) -> Bounds:
        """Return the rows that each driving tuple sees: those appended before it that have not expired for it."""
        stream, first = driver.feed, self._first_new[driver.feed]
        limits = np.empty((len(driver.inputs), count), np.int64)
        floors_of = np.empty_like(limits)
        for column, (target, store) in enumerate(driver.inputs):
            if target == stream and column != driver.column:
                # A tuple that matches under two aliases drives the result under the first of them only.
                limits[column] = np.arange(first, first + count) + (column > driver.column)
            elif (stream, target) in ranks:
                limits[column] = ranks[stream, target] + self._first_new[target]
            else:
                limits[column] = store.rows.head
            floors_of[column] = floors.get(target, store.rows.tail)
        return Bounds(first, first + count, limits, floors_of)

    def expire(self, progress: Progress) -> None:
        """Drop expired rows and matches."""
        list_held = self.shedder.complete(progress) if self.shedder is not None else {}
        self.expiry.drop_expired(self.plans, self.windows, progress, list_held)
        expiry.expire_matches(self.materialized, progress)
