"""`exact`: the least CPU of all plans that fit, by branch and bound over the set of stored sub-joins; for small cases.

Every connected sub-join of every query may be stored or not; given the choice, each operator reads what makes it cheapest (see
`state_plans`). The search decides one sub-join after the other. A branch ends when what is stored takes too much memory, or when the
CPU would be too much, or no better than the best plan known, even if every undecided sub-join were there for nothing: a bound,
because more states to read never make an operator dearer. It is exact for the plans described here: one producer per sub-join,
equal windows or those of one of the queries that have it, orders by the method given.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dovetail.errors import PlanError
from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, tidied
from dovetail.optimizer.sharing.model.infeasible import check_windows, does_not_fit
from dovetail.optimizer.sharing.model.workload import QuerySet, Target
from dovetail.optimizer.sharing.search.candidates import storable_targets
from dovetail.optimizer.sharing.search.state_plans import StatePlans, States
from dovetail.plan.shared_plan import Load

MOST = 24
"""Sub-joins that may be stored, up to which the search is allowed."""


def candidate_states(workload: QuerySet) -> list[Target]:
    """Give all that could be stored, the sub-joins of most queries first."""
    storable = dict.fromkeys(storable_targets(workload, MOST + 2))
    return sorted(storable, key=lambda each: (-len(workload.holders(each.signature)), each.mask.bit_count()))


def exact(model: CostModel, _: Sequence[int], limits: Load) -> list[Draft]:
    """Give the plan of least CPU within `limits`, then of least memory."""
    check_windows(model, limits)
    if (best := _least_cpu(model, limits)) is not None:
        return [tidied(model, best)]
    least = _least_cpu(model, Load(inf, limits.memory))
    assert least is not None  # noqa: S101 - the n-ary joins fit the memory
    raise does_not_fit(model, limits, least.load(model), proved=True)


def _least_cpu(model: CostModel, limits: Load) -> Draft | None:
    candidates = candidate_states(model.workload)
    if len(candidates) > MOST:
        raise PlanError(
            f"strategy 'exact': {len(candidates)} sub-joins or more could be stored; it tries every set of them, for at most {MOST}",
            "use strategy='exchange' for larger cases",
        )
    search = _Search(StatePlans(model, MOST), candidates, limits)
    search.decide(0, 0)
    return None if search.best is None else search.plans.draft(search.best)


class _Search:
    def __init__(self, plans: StatePlans, candidates: Sequence[Target], limits: Load) -> None:
        self.plans = plans
        self._candidates = [plans.number(target) for target in candidates]
        self._undecided = [
            sum(1 << state for state in self._candidates[place:]) for place in range(len(candidates) + 1)
        ]
        self._limits = limits
        self._load = Load(inf, inf)
        self.best: States | None = None

    def decide(self, stored: States, place: int) -> None:
        """Store the next sub-join or not."""
        bound = self._bound(stored, self._undecided[place])
        if not bound.fits(self._limits) or bound.cpu > self._load.cpu * (1 + 1e-12):
            return
        if place == len(self._candidates):
            if bound < self._load:
                self._load, self.best = bound, stored
            return
        self.decide(stored | 1 << self._candidates[place], place + 1)
        self.decide(stored, place + 1)

    def _bound(self, stored: States, undecided: States) -> Load:
        """Give what a plan costs at least: it keeps what is `stored`, and may read what is `undecided` for nothing."""
        plans, free = self.plans, stored | undecided
        cpu, memory = plans.kept(stored)
        # An answer that may turn out to be stored for others is free so far, too.
        for number in members(plans.operators(free) & ~undecided):
            cpu += plans.best(number, free)[0]
        return Load(cpu, memory)
