"""The monitor: decides when running queries are planned again (Alrahmani, figure 2-1).

It also watches budgets.

After a number of new tuples, or half a window of event time, it checks the shards' counters. It triggers a replan when statistics
become available, when a rate or a selectivity drifts, when a budget is nearly used up, or when a late query has caught up, once two
checks in a row find a cause.
The session then asks `Job.propose` for a better plan and adopts it between two batches. The monitor does not change probe orders;
each engine does (`engine.join.watch`). Any plan gives the same results; only time and memory differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from dovetail.codec import to_json
from dovetail.config import Budget
from dovetail.optimizer.adapt.proposal import NEAR_LIMIT_FRACTION
from dovetail.optimizer.adapt.runtime_stats import Copies, RuntimeStats, ShardGroupReport, one_shard
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.shared_plan import Load
from dovetail.plan.steps import JoinStep
from dovetail.stats.counters import NodeMetrics, PlanMetrics
from dovetail.stats.history import Breach, Migration

CHECK_AFTER_TUPLES = 10_000
"""New tuples between two checks; fewer to confirm a cause."""
CHECK_AFTER_PER_STAGE = 300
"""New tuples between two checks for each stage of the joins, if that is more."""
CHECK_AFTER_WINDOWS = 0.5
"""Event time between two checks, in the longest window, if that is sooner."""
MIN_CHECK_FRACTION = 1 / 16
"""The fraction of these tuples that must have arrived for a check after that time."""
MAX_LOG_ENTRIES = 100
"""Migrations and breaches that the monitor keeps, of each kind."""
_FIRST_STATISTICS = "windows have filled, and rates and selectivities have been measured"
_RESOURCES = ("cpu_ms_per_second", "memory_bytes")


@dataclass
class Monitor:
    """The monitor of one session."""

    budget: Budget | None = None
    stats: RuntimeStats = field(default_factory=RuntimeStats)
    used: Load | None = None
    """CPU and memory between the last two checks."""
    migrations: list[Migration] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    load_near_limit: Load | None = None
    """The measured load if the last cause was a budget that is nearly used up."""
    batch_rate: float = 1.0
    """Batches per second of event time between the last two checks; 1 until there were two."""
    _batch: int | None = None
    """The batch of the last check."""
    _next_check: int = 0
    """Number of arrived tuples at which the next check is due."""
    _earliest_check: int = 0
    """Number of arrived tuples from which on a check is due at `_next_check_time`."""
    _next_check_time: int | None = None
    """Event time at which the next check is due."""
    _ready_at: int | None = None
    """Event time at which windows have filled: until then there is no cause."""
    _caught_up: frozenset[str] = frozenset()
    """Late queries that had caught up at the last check."""
    _considered: frozenset[str] = frozenset()
    """Late queries that had caught up at the last replan: they are no cause for another one."""
    _has_replanned: bool = False
    """Whether queries have been planned by measured statistics."""
    _has_unconfirmed_cause: bool = False
    """Whether the last check found a cause that the next one is to confirm."""
    _exceeded: set[str] = field(default_factory=set)
    """Resources whose breach has been reported."""
    _checks_to_skip: int = 0
    """Checks until a budget near its limit is a cause again: the last replanning did not help."""
    _backoff: int = 1

    def is_due(self, arrived: int, time: int | None = None) -> bool:
        """Whether to check now that `arrived` tuples have arrived and event time is `time`, if known."""
        is_late = time is not None and self._next_check_time is not None and time >= self._next_check_time
        return arrived >= (self._earliest_check if is_late else self._next_check)

    def schedule_next_check(self, arrived: int, steps: Sequence[JoinStep] = ()) -> None:
        """Set after how many more tuples or how much event time the next check is due.

        It is later if there are many `steps`.
        """
        stages = sum(len(step.plan.paths) ** 2 for step in steps)
        new_tuples = max(CHECK_AFTER_TUPLES, CHECK_AFTER_PER_STAGE * stages)
        self._next_check = arrived + (new_tuples // 4 if self._has_unconfirmed_cause else new_tuples)
        self._earliest_check = arrived + round(MIN_CHECK_FRACTION * new_tuples)
        if self.stats.time is not None:
            self._next_check_time = self.stats.time + round(CHECK_AFTER_WINDOWS * _longest_window(steps))

    def check(
        self,
        batch: int,
        reports: Sequence[ShardGroupReport],
        load: Load,
        copies: Copies = one_shard,
        caught_up: Sequence[str] = (),
    ) -> tuple[str | None, list[Breach]]:
        """Return a cause to plan again, if it is confirmed, and the budgets that are newly exceeded.

        `load`: milliseconds since the last check, and bytes in use. `caught_up`: late queries that can be planned with the others.
        """
        cause, breaches = self._update(batch, reports, load, copies, caught_up)
        is_confirmed, self._has_unconfirmed_cause = cause is not None and self._has_unconfirmed_cause, cause is not None
        self.schedule_next_check(arrivals(reports), [step for report in reports for step in report.steps])
        return cause if is_confirmed else None, breaches

    def _update(
        self,
        batch: int,
        reports: Sequence[ShardGroupReport],
        load: Load,
        copies: Copies,
        caught_up: Sequence[str],
    ) -> tuple[str | None, list[Breach]]:
        before, self._batch = self._batch, batch
        if not self.stats.update(reports, copies):
            return None, []
        self.used = Load(load.cpu / self.stats.seconds, load.memory)
        if before is not None:
            self.batch_rate = (batch - before) / self.stats.seconds
        self._complete_last_migration()
        breaches = self._record_breaches(batch)
        time = self.stats.time or 0
        if self._ready_at is None:
            self._ready_at = time + _longest_window(step for report in reports for step in report.steps)
        return self._cause(caught_up) if time >= self._ready_at else None, breaches

    def _cause(self, caught_up: Sequence[str]) -> str | None:
        budget_cause = self._budget_cause()
        self.load_near_limit = self.used if budget_cause is not None else None
        if budget_cause is not None:
            return budget_cause
        self._caught_up = frozenset(caught_up)
        if self._caught_up - self._considered:
            return f"{', '.join(caught_up)} caught up and can be planned with the other queries"
        if not self._has_replanned:
            return _FIRST_STATISTICS
        drift = self.stats.drift()
        return None if drift is None else str(drift)

    def _budget_cause(self) -> str | None:
        """Return which budget is nearly used up; None while the monitor backs off after a futile replan."""
        for resource, used, limit in self._limited_resources():
            if used > NEAR_LIMIT_FRACTION * limit:
                if self._checks_to_skip > 0:
                    self._checks_to_skip -= 1
                    return None
                return f"{resource} is {used:.4g} of {limit:.4g}"
        self._checks_to_skip, self._backoff = 0, 1
        return None

    def _limited_resources(self) -> list[tuple[str, float, float]]:
        """Return name, use and limit of each resource that has a limit."""
        if self.used is None:
            return []
        resources = zip(_RESOURCES, self.used, limits_of(self.budget), strict=True)
        return [(resource, used, limit) for resource, used, limit in resources if limit < inf]

    def _record_breaches(self, batch: int) -> list[Breach]:
        """Return new breaches.

        Use must fall to `NEAR_LIMIT_FRACTION` times the limit before a resource breaches it again.
        """
        new = []
        for resource, used, limit in self._limited_resources():
            if used > limit and resource not in self._exceeded:
                self._exceeded.add(resource)
                new.append(Breach(batch, resource, used, limit))
            elif used <= NEAR_LIMIT_FRACTION * limit:
                self._exceeded.discard(resource)
        self.breaches = [*self.breaches, *new][-MAX_LOG_ENTRIES:]
        return new

    def record_replan(self, *, helped: bool) -> None:
        """Record that queries were planned by current statistics; `helped`: another plan was found."""
        self._has_replanned, self._has_unconfirmed_cause = True, False
        self._considered = self._caught_up
        self.stats.set_baseline()
        self._backoff = 1 if helped else min(2 * self._backoff, 64)
        self._checks_to_skip = 0 if helped else self._backoff

    def record_migration(self, migration: Migration) -> None:
        """Record that another plan runs, with the CPU that the old one took."""
        before = self.used.cpu if self.used is not None else None
        self.migrations = [*self.migrations, replace(migration, measured_before=before)][-MAX_LOG_ENTRIES:]

    def _complete_last_migration(self) -> None:
        if self.migrations and self.migrations[-1].measured_after is None and self.used is not None:
            self.migrations[-1] = replace(self.migrations[-1], measured_after=self.used.cpu)

    def to_json(self) -> dict[str, Any]:
        """Return the monitor's part of `metrics()`."""
        budget = {
            resource: {"used": used, "limit": None if limit == inf else limit}
            for resource, used, limit in zip(_RESOURCES, self.used or (None, None), limits_of(self.budget), strict=True)
        }
        return {"budget": budget, "breaches": to_json(self.breaches), "migrations": to_json(self.migrations)}


