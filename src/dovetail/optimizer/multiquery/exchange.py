"""`exchange`: local search over the set of stored sub-joins; our own, and the default.

Once it is known *which* sub-joins are stored, everything else follows (see `states`). So the search adds, removes and swaps
states while the plan gets better: first less over the budget, then less CPU, then less memory. It starts from nothing (all n-ary
joins) and from the states of the thesis's plan, if that found one, so it is never worse than `shared` in CPU.

States worth trying are the joins of two neighbouring inputs of a current operator (as in state selection), what two queries have in
common, and, where there are few, all connected sub-joins. What a state gains is kept between steps and taken anew in the order of its
promise (lazy greedy), since states rarely gain by the presence of others. From nothing the search goes twice: by gain, and by gain per
byte, because under a memory limit many small states may beat a large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from math import inf
from typing import Literal, NamedTuple

from dovetail.errors import BudgetError
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft
from dovetail.optimizer.multiquery.shared import shared
from dovetail.optimizer.multiquery.states import StatePlans, States
from dovetail.optimizer.multiquery.workload import Target, Workload
from dovetail.plan.global_plan import Load

ALL_STATES = 200
"""Connected sub-joins of all queries together up to which each is tried."""
SWAPPED = 12
"""Newcomers that are tried in place of each state."""
EPSILON = 1e-9


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
        self._always = [*_common(self.workload), *_all_small(self.workload)]

    def score(self, states: States) -> Score:
        load = self.plans.load(states)
        excess = max(0.0, load.cpu / self.limits.cpu - 1) + max(0.0, load.memory / self.limits.memory - 1)
        return Score(excess if excess > EPSILON else 0.0, *load)

    def search(self, start: States, by: Literal["gain", "gain per byte"] = "gain") -> States:
        """Add, remove and swap states while that helps."""
        states, score = start, self.score(start)
        while True:
            states, score = self._grown(states, score, by)
            following = self._first_better(self._removals(states), score) or self._first_better(
                self._swaps(states), score
            )
            if following is None:
                return states
            states, score = following

    def _grown(self, states: States, score: Score, by: str) -> tuple[States, Score]:
        """Add states, the most promising first, while one of them helps."""
        promise = dict.fromkeys(self.candidates(states), inf)
        while promise:
            best: tuple[float, Target, Score] | None = None
            for state in sorted(promise, key=lambda each: -promise[each]):
                if best is not None and promise[state] <= best[0]:
                    break
                found = self.score(states | {state})
                gain = _gain(score, found) / (self.plans.model.state(state).memory if by == "gain per byte" else 1.0)
                promise[state] = gain
                if gain > 0 and (best is None or gain > best[0]):
                    best = (gain, state, found)
            if best is None:
                return states, score
            states, score = states | {best[1]}, best[2]
            fresh = [state for state in self.candidates(states) if state not in promise]
            promise |= dict.fromkeys(fresh, inf)
            promise = {state: worth for state, worth in promise.items() if state not in states and worth > 0}
        return states, score

    def candidates(self, states: States) -> list[Target]:
        """States worth adding to some."""
        found = dict.fromkeys(self._always)
        for target in sorted(self.plans.operators(states), key=lambda each: (each.query, each.mask, each.spans)):
            for mask in self._neighbours(target, states):
                found |= dict.fromkeys(variants(self.workload, target.query, mask))
        return [state for state in found if state not in states]

    def _neighbours(self, target: Target, states: States) -> Iterator[int]:
        """Joins of two inputs of an operator."""
        query = self.workload.queries[target.query]
        masks = [self.workload.place(part.signature, target.query) for part in self.plans.best(target, states)[1]]
        for first, second in combinations(masks, 2):
            if query.neighbours(first) & second and len(masks) > 2 and not (first | second) & query.unstorable:
                yield first | second

    def _removals(self, states: States) -> Iterator[States]:
        for state in _ordered(states):
            yield states - {state}

    def _swaps(self, states: States) -> Iterator[States]:
        for state in _ordered(states):
            rest = states - {state}
            score = self.score(rest)
            newcomers = [each for each in self.candidates(rest) if each != state]
            worth = {each: _gain(score, self.score(rest | {each})) for each in newcomers}
            for newcomer in sorted(newcomers, key=lambda each: -worth[each])[:SWAPPED]:
                yield rest | {newcomer}

    def _first_better(self, found: Iterator[States], score: Score) -> tuple[States, Score] | None:
        for states in found:
            if _gain(score, after := self.score(states)) > 0:
                return states, after
        return None


def exchange(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Give the best plan that the search finds, whether it fits or not."""
    search = Exchange(model, limits)
    starts: list[tuple[States, Literal["gain", "gain per byte"]]] = [(frozenset(), "gain")]
    if limits.memory < inf:
        starts.append((frozenset(), "gain per byte"))
    with suppress(BudgetError):  # that the thesis's method finds none does not mean that there is none
        starts.append((shared(model, order, limits).stored, "gain"))
    found = [search.search(*start) for start in starts]
    return search.plans.draft(min(found, key=search.score))


