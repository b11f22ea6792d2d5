"""The join graph: how fast each input comes, how much its window holds, which inputs can be probed from which, and how selectively.

Three kinds of knowledge about a pair of inputs lower the number of matches, and they are not the same:

- `selectivities` are edges: conditions that a probe can follow, independent of each other (Raghavan et al., 2.1).
- `classes` are columns that are all equal in every result, such as a common key. Every pair of a class is an edge, whether or not the
  query spells it out, but these edges are *not* independent: once A = B and B = C are known, A = C says nothing new. A probe's
  selectivity inside a class is 1 / max(least distinct count joined so far, distinct count of the next) (Golab and Özsu, appendix A).
  So the size of a join depends on which inputs it holds, never on the order in which they came.
- `conditions` lower the matches of a pair but lead nowhere: they are checked when both inputs are there, and no probe follows them.

A graph is checked when it is made. It must be connected, so that no order needs a cross product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Literal, TypeAlias

from dovetail.optimizer.graph.checks import (
    checked_classes,
    checked_counts,
    checked_numbers,
    checked_pairs,
    checked_sizes,
    reached,
    refuse_unconnected,
)
from dovetail.optimizer.graph.indexed import Indexed, KeyClass

Pair: TypeAlias = frozenset[str]
Edges: TypeAlias = Mapping[tuple[str, str], float] | Mapping[frozenset[str], float]
Counts: TypeAlias = Mapping[str, float] | Mapping[tuple[str, int], float] | Mapping[str | tuple[str, int], float]
Shape: TypeAlias = Literal["linear", "star", "acyclic", "cyclic", "complete"]
SHAPES: tuple[Shape, ...] = ("linear", "star", "acyclic", "cyclic", "complete")


@dataclass(frozen=True, init=False)
class JoinGraph:
    """Inputs, how much their windows hold, and how selectively they join.

    Parameters
    ----------
    rates
        Tuples per second of each input (λ). Its keys are the inputs' names.
    selectivities
        The share of pairs that match (σ), above 0 and at most 1, by pair of inputs: `("A", "B")` or `frozenset("AB")`.
    windows
        Seconds that each input's window spans (W).
    distinct
        Distinct key values in each input's window (v), for the classes: `{"A": 500}`, or `{("A", 1): 500}` for one class of several.
        Without `classes`, the inputs it names share one key. Left out, the counts of a class come from the selectivities inside
        it: v is the smallest 1/σ of an input's edges, the largest count they all allow, and an edge that is more selective than
        these counts explain keeps the rest as a condition.
    classes
        Groups of inputs with a common key. Where distinct counts are given, selectivities inside a class are not used.
    conditions
        The share of pairs that meet conditions which no probe follows; they multiply with everything else.

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
    """Distinct counts by input and number of the class."""
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
        speeds = checked_numbers("rates", rates)
        spans = checked_numbers("windows", windows, speeds)
        checked_sizes(speeds, spans)
        edges = checked_pairs("selectivities", selectivities, speeds)
        others = checked_pairs("conditions", conditions or {}, speeds)
        keyed = checked_classes(classes, distinct, speeds)
        if distinct is None:
            distinct = counts_from_edges(keyed, edges)
            for pair, rest in _unexplained(keyed, distinct, edges).items():
                others[pair] = others.get(pair, 1.0) * rest
        counts = checked_counts(keyed, distinct)
        fields = (speeds, edges, spans, counts, keyed, others)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)
        refuse_unconnected(speeds, self.edges)

    @cached_property
    def edges(self) -> frozenset[Pair]:
        """Pairs that a probe can follow: given edges and all pairs of each class."""
        return frozenset((*self.selectivities, *self.implied))

    @cached_property
    def implied(self) -> frozenset[Pair]:
        """All pairs of each class."""
        return frozenset(frozenset(pair) for inputs in self.classes for pair in combinations(inputs, 2))

    @cached_property
    def factors(self) -> Mapping[Pair, float]:
        """What lowers the matches of a pair independently of all else: edges outside the classes, and conditions."""
        factors = {pair: value for pair, value in self.selectivities.items() if pair not in self.implied}
        for pair, value in self.conditions.items():
            factors[pair] = factors.get(pair, 1.0) * value
        return factors

    @cached_property
    def indexed(self) -> Indexed:
        """The graph by number, as the ordering methods read it."""
        names = tuple(self.rates)
        numbers = {name: number for number, name in enumerate(names)}
        factors = [[1.0] * len(names) for _ in names]
        for pair, value in self.factors.items():
            left, right = (numbers[name] for name in pair)
            factors[left][right] = factors[right][left] = value
        near = [0] * len(names)
        for pair in self.edges:
            left, right = (numbers[name] for name in pair)
            near[left] |= 1 << right
            near[right] |= 1 << left
        classes = [
            KeyClass({numbers[name]: self.distinct[name, which] for name in inputs})
            for which, inputs in enumerate(self.classes)
        ]
        rates, windows = [self.rates[name] for name in names], [self.windows[name] for name in names]
        return Indexed(names, rates, windows, factors, near, classes)

    @cached_property
    def shape(self) -> Shape:
        """Linear, star, other acyclic, complete, or other cyclic; conditions count as edges here, for they close cycles too."""
        pairs = {*self.edges, *self.conditions}
        count = len(self.rates)
        if len(pairs) >= count:
            return "complete" if len(pairs) == count * (count - 1) // 2 else "cyclic"
        degrees = [sum(name in pair for pair in pairs) for name in self.rates]
        if max(degrees) <= 2:
            return "linear"
        return "star" if max(degrees) == count - 1 else "acyclic"

    def connected(self, joined: Iterable[str], candidate: str) -> bool:
        """Whether a probe can reach `candidate` from what is joined."""
        return any(frozenset((other, candidate)) in self.edges for other in joined)

    def selectivity(self, first: str, second: str) -> float:
        """Give the share of pairs of two inputs that match."""
        return self.extension((first,), second) / (self.rates[second] * self.windows[second])

    def extension(self, joined: Iterable[str], candidate: str) -> float:
        """Give the expected matches of one partial result over `joined` in the window of `candidate`."""
        before = tuple(joined)
        matches = self.rates[candidate] * self.windows[candidate]
        for other in before:
            matches *= self.factors.get(frozenset((other, candidate)), 1.0)
        for number, inputs in enumerate(self.classes):
            least = min((self.distinct[name, number] for name in before if name in inputs), default=inf)
            if candidate in inputs and least < inf:
                matches /= max(least, self.distinct[candidate, number])
        return matches


