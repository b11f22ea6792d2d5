"""Plans as sets of materialized joins, or *states*; the rest of a plan is chosen operator by operator.

Given the states, operators are independent: the one that produces a target reads those disjoint states inside it that make it
cheapest. So the cost of a set of states is the sum of each operator's minimum, and each minimum depends only on the states inside its
target. Both searches, `exchange` and `exact`, rely on this.

Targets are numbered, and a set of states is an integer with a bit for each, because a search mostly looks up cached costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft
from dovetail.optimizer.sharing.model.query_set import Target
from dovetail.plan.shared_plan import Load

States: TypeAlias = int
"""A set of targets, as a bit mask of their indexes."""
MAX_COMBINED = 10
"""The most states inside one target for which all combinations are tried; beyond, they are added greedily."""


class StatePlans:
    """Costs of sets of states; results are cached."""

    def __init__(self, model: CostModel, max_combined: int = MAX_COMBINED) -> None:
        self.model = model
        self.query_set = model.query_set
        self._max_combined = max_combined
        self.targets: list[Target] = []
        self._indexes: dict[Target, int] = {}
        self._masks: list[dict[int, int]] = []
        """For each target, the states inside it with the inputs that they cover."""
        self._inside: list[States] = []
        self._serving: list[States] = [0] * len(self.query_set.queries)
        """For each query, the targets that are its whole join."""
        self._above: list[States] = []
        """For each target, the targets that contain it."""
        self._answering: States = 0
        """Targets that are the whole join of some query."""
        self._joining_costs: dict[States, tuple[float, States]] = {}
        self._requirements: set[tuple[States, int]] = set()
        """For each distinct answer: the targets that serve it, and the one that is produced if none of them is a state."""
        self._state_loads: list[Load] = []
        self._costs: dict[tuple[int, States], float] = {}
        self._best: list[dict[States, tuple[float, States]]] = []
        """For each target, by the states inside it: the least cost of its operator, and the states that it then reads."""
        queries = range(len(self.query_set.queries))
        self.windows = model.least_windows()
        self.tops = [
            self.index_of(self.query_set.target(query, self.query_set.queries[query].all)) for query in queries
        ]
        self._shared_tops = [self._largest(self._serving[query]) for query in queries]

    # -- indexes ---------------------------------------------------------------------------------------------------------------

    def index_of(self, target: Target) -> int:
        """Return the index of `target`, a new one if it has none."""
        if target not in self._indexes:
            self._indexes[target] = len(self.targets)
            self.targets.append(target)
            self._state_loads.append(self.model.state(target))
            self._masks.append({})
            self._inside.append(0)
            self._above.append(0)
            self._best.append({})
            self._relate(len(self.targets) - 1)
        return self._indexes[target]

    def state_set(self, targets: Iterable[Target]) -> States:
        """Return the set of `targets` as a bit mask."""
        return sum(1 << index for index in {self.index_of(target) for target in targets})

    def _relate(self, new: int) -> None:
        """Record the targets that contain the new one, those inside it, and the queries that it answers."""
        for query in range(len(self.query_set.queries)):
            if self.query_set.serves(self.targets[new], query):
                self._serving[query] |= 1 << new
                self._answering |= 1 << new
                self._requirements.clear()
        for other in range(new):
            for part, whole in ((new, other), (other, new)):
                if mask := self.query_set.fits(self.targets[part], self.targets[whole]):
                    self._masks[whole][part] = mask
                    self._inside[whole] |= 1 << part
                    self._above[part] |= 1 << whole

    def _largest(self, among: States) -> int:
        return max(members(among), key=lambda index: self.targets[index].spans)

    # -- costs -----------------------------------------------------------------------------------------------------------------

    def load(self, states: States, near: States | None = None) -> Load:
        """Return the load of the best plan with exactly `states`, computed from that of a similar set `near`.

        The cost of `near` is always computed as a whole: differences of differences would accumulate rounding errors.
        """
        joining = self._joining(states)[0] if near is None else self._joining_near(states, near)
        return self.storage_load(states).plus(Load(joining))

    def _joining(self, states: States) -> tuple[float, States]:
        """Return the CPU of all operators, and the set of their targets."""
        if states not in self._joining_costs:
            produced = self.operators(states)
            self._joining_costs[states] = sum(self.best(index, states)[0] for index in members(produced)), produced
        return self._joining_costs[states]

    def _joining_near(self, states: States, near: States) -> float:
        cpu, near_targets = self._joining(near)
        changed = states ^ near
        targets = self.operators(states) if changed & self._answering else near_targets ^ changed
        affected = near_targets ^ targets
        for state in members(changed):
            affected |= self._above[state]
        removed = sum(self.best(index, near)[0] for index in members(affected & near_targets))
        return cpu - removed + sum(self.best(index, states)[0] for index in members(affected & targets))

    def storage_load(self, states: States) -> Load:
        """Return the load of keeping all windows and `states`."""
        return Load.total((self.windows, *map(self._state_loads.__getitem__, members(states))))

    def operators(self, states: States) -> States:
        """Return the targets to produce: `states`, and each query's answer unless a state serves it."""
        if not self._requirements:
            self._requirements.update(zip(self._serving, self._shared_tops, strict=True))
        produced = states
        for serving, top in self._requirements:
            if not serving & states:
                produced |= 1 << top
        return produced

    def answer(self, query: int, states: States) -> int:
        """Return the target that answers `query`: a state, or the widest whole join that serves it."""
        stored = self._serving[query] & states
        return self._largest(stored) if stored else self._shared_tops[query]

    def best(self, index: int, states: States) -> tuple[float, States]:
        """Return the least cost of the operator that produces target `index`, and the states that it reads."""
        inside, cached = states & self._inside[index], self._best[index]
        if inside not in cached:
            is_small = inside.bit_count() <= self._max_combined
            search = self._best_combination if is_small else self._greedy_combination
            cached[inside] = search(index, inside)
        return cached[inside]

    def parts(self, index: int, read: States) -> tuple[Target, ...]:
        """Return the inputs of the operator that produces target `index` and reads the states `read`."""
        return self.model.parts(self.targets[index], [self.targets[state] for state in members(read)])

    def draft(self, states: States) -> Draft:
        """Return the best plan that materializes exactly `states`."""
        indexes = sorted(members(self.operators(states)), key=lambda index: self.targets[index].mask.bit_count())
        joins = {self.targets[index]: self.parts(index, self.best(index, states)[1]) for index in indexes}
        answers = {query: self.targets[self.answer(query, states)] for query in range(len(self.tops))}
        return Draft(joins, answers)

    @property
    def priced(self) -> int:
        """Number of operators priced so far, a measure of the search's effort."""
        return len(self._costs)

    def _cost(self, index: int, read: States) -> float:
        if (index, read) not in self._costs:
            self._costs[index, read] = self.model.cpu(self.targets[index], self.parts(index, read))
        return self._costs[index, read]

    def _best_combination(self, index: int, inside: States) -> tuple[float, States]:
        """Try all disjoint sets of states; the best without the first state comes from a recursive call."""
        if not inside:
            return self._cost(index, 0), 0
        first = inside & -inside
        best = self.best(index, inside ^ first)
        for others in self._disjoint_sets(index, inside ^ first, self._masks[index][first.bit_length() - 1]):
            if (cost := self._cost(index, first | others)) < best[0]:
                best = (cost, first | others)
        return best

    def _disjoint_sets(self, index: int, states: States, covered: int) -> Iterator[States]:
        """Yield all sets of disjoint `states` that do not overlap the inputs `covered`."""
        while states:
            first = states & -states
            states ^= first
            mask = self._masks[index][first.bit_length() - 1]
            if not mask & covered:
                for others in self._disjoint_sets(index, states, covered | mask):
                    yield first | others
        yield 0

    def _greedy_combination(self, index: int, inside: States) -> tuple[float, States]:
        read, covered, cost = 0, 0, self._cost(index, 0)
        while True:
            free = [state for state in members(inside) if not self._masks[index][state] & covered]
            costs = {state: self._cost(index, read | 1 << state) for state in free}
            if not free or min(costs.values()) >= cost:
                return cost, read
            chosen = min(free, key=costs.__getitem__)
            read, covered, cost = read | 1 << chosen, covered | self._masks[index][chosen], costs[chosen]
