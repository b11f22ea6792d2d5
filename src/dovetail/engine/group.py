"""Queries that run over the same windows, and the windows they share.

A window holds what any of its queries needs. Which rows a query's alias may see is one bit per row, set when the row arrives: it
passed the alias's filters, its keys are not NULL, and the query was there. A query added later therefore starts with empty windows,
whatever its windows' stores already hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.config import Config
from dovetail.engine.arena import Arena
from dovetail.engine.columns import Column as StoredColumn
from dovetail.engine.evaluate import evaluate
from dovetail.engine.intake import Batch, arrivals
from dovetail.engine.keys import coordinates
from dovetail.engine.matches import Matches, Member
from dovetail.engine.needs import plan_needs, stored_name
from dovetail.engine.probe import Bounds, PathRunner
from dovetail.engine.progress import Progress
from dovetail.engine.shared_window import SharedWindow
from dovetail.engine.watch import Replan, Watch
from dovetail.engine.window_store import LONG_AGO, Arrivals, Position, WindowStore
from dovetail.plan.nodes import QueryPlan
from dovetail.query.expressions import Column, Expression
from dovetail.query.model import CountWindow, JoinQuery, Key, TimeWindow
from dovetail.schema import StreamSchema

Cell: TypeAlias = Sequence[tuple[Key, int, int]]
"""Which results a shard may emit: for each key, into how many parts its axis is cut, and the shard's part."""
_PATIENCE_BITS = 5
"""Lazy expiration lets a window outgrow itself by one part in 2 to this power."""


