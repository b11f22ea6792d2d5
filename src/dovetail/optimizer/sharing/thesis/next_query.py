"""The next query to plan: the draft of earlier queries, their remaining budget, and its allocation.

**Allocation** (equations 3-4 and 3-5 of Alrahmani, section 3.2). CPU is allocated by the weight of a query's predicates, Σ λ·λ·σ,
memory by that weight times its window. Read literally, 3-5 gives W_i / ΣW, because the sums in its numerator and denominator are the
same; we take the sum over all queries of W·Σ, so that the fractions add up to one, as the text says. The budget that one query does
not use is allocated among the remaining queries.

**Charges.** The thesis subtracts the whole cost of each subplan from what is available (algorithm 4, lines 46 and 47), which counts
shared work several times. Here a subplan is charged only for what it adds to the draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from dovetail.errors import BudgetError, listed
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, coalesce
from dovetail.optimizer.sharing.model.infeasible import UNITS, amount, budget_hint
from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin, pace
from dovetail.optimizer.sharing.thesis.query_order import gauged_weight
from dovetail.optimizer.sharing.thesis.sharing import effective_load
from dovetail.plan.shared_plan import Load


def allocation_fractions(query_set: QuerySet, queries: Sequence[int]) -> dict[int, Load]:
    """Return the fractions of CPU (3-4) and memory (3-5) that each of `queries` is allocated."""
    weights = {
        query: sum(gauged_weight(query_set, query, pair) for pair in query_set.queries[query].edges())
        for query in queries
    }
    weighted = {query: weight * query_set.queries[query].window for query, weight in weights.items()}
    cpu, memory = sum(weights.values()), sum(weighted.values())
    return {query: Load(weights[query] / cpu, weighted[query] / memory) for query in queries}


def allocate(query_set: QuerySet, remaining: Sequence[int], available: Load) -> Load:
    """Return the allocation of the first of the `remaining` queries from the `available` budget."""
    fraction = allocation_fractions(query_set, remaining)[remaining[0]]
    return Load(available.cpu * fraction.cpu, available.memory * fraction.memory)


@dataclass(frozen=True)
class NextQuery:
    """The first of the remaining queries, to be planned on top of a draft."""

    model: CostModel
    draft: Draft
    remaining: Sequence[int]
    limits: Load
    other_load: Load | None = None
    """Load of earlier queries outside the draft; None if all are in the draft, and joins may be shared."""

    @property
    def index(self) -> int:
        return self.remaining[0]

    @cached_property
    def _draft_load(self) -> Load:
        return self.draft.load(self.model)

    @cached_property
    def used(self) -> Load:
        """Load of all earlier queries."""
        return self._draft_load.plus(self.other_load or Load())

    @cached_property
    def available(self) -> Load:
        """Budget that earlier queries leave."""
        return Load(self.limits.cpu - self.used.cpu, self.limits.memory - self.used.memory)

    @cached_property
    def allocation(self) -> Load:
        """The query's allocation of the available budget (3-4, 3-5)."""
        return allocate(self.model.query_set, self.remaining, self.available)

    def added_load(self, subplan: Subplan) -> Load:
        """Return the load that `subplan` adds to the draft."""
        new_load = self.draft.with_query(self.index, subplan).load(self.model)
        return Load(new_load.cpu - self._draft_load.cpu, new_load.memory - self._draft_load.memory)

    def effective_cost(self, subplan: Subplan) -> Load:
        """Return 3-10 for `subplan`: its effective cost plus the load of earlier queries."""
        return effective_load(self.model, subplan, self.draft, self.remaining).plus(self.used)

    def budget_error(self, resource: str, need: float) -> BudgetError:
        """Return the error that every plan needs at least `need` of `resource`, more than is available."""
        query_set = self.model.query_set
        query = query_set.queries[self.index]
        delivery = self.model.total_delivery_cost if resource == "CPU" else 0.0
        limit, remaining = amount(resource, self.limits) + delivery, max(amount(resource, self.available), 0.0)
        planned = [name for index, name in enumerate(query_set.names) if index not in self.remaining]
        suffix = f", after {listed(planned)}" if planned else ""
        message = (
            f"query {query.name!r} does not fit the budget: no plan that was tried needs less than {need:.4g} {UNITS[resource]}; "
            f"{remaining:.4g} of {limit:.4g} are left{suffix}"
        )
        return BudgetError(message, budget_hint(query_set, query, resource, remaining / need, limit))

    # -- the query's coalesced graph ------------------------------------------------------------------------------------------------

    def mask(self, part: SubJoin) -> int:
        """Return the inputs of the query that `part` covers."""
        return self.model.query_set.mask(part.signature, self.index)

    def reusable_unions(self, subplan: Subplan) -> list[tuple[list[SubJoin], SubJoin]]:
        """Return the draft's operations on inputs of the top operator, with these inputs; largest first."""
        unions = []
        for sub_join in self.draft.joins:
            mask = self.model.query_set.fits(sub_join, subplan.top)
            inputs = [part for part in subplan.parts if self.mask(part) & mask]
            if len(inputs) > 1 and sum(map(self.mask, inputs)) == mask and self._can_materialize(mask):
                unions.append((inputs, sub_join))
        return sorted(unions, key=lambda union: -union[1].mask.bit_count())

    def pairs(self, subplan: Subplan) -> Iterator[tuple[SubJoin, SubJoin]]:
        """Yield the edges of the coalesced graph that may be materialized."""
        query = self.model.query_set.queries[self.index]
        for first, second in combinations(subplan.parts, 2):
            mask = self.mask(second)
            if query.neighbours(self.mask(first)) & mask and self._can_materialize(self.mask(first) | mask):
                yield first, second

    def _can_materialize(self, mask: int) -> bool:
        return not mask & self.model.query_set.queries[self.index].unmaterializable

    def weight(self, first: SubJoin, second: SubJoin) -> float:
        """Return 3-1 for an edge of the coalesced graph: rate · rate · σ, with the composites' own rates."""
        query_set = self.model.query_set
        both = query_set.sub_join(self.index, self.mask(first) | self.mask(second))
        paces = [pace(query_set.sub_join(self.index, self.mask(part))) for part in (first, second)]
        return query_set.size(both) * paces[0] * paces[1]

    def store(self, subplan: Subplan, first: SubJoin, second: SubJoin) -> Subplan:
        """Store the join of two inputs, with the largest windows of the queries that may still read it."""
        query_set = self.model.query_set
        mask = self.mask(first) | self.mask(second)
        state = query_set.widest(self.index, mask, self.remaining if self.other_load is None else ())
        if not all(part.is_base or query_set.fits(part, state) for part in (first, second)):
            state = query_set.sub_join(self.index, mask)
        return coalesce(self.model, subplan, (first, second), state, self.draft)

    def reuse(self, subplan: Subplan, merged: Sequence[SubJoin], sub_join: SubJoin) -> Subplan:
        """Read `sub_join`, an operation of the draft, instead of the inputs `merged`."""
        return coalesce(self.model, subplan, merged, sub_join, self.draft)