def variants(workload: Workload, query: int, mask: int) -> list[Target]:
    """A sub-join with the windows of each query that has it, and with the largest of all."""
    holders = workload.holders(workload.signature(query, mask))
    own = [workload.target(other, workload.place(workload.signature(query, mask), other)) for other in holders]
    return list(dict.fromkeys((workload.widest(query, mask, holders), *own)))


def storable_sets(workload: Workload, query: int, most: int | None = None) -> list[int]:
    """The connected sub-joins of a query that may be stored; all of it only if another query has it inside."""
    bound = workload.queries[query]
    sets = [mask for mask in bound.connected_sets(most) if not mask & bound.unstorable]
    return [mask for mask in sets if mask != bound.all or _inside_another(workload, query)]


def _inside_another(workload: Workload, query: int) -> bool:
    signature = workload.signature(query, workload.queries[query].all)
    return any(workload.place(signature, other) not in (0, bound.all) for other, bound in enumerate(workload.queries))


def _all_small(workload: Workload) -> list[Target]:
    found: dict[Target, None] = {}
    for query in range(len(workload.queries)):
        for mask in storable_sets(workload, query, ALL_STATES):
            found |= dict.fromkeys(variants(workload, query, mask))
            if len(found) > ALL_STATES:
                return []
    return list(found)


def _common(workload: Workload) -> list[Target]:
    """The largest sub-joins that pairs of queries have in common."""
    found: dict[Target, None] = {}
    for first, second in combinations(range(len(workload.queries)), 2):
        for mask in _shared_components(workload, first, second):
            if mask in storable_sets(workload, first, ALL_STATES) or workload.queries[first].all != mask:
                found |= dict.fromkeys(variants(workload, first, mask))
    return list(found)


def _shared_components(workload: Workload, first: int, second: int) -> Iterator[int]:
    bound = workload.queries[first]
    pieces: list[int] = []
    for edge in bound.edges():
        if edge & bound.unstorable or not workload.place(workload.signature(first, edge), second):
            continue
        touching = [piece for piece in pieces if piece & edge]
        pieces = [piece for piece in pieces if not piece & edge] + [sum_masks([*touching, edge])]
    for piece in pieces:
        if workload.place(workload.signature(first, piece), second):
            yield piece


def sum_masks(masks: Sequence[int]) -> int:
    """The union of sets."""
    union = 0
    for mask in masks:
        union |= mask
    return union


def _gain(before: Score, after: Score) -> float:
    """How much better a plan has become, in the first field that differs; not above 0 if it has not."""
    for old, new in zip(before, after, strict=True):
        if abs(old - new) > EPSILON * max(old, new):
            return old - new
    return 0.0


def _ordered(states: States) -> list[Target]:
    return sorted(states, key=lambda each: (each.query, each.mask, each.spans))
