"""From one plan to the next: what a group of windows runs is made of what it ran before.

All that is missing is added, and what both plans have in common stays the same objects. Nothing that is there is taken away, so that
until the new is installed the plan before can still be gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from dovetail._typing import BoolArray
from dovetail.engine.change.backfill import HeldRows
from dovetail.engine.join.step import JoinRun
from dovetail.engine.join.verify import Member
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import Position, WindowStore
from dovetail.errors import StateError
from dovetail.plan.execution import StoredPlan, User, View, WindowPlan
from dovetail.plan.needs import Needs
from dovetail.plan.steps import JoinStep
from dovetail.schema import StreamSchema

Positions = Mapping[str, Position]
"""Where the arrays of each store are, if another process has left them."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What a group runs."""

    plans: dict[str, WindowPlan] = field(default_factory=dict)
    """By stream."""
    windows: dict[str, WindowStore] = field(default_factory=dict)
    """By stream."""
    states: dict[str, MaterializedJoin] = field(default_factory=dict)
    """Stored sub-joins, each after those that it is made of."""
    runs: dict[str, JoinRun] = field(default_factory=dict)
    """Steps by name, each after those whose results it reads."""
    pending: dict[str, WindowStore] = field(default_factory=dict)
    """By stream: tuples that wait until they are settled."""

    @property
    def queries(self) -> dict[str, JoinRun]:
        """The join that answers each query."""
        return {name: run for run in self.runs.values() for name in run.collectors}


@dataclass(frozen=True)
class Adoption:
    """Makes what other windows and steps need, given what there was `before`.

    `now`: the number of the next batch. `kept_from`: by stream, the event time before which tuples may have been forgotten.
    `positions`: where arrays are that another process has left, if they are to be opened and not made.
    """

    before: Installed
    streams: Mapping[str, StreamSchema]
    arena: Arena
    stage_rows: int
    now: int
    kept_from: Mapping[str, int]
    positions: Positions | None = None
    numbered: bool = False
    """Whether windows keep the numbers by which their tuples are known outside."""
    needs: dict[User, Needs] = field(default_factory=dict)
    """What new users need of their windows."""

    def make(self, windows: Sequence[WindowPlan], stored: Sequence[StoredPlan], steps: Sequence[JoinStep]) -> Installed:
        """Give what is to be run."""
        for step in steps:
            self.needs.update({(step.name, source): needs for source, needs in step.needs[1].items()})
        stores = {plan.stream: self._window(plan) for plan in windows}
        views = {user: view for plan in windows for view in plan.views for user in view.users}
        made = Installed({plan.stream: plan for plan in windows}, stores)
        asked = {plan.step: plan for plan in stored}
        for step in steps:
            run = made.runs[step.name] = self._run(step, made, views)
            if step.state is not None:
                made.states[step.state] = run.state = self._state(run, asked[step.name], views)
        return made

    @cached_property
    def _asked(self) -> dict[User, Needs]:
        """What users of the plan before need of their windows."""
        runs = self.before.runs.values()
        return {(run.name, source): needs for run in runs for source, needs in run.step.needs[1].items()}

    @cached_property
    def _answered(self) -> dict[str, JoinRun]:
        return self.before.queries

    def store(self, name: str, stream: str) -> WindowStore:
        """A new store for tuples, or one over arrays that are there."""
        return WindowStore(self.arena, name, self.streams[stream], self._capacity(name), numbered=self.numbered)

    def _capacity(self, store: str) -> int | None:
        """For how many rows the arrays of a store have room, if they are there; not to be listed then is an error."""
        if self.positions is None:
            return None
        if store not in self.positions:
            raise StateError(f"the arrays of window {store!r} are not listed")
        return int(self.positions[store]["rows"][3])

    def _window(self, plan: WindowPlan) -> WindowStore:
        """A stream's window with all that a plan asks of it; old rows are shown to new views as far as they were to others."""
        store = self.before.windows.get(plan.stream) or self.store(plan.name, plan.stream)
        store.extend(plan.kept, plan.ledgers, plan.words)
        if not len(store.rows):
            return store
        before = self.before.plans[plan.stream].views if plan.stream in self.before.plans else ()
        held, known = HeldRows(store, before, self._asked), {view.bit for view in before}
        for view in plan.views:
            if view.bit not in known:
                visible = held.seen_by(partial(_alike, view))
                if view.backfill and view.since >= self.now:
                    needs = Needs()
                    for user in view.users:
                        needs.update(self.needs[user])
                    visible |= held.known_to(view, needs, self.kept_from.get(plan.stream, LONG_AGO))
                _show(store, view.bit, visible)
        return store

    def _run(self, step: JoinStep, made: Installed, views: Mapping[User, View]) -> JoinRun:
        before = self.before.runs.get(step.name)
        members = {}
        sources = {source.name: source.stream for source in step.sources}
        for number, ref in enumerate(step.plan.query.refs):
            if ref.alias in step.stored_inputs:
                state = made.states[ref.stream]
                members[ref.alias] = Member(number, state, ref.window, state.plan.bits[step.name])
            else:
                store = made.windows[sources[ref.alias]]
                members[ref.alias] = Member(number, store, ref.window, views[step.name, ref.alias].bit)
        if before is not None and before.step == step and before.members == members:
            before.step = step  # with other estimates
            return before
        run = JoinRun(step, members, made.windows, self.stage_rows)
        if before is not None:
            run.go_on(before)
        for name, collector in run.collectors.items():
            if name in self._answered:  # by whatever join
                collector.go_on(self._answered[name].collectors[name])
        return run

    def _state(self, run: JoinRun, plan: StoredPlan, views: Mapping[User, View]) -> MaterializedJoin:
        """The stored matches of a step: those that are there, if they are the same, or all that the windows' tuples make."""
        before, state = self.before.runs.get(run.name), self.before.states.get(plan.state)
        same = before is not None and _matches(before.step) == _matches(run.step) and before.state is state
        if state is not None and same and state.can_become(plan):
            state.read_by(plan, views)
            return state
        windows = {source: tuples.store for source, tuples in run.tuples.items()}
        state = run.state = MaterializedJoin(self.arena, plan, windows, self._capacity(plan.name))
        state.read_by(plan, views)
        if self.positions is None:
            run.store_all()
        return state


def _alike(new: View, old: View) -> bool:
    """Whether a new view is of tuples that an old one is of; one that has been there from the beginning is of them all.

    The old one may ask for more keys: a row that none like it sees had one that is NULL for each query that was there. It must not
    ask for fewer: a row of which a key is NULL would be seen, and matched with others of which it is.
    """
    same = (old.since, old.backfill) == (new.since, new.backfill)
    return old.filters == new.filters and (same or not new.since) and set(old.keys) >= set(new.keys)


def _show(store: WindowStore, bit: int, visible: BoolArray) -> None:
    """Let a new view see some of the living rows, and no others."""
    flags, shown = store.flags(bit)
    flags[:] = np.where(visible, flags | shown, flags & ~shown)


def _matches(step: JoinStep) -> tuple[object, ...]:
    """What a step's matches depend on: not its orders, nor who takes them."""
    return step.sources, step.since, replace(step.plan.query, name="", sql=""), step.columns
