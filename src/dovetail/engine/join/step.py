"""One step of a plan at run time: its inputs, its probes, and the queries that take its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.engine.join.gather import Collector, Gathered, Gatherer, MatchRows, Tuples
from dovetail.engine.join.path import PathRunner
from dovetail.engine.join.stages import Bounds, Scratch
from dovetail.engine.join.verify import Matches, Member
from dovetail.engine.join.watch import TOGETHER, ProbeWatch, consider_cost
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.prefixes import Stem, stem
from dovetail.plan.query_plan import QueryPlan, Sharing
from dovetail.plan.steps import JoinStep
from dovetail.stats.probes import ProbeOrderChange

Fresh: TypeAlias = Mapping[str, tuple[int, int]]
"""What is new in this turn: for each stream or stored sub-join its first new row, and the one after the last."""


class Driver:
    """One input whose new rows drive a path."""

    def __init__(self, place: int, targets: Sequence[tuple[str, WindowStore]], runner: PathRunner, stem: Stem) -> None:
        self.place, self.runner, self.alias = place, runner, runner.path.driver
        self.stem = stem
        """What other joins may share of its path."""
        self.targets = targets
        """For each input its stream, or stored sub-join, and its rows."""
        self.feed = targets[place][0]
        self._rows = [store.rows for _, store in targets]
        self._later = [(number, feed) for number, (feed, _) in enumerate(targets) if number > place]
        """Inputs of which the new tuples see old rows only, if there are new ones; and those whose new ones they are themselves."""
        self._own = [(number, feed) for number, feed in self._later if feed == self.feed]
        nothing = np.zeros((len(targets), 1), np.int64)
        self._bounds = Bounds(0, 0, nothing, nothing.copy())

    def bounds(self, fresh: Fresh) -> Bounds:
        """All new rows see all rows there are, but of the inputs after their own only old ones: who comes last finds a match."""
        bounds = self._bounds
        bounds.first, bounds.stop = fresh[self.feed]
        limits = [rows.head for rows in self._rows]
        for place, feed in self._later if len(fresh) > 1 else self._own:
            if feed in fresh:
                limits[place] = fresh[feed][0]
        bounds.limits[:, 0], bounds.floors[:, 0] = limits, [rows.tail for rows in self._rows]
        return bounds


class JoinRun:
    """A step at run time."""

    def __init__(
        self, step: JoinStep, members: Mapping[str, Member], windows: Mapping[str, WindowStore], stage_rows: int
    ) -> None:
        """Run `step` over `members`, its inputs; `windows` are those of its sources' streams."""
        self.step, self.name = step, step.name
        self.members = members
        led_to = {source.name: members[source.input] for source in step.sources}
        self.tuples = {
            source.name: Tuples(source.name, windows[source.stream], led_to[source.name]) for source in step.sources
        }
        """By source."""
        self.collectors = {
            consumer.query: Collector(consumer, step.windows, self.tuples) for consumer in step.consumers
        }
        self._whole = [collector for collector in self.collectors.values() if collector.is_whole]
        self._gatherer: Gatherer | None = None
        self._windows = [tuples.store for tuples in self.tuples.values()]
        self.state: MaterializedJoin | None = None
        """Where its matches are stored, if they are."""
        self.span = max(step.windows.values(), default=0)
        """Microseconds of its longest time window."""
        self.matches = Matches(len(members))
        """Those of the last batch: their room is used again."""
        self.watch = ProbeWatch()
        self.retired = [0, 0, 0]
        """What runners of replaced paths had counted: probes, rows looked at, matches."""
        scratch = Scratch(len(members), stage_rows)
        self.runners = {path.driver: PathRunner(path, members, scratch) for path in step.plan.paths}
        refs = step.plan.query.refs
        targets = [(ref.stream, members[ref.alias].store) for ref in refs]
        self.drivers = [
            Driver(place, targets, runner, stem(step.plan.query, runner.path))
            for place, runner in enumerate(self.runners.values())
        ]

    @property
    def plan(self) -> QueryPlan:
        return self.step.plan

    @property
    def sharing(self) -> frozenset[str]:
        """The drivers whose paths are in a tree."""
        return frozenset(driver for driver, runner in self.runners.items() if runner.shared is not None)

    @property
    def as_sharing(self) -> Sharing:
        return Sharing(self.plan, self.watch.measured, self.sharing)

    def revise(self, plan: QueryPlan, changes: list[ProbeOrderChange], batch: int) -> list[JoinStep]:
        """Take note of a plan with other orders; give the step to adopt, if it has any."""
        self.watch.changed(changes, self.runners, batch)
        if plan.paths != self.plan.paths:
            return [replace(self.step, plan=plan)]
        self.step = replace(self.step, plan=plan)  # with other estimates
        return []

    @property
    def totals(self) -> list[int]:
        """Probes, rows looked at and matches so far."""
        return [sum(c) for c in zip(self.retired, *(runner.totals for runner in self.runners.values()), strict=True)]

    def go_on(self, before: JoinRun) -> None:
        """Go on counting where another run of the step was."""
        if before.members.keys() == self.members.keys():
            self.watch = before.watch
        self.retired = list(before.retired)
        for driver, old in before.runners.items():
            runner = self.runners.get(driver)
            if runner is not None and runner.path.order == old.path.order:
                runner.go_on(old)
            else:
                self.retired = [sum(pair) for pair in zip(self.retired, old.totals, strict=True)]

    def results(self) -> Iterator[tuple[str, list[pa.Table]]]:
        """The result tables of each query, of the matches that there are; what several want is gathered once."""
        common: list[Gathered] | None = None
        whole = [] if any(store.lives is not None for store in self._windows) else self._whole
        if whole:
            began = perf_counter()
            if self._gatherer is None:
                self._gatherer = Gatherer(wanted for each in whole for wanted in each.wanted.values())
            found = MatchRows(self.tuples, self.matches)
            common = self._gatherer.gather(found, 0, found.count)
            seconds = (perf_counter() - began) / len(whole)
            for collector in whole:
                collector.seconds += seconds
        for name, collector in self.collectors.items():
            yield name, collector.collect(self.matches, common if collector.is_whole else None)

    def store(self, matches: Matches, begin: int) -> tuple[int, int]:
        """Keep the matches from `begin` on; return the first one's number, and the one after the last."""
        assert self.state is not None  # noqa: S101 - asked of steps with a state only
        first = self.state.add_matches({source: tuples.of(matches, begin) for source, tuples in self.tuples.items()})
        return first, first + len(matches) - begin

    def store_all(self) -> None:
        """Store the matches of all tuples that are in the windows; they are not counted as found."""
        matches, last = Matches(len(self.members)), self.drivers[-1]
        rows = last.targets[last.place][1].rows
        with last.runner.uncounted():
            last.runner.run(last.bounds({last.feed: (rows.tail, rows.head)}), matches)
        self.store(matches, 0)


def due_together(runs: Iterable[JoinRun]) -> list[JoinRun]:
    """The joins that share stages, when together they have paid for all their orders to be considered; then they begin anew."""
    sharing = [run for run in runs if run.sharing]
    if sum((run.watch.waits - TOGETHER) * consider_cost(len(run.runners)) for run in sharing) < 0:
        return []
    for run in sharing:
        run.watch.waits = 0
    return sharing
