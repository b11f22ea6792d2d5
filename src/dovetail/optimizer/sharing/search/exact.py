"""`exact`, for small cases: the plan of least CPU, by branch and bound over materialized joins.

Every connected sub-join of every query may be materialized or not; given these, each operator reads those that make it cheapest (see
`join_sets`). The search decides one sub-join after the other. It prunes a branch when the materialized joins exceed the memory, or
when the CPU exceeds the limit or that of the best plan so far even if every undecided sub-join were free. This is a lower bound,
because more joins to read never make an operator more expensive. The result is exact among plans with one producer per sub-join, the
largest windows or those of one query that contains it, and orders by the given method.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dovetail.errors import PlanError
from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, tidy
from dovetail.optimizer.sharing.model.infeasible import budget_error, check_windows
from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin
from dovetail.optimizer.sharing.search.candidates import materializable_joins
from dovetail.optimizer.sharing.search.join_sets import JoinSet, JoinSetPlans
from dovetail.plan.shared_plan import Load

MAX_CANDIDATES = 24
"""The largest number of candidates that the search accepts."""


def candidate_joins(query_set: QuerySet) -> list[SubJoin]:
    """Return all sub-joins that may be materialized, those of most queries first."""
    candidates = dict.fromkeys(materializable_joins(query_set, MAX_CANDIDATES + 2))
    return sorted(
        candidates, key=lambda sub_join: (-len(query_set.holders(sub_join.signature)), sub_join.mask.bit_count())
    )


def exact(model: CostModel, _: Sequence[int], limits: Load) -> list[Draft]:
    """Return the plan of least CPU within `limits`; of equal ones, that of least memory."""
    check_windows(model, limits)
    if (best := _least_cpu(model, limits)) is not None:
        return [tidy(model, best)]
    least = _least_cpu(model, Load(inf, limits.memory))
    assert least is not None  # noqa: S101 - the n-ary joins fit the memory
    raise budget_error(model, limits, least.load(model), proved=True)


def _least_cpu(model: CostModel, limits: Load) -> Draft | None:
    candidates = candidate_joins(model.query_set)
    if len(candidates) > MAX_CANDIDATES:
        raise PlanError(
            f"strategy 'exact': {len(candidates)} sub-joins or more could be materialized; it tries every set of them, for at "
            f"most {MAX_CANDIDATES}",
            "use strategy='exchange' for larger cases",
        )
    search = _Search(JoinSetPlans(model, MAX_CANDIDATES), candidates, limits)
    search.decide(0, 0)
    return None if search.best is None else search.plans.draft(search.best)


class _Search:
    def __init__(self, plans: JoinSetPlans, candidates: Sequence[SubJoin], limits: Load) -> None:
        self.plans = plans
        self._candidates = [plans.index_of(sub_join) for sub_join in candidates]
        self._undecided = [
            sum(1 << join for join in self._candidates[position:]) for position in range(len(candidates) + 1)
        ]
        self._limits = limits
        self._load = Load(inf, inf)
        self.best: JoinSet | None = None

    def decide(self, materialized: JoinSet, position: int) -> None:
        """Try both choices for the next sub-join: materialized, and not."""
        bound = self._bound(materialized, self._undecided[position])
        if not bound.fits(self._limits) or bound.cpu > self._load.cpu * (1 + 1e-12):
            return
        if position == len(self._candidates):
            if bound < self._load:
                self._load, self.best = bound, materialized
            return
        self.decide(materialized | 1 << self._candidates[position], position + 1)
        self.decide(materialized, position + 1)

    def _bound(self, materialized: JoinSet, undecided: JoinSet) -> Load:
        """Return a lower bound of the load.

        The `materialized` joins are kept, and the `undecided` ones are free to read.
        """
        plans, free = self.plans, materialized | undecided
        cpu, memory = plans.storage_load(materialized)
        # An answer that other queries may read, which is still undecided, is free, too.
        for index in members(plans.operators(free) & ~undecided):
            cpu += plans.best(index, free)[0]
        return Load(cpu, memory)
