"""A plan as a set of stored sub-joins: the rest is chosen for it, operator by operator.

Given the states, operators do not influence each other: the one that produces a target reads whichever states inside it, none
overlapping, make it cheapest. So the cost of a set of states is the sum of each operator's best, and each of these is a function of
the states inside its target alone. Both searches, `exchange` and `exact`, rest on that.

Targets are numbered, and a set of states is a number with a bit for each: what a search does most is to look up what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft
from dovetail.optimizer.sharing.model.workload import Target
from dovetail.plan.shared_plan import Load

States: TypeAlias = int
"""A set of targets, by number."""
PACKED = 10
"""States inside one target that are combined in every way; beyond, they are added one by one while that helps."""


class StatePlans:
    """Prices sets of states; every answer is remembered."""

    def __init__(self, model: CostModel, packed: int = PACKED) -> None:
        self.model = model
        self.workload = model.workload
        self._packed = packed
        self.targets: list[Target] = []
        self._numbers: dict[Target, int] = {}
        self._masks: list[dict[int, int]] = []
        """For each target the states inside it, with the inputs that they stand for."""
        self._inside: list[States] = []
        self._serving: list[States] = [0] * len(self.workload.queries)
        """For each query the targets that are all it asks for."""
        self._above: list[States] = []
        """For each target those that it is inside of."""
        self._answering: States = 0
        """Targets that are all that some query asks for."""
        self._joined: dict[States, tuple[float, States]] = {}
        self._asked: set[tuple[States, int]] = set()
        """What queries ask for, the same only once: the targets that are all of it, and the one that is produced if none is stored."""
        self._kept: list[Load] = []
        self._costs: dict[tuple[int, States], float] = {}
        self._best: list[dict[States, tuple[float, States]]] = []
        """For each target by the states inside it: what its operator costs at least, and which of them it then reads."""
        everyone = range(len(self.workload.queries))
        self.windows = model.least_windows()
        self.tops = [self.number(self.workload.target(query, self.workload.queries[query].all)) for query in everyone]
        self._shared_tops = [self._largest(self._serving[query]) for query in everyone]

    # -- numbers ---------------------------------------------------------------------------------------------------------------

    def number(self, target: Target) -> int:
        """Give the number of `target`, a new one if need be."""
        if target not in self._numbers:
            self._numbers[target] = len(self.targets)
            self.targets.append(target)
            self._kept.append(self.model.state(target))
            self._masks.append({})
            self._inside.append(0)
            self._above.append(0)
            self._best.append({})
            self._relate(len(self.targets) - 1)
        return self._numbers[target]

    def states(self, targets: Iterable[Target]) -> States:
        """Give a set of `targets` by number."""
        return sum(1 << number for number in {self.number(target) for target in targets})

    def _relate(self, new: int) -> None:
        """Find out which targets the new one is inside of, which are inside it, and which queries it answers."""
        for query in range(len(self.workload.queries)):
            if self.workload.serves(self.targets[new], query):
                self._serving[query] |= 1 << new
                self._answering |= 1 << new
                self._asked.clear()
        for other in range(new):
            for part, whole in ((new, other), (other, new)):
                if mask := self.workload.fits(self.targets[part], self.targets[whole]):
                    self._masks[whole][part] = mask
                    self._inside[whole] |= 1 << part
                    self._above[part] |= 1 << whole

    def _largest(self, among: States) -> int:
        return max(members(among), key=lambda number: self.targets[number].spans)

    # -- costs -----------------------------------------------------------------------------------------------------------------

    def load(self, states: States, near: States | None = None) -> Load:
        """Give CPU and memory of the best plan that stores exactly `states`; beside a set `near` by the operators that differ.

        What is near is always priced as a whole: differences of differences would add up their roundings.
        """
        joining = self._joining(states)[0] if near is None else self._joining_near(states, near)
        return self.kept(states).plus(Load(joining))

    def _joining(self, states: States) -> tuple[float, States]:
        """Give what all operators take, and which these are."""
        if states not in self._joined:
            produced = self.operators(states)
            self._joined[states] = sum(self.best(number, states)[0] for number in members(produced)), produced
        return self._joined[states]

    def _joining_near(self, states: States, near: States) -> float:
        cpu, before = self._joining(near)
        changed = states ^ near
        produced = self.operators(states) if changed & self._answering else before ^ changed
        others = before ^ produced
        for state in members(changed):
            others |= self._above[state]
        gone, come = members(others & before), members(others & produced)
        return cpu - sum(self.best(each, near)[0] for each in gone) + sum(self.best(each, states)[0] for each in come)

    def kept(self, states: States) -> Load:
        """Give what it takes to keep all windows and `states`."""
        return Load.total((self.windows, *map(self._kept.__getitem__, members(states))))

    def operators(self, states: States) -> States:
        """Say what has to be produced: `states`, and each query's answer unless something else is that, too."""
        if not self._asked:
            self._asked.update(zip(self._serving, self._shared_tops, strict=True))
        produced = states
        for serving, top in self._asked:
            if not serving & states:
                produced |= 1 << top
        return produced

    def answer(self, query: int, states: States) -> int:
        """Give the target that answers `query`: a state, or that of a query with the same sub-join and larger windows, or its own."""
        stored = self._serving[query] & states
        return self._largest(stored) if stored else self._shared_tops[query]

    def best(self, number: int, states: States) -> tuple[float, States]:
        """Give what the operator that produces target `number` costs at least, and which of `states` it then reads."""
        inside, known = states & self._inside[number], self._best[number]
        if inside not in known:
            few = inside.bit_count() <= self._packed
            known[inside] = self._combined(number, inside) if few else self._one_by_one(number, inside)
        return known[inside]

    def parts(self, number: int, read: States) -> tuple[Target, ...]:
        """Give the inputs of the operator that produces target `number`: the states `read`, and base windows for the rest."""
        return self.model.parts(self.targets[number], [self.targets[state] for state in members(read)])

    def draft(self, states: States) -> Draft:
        """Give the best plan that stores exactly `states`."""
        numbers = sorted(members(self.operators(states)), key=lambda each: self.targets[each].mask.bit_count())
        joins = {self.targets[number]: self.parts(number, self.best(number, states)[1]) for number in numbers}
        answers = {query: self.targets[self.answer(query, states)] for query in range(len(self.tops))}
        return Draft(joins, answers)

    @property
    def priced(self) -> int:
        """How many operators have been looked at: what a search takes its time for."""
        return len(self._costs)

    def _cost(self, number: int, read: States) -> float:
        if (number, read) not in self._costs:
            self._costs[number, read] = self.model.cpu(self.targets[number], self.parts(number, read))
        return self._costs[number, read]

    def _combined(self, number: int, inside: States) -> tuple[float, States]:
        """Try all sets of states that do not overlap: those without the first state are known from a smaller question."""
        if not inside:
            return self._cost(number, 0), 0
        first = inside & -inside
        best = self.best(number, inside ^ first)
        for others in self._apart(number, inside ^ first, self._masks[number][first.bit_length() - 1]):
            if (cost := self._cost(number, first | others)) < best[0]:
                best = (cost, first | others)
        return best

    def _apart(self, number: int, states: States, taken: int) -> Iterator[States]:
        """Give all sets of `states` that overlap neither each other nor the inputs `taken`."""
        while states:
            first = states & -states
            states ^= first
            mask = self._masks[number][first.bit_length() - 1]
            if not mask & taken:
                for others in self._apart(number, states, taken | mask):
                    yield first | others
        yield 0

    def _one_by_one(self, number: int, inside: States) -> tuple[float, States]:
        read, taken, cost = 0, 0, self._cost(number, 0)
        while True:
            free = [state for state in members(inside) if not self._masks[number][state] & taken]
            costs = {state: self._cost(number, read | 1 << state) for state in free}
            if not free or min(costs.values()) >= cost:
                return cost, read
            chosen = min(free, key=costs.__getitem__)
            read, taken, cost = read | 1 << chosen, taken | self._masks[number][chosen], costs[chosen]
