"""Queries that run over the same windows, and the windows they share.

A window holds what any of its queries needs. Which rows a query's alias may see is one bit per row, set when the row arrives: it
passed the alias's filters, its keys are not NULL, and the query was there. A query added later therefore starts with empty windows,
whatever its windows' stores already hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.config import Config
from dovetail.engine.arena import Arena
from dovetail.engine.intake import Batch, arrivals
from dovetail.engine.matches import Matches, Member
from dovetail.engine.needs import AliasNeeds, plan_needs, source_needs
from dovetail.engine.probe import Bounds
from dovetail.engine.progress import Progress
from dovetail.engine.runs import Driver, JoinRun
from dovetail.engine.shared_window import SharedWindow
from dovetail.engine.states import StateStore
from dovetail.engine.watch import Replan
from dovetail.engine.window_store import LONG_AGO, Arrivals, Position, WindowStore
from dovetail.errors import StateError
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import Cell, JoinStep
from dovetail.query.model import CountWindow, JoinQuery, Key, StoredWindow, TimeWindow
from dovetail.schema import StreamSchema

Place = tuple[int, int]
"""A word of flags and a bit in it."""
_PATIENCE_BITS = 5
"""Lazy expiration lets a window outgrow itself by one part in 2 to this power."""


class JoinGroup:
    """Windows shared by queries, and the joining of batches over them."""

    def __init__(self, name: str, streams: Mapping[str, StreamSchema], config: Config, arena: Arena) -> None:
        self.name = name
        self._streams = streams
        self._config = config
        self._arena = arena
        self.windows: dict[str, SharedWindow] = {}
        self.states: dict[str, StateStore] = {}
        """Stored sub-joins, each after those that it is made of."""
        self.runs: dict[str, JoinRun] = {}
        """Steps by name, each after those whose results it reads."""
        self.positions: Mapping[str, Position] | None = None
        """While attaching: where the arrays of each store begin and end."""
        self.replan: Replan | None = None
        """Chooses new orders while the queries run; without it they stay."""
        self.batches = 0
        """Batches joined so far."""
        self._retention: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        self._awaited: dict[str, set[str]] = {}
        self._fed: dict[str, list[JoinRun]] = {}

    # -- queries ------------------------------------------------------------------------------------------------------------

    def add_step(
        self,
        step: JoinStep,
        cells: Mapping[str, Cell] | None = None,
        places: Mapping[str, Mapping[str, Place]] | None = None,
    ) -> None:
        """Start a join; `places` are the flag bits of its sources and stored inputs when those already hold them."""
        name, query = step.name, step.plan.query
        cells = cells or {}
        inputs, needs = _needs(step, cells)
        known = places or {"sources": {}, "inputs": {}}
        usages, windows = {}, {}
        for ref in step.flat.refs:
            window = self._window(ref.stream)
            usages[ref.alias] = window.add(step.flat, ref, needs[ref.alias], known["sources"].get(ref.alias))
            windows[ref.alias] = window.store
        members = {}
        for number, ref in enumerate(query.refs):
            if isinstance(ref.window, StoredWindow):
                inside = {source: usages[source] for source, _ in ref.window.spans}
                state, place = self.states[ref.stream], known["inputs"].get(ref.alias)
                reader = state.add_reader(name, ref.window.spans, inputs[ref.alias], step.columns, inside, place)
                members[ref.alias] = Member(number, state, ref.window, reader.word, reader.bit)
            else:
                usage = usages[ref.alias]
                members[ref.alias] = Member(number, windows[ref.alias], ref.window, usage.word, usage.bit)
        run = self.runs[name] = JoinRun(step, members, windows, self._config.stage_rows)
        for taker in step.takers:
            run.add_taker(taker, cells.get(taker.query.name, ()))
        if step.state is not None:
            label, spans = f"{self.name}.{step.state}", tuple(run.windows.items())
            run.state = StateStore(self._arena, label, spans, windows, self.position(label))
            self.states[step.state] = run.state
        self._list_runs()

    def _list_runs(self) -> None:
        """For each stream, which joins its new tuples reach, and how long which other streams need its old ones."""
        self._fed = {stream: [] for stream in self.windows}
        self._retention = {stream: [] for stream in self.windows}
        self._awaited = {state: set() for state in self.states}
        for run in self.runs.values():
            refs = run.step.flat.refs
            for ref in refs:
                if run not in self._fed[ref.stream]:
                    self._fed[ref.stream].append(run)
                if isinstance(ref.window, TimeWindow):
                    others = tuple(dict.fromkeys(other.stream for other in refs if other.alias != ref.alias))
                    self._retention[ref.stream].append((others, ref.window.micros))
            for state, inside in run.step.stored_inputs.items():
                self._awaited[state] |= {ref.stream for ref in refs if ref.alias not in inside}

    @property
    def queries(self) -> dict[str, JoinRun]:
        """The join that answers each query."""
        return {name: run for run in self.runs.values() for name in run.collectors}

    def drop_query(self, name: str) -> None:
        """Stop a query, and the joins that only it needed."""
        del self.queries[name].collectors[name]
        for run in reversed(list(self.runs.values())):
            if run.state is not None and not run.state.readers:
                self.states.pop(run.forget_state()).remove()
            if not run.collectors and run.state is None:
                self._drop_run(run)
            elif run.needed != run.windows:
                self._narrow(run)
        self._list_runs()

    def _narrow(self, run: JoinRun) -> None:
        """Make a join's windows as small as those who are left need them."""
        step = run.step.narrowed(run.needed)
        for ref in step.flat.refs:
            self.windows[ref.stream].change_window(run.name, ref)
        members = {}
        for ref in step.plan.query.refs:
            members[ref.alias] = replace(run.members[ref.alias], window=ref.window)
            if isinstance(ref.window, StoredWindow):
                self.states[ref.stream].narrow_reader(run.name, ref.window.spans)
        if run.state is not None:
            run.state.narrow(tuple(step.windows.items()))
        run.narrow(step, members)

    def _drop_run(self, run: JoinRun) -> None:
        del self.runs[run.name]
        for ref in run.step.flat.refs:
            window = self.windows[ref.stream]
            window.drop((run.name, ref.alias))
            if not window.usages:
                del self.windows[ref.stream]
        for state in run.step.stored_inputs:
            self.states[state].drop_reader(run.name)

    def forget_others(self, runs: frozenset[str]) -> None:
        """Forget joins, and uses of windows, that are not `runs`: those of a query whose adding came to nothing."""
        self.runs = {name: run for name, run in self.runs.items() if name in runs}
        for stream, window in list(self.windows.items()):
            for owner in [owner for owner in window.usages if owner[0] not in runs]:
                del window.usages[owner]
            if not window.usages:
                del self.windows[stream]

    def change_plan(self, plan: QueryPlan) -> None:
        """Go on with other probe orders. Results do not depend on them, so this is safe between any two batches."""
        run = self.runs[plan.query.name]
        run.change_plan(plan)
        inputs, needs = _needs(run.step, {})
        for ref in run.step.flat.refs:
            self.windows[ref.stream].change_needs((run.name, ref.alias), needs[ref.alias])
        for state in run.step.stored_inputs:
            self.states[state].change_needs(run.name, inputs[state])

    def adapt(self, time: int, arrived: int) -> None:
        """After a batch: look at the counters of joins that have seen enough, and replace orders that have become bad."""
        self.batches += 1
        for run in list(self.runs.values()) if self.replan is not None else ():
            run.watch.fresh += arrived
            if run.watch.is_ready(run.runners, time, run.span) and run.watch.look(run.runners, time):
                self._reconsider(run)

    def _reconsider(self, run: JoinRun) -> None:
        revised = self.replan(run.plan, run.watch.measured) if self.replan is not None else None
        if revised is None:
            return
        plan, changes = revised
        if changes:
            run.watch.changed(changes, run.runners, self.batches)
        if plan.paths != run.plan.paths:
            self.change_plan(plan)
        else:
            run.revise(plan)

    def _window(self, stream: str) -> SharedWindow:
        if stream not in self.windows:
            name = f"{self.name}.{stream}"
            store = WindowStore(self._arena, name, self._streams[stream], self.position(name))
            self.windows[stream] = SharedWindow(self._streams[stream], store)
        return self.windows[stream]

    def position(self, store: str) -> Position | None:
        """Where a store's arrays are when attaching, one that was not there being an error; None when it starts empty."""
        if self.positions is None:
            return None
        if store not in self.positions:
            raise StateError(f"the arrays of window {store!r} are not listed")
        return self.positions[store]

    def stores(self, stream: str) -> list[WindowStore]:
        """Where the group keeps tuples of a stream."""
        return [self.windows[stream].store] if stream in self.windows else []

    # -- joining ------------------------------------------------------------------------------------------------------------

    def prepare(self, batches: Mapping[str, Batch], *, all_rows: bool = False) -> dict[str, Arrivals]:
        """Evaluate all that the windows store of the batches. Changes nothing."""
        prepared = {}
        for stream, batch in batches.items():
            if stream in self.windows and len(batch):
                window, began = self.windows[stream], perf_counter()
                prepared[stream] = arrivals(
                    batch, window.store.flag_words, window.needs, window.usages.values(), all_rows=all_rows
                )
                window.store.seconds += perf_counter() - began
        return prepared

    def join(
        self, incoming: Mapping[str, Arrivals], progress: Progress, *, together: bool
    ) -> dict[str, list[pa.Table]]:
        """Insert the arrivals, find the results they complete, and gather their columns.

        Streams go one after another, each seeing those before it; `together` inserts all of them first, which eager evaluation
        and count windows need. Joins that are run together have no stored inputs.
        """
        found = {name: run.matches for name, run in self.runs.items()}
        for matches in found.values():
            matches.clear(self._config.stage_rows)
        if together:
            self._join_together(incoming, progress, found)
        else:
            for stream, arrived in incoming.items():
                self._join_stream(stream, arrived, found)
        results = {
            name: collector.gather(found[run.name])
            for run in self.runs.values()
            if len(found[run.name])
            for name, collector in run.collectors.items()
        }
        self.adapt(max((p.head for p in progress.streams.values()), default=LONG_AGO), sum(map(len, incoming.values())))
        return results

    def _join_stream(self, stream: str, arrived: Arrivals, found: Mapping[str, Matches]) -> None:
        """Let one stream's new tuples through all joins that they reach, stored sub-joins before those who read them."""
        store, began = self.windows[stream].store, perf_counter()
        first = store.append(arrived)
        store.seconds += perf_counter() - began
        fresh = {stream: (first, first + len(arrived))}
        for run in self._fed[stream] if len(arrived) else ():
            matches = found[run.name]
            begin = len(matches)
            for driver in run.drivers:
                if driver.feed in fresh:
                    driver.runner.run(driver.bounds(fresh), matches)
            if run.state is not None and len(matches) > begin:
                assert run.step.state is not None  # noqa: S101 - it has a state
                fresh[run.step.state] = run.store(matches, begin)
                if not run.collectors:
                    matches.count = begin

    def _join_together(
        self, incoming: Mapping[str, Arrivals], progress: Progress, found: Mapping[str, Matches]
    ) -> None:
        """Insert all new tuples, then join each with those before it: in time, or streams one after another."""
        for stream, arrived in incoming.items():
            self.windows[stream].first_new = self.windows[stream].store.append(arrived)
        eager = self._config.evaluation == "eager"
        ranks = _interleave(incoming, list(incoming), by_time=eager)
        for stream, arrived in incoming.items():
            floors = self._eager_floors(arrived.ts, progress) if self._config.expiration == "eager" else {}
            for run in self._fed[stream] if len(arrived) else ():
                for driver in run.drivers:
                    if driver.feed == stream:
                        bounds = self._bounds(driver, len(arrived), ranks, floors)
                        driver.runner.run(bounds, found[run.name])

    def load(self, incoming: Mapping[str, Arrivals]) -> None:
        """Insert arrivals whose results have been found before."""
        for stream, arrived in incoming.items():
            self.windows[stream].store.append(arrived)
        self.store_again()

    def store_again(self) -> None:
        """Find the stored matches of all tuples that are in the windows."""
        for run in self.runs.values():
            if run.state is not None:
                matches = Matches(len(run.members))
                last = run.drivers[-1]
                store = last.targets[last.place][1]
                counts = [list(counted) for counted in last.runner.counts]
                last.runner.run(last.bounds({last.feed: (store.rows.tail, store.rows.head)}), matches)
                last.runner.counts = counts
                run.store(matches, 0)

    def _bounds(
        self,
        driver: Driver,
        count: int,
        ranks: Mapping[tuple[str, str], Int64Array],
        floors: Mapping[str, Int64Array],
    ) -> Bounds:
        """What each driving tuple sees: those before it in the batch, and what has not expired for it."""
        stream, first = driver.feed, self.windows[driver.feed].first_new
        limits = np.empty((len(driver.targets), count), np.int64)
        lows = np.empty_like(limits)
        for place, (target, store) in enumerate(driver.targets):
            if target == stream and place != driver.place:
                # A tuple under two aliases counts once: it is driven by the first of them.
                limits[place] = np.arange(first, first + count) + (place > driver.place)
            elif (stream, target) in ranks:
                limits[place] = ranks[stream, target] + self.windows[target].first_new
            else:
                limits[place] = store.rows.head
            lows[place] = floors.get(target, store.rows.tail)
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

    def nodes(self) -> Iterator[tuple[str, str, dict[str, float]]]:
        """What each window, join, stored sub-join and query has taken: its kind, its name, its figures."""
        for stream, window in self.windows.items():
            yield "windows", stream, _kept(window.store)
        for name, run in self.runs.items():
            probes, _, matches = run.totals
            seconds = sum(sum(runner.seconds) for runner in run.runners.values())
            yield "joins", name, {"ms": 1000 * seconds, "probes": probes, "matches": matches}
        for name, state in self.states.items():
            yield "states", name, _kept(state)
        for name, run in self.queries.items():
            collector = run.collectors[name]
            yield "results", name, {"ms": 1000 * collector.seconds, "results": collector.results}

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
        for state, streams in self._awaited.items():
            self.states[state].expire_before(progress.watermark(streams))


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


def _kept(store: WindowStore) -> dict[str, float]:
    return {"ms": 1000 * store.seconds, "tuples": len(store.rows), "bytes": store.allocated}


def _needs(step: JoinStep, cells: Mapping[str, Cell]) -> tuple[dict[str, AliasNeeds], dict[str, AliasNeeds]]:
    """What a step asks of its inputs, and of its sources."""
    inputs = plan_needs(step.plan)
    keys = [
        Key(taker.sources[key.alias], key.expression)
        for taker in step.takers
        for key, _, _ in cells.get(taker.query.name, ())
    ]
    return inputs, source_needs(step, inputs, keys)
