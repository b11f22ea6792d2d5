"""What a session on Spark runs: streams, queries, where their tuples go, and the plan; and the part of it that workers need.

The driver makes a `Layout` when a session starts. Where tuples go is in `placement`, what of it a checkpoint is bound to in
`contract`. Workers get a `WorkerPlan` as JSON: no SQL, nothing to be planned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from typing import Any

from dovetail.codec import from_json, to_json
from dovetail.config import Budget, Config
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.partition import Grid, dimensions_of
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import SharedPlan
from dovetail.plan.steps import Cell, JoinStep
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.spark.driver.placement import Placement, Route, ShardAssignment


@dataclass(frozen=True)
class ShardGroupPlan:
    """What the shards of a group do."""

    first: int
    """Number of the group's first shard."""
    shares: tuple[int, ...]
    """Into how many parts each dimension is cut."""
    ways: Mapping[str, tuple[Route, ...]]
    """By stream, how its tuples are placed."""
    plan: ExecutionPlan
    """The same for all shards; in a cell the number of a dimension stands for the shard's part of it."""

    @cached_property
    def shards(self) -> int:
        return prod(self.shares)

    @property
    def numbers(self) -> range:
        """Of its shards."""
        return range(self.first, self.first + self.shards)

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
    queries: Mapping[str, int]
    """With the numbers by which the driver knows their results."""
    joins: tuple[tuple[str, ...], ...]
    """The streams of each query: those of a join wait for each other, in whatever shard."""
    config: Config
    digest: str
    """Of what the checkpoint is bound to."""
    groups: tuple[ShardGroupPlan, ...]
    since: int = 0
    """The batch from which on it holds."""
    retired: tuple[int, ...] = ()
    """Shards that have no more to do from that batch on."""
    widened: tuple[int, ...] = ()
    """The batches from which on tuples have more columns, or with which queries came that are planned with others since."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """How far streams had come before that batch, for shards that begin with it."""
    epoch: int = 0
    """The start of the streaming query that runs it; see `plan_log`."""
    epochs: tuple[tuple[int, int], ...] = ()
    """First batches and epochs of the starts so far, in order of batches, this one included."""
    inherited: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stream, counters of the retired shards; the first shard adds them to its own in batch `since`."""

    def epoch_of(self, batch: int) -> int | None:
        """Return the epoch that completed `batch`; None if the log no longer reaches back that far."""
        return next((epoch for first, epoch in reversed(self.epochs) if first <= batch), None)

    @property
    def shards(self) -> list[int]:
        """The numbers of those that have something to do."""
        return [number for group in self.groups for number in group.numbers]

    def active(self, batch: int) -> list[int]:
        """Return the shards that may hold state before `batch`: those that retire in it still do."""
        return [*self.shards, *(self.retired if self.since == batch else ())]

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def _plans(self) -> dict[int, ExecutionPlan]:
        return {}

    def plan_of(self, shard: int) -> ExecutionPlan:
        """What a shard runs; worked out once."""
        if shard not in self._plans:
            group = next(group for group in self.groups if shard in group.numbers)
            whole = any(consumer.cell for step in group.plan.steps for consumer in step.consumers)
            self._plans[shard] = group.plan_of(shard) if whole else group.plan
        return self._plans[shard]

    def to_json(self) -> str:
        return json.dumps(to_json(self))


@cache
def read_worker_plan(text: str) -> WorkerPlan:
    """The plan that `to_json` wrote; read once per process."""
    content = json.loads(text)
    content.pop("carried", None)  # earlier releases had there what the sources of steps have now
    return from_json(WorkerPlan, content)


