"""One step of a plan at run time: its inputs, its probes, and the queries that take its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.engine.columns import StoredColumn
from dovetail.engine.evaluate import evaluate
from dovetail.engine.keys import coordinates
from dovetail.engine.matches import Matches, Member
from dovetail.engine.probe import Bounds, PathRunner, Scratch
from dovetail.engine.states import StateStore
from dovetail.engine.watch import TOGETHER, Watch, consider_cost
from dovetail.engine.window_store import WindowStore
from dovetail.plan.needs import stored_name
from dovetail.plan.nodes import QueryPlan, Sharing
from dovetail.plan.statistics import Change
from dovetail.plan.stems import Stem, stem
from dovetail.plan.steps import Consumer, Step
from dovetail.query.expressions import Column, Expression

Fresh: TypeAlias = Mapping[str, tuple[int, int]]
"""What is new in this turn: for each stream or stored sub-join its first new row, and the one after the last."""


class Tuples:
    """Where the tuples of one source are, and how a match leads to them."""

    def __init__(self, source: str, store: WindowStore, member: Member) -> None:
        self.store = store
        self._place = member.place
        self._state = member.store if isinstance(member.store, StateStore) else None
        """The input that holds their row numbers, if the source is not an input itself."""
        self._link = StateStore.link(source)

    def of(self, matches: Matches, begin: int = 0) -> Int64Array:
        """Row numbers, from match `begin` on."""
        numbers = matches.of(self._place, begin)
        if self._state is None:
            return numbers
        linked: Int64Array = self._state.rows[self._link][numbers - self._state.rows.base]
        return linked


class _Places:
    """Matches as places in the windows of their sources, each looked up once."""

    def __init__(self, tuples: Mapping[str, Tuples], matches: Matches) -> None:
        self.count = len(matches)
        self._tuples, self._matches = tuples, matches
        self._known: dict[str, Int64Array] = {}
        self._kept: Int64Array | None = None
        self._columns: dict[tuple[str, StoredColumn], pa.Array] = {}

    def of(self, source: str) -> Int64Array:
        if source not in self._known:
            tuples = self._tuples[source]
            places = tuples.of(self._matches) - tuples.store.rows.base
            self._known[source] = places if self._kept is None else places[self._kept]
        return self._known[source]

    def column(self, source: str, stored: StoredColumn) -> pa.Array:
        """The values of a column, for whoever asks for them: Arrow arrays never change."""
        if (source, stored) not in self._columns:
            self._columns[source, stored] = stored.take(self.of(source))
        return self._columns[source, stored]

    def array(self, source: str, name: str) -> Array:
        return self._tuples[source].store.rows[name][self.of(source)]

    def ends(self, source: str) -> Int64Array:
        """The last instants of tuples, some of which are being shed."""
        store = self._tuples[source].store
        assert store.lives is not None  # noqa: S101 - asked of such windows only
        first, lives = store.lives
        return lives[self.of(source) + (store.rows.base - first)]

    def keep(self, marked: BoolArray) -> None:
        """Drop the matches that are not marked."""
        if not marked.all():
            kept = np.flatnonzero(marked)
            self._kept = kept if self._kept is None else self._kept[kept]
            self._known = {source: places[kept] for source, places in self._known.items()}
            self._columns = {}
            self.count = len(kept)


class Collector:
    """Makes a query's result tables out of a step's matches."""

    def __init__(self, consumer: Consumer, windows: Mapping[str, int], tuples: Mapping[str, Tuples]) -> None:
        """Take results for `consumer` from a step whose time windows are `windows`, in microseconds by source."""
        self.nothing = consumer.schema.empty_table()
        self.results = 0
        self.seconds = 0.0
        self._tuples, self._all = tuples, list(tuples.values())
        self._cell = [(key.alias, stored_name(key.expression), share, part) for key, share, part in consumer.cell]
        self._narrower = {source: micros for source, micros in consumer.spans.items() if micros < windows[source]}
        """Windows that are smaller than the step's."""
        self._outputs = [self._output(output.expression) for output in consumer.outputs]
        self._same = consumer.same

    def go_on(self, before: Collector) -> None:
        """Go on counting where another collector of the query was."""
        self.results, self.seconds = before.results, before.seconds

    def _output(self, expression: Expression) -> tuple[str, StoredColumn | None, Expression]:
        """An output, with its source and stored column when it is a plain one."""
        if isinstance(expression, Column):
            return expression.alias, self._stored(expression), expression
        return "", None, expression

    def _stored(self, column: Column) -> StoredColumn:
        return self._tuples[column.alias].store.columns[f".{column.name}"]

    def gather(self, matches: Matches, common: _Places | None = None) -> list[pa.Table]:
        """The output columns of results; those outside the query's own windows, or of another cell, left out.

        Where nothing is left out, places and columns are those that the join's queries have in `common`.
        """
        began = perf_counter()
        whole = not (self._narrower or self._cell or any(each.store.lives is not None for each in self._all))
        places = common if whole and common is not None else _Places(self._tuples, matches)
        if not whole:
            self._leave_out(places)
        self.results += places.count
        tables = self._tables(places, slice(0, places.count))
        self.seconds += perf_counter() - began
        return tables

    def _leave_out(self, places: _Places) -> None:
        """Keep what lies in the query's own windows, and in its cell."""
        mortal = [source for source, tuples in self._tuples.items() if tuples.store.lives is not None]
        if self._narrower or mortal:
            latest = np.maximum.reduce([places.array(source, "ts") for source in self._tuples])
            for source in mortal:
                inside = places.ends(source) >= latest
                latest = latest[inside]
                places.keep(inside)
            for source, micros in self._narrower.items():
                inside = places.array(source, "ts") + micros >= latest
                latest = latest[inside]
                places.keep(inside)
        for source, name, share, part in self._cell:
            codes = places.array(source, self._tuples[source].store.codes[(name,)])
            places.keep(coordinates(codes, share) == part)

    def _tables(self, places: _Places, span: slice) -> list[pa.Table]:
        """One table, or several when one Arrow array cannot hold all strings."""
        whole = span.stop - span.start == places.count

        def take(source: str, stored: StoredColumn) -> pa.Array:
            return places.column(source, stored) if whole else stored.take(places.of(source)[span])

        def resolve(column: Column) -> pa.Array:
            return take(column.alias, self._stored(column))

        try:
            arrays: list[pa.Array] = []
            for number, (source, stored, expression) in enumerate(self._outputs):
                if self._same[number] < number:
                    arrays.append(arrays[self._same[number]])
                elif stored is not None:
                    arrays.append(take(source, stored))
                else:
                    arrays.append(evaluate(expression, resolve, span.stop - span.start))
        except OverflowError:
            middle = (span.start + span.stop) // 2
            halves = (slice(span.start, middle), slice(middle, span.stop))
            return [table for half in halves for table in self._tables(places, half)]
        return [pa.Table.from_arrays(arrays, schema=self.nothing.schema)]


