"""How selectively the aliases of a query match, pair by pair, as hints have it; and the same fitted in place to what probes found.

A query is planned again while it runs, and each probe that was measured changes a few pairs. So what does not change is looked up once
(`GraphShape`), and a changed pair is worked in without touching the others: a graph is made when all is fitted, not after each probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from dovetail.optimizer.graph.join_graph import Pair, components
from dovetail.query.model import JoinQuery
from dovetail.stats.probes import ProbeKey

DEFAULT_EQUALITY = 0.01
DEFAULT_CONDITION = 0.3
SMALLEST = 1e-12
"""The least share of pairs that is believed; seven hundred conditions would multiply to nothing."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class GraphShape:
    """What a query says of pairs of its aliases."""

    classes: tuple[tuple[str, ...], ...]
    """Aliases with a common key."""
    within: Mapping[Pair, tuple[int, ...]]
    """For each pair with a common key the numbers of its classes."""
    conditions: Mapping[Pair, float]
    """For each pair with other conditions the share that is assumed to meet them."""
    edges: frozenset[Pair]
    """Those between aliases that no equality connects: a probe has to follow them."""
    related: Mapping[str, Mapping[str, Pair]]
    """For each alias the others that it has to do with."""
    own: Mapping[str, tuple[int, ...]]
    """For each alias the numbers of its classes."""

    @classmethod
    def of(cls, query: JoinQuery) -> GraphShape:
        joined = [tuple(dict.fromkeys(key.alias for key in each.keys)) for each in query.classes]
        classes = tuple(inputs for inputs in joined if len(inputs) > 1)
        within: dict[Pair, tuple[int, ...]] = {}
        for number, inputs in enumerate(classes):
            for both in combinations(inputs, 2):
                within[frozenset(both)] = (*within.get(frozenset(both), ()), number)
        conditions = _conditions(query)
        apart = {name: number for number, part in enumerate(components(query.aliases, within.keys())) for name in part}
        edges = frozenset(pair for pair in conditions if len({apart[name] for name in pair}) > 1)
        related: dict[str, dict[str, Pair]] = {alias: {} for alias in query.aliases}
        for pair in {**within, **conditions}:
            left, right = sorted(pair)
            related[left][right] = related[right][left] = pair
        own = {
            alias: tuple(number for number, inputs in enumerate(classes) if alias in inputs) for alias in query.aliases
        }
        return cls(classes, within, conditions, edges, related, own)


def _conditions(query: JoinQuery) -> dict[Pair, float]:
    shares: dict[Pair, float] = {}
    for condition in query.conditions:
        pairs = [frozenset(pair) for pair in combinations(condition.aliases, 2)]
        for pair in pairs:
            shares[pair] = max(shares.get(pair, 1.0) * DEFAULT_CONDITION ** (1 / len(pairs)), SMALLEST)
    return shares


class Shares:
    """The shares of pairs that match, by hints, which may be changed."""

    def __init__(self, shape: GraphShape, hints: Mapping[Pair, float]) -> None:
        self.shape = shape
        self._hints: dict[Pair, float] = {}
        self._most: list[dict[str, dict[str, float]]] = [{} for _ in shape.classes]
        """By class, alias and other alias: the largest distinct count that the hint about the two allows."""
        self._counts: list[dict[str, float]] = [{} for _ in shape.classes]
        """By class and alias: the largest count that all its hints allow."""
        self._usual = [1 / DEFAULT_EQUALITY] * len(shape.classes)
        """By class: the count of an alias without a hint, because a common key has one domain."""
        for pair, value in hints.items():
            self.set(pair, value)

    def set(self, pair: Pair, value: float) -> None:
        """Change a hint: which share of a pair matches, all conditions between the two included."""
        numbers = self.shape.within.get(pair, ())
        if not numbers and pair not in self.shape.conditions:
            return
        self._hints[pair] = value
        left, right = sorted(pair)
        for number in numbers:
            most, counts = self._most[number], self._counts[number]
            # A share that several classes have together is split evenly among them.
            allowed = (1 / value) ** (1 / len(numbers))
            most.setdefault(left, {})[right] = most.setdefault(right, {})[left] = allowed
            counts[left], counts[right] = min(most[left].values()), min(most[right].values())
            self._usual[number] = max(counts.values())

    @property
    def hints(self) -> dict[Pair, float]:
        """The shares of pairs that were given or fitted."""
        return dict(self._hints)

    def count(self, number: int, alias: str) -> float:
        """The distinct values of a class that an alias has."""
        return self._counts[number].get(alias, self._usual[number])

    def factor(self, pair: Pair) -> float:
        """The share of a pair that its conditions leave, common keys apart."""
        hint, numbers = self._hints.get(pair), self.shape.within.get(pair)
        if hint is None or numbers is None:
            return self.shape.conditions.get(pair, 1.0) if hint is None else hint
        rest = hint / self._keyed(pair, numbers)
        return 1.0 if rest > 1 - _ROUNDING else rest

    def _keyed(self, pair: Pair, numbers: tuple[int, ...]) -> float:
        """The share of a pair that has equal keys."""
        share = 1.0
        for number in numbers:
            share /= max(self.count(number, alias) for alias in pair)
        return share

    @property
    def factors(self) -> dict[Pair, float]:
        """All pairs that have more to say than their common keys do."""
        return {pair: self.factor(pair) for pair in {**self.shape.conditions, **self._hints}}

    @property
    def counts(self) -> dict[tuple[str, int], float]:
        """Distinct values by alias and class."""
        classes = enumerate(self.shape.classes)
        return {(alias, number): self.count(number, alias) for number, inputs in classes for alias in inputs}

    def fit(self, step: ProbeKey, share: float) -> None:
        """Scale the pairs that lead to a step, so that together they are what was found.

        Of a common key, the matches of the next alias depend on the one with the fewest values before it.
        """
        joined, alias = step
        shape, related = self.shape, self.shape.related[alias]
        expected, binding = 1.0, set[str]()
        for other in joined & related.keys():
            factor = self.factor(related[other])
            if factor < 1 or related[other] in shape.edges:
                expected *= factor
                binding.add(other)
        for number in shape.own[alias]:
            inside = [(self.count(number, other), other) for other in joined.intersection(shape.classes[number])]
            if inside:
                least, other = min(inside)
                expected /= max(least, self.count(number, alias))
                binding.add(other)
        if not binding:
            return
        scale = (share / expected) ** (1 / len(binding))
        pairs = [related[other] for other in sorted(binding)]
        fitted = [self.factor(pair) * self._keyed(pair, shape.within.get(pair, ())) * scale for pair in pairs]
        for pair, value in zip(pairs, fitted, strict=True):
            self.set(pair, min(1.0, max(SMALLEST, value)))