@dataclass
class Meter:
    """Measures the load of an engine between two readings, even if nodes of the plan come and go."""

    _before: dict[tuple[str, str], float] = field(default_factory=dict)
    """Milliseconds at the last reading, by kind and name of the node."""

    def take_load(self, metrics: PlanMetrics) -> Load:
        """Return the milliseconds since the last call, and the bytes in use now."""
        nodes = _nodes(metrics)
        now = {key: node.ms for key, node in nodes.items()}
        spent = sum(ms - before if ms >= (before := self._before.get(key, 0.0)) else ms for key, ms in now.items())
        self._before = now
        return Load(spent, sum(node.bytes or 0 for node in nodes.values()))


def arrivals(reports: Iterable[ShardGroupReport]) -> int:
    """Return the number of tuples that have arrived, as shards report it."""
    shards = [measured for report in reports for measured in report.by_shard.values()]
    return sum(stream.arrivals for measured in shards for stream in measured.streams.values())


def _longest_window(steps: Iterable[JoinStep]) -> int:
    """Return the length of the longest window of some joins, in microseconds."""
    return max((span for step in steps for span in step.windows.values()), default=0)


def _nodes(metrics: PlanMetrics) -> dict[tuple[str, str], NodeMetrics]:
    """Return the nodes of a plan, by kind and name."""
    kinds = {"window": metrics.windows, "join": metrics.joins, "state": metrics.materialized, "result": metrics.results}
    return {(kind, name): node for kind, nodes in kinds.items() for name, node in nodes.items()}
