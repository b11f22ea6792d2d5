"""Proposals of better plans for running queries, by their current statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isinf

from dovetail.config import Budget
from dovetail.errors import BudgetError
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.stats.history import Migration

NEAR_LIMIT_FRACTION = 0.9
"""The fraction of a budget above which a breach is imminent."""
EPSILON_LOAD = 1e-9
"""The smallest measured load that is divided by."""
MIN_CPU_RATIO = 1.2
"""The CPU ratio required of a plan that materializes new joins: filling them costs, and estimates err."""
MIN_CPU_RATIO_SHARING = 1.02
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

    def migration(self, batch: int, seconds: float) -> Migration:
        """Return the record of its adoption from `batch` on, which took some `seconds`."""
        return Migration(batch, self.cause, self.before.cpu, self.after.cpu, seconds)


def propose(
    planning: JointPlanning, running: Sequence[SharedPlan], cause: str, used: Load | None = None
) -> Proposal | None:
    """Return a plan that is cheaper than the `running` ones, or fits a budget that they break; else None.

    If no plan fits, a cheaper one is still better.

    `used` is the measured load if a breach is imminent. Each limit of the new plan is then
    NEAR_LIMIT_FRACTION * budget * min(1, expected / used).
    """
    current, limits = planning.load_of(running), limits_of(planning.budget)
    memory_limit = limits.memory
    if used is not None:
        scaled = [
            NEAR_LIMIT_FRACTION * limit * min(1.0, expected / max(measured, EPSILON_LOAD))
            for limit, expected, measured in zip(limits, current, used, strict=True)
        ]
        limits = Load(*scaled)
        planning = replace(planning, budget=Budget(*(None if isinf(limit) else limit for limit in limits)))
    best = _best_plan(planning, running, used, memory_limit)
    if best is None or _structure(running) == _structure([best]):
        return None
    min_ratio = MIN_CPU_RATIO_SHARING if _materialized([best]) <= _materialized(running) else MIN_CPU_RATIO
    is_cheaper = current.cpu > min_ratio * best.load.cpu
    solves_breach = best.load.fits(limits) or (current.memory > limits.memory and best.load.memory < current.memory)
    if not is_cheaper and (current.fits(limits) or not solves_breach):
        return None
    return Proposal(cause, replace(best, limits=running[0].limits), planning.plans, current)


def _best_plan(
    planning: JointPlanning, running: Sequence[SharedPlan], used: Load | None, memory_limit: float
) -> SharedPlan | None:
    """Return the cheapest plan that fits.

    If none does, it is the cheapest within the memory, or the one that takes the least memory.
    """
    memory_only = None if planning.budget is None else Budget(memory_bytes=planning.budget.memory_bytes)
    for budget in (planning.budget, memory_only):
        with suppress(BudgetError):
            return replace(planning, budget=budget).plan()
    if used is None or not _materialized(running) or used.memory <= NEAR_LIMIT_FRACTION * memory_limit:
        return None
    return replace(planning, budget=None).plan_windows_only()


def _materialized(plans: Iterable[SharedPlan]) -> set[object]:
    joins = [join for plan in plans for join in plan.materialized]
    return {(join.sources, tuple(sorted(join.window_seconds.items()))) for join in joins}


def _structure(plans: Iterable[SharedPlan]) -> list[object]:
    """Return the inputs and consumers of all joins.

    They are equal for plans that differ only in probe orders.
    """
    structure: list[tuple[object, ...]] = []
    for plan in plans:
        materialized = {result.id for result in plan.materialized}
        answers: dict[str, list[str]] = {}
        for answer in plan.answers:
            answers.setdefault(answer.result, []).append(answer.query)
        for join in plan.joins:
            windows, inputs = sorted(join.window_seconds.items()), sorted(item.sources for item in join.inputs)
            consumers = sorted(answers.get(join.output, ()))
            structure.append((join.sources, windows, inputs, join.output in materialized, consumers))
    return sorted(structure, key=repr)