class Driver:
    """One input whose new rows drive a path."""

    def __init__(self, place: int, targets: Sequence[tuple[str, WindowStore]], runner: PathRunner, stem: Stem) -> None:
        self.place, self.runner, self.alias = place, runner, runner.path.driver
        self.stem = stem
        """What other joins may share of its path."""
        self.targets = targets
        """For each input its stream, or stored sub-join, and its rows."""
        self.feed = targets[place][0]
        nothing = np.zeros((len(targets), 1), np.int64)
        self._bounds = Bounds(0, 0, nothing, nothing.copy())

    def bounds(self, fresh: Fresh) -> Bounds:
        """All new rows see all rows there are, but of the inputs after their own only old ones: who comes last finds a match."""
        bounds = self._bounds
        bounds.first, bounds.stop = fresh[self.feed]
        for place, (feed, store) in enumerate(self.targets):
            bounds.limits[place, 0] = fresh[feed][0] if place > self.place and feed in fresh else store.rows.head
            bounds.floors[place, 0] = store.rows.tail
        return bounds


class JoinRun:
    """A step at run time."""

    def __init__(
        self, step: Step, members: Mapping[str, Member], windows: Mapping[str, WindowStore], stage_rows: int
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
        self.state: StateStore | None = None
        """Where its matches are stored, if they are."""
        self.span = max(step.windows.values(), default=0)
        """Microseconds of its longest time window."""
        self.matches = Matches(len(members))
        """Those of the last batch: their room is used again."""
        self.watch = Watch()
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

    def revise(self, plan: QueryPlan, changes: list[Change], batch: int) -> list[Step]:
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

    def gather(self) -> Iterator[tuple[str, list[pa.Table]]]:
        """The result tables of each query, of the matches that there are."""
        common = _Places(self.tuples, self.matches)
        return ((name, collector.gather(self.matches, common)) for name, collector in self.collectors.items())

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
