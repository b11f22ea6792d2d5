"""A plan as a set of stored sub-joins: the rest is chosen for it, operator by operator.

Given the states, operators do not influence each other: the one that produces a target reads whichever states inside it, none
overlapping, make it cheapest. So the cost of a set of states is the sum of each operator's best, and each of these is a function
of the states inside its target alone. Both searches, `exchange` and `exact`, rest on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from dovetail.optimizer.multiquery.costs import CostModel, Parts
from dovetail.optimizer.multiquery.draft import Draft
from dovetail.optimizer.multiquery.workload import Target
from dovetail.plan.global_plan import Load

States: TypeAlias = frozenset[Target]
PACKED = 10
"""States inside one target that are combined in every way; beyond, they are added one by one while that helps."""


class StatePlans:
    """Prices sets of states; every answer is remembered."""

    def __init__(self, model: CostModel, packed: int = PACKED) -> None:
        self.model = model
        self._packed = packed
        self.workload = model.workload
        self._inside: dict[tuple[Target, Target], int] = {}
        self._best: dict[tuple[Target, States], tuple[float, Parts]] = {}
        everyone = range(len(self.workload.queries))
        self.windows = model.windows(everyone)
        self.tops = [self.workload.target(query, self.workload.queries[query].all) for query in everyone]

    def load(self, states: States) -> Load:
        """CPU and memory of the best plan that stores exactly these."""
        cpu, memory = self.windows
        for state in states:
            kept = self.model.state(state)
            cpu += kept.cpu
            memory += kept.memory
        for target in self.operators(states):
            cpu += self.best(target, states)[0]
        return Load(cpu, memory)

    def operators(self, states: States) -> set[Target]:
        """What has to be produced: the states, and each query's answer unless something else is that, too."""
        return {*states, *(self.answer(query, states) for query in range(len(self.tops)))}

    def answer(self, query: int, states: Collection[Target]) -> Target:
        """The target that answers a query: a state, or a query with the same sub-join and larger windows, or its own."""
        own = self.tops[query]
        if own in states:
            return own
        same = [each for each in (*states, *self.tops) if each.signature == own.signature]
        serving = [each for each in same if self.workload.serves(each, query)]
        stored = [each for each in serving if each in states]
        return max(stored or serving, key=lambda each: each.spans)

    def best(self, target: Target, states: Collection[Target]) -> tuple[float, Parts]:
        """The cheapest inputs of an operator, given what is stored."""
        inside = frozenset(state for state in states if self.inside(state, target))
        key = (target, inside)
        if key not in self._best:
            self._best[key] = self._search(target, inside)
        return self._best[key]

    def inside(self, state: Target, target: Target) -> int:
        """The inputs that a state stands for inside a target; 0 if it is no part of it."""
        key = (state, target)
        if key not in self._inside:
            self._inside[key] = self.workload.fits(state, target)
        return self._inside[key]

    def draft(self, states: States) -> Draft:
        """The plan itself."""
        joins = {target: self.best(target, states)[1] for target in self.operators(states)}
        answers = {query: self.answer(query, states) for query in range(len(self.tops))}
        ordered = sorted(joins, key=lambda each: (each.mask.bit_count(), each.query, each.mask, each.spans))
        return Draft({target: joins[target] for target in ordered}, answers)

    def _search(self, target: Target, inside: States) -> tuple[float, Parts]:
        ordered = sorted(inside, key=lambda each: (self.inside(each, target), each.spans))
        combined = (
            self._packings(target, ordered) if len(ordered) <= self._packed else self._one_by_one(target, ordered)
        )
        parts = (self.model.parts(target, packing) for packing in combined)
        return min(((self.model.cpu(target, each), each) for each in parts), key=lambda found: found[0])

    def _packings(self, target: Target, states: list[Target]) -> Iterator[list[Target]]:
        """All sets of states that do not overlap, the empty one too."""
        if not states:
            yield []
            return
        first, rest = states[0], states[1:]
        yield from self._packings(target, rest)
        mask = self.inside(first, target)
        apart = [state for state in rest if not self.inside(state, target) & mask]
        for packing in self._packings(target, apart):
            yield [first, *packing]

    def _one_by_one(self, target: Target, states: list[Target]) -> Iterator[list[Target]]:
        chosen: list[Target] = []
        yield chosen
        while True:
            taken = sum(self.inside(state, target) for state in chosen)
            free = [state for state in states if not self.inside(state, target) & taken]
            if not free:
                return
            costs = [self.model.cpu(target, self.model.parts(target, [*chosen, state])) for state in free]
            chosen = [*chosen, free[costs.index(min(costs))]]
            yield chosen
