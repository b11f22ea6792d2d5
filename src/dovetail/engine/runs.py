"""One step of a plan at run time: its inputs, its probes, and the queries that take its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.engine.columns import Column as StoredColumn
from dovetail.engine.evaluate import evaluate
from dovetail.engine.keys import coordinates
from dovetail.engine.matches import Matches, Member
from dovetail.engine.needs import stored_name
from dovetail.engine.probe import Bounds, PathRunner, Scratch
from dovetail.engine.states import StateStore
from dovetail.engine.watch import Watch
from dovetail.engine.window_store import WindowStore
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import Cell, JoinStep, Taker
from dovetail.query.expressions import Column, Expression
from dovetail.query.model import JoinQuery

Fresh: TypeAlias = Mapping[str, tuple[int, int]]
"""What is new in this turn: for each stream or stored sub-join its first new row, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Where the tuples of one source are, and how a match leads to them."""

    store: WindowStore
    place: int
    state: StateStore | None
    """The input that holds their row numbers, if the source is not an input itself."""
    source: str

    def of(self, matches: Matches, begin: int = 0) -> Int64Array:
        """Row numbers, from match `begin` on."""
        numbers = matches.of(self.place, begin)
        if self.state is None:
            return numbers
        linked: Int64Array = self.state.rows[self.state.link(self.source)][numbers - self.state.rows.base]
        return linked


class _Found:
    """Matches as places in the windows of their sources, each looked up once."""

    def __init__(self, tuples: Mapping[str, Tuples], matches: Matches) -> None:
        self.count = len(matches)
        self._tuples, self._matches = tuples, matches
        self._known: dict[str, Int64Array] = {}
        self._kept: Int64Array | None = None

    def places(self, source: str) -> Int64Array:
        if source not in self._known:
            tuples = self._tuples[source]
            places = tuples.of(self._matches) - tuples.store.rows.base
            self._known[source] = places if self._kept is None else places[self._kept]
        return self._known[source]

    def array(self, source: str, name: str) -> Array:
        return self._tuples[source].store.rows[name][self.places(source)]

    def keep(self, marked: BoolArray) -> None:
        """Drop the matches that are not marked."""
        if not marked.all():
            kept = np.flatnonzero(marked)
            self._kept = kept if self._kept is None else self._kept[kept]
            self._known = {source: places[kept] for source, places in self._known.items()}
            self.count = len(kept)


class Collector:
    """Makes a query's result tables out of a step's matches."""

    def __init__(self, taker: Taker, windows: Mapping[str, int], tuples: Mapping[str, Tuples], cell: Cell) -> None:
        self.query = taker.query
        self.nothing = taker.query.schema.empty_table()
        self.results = 0
        self.seconds = 0.0
        self._tuples = tuples
        self._sources = taker.sources
        self._cell = [(taker.sources[key.alias], stored_name(key.expression), share, part) for key, share, part in cell]
        self.spans = taker.spans
        self._narrower: dict[str, int] = {}
        """Windows that are smaller than the step's."""
        self.compare_windows(windows)
        self._outputs = [self._output(output.expression) for output in taker.query.outputs]
        self._same = _same_outputs(taker.query)

    def compare_windows(self, windows: Mapping[str, int]) -> None:
        """See which of the step's windows are too large for the query."""
        self._narrower = {source: micros for source, micros in self.spans.items() if micros < windows[source]}

    def _output(self, expression: Expression) -> tuple[str, StoredColumn | None, Expression]:
        """An output, with its source and stored column when it is a plain one."""
        if isinstance(expression, Column):
            return self._sources[expression.alias], self._stored(expression), expression
        return "", None, expression

    def _stored(self, column: Column) -> StoredColumn:
        return self._tuples[self._sources[column.alias]].store.columns[f".{column.name}"]

    def gather(self, matches: Matches) -> list[pa.Table]:
        """The output columns of results; those outside the query's own windows, or of another cell, left out."""
        began = perf_counter()
        found = _Found(self._tuples, matches)
        if self._narrower:
            latest = np.maximum.reduce([found.array(source, "ts") for source in self._tuples])
            for source, micros in self._narrower.items():
                inside = found.array(source, "ts") + micros >= latest
                latest = latest[inside]
                found.keep(inside)
        for source, name, share, part in self._cell:
            codes = found.array(source, self._tuples[source].store.codes[(name,)])
            found.keep(coordinates(codes, share) == part)
        self.results += found.count
        tables = self._tables(found, slice(0, found.count))
        self.seconds += perf_counter() - began
        return tables

    def _tables(self, found: _Found, span: slice) -> list[pa.Table]:
        """One table, or several when one Arrow array cannot hold all strings."""

        def resolve(column: Column) -> pa.Array:
            return self._stored(column).take(found.places(self._sources[column.alias])[span])

        try:
            arrays: list[pa.Array] = []
            for number, (source, stored, expression) in enumerate(self._outputs):
                if self._same[number] < number:
                    arrays.append(arrays[self._same[number]])
                elif stored is not None:
                    arrays.append(stored.take(found.places(source)[span]))
                else:
                    arrays.append(evaluate(expression, resolve, span.stop - span.start))
        except OverflowError:
            middle = (span.start + span.stop) // 2
            halves = (slice(span.start, middle), slice(middle, span.stop))
            return [table for half in halves for table in self._tables(found, half)]
        return [pa.Table.from_arrays(arrays, schema=self.nothing.schema)]


