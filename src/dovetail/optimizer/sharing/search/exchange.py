"""`exchange`, the default strategy: local search over sets of materialized joins, or *states*.

The set of states determines the rest of the plan (see `state_plans`). The search changes that set while the plan improves: first
less excess memory, then less CPU, then less memory. A CPU limit does not guide it: with or without one, it looks for the plan of
least CPU within the memory. It starts from the empty set (all joins n-ary), ranked by gain and by gain per byte, because under a
memory limit many small states may beat a large one; and from the states of the thesis's plan, if there is one, so it is never worse
than `shared` in CPU. Then it climbs from random changes of the best plan so far, with a fixed seed; a state added there may displace
states that save less CPU per byte. Finally it swaps single states.

Candidates are the joins of two neighbouring inputs of a current operator (as in state selection), the common sub-joins of two queries,
and, if there are few, all connected sub-joins. The gain of a state is cached between steps and recomputed in the order of its last
value (lazy greedy), because states rarely gain from the presence of others.

Its distance from the optimum is in docs/experiments/alrahmani.md (`make reproduce PAPER=alrahmani`) for cases that `exact` can solve,
and in docs/many-queries.md (`benchmarks/exchange.py`) for larger ones, relative to the best plan known.
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
from dovetail.optimizer.sharing.model.draft import Draft, tidy
from dovetail.optimizer.sharing.model.infeasible import budget_error, check_windows
from dovetail.optimizer.sharing.search.candidates import all_candidates_if_few, common_subjoins, variants
from dovetail.optimizer.sharing.search.exact import MAX_CANDIDATES, candidate_states, exact
from dovetail.optimizer.sharing.search.state_plans import StatePlans, States
from dovetail.optimizer.sharing.thesis.shared import shared_draft
from dovetail.plan.shared_plan import Load

MAX_SWAPS = 12
"""The most replacements tried for each state."""
DIGITS = 5
"""Significant digits of scores: of plans with the same rounded CPU, the one with less memory is better. Rounded scores have a strict
order, so the search terminates."""
MAX_PRICED = 1500
"""Operators priced from each start before the search stops; only large sets of queries reach it."""
MAX_PERTURBED = 8000
"""Plans scored after random changes; four times as many while no plan fits."""
ROUNDS = 50
"""The most random changes tried."""
KEPT_FRACTIONS, ADDED_STATES = (0.0, 0.5, 0.75), 3
"""Fractions of the best plan's states that a random change keeps, and the number of states that it adds."""
SMALLEST_MEMORY = 1e-9
"""Bytes of a state whose unit costs are zero: the gain per byte is then large, not infinite."""
Ranking: TypeAlias = Literal["gain", "gain per byte"]


class Score(NamedTuple):
    """Quality of a plan, compared field by field; smaller is better."""

    excess: float
    cpu: float
    memory: float


