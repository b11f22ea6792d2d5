"""Hypercube partitioning: any join graph in one stage of shards.

Each class of equal columns is a dimension, which is split into a number of parts. The splits multiply to the number of shards; a shard
is a cell of this grid. A tuple is sent to every cell that agrees with the hashes of its keys: one coordinate in each dimension that it
has a key for, all coordinates in the others. The tuples of a result agree in every dimension, so they meet in exactly one cell. With
one common key there is one dimension and no tuple is sent twice.

A query without equalities gets a dimension that spreads one alias by a hash of its whole row and copies the others to every cell.
A count window needs all tuples it counts in one shard: a dimension of its alias is not split unless the window is partitioned by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from dovetail.errors import PlanError
from dovetail.query.expressions import Expression, columns
from dovetail.query.model import CountWindow, JoinQuery


@dataclass(frozen=True, slots=True)
class Dimension:
    """One axis of the grid; tuples of aliases without a key on it are copied to every coordinate."""

    keys: tuple[tuple[str, Expression | None], ...]
    """Key of each alias; None is a hash of the whole row."""
    divisible: bool = True
    """False when a count window forbids splitting it."""

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(alias for alias, _ in self.keys)


@dataclass(frozen=True, slots=True)
class HypercubeGrid:
    """The dimensions of a query, each with its number of splits."""

    dimensions: tuple[Dimension, ...]
    splits: tuple[int, ...]

    @property
    def shards(self) -> int:
        return reduce(mul, self.splits, 1)

    def copies(self, *aliases: str) -> int:
        """Return the number of shards that a combination of one tuple of each of these aliases is sent to."""
        return _copies(self.dimensions, self.splits, aliases)


def dimensions_of(query: JoinQuery) -> tuple[Dimension, ...]:
    """Return the dimensions of a query.

    There is one per class of equal columns, or one that spreads a single alias.
    """
    dimensions = []
    for group in query.classes:
        keys = {alias: group.of(alias)[0] for alias in dict.fromkeys(key.alias for key in group.keys)}
        divisible = all(_can_split(query, alias, key) for alias, key in keys.items())
        dimensions.append(Dimension(tuple(keys.items()), divisible))
    if not dimensions:
        divisible_ref = next((ref for ref in query.refs if not isinstance(ref.window, CountWindow)), None)
        spread = divisible_ref or query.refs[0]
        dimensions.append(Dimension(((spread.alias, None),), divisible_ref is not None))
    return tuple(dimensions)


def _can_split(query: JoinQuery, alias: str, key: Expression) -> bool:
    """Whether partitioning an alias by `key` keeps all tuples that its count window counts in one shard."""
    window = query.ref(alias).window
    if not isinstance(window, CountWindow):
        return True
    return {column.name for column in columns(key)} == {window.partition_by}


def divide(query: JoinQuery, rates: Mapping[str, float], shards: int) -> HypercubeGrid:
    """Split a query's dimensions into `shards` cells so that the fewest copies of tuples are sent.

    Tries every factoring of the number of shards; among equals it takes the most even one, because a cell then depends on the
    values of more columns.
    """
    if shards < 1:
        raise PlanError(f"query {query.name!r}: the number of shards is {shards}; allowed are whole numbers from 1")
    dimensions = dimensions_of(query)
    if not any(dimension.divisible for dimension in dimensions):
        return HypercubeGrid(dimensions, (1,) * len(dimensions))

    def cost(splits: Sequence[int]) -> tuple[float, int]:
        sent = sum(rates[alias] * _copies(dimensions, splits, (alias,)) for alias in query.aliases)
        return sent, max(splits)

    return HypercubeGrid(dimensions, min(_factorings(shards, [d.divisible for d in dimensions]), key=cost))


def _copies(dimensions: Sequence[Dimension], splits: Sequence[int], aliases: Collection[str]) -> int:
    keyless = (split for axis, split in zip(dimensions, splits, strict=True) if not set(axis.aliases) & set(aliases))
    return reduce(mul, keyless, 1)


def _factorings(shards: int, divisible: Sequence[bool]) -> Iterator[tuple[int, ...]]:
    """Yield every way to write `shards` as a product of one factor per dimension.

    A dimension that is not divisible has the factor 1.
    """
    if not divisible:
        if shards == 1:
            yield ()
        return
    for factor in range(1, shards + 1 if divisible[0] else 2):
        if shards % factor == 0:
            for rest in _factorings(shards // factor, divisible[1:]):
                yield (factor, *rest)
