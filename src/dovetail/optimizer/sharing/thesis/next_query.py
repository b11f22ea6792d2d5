"""The query that is planned next: the draft of those before it, what they leave of the budget, and what it may use of that.

**Allocation** (equations 3-4 and 3-5 of Alrahmani, section 3.2). CPU is shared out by the weight of a query's predicates, Σ λ·λ·σ,
memory by that times its window. Read literally, 3-5 gives W_i / ΣW, because the sums in its numerator and denominator are the same;
we take the sum over all queries of W·Σ, so that the shares add up to one, as the text says. What one query leaves unused goes to the
others: shares are of what is still there, among the queries that are still to come.

**Charges.** The thesis subtracts the whole cost of each subplan from what is available (algorithm 4, lines 46 and 47), which counts
shared work again and again. Here a subplan is charged for what it adds to the draft, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from dovetail.errors import BudgetError, listed
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, coalesced
from dovetail.optimizer.sharing.model.infeasible import UNITS, amount, hint
from dovetail.optimizer.sharing.model.workload import QuerySet, Target, pace
from dovetail.optimizer.sharing.thesis.query_order import gauged_weight
from dovetail.optimizer.sharing.thesis.sharing import effective_load
from dovetail.plan.shared_plan import Load


def shares(workload: QuerySet, queries: Sequence[int]) -> dict[int, Load]:
    """Give each of `queries` its share of CPU (3-4) and memory (3-5) among them."""
    weights = {
        query: sum(gauged_weight(workload, query, pair) for pair in workload.queries[query].edges())
        for query in queries
    }
    windowed = {query: weight * workload.queries[query].window for query, weight in weights.items()}
    cpu, memory = sum(weights.values()), sum(windowed.values())
    return {query: Load(weights[query] / cpu, windowed[query] / memory) for query in queries}


def allocated(workload: QuerySet, left: Sequence[int], available: Load) -> Load:
    """Give what the first of the queries `left` may use of what is `available`."""
    share = shares(workload, left)[left[0]]
    return Load(available.cpu * share.cpu, available.memory * share.memory)


@dataclass(frozen=True)
class NextQuery:
    """The first of the queries that are left, to be planned on top of a draft."""

    model: CostModel
    draft: Draft
    left: Sequence[int]
    limits: Load
    others: Load | None = None
    """What queries planned by themselves use; None if all are in the draft, and may share."""

    @property
    def number(self) -> int:
        return self.left[0]

    @cached_property
    def _drafted(self) -> Load:
        return self.draft.load(self.model)

    @cached_property
    def used(self) -> Load:
        """What all queries before this one use."""
        return self._drafted.plus(self.others or Load())

    @cached_property
    def available(self) -> Load:
        """What they leave of the budget."""
        return Load(self.limits.cpu - self.used.cpu, self.limits.memory - self.used.memory)

    @cached_property
    def allocated(self) -> Load:
        """The query's share of what is available (3-4, 3-5)."""
        return allocated(self.model.workload, self.left, self.available)

    def added(self, subplan: Subplan) -> Load:
        """Give what `subplan` adds to the draft."""
        after = self.draft.joined(self.number, subplan).load(self.model)
        return Load(after.cpu - self._drafted.cpu, after.memory - self._drafted.memory)

    def effective(self, subplan: Subplan) -> Load:
        """Give 3-10 for `subplan`: its effective cost with what the draft uses."""
        return effective_load(self.model, subplan, self.draft, self.left).plus(self.used)

    def nothing_fits(self, resource: str, need: float) -> BudgetError:
        """Say that no plan for the query fits what the queries before it have left: `need` of `resource` is the least."""
        workload = self.model.workload
        query = workload.queries[self.number]
        delivering = self.model.delivering_all if resource == "CPU" else 0.0
        limit, left = amount(resource, self.limits) + delivering, max(amount(resource, self.available), 0.0)
        planned = [name for number, name in enumerate(workload.names) if number not in self.left]
        after = f", after {listed(planned)}" if planned else ""
        message = (
            f"query {query.name!r} does not fit the budget: no plan that was tried needs less than {need:.4g} {UNITS[resource]} of "
            f"{resource}, and {left:.4g} of {limit:.4g} are left{after}"
        )
        return BudgetError(message, hint(resource, query.name, query.window, left / need, limit))

    # -- the query's coalesced graph ------------------------------------------------------------------------------------------------

    def mask(self, part: Target) -> int:
        """Give the inputs of the query that `part` stands for."""
        return self.model.workload.mask(part.signature, self.number)

    def known_unions(self, subplan: Subplan) -> list[tuple[list[Target], Target]]:
        """Give the operations of the draft that join two or more inputs of the top operator, largest first; with these inputs."""
        known = []
        for target in self.draft.joins:
            mask = self.model.workload.fits(target, subplan.top)
            inside = [part for part in subplan.parts if self.mask(part) & mask]
            if len(inside) > 1 and sum(map(self.mask, inside)) == mask and self._storable(mask):
                known.append((inside, target))
        return sorted(known, key=lambda each: -each[1].mask.bit_count())

    def pairs(self, subplan: Subplan) -> Iterator[tuple[Target, Target]]:
        """Give the edges of the coalesced graph that may be stored."""
        query = self.model.workload.queries[self.number]
        for first, second in combinations(subplan.parts, 2):
            mask = self.mask(second)
            if query.neighbours(self.mask(first)) & mask and self._storable(self.mask(first) | mask):
                yield first, second

    def _storable(self, mask: int) -> bool:
        return not mask & self.model.workload.queries[self.number].unstorable

    def weight(self, first: Target, second: Target) -> float:
        """Give 3-1 for an edge of the coalesced graph: rate · rate · σ, with the composites' own rates."""
        workload = self.model.workload
        both = workload.target(self.number, self.mask(first) | self.mask(second))
        own = [workload.target(self.number, self.mask(part)) for part in (first, second)]
        return workload.size(both) * pace(own[0]) * pace(own[1])

    def stored(self, subplan: Subplan, first: Target, second: Target) -> Subplan:
        """Store the join of two inputs, with the largest windows of the queries that may still use it."""
        workload = self.model.workload
        mask = self.mask(first) | self.mask(second)
        state = workload.widest(self.number, mask, self.left if self.others is None else ())
        if not all(part.is_base or workload.fits(part, state) for part in (first, second)):
            state = workload.target(self.number, mask)
        return coalesced(self.model, subplan, (first, second), state, self.draft)

    def reused(self, subplan: Subplan, merged: Sequence[Target], target: Target) -> Subplan:
        """Read `target`, an operation of the draft, instead of the inputs `merged`."""
        return coalesced(self.model, subplan, merged, target, self.draft)