class QueryRun:
    """A query at run time."""

    def __init__(self, plan: QueryPlan, members: dict[str, Member], stage_rows: int, cell: Cell = ()) -> None:
        self.plan = plan
        self.cell = [(members[key.alias], stored_name(key.expression), share, part) for key, share, part in cell]
        self.members = members
        self.schema = plan.query.schema
        self.results = 0
        windows = [ref.window for ref in plan.query.refs]
        self.span = max((window.micros for window in windows if isinstance(window, TimeWindow)), default=0)
        """The longest time window, in microseconds."""
        self.watch = Watch()
        self.retired = [0, 0, 0]
        """What runners of replaced paths had counted: probes, rows looked at, matches."""
        self.runners = {path.driver: PathRunner(path, members, stage_rows) for path in plan.paths}
        self.outputs = [self._output(output.expression) for output in plan.query.outputs]

    def _output(self, expression: Expression) -> tuple[str, StoredColumn | None, Expression]:
        """An output, with its alias and stored column when it is a plain one."""
        if isinstance(expression, Column):
            return expression.alias, self.members[expression.alias].store.columns[f".{expression.name}"], expression
        return "", None, expression

    def gather(self, matches: Matches) -> list[pa.Table]:
        """The output columns of results, those that belong to another cell left out."""
        for member, name, share, part in self.cell:
            rows = member.store.rows
            codes = rows[member.store.codes[(name,)]][matches.of(member.place) - rows.base]
            matches.keep(coordinates(codes, share) == part)
        self.results += len(matches)
        return self._tables({alias: matches.of(m.place) - m.store.rows.base for alias, m in self.members.items()})

    def _tables(self, places: Mapping[str, Int64Array]) -> list[pa.Table]:
        """One table, or several when one Arrow array cannot hold all strings."""

        def resolve(column: Column) -> pa.Array:
            return self.members[column.alias].store.columns[f".{column.name}"].take(places[column.alias])

        count = len(next(iter(places.values())))
        try:
            arrays = [
                stored.take(places[alias]) if stored is not None else evaluate(expression, resolve, count)
                for alias, stored, expression in self.outputs
            ]
        except OverflowError:
            halves = (slice(count // 2), slice(count // 2, None))
            return [t for half in halves for t in self._tables({alias: p[half] for alias, p in places.items()})]
        return [pa.Table.from_arrays(arrays, schema=self.schema)]


class _Driver:
    """One alias whose new tuples drive a path, with what `JoinGroup` needs to bound it."""

    def __init__(self, name: str, run: QueryRun, alias: str, runner: PathRunner, stream: str) -> None:
        self.name, self.runner = name, runner
        self.place = run.members[alias].place
        self.targets = [
            (ref.stream, member.store.rows)
            for ref, member in zip(run.plan.query.refs, run.members.values(), strict=True)
        ]
        self.meets_itself = sum(target == stream for target, _ in self.targets) > 1
        nothing = np.zeros((len(self.targets), 1), np.int64)
        self._shared = Bounds(0, 0, nothing, nothing.copy())

    def shared_bounds(self, first: int, count: int) -> Bounds:
        """All driving tuples see all rows there are."""
        bounds = self._shared
        bounds.first, bounds.stop = first, first + count
        for place, (_, rows) in enumerate(self.targets):
            bounds.limits[place, 0] = rows.head
            bounds.floors[place, 0] = rows.tail
        return bounds


class JoinGroup:
    """Windows shared by queries, and the joining of batches over them."""

    def __init__(self, name: str, streams: Mapping[str, StreamSchema], config: Config, arena: Arena) -> None:
        self.name = name
        self._streams = streams
        self._config = config
        self._arena = arena
        self.windows: dict[str, SharedWindow] = {}
        self.runs: dict[str, QueryRun] = {}
        self.positions: Mapping[str, Position] = {}
        """While attaching: where the arrays of each store begin and end."""
        self.replan: Replan | None = None
        """Chooses new orders while the queries run; without it they stay."""
        self.batches = 0
        """Batches joined so far."""
        self._retention: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        self._drivers: dict[str, list[_Driver]] = {}

    def add_query(self, plan: QueryPlan, places: Mapping[str, tuple[int, int]] | None = None, cell: Cell = ()) -> None:
        """Start a query; `places` are its aliases' flag bits when its windows already hold them."""
        needs = plan_needs(plan)
        members = {}
        for number, ref in enumerate(plan.query.refs):
            window = self._window(ref.stream)
            usage = window.add(plan.query, ref, needs[ref.alias], places[ref.alias] if places else None)
            members[ref.alias] = Member(number, window.store, ref.window, usage.word, usage.bit)
        self.runs[plan.query.name] = QueryRun(plan, members, self._config.stage_rows, cell)
        self._list_drivers()

    def _list_drivers(self) -> None:
        """For each stream, whose new tuples drive what, and how long which other streams need its old ones."""
        self._drivers = {stream: [] for stream in self.windows}
        self._retention = {stream: [] for stream in self.windows}
        for name, run in self.runs.items():
            refs = run.plan.query.refs
            for ref in refs:
                self._drivers[ref.stream].append(_Driver(name, run, ref.alias, run.runners[ref.alias], ref.stream))
                if not isinstance(ref.window, CountWindow):
                    others = tuple(dict.fromkeys(other.stream for other in refs if other.alias != ref.alias))
                    self._retention[ref.stream].append((others, ref.window.micros))

    def drop_query(self, name: str) -> None:
        run = self.runs.pop(name)
        for ref in run.plan.query.refs:
            self.windows[ref.stream].drop((name, ref.alias))
        for stream in [stream for stream, window in self.windows.items() if not window.usages]:
            del self.windows[stream]
        self._list_drivers()

    def change_plan(self, plan: QueryPlan) -> None:
        """Go on with other probe orders. Results do not depend on them, so this is safe between any two batches."""
        name, old = plan.query.name, self.runs[plan.query.name]
        needs = plan_needs(plan)
        for ref in plan.query.refs:
            self.windows[ref.stream].change_needs((name, ref.alias), needs[ref.alias])
        run = QueryRun(plan, old.members, self._config.stage_rows)
        run.cell, run.results, run.watch, run.retired = old.cell, old.results, old.watch, old.retired
        for driver, runner in run.runners.items():
            before = old.runners[driver]
            if runner.path.order == before.path.order:
                run.runners[driver] = before
            else:
                run.retired = [sum(pair) for pair in zip(run.retired, before.totals, strict=True)]
        self.runs[name] = run
        self._list_drivers()

    def adapt(self, time: int, arrived: int) -> None:
        """After a batch: look at the counters of queries that have seen enough, and replace orders that have become bad."""
        self.batches += 1
        for run in list(self.runs.values()) if self.replan is not None else ():
            run.watch.fresh += arrived
            if run.watch.is_ready(run.runners, time, run.span) and run.watch.look(run.runners, time):
                self._reconsider(run)

    def _reconsider(self, run: QueryRun) -> None:
        revised = self.replan(run.plan, run.watch.measured) if self.replan is not None else None
        if revised is None:
            return
        run.plan, changes = revised
        if changes:
            run.watch.changed(changes, run.runners, self.batches)
            self.change_plan(run.plan)

    def _window(self, stream: str) -> SharedWindow:
        if stream not in self.windows:
            name = f"{self.name}.{stream}"
            store = WindowStore(self._arena, name, self._streams[stream], self.positions.get(name))
            self.windows[stream] = SharedWindow(self._streams[stream], store)
        return self.windows[stream]

    def stores(self, stream: str) -> list[WindowStore]:
        """Where the group keeps tuples of a stream."""
        return [self.windows[stream].store] if stream in self.windows else []

    # -- joining ------------------------------------------------------------------------------------------------------------

    def prepare(self, batches: Mapping[str, Batch], *, all_rows: bool = False) -> dict[str, Arrivals]:
        """Evaluate all that the windows store of the batches. Changes nothing."""
        prepared = {}
        for stream, batch in batches.items():
            if stream in self.windows and len(batch):
                window = self.windows[stream]
                prepared[stream] = arrivals(
                    batch, window.store.flag_words, window.needs, window.usages.values(), all_rows=all_rows
                )
        return prepared

    def join(
        self, incoming: Mapping[str, Arrivals], progress: Progress, *, together: bool
    ) -> dict[str, list[pa.Table]]:
        """Insert the arrivals, find the results they complete, and gather their columns.

        Streams go one after another, each seeing those before it; `together` inserts all of them first, which eager evaluation
        and count windows need.
        """
        streams = list(incoming)
        matches = {name: Matches(len(run.members)) for name, run in self.runs.items()}
        schedule = [streams] if together else [[stream] for stream in streams]
        eager = self._config.evaluation == "eager"
        for step in schedule:
            for stream in step:
                window = self.windows[stream]
                window.first_new = window.store.append(incoming[stream])
            ranks = _interleave(incoming, step, by_time=eager) if together else {}
            for stream in step:
                self._drive(stream, incoming, ranks, progress, matches)
        results = {name: self.runs[name].gather(found) for name, found in matches.items() if len(found)}
        self.adapt(max((p.head for p in progress.streams.values()), default=LONG_AGO), sum(map(len, incoming.values())))
        return results

    def load(self, incoming: Mapping[str, Arrivals]) -> None:
        """Insert arrivals whose results have been found before."""
        for stream, arrived in incoming.items():
            self.windows[stream].first_new = self.windows[stream].store.append(arrived)

    def _drive(
        self,
        stream: str,
        incoming: Mapping[str, Arrivals],
        ranks: Mapping[tuple[str, str], Int64Array],
        progress: Progress,
        matches: Mapping[str, Matches],
    ) -> None:
        count = len(incoming[stream].ts)
        if not count:
            return
        first = self.windows[stream].first_new
        floors = self._eager_floors(incoming[stream].ts, progress) if self._config.expiration == "eager" else {}
        for driver in self._drivers[stream]:
            if ranks or floors or driver.meets_itself:
                bounds = self._bounds(driver, stream, first, count, ranks, floors)
            else:
                bounds = driver.shared_bounds(first, count)
            driver.runner.run(bounds, matches[driver.name])

    def _bounds(
        self,
        driver: _Driver,
        stream: str,
        first: int,
        count: int,
        ranks: Mapping[tuple[str, str], Int64Array],
        floors: Mapping[str, Int64Array],
    ) -> Bounds:
        """What each driving tuple sees: those before it in the batch, and what has not expired for it."""
        limits = np.empty((len(driver.targets), count), np.int64)
        lows = np.empty_like(limits)
        for place, (target, rows) in enumerate(driver.targets):
            if target == stream and place != driver.place:
                # A tuple under two aliases counts once: it is driven by the first of them.
                limits[place] = np.arange(first, first + count) + (place > driver.place)
            elif (stream, target) in ranks:
                limits[place] = ranks[stream, target] + self.windows[target].first_new
            else:
                limits[place] = rows.head
            lows[place] = floors.get(target, rows.tail)
        return Bounds(first, first + count, limits, lows)

    def _eager_floors(self, ts: Int64Array, progress: Progress) -> dict[str, Int64Array]:
        """For each stream, the first row that has not expired when a tuple of time `ts` is joined."""
        floors = {}
        for stream, window in self.windows.items():
            bound = np.minimum(ts - window.longest, self.bound(stream, progress))
            counted = any(isinstance(ref.window, CountWindow) for ref in window.windows.values())
            if not counted:
                floors[stream] = window.store.rows.tail + np.searchsorted(window.store.living("prefix_max"), bound)
        return floors

    # -- expiry -------------------------------------------------------------------------------------------------------------

    def horizon(self, query: JoinQuery, alias: str, progress: Progress) -> int:
        """The earliest time a future result that uses an old tuple of `alias` can have."""
        return progress.watermark(ref.stream for ref in query.refs if ref.alias != alias)

    def bound(self, stream: str, progress: Progress) -> int:
        """The event time below which no time window needs a tuple of `stream`."""
        bounds = [progress.watermark(others) - micros for others, micros in self._retention[stream]]
        return max(min(bounds), LONG_AGO) if bounds else LONG_AGO

    def expire(self, progress: Progress) -> None:
        """Forget what has expired; when lazy, only once it is a few per cent of the window, because each look costs."""
        lazy = self._config.expiration == "lazy"
        for stream, window in self.windows.items():
            bound = self.bound(stream, progress)
            if bound - window.expired_before > (window.longest >> _PATIENCE_BITS if lazy else 0):
                window.store.expire_before(bound)
                window.expired_before = bound


def _interleave(
    incoming: Mapping[str, Arrivals], streams: Sequence[str], *, by_time: bool
) -> dict[tuple[str, str], Int64Array]:
    """For each pair of streams, how many new tuples of the second come before each new tuple of the first."""
    ranks = {}
    for number, stream in enumerate(streams):
        for other_number, other in enumerate(streams):
            if stream == other:
                continue
            if by_time:
                side: Literal["left", "right"] = "right" if other_number < number else "left"
                ranks[stream, other] = np.searchsorted(incoming[other].ts, incoming[stream].ts, side=side)
            else:
                before = len(incoming[other]) if other_number < number else 0
                ranks[stream, other] = np.full(len(incoming[stream]), before, np.int64)
    return ranks