def counts_from_edges(classes: Sequence[Sequence[str]], edges: Mapping[Pair, float]) -> dict[tuple[str, int], float]:
    """Give each input of each class the largest distinct count that the selectivities of its edges inside the class allow.

    Under containment 1/σ of an edge is the larger count of its two inputs, so no input on it has more. A selectivity that several
    classes share is split evenly among them. An input without an edge in a class gets no count.

    >>> counts_from_edges([("A", "B", "C")], {frozenset("AB"): 0.001, frozenset("BC"): 0.01})
    {('A', 0): 1000.0, ('B', 0): 100.0, ('C', 0): 100.0}
    """
    counts: dict[tuple[str, int], float] = {}
    for number, inputs in enumerate(classes):
        for pair in combinations(inputs, 2):
            if (edge := frozenset(pair)) in edges:
                most = (1 / edges[edge]) ** (1 / sum(edge.issubset(other) for other in classes))
                for name in pair:
                    counts[name, number] = min(most, counts.get((name, number), inf))
    return counts


def _unexplained(
    classes: Sequence[Sequence[str]], counts: Mapping[tuple[str, int], float], edges: Mapping[Pair, float]
) -> dict[Pair, float]:
    """The part of each selectivity inside the classes that their counts leave over."""
    rest = {}
    for edge, value in edges.items():
        numbers = [number for number, inputs in enumerate(classes) if edge.issubset(inputs)]
        left = value
        for number in numbers:
            left *= max(counts[name, number] for name in edge)
        if numbers and left < 1 - 1e-9:
            rest[edge] = left
    return rest


def components(names: Iterable[str], pairs: Collection[Pair]) -> list[set[str]]:
    """Split inputs into those that are connected by `pairs`."""
    left, parts = list(names), []
    while left:
        parts.append(reached(left[0], pairs))
        left = [name for name in left if name not in parts[-1]]
    return parts
