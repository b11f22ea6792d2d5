"""`exact`: the least CPU of all plans that fit, by branch and bound over the set of stored sub-joins; for small cases.

Every connected sub-join of every query may be stored or not; given the choice, each operator reads what makes it cheapest (see
`states`). The search decides one sub-join after the other. A branch ends when what is stored takes too much memory, or when the
CPU would be too much, or no better than the best plan known, even if every undecided sub-join were there for nothing: a bound,
because more states to read never make an operator dearer. It is exact for the plans described here: one producer per sub-join,
equal windows or those of one of the queries that have it, orders by `weave`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dovetail.errors import PlanError
from dovetail.optimizer.indexed import members
from dovetail.optimizer.multiquery.candidates import storable_sets, variants
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft
from dovetail.optimizer.multiquery.states import StatePlans, States
from dovetail.optimizer.multiquery.workload import Target, Workload
from dovetail.plan.global_plan import Load

MOST = 24
"""Sub-joins that may be stored, up to which the search is allowed."""


def candidate_states(workload: Workload, most: int = MOST) -> list[Target]:
    """All that could be stored, the sub-joins of most queries first."""
    found: dict[Target, None] = {}
    for query in range(len(workload.queries)):
        for mask in storable_sets(workload, query, most + 2):
            found |= dict.fromkeys(variants(workload, query, mask))
    return sorted(found, key=lambda each: (-len(workload.holders(each.signature)), each.mask.bit_count()))


def exact(model: CostModel, limits: Load) -> Draft | None:
    """Give the plan of least CPU within limits, then of least memory; None if there is none."""
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
        """What a plan costs at least: it keeps what is stored, and may read what is not decided for nothing."""
        plans, free = self.plans, stored | undecided
        cpu, memory = plans.kept(stored)
        # An answer that may turn out to be stored for others is free so far, too.
        for number in members(plans.operators(free) & ~undecided):
            cpu += plans.best(number, free)[0]
        return Load(cpu, memory)
