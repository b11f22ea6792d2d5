"""What every stage of the pipeline must agree on: streams, queries, and which shard a tuple belongs to.

A layout is made by the driver when a session starts, travels to the workers as JSON, and never changes afterwards: its digest is
stored with every shard's state, and a checkpoint of another layout is refused. Queries that place the tuples of their common
streams in the same way form a group and share shards, windows and joins; each group has shards of its own. The plan travels with the
layout but is not part of its digest: a checkpoint holds tuples, and any plan can go on from those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

from dovetail.config import Budget, Config
from dovetail.errors import DovetailError, StateError
from dovetail.optimizer.joint import JointPlan, Together
from dovetail.optimizer.planner import PlanChoices
from dovetail.optimizer.replan import Replanner
from dovetail.optimizer.units import UnitCosts
from dovetail.partition import Grid, dimensions_of, divide
from dovetail.plan.names import window_name
from dovetail.plan.steps import Cell, JoinStep
from dovetail.query.durations import in_words
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery, Key
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema

Placement = tuple[Expression | str | None, ...]
VERSION = 4
"""Of how tuples are assigned to shards, of where a shard keeps its state, and of which windows a query's text means."""
WITHOUT_BOUNDS = 3
"""The version in which an alias without a bracket always took the next one to its right."""
EVERYWHERE = "everywhere"
"""An axis along which a tuple goes to all parts."""


@dataclass(frozen=True)
class ShardGroup:
    """Queries that share shards."""

    queries: tuple[JoinQuery, ...]
    grid: Grid
    first: int
    """Number of the group's first shard."""

    def takes(self, other: ShardGroup) -> bool:
        """Whether another group's queries can use the same shards: they place tuples of all common streams in the same way."""
        if self.grid.shares != other.grid.shares or self.is_apart or other.is_apart:
            return False
        common = self.streams & other.streams
        return bool(common) and all(_texts(self, stream) == _texts(other, stream) for stream in common)

    @property
    def streams(self) -> set[str]:
        return {ref.stream for query in self.queries for ref in query.refs}

    @property
    def is_apart(self) -> bool:
        """Whether its tuples must not meet those of other queries: spread by whole rows, or waiting for count windows."""
        spread = any(expression is None for axis in self.grid.dimensions for _, expression in axis.keys)
        return spread or any(query.has_count_window for query in self.queries)

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
        if all(len(self.placements(stream)) == 1 for stream in self.streams):
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


