"""Build what a group of windows runs under a new plan from what it runs now.

Building adds everything the new plan lacks and reuses the objects that both plans have in common. It removes no rows, columns or
stores, so the current plan can be adopted again if building is interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from dovetail._typing import BoolArray
from dovetail.engine.change.backfill import VisibleRows
from dovetail.engine.join.step import JoinRun
from dovetail.engine.join.verify import Member
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.storage.arena import Arena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import Position, WindowStore
from dovetail.errors import StateError
from dovetail.plan.execution import MaterializedJoinPlan, StepSource, View, WindowPlan
from dovetail.plan.needs import Needs
from dovetail.plan.steps import JoinStep
from dovetail.schema import StreamSchema

Positions = Mapping[str, Position]
"""Positions of the arrays that another process has left, by store."""


@dataclass(frozen=True, slots=True)
class InstalledPlan:
    """Windows, materialized joins and joins of a group, as they run."""

    plans: dict[str, WindowPlan] = field(default_factory=dict)
    """By stream."""
    windows: dict[str, WindowStore] = field(default_factory=dict)
    """By stream."""
    materialized: dict[str, MaterializedJoin] = field(default_factory=dict)
    """Materialized joins by name, each after those that it reads."""
    runs: dict[str, JoinRun] = field(default_factory=dict)
    """Joins by step name, each after those whose results it reads."""
    pending: dict[str, WindowStore] = field(default_factory=dict)
    """Tuples that wait until they are settled, by stream."""

    @property
    def queries(self) -> dict[str, JoinRun]:
        """Join that answers each query."""
        return {name: run for run in self.runs.values() for name in run.collectors}


@dataclass(frozen=True)
class Adoption:
    """Builds what a group runs under a new plan, given what it ran `before`."""

    before: InstalledPlan
    streams: Mapping[str, StreamSchema]
    arena: Arena
    stage_rows: int
    next_batch: int
    """Number of the next batch: queries that are being added see tuples from it on."""
    kept_from: Mapping[str, int]
    """Event time before which tuples may be missing, by stream."""
    positions: Positions | None = None
    """Arrays that another process has left: stores open them instead of creating arrays."""
    numbered: bool = False
    """Whether windows keep each tuple's number in the shard's log."""
    needs: dict[StepSource, Needs] = field(default_factory=dict)
    """Columns and key parts that each user of the new plan needs of its window."""

    def build(
        self, windows: Sequence[WindowPlan], materialized: Sequence[MaterializedJoinPlan], steps: Sequence[JoinStep]
    ) -> InstalledPlan:
        """Build what the group runs under the new plan."""
        for step in steps:
            self.needs.update({(step.name, source): needs for source, needs in step.needs.sources.items()})
        stores = {plan.stream: self._window(plan) for plan in windows}
        views = {user: view for plan in windows for view in plan.views for user in view.users}
        new = InstalledPlan({plan.stream: plan for plan in windows}, stores)
        plans_by_step = {plan.step: plan for plan in materialized}
        for step in steps:
            run = new.runs[step.name] = self._run(step, new, views)
            if step.materialized_as is not None:
                new.materialized[step.materialized_as] = self._materialize(run, plans_by_step[step.name], views)
                run.materialized = new.materialized[step.materialized_as]
        return new

    @cached_property
    def _needs_before(self) -> dict[StepSource, Needs]:
        """Columns and key parts that each user of the current plan needs of its window."""
        runs = self.before.runs.values()
        return {(run.name, source): needs for run in runs for source, needs in run.step.needs.sources.items()}

    @cached_property
    def _runs_before(self) -> dict[str, JoinRun]:
        """Join that answers each query of the current plan."""
        return self.before.queries

    def store(self, name: str, stream: str) -> WindowStore:
        """Create a store for tuples, or open one over existing arrays."""
        return WindowStore(self.arena, name, self.streams[stream], self._capacity(name), numbered=self.numbered)

    def _capacity(self, store: str) -> int | None:
        """Return the capacity of a store whose arrays exist, or None.

        Raise `StateError` if `positions` lacks the store.
        """
        if self.positions is None:
            return None
        if store not in self.positions:
            raise StateError(f"the arrays of window {store!r} are not listed")
        return int(self.positions[store]["rows"][3])

    def _window(self, plan: WindowPlan) -> WindowStore:
        """Return a stream's window, extended by what a plan needs.

        New views see the rows that similar views see.
        """
        store = self.before.windows.get(plan.stream) or self.store(plan.name, plan.stream)
        store.extend(plan.kept, plan.expiry_tables, plan.words)
        if not len(store.rows):
            return store
        before = self.before.plans[plan.stream].views if plan.stream in self.before.plans else ()
        rows, bits_before = VisibleRows(store, before, self._needs_before), {view.bit for view in before}
        for view in plan.views:
            if view.bit not in bits_before:
                visible = rows.seen_by(partial(_can_inherit, view))
                if view.backfill and view.first_batch >= self.next_batch:
                    needs = Needs()
                    for user in view.users:
                        needs.update(self.needs[user])
                    visible |= rows.backfilled_for(view, needs, self.kept_from.get(plan.stream, LONG_AGO))
                _set_flags(store, view.bit, visible)
        rows.write_codes()
        return store

    def _run(self, step: JoinStep, new: InstalledPlan, views: Mapping[StepSource, View]) -> JoinRun:
        before = self.before.runs.get(step.name)
        members = {}
        sources = {source.name: source.stream for source in step.sources}
        for column, ref in enumerate(step.plan.query.refs):
            if ref.alias in step.materialized_inputs:
                state = new.materialized[ref.stream]
                members[ref.alias] = Member(column, state, ref.window, state.plan.bits[step.name])
            else:
                store = new.windows[sources[ref.alias]]
                members[ref.alias] = Member(column, store, ref.window, views[step.name, ref.alias].bit)
        if before is not None and before.step == step and before.members == members:
            before.step = step  # estimates may differ
            return before
        run = JoinRun(step, members, new.windows, self.stage_rows)
        if before is not None:
            run.copy_counters(before)
        for name, collector in run.collectors.items():
            if name in self._runs_before:  # another join may have answered it
                collector.copy_counters(self._runs_before[name].collectors[name])
        return run

    def _materialize(
        self, run: JoinRun, plan: MaterializedJoinPlan, views: Mapping[StepSource, View]
    ) -> MaterializedJoin:
        """Return the existing materialized join of a step if it can serve the plan, else a new one, filled."""
        before, existing = self.before.runs.get(run.name), self.before.materialized.get(plan.id)
        if (
            existing is not None
            and before is not None
            and before.materialized is existing
            and _match_definition(before.step) == _match_definition(run.step)
            and existing.can_serve(plan)
        ):
            existing.set_readers(plan, views)
            return existing
        windows = {source: tuples.store for source, tuples in run.source_rows.items()}
        created = run.materialized = MaterializedJoin(self.arena, plan, windows, self._capacity(plan.name))
        created.set_readers(plan, views)
        if self.positions is None:
            run.materialize_all()
        return created


def _can_inherit(new: View, old: View) -> bool:
    """Whether a new view sees the rows that an old view sees.

    The old view may require more keys, but not fewer: a row whose key is NULL must stay invisible, or it would match other such rows.

    A view from batch 0 on belongs to queries that run already, since queries added later have a later start. It may inherit from views
    with more filters or another start: a row invisible to all of them is in no result of those queries.
    """
    if not set(old.keys) >= set(new.keys):
        return False
    if new.first_batch == 0:
        return set(old.filters) >= set(new.filters)
    return (old.first_batch, old.backfill, old.filters) == (new.first_batch, new.backfill, new.filters)


def _set_flags(store: WindowStore, bit: int, visible: BoolArray) -> None:
    """Make exactly the `visible` live rows visible to a view."""
    words, mask = store.flags(bit)
    words[:] = np.where(visible, words | mask, words & ~mask)


def _match_definition(step: JoinStep) -> tuple[object, ...]:
    """Return what determines the matches of a step; its probe orders and its readers do not."""
    return step.sources, step.first_batch, replace(step.plan.query, name="", sql=""), step.columns
