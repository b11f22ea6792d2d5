"""The join graph: rates and windows of inputs, and the predicates and selectivities between them.

Three kinds of predicates between two inputs lower the number of matches:

- `selectivities` are edges: predicates that a probe can follow, independent of each other (Raghavan et al., 2.1).
- `classes` are columns that are all equal in every result, such as a common key. Every pair of a class is an edge, even if the query
  does not spell it out, but these edges are *not* independent: A = B and B = C imply A = C. A probe's selectivity inside a class is
  1 / max(least distinct count joined so far, distinct count of the next input) (Golab and Özsu, appendix A). The size of a join
  therefore depends on its set of inputs, never on their order.
- `conditions` lower the matches of a pair, but no probe follows them: they are checked once both inputs are joined.

The constructor validates the graph. It must be connected, so that no order needs a cross product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Literal, TypeAlias

from dovetail.optimizer.graph.checks import (
    connected_to,
    require_connected,
    validate_classes,
    validate_counts,
    validate_numbers,
    validate_pairs,
    validate_sizes,
)
from dovetail.optimizer.graph.indexed import IndexedGraph, KeyClass

Pair: TypeAlias = frozenset[str]
Edges: TypeAlias = Mapping[tuple[str, str], float] | Mapping[frozenset[str], float]
Counts: TypeAlias = Mapping[str, float] | Mapping[tuple[str, int], float] | Mapping[str | tuple[str, int], float]
Shape: TypeAlias = Literal["linear", "star", "acyclic", "cyclic", "complete"]
SHAPES: tuple[Shape, ...] = ("linear", "star", "acyclic", "cyclic", "complete")


@dataclass(frozen=True, init=False)
class JoinGraph:
    """Inputs with their rates and windows, and the selectivities between them.

    Parameters
    ----------
    rates
        Tuples per second of each input (λ). Its keys are the inputs' names.
    selectivities
        Fraction of pairs that match (σ), above 0 and at most 1, by pair of inputs: `("A", "B")` or `frozenset("AB")`.
    windows
        Seconds that each input's window spans (W).
    distinct
        Distinct key values in each input's window (v), for the classes: `{"A": 500}`, or `{("A", 1): 500}` for one class of several.
        Without `classes`, the inputs it names share one key. If `distinct` is omitted, the counts of a class come from the
        selectivities inside it: v is the smallest 1/σ of an input's edges, the largest count they all allow, and an edge that is
        more selective than these counts explain keeps the rest as a condition.
    classes
        Groups of inputs with a common key. If distinct counts are given, selectivities inside a class are ignored.
    conditions
        Fraction of pairs that satisfy the conditions that no probe follows; it multiplies with everything else.

    Examples
    --------
    >>> graph = JoinGraph({"A": 10, "B": 20, "C": 5}, {("A", "B"): 0.1, ("B", "C"): 0.5}, {"A": 10, "B": 10, "C": 60})
    >>> graph.shape, graph.extension(["A"], "B")
    ('linear', 20.0)
    >>> common_key = JoinGraph({"A": 10, "B": 1}, {}, {"A": 100, "B": 100}, distinct={"A": 500, "B": 50})
    >>> common_key.selectivity("A", "B")
    0.002
    """

    rates: Mapping[str, float]
    selectivities: Mapping[Pair, float]
    windows: Mapping[str, float]
    distinct: Mapping[tuple[str, int], float]
    """Distinct counts by input and index of the class."""
    classes: tuple[tuple[str, ...], ...]
    conditions: Mapping[Pair, float]

    def __init__(
        self,
        rates: Mapping[str, float],
        selectivities: Edges,
        windows: Mapping[str, float],
        distinct: Counts | None = None,
        classes: Sequence[Collection[str]] | None = None,
        *,
        conditions: Edges | None = None,
    ) -> None:
        checked_rates = validate_numbers("rates", rates)
        checked_windows = validate_numbers("windows", windows, checked_rates)
        validate_sizes(checked_rates, checked_windows)
        edges = validate_pairs("selectivities", selectivities, checked_rates)
        other_conditions = validate_pairs("conditions", conditions or {}, checked_rates)
        key_classes = validate_classes(classes, distinct, checked_rates)
        if distinct is None:
            distinct = counts_from_edges(key_classes, edges)
            for pair, rest in _unexplained(key_classes, distinct, edges).items():
                other_conditions[pair] = other_conditions.get(pair, 1.0) * rest
        counts = validate_counts(key_classes, distinct)
        fields = (checked_rates, edges, checked_windows, counts, key_classes, other_conditions)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)
        require_connected(checked_rates, self.edges)

    @cached_property
    def edges(self) -> frozenset[Pair]:
        """Pairs that a probe can follow: the given edges and all pairs of each class."""
        return frozenset((*self.selectivities, *self.class_pairs))

    @cached_property
    def class_pairs(self) -> frozenset[Pair]:
        """All pairs of each class."""
        return frozenset(frozenset(pair) for inputs in self.classes for pair in combinations(inputs, 2))

    @cached_property
    def factors(self) -> Mapping[Pair, float]:
        """Selectivity of each pair apart from the classes: edges outside the classes times conditions."""
        factors = {pair: value for pair, value in self.selectivities.items() if pair not in self.class_pairs}
        for pair, value in self.conditions.items():
            factors[pair] = factors.get(pair, 1.0) * value
        return factors

    @cached_property
    def indexed(self) -> IndexedGraph:
        """The graph with numbered inputs, as the ordering methods read it."""
        names = tuple(self.rates)
        indexes = {name: index for index, name in enumerate(names)}
        factors = [[1.0] * len(names) for _ in names]
        for pair, value in self.factors.items():
            first, second = (indexes[name] for name in pair)
            factors[first][second] = factors[second][first] = value
        neighbours = [0] * len(names)
        for pair in self.edges:
            first, second = (indexes[name] for name in pair)
            neighbours[first] |= 1 << second
            neighbours[second] |= 1 << first
        classes = [
            KeyClass({indexes[name]: self.distinct[name, class_index] for name in inputs})
            for class_index, inputs in enumerate(self.classes)
        ]
        rates, windows = [self.rates[name] for name in names], [self.windows[name] for name in names]
        return IndexedGraph(names, rates, windows, factors, neighbours, classes)

    @cached_property
    def shape(self) -> Shape:
        """Shape of the graph; conditions count as edges, because they close cycles too."""
        pairs = {*self.edges, *self.conditions}
        count = len(self.rates)
        if len(pairs) >= count:
            return "complete" if len(pairs) == count * (count - 1) // 2 else "cyclic"
        degrees = [sum(name in pair for pair in pairs) for name in self.rates]
        if max(degrees) <= 2:
            return "linear"
        return "star" if max(degrees) == count - 1 else "acyclic"

    def connected(self, joined: Iterable[str], candidate: str) -> bool:
        """Whether a probe can reach `candidate` from the inputs `joined`."""
        return any(frozenset((other, candidate)) in self.edges for other in joined)

    def selectivity(self, first: str, second: str) -> float:
        """Return the fraction of pairs of two inputs that match."""
        return self.extension((first,), second) / (self.rates[second] * self.windows[second])

    def extension(self, joined: Iterable[str], candidate: str) -> float:
        """Return the expected matches of one partial result over `joined` in the window of `candidate`."""
        joined = tuple(joined)
        matches = self.rates[candidate] * self.windows[candidate]
        for other in joined:
            matches *= self.factors.get(frozenset((other, candidate)), 1.0)
        for index, inputs in enumerate(self.classes):
            least = min((self.distinct[name, index] for name in joined if name in inputs), default=inf)
            if candidate in inputs and least < inf:
                matches /= max(least, self.distinct[candidate, index])
        return matches


def counts_from_edges(classes: Sequence[Sequence[str]], edges: Mapping[Pair, float]) -> dict[tuple[str, int], float]:
    """Return, by input and class, the largest distinct count that the input's edges in the class allow.

    Under containment 1/σ of an edge is the larger count of its two inputs, so neither input has more. If a pair belongs to several
    classes, its selectivity is split evenly among them. An input without an edge in a class gets no count.

    >>> counts_from_edges([("A", "B", "C")], {frozenset("AB"): 0.001, frozenset("BC"): 0.01})
    {('A', 0): 1000.0, ('B', 0): 100.0, ('C', 0): 100.0}
    """
    counts: dict[tuple[str, int], float] = {}
    for index, inputs in enumerate(classes):
        for pair in combinations(inputs, 2):
            if (edge := frozenset(pair)) in edges:
                largest = (1 / edges[edge]) ** (1 / sum(edge.issubset(other) for other in classes))
                for name in pair:
                    counts[name, index] = min(largest, counts.get((name, index), inf))
    return counts


def _unexplained(
    classes: Sequence[Sequence[str]], counts: Mapping[tuple[str, int], float], edges: Mapping[Pair, float]
) -> dict[Pair, float]:
    """Return the factor of each selectivity inside the classes that the distinct counts do not explain."""
    unexplained = {}
    for edge, value in edges.items():
        indexes = [index for index, inputs in enumerate(classes) if edge.issubset(inputs)]
        factor = value
        for index in indexes:
            factor *= max(counts[name, index] for name in edge)
        if indexes and factor < 1 - 1e-9:
            unexplained[edge] = factor
    return unexplained


def components(names: Iterable[str], pairs: Collection[Pair]) -> list[set[str]]:
    """Return the connected components of the graph with vertices `names` and edges `pairs`."""
    remaining, parts = list(names), []
    while remaining:
        parts.append(connected_to(remaining[0], pairs))
        remaining = [name for name in remaining if name not in parts[-1]]
    return parts
