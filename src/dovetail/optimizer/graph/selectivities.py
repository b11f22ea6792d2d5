"""Selectivities by pair of aliases: given ones, and those fitted to measured probes.

A running query is replanned often, and each measured probe changes only a few pairs. What never changes is therefore computed once
(`PredicateIndex`), and a changed pair is updated in place: the graph is built after the last fit, not after each probe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

from dovetail.optimizer.graph.join_graph import Pair, components
from dovetail.plan.query_plan import DEFAULT_CONDITION, DEFAULT_EQUALITY
from dovetail.query.model import JoinQuery
from dovetail.stats.probes import ProbeKey

MIN_SELECTIVITY = 1e-12
"""The smallest accepted selectivity; without it, seven hundred conditions would multiply to zero."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PredicateIndex:
    """The predicates of a query by pair of aliases."""

    classes: tuple[tuple[str, ...], ...]
    """Aliases with a common key."""
    classes_of_pair: Mapping[Pair, tuple[int, ...]]
    """Indexes of the classes of each pair with a common key."""
    conditions: Mapping[Pair, float]
    """Assumed selectivity of each pair with other conditions."""
    edges: frozenset[Pair]
    """Conditions between aliases that no equality connects: a probe has to follow them."""
    related: Mapping[str, Mapping[str, Pair]]
    """For each alias, the aliases that it has a predicate with."""
    classes_of_alias: Mapping[str, tuple[int, ...]]
    """Indexes of the classes of each alias."""

    @classmethod
    def of(cls, query: JoinQuery) -> PredicateIndex:
        members = [tuple(dict.fromkeys(key.alias for key in group.keys)) for group in query.classes]
        classes = tuple(inputs for inputs in members if len(inputs) > 1)
        classes_of_pair: dict[Pair, tuple[int, ...]] = {}
        for index, inputs in enumerate(classes):
            for pair in map(frozenset, combinations(inputs, 2)):
                classes_of_pair[pair] = (*classes_of_pair.get(pair, ()), index)
        conditions = _conditions(query)
        parts = components(query.aliases, classes_of_pair.keys())
        component = {alias: index for index, part in enumerate(parts) for alias in part}
        edges = frozenset(pair for pair in conditions if len({component[alias] for alias in pair}) > 1)
        related: dict[str, dict[str, Pair]] = {alias: {} for alias in query.aliases}
        for pair in {**classes_of_pair, **conditions}:
            first, second = sorted(pair)
            related[first][second] = related[second][first] = pair
        classes_of_alias = {
            alias: tuple(index for index, inputs in enumerate(classes) if alias in inputs) for alias in query.aliases
        }
        return cls(classes, classes_of_pair, conditions, edges, related, classes_of_alias)


def _conditions(query: JoinQuery) -> dict[Pair, float]:
    selectivities: dict[Pair, float] = {}
    for condition in query.conditions:
        pairs = [frozenset(pair) for pair in combinations(condition.aliases, 2)]
        for pair in pairs:
            value = selectivities.get(pair, 1.0) * DEFAULT_CONDITION ** (1 / len(pairs))
            selectivities[pair] = max(value, MIN_SELECTIVITY)
    return selectivities


def assumed_pairs(predicates: PredicateIndex, given: Collection[Pair]) -> list[Pair]:
    """Return the pairs of aliases whose selectivity follows from no given one.

    The planner assumes a default for them.

    A given selectivity determines the distinct counts of its classes, and with them all pairs of these classes.
    """
    determined = {index for pair in given for index in predicates.classes_of_pair.get(pair, ())}
    pairs = {**predicates.classes_of_pair, **predicates.conditions}
    return [
        pair
        for pair in pairs
        if pair not in given and not determined.issuperset(predicates.classes_of_pair.get(pair, (None,)))
    ]


