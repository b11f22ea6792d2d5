"""Where tuples go: which shards the queries of a session use, and which of them a tuple belongs to. Pure: nothing here is stored.

Queries that place the tuples of their common streams in the same way form a group and share shards, windows and joins; each group has
shards of its own. Where tuples lie follows from the queries, the number of shards and the streams' rates, or, in place of the rates,
the shares that a checkpoint is bound to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dovetail.partition import Grid, dimensions_of, divide
from dovetail.plan.names import window_name
from dovetail.plan.steps import Cell
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery, Key
from dovetail.schema import StreamSchema

EVERYWHERE = "everywhere"
"""An axis along which a tuple goes to all parts."""
Route = tuple[Expression | str | None, ...]
"""How a tuple is placed, by axis: the expression whose value says to which part it goes, None for the whole row, or `EVERYWHERE`."""


@dataclass(frozen=True)
class ShardAssignment:
    """Where a query is: into how many parts its dimensions are cut, and the first shard of its group, if it is known."""

    shares: tuple[int, ...]
    first: int | None = None


@dataclass(frozen=True)
class ShardGroup:
    """Queries that share shards."""

    queries: tuple[JoinQuery, ...]
    grid: Grid
    first: int
    """Number of the group's first shard."""
    ways: Mapping[str, Mapping[tuple[str, ...], Route]]
    """By stream, the ways in which its tuples are placed, by their text: one for each different use of it."""

    @classmethod
    def of(cls, query: JoinQuery, grid: Grid, first: int) -> ShardGroup:
        """The group of one query."""
        ways: dict[str, dict[tuple[str, ...], Route]] = {}
        axes = [dict(axis.keys) for axis in dimensions_of(query)]
        for ref in query.refs:
            way = tuple(_bare(axis[ref.alias]) if ref.alias in axis else EVERYWHERE for axis in axes)
            ways.setdefault(ref.stream, {})[tuple(map(str, way))] = way
        return cls((query,), grid, first, ways)

    def takes(self, other: ShardGroup) -> bool:
        """Whether another group's queries can use the same shards: they place tuples of all common streams in the same way."""
        if self.grid.shares != other.grid.shares or self.is_apart or other.is_apart:
            return False
        common = self.ways.keys() & other.ways.keys()
        return bool(common) and all(self.ways[stream].keys() == other.ways[stream].keys() for stream in common)

    def with_group(self, other: ShardGroup) -> ShardGroup:
        """The group with another's queries, which it takes."""
        return replace(self, queries=(*self.queries, *other.queries), ways={**self.ways, **other.ways})

    @property
    def is_apart(self) -> bool:
        """Whether its tuples must not meet those of other queries: spread by whole rows, or waiting for count windows."""
        spread = any(expression is None for axis in self.grid.dimensions for _, expression in axis.keys)
        return spread or self.queries[0].has_count_window

    @property
    def label(self) -> str:
        return f"shards {self.first} to {self.first + self.grid.shards - 1}"

    def copies(self, query: JoinQuery, alias: str) -> int:
        """To how many shards each tuple of a query's alias goes: all queries have the same shares, each has axes of its own."""
        return Grid(dimensions_of(query), self.grid.shares).copies(alias)

    def cell(self, query: JoinQuery) -> Cell:
        """What a shard checks before it gives a result, with the number of a dimension for its part of it.

        Nothing where a tuple can be there for one reason only.
        """
        if all(len(ways) == 1 for ways in self.ways.values()):
            return ()
        cell = []
        for number, (axis, share) in enumerate(zip(dimensions_of(query), self.grid.shares, strict=True)):
            alias, expression = axis.keys[0]
            if share > 1 and expression is not None:
                cell.append((Key(alias, expression), share, number))
        return tuple(cell)


def _bare(expression: Expression | None) -> Expression | None:
    return None if expression is None else rename_alias(expression, lambda _: "")


