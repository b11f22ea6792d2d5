"""`exchange`, the default strategy: local search over sets of materialized joins.

The set of materialized joins determines the rest of the plan (see `join_sets`). The search changes that set while the plan improves:
first less excess memory, then less CPU, then less memory. A CPU limit does not guide it: with or without one, it looks for the plan of
least CPU within the memory. It starts from the empty set (all joins n-ary), ranked by gain and by gain per byte, because under a
memory limit many small joins may beat a large one; and from the joins of the thesis's plan, if there is one, so it is never worse
than `shared` in CPU. Then it climbs from random changes of the best plan so far, with a fixed seed; a join added there may displace
joins that save less CPU per byte. Finally it swaps single joins.

Candidates are the joins of two neighbouring inputs of a current operator (as in the thesis's state selection), the common sub-joins of
two queries, and, if there are few, all connected sub-joins. The gain of a join is cached between steps and recomputed in the order of
its last value (lazy greedy), because a join rarely gains from the presence of others.

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
from dovetail.optimizer.sharing.search.exact import MAX_CANDIDATES, candidate_joins, exact
from dovetail.optimizer.sharing.search.join_sets import JoinSet, JoinSetPlans
from dovetail.optimizer.sharing.thesis.shared import shared_draft
from dovetail.plan.shared_plan import Load

MAX_SWAPS = 12
"""The most replacements tried for each join."""
DIGITS = 5
"""Significant digits of scores: of plans with the same rounded CPU, the one with less memory is better. Rounded scores have a strict
order, so the search terminates."""
MAX_PRICED = 1500
"""Operators priced from each start before the search stops; only large sets of queries reach it."""
MAX_PERTURBED = 8000
"""Plans scored after random changes; four times as many while no plan fits."""
ROUNDS = 50
"""The most random changes tried."""
KEPT_FRACTIONS, ADDED_JOINS = (0.0, 0.5, 0.75), 3
"""Fractions of the best plan's joins that a random change keeps, and the number of joins that it adds."""
SMALLEST_MEMORY = 1e-9
"""Bytes of a join whose unit costs are zero: the gain per byte is then large, not infinite."""
Ranking: TypeAlias = Literal["gain", "gain per byte"]


class Score(NamedTuple):
    """Quality of a plan, compared field by field; smaller is better."""

    excess: float
    cpu: float
    memory: float


