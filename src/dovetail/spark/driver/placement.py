"""Placement: the shards of each query, and the routes of tuples to them.

Queries with equal splits that route the tuples of their common streams alike form a group and share shards, windows and joins; each
group has shards of its own. The placement follows from the queries, the number of shards and the streams' rates; for a query of a
checkpoint, its pinned assignment replaces the rates. A placement is not serialized: a checkpoint stores the assignments, workers get
the routes in their plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dovetail.partition import HypercubeGrid, dimensions_of, divide
from dovetail.plan.names import WindowCopies, window_name
from dovetail.plan.steps import Cell
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery, Key
from dovetail.schema import StreamSchema

EVERYWHERE = "everywhere"
"""Marks an axis along which a tuple goes to all parts."""
Route = tuple[Expression | str | None, ...]
"""By axis, the expression that determines a tuple's part, None for the whole row, or `EVERYWHERE`."""


@dataclass(frozen=True)
class ShardAssignment:
    """The shards of a query."""

    splits: tuple[int, ...]
    """Number of parts of each dimension."""
    first_shard: int | None = None
    """The first shard of its group; None if no group is pinned."""


@dataclass(frozen=True)
class ShardGroup:
    """Queries that share shards."""

    queries: tuple[JoinQuery, ...]
    grid: HypercubeGrid
    first_shard: int
    routes: Mapping[str, Mapping[tuple[str, ...], Route]]
    """By stream, the routes of its tuples by their text: one for each different use of the stream."""

    @classmethod
    def of(cls, query: JoinQuery, grid: HypercubeGrid, first_shard: int) -> ShardGroup:
        """Return the group of one query."""
        routes: dict[str, dict[tuple[str, ...], Route]] = {}
        axes = [dict(axis.keys) for axis in dimensions_of(query)]
        for ref in query.refs:
            route = tuple(_without_alias(axis[ref.alias]) if ref.alias in axis else EVERYWHERE for axis in axes)
            routes.setdefault(ref.stream, {})[tuple(map(str, route))] = route
        return cls((query,), grid, first_shard, routes)

    def can_share_with(self, other: ShardGroup) -> bool:
        """Whether another group can use the same shards: both route the tuples of all common streams alike."""
        if self.grid.splits != other.grid.splits or self.is_isolated or other.is_isolated:
            return False
        common = self.routes.keys() & other.routes.keys()
        return bool(common) and all(self.routes[stream].keys() == other.routes[stream].keys() for stream in common)

    def with_group(self, other: ShardGroup) -> ShardGroup:
        """Return the group with the queries of another that can share its shards."""
        return replace(self, queries=(*self.queries, *other.queries), routes={**self.routes, **other.routes})

    @property
    def is_isolated(self) -> bool:
        """Whether it can share no shards: its rows are spread by content, or wait for count windows."""
        by_row = any(expression is None for axis in self.grid.dimensions for _, expression in axis.keys)
        return by_row or self.queries[0].has_count_window

    @property
    def shard_range(self) -> range:
        return range(self.first_shard, self.first_shard + self.grid.shards)

    @property
    def label(self) -> str:
        return f"shards {self.first_shard} to {self.shard_range[-1]}"

    def copies(self, query: JoinQuery, alias: str) -> int:
        """Return the number of shards that a tuple of an alias goes to; queries share splits, not dimensions."""
        return HypercubeGrid(dimensions_of(query), self.grid.splits).copies(alias)

    def cell_check(self, query: JoinQuery) -> Cell:
        """Return the keys that a shard checks before it emits a result.

        Each entry is (key, splits, dimension); `ShardGroupPlan.plan_of` replaces the dimension by the shard's coordinate. Empty if
        every stream has one route: every match is then in the right cell.
        """
        if all(len(routes) == 1 for routes in self.routes.values()):
            return ()
        checks = []
        for dimension, (axis, splits) in enumerate(zip(dimensions_of(query), self.grid.splits, strict=True)):
            alias, expression = axis.keys[0]
            if splits > 1 and expression is not None:
                checks.append((Key(alias, expression), splits, dimension))
        return tuple(checks)


def _without_alias(expression: Expression | None) -> Expression | None:
    return None if expression is None else rename_alias(expression, lambda _: "")


