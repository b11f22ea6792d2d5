"""`exchange`: local search over the set of stored sub-joins; our own, and the default.

Once it is known *which* sub-joins are stored, everything else follows (see `state_plans`). So the search changes that set while the
plan gets better: first less over the memory, then less CPU, then less memory. A CPU limit does not guide it: whether one exists or
not, the plan of least CPU within the memory is looked for. It starts from nothing (all n-ary joins), by gain and by gain per byte,
because under a memory limit many small states may beat a large one, and from the states of the thesis's plan, if that found one, so it
is never worse than `shared` in CPU. Then it climbs from random changes of the best plan so far, with a fixed seed; what is added there
may push out what is worth less for its bytes. At last states are exchanged, each for one other.

States worth trying are the joins of two neighbouring inputs of a current operator (as in state selection), what two queries have in
common, and, where there are few, all connected sub-joins. What a state gains is kept between steps and taken anew in the order of its
promise (lazy greedy), since states rarely gain by the presence of others.

How far it is from the optimum is in docs/experiments/alrahmani.md (`make reproduce PAPER=alrahmani`) for cases that `exact` can solve,
and in docs/many-queries.md (`benchmarks/exchange.py`) for larger ones, by the best plan known.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from math import inf
from typing import Literal, NamedTuple, TypeAlias

from dovetail.errors import BudgetError
from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, tidied
from dovetail.optimizer.sharing.model.infeasible import check_windows, does_not_fit
from dovetail.optimizer.sharing.search.candidates import all_if_few, common, variants
from dovetail.optimizer.sharing.search.exact import MOST, candidate_states, exact
from dovetail.optimizer.sharing.search.state_plans import StatePlans, States
from dovetail.optimizer.sharing.thesis.shared import shared_draft
from dovetail.plan.shared_plan import Load

SWAPPED = 12
"""Newcomers that are tried in place of each state."""
DIGITS = 5
"""Scores are rounded to so many: of plans with the same CPU to that precision the one with less memory is better. Rounded scores are
in a strict order, so the search ends."""
EFFORT = 1500
"""Operators that are priced from each start before the search settles for what it has; only large sets of queries come that far."""
SHAKEN = 8000
"""Plans that are looked at after random changes; four times as many before it is said that nothing fits."""
ROUNDS = 50
"""Random changes that are tried at most."""
KEPT, ADDED = (0.0, 0.5, 0.75), 3
"""What a random change leaves of the best plan's states, one of these shares, and how many others it adds."""
Promise: TypeAlias = Literal["gain", "gain per byte"]


class Score(NamedTuple):
    """How good a plan is: compared field by field, smaller is better."""

    excess: float
    cpu: float
    memory: float


