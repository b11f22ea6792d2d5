"""What a session on Spark runs: streams, queries, where their tuples go, and the plan; and the part of it that workers need.

The driver makes a `Layout` when a session starts. Where tuples go is in `placement`, what of it a checkpoint is bound to in
`contract`. Workers get a `WorkerPlan` as JSON: no SQL, nothing to be planned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod

from dovetail.config import Budget, Config
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.plan.codec import from_json, to_json
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.global_plan import GlobalPlan
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import Step
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.spark.placement import Placement, Way


@dataclass(frozen=True)
class ShardGroupPlan:
    """What the shards of a group do."""

    first: int
    """Number of the group's first shard."""
    shares: tuple[int, ...]
    """Into how many parts each dimension is cut."""
    ways: Mapping[str, tuple[Way, ...]]
    """By stream, how its tuples are placed."""
    plan: ExecutionPlan
    """The same for all shards; in a cell the number of a dimension stands for the shard's part of it."""

    @cached_property
    def shards(self) -> int:
        return prod(self.shares)

    @cached_property
    def is_settled(self) -> bool:
        """Whether its tuples wait for count windows."""
        return any(step.frontier for step in self.plan.steps)

    def plan_of(self, shard: int) -> ExecutionPlan:
        """What one shard runs."""
        parts, number = list[int](), shard - self.first
        for share in reversed(self.shares):
            parts.insert(0, number % share)
            number //= share
        steps = []
        for step in self.plan.steps:
            cells = [[(key, share, parts[axis]) for key, share, axis in each.cell] for each in step.consumers]
            consumers = [replace(each, cell=tuple(cell)) for each, cell in zip(step.consumers, cells, strict=True)]
            steps.append(replace(step, consumers=tuple(consumers)))
        return ExecutionPlan.of(steps, self.plan)


@dataclass(frozen=True)
class WorkerPlan:
    """All that the two callbacks on workers need."""

    streams: tuple[StreamSchema, ...]
    queries: tuple[str, ...]
    joins: tuple[tuple[str, ...], ...]
    """The streams of each query: those of a join wait for each other, in whatever shard."""
    config: Config
    digest: str
    """Of what the checkpoint is bound to."""
    groups: tuple[ShardGroupPlan, ...]

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def _plans(self) -> dict[int, ExecutionPlan]:
        return {}

    def plan_of(self, shard: int) -> ExecutionPlan:
        """What a shard runs; worked out once."""
        if shard not in self._plans:
            group = next(group for group in reversed(self.groups) if shard >= group.first)
            whole = any(consumer.cell for step in group.plan.steps for consumer in step.consumers)
            self._plans[shard] = group.plan_of(shard) if whole else group.plan
        return self._plans[shard]

    def to_json(self) -> str:
        return json.dumps(to_json(self))


@cache
def read_worker_plan(text: str) -> WorkerPlan:
    """The plan that `to_json` wrote; read once per process."""
    return from_json(WorkerPlan, json.loads(text))


@dataclass(frozen=True)
class Layout:
    """Streams as the pipeline carries them, queries, and the number of shards asked for."""

    streams: tuple[StreamSchema, ...]
    plans: tuple[QueryPlan, ...]
    """The queries, each with the plan that it has by itself."""
    config: Config
    shards: int
    budget: Budget | None = None
    frozen: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """By query, the shares that an earlier start chose; rates may have changed since, the checkpoint has not."""
    stored: str = ""
    """What the checkpoint is bound to, as it was first written: a query may be written otherwise since, and mean the same."""

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def bound(self) -> dict[str, JoinQuery]:
        """The queries by name."""
        return {plan.query.name: plan.query for plan in self.plans}

    @property
    def queries(self) -> tuple[tuple[str, str], ...]:
        """Name and SQL."""
        return tuple((name, query.sql) for name, query in self.bound.items())

    @property
    def time_zones(self) -> dict[str, str]:
        """Of the queries whose constants are not read in UTC."""
        return {name: query.time_zone for name, query in self.bound.items() if query.time_zone != "UTC"}

    @cached_property
    def placement(self) -> Placement:
        placed = Placement(self.shards, dict(self.frozen))
        for query in self.bound.values():
            placed = placed.with_query(query, self.catalog)
        return placed

    @property
    def needs_clock(self) -> bool:
        return any(stream.idle_after is not None or stream.max_ahead is not None for stream in self.streams)

    # -- the plan -----------------------------------------------------------------------------------------------------------

    @cached_property
    def joint(self) -> GlobalPlan:
        """The plan of all queries; what can be shared depends on where tuples lie."""
        plans, units = {plan.query.name: plan for plan in self.plans}, None
        if self.budget is not None:
            from dovetail.calibrate import units_for  # noqa: PLC0415 - only who has a budget loads the engine on the driver

            own = ExecutionPlan.of(map(Lowering(self.catalog, self.config).own, self.plans))
            units = units_for(own, self.catalog, self.placement.copies)
        return JointPlanning(plans, self.config, self.budget, units, self.placement.scopes).plan()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The joins of all groups."""
        cells = {query.name: group.cell(query) for group in self.placement.groups for query in group.queries}
        plans = {plan.query.name: plan for plan in self.plans}
        return Lowering(self.catalog, self.config, cells=cells).steps(self.joint, plans)

    @property
    def is_plain(self) -> bool:
        """Whether each query is by itself."""
        return not self.joint.states and all(step.is_own for step in self.steps)

    def for_workers(self, digest: str) -> WorkerPlan:
        """What workers need; `digest` is that of what the checkpoint is bound to."""
        pairs = list(zip(self.joint.joins, self.steps, strict=True))
        groups = []
        for group in self.placement.groups:
            names = {query.name for query in group.queries}
            ways = {stream: tuple(group.ways[stream].values()) for stream in sorted(group.ways)}
            plan = ExecutionPlan.of(step for join, step in pairs if join.queries[0] in names)
            groups.append(ShardGroupPlan(group.first, group.grid.shares, ways, plan))
        joins = dict.fromkeys(tuple(sorted({ref.stream for ref in query.refs})) for query in self.bound.values())
        return WorkerPlan(self.streams, tuple(self.bound), tuple(joins), self.config, digest, tuple(groups))
