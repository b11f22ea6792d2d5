"""One query's turn: the plan so far, what is left of the budget, and what the query may use of it.

The thesis subtracts the whole cost of each subplan from what is available (algorithm 4, lines 46 and 47), which counts shared work
again and again. Here a subplan is charged for what it adds to the draft, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dovetail.optimizer.multiquery.allocation import allocated
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft, Subplan, coalesced
from dovetail.optimizer.multiquery.sharing import EffectiveCost, effective_load
from dovetail.optimizer.multiquery.workload import Target, pace
from dovetail.plan.global_plan import Load


@dataclass(frozen=True)
class Turn:
    """The first of the queries that are left is to be planned."""

    model: CostModel
    draft: Draft
    left: Sequence[int]
    limits: Load
    others: Load | None = None
    """What queries planned by themselves use; None if all are in the draft, and may share."""

    @property
    def query(self) -> int:
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
        """What a subplan adds to the draft."""
        after = self.draft.joined(self.query, subplan).load(self.model)
        return Load(after.cpu - self._drafted.cpu, after.memory - self._drafted.memory)

    def effective(self, subplan: Subplan) -> EffectiveCost:
        """Give 3-10."""
        load = effective_load(self.model, subplan, self.draft, self.left)
        return EffectiveCost(load.plus(self.used), self.limits)

    # -- the query's coalesced graph ------------------------------------------------------------------------------------------------

    def mask(self, part: Target) -> int:
        """The inputs of the query that a part stands for."""
        return self.model.workload.place(part.signature, self.query)

    def known_unions(self, subplan: Subplan) -> list[tuple[list[Target], Target]]:
        """Operations of the draft that join two or more of the top operator's inputs, the largest first; with these inputs."""
        found = []
        for target in self.draft.joins:
            mask = self.model.workload.fits(target, subplan.top)
            inside = [part for part in subplan.parts if self.mask(part) & mask]
            if len(inside) > 1 and sum(self.mask(part) for part in inside) == mask and self._storable(mask):
                found.append((inside, target))
        return sorted(found, key=lambda each: -each[1].mask.bit_count())

    def pairs(self, subplan: Subplan) -> Iterator[tuple[Target, Target]]:
        """The edges of the coalesced graph that may be stored."""
        query = self.model.workload.queries[self.query]
        for place, first in enumerate(subplan.parts):
            near = query.neighbours(self.mask(first))
            for second in subplan.parts[place + 1 :]:
                if near & self.mask(second) and self._storable(self.mask(first) | self.mask(second)):
                    yield first, second

    def _storable(self, mask: int) -> bool:
        return not mask & self.model.workload.queries[self.query].unstorable

    def weight(self, first: Target, second: Target) -> float:
        """Give 3-1 for an edge of the coalesced graph: rate · rate · σ, with the composites' own rates."""
        workload = self.model.workload
        both = workload.target(self.query, self.mask(first) | self.mask(second))
        own = [workload.target(self.query, self.mask(part)) for part in (first, second)]
        return workload.size(both) * pace(own[0]) * pace(own[1])

    def stored(self, subplan: Subplan, first: Target, second: Target) -> Subplan:
        """Store the join of two inputs, with the largest windows of the queries that may still use it."""
        workload = self.model.workload
        mask = self.mask(first) | self.mask(second)
        state = workload.widest(self.query, mask, self.left if self.others is None else ())
        if not all(part.is_base or workload.fits(part, state) for part in (first, second)):
            state = workload.target(self.query, mask)
        return coalesced(self.model, subplan, (first, second), state, self.draft)

    def reused(self, subplan: Subplan, merged: Sequence[Target], target: Target) -> Subplan:
        """Read an operation of the draft instead of some inputs."""
        return coalesced(self.model, subplan, merged, target, self.draft)
