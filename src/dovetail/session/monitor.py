"""The monitor: watches budgets and decides when running queries are planned again.

This is the monitor of Alrahmani's figure 2-1. After a number of new tuples it reads the shards' counters into a `RuntimeStats`. A
rate or a selectivity that left its range, a budget that is nearly used up, or a late query that has caught up is a *cause* to plan
again, if the next check finds it too. The session then asks for a proposal and adopts it between two batches. Only time and memory
depend on the monitor: any plan gives the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from dovetail.codec import to_json
from dovetail.config import Budget
from dovetail.optimizer.adapt.proposal import NEAR
from dovetail.optimizer.adapt.runtime_stats import Copies, RuntimeStats, one_shard
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.shared_plan import Load
from dovetail.plan.steps import JoinStep
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.schema import StreamSchema
from dovetail.stats.counters import Measurements, PartFigures, PlanFigures
from dovetail.stats.history import Breach, Migration

LOOK_AFTER = 10_000
"""New tuples between two looks; more where joins have many stages, fewer to see whether a cause is still there."""
PER_STAGE = 300
MAX_LOG_ENTRIES = 100
"""Migrations and breaches that are remembered."""
_FIRST = "windows have filled, and rates and selectivities have been measured"
_RESOURCES = ("cpu_ms_per_second", "memory_bytes")


@dataclass
class Monitor:
    """Watches one session."""

    budget: Budget | None = None
    picture: RuntimeStats = field(default_factory=RuntimeStats)
    used: Load | None = None
    """CPU and memory between the last two looks."""
    migrations: list[Migration] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    strained: Load | None = None
    """What is used, if the last cause was a budget that is nearly used up."""
    pace: float = 1.0
    """Batches per second of event time between the last two looks; one until there were two."""
    _batch: int | None = None
    """The last that was looked after."""
    _next: int = 0
    _ready_at: int | None = None
    _is_settled: bool = False
    """Whether queries were planned by what was measured."""
    _suspected: bool = False
    _broken: set[str] = field(default_factory=set)
    _patience: int = 0
    """Looks until a strained budget is a cause again: planning did not help the last time."""
    _waits: int = 1

    def is_due(self, arrived: int) -> bool:
        """Whether to look, now that so many tuples have come."""
        return arrived >= self._next

    def wait(self, arrived: int, steps: Iterable[JoinStep] = ()) -> None:
        """Look no more until others have come; longer if there are many `steps`."""
        stages = sum(len(step.plan.paths) ** 2 for step in steps)
        wait = max(LOOK_AFTER, PER_STAGE * stages)
        self._next = arrived + (wait // 4 if self._suspected else wait)

    def look(
        self,
        batch: int,
        parts: Sequence[tuple[Mapping[int, Measurements], Sequence[JoinStep]]],
        spent: Load,
        copies: Copies = one_shard,
        late: Sequence[str] = (),
    ) -> tuple[str | None, list[Breach]]:
        """Give a cause to plan again, if there is one, and budgets that are exceeded now and were not before.

        `parts`: see `RuntimeStats.note`. `spent`: milliseconds since the last check, and the bytes that are kept. `late`: queries
        that caught up and can be planned with the others.
        """
        cause, breaches = self._looked(batch, parts, spent, copies, late)
        confirmed, self._suspected = cause is not None and self._suspected, cause is not None
        self.wait(arrivals(parts), (step for _, steps in parts for step in steps))
        return cause if confirmed else None, breaches

    def _looked(
        self,
        batch: int,
        parts: Sequence[tuple[Mapping[int, Measurements], Sequence[JoinStep]]],
        spent: Load,
        copies: Copies,
        late: Sequence[str],
    ) -> tuple[str | None, list[Breach]]:
        before, self._batch = self._batch, batch
        if not self.picture.note(parts, copies):
            return None, []
        self.used = Load(spent.cpu / self.picture.seconds, spent.memory)
        if before is not None:
            self.pace = (batch - before) / self.picture.seconds
        self._note_gain()
        breaches = self._watch(batch)
        time = self.picture.time or 0
        if self._ready_at is None:
            spans = [span for _, steps in parts for step in steps for span in step.windows.values()]
            self._ready_at = time + max(spans, default=0)
        return self._cause(late) if time >= self._ready_at else None, breaches

    def _cause(self, late: Sequence[str]) -> str | None:
        strained = self._strained()
        self.strained = self.used if strained is not None else None
        if strained is not None:
            return strained
        if late:
            return f"no tuple to come meets one from before {', '.join(late)} came"
        if not self._is_settled:
            return _FIRST
        drift = self.picture.drift()
        return None if drift is None else str(drift)

    def _strained(self) -> str | None:
        """A budget that is nearly used up, unless that was a cause lately and planning did not help."""
        for resource, used, limit in self._resources():
            if used > NEAR * limit:
                if self._patience > 0:
                    self._patience -= 1
                    return None
                return f"{resource} is {used:.4g} of {limit:.4g}"
        self._patience, self._waits = 0, 1
        return None

    def _resources(self) -> list[tuple[str, float, float]]:
        """Each resource that is limited: what is used of it, and the limit."""
        if self.used is None:
            return []
        limits = limits_of(self.budget)
        return [each for each in zip(_RESOURCES, self.used, limits, strict=True) if each[2] < inf]

    def _watch(self, batch: int) -> list[Breach]:
        """Take note of budgets; one that was exceeded has to get well below its limit before it can be again."""
        new = []
        for resource, used, limit in self._resources():
            if used > limit and resource not in self._broken:
                self._broken.add(resource)
                new.append(Breach(batch, resource, used, limit))
            elif used <= NEAR * limit:
                self._broken.discard(resource)
        self.breaches = [*self.breaches, *new][-MAX_LOG_ENTRIES:]
        return new

    def considered(self, *, helped: bool) -> None:
        """Queries have been planned by what is known now; `helped`: another plan was found."""
        self._is_settled, self._suspected = True, False
        self.picture.settle()
        self._waits = 1 if helped else min(2 * self._waits, 64)
        self._patience = 0 if helped else self._waits

    def migrated(self, migration: Migration) -> None:
        """Another plan runs."""
        before = self.used.cpu if self.used is not None else None
        self.migrations = [*self.migrations, replace(migration, measured_before=before)][-MAX_LOG_ENTRIES:]

    def _note_gain(self) -> None:
        if self.migrations and self.migrations[-1].measured_after is None and self.used is not None:
            self.migrations[-1] = replace(self.migrations[-1], measured_after=self.used.cpu)

    def to_json(self) -> dict[str, Any]:
        """What `metrics()` shows of it."""
        found: dict[str, Any] = {"migrations": to_json(self.migrations)}
        if self.budget is not None:
            used = self.used or Load()
            limits = [None if limit == inf else limit for limit in limits_of(self.budget)]
            found["budget"] = {
                resource: {"used": used[number], "limit": limits[number]} for number, resource in enumerate(_RESOURCES)
            }
            found["breaches"] = to_json(self.breaches)
        return found


@dataclass
class Meter:
    """The milliseconds that an engine has spent since the last reading, part by part: parts come and go with plans."""

    _before: dict[tuple[str, str], float] = field(default_factory=dict)

    def spent(self, figures: PlanFigures) -> Load:
        """Milliseconds since the last call, and bytes that are kept now."""
        now = {(kind, name): part.ms for kind, name, part in parts_of(figures)}
        spent = sum(ms - before if ms >= (before := self._before.get(key, 0.0)) else ms for key, ms in now.items())
        self._before = now
        return Load(spent, sum(part.bytes or 0 for _, _, part in parts_of(figures)))


def arrivals(parts: Iterable[tuple[Mapping[int, Measurements], Sequence[JoinStep]]]) -> int:
    """Tuples that have come, by what shards report."""
    figures = [each for reports, _ in parts for report in reports.values() for each in report.streams.values()]
    return sum(each.arrivals for each in figures)


def parts_of(figures: PlanFigures) -> list[tuple[str, str, PartFigures]]:
    """The parts of a plan, by kind and name."""
    kinds = {"window": figures.windows, "join": figures.joins, "state": figures.states, "result": figures.results}
    return [(kind, name, part) for kind, parts in kinds.items() for name, part in parts.items()]


def caught_up(
    query: JoinQuery, heads: Mapping[str, int], watermarks: Mapping[str, int], streams: Mapping[str, StreamSchema]
) -> bool:
    """Whether no tuple to come can meet one from before a query came, in the query's own windows.

    `heads`: the largest event time of each stream before it came. `watermarks`: the earliest that can still come.
    """
    for ref in query.refs:
        if not isinstance(ref.window, TimeWindow) or streams[ref.stream].progress_by is not None:
            return False  # what counts as last is not known from times; H is not the largest time
        others = [watermarks[other.stream] for other in query.refs if other is not ref]
        if heads.get(ref.stream, inf) >= min(others) - ref.window.micros:
            return False
    return True