class Exchange:
    """A search under one budget."""

    def __init__(self, model: CostModel, limits: Load) -> None:
        self.plans = StatePlans(model)
        self.workload = model.workload
        self.limits = limits
        self._always = self.plans.states([*common(self.workload), *all_if_few(self.workload)])
        self._scores: dict[States, Score] = {}
        self._joined: dict[tuple[int, States], States] = {}
        self._until = 0

    def score(self, states: States, near: States | None = None) -> Score:
        """Say how good a plan is; `near` is a set of states that differs little, and whose plan is known."""
        if states not in self._scores:
            load = self.plans.load(states, near)
            excess = 0.0 if Load(0.0, load.memory).fits(self.limits) else load.memory / self.limits.memory - 1
            self._scores[states] = Score(*(float(f"{value:.{DIGITS}g}") for value in (excess, *load)))
        return self._scores[states]

    def search(self, start: States, by: Promise = "gain") -> States:
        """Add and remove states while that helps."""
        states = start
        self._until = self.plans.priced + EFFORT
        while True:
            states = self._grown(states, by)
            removals = (states & ~(1 << state) for state in members(states))
            better = self._first_better(removals, states)
            if better is None:
                return states
            states = better

    def exchanged(self, states: States) -> States:
        """Swap states, each for one other, while that helps."""
        while (better := self._first_better(self._swaps(states), states)) is not None:
            states = self.search(better)
        return states

    def shaken(self, states: States) -> States:
        """Climb from random changes of the best plan so far."""
        rng, looked = random.Random(0), len(self._scores)  # noqa: S311 - the same plan every time
        for _ in range(ROUNDS):
            enough = SHAKEN if self.plans.load(states).fits(self.limits) else 4 * SHAKEN
            if len(self._scores) - looked > enough:
                break
            other = self._climbed(self._changed(states, rng), rng)
            states = min(states, other, key=self.score)
        return states

    def _changed(self, states: States, rng: random.Random) -> States:
        """Keep some of `states`, or none of them, and add a few others."""
        share, others = rng.choice(KEPT), list(members(self.candidates(states)))
        kept = [state for state in members(states) if rng.random() < share]
        added = rng.sample(others, min(ADDED, len(others)))
        return self._reduced(sum(1 << state for state in (*kept, *added)))

    def _climbed(self, states: States, rng: random.Random) -> States:
        """Add or remove states in random order while that helps; what is added may push others out."""
        while True:
            before, either = states, list(members(self.candidates(states) | states))
            for state in rng.sample(either, len(either)):
                after = self._reduced(states ^ 1 << state, states)
                if self._gain(states, after) > 0:
                    states = after
            if states == before:
                return states

    def _reduced(self, states: States, near: States | None = None) -> States:
        """Drop states while there are too many for the memory: those first that save the least CPU for their bytes."""
        while self.score(states, near).excess:
            cpu = self.score(states).cpu
            costs = {
                state: (self.score(states & ~(1 << state), states).cpu - cpu) / self._price(state, "gain per byte")
                for state in members(states)
            }
            states, near = states & ~(1 << min(costs, key=costs.__getitem__)), states
        return states

    def _grown(self, states: States, by: Promise) -> States:
        """Add states, the most promising first, while one of them helps."""
        promise = dict.fromkeys(members(self.candidates(states)), inf)
        while True:
            best, most = None, 0.0
            for state in sorted(promise, key=promise.__getitem__, reverse=True):
                if promise[state] <= most or self._tired:
                    break  # what a state gained before is about the most that it will gain
                promise[state] = self._gain(states, states | 1 << state) / self._price(state, by)
                if promise[state] > most:
                    best, most = state, promise[state]
            if best is None:
                return states
            states |= 1 << best
            fresh = {state: inf for state in members(self.candidates(states)) if state not in promise}
            promise = {**{state: worth for state, worth in promise.items() if state != best and worth > 0}, **fresh}

    @property
    def _tired(self) -> bool:
        return self.plans.priced > self._until

    def _price(self, state: int, by: Promise) -> float:
        return self.plans.model.state(self.plans.targets[state]).memory if by == "gain per byte" else 1.0

    def candidates(self, states: States) -> States:
        """Give the states worth adding to `states`."""
        worth = self._always
        for number in members(self.plans.operators(states)):
            worth |= self._neighbours(number, self.plans.best(number, states)[1])
        return worth & ~states

    def _neighbours(self, number: int, read: States) -> States:
        """Give the joins of two inputs of the operator that produces target `number` from the states `read`."""
        if (number, read) not in self._joined:
            target, parts = self.plans.targets[number], self.plans.parts(number, read)
            query = self.workload.queries[target.query]
            masks = [self.workload.mask(part.signature, target.query) for part in parts]
            unions = []
            for first, second in combinations(masks, 2) if len(masks) > 2 else ():
                if query.neighbours(first) & second and not (first | second) & query.unstorable:
                    unions += variants(self.workload, target.query, first | second)
            self._joined[number, read] = self.plans.states(unions)
        return self._joined[number, read]

    def _swaps(self, states: States) -> Iterator[States]:
        for state in members(states):
            if self._tired:
                return
            rest = states & ~(1 << state)
            newcomers = [rest | 1 << other for other in members(self.candidates(rest)) if other != state]
            yield from sorted(newcomers, key=lambda after: self.score(after, rest))[:SWAPPED]

    def _first_better(self, options: Iterator[States], states: States) -> States | None:
        return next((after for after in options if self._gain(states, after) > 0), None)

    def _gain(self, before: States, after: States) -> float:
        """Give how much better a plan has become, in the first respect that differs; not above 0 if it has not."""
        for old, new in zip(self.score(before), self.score(after, before), strict=True):
            if old != new:
                return old - new
        return 0.0


def exchange(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Give the best plan that the search finds; in small cases `exact` is asked before it is said that nothing fits."""
    check_windows(model, limits)
    draft = _searched(model, order, limits)
    if (load := draft.load(model)).fits(limits):
        return [tidied(model, draft)]
    if len(candidate_states(model.workload)) > MOST:
        raise does_not_fit(model, limits, load, proved=False)
    return exact(model, order, limits)


def _searched(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    search = Exchange(model, limits)
    starts: list[tuple[States, Promise]] = [(0, "gain")]
    if limits.memory < inf:
        starts.append((0, "gain per byte"))
    with suppress(BudgetError):  # that the thesis's method finds none does not mean that there is none
        starts.append((search.plans.states(shared_draft(model, order, limits).stored), "gain"))
    ends = [search.search(*start) for start in starts]
    return search.plans.draft(search.exchanged(search.shaken(min(ends, key=search.score))))
