"""Plans as sets of materialized joins; the rest of a plan is chosen operator by operator.

Given the materialized joins, operators are independent: the one that produces a sub-join reads those disjoint joins inside it that
make it cheapest. So the cost of a set of joins is the sum of each operator's minimum, and each minimum depends only on the joins
inside its sub-join. Both searches, `exchange` and `exact`, rely on this.

Sub-joins are numbered, and a set of joins is an integer with a bit for each, because a search mostly looks up cached costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft
from dovetail.optimizer.sharing.model.query_set import SubJoin
from dovetail.plan.shared_plan import Load

JoinSet: TypeAlias = int
"""A set of sub-joins, as a bit mask of their indexes."""
MAX_COMBINED = 10
"""The most joins inside one sub-join for which all combinations are tried; beyond, they are added greedily."""


class JoinSetPlans:
    """Costs of sets of materialized joins; results are cached."""

    def __init__(self, model: CostModel, max_combined: int = MAX_COMBINED) -> None:
        self.model = model
        self.query_set = model.query_set
        self._max_combined = max_combined
        self.sub_joins: list[SubJoin] = []
        self._indexes: dict[SubJoin, int] = {}
        self._masks: list[dict[int, int]] = []
        """For each sub-join, the joins inside it with the inputs that they cover."""
        self._inside: list[JoinSet] = []
        self._serving: list[JoinSet] = [0] * len(self.query_set.queries)
        """For each query, the sub-joins that are its whole join."""
        self._above: list[JoinSet] = []
        """For each sub-join, the sub-joins that contain it."""
        self._answering: JoinSet = 0
        """Sub-joins that are the whole join of some query."""
        self._joining_costs: dict[JoinSet, tuple[float, JoinSet]] = {}
        self._requirements: set[tuple[JoinSet, int]] = set()
        """For each distinct answer: the sub-joins that serve it, and the one that is produced if none of them is materialized."""
        self._join_loads: list[Load] = []
        self._costs: dict[tuple[int, JoinSet], float] = {}
        self._best: list[dict[JoinSet, tuple[float, JoinSet]]] = []
        """For each sub-join, by the materialized joins inside it: the least cost of its operator, and the joins that it then reads."""
        queries = range(len(self.query_set.queries))
        self.windows = model.least_windows()
        self.tops = [
            self.index_of(self.query_set.sub_join(query, self.query_set.queries[query].all)) for query in queries
        ]
        self._shared_tops = [self._largest(self._serving[query]) for query in queries]

    # -- indexes ---------------------------------------------------------------------------------------------------------------

    def index_of(self, sub_join: SubJoin) -> int:
        """Return the index of `sub_join`, a new one if it has none."""
        if sub_join not in self._indexes:
            self._indexes[sub_join] = len(self.sub_joins)
            self.sub_joins.append(sub_join)
            self._join_loads.append(self.model.materialization(sub_join))
            self._masks.append({})
            self._inside.append(0)
            self._above.append(0)
            self._best.append({})
            self._relate(len(self.sub_joins) - 1)
        return self._indexes[sub_join]

    def join_set(self, sub_joins: Iterable[SubJoin]) -> JoinSet:
        """Return the set of `sub_joins` as a bit mask."""
        return sum(1 << index for index in {self.index_of(sub_join) for sub_join in sub_joins})

    def _relate(self, new: int) -> None:
        """Record the sub-joins that contain the new one, those inside it, and the queries that it answers."""
        for query in range(len(self.query_set.queries)):
            if self.query_set.serves(self.sub_joins[new], query):
                self._serving[query] |= 1 << new
                self._answering |= 1 << new
                self._requirements.clear()
        for other in range(new):
            for part, whole in ((new, other), (other, new)):
                if mask := self.query_set.fits(self.sub_joins[part], self.sub_joins[whole]):
                    self._masks[whole][part] = mask
                    self._inside[whole] |= 1 << part
                    self._above[part] |= 1 << whole

    def _largest(self, among: JoinSet) -> int:
        return max(members(among), key=lambda index: self.sub_joins[index].window_seconds)

    # -- costs -----------------------------------------------------------------------------------------------------------------

    def load(self, joins: JoinSet, near: JoinSet | None = None) -> Load:
        """Return the load of the best plan that materializes exactly `joins`.

        It is computed from that of a similar set, `near`.

        The cost of `near` is always computed as a whole: differences of differences would accumulate rounding errors.
        """
        joining = self._joining(joins)[0] if near is None else self._joining_near(joins, near)
        return self.storage_load(joins).plus(Load(joining))

    def _joining(self, joins: JoinSet) -> tuple[float, JoinSet]:
        """Return the CPU of all operators, and the set of their sub-joins."""
        if joins not in self._joining_costs:
            produced = self.operators(joins)
            self._joining_costs[joins] = sum(self.best(index, joins)[0] for index in members(produced)), produced
        return self._joining_costs[joins]

    def _joining_near(self, joins: JoinSet, near: JoinSet) -> float:
        cpu, near_sub_joins = self._joining(near)
        changed = joins ^ near
        sub_joins = self.operators(joins) if changed & self._answering else near_sub_joins ^ changed
        affected = near_sub_joins ^ sub_joins
        for join in members(changed):
            affected |= self._above[join]
        removed = sum(self.best(index, near)[0] for index in members(affected & near_sub_joins))
        return cpu - removed + sum(self.best(index, joins)[0] for index in members(affected & sub_joins))

    def storage_load(self, joins: JoinSet) -> Load:
        """Return the load of keeping all windows and `joins`."""
        return Load.total((self.windows, *map(self._join_loads.__getitem__, members(joins))))

    def operators(self, joins: JoinSet) -> JoinSet:
        """Return the sub-joins to produce: `joins`, and each query's answer unless one of them serves it."""
        if not self._requirements:
            self._requirements.update(zip(self._serving, self._shared_tops, strict=True))
        produced = joins
        for serving, top in self._requirements:
            if not serving & joins:
                produced |= 1 << top
        return produced

    def answer(self, query: int, joins: JoinSet) -> int:
        """Return the sub-join that answers `query`.

        It is a materialized join, or the widest whole join that serves the query.
        """
        serving = self._serving[query] & joins
        return self._largest(serving) if serving else self._shared_tops[query]

    def best(self, index: int, joins: JoinSet) -> tuple[float, JoinSet]:
        """Return the least cost of the operator that produces sub-join `index`.

        The materialized joins that it reads are returned, too.
        """
        inside, cached = joins & self._inside[index], self._best[index]
        if inside not in cached:
            is_small = inside.bit_count() <= self._max_combined
            search = self._best_combination if is_small else self._greedy_combination
            cached[inside] = search(index, inside)
        return cached[inside]

    def parts(self, index: int, read: JoinSet) -> tuple[SubJoin, ...]:
        """Return the inputs of the operator that produces sub-join `index`.

        It reads the materialized joins `read`.
        """
        return self.model.parts(self.sub_joins[index], [self.sub_joins[join] for join in members(read)])

    def draft(self, joins: JoinSet) -> Draft:
        """Return the best plan that materializes exactly `joins`."""
        indexes = sorted(members(self.operators(joins)), key=lambda index: self.sub_joins[index].mask.bit_count())
        parts = {self.sub_joins[index]: self.parts(index, self.best(index, joins)[1]) for index in indexes}
        answers = {query: self.sub_joins[self.answer(query, joins)] for query in range(len(self.tops))}
        return Draft(parts, answers)

    @property
    def priced(self) -> int:
        """Number of operators priced so far, a measure of the search's effort."""
        return len(self._costs)

    def _cost(self, index: int, read: JoinSet) -> float:
        if (index, read) not in self._costs:
            self._costs[index, read] = self.model.cpu(self.sub_joins[index], self.parts(index, read))
        return self._costs[index, read]

    def _best_combination(self, index: int, inside: JoinSet) -> tuple[float, JoinSet]:
        """Try all disjoint sets of joins; the best without the first one comes from a recursive call."""
        if not inside:
            return self._cost(index, 0), 0
        first = inside & -inside
        best = self.best(index, inside ^ first)
        for others in self._disjoint_sets(index, inside ^ first, self._masks[index][first.bit_length() - 1]):
            if (cost := self._cost(index, first | others)) < best[0]:
                best = (cost, first | others)
        return best

    def _disjoint_sets(self, index: int, joins: JoinSet, covered: int) -> Iterator[JoinSet]:
        """Yield all sets of disjoint `joins` that do not overlap the inputs `covered`."""
        while joins:
            first = joins & -joins
            joins ^= first
            mask = self._masks[index][first.bit_length() - 1]
            if not mask & covered:
                for others in self._disjoint_sets(index, joins, covered | mask):
                    yield first | others
        yield 0

    def _greedy_combination(self, index: int, inside: JoinSet) -> tuple[float, JoinSet]:
        read, covered, cost = 0, 0, self._cost(index, 0)
        while True:
            free = [join for join in members(inside) if not self._masks[index][join] & covered]
            costs = {join: self._cost(index, read | 1 << join) for join in free}
            if not free or min(costs.values()) >= cost:
                return cost, read
            chosen = min(free, key=costs.__getitem__)
            read, covered, cost = read | 1 << chosen, covered | self._masks[index][chosen], costs[chosen]
