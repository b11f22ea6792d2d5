"""Proposals of better plans for running queries, by their current statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf

from dovetail.config import Budget
from dovetail.errors import BudgetError
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import Load, SharedPlan

NEAR = 0.9
"""The fraction of a budget above which a breach is imminent."""
SMALLEST = 1e-9
GAIN = 1.2
"""The CPU ratio required of a plan that materializes new joins: filling them costs, and estimates err."""
SHARING_GAIN = 1.02
"""The CPU ratio required of a plan that materializes no new join."""


@dataclass(frozen=True)
class Proposal:
    """A plan that is worth a migration."""

    cause: str
    """Why the queries were planned again."""
    plan: SharedPlan
    plans: Mapping[str, QueryPlan]
    """Each query's individual plan, by current statistics."""
    before: Load
    """Expected load of the running plans."""

    @property
    def after(self) -> Load:
        """Expected load of the proposed plan."""
        return self.plan.load


def propose(
    planning: JointPlanning, running: Sequence[SharedPlan], cause: str, used: Load | None = None
) -> Proposal | None:
    """Return a plan that is cheaper than the `running` ones, or fits a budget that they break; else None.

    `used` is the measured load if a breach is imminent. Each limit of the new plan is then NEAR * budget * min(1, expected / used).
    """
    current, limits = planning.load_of(running), limits_of(planning.budget)
    memory_limit = limits.memory
    if used is not None:
        scaled = [
            NEAR * limit * min(1.0, expected / max(measured, SMALLEST))
            for limit, expected, measured in zip(limits, current, used, strict=True)
        ]
        limits = Load(*scaled)
        planning = replace(planning, budget=Budget(*(None if isinf(limit) else limit for limit in limits)))
    try:
        best = planning.plan()
    except BudgetError:
        if used is None or not _materialized(running) or used.memory <= NEAR * memory_limit:
            return None
        # Probably this does not fit either, but it takes the least memory.
        best = replace(planning, budget=None).plan_windows_only()
    gain = SHARING_GAIN if _materialized([best]) <= _materialized(running) else GAIN
    if _shape(running) == _shape([best]) or (current.fits(limits) and current.cpu <= gain * best.load.cpu):
        return None
    return Proposal(cause, replace(best, limits=running[0].limits), planning.plans, current)


def _materialized(plans: Iterable[SharedPlan]) -> set[object]:
    states = [state for plan in plans for state in plan.states]
    return {(state.sources, tuple(sorted(state.spans.items()))) for state in states}


def _shape(plans: Iterable[SharedPlan]) -> list[object]:
    """Return what distinguishes plans: the inputs and consumers of their joins, but not the probe orders."""
    shapes: list[tuple[object, ...]] = []
    for plan in plans:
        stored = {state.id for state in plan.states}
        answers: dict[str, list[str]] = {}
        for answer in plan.answers:
            answers.setdefault(answer.result, []).append(answer.query)
        for join in plan.joins:
            spans, inputs = sorted(join.spans.items()), sorted(item.sources for item in join.inputs)
            consumers = sorted(answers.get(join.output, ()))
            shapes.append((join.sources, spans, inputs, join.output in stored, consumers))
    return sorted(shapes, key=repr)
