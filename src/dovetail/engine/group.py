"""Steps over the same windows: how they take over another plan, and how they join.

A window holds what any of its users needs. Which rows a user may see is one bit per row, set when the row arrives: it passed the
filters, its keys are not NULL, and the user was there. A query added later therefore starts with empty windows, whatever its windows'
stores already hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.config import INTERLEAVING, Config
from dovetail.engine.change.adopt import Adoption, Installed, Positions
from dovetail.engine.join.drivers import DriverChoice, Ranks, interleaved, ranks_of
from dovetail.engine.join.stages import Bounds
from dovetail.engine.join.step import Driver, JoinRun
from dovetail.engine.join.tree import Trees
from dovetail.engine.shedding.shedder import Shedder
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time import expiry
from dovetail.engine.time.intake import Batch, Reach, arrivals
from dovetail.engine.time.progress import Progress
from dovetail.plan.execution import StoredPlan, WindowPlan
from dovetail.plan.steps import JoinStep
from dovetail.schema import StreamSchema

NOW = 1 << 62
"""A batch after all others: whoever is there sees its tuples."""


class JoinGroup:
    """Windows that tuples enter in the same way, and the joins over them."""

    def __init__(
        self,
        name: str,
        streams: Mapping[str, StreamSchema],
        config: Config,
        arena: Arena,
        *,
        numbered: bool = False,
    ) -> None:
        """Start without windows; `numbered`: theirs are to keep the numbers by which tuples are known outside."""
        self.name = name
        self._numbered = numbered
        self._streams = streams
        self._config = config
        self._arena = arena
        self.installed = Installed()
        self.batches = 0
        """Batches joined so far."""
        self.arrived = 0
        """Tuples that were joined since somebody looked."""
        self.shedder = Shedder(config.shedding, streams) if config.shedding is not None else None
        self.expiry = expiry.Expiry(lazy=config.expiration == "lazy" and config.shedding is None)
        self._choice = DriverChoice(config.driver_policy)
        self.results_to: Callable[[str, pa.Table], None] | None = None
        """Takes results of a query while others are found, so that any number of them fits; None to give them at the end."""
        self._first_new: dict[str, int] = {}
        self._fed: dict[str, list[JoinRun]] = {}
        self._trees: Trees | None = None
        self._known_trees = False
        """Whether trees are those of what is installed: they are made when tuples come, for a plan may be followed by another."""

    # -- another plan -------------------------------------------------------------------------------------------------------

    def extended(
        self,
        windows: Sequence[WindowPlan],
        stored: Sequence[StoredPlan],
        steps: Sequence[JoinStep],
        now: int,
        positions: Positions | None = None,
    ) -> Installed:
        """Make what other windows and steps need; see `adoption`. `now`: the number of the next batch."""
        return self._adoption(now, positions).make(windows, stored, steps)

    def _adoption(self, now: int, positions: Positions | None) -> Adoption:
        kept_from = self.expiry.kept_from
        return Adoption(
            self.installed,
            self._streams,
            self._arena,
            self._config.stage_rows,
            now,
            kept_from,
            positions,
            numbered=self._numbered,
        )

    def install(self, new: Installed) -> list[WindowStore]:
        """Go on with what was made; return the stores that nobody needs any more."""
        before = list(self.all_stores())
        for store in new.windows.values():
            store.linked = []
        for state in new.states.values():
            for source, window in state.windows.items():
                window.linked.append((state, source))
        if self.shedder is not None:
            self.shedder.install(new)
        self.installed = new
        self._fed = {stream: [] for stream in self.windows}
        for run in self.runs.values():
            for stream in dict.fromkeys(source.stream for source in run.step.sources):
                self._fed[stream].append(run)
        self._choice.install(self.runs.values())
        if self._trees is not None:
            self._trees.close()
        self._known_trees = False
        kept = {store.name for store in self.all_stores()}
        return [store for store in before if store.name not in kept]

    def trim(self) -> None:
        """Keep no more than the plan says."""
        for stream, plan in self.plans.items():
            self.windows[stream].trim(plan.kept, plan.ledgers)
        for state in self.states.values():
            state.trim(state.plan.kept)

    @property
    def plans(self) -> dict[str, WindowPlan]:
        return self.installed.plans

    @property
    def windows(self) -> dict[str, WindowStore]:
        return self.installed.windows

    @property
    def states(self) -> dict[str, MaterializedJoin]:
        return self.installed.states

    @property
    def runs(self) -> dict[str, JoinRun]:
        return self.installed.runs

    def stores(self, stream: str) -> list[WindowStore]:
        """Where the group keeps tuples of a stream."""
        return [self.windows[stream]] if stream in self.windows else []

    def all_stores(self) -> Iterator[WindowStore]:
        """Every store of tuples, then those of matches."""
        for stream in sorted(self.windows):
            yield from self.stores(stream)
        yield from self.states.values()

    def earliest(self, step: JoinStep) -> dict[str, int]:
        """By source of a step, the earliest event time of a tuple that it sees; sources that see none are left out."""
        found = {}
        for source in step.sources:
            store = self.windows[source.stream]
            words, bit = store.flags(self.plans[source.stream].bits[step.name, source.name])
            times = store.living("ts")[(words & bit) != 0]
            if len(times):
                found[source.name] = int(times.min())
        return found

    # -- joining ------------------------------------------------------------------------------------------------------------

    def prepare(
        self, batches: Mapping[str, Batch], *, all_rows: bool = False, came: int = NOW, reach: Reach | None = None
    ) -> dict[str, NewRows]:
        """Evaluate all that the windows store of tuples that came with batch `came`. Changes nothing."""
        prepared = {}
        for stream, batch in batches.items():
            if stream in self.windows and len(batch):
                began = perf_counter()
                prepared[stream] = arrivals(
                    batch,
                    self.plans[stream],
                    all_rows=all_rows,
                    came=came,
                    reach=reach,
                    unseen=self.shedder is not None,
                )
                self.windows[stream].seconds += perf_counter() - began
        return prepared

    def join(
        self, incoming: Mapping[str, NewRows], progress: Progress, piece_rows: int | None = None
    ) -> Iterator[dict[str, list[pa.Table]]]:
        """Insert the arrivals, find the results they complete, and gather their columns.

        Which of them come first the driver policy says; each sees those before it. Results are given once, for all arrivals, or
        for each piece of about `piece_rows` of them.
        """
        for part in (incoming,) if self.shedder is None else self.shedder.slices(incoming):
            self._clear()
            for piece, ranks in self._pieces(part, piece_rows):
                if ranks is None:
                    for stream, arrived in piece.items():
                        self._join_stream(stream, arrived)
                else:
                    self._join_together(piece, progress, ranks)
                if piece_rows is not None:
                    yield self._gathered()
                    self._clear()
            if piece_rows is None:
                yield self._gathered()
        self.batches += 1
        sizes = {stream: len(arrived) for stream, arrived in incoming.items()}
        self.arrived += sum(sizes.values())
        self._choice.end(sizes)

    def _clear(self) -> None:
        for run in self.runs.values():
            run.matches.clear(self._config.stage_rows)
            run.matches.give = partial(self._give, run) if self.results_to is not None and run.state is None else None

    def _give(self, run: JoinRun) -> None:
        assert self.results_to is not None  # noqa: S101 - given to runs only if somebody takes them
        for name, tables in run.results():
            for table in tables:
                self.results_to(name, table)

    def _gathered(self) -> dict[str, list[pa.Table]]:
        return {name: tables for run in self.runs.values() if len(run.matches) for name, tables in run.results()}

    def _pieces(
        self, incoming: Mapping[str, NewRows], rows: int | None
    ) -> Iterator[tuple[Mapping[str, NewRows], Ranks | None]]:
        """The arrivals in the order in which they are joined; of those that are interleaved also how many come before each."""
        policy = self._config.driver_policy
        if policy in INTERLEAVING:
            yield from interleaved(incoming, ranks_of(incoming, policy), rows)
            return
        waiting = {stream: len(arrived) for stream, arrived in incoming.items() if len(arrived)}
        while waiting:
            stream = self._choice.next(waiting)
            count = waiting.pop(stream)
            for first in range(0, count, rows or count):
                yield {stream: incoming[stream].part(first, min(count, first + (rows or count)))}, None

    def _join_stream(self, stream: str, arrived: NewRows) -> None:
        """Let one stream's new tuples through all joins that they reach, stored sub-joins before those who read them."""
        store, began = self.windows[stream], perf_counter()
        first = store.append(arrived)
        store.seconds += perf_counter() - began
        fresh = {stream: (first, first + len(arrived))}
        if not len(arrived):
            return
        found = self._all_trees.run(stream, fresh)
        for run in self._all_trees.others[stream]:
            matches = run.matches
            there = found.pop(run.name, 0)
            begin, total = len(matches) - there, matches.total - there
            for driver in run.drivers:
                if driver.feed in fresh and driver.runner.shared is None:
                    driver.runner.run(driver.bounds(fresh), matches)
            if matches.total > total:
                self._choice.match(run, matches.total - total)
                if run.state is not None:
                    assert run.step.state is not None  # noqa: S101 - it has a state
                    fresh[run.step.state] = run.store(matches, begin)
                    if not run.collectors:
                        matches.count = begin
        for name, count in found.items():
            self._choice.match(self.runs[name], count)
        self._choice.offer(fresh)

    @property
    def _all_trees(self) -> Trees:
        if self._trees is None or not self._known_trees:
            self._trees = Trees(self.runs, self.windows, self._config.stage_rows, self._trees)
            self._known_trees = True
        return self._trees

    def _join_together(self, incoming: Mapping[str, NewRows], progress: Progress, ranks: Ranks) -> None:
        """Insert all new tuples, then join each with those before it. Joins that are run so have no stored inputs."""
        self._first_new = {}
        for stream, arrived in incoming.items():
            store, began = self.windows[stream], perf_counter()
            self._first_new[stream] = store.append(arrived)
            store.seconds += perf_counter() - began
        hidden = self._config.expiration == "eager"
        for stream, arrived in incoming.items():
            floors = expiry.floors(self.plans, self.windows, arrived.ts, progress) if hidden else {}
            for run in self._fed[stream] if len(arrived) else ():
                found = run.matches.total
                for driver in run.drivers:
                    if driver.feed == stream:
                        bounds = self._bounds(driver, len(arrived), ranks, floors)
                        driver.runner.run(bounds, run.matches)
                self._choice.match(run, run.matches.total - found)
        self._choice.offer({stream: (0, len(arrived)) for stream, arrived in incoming.items()})

    def load(self, incoming: Mapping[str, NewRows]) -> None:
        """Insert arrivals whose results have been found before."""
        for stream, arrived in incoming.items():
            self.windows[stream].append(arrived)

    def store_again(self) -> None:
        """Find the stored matches of all tuples that are in the windows; none are stored yet."""
        for run in self.runs.values():
            if run.state is not None:
                run.store_all()

    def _bounds(
        self,
        driver: Driver,
        count: int,
        ranks: Ranks,
        floors: Mapping[str, Int64Array],
    ) -> Bounds:
        """What each driving tuple sees: those before it in the batch, and what has not expired for it."""
        stream, first = driver.feed, self._first_new[driver.feed]
        limits = np.empty((len(driver.targets), count), np.int64)
        lows = np.empty_like(limits)
        for place, (target, store) in enumerate(driver.targets):
            if target == stream and place != driver.place:
                # A tuple under two aliases counts once: it is driven by the first of them.
                limits[place] = np.arange(first, first + count) + (place > driver.place)
            elif (stream, target) in ranks:
                limits[place] = ranks[stream, target] + self._first_new[target]
            else:
                limits[place] = store.rows.head
            lows[place] = floors.get(target, store.rows.tail)
        return Bounds(first, first + count, limits, lows)

    def expire(self, progress: Progress) -> None:
        """Forget what has expired."""
        if self.shedder is not None:
            self.shedder.complete(progress)
        self.expiry(self.plans, self.windows, progress)
        expiry.expire_matches(self.states, progress)