class Exchange:
    """A search under one budget."""

    def __init__(self, model: CostModel, limits: Load) -> None:
        self.plans = StatePlans(model)
        self.query_set = model.query_set
        self.limits = limits
        self._always_candidates = self.plans.state_set(
            [*common_subjoins(self.query_set), *all_candidates_if_few(self.query_set)]
        )
        self._scores: dict[States, Score] = {}
        self._pair_joins: dict[tuple[int, States], States] = {}
        self._priced_limit = 0

    def score(self, states: States, near: States | None = None) -> Score:
        """Return the score of a set of states; `near` is a similar set that has been scored."""
        if states not in self._scores:
            load = self.plans.load(states, near)
            excess = 0.0 if Load(0.0, load.memory).fits(self.limits) else load.memory / self.limits.memory - 1
            self._scores[states] = Score(*(float(f"{value:.{DIGITS}g}") for value in (excess, *load)))
        return self._scores[states]

    def search(self, start: States, by: Ranking = "gain") -> States:
        """Add and remove states while that helps."""
        states = start
        self._priced_limit = self.plans.priced + MAX_PRICED
        while True:
            states = self._grow(states, by)
            removals = (states & ~(1 << state) for state in members(states))
            better = self._first_better(removals, states)
            if better is None:
                return states
            states = better

    def swap(self, states: States) -> States:
        """Swap single states while that helps."""
        while (better := self._first_better(self._swaps(states), states)) is not None:
            states = self.search(better)
        return states

    def perturb(self, states: States) -> States:
        """Climb from random changes of the best plan so far."""
        rng, scored = random.Random(0), len(self._scores)  # noqa: S311 - the same plan every time
        for _ in range(ROUNDS):
            limit = MAX_PERTURBED if self.plans.load(states).fits(self.limits) else 4 * MAX_PERTURBED
            if len(self._scores) - scored > limit:
                break
            other = self._climb(self._mutate(states, rng), rng)
            states = min(states, other, key=self.score)
        return states

    def _mutate(self, states: States, rng: random.Random) -> States:
        """Keep a random part of `states`, and add a few candidates."""
        fraction, candidates = rng.choice(KEPT_FRACTIONS), list(members(self.candidates(states)))
        kept = [state for state in members(states) if rng.random() < fraction]
        added = rng.sample(candidates, min(ADDED_STATES, len(candidates)))
        return self._fit_memory(sum(1 << state for state in (*kept, *added)))

    def _climb(self, states: States, rng: random.Random) -> States:
        """Add or remove states in random order while that helps; an added state may displace others."""
        while True:
            old_states, changes = states, list(members(self.candidates(states) | states))
            for state in rng.sample(changes, len(changes)):
                new_states = self._fit_memory(states ^ 1 << state, states)
                if self._gain(states, new_states) > 0:
                    states = new_states
            if states == old_states:
                return states

    def _fit_memory(self, states: States, near: States | None = None) -> States:
        """Drop states until the rest fits the memory, first those that save the least CPU per byte."""
        while self.score(states, near).excess:
            cpu = self.score(states).cpu
            costs = {
                state: (self.score(states & ~(1 << state), states).cpu - cpu) / self._price(state, "gain per byte")
                for state in members(states)
            }
            states, near = states & ~(1 << min(costs, key=costs.__getitem__)), states
        return states

    def _grow(self, states: States, by: Ranking) -> States:
        """Add states, the most promising first, while that helps."""
        promises = dict.fromkeys(members(self.candidates(states)), inf)
        while True:
            best, largest = None, 0.0
            for state in sorted(promises, key=promises.__getitem__, reverse=True):
                if promises[state] <= largest or self._is_exhausted:
                    break  # a state rarely gains more than it did before
                promises[state] = self._gain(states, states | 1 << state) / self._price(state, by)
                if promises[state] > largest:
                    best, largest = state, promises[state]
            if best is None:
                return states
            states |= 1 << best
            new_promises = {state: inf for state in members(self.candidates(states)) if state not in promises}
            promises = {
                **{state: gain for state, gain in promises.items() if state != best and gain > 0},
                **new_promises,
            }

    @property
    def _is_exhausted(self) -> bool:
        return self.plans.priced > self._priced_limit

    def _price(self, state: int, by: Ranking) -> float:
        if by == "gain":
            return 1.0
        return max(self.plans.model.state(self.plans.targets[state]).memory, SMALLEST_MEMORY)

    def candidates(self, states: States) -> States:
        """Return the states that are worth adding to `states`."""
        candidates = self._always_candidates
        for index in members(self.plans.operators(states)):
            candidates |= self._neighbours(index, self.plans.best(index, states)[1])
        return candidates & ~states

    def _neighbours(self, index: int, read: States) -> States:
        """Return the joins of two inputs of the operator that produces target `index` from the states `read`."""
        if (index, read) not in self._pair_joins:
            target, parts = self.plans.targets[index], self.plans.parts(index, read)
            query = self.query_set.queries[target.query]
            masks = [self.query_set.mask(part.signature, target.query) for part in parts]
            unions = []
            for first, second in combinations(masks, 2) if len(masks) > 2 else ():
                if query.neighbours(first) & second and not (first | second) & query.unmaterializable:
                    unions += variants(self.query_set, target.query, first | second)
            self._pair_joins[index, read] = self.plans.state_set(unions)
        return self._pair_joins[index, read]

    def _swaps(self, states: States) -> Iterator[States]:
        for state in members(states):
            if self._is_exhausted:
                return
            rest = states & ~(1 << state)
            swaps = [rest | 1 << other for other in members(self.candidates(rest)) if other != state]
            yield from sorted(swaps, key=lambda new_states: self.score(new_states, rest))[:MAX_SWAPS]

    def _first_better(self, options: Iterator[States], states: States) -> States | None:
        return next((new_states for new_states in options if self._gain(states, new_states) > 0), None)

    def _gain(self, old_states: States, new_states: States) -> float:
        """Return the improvement in the first field of the score that differs; not above 0 if there is none."""
        for old, new in zip(self.score(old_states), self.score(new_states, old_states), strict=True):
            if old != new:
                return old - new
        return 0.0


def exchange(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Return the best plan found; if none fits, try `exact` in small cases before raising an error."""
    check_windows(model, limits)
    draft = _search(model, order, limits)
    if (load := draft.load(model)).fits(limits):
        return [tidy(model, draft)]
    if len(candidate_states(model.query_set)) > MAX_CANDIDATES:
        raise budget_error(model, limits, load, proved=False)
    return exact(model, order, limits)


def _search(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    search = Exchange(model, limits)
    starts: list[tuple[States, Ranking]] = [(0, "gain")]
    if limits.memory < inf:
        starts.append((0, "gain per byte"))
    with suppress(BudgetError):  # a plan may exist even if the thesis's method finds none
        starts.append((search.plans.state_set(shared_draft(model, order, limits).stored), "gain"))
    ends = [search.search(*start) for start in starts]
    return search.plans.draft(search.swap(search.perturb(min(ends, key=search.score))))
