"""What every stage of the pipeline must agree on: streams, queries, and which shard a tuple belongs to.

A layout is made by the driver when a session starts, travels to the workers as JSON, and never changes afterwards: its digest is
stored with every shard's state, and a checkpoint of another layout is refused. Queries with the same dimensions and shares form a
group and share shards and windows; each group has shards of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

from dovetail.config import Config
from dovetail.engine.group import Cell
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.partition import Grid, dimensions_of, divide
from dovetail.plan.nodes import QueryPlan
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery, Key
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

Placement = tuple[Expression | str | None, ...]
EVERYWHERE = "everywhere"
"""An axis along which a tuple goes to all parts."""


@dataclass(frozen=True)
class ShardGroup:
    """Queries that share shards."""

    queries: tuple[JoinQuery, ...]
    grid: Grid
    first: int
    """Number of the group's first shard."""

    def placements(self, stream: str) -> tuple[Placement, ...]:
        """The ways in which a tuple of a stream is placed, one for each different use of it: an expression per axis."""
        found = {}
        for query in self.queries:
            for ref in query.refs:
                if ref.stream == stream:
                    axes = [dict(axis.keys) for axis in dimensions_of(query)]
                    placed = tuple(_bare(axis[ref.alias]) if ref.alias in axis else EVERYWHERE for axis in axes)
                    found[tuple(map(str, placed))] = placed
        return tuple(found.values())

    def cell(self, query: JoinQuery, shard: int) -> Cell:
        """What a shard checks before it emits a result: nothing where a tuple can be there for one reason only."""
        streams = {ref.stream for other in self.queries for ref in other.refs}
        if all(len(self.placements(stream)) == 1 for stream in streams):
            return ()
        parts, number = [], shard - self.first
        for share in reversed(self.grid.shares):
            parts.append(number % share)
            number //= share
        cell = []
        for axis, share, part in zip(dimensions_of(query), self.grid.shares, reversed(parts), strict=True):
            alias, expression = axis.keys[0]
            if share > 1 and expression is not None:
                cell.append((Key(alias, expression), share, part))
        return tuple(cell)


def _bare(expression: Expression | None) -> Expression | None:
    return None if expression is None else rename_alias(expression, lambda _: "")


@dataclass(frozen=True)
class Layout:
    """Streams as the pipeline carries them, queries, and the number of shards asked for."""

    streams: tuple[StreamSchema, ...]
    queries: tuple[tuple[str, str], ...]
    """Name and SQL."""
    choices: tuple[tuple[str, str], ...]
    """Name and what was asked of its plan, as JSON."""
    config: Config
    shards: int

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def plans(self) -> dict[str, QueryPlan]:
        choices = {name: PlanChoices.from_json(json.loads(text)) for name, text in self.choices}
        return {
            name: plan_query(parse_query(name, sql, self.catalog), self.catalog, self.config, choices[name])
            for name, sql in self.queries
        }

    @cached_property
    def groups(self) -> tuple[ShardGroup, ...]:
        found: dict[tuple[Any, ...], list[JoinQuery]] = {}
        grids: dict[tuple[Any, ...], Grid] = {}
        for plan in self.plans.values():
            grid = self._grid(plan.query)
            key = _signature(plan.query, grid)
            found.setdefault(key, []).append(plan.query)
            grids[key] = grid
        groups, first = [], 0
        for key, queries in found.items():
            groups.append(ShardGroup(tuple(queries), grids[key], first))
            first += grids[key].shards
        return tuple(groups)

    def _grid(self, query: JoinQuery) -> Grid:
        rates = {ref.alias: self.catalog[ref.stream].rate or 1.0 for ref in query.refs}
        spread = [axis for axis in dimensions_of(query) for _, expression in axis.keys if expression is None]
        repeated = len({ref.stream for ref in query.refs}) < len(query.refs)
        # Spread by whole rows, a tuple's other alias would be taken for the one that is spread.
        return divide(query, rates, 1 if spread and repeated else self.shards)

    @property
    def total(self) -> int:
        """Shards of all groups."""
        return sum(group.grid.shards for group in self.groups)

    def group_of(self, shard: int) -> ShardGroup:
        return next(group for group in reversed(self.groups) if shard >= group.first)

    def to_json(self) -> str:
        return json.dumps({
            "streams": [stream.to_json() for stream in self.streams], "queries": self.queries, "choices": self.choices,
            "config": asdict(self.config), "shards": self.shards,
        })  # fmt: skip

    @property
    def digest(self) -> str:
        """What a checkpoint is compared by: streams, queries and shards, not how they are planned."""
        content = {k: v for k, v in json.loads(self.to_json()).items() if k in ("streams", "queries", "shards")}
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


@cache
def read_layout(text: str) -> Layout:
    """The layout that `to_json` wrote; parsed and planned once per process."""
    stored = json.loads(text)
    streams = tuple(StreamSchema.from_json(stream) for stream in stored["streams"])
    pairs = {name: tuple(map(tuple, stored[name])) for name in ("queries", "choices")}
    return Layout(streams, pairs["queries"], pairs["choices"], Config(**stored["config"]), stored["shards"])


def _signature(query: JoinQuery, grid: Grid) -> tuple[Any, ...]:
    streams: Mapping[str, str] = {ref.alias: ref.stream for ref in query.refs}
    axes = []
    for axis in grid.dimensions:
        if any(expression is None for _, expression in axis.keys):
            return (query.name,)
        axes.append(frozenset((streams[alias], str(_bare(expression))) for alias, expression in axis.keys))
    return (tuple(axes), grid.shares, query.has_count_window and query.name)