@dataclass(frozen=True)
class Placement:
    """The shards of all queries, in groups that follow each other."""

    shards: int
    """Asked for."""
    frozen: Mapping[str, ShardAssignment] = field(default_factory=dict)
    """By query, what an earlier start chose."""
    numbered: int = 0
    """How many numbers were given to shards before: those of shards that are gone are not given again."""
    groups: tuple[ShardGroup, ...] = ()

    def with_query(self, query: JoinQuery, streams: Mapping[str, StreamSchema]) -> Placement:
        """The same with one more query, over some of `streams`."""
        known = self.frozen.get(query.name)
        grid = _grid(query, self.shards, streams) if known is None else Grid(dimensions_of(query), known.shares)
        seat = known.first if known is not None else None
        alone = ShardGroup.of(query, grid, self.total if seat is None else seat)
        number = next(
            (
                index
                for index, group in enumerate(self.groups)
                if (group.takes(alone) if seat is None else group.first == seat)
            ),
            None,
        )
        if number is None:
            return replace(self, groups=(*self.groups, alone))
        joined = self.groups[number].with_group(alone)
        return replace(self, groups=(*self.groups[:number], joined, *self.groups[number + 1 :]))

    @property
    def total(self) -> int:
        """Shards that have a number."""
        return max(self.numbered, *(group.first + group.grid.shards for group in self.groups), 0)

    @property
    def seats(self) -> dict[str, ShardAssignment]:
        """By query, where it is."""
        return {
            query.name: ShardAssignment(group.grid.shares, group.first)
            for group in self.groups
            for query in group.queries
        }

    @property
    def shares(self) -> dict[str, tuple[int, ...]]:
        """By query, into how many parts each of its dimensions is cut."""
        return {query.name: group.grid.shares for group in self.groups for query in group.queries}

    def group_of(self, shard: int) -> ShardGroup:
        return next(group for group in self.groups if group.first <= shard < group.first + group.grid.shards)

    @cached_property
    def scopes(self) -> dict[str, str]:
        """By query, the name of its group if there are several."""
        if len(self.groups) == 1:
            return {}
        return {query.name: group.label for group in self.groups for query in group.queries}

    @property
    def copies(self) -> dict[str, tuple[str, float]]:
        """By window as a plan names it: its name without a scope, and how often a tuple is kept."""
        found: dict[str, tuple[str, float]] = {}
        for group in self.groups:
            for query in group.queries:
                for ref in query.refs:
                    settled, scope = query.has_count_window, self.scopes.get(query.name, "")
                    name = window_name(ref.stream, settled=settled, scope=scope)
                    plain, known = found.get(name, (window_name(ref.stream, settled=settled), 1.0))
                    found[name] = (plain, max(known, group.copies(query, ref.alias)))
        return found

    def describe(self) -> str:
        """Who uses which shards, for people."""
        lines = []
        for group in self.groups:
            lines.append(f"{group.label}: {', '.join(query.name for query in group.queries)}")
            for axis, share in zip(group.grid.dimensions, group.grid.shares, strict=True):
                keys = " = ".join(str(key) if key is not None else f"{alias} by row" for alias, key in axis.keys)
                lines.append(f"  {keys} in {share} part{'s' if share > 1 else ''}")
            copies = {alias: group.copies(query, alias) for query in group.queries for alias in query.aliases}
            lines += [f"  each tuple of {alias} goes to {count} shards" for alias, count in copies.items() if count > 1]
        return "\n".join(lines)


def _grid(query: JoinQuery, shards: int, streams: Mapping[str, StreamSchema]) -> Grid:
    spread = [axis for axis in dimensions_of(query) for _, expression in axis.keys if expression is None]
    repeated = len({ref.stream for ref in query.refs}) < len(query.refs)
    # Spread by whole rows, a tuple's other alias would be taken for the one that is spread.
    rates = {ref.alias: streams[ref.stream].rate or 1.0 for ref in query.refs}
    return divide(query, rates, 1 if spread and repeated else shards)
