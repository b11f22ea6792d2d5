"""One join step at run time: its inputs, its probe paths, and the queries that consume its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.engine.join.gather import Collector, GatheredColumns, Gatherer, MatchRows, SourceRows
from dovetail.engine.join.path import PathRunner
from dovetail.engine.join.stages import Bounds, Scratch
from dovetail.engine.join.verify import Matches, Member
from dovetail.engine.join.watch import JOINT_REPLAN_FACTOR, ProbeWatch, replan_cost
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.prefixes import ShareablePrefix, shareable_prefix
from dovetail.plan.query_plan import QueryPlan, SharingJoin
from dovetail.plan.steps import JoinStep
from dovetail.stats.probes import ProbeOrderChange

NewRowRanges: TypeAlias = Mapping[str, tuple[int, int]]
"""New rows of each stream or materialized join: the first row number, and the one after the last."""


class Driver:
    """One input of a join whose new rows drive a probe path."""

    def __init__(
        self, column: int, inputs: Sequence[tuple[str, WindowStore]], runner: PathRunner, prefix: ShareablePrefix
    ) -> None:
        self.column, self.runner, self.alias = column, runner, runner.path.driver
        self.prefix = prefix
        """The prefix of its path that other joins may share."""
        self.inputs = inputs
        """Name of each input's stream or materialized join, and its store."""
        self.feed = inputs[column][0]
        """Name of the stream or materialized join whose new rows drive."""
        self._rows = [store.rows for _, store in inputs]
        self._later = [(later, feed) for later, (feed, _) in enumerate(inputs) if later > column]
        """Inputs after this one: driving rows see only their old rows, since new ones drive the same matches."""
        self._later_of_same_feed = [(later, feed) for later, feed in self._later if feed == self.feed]
        zeros = np.zeros((len(inputs), 1), np.int64)
        self._bounds = Bounds(0, 0, zeros, zeros.copy())

    def bounds(self, new_rows: NewRowRanges) -> Bounds:
        """Return the rows that new rows see: all rows of earlier inputs, but only old rows of later ones.

        A match with several new rows is found once, from the row of its last input.
        """
        bounds = self._bounds
        bounds.first, bounds.stop = new_rows[self.feed]
        limits = [rows.head for rows in self._rows]
        for column, feed in self._later if len(new_rows) > 1 else self._later_of_same_feed:
            if feed in new_rows:
                limits[column] = new_rows[feed][0]
        bounds.limits[:, 0], bounds.floors[:, 0] = limits, [rows.tail for rows in self._rows]
        return bounds