def _texts(group: ShardGroup, stream: str) -> set[tuple[str, ...]]:
    return {tuple(map(str, placed)) for placed in group.placements(stream)}


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
    frozen: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """By query, the shares that an earlier start chose; rates may have changed since, the checkpoint has not."""
    plan: str = ""
    """The plan of all queries as JSON; without one it is made when it is asked for, with no budget."""
    time_zones: tuple[tuple[str, str], ...] = ()
    """Name and time zone of the queries whose constants are not read in UTC."""
    stored: str = ""
    """What the checkpoint is bound to, as it was first written: a query may be written otherwise since, and mean the same."""

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def bound(self) -> dict[str, JoinQuery]:
        """The queries by name."""
        zones = dict(self.time_zones)
        return {name: parse_query(name, sql, self.catalog, zones.get(name, "UTC")) for name, sql in self.queries}

    @cached_property
    def replanner(self) -> Replanner:
        return Replanner({**self.catalog, **self.joint.run.states}, self.config, self.joint.run.choices)

    @cached_property
    def joint(self) -> JointPlan:
        """The plan of all queries."""
        if self.plan:
            return JointPlan.from_json(json.loads(self.plan), self.catalog, self.config)
        return self.together().plan()

    def together(self, budget: Budget | None = None, units: UnitCosts | None = None) -> Together:
        """Its queries, to be planned within a budget."""
        choices = {name: PlanChoices.from_json(json.loads(text)) for name, text in self.choices}
        return Together(self.bound, self.catalog, self.config, choices, budget, units, self.scopes)

    @cached_property
    def scopes(self) -> dict[str, str]:
        """By query, the name of its group if there are several."""
        if len(self.groups) == 1:
            return {}
        return {
            query.name: f"shards {group.first} to {group.first + group.grid.shards - 1}"
            for group in self.groups
            for query in group.queries
        }

    @property
    def copies(self) -> dict[str, tuple[str, float]]:
        """By window as a plan names it: its name without a scope, and how often a tuple is kept."""
        found: dict[str, tuple[str, float]] = {}
        for group in self.groups:
            for query in group.queries:
                for ref in query.refs:
                    plain = window_name(ref.stream, settled=query.has_count_window)
                    name = window_name(
                        ref.stream, settled=query.has_count_window, scope=self.scopes.get(query.name, "")
                    )
                    _, known = found.get(name, (plain, 1.0))
                    found[name] = (plain, max(known, group.grid.copies(ref.alias)))
        return found

    def steps(self, group: ShardGroup) -> dict[str, JoinStep]:
        """The joins that a group of shards runs, by name."""
        names = {query.name for query in group.queries}
        pairs = zip(self.joint.plan.joins, self.joint.run.steps, strict=True)
        return {step.name: step for join, step in pairs if join.queries[0] in names}

    @cached_property
    def groups(self) -> tuple[ShardGroup, ...]:
        found: list[ShardGroup] = []
        for query in self.bound.values():
            alone = ShardGroup((query,), self._grid(query), 0)
            number = next((place for place, group in enumerate(found) if group.takes(alone)), len(found))
            if number == len(found):
                found.append(alone)
            else:
                found[number] = replace(found[number], queries=(*found[number].queries, query))
        groups, first = [], 0
        for group in found:
            groups.append(replace(group, first=first))
            first += group.grid.shards
        return tuple(groups)

    def _grid(self, query: JoinQuery) -> Grid:
        frozen = dict(self.frozen).get(query.name)
        if frozen is not None:
            return Grid(dimensions_of(query), frozen)
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

    def describe_shards(self) -> str:
        """Who uses which shards, for people."""
        lines = []
        for group in self.groups:
            names = ", ".join(query.name for query in group.queries)
            lines.append(f"shards {group.first} to {group.first + group.grid.shards - 1}: {names}")
            for axis, share in zip(group.grid.dimensions, group.grid.shares, strict=True):
                placed = " = ".join(str(key) if key is not None else f"{alias} by row" for alias, key in axis.keys)
                lines.append(f"  {placed} in {share} part{'s' if share > 1 else ''}")
            copies = {alias: group.grid.copies(alias) for query in group.queries for alias in query.aliases}
            lines += [f"  each tuple of {alias} goes to {count} shards" for alias, count in copies.items() if count > 1]
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps({
            "streams": [stream.to_json() for stream in self.streams], "queries": self.queries, "choices": self.choices,
            "config": asdict(self.config), "shards": self.shards, "frozen": self.frozen, "plan": self.plan,
            "time_zones": self.time_zones, "stored": self.stored,
        })  # fmt: skip

    @property
    def needs_clock(self) -> bool:
        return any(stream.idle_after is not None or stream.max_ahead is not None for stream in self.streams)

    def frozen_json(self) -> str:
        """What a checkpoint is bound to: streams, queries and where their tuples lie, not how they are planned."""
        if self.stored:
            return self.stored
        shares = {query.name: group.grid.shares for group in self.groups for query in group.queries}
        streams = [replace(stream, rate=None).to_json() for stream in self.streams]
        content = {
            "version": VERSION,
            "streams": streams,
            "queries": self.queries,
            "shards": self.shards,
            "shares": shares,
        } | ({"time_zones": dict(self.time_zones)} if self.time_zones else {})
        return json.dumps(content, sort_keys=True)

    def thawed(self, stored: str) -> Layout:
        """Take the order and the shares of a checkpoint; raise `StateError` if it belongs to another layout."""
        content = json.loads(stored)
        differences = self._differences(content)
        if differences:
            raise StateError(
                f"the checkpoint belongs to another session: {'; '.join(differences)}",
                "start with a new checkpoint directory and new sinks (the old ones belong to the old checkpoint), or with the "
                "streams, queries and shards that wrote this one",
            )
        # Spark tells sources apart by their order, and shards are numbered in the order of queries.
        own = dict(self.queries)
        return replace(
            self,
            streams=tuple(self.catalog[stream["name"]] for stream in content["streams"]),
            queries=tuple((name, own[name]) for name, _ in content["queries"]),
            frozen=tuple((name, tuple(shares)) for name, shares in content["shares"].items()),
            plan="",
            stored=stored,
        )

    def _differences(self, content: Mapping[str, Any]) -> list[str]:
        found = []
        if content.get("version") not in (WITHOUT_BOUNDS, VERSION):
            return [f"its layout has format version {content.get('version', 1)}; this release writes version {VERSION}"]
        if content["version"] == WITHOUT_BOUNDS:
            others = [name for name, query in self.bound.items() if query.inferred]
            found += [
                f"the windows of query {name!r}, then of brackets, now follow from its conditions" for name in others
            ]
        if content["shards"] != self.shards:
            found.append(f"it has {content['shards']} shards, this session {self.shards}")
        stored = {schema["name"]: StreamSchema.from_json(schema) for schema in content["streams"]}
        found += _named_differences("stream", set(stored), set(self.catalog))
        for name in stored.keys() & self.catalog.keys():
            found += _stream_differences(stored[name], self.catalog[name])
        queries, own = dict(content["queries"]), dict(self.queries)
        found += _named_differences("query", set(queries), set(own))
        zones, now = content.get("time_zones", {}), dict(self.time_zones)
        for name in queries.keys() & own.keys():
            was, is_ = (named.get(name, "UTC") for named in (zones, now))
            if was != is_:
                found.append(f"the constants of query {name!r} were read in time zone {was}, now in {is_}")
        return found + [
            f"query {name!r} was another: it was\n{queries[name]}\nand is\n{own[name]}\n"
            for name in queries
            if name in own and not self._means(name, queries[name])
        ]

    def _means(self, name: str, text: str) -> bool:
        """Whether a query says the same as an earlier text; how it is written, and the case of aliases, may differ."""
        if text == dict(self.queries)[name]:
            return True
        try:
            before = replace(self, queries=((name, text),)).bound[name]
        except DovetailError:
            return False
        return _meaning(before) == _meaning(self.bound[name])

    @property
    def digest(self) -> str:
        return blake2b(self.frozen_json().encode(), digest_size=16).hexdigest()


