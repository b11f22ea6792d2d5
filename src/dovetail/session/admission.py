"""Queries that were planned together, and what all queries of a session take at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from dovetail.optimizer.cost.units import UnitCosts
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.plan.steps import JoinStep
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema


class Placed(Protocol):
    """Where the tuples of queries go: which of them can share something, and how often a tuple is kept."""

    @property
    def scopes(self) -> Mapping[str, str]: ...

    @property
    def copies(self) -> Mapping[str, tuple[str, float]]: ...

    def with_query(self, query: JoinQuery, streams: Mapping[str, StreamSchema]) -> Placed: ...


@dataclass(frozen=True)
class Cohort:
    """Queries that were planned together; `since`: the batch from which on they see tuples.

    With `backfill` they also see those that the windows held then.
    """

    plan: SharedPlan
    since: int
    steps: tuple[JoinStep, ...]
    backfill: bool = False
    heads: Mapping[str, int] = field(default_factory=dict)
    """How far streams had come before that batch, by event time."""

    @cached_property
    def queries(self) -> tuple[str, ...]:
        return tuple(answer.query for answer in self.plan.answers)

    @property
    def is_plain(self) -> bool:
        """Whether each query is by itself."""
        return not self.plan.states and all(step.is_own for step in self.steps)


@dataclass(frozen=True)
class CostUpperBound:
    """What the queries so far take at most: each has joins of its own, and they share windows."""

    own: ExecutionPlan = field(default_factory=ExecutionPlan)
    placed: Placed | None = None
    units: UnitCosts = field(default_factory=UnitCosts)
    cpu: float = 0.0
    """Of joins and results."""
    windows: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds and tuples per second of each window."""

    def with_query(
        self, own: ExecutionPlan, placed: Placed | None, units: UnitCosts, plan: SharedPlan
    ) -> CostUpperBound:
        """The same with what is in another plan; `own` are all queries' own joins, which say what windows keep."""
        windows = dict(self.windows)
        for window in plan.windows:
            windows[window.stream] = (max(window.span, windows.get(window.stream, (0.0, 0.0))[0]), window.rate)
        joins = plan.load.cpu - sum(window.load.cpu for window in plan.windows)
        return CostUpperBound(own, placed, units, self.cpu + joins, windows)

    @property
    def load(self) -> Load:
        keeping = sum(rate for _, rate in self.windows.values()) * self.units.keep
        kept = [span * rate * self.units.window_bytes(name) for name, (span, rate) in self.windows.items()]
        return Load(self.cpu + keeping, sum(kept))
