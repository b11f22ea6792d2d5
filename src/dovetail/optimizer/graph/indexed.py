"""A join graph by number: lists and bit masks, so that ordering takes microseconds per input, not milliseconds.

Input `i` is bit `1 << i` of a set of inputs. The expected size of the join of a set is a function of the set alone, whatever the
order: edges and conditions multiply, and a class of equal columns contributes (least distinct count) / (product of distinct counts),
which is what 1 / max(least so far, next) multiplies to (Golab and Özsu, appendix A). Every exact search here rests on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class KeyClass:
    """A class of equal columns: the distinct count of each of its inputs."""

    counts: Mapping[int, float]
    members: int = field(init=False)
    """Its inputs, as a set."""
    _ascending: Sequence[tuple[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", sum(1 << number for number in self.counts))
        object.__setattr__(self, "_ascending", sorted(self.counts.items(), key=lambda pair: pair[1]))

    def least(self, joined: int) -> float:
        """Give the smallest count among the inputs `joined`; infinite when there are none."""
        return next((count for number, count in self._ascending if joined >> number & 1), inf)


@dataclass(frozen=True, slots=True)
class Indexed:
    """Inputs 0 to n - 1."""

    names: tuple[str, ...]
    rates: Sequence[float]
    windows: Sequence[float]
    factors: Sequence[Sequence[float]]
    """What lowers the matches of a pair independently of all else; 1.0 where nothing does."""
    near: Sequence[int]
    """For each input the set of those that it can be probed from."""
    classes: Sequence[KeyClass]
    sizes: Sequence[float] = field(init=False)
    """Tuples in each window: rate times window."""
    linked: Sequence[int] = field(init=False)
    """For each input the set of those that it has a factor with."""

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
    def complete(self) -> bool:
        """Whether every input can be probed from every other."""
        return all(near | 1 << number == self.all for number, near in enumerate(self.near))

    @property
    def acyclic(self) -> bool:
        """Whether the inputs are a tree; conditions that lead nowhere close cycles, too."""
        pairs = sum((near | linked).bit_count() for near, linked in zip(self.near, self.linked, strict=True))
        return pairs == 2 * (self.count - 1)

    def extension(self, joined: int, candidate: int) -> float:
        """Give the expected matches of one partial result over the set `joined` in the window of `candidate`."""
        matches = self.sizes[candidate]
        row = self.factors[candidate]
        for other in members(joined & self.linked[candidate]):
            matches *= row[other]
        for each in self.classes:
            if candidate in each.counts and joined & each.members:
                matches /= max(each.least(joined), each.counts[candidate])
        return matches

    def pair(self, first: int, second: int) -> float:
        """Give the share of pairs of the inputs `first` and `second` that match."""
        return self.extension(1 << first, second) / self.sizes[second]


class Prefix:
    """The inputs joined so far, and what each other input would add.

    `matches[j]` is `extension(joined, j)` for every input that is not joined yet, kept up to date in O(n) per input added.
    """

    __slots__ = ("_graph", "_least", "joined", "matches", "reach")

    def __init__(self, graph: Indexed, start: int) -> None:
        self._graph = graph
        self._least = [inf] * len(graph.classes)
        self.joined = 0
        self.reach = 0
        """The set of inputs that an edge leads to."""
        self.matches = list(graph.sizes)
        self.add(start)

    def add(self, number: int) -> None:
        """Join one more input."""
        graph = self._graph
        self.matches = self.matches[:]
        for other in members(graph.linked[number]):
            self.matches[other] *= graph.factors[number][other]
        self.joined |= 1 << number
        self.reach |= graph.near[number]
        for which, each in enumerate(graph.classes):
            if number in each.counts:
                self._narrow(which, each, each.counts[number])

    def _narrow(self, which: int, key_class: KeyClass, count: float) -> None:
        before = self._least[which]
        if before <= count:
            return
        after = self._least[which] = count
        for other, distinct in key_class.counts.items():
            known = 1.0 if before == inf else max(before, distinct)
            self.matches[other] *= known / max(after, distinct)


def members(inputs: int) -> Iterator[int]:
    """Give the numbers in the set `inputs`, ascending.

    >>> list(members(0b1011))
    [0, 1, 3]
    """
    while inputs:
        lowest = inputs & -inputs
        yield lowest.bit_length() - 1
        inputs ^= lowest
