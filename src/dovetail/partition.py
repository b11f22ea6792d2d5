"""Hypercube partitioning: any join graph in one stage of shards.

Each class of equal columns is a dimension. Shares, one per dimension, multiply to the number of shards, and a shard is a cell of that
grid. A tuple goes to every cell that agrees with the hashes of its keys: one coordinate in the dimensions it has a key of, all of them
in the others. The tuples of a result agree in every dimension, so they meet in exactly one cell. With one common key there is one
dimension and nothing is sent twice.

A query without equalities gets a dimension in which one alias is spread by a hash of its whole row and the others are everywhere.
A count window needs all tuples it counts in one place: a dimension of its alias is not divided, unless it is what the window is
partitioned by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import mul

from dovetail.errors import PlanError
from dovetail.query.expressions import Expression, columns
from dovetail.query.model import CountWindow, JoinQuery


@dataclass(frozen=True, slots=True)
class Dimension:
    """One axis of the grid: the expression that places each alias on it; aliases not named go everywhere along it."""

    keys: tuple[tuple[str, Expression | None], ...]
    """By alias; None means a hash of the whole row."""
    divisible: bool = True
    """False when a count window forbids cutting along it."""

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(alias for alias, _ in self.keys)


@dataclass(frozen=True, slots=True)
class Grid:
    """How a query's tuples are spread: dimensions, and into how many parts each is cut."""

    dimensions: tuple[Dimension, ...]
    shares: tuple[int, ...]

    @property
    def shards(self) -> int:
        return reduce(mul, self.shares, 1)

    def copies(self, *aliases: str) -> int:
        """To how many shards each tuple of an alias goes, or each combination of tuples of several; of none, the number of shards."""
        return _copies(self.dimensions, self.shares, aliases)

    def cells(self, alias: str, coordinates: Mapping[int, int]) -> Iterator[int]:
        """The shards of a tuple, given its hash modulo the share in each dimension of its alias."""
        axes = [
            (coordinates[number],) if alias in dimension.aliases else range(share)
            for number, (dimension, share) in enumerate(zip(self.dimensions, self.shares, strict=True))
        ]
        for cell in product(*axes):
            yield self.number(cell)

    def number(self, cell: Sequence[int]) -> int:
        """The shard of a cell: its coordinates as digits, the last dimension's running fastest."""
        shard = 0
        for coordinate, share in zip(cell, self.shares, strict=True):
            shard = shard * share + coordinate
        return shard


def dimensions_of(query: JoinQuery) -> tuple[Dimension, ...]:
    """The axes along which a query can be spread."""
    axes = []
    for group in query.classes:
        keys: dict[str, Expression | None] = {}
        for key in group.keys:
            keys.setdefault(key.alias, group.of(key.alias)[0])
        axes.append(Dimension(tuple(keys.items()), all(_may_cut(query, alias, group.of(alias)[0]) for alias in keys)))
    if not axes:
        free = next((ref for ref in query.refs if not isinstance(ref.window, CountWindow)), None)
        spread = free or query.refs[0]
        axes.append(Dimension(((spread.alias, None),), free is not None))
    return tuple(axes)


def _may_cut(query: JoinQuery, alias: str, key: Expression) -> bool:
    """Whether tuples of an alias may be told apart by `key` without hiding some from its count window."""
    window = query.ref(alias).window
    if not isinstance(window, CountWindow):
        return True
    return {column.name for column in columns(key)} == {window.partition_by}


def divide(query: JoinQuery, rates: Mapping[str, float], shards: int) -> Grid:
    """Cut a query's dimensions into `shards` cells so that the fewest copies of tuples are sent.

    All ways to write the number of shards as a product of shares are tried; among equals the most even one is taken, because a
    cell then depends on the values of more columns.
    """
    if shards < 1:
        raise PlanError(f"query {query.name!r}: the number of shards is {shards}; it must be at least 1")
    dimensions = dimensions_of(query)
    if not any(dimension.divisible for dimension in dimensions):
        return Grid(dimensions, (1,) * len(dimensions))

    def cost(shares: Sequence[int]) -> tuple[float, int]:
        sent = sum(rates[alias] * _copies(dimensions, shares, (alias,)) for alias in query.aliases)
        return sent, max(shares)

    return Grid(dimensions, min(_factorings(shards, [d.divisible for d in dimensions]), key=cost))


def _copies(dimensions: Sequence[Dimension], shares: Sequence[int], aliases: Collection[str]) -> int:
    free = (share for axis, share in zip(dimensions, shares, strict=True) if not set(axis.aliases) & set(aliases))
    return reduce(mul, free, 1)


def _factorings(number: int, divisible: Sequence[bool]) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a product of one factor per dimension, 1 where it cannot be divided."""
    if not divisible:
        if number == 1:
            yield ()
        return
    for factor in range(1, number + 1 if divisible[0] else 2):
        if number % factor == 0:
            for rest in _factorings(number // factor, divisible[1:]):
                yield (factor, *rest)