class JoinRun:
    """A join step at run time."""

    def __init__(
        self, step: JoinStep, members: Mapping[str, Member], windows: Mapping[str, WindowStore], stage_rows: int
    ) -> None:
        """Run `step` over its inputs `members`; `windows` are the windows of its sources, by stream."""
        self.step, self.name = step, step.name
        self.members = members
        self.source_rows = {
            source.name: SourceRows(source.name, windows[source.stream], members[source.input])
            for source in step.sources
        }
        """By name of the source."""
        self.collectors = {
            consumer.query: Collector(consumer, step.windows, self.source_rows) for consumer in step.consumers
        }
        self._taking_all = [collector for collector in self.collectors.values() if collector.takes_all]
        self._gatherer: Gatherer | None = None
        self.on_results: Callable[[MatchRows], None] | None = None
        """Receives the rows of all results."""
        self.materialized: MaterializedJoin | None = None
        """Store of the step's matches, if they are materialized."""
        self.span = max(step.windows.values(), default=0)
        """Microseconds of the longest time window."""
        self.matches = Matches(len(members))
        """Matches of the last batch; their memory is reused."""
        self.watch = ProbeWatch()
        self.replaced_path_counts = [0, 0, 0]
        """Probes, rows read and matches of paths that were replaced."""
        scratch = Scratch(len(members), stage_rows)
        self.runners = {path.driver: PathRunner(path, members, scratch) for path in step.plan.paths}
        refs = step.plan.query.refs
        inputs = [(ref.stream, members[ref.alias].store) for ref in refs]
        self.drivers = [
            Driver(column, inputs, runner, shareable_prefix(step.plan.query, runner.path))
            for column, runner in enumerate(self.runners.values())
        ]
        self.drivers_by_feed: dict[str, list[Driver]] = {}
        for driver in self.drivers:
            self.drivers_by_feed.setdefault(driver.feed, []).append(driver)

    @property
    def plan(self) -> QueryPlan:
        return self.step.plan

    @property
    def sharing(self) -> frozenset[str]:
        """Drivers whose paths are in a probe tree."""
        return frozenset(driver for driver, runner in self.runners.items() if runner.runs_in_tree)

    @property
    def sharing_join(self) -> SharingJoin:
        return SharingJoin(self.plan, self.watch.measured, self.sharing)

    def revise(self, plan: QueryPlan, changes: list[ProbeOrderChange], batch: int) -> list[JoinStep]:
        """Record a new plan of the step; return the step to adopt if its probe orders differ."""
        self.watch.record_changes(changes, self.runners, batch)
        if plan.paths != self.plan.paths:
            return [replace(self.step, plan=plan)]
        self.step = replace(self.step, plan=plan)  # only the estimates differ
        return []

    @property
    def totals(self) -> list[int]:
        """Probes, rows read and matches so far."""
        return [
            sum(c)
            for c in zip(self.replaced_path_counts, *(runner.totals for runner in self.runners.values()), strict=True)
        ]

    def copy_counters(self, before: JoinRun) -> None:
        """Continue the counters of the step's previous run."""
        if before.members.keys() == self.members.keys():
            self.watch = before.watch
        self.replaced_path_counts = list(before.replaced_path_counts)
        for driver, old in before.runners.items():
            runner = self.runners.get(driver)
            if runner is not None and runner.path.order == old.path.order:
                runner.copy_counters(old)
            else:
                self.replaced_path_counts = [
                    sum(pair) for pair in zip(self.replaced_path_counts, old.totals, strict=True)
                ]

    def results(self) -> Iterator[tuple[str, list[pa.Table]]]:
        """Yield each query's result tables of the current matches; shared columns are gathered once."""
        common: list[GatheredColumns] | None = None
        began = perf_counter()
        rows = MatchRows(self.source_rows, self.matches)
        rows.drop_shed()
        if self.on_results is not None:
            self.on_results(rows)
        if self._taking_all:
            if self._gatherer is None:
                columns = (column for query in self._taking_all for column in query.source_columns.values())
                self._gatherer = Gatherer(columns)
            common = self._gatherer.gather(rows, 0, rows.count)
            seconds = (perf_counter() - began) / len(self._taking_all)
            for collector in self._taking_all:
                collector.seconds += seconds
        for name, collector in self.collectors.items():
            yield name, collector.collect(rows, common if collector.takes_all else None)

    def materialize(self, matches: Matches, begin: int) -> tuple[int, int]:
        """Store the matches from `begin` on; return their range of row numbers."""
        assert self.materialized is not None  # noqa: S101 - called for materialized steps only
        row_numbers = {source: rows.of(matches, begin) for source, rows in self.source_rows.items()}
        first = self.materialized.add_matches(row_numbers)
        return first, first + len(matches) - begin

    def materialize_all(self) -> None:
        """Store the matches of all tuples in the windows, without counting them."""
        matches, last = Matches(len(self.members)), self.drivers[-1]
        rows = last.inputs[last.column][1].rows
        with last.runner.uncounted():
            last.runner.run(last.bounds({last.feed: (rows.tail, rows.head)}), matches)
        self.materialize(matches, 0)


def due_for_joint_replan(runs: Iterable[JoinRun]) -> list[JoinRun]:
    """Return the joins that share stages once they have paid for a joint replan.

    Their counters of skipped replans start again.
    """
    sharing = [run for run in runs if run.sharing]
    skipped = [(run.watch.skipped_joint_replans, replan_cost(len(run.runners))) for run in sharing]
    if sum((replans - JOINT_REPLAN_FACTOR) * cost for replans, cost in skipped) < 0:
        return []
    for run in sharing:
        run.watch.skipped_joint_replans = 0
    return sharing