@dataclass(frozen=True)
class Placement:
    """The shards of all queries, in groups that follow each other."""

    requested_shards: int
    """The number of shards per query that the user asked for."""
    pinned: Mapping[str, ShardAssignment] = field(default_factory=dict)
    """By query, the assignment that an earlier start chose."""
    numbers_used: int = 0
    """Shard numbers that had been used before; those of retired shards are not used again."""
    groups: tuple[ShardGroup, ...] = ()

    def with_query(self, query: JoinQuery, streams: Mapping[str, StreamSchema]) -> Placement:
        """Return the placement with one more query, over some of `streams`."""
        assignment, first_shard = self.pinned.get(query.name), None
        if assignment is None:
            grid = _grid(query, self.requested_shards, streams)
        else:
            grid, first_shard = HypercubeGrid(dimensions_of(query), assignment.splits), assignment.first_shard
        added = ShardGroup.of(query, grid, self.total if first_shard is None else first_shard)
        for index, group in enumerate(self.groups):
            if group.can_share_with(added) if first_shard is None else group.first_shard == first_shard:
                return replace(self, groups=(*self.groups[:index], group.with_group(added), *self.groups[index + 1 :]))
        return replace(self, groups=(*self.groups, added))

    def restricted(self, queries: Iterable[JoinQuery]) -> Placement:
        """Return the placement of some of its queries; shards keep their numbers, and no number is used again."""
        queries, assignments = list(queries), self.assignments
        placement = Placement(
            self.requested_shards, {query.name: assignments[query.name] for query in queries}, self.total
        )
        for query in queries:
            placement = placement.with_query(query, {})
        return placement

    @property
    def total(self) -> int:
        """The number of shard numbers that have been used, those of retired shards included."""
        return max(self.numbers_used, *(group.shard_range.stop for group in self.groups), 0)

    @property
    def assignments(self) -> dict[str, ShardAssignment]:
        """The shards of each query."""
        return {
            query.name: ShardAssignment(group.grid.splits, group.first_shard)
            for group in self.groups
            for query in group.queries
        }

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """By query, the number of parts of each of its dimensions."""
        return {query.name: group.grid.splits for group in self.groups for query in group.queries}

    def group_of(self, shard: int) -> ShardGroup:
        return next(group for group in self.groups if shard in group.shard_range)

    @cached_property
    def scopes(self) -> dict[str, str]:
        """By query, the name of its group; empty if there is one group."""
        if len(self.groups) == 1:
            return {}
        return {query.name: group.label for group in self.groups for query in group.queries}

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """By query, the keys that a shard checks before it emits a result."""
        return {query.name: group.cell_check(query) for group in self.groups for query in group.queries}

    @property
    def window_copies(self) -> dict[str, WindowCopies]:
        """By window of the plan: its name without a scope, and the number of shards that keep each tuple."""
        copies: dict[str, WindowCopies] = {}
        for group in self.groups:
            for query in group.queries:
                for ref in query.refs:
                    settled, scope = query.has_count_window, self.scopes.get(query.name, "")
                    name = window_name(ref.stream, settled=settled, scope=scope)
                    unscoped, count = copies.get(name, (window_name(ref.stream, settled=settled), 1.0))
                    copies[name] = WindowCopies(unscoped, max(count, group.copies(query, ref.alias)))
        return copies

    def describe(self) -> str:
        """Return the queries and dimensions of each group of shards, as text for people."""
        lines = []
        for group in self.groups:
            lines.append(f"{group.label}: {', '.join(query.name for query in group.queries)}")
            for axis, splits in zip(group.grid.dimensions, group.grid.splits, strict=True):
                keys = " = ".join(str(key) if key is not None else f"{alias} by row" for alias, key in axis.keys)
                lines.append(f"  {keys} in {splits} part{'s' if splits > 1 else ''}")
            copies = {alias: group.copies(query, alias) for query in group.queries for alias in query.aliases}
            lines += [f"  each tuple of {alias} goes to {count} shards" for alias, count in copies.items() if count > 1]
        return "\n".join(lines)


def _grid(query: JoinQuery, shards: int, streams: Mapping[str, StreamSchema]) -> HypercubeGrid:
    by_row = any(expression is None for axis in dimensions_of(query) for _, expression in axis.keys)
    is_self_join = len({ref.stream for ref in query.refs}) < len(query.refs)
    rates = {ref.alias: streams[ref.stream].rate or 1.0 for ref in query.refs}
    # In a self-join spread by whole rows, a shard cannot tell a copied row from a spread one: use one shard.
    return divide(query, rates, 1 if by_row and is_self_join else shards)
