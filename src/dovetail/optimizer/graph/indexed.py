"""Join graphs as lists and bit masks, for ordering in microseconds per input instead of milliseconds.

A set of inputs is an integer with bit `1 << i` for input `i`. The expected size of a join depends only on its set of inputs, not on
their order: edges and conditions multiply, and a class of equal columns contributes (least distinct count) / (product of distinct
counts), the product of 1 / max(least so far, next) along any order (Golab and Özsu, appendix A). Every exact search relies on this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class KeyClass:
    """A class of equal columns."""

    counts: Mapping[int, float]
    """Distinct values of each input."""
    members: int = field(init=False)
    """Set of its inputs."""
    _ascending: Sequence[tuple[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", sum(1 << index for index in self.counts))
        object.__setattr__(self, "_ascending", sorted(self.counts.items(), key=lambda item: item[1]))

    def least(self, joined: int) -> float:
        """Return the smallest distinct count among the set `joined`; infinity if none is in the class."""
        return next((count for index, count in self._ascending if joined >> index & 1), inf)


@dataclass(frozen=True, slots=True)
class IndexedGraph:
    """A join graph whose inputs are numbered 0 to n - 1."""

    names: tuple[str, ...]
    rates: Sequence[float]
    windows: Sequence[float]
    factors: Sequence[Sequence[float]]
    """Selectivity of each pair of inputs apart from the classes; 1.0 where there is none."""
    neighbours: Sequence[int]
    """For each input, the set of inputs that it can be probed from."""
    classes: Sequence[KeyClass]
    sizes: Sequence[float] = field(init=False)
    """Tuples in each window: rate times window."""
    linked: Sequence[int] = field(init=False)
    """For each input, the set of inputs with a factor other than 1."""

    def __post_init__(self) -> None:
        linked = [sum(1 << other for other, factor in enumerate(row) if factor != 1.0) for row in self.factors]
        object.__setattr__(self, "linked", linked)
        sizes = [rate * window for rate, window in zip(self.rates, self.windows, strict=True)]
        object.__setattr__(self, "sizes", sizes)

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def all(self) -> int:
        """The set of all inputs."""
        return (1 << len(self.names)) - 1

    @property
    def is_complete(self) -> bool:
        """Whether every input can be probed from every other."""
        return all(neighbours | 1 << index == self.all for index, neighbours in enumerate(self.neighbours))

    @property
    def is_acyclic(self) -> bool:
        """Whether the graph is a tree; a condition closes a cycle even if no probe follows it."""
        pairs = sum(
            (neighbours | linked).bit_count() for neighbours, linked in zip(self.neighbours, self.linked, strict=True)
        )
        return pairs == 2 * (self.count - 1)

    def extension(self, joined: int, candidate: int) -> float:
        """Return the expected matches of a partial result over the set `joined` in the window of `candidate`."""
        matches = self.sizes[candidate]
        row = self.factors[candidate]
        for other in members(joined & self.linked[candidate]):
            matches *= row[other]
        for key_class in self.classes:
            if candidate in key_class.counts and joined & key_class.members:
                matches /= max(key_class.least(joined), key_class.counts[candidate])
        return matches

    def selectivity(self, first: int, second: int) -> float:
        """Return the fraction of pairs of the inputs `first` and `second` that match."""
        return self.extension(1 << first, second) / self.sizes[second]


class Prefix:
    """The inputs joined so far, with the expected matches of each remaining input.

    `matches[j]` is `extension(joined, j)` for every input that is not joined yet, updated in O(n) per added input.
    """

    __slots__ = ("_graph", "_least", "joined", "matches", "reach")

    def __init__(self, graph: IndexedGraph, start: int) -> None:
        self._graph = graph
        self._least = [inf] * len(graph.classes)
        self.joined = 0
        self.reach = 0
        """The set of inputs that share an edge with a joined one."""
        self.matches = list(graph.sizes)
        self.add(start)

    def add(self, index: int) -> None:
        """Add an input to the joined set."""
        graph = self._graph
        self.matches = self.matches[:]
        for other in members(graph.linked[index]):
            self.matches[other] *= graph.factors[index][other]
        self.joined |= 1 << index
        self.reach |= graph.neighbours[index]
        for class_index, key_class in enumerate(graph.classes):
            if index in key_class.counts:
                self._narrow(class_index, key_class, key_class.counts[index])

    def _narrow(self, class_index: int, key_class: KeyClass, count: float) -> None:
        old_least = self._least[class_index]
        if old_least <= count:
            return
        new_least = self._least[class_index] = count
        for other, distinct in key_class.counts.items():
            old_divisor = 1.0 if old_least == inf else max(old_least, distinct)
            self.matches[other] *= old_divisor / max(new_least, distinct)


def members(inputs: int) -> Iterator[int]:
    """Yield the members of the set `inputs` in ascending order.

    >>> list(members(0b1011))
    [0, 1, 3]
    """
    while inputs:
        lowest = inputs & -inputs
        yield lowest.bit_length() - 1
        inputs ^= lowest
