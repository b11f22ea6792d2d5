"""Another plan for queries that run: whether there is one that is worth changing to, by what is known of them now."""

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
"""The part of a budget above which it is about to break."""
SMALLEST = 1e-9
GAIN = 1.2
"""How many times less CPU a plan must be expected to take that stores more: to find what is stored costs, and estimates err."""
SHARING_GAIN = 1.02
"""The same if it stores nothing that is not there already."""


@dataclass(frozen=True)
class Proposal:
    """A plan to change to."""

    cause: str
    """Why what runs was looked at."""
    plan: SharedPlan
    plans: Mapping[str, QueryPlan]
    """By query, the plan that it has by itself, by what is known now."""
    before: Load
    """What runs is expected to take, and `after` what is proposed."""

    @property
    def after(self) -> Load:
        return self.plan.load


def propose(
    planning: JointPlanning, running: Sequence[SharedPlan], cause: str, used: Load | None = None
) -> Proposal | None:
    """Give a plan that takes less CPU than those that run, or fits a budget that they break; None if there is none.

    `used`: what was measured of a budget that is about to break. The other plan then has to stay below `NEAR` of the limits, by as
    much less than what runs as is used too much.
    """
    now, asked, limits = planning.priced(running), planning.budget, limits_of(planning.budget)
    if used is not None:
        scaled = [
            NEAR * limit * min(1.0, expected / max(real, SMALLEST))
            for limit, expected, real in zip(limits, now, used, strict=True)
        ]
        limits = Load(*scaled)
        planning = replace(planning, budget=Budget(*(None if isinf(limit) else limit for limit in limits)))
    try:
        best = planning.plan()
    except BudgetError:
        if used is None or not _stored(running) or used.memory <= NEAR * limits_of(asked).memory:
            return None
        best = replace(
            planning, budget=None
        ).apart()  # which does not fit either, for all we know, but takes the least memory
    gain = SHARING_GAIN if _stored([best]) <= _stored(running) else GAIN
    if _shape(running) == _shape([best]) or (now.fits(limits) and now.cpu <= gain * best.load.cpu):
        return None
    return Proposal(cause, replace(best, limits=running[0].limits), planning.plans, now)


def _stored(plans: Iterable[SharedPlan]) -> set[object]:
    states = [state for plan in plans for state in plan.states]
    return {(state.sources, tuple(sorted(state.spans.items()))) for state in states}


def _shape(plans: Iterable[SharedPlan]) -> list[object]:
    """What tells plans apart: which joins read what for whom, not in which order."""
    found: list[tuple[object, ...]] = []
    for plan in plans:
        stored = {state.id for state in plan.states}
        answers: dict[str, list[str]] = {}
        for answer in plan.answers:
            answers.setdefault(answer.result, []).append(answer.query)
        for join in plan.joins:
            spans, inputs = sorted(join.spans.items()), sorted(each.sources for each in join.inputs)
            served = sorted(answers.get(join.output, ()))
            found.append((join.sources, spans, inputs, join.output in stored, served))
    return sorted(found, key=repr)