@cache
def read_layout(text: str) -> Layout:
    """The layout that `to_json` wrote; parsed and planned once per process."""
    stored = json.loads(text)
    streams = tuple(StreamSchema.from_json(stream) for stream in stored["streams"])
    pairs = {name: tuple(map(tuple, stored[name])) for name in ("queries", "choices", "time_zones")}
    frozen = tuple((name, tuple(shares)) for name, shares in stored["frozen"])
    config = Config(**stored["config"])
    own = (pairs["queries"], pairs["choices"], config, stored["shards"], frozen, stored["plan"], pairs["time_zones"])
    return Layout(streams, *own, stored["stored"])


def _meaning(query: JoinQuery) -> tuple[object, ...]:
    """All that decides what a query's results are and where its tuples lie, without how it is written."""

    def plain(expression: Expression) -> Expression:
        return rename_alias(expression, str.casefold)

    return (
        [(ref.alias.casefold(), ref.stream, ref.window) for ref in query.refs],
        [(output.name, plain(output.expression)) for output in query.outputs],
        [plain(edge.expression) for edge in query.equalities],
        [plain(condition.expression) for condition in query.conditions],
        [plain(condition.expression) for condition in query.filters],
    )


def _named_differences(kind: str, stored: set[str], own: set[str]) -> list[str]:
    faults = [f"it lacks {kind} {name!r}" for name in sorted(own - stored)]
    return faults + [f"it also has {kind} {name!r}" for name in sorted(stored - own)]


def _stream_differences(stored: StreamSchema, own: StreamSchema) -> list[str]:
    faults = []
    columns = {field.name: field.type for field in stored.columns}
    now = {field.name: field.type for field in own.columns}
    for name in dict.fromkeys((*columns, *now)):
        if columns.get(name) != now.get(name):
            was, is_ = (f"{types[name]}" if name in types else "not used" for types in (columns, now))
            faults.append(f"column {name!r} of stream {own.name!r} was {was}, is {is_}")
    for option in ("event_time", "lateness", "progress_by", "idle_after", "max_ahead"):
        before, after = getattr(stored, option), getattr(own, option)
        if before != after:
            was, is_ = (in_words(value) if isinstance(value, int) else repr(value) for value in (before, after))
            faults.append(f"{option} of stream {own.name!r} was {was}, is {is_}")
    return faults