class Exchange:
    """A search under one budget."""

    def __init__(self, model: CostModel, limits: Load) -> None:
        self.plans = JoinSetPlans(model)
        self.query_set = model.query_set
        self.limits = limits
        self._always_candidates = self.plans.join_set(
            [*common_subjoins(self.query_set), *all_candidates_if_few(self.query_set)]
        )
        self._scores: dict[JoinSet, Score] = {}
        self._pair_joins: dict[tuple[int, JoinSet], JoinSet] = {}
        self._priced_limit = 0

    def score(self, joins: JoinSet, near: JoinSet | None = None) -> Score:
        """Return the score of a set of joins; `near` is a similar set that has been scored."""
        if joins not in self._scores:
            load = self.plans.load(joins, near)
            excess = 0.0 if Load(0.0, load.memory).fits(self.limits) else load.memory / self.limits.memory - 1
            self._scores[joins] = Score(*(float(f"{value:.{DIGITS}g}") for value in (excess, *load)))
        return self._scores[joins]

    def search(self, start: JoinSet, by: Ranking = "gain") -> JoinSet:
        """Add and remove joins while that helps."""
        joins = start
        self._priced_limit = self.plans.priced + MAX_PRICED
        while True:
            joins = self._grow(joins, by)
            removals = (joins & ~(1 << join) for join in members(joins))
            better = self._first_better(removals, joins)
            if better is None:
                return joins
            joins = better

    def swap(self, joins: JoinSet) -> JoinSet:
        """Swap single joins while that helps."""
        while (better := self._first_better(self._swaps(joins), joins)) is not None:
            joins = self.search(better)
        return joins

    def perturb(self, joins: JoinSet) -> JoinSet:
        """Climb from random changes of the best plan so far."""
        rng, scored = random.Random(0), len(self._scores)  # noqa: S311 - the same plan every time
        for _ in range(ROUNDS):
            limit = MAX_PERTURBED if self.plans.load(joins).fits(self.limits) else 4 * MAX_PERTURBED
            if len(self._scores) - scored > limit:
                break
            other = self._climb(self._mutate(joins, rng), rng)
            joins = min(joins, other, key=self.score)
        return joins

    def _mutate(self, joins: JoinSet, rng: random.Random) -> JoinSet:
        """Keep a random part of `joins`, and add a few candidates."""
        fraction, candidates = rng.choice(KEPT_FRACTIONS), list(members(self.candidates(joins)))
        remaining = [join for join in members(joins) if rng.random() < fraction]
        added = rng.sample(candidates, min(ADDED_JOINS, len(candidates)))
        return self._fit_memory(sum(1 << join for join in (*remaining, *added)))

    def _climb(self, joins: JoinSet, rng: random.Random) -> JoinSet:
        """Add or remove joins in random order while that helps; an added join may displace others."""
        while True:
            old_joins, changes = joins, list(members(self.candidates(joins) | joins))
            for join in rng.sample(changes, len(changes)):
                new_joins = self._fit_memory(joins ^ 1 << join, joins)
                if self._gain(joins, new_joins) > 0:
                    joins = new_joins
            if joins == old_joins:
                return joins

    def _fit_memory(self, joins: JoinSet, near: JoinSet | None = None) -> JoinSet:
        """Drop joins until the rest fits the memory, first those that save the least CPU per byte."""
        while self.score(joins, near).excess:
            cpu = self.score(joins).cpu
            costs = {
                join: (self.score(joins & ~(1 << join), joins).cpu - cpu) / self._price(join, "gain per byte")
                for join in members(joins)
            }
            joins, near = joins & ~(1 << min(costs, key=costs.__getitem__)), joins
        return joins

    def _grow(self, joins: JoinSet, by: Ranking) -> JoinSet:
        """Add joins, the most promising first, while that helps."""
        promises = dict.fromkeys(members(self.candidates(joins)), inf)
        while True:
            best, largest = None, 0.0
            for join in sorted(promises, key=promises.__getitem__, reverse=True):
                if promises[join] <= largest or self._is_exhausted:
                    break  # a join rarely gains more than it did before
                promises[join] = self._gain(joins, joins | 1 << join) / self._price(join, by)
                if promises[join] > largest:
                    best, largest = join, promises[join]
            if best is None:
                return joins
            joins |= 1 << best
            new_promises = {join: inf for join in members(self.candidates(joins)) if join not in promises}
            promises = {
                **{join: gain for join, gain in promises.items() if join != best and gain > 0},
                **new_promises,
            }

    @property
    def _is_exhausted(self) -> bool:
        return self.plans.priced > self._priced_limit

    def _price(self, join: int, by: Ranking) -> float:
        if by == "gain":
            return 1.0
        return max(self.plans.model.materialization(self.plans.sub_joins[join]).memory, SMALLEST_MEMORY)

    def candidates(self, joins: JoinSet) -> JoinSet:
        """Return the joins that are worth adding to `joins`."""
        candidates = self._always_candidates
        for index in members(self.plans.operators(joins)):
            candidates |= self._neighbours(index, self.plans.best(index, joins)[1])
        return candidates & ~joins

    def _neighbours(self, index: int, read: JoinSet) -> JoinSet:
        """Return the joins of two inputs of the operator that produces sub-join `index` from the joins `read`."""
        if (index, read) not in self._pair_joins:
            sub_join, parts = self.plans.sub_joins[index], self.plans.parts(index, read)
            query = self.query_set.queries[sub_join.query]
            masks = [self.query_set.mask(part.signature, sub_join.query) for part in parts]
            unions = []
            for first, second in combinations(masks, 2) if len(masks) > 2 else ():
                if query.neighbours(first) & second and not (first | second) & query.unmaterializable:
                    unions += variants(self.query_set, sub_join.query, first | second)
            self._pair_joins[index, read] = self.plans.join_set(unions)
        return self._pair_joins[index, read]

    def _swaps(self, joins: JoinSet) -> Iterator[JoinSet]:
        for join in members(joins):
            if self._is_exhausted:
                return
            rest = joins & ~(1 << join)
            swaps = [rest | 1 << other for other in members(self.candidates(rest)) if other != join]
            yield from sorted(swaps, key=lambda new_joins: self.score(new_joins, rest))[:MAX_SWAPS]

    def _first_better(self, options: Iterator[JoinSet], joins: JoinSet) -> JoinSet | None:
        return next((new_joins for new_joins in options if self._gain(joins, new_joins) > 0), None)

    def _gain(self, old_joins: JoinSet, new_joins: JoinSet) -> float:
        """Return the improvement in the first field of the score that differs; not above 0 if there is none."""
        for old, new in zip(self.score(old_joins), self.score(new_joins, old_joins), strict=True):
            if old != new:
                return old - new
        return 0.0


def exchange(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Return the best plan found; if none fits, try `exact` in small cases before raising an error."""
    check_windows(model, limits)
    draft = _search(model, order, limits)
    if (load := draft.load(model)).fits(limits):
        return [tidy(model, draft)]
    if len(candidate_joins(model.query_set)) > MAX_CANDIDATES:
        raise budget_error(model, limits, load, proved=False)
    return exact(model, order, limits)


def _search(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    search = Exchange(model, limits)
    starts: list[tuple[JoinSet, Ranking]] = [(0, "gain")]
    if limits.memory < inf:
        starts.append((0, "gain per byte"))
    with suppress(BudgetError):  # a plan may exist even if the thesis's method finds none
        starts.append((search.plans.join_set(shared_draft(model, order, limits).materialized), "gain"))
    ends = [search.search(*start) for start in starts]
    return search.plans.draft(search.swap(search.perturb(min(ends, key=search.score))))