class PairSelectivities:
    """Selectivities by pair of aliases: some are given, and `fit` adjusts them; the rest are defaults."""

    def __init__(self, predicates: PredicateIndex, given: Mapping[Pair, float]) -> None:
        self.predicates = predicates
        self._by_pair: dict[Pair, float] = {}
        self._largest: list[dict[str, dict[str, float]]] = [{} for _ in predicates.classes]
        """By class, alias and other alias: the largest distinct count that the pair's selectivity allows."""
        self._counts: list[dict[str, float]] = [{} for _ in predicates.classes]
        """By class and alias: the largest count that all its selectivities allow."""
        self._default_counts = [1 / DEFAULT_EQUALITY] * len(predicates.classes)
        """By class: the count of an alias without a selectivity, because a common key has one domain."""
        for pair, value in given.items():
            self.set(pair, value)

    def set(self, pair: Pair, value: float) -> None:
        """Set the selectivity of a pair, all conditions between the two aliases included."""
        classes = self.predicates.classes_of_pair.get(pair, ())
        if not classes and pair not in self.predicates.conditions:
            return
        self._by_pair[pair] = value
        first, second = sorted(pair)
        for index in classes:
            largest, counts = self._largest[index], self._counts[index]
            # The selectivity of a pair in several classes is split evenly among them.
            allowed = (1 / value) ** (1 / len(classes))
            largest.setdefault(first, {})[second] = largest.setdefault(second, {})[first] = allowed
            counts[first], counts[second] = min(largest[first].values()), min(largest[second].values())
            self._default_counts[index] = max(counts.values())

    @property
    def by_pair(self) -> dict[Pair, float]:
        """The selectivities that were given or fitted."""
        return dict(self._by_pair)

    def count(self, class_index: int, alias: str) -> float:
        """Return the distinct values that an alias has of a class."""
        return self._counts[class_index].get(alias, self._default_counts[class_index])

    def factor(self, pair: Pair) -> float:
        """Return the selectivity of a pair apart from its common keys."""
        selectivity, classes = self._by_pair.get(pair), self.predicates.classes_of_pair.get(pair)
        if selectivity is None:
            return self.predicates.conditions.get(pair, 1.0)
        if classes is None:
            return selectivity
        factor = selectivity / self._key_selectivity(pair, classes)
        return 1.0 if factor > 1 - _ROUNDING else factor

    def _key_selectivity(self, pair: Pair, classes: tuple[int, ...]) -> float:
        """Return the fraction of pairs that have equal keys."""
        selectivity = 1.0
        for index in classes:
            selectivity /= max(self.count(index, alias) for alias in pair)
        return selectivity

    @property
    def factors(self) -> dict[Pair, float]:
        """Factors of all pairs with a condition or a selectivity."""
        return {pair: self.factor(pair) for pair in {**self.predicates.conditions, **self._by_pair}}

    @property
    def counts(self) -> dict[tuple[str, int], float]:
        """Distinct values by alias and class."""
        classes = enumerate(self.predicates.classes)
        return {(alias, index): self.count(index, alias) for index, inputs in classes for alias in inputs}

    def fit(self, probe: ProbeKey, selectivity: float) -> None:
        """Scale the pairs that determine a probe so that their product is the measured `selectivity`.

        Within a class, the matches of the probed alias depend only on the joined alias with the fewest values.
        """
        joined, alias = probe
        predicates, related = self.predicates, self.predicates.related[alias]
        expected, binding = 1.0, set[str]()
        for other in joined & related.keys():
            factor = self.factor(related[other])
            if factor < 1 or related[other] in predicates.edges:
                expected *= factor
                binding.add(other)
        for index in predicates.classes_of_alias[alias]:
            counts = [(self.count(index, other), other) for other in joined.intersection(predicates.classes[index])]
            if counts:
                least, other = min(counts)
                expected /= max(least, self.count(index, alias))
                binding.add(other)
        if not binding:
            return
        scale = (selectivity / expected) ** (1 / len(binding))
        pairs = [related[other] for other in sorted(binding)]
        fitted = [
            self.factor(pair) * self._key_selectivity(pair, predicates.classes_of_pair.get(pair, ())) * scale
            for pair in pairs
        ]
        for pair, value in zip(pairs, fitted, strict=True):
            self.set(pair, min(1.0, max(MIN_SELECTIVITY, value)))