def _same_outputs(query: JoinQuery) -> list[int]:
    """For each output the number of the first that holds the same in every result: keys, in the type that they are compared in.

    Floats are left out: 0.0 equals -0.0.
    """
    first: dict[Expression | int, int] = {}
    same = []
    for number, output in enumerate(query.outputs):
        expression = output.expression
        classes = [
            place
            for place, group in enumerate(query.classes)
            if group.type == expression.type
            and not pa.types.is_floating(group.type)
            and any(key.expression == expression for key in group.keys)
        ]
        same.append(first.setdefault(classes[0] if classes else expression, number))
    return same


class Driver:
    """One input whose new rows drive a path."""

    def __init__(self, place: int, targets: Sequence[tuple[str, WindowStore]], runner: PathRunner) -> None:
        self.place, self.runner = place, runner
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
        self, step: JoinStep, members: Mapping[str, Member], windows: Mapping[str, WindowStore], stage_rows: int
    ) -> None:
        self.step = step
        self.members = members
        """By input."""
        self.tuples = _tuples(step, members, windows)
        """By source."""
        self.collectors: dict[str, Collector] = {}
        self.state: StateStore | None = None
        """Where its matches are stored, if they are."""
        self.matches = Matches(len(members))
        """Those of the last batch: their room is used again."""
        self.watch = Watch()
        self.retired = [0, 0, 0]
        """What runners of replaced paths had counted: probes, rows looked at, matches."""
        self._scratch = Scratch(len(members), stage_rows)
        self.runners: dict[str, PathRunner] = {}
        self.drivers: list[Driver] = []
        self._make_runners(step.plan)

    def _make_runners(self, plan: QueryPlan) -> None:
        old = self.runners
        self.runners = {path.driver: PathRunner(path, self.members, self._scratch) for path in plan.paths}
        for driver, before in old.items():
            if self.runners[driver].path == before.path:
                self.runners[driver] = before
            elif self.runners[driver].path.order == before.path.order:
                self.runners[driver].go_on(before)
            else:
                self.retired = [sum(pair) for pair in zip(self.retired, before.totals, strict=True)]
        targets = [(ref.stream, self.members[ref.alias].store) for ref in plan.query.refs]
        self.drivers = [Driver(place, targets, self.runners[ref.alias]) for place, ref in enumerate(plan.query.refs)]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def windows(self) -> dict[str, int]:
        """Microseconds of its time windows, by source."""
        return self.step.windows

    @property
    def span(self) -> int:
        return max(self.windows.values(), default=0)

    @property
    def needed(self) -> dict[str, int]:
        """The same, as large as its queries and the readers of its matches need them."""
        asked = [collector.spans for collector in self.collectors.values()]
        asked += [dict(reader.spans) for reader in self.state.readers.values()] if self.state is not None else []
        return {source: max(spans[source] for spans in asked) for source in self.windows}

    @property
    def totals(self) -> list[int]:
        """Probes, rows looked at and matches so far."""
        return [sum(c) for c in zip(self.retired, *(runner.totals for runner in self.runners.values()), strict=True)]

    def narrow(self, step: JoinStep, members: Mapping[str, Member]) -> None:
        """Go on as a step with smaller windows; `members` are its inputs with those."""
        self.step, self.members = step, members
        old, self.runners = self.runners, {}
        self._make_runners(self.step.plan)
        for driver, runner in self.runners.items():
            runner.go_on(old[driver])
        for collector in self.collectors.values():
            collector.compare_windows(self.windows)

    @property
    def plan(self) -> QueryPlan:
        return self.step.plan

    def add_taker(self, taker: Taker, cell: Cell) -> None:
        self.collectors[taker.query.name] = Collector(taker, self.windows, self.tuples, cell)

    def change_plan(self, plan: QueryPlan) -> None:
        """Go on with other probe orders; what is counted along unchanged ones goes on."""
        self.step = replace(self.step, plan=plan)
        self._make_runners(plan)

    def revise(self, plan: QueryPlan) -> None:
        """Take over a plan of the same orders, for its estimates."""
        self.step = replace(self.step, plan=plan)

    def forget_state(self) -> str:
        """Store matches no longer; return the name that they had."""
        name, self.state = self.step.state, None
        assert name is not None  # noqa: S101 - asked of steps with a state only
        self.step = replace(self.step, state=None)
        return name

    def store(self, matches: Matches, begin: int) -> tuple[int, int]:
        """Keep the matches from `begin` on; return the first one's number, and the one after the last."""
        assert self.state is not None  # noqa: S101 - asked of steps with a state only
        count = len(matches) - begin
        first = self.state.add_matches({source: tuples.of(matches, begin) for source, tuples in self.tuples.items()})
        return first, first + count


def _tuples(step: JoinStep, members: Mapping[str, Member], windows: Mapping[str, WindowStore]) -> dict[str, Tuples]:
    inside = {source: alias for alias, sources in step.stored_inputs.items() for source in sources}
    found = {}
    for ref in step.flat.refs:
        member = members[inside.get(ref.alias, ref.alias)]
        state = member.store if isinstance(member.store, StateStore) else None
        found[ref.alias] = Tuples(windows[ref.alias], member.place, state, ref.alias)
    return found