@dataclass(frozen=True)
class QueryStart:
    """When a query came that was not there from the beginning."""

    since: int
    """The batch from which on it sees tuples."""
    backfill: bool = False
    """Whether it also sees those that windows held then."""
    carried: Mapping[str, int] = field(default_factory=dict)
    """By stream, from which batch on tuples have all columns that it needs, if it is not the first."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """By stream, the largest event time before that batch, if it is known."""
    merged: bool = False
    """Whether it is planned with those that were there first: no tuple to come meets one from before it came."""


@dataclass(frozen=True)
class Layout:
    """Streams as the pipeline carries them, queries, and the number of shards asked for."""

    streams: tuple[StreamSchema, ...]
    plans: tuple[QueryPlan, ...]
    """The queries, each with the plan that it has by itself."""
    config: Config
    shards: int
    budget: Budget | None = None
    frozen: Mapping[str, ShardAssignment] = field(default_factory=dict)
    """By query, where an earlier start placed it; rates may have changed since, the checkpoint has not."""
    stored: str = ""
    """What the checkpoint is bound to, as it was first written: a query may be written otherwise since, and mean the same."""
    came: Mapping[str, QueryStart] = field(default_factory=dict)
    """Queries that came while others ran."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Of queries whose numbers are not those of their places."""
    last_number: int = -1
    """The largest that a query had that is gone."""
    numbered: int = 0
    """How many numbers were given to shards before."""
    widened: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stream, the columns that tuples have only from some batch on."""
    chosen: SharedPlan | None = None
    """The plan of the queries that are planned together, if it was chosen while they ran."""
    ids: tuple[int, ...] = ()
    """By number of a shard, the value by which Spark groups its rows; if none are given they follow from the number of shards."""

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
        placed = Placement(self.shards, self.frozen, self.numbered)
        for query in self.bound.values():
            placed = placed.with_query(query, self.catalog)
        return placed

    @property
    def needs_clock(self) -> bool:
        return any(stream.idle_after is not None or stream.max_ahead is not None for stream in self.streams)

    # -- the plan -----------------------------------------------------------------------------------------------------------

    @cached_property
    def together(self) -> dict[str, QueryPlan]:
        """The queries that are planned together: those that were there first, and those that came long ago."""
        plans = {plan.query.name: plan for plan in self.plans}
        return {name: plan for name, plan in plans.items() if name not in self.came or self.came[name].merged}

    @cached_property
    def joint(self) -> SharedPlan:
        """The plan of the queries that are planned together, or else of all; what can be shared depends on where tuples lie."""
        plans = self.together or {plan.query.name: plan for plan in self.plans}
        if self.chosen is not None and {answer.query for answer in self.chosen.answers} == plans.keys():
            return self.chosen
        return self.planning(plans, self.budget).plan()

    def planning(self, plans: Mapping[str, QueryPlan], budget: Budget | None) -> JointPlanning:
        """How some of the queries are planned together."""
        units = None
        if budget is not None:
            from dovetail.calibrate import units_for  # noqa: PLC0415 - only who has a budget loads the engine on the driver

            own = ExecutionPlan.of(map(Lowering(self.catalog, self.config).own, self.plans))
            units = units_for(own, self.catalog, self.placement.copies)
        # Where tuples may be shed for room, nothing is stored beside them.
        config = self.config if self.config.shedding is None else replace(self.config, strategy="mjoin")
        return JointPlanning(plans, config, budget, units, self.placement.scopes)

    @cached_property
    def _cells(self) -> dict[str, Cell]:
        return {query.name: group.cell(query) for group in self.placement.groups for query in group.queries}

    @cached_property
    def _answering(self) -> tuple[tuple[str, JoinStep], ...]:
        """The joins of all groups, each with one of the queries that it serves."""
        first = self.together
        steps = Lowering(self.catalog, self.config, cells=self._cells).steps(self.joint, first) if first else ()
        found = [(join.queries[0], step) for join, step in zip(self.joint.joins if first else (), steps, strict=True)]
        for plan in self.plans:
            if plan.query.name not in first:
                came = self.came[plan.query.name]
                lowering = Lowering(self.catalog, self.config, came.since, self._cells, came.backfill, came.carried)
                found.append((plan.query.name, lowering.own(plan)))
        return tuple(found)

    @cached_property
    def steps(self) -> tuple[JoinStep, ...]:
        """The joins of all groups."""
        return tuple(step for _, step in self._answering)

    @cached_property
    def parts(self) -> list[tuple[range, list[JoinStep]]]:
        """The shards of each group, by number, and the joins that they run."""
        found = []
        for group in self.placement.groups:
            names = {query.name for query in group.queries}
            steps = [step for query, step in self._answering if query in names]
            found.append((range(group.first, group.first + group.grid.shards), steps))
        return found

    def copies(self, query: str, aliases: Collection[str]) -> int:
        """To how many shards a combination of tuples of some aliases goes; see `optimizer.picture`."""
        grid = Grid(dimensions_of(self.bound[query]), self.placement.seats[query].shares)
        return grid.copies(*aliases)

    @property
    def is_plain(self) -> bool:
        """Whether each query is by itself."""
        return not self.joint.states and all(step.is_own for step in self.steps)

    def began(self, query: str) -> int:
        """Return the first batch whose tuples a query sees."""
        return self.came[query].since if query in self.came else 0

    def number_of(self, query: str) -> int:
        """The number by which a query's results are known."""
        return self.numbers[query] if query in self.numbers else list(self.bound).index(query)

    def _config_of_a_shard(self, groups: Sequence[ShardGroupPlan]) -> Config:
        """The configuration with a shard's part of the cap; refuse one that is too small for it."""
        shedding = self.config.shedding
        if shedding is None:
            return self.config
        from dovetail.engine.shedding.room import check_room  # noqa: PLC0415 - only who sheds loads the engine on the driver

        shards = sum(group.shards for group in groups)
        for group in groups:
            check_room(shedding, group.plan, self.catalog, shards)
        return replace(self.config, shedding=shedding.part(shards))

    def for_workers(
        self,
        digest: str,
        before: WorkerPlan | None = None,
        since: int = 0,
        progress: Mapping[str, Any] | None = None,
    ) -> WorkerPlan:
        """What workers need; `digest` is that of what the checkpoint is bound to.

        A plan that follows one `before` it, from batch `since` on, leaves rows as they are: what both have keeps its bits.
        `progress`: how far streams have come by then.
        """
        known = {group.first: group.plan for group in before.groups} if before is not None else {}
        groups = []
        for group, (_, steps) in zip(self.placement.groups, self.parts, strict=True):
            ways = {stream: tuple(group.ways[stream].values()) for stream in sorted(group.ways)}
            plan = ExecutionPlan.of(steps, known.get(group.first))
            groups.append(ShardGroupPlan(group.first, group.grid.shares, ways, plan))
        joins = dict.fromkeys(tuple(sorted({ref.stream for ref in query.refs})) for query in self.bound.values())
        numbers = {name: self.number_of(name) for name in self.bound}
        widened = {batch for columns in self.widened.values() for batch in columns.values()}
        widened |= {came.since for came in self.came.values() if came.merged}
        made = WorkerPlan(
            self.streams,
            numbers,
            tuple(joins),
            self._config_of_a_shard(groups),
            digest,
            tuple(groups),
            since,
            widened=tuple(sorted(widened)),
        )
        if before is None:
            return made
        retired = tuple(sorted({*before.active(since)} - set(made.shards)))
        return replace(made, retired=retired, progress=progress or {}, epoch=before.epoch + 1)
