"""The layout of a job on Spark: its shards and query ids, and the plan that workers get.

The driver makes a `Layout` when a session starts; `placement` assigns tuples to shards, `checkpoint.compatibility` decides what a
checkpoint pins of it. Workers get a `WorkerPlan` as JSON, in the pickled callbacks: nothing to parse, and nothing left to plan but
probe orders. A checkpoint's plan log has a `WorkerPlan` in each entry, so the JSON names of its fields are part of the stored
format.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from typing import Any

from dovetail.codec import from_json, to_json
from dovetail.config import Config, shedding_per_shard
from dovetail.partition import HypercubeGrid, dimensions_of
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.steps import JoinStep
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.spark.driver.placement import Placement, Route


@dataclass(frozen=True)
class ShardGroupPlan:
    """The plan of a group of shards."""

    first_shard: int = field(metadata={"name": "first"})
    splits: tuple[int, ...] = field(metadata={"name": "shares"})
    """Number of parts of each dimension."""
    routes: Mapping[str, tuple[Route, ...]] = field(metadata={"name": "ways"})
    """By stream, the routes of its tuples."""
    plan: ExecutionPlan
    """The plan of every shard. Its cells hold the numbers of dimensions; `plan_of` replaces them by the shard's coordinates."""

    @cached_property
    def shard_count(self) -> int:
        return prod(self.splits)

    @property
    def shard_range(self) -> range:
        return range(self.first_shard, self.first_shard + self.shard_count)

    @cached_property
    def has_count_windows(self) -> bool:
        """Whether its tuples wait for the watermark to pass before they enter count windows."""
        return any(step.count_window_streams for step in self.plan.steps)

    def plan_of(self, shard: int) -> ExecutionPlan:
        """Return the plan of one shard: its part of each dimension is filled into the cells."""
        parts, cell = list[int](), shard - self.first_shard
        for part_count in reversed(self.splits):
            parts.insert(0, cell % part_count)
            cell //= part_count
        steps = []
        for step in self.plan.steps:
            consumers = [
                replace(consumer, cell=tuple((key, splits, parts[axis]) for key, splits, axis in consumer.cell))
                for consumer in step.consumers
            ]
            steps.append(replace(step, consumers=tuple(consumers)))
        return ExecutionPlan.of(steps, self.plan)


@dataclass(frozen=True)
class WorkerPlan:
    """The plan of the two callbacks on workers; shard ids, run id and stages are pickled beside it."""

    streams: tuple[StreamSchema, ...]
    queries: Mapping[str, int]
    """Id of each query, which identifies its results to the driver."""
    joins: tuple[tuple[str, ...], ...]
    """The streams of each query: those of a join delay each other's expiry, on all shards alike."""
    config: Config
    digest: str
    """Digest of the checkpoint's pinned layout."""
    groups: tuple[ShardGroupPlan, ...]
    first_batch: int = field(default=0, metadata={"name": "since"})
    """The first batch that it applies to."""
    retired: tuple[int, ...] = ()
    """Shards that no query uses from `first_batch` on; in that batch they remove their state."""
    segment_boundaries: tuple[int, ...] = field(default=(), metadata={"name": "widened"})
    """Batches that no segment spans: the first ones of added columns, and of late queries that are now planned with the others."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Progress of the streams before `first_batch`, for new shards."""
    epoch: int = 0
    """Number of its entry in the plan log."""
    epochs: tuple[tuple[int, int], ...] = ()
    """First batch and epoch of each entry in force, by first batch, this one included."""
    inherited: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stream, counters of the retired shards; the first shard adds them to its own in `first_batch`, so that they are kept."""

    def epoch_of(self, batch: int) -> int | None:
        """Return the epoch that completed `batch`; None if the log no longer reaches back that far."""
        return next((epoch for first, epoch in reversed(self.epochs) if first <= batch), None)

    @property
    def shard_list(self) -> list[int]:
        """All shards of its groups."""
        return [shard for group in self.groups for shard in group.shard_range]

    def active_shards(self, batch: int) -> list[int]:
        """Return the shards that may hold state before `batch`: those that retire in it still do."""
        return [*self.shard_list, *(self.retired if self.first_batch == batch else ())]

    @cached_property
    def catalog(self) -> dict[str, StreamSchema]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def _plans(self) -> dict[int, ExecutionPlan]:
        return {}

    def plan_of(self, shard: int) -> ExecutionPlan:
        """Return the plan of a shard; cached."""
        if shard not in self._plans:
            group = next(group for group in self.groups if shard in group.shard_range)
            has_cells = any(consumer.cell for step in group.plan.steps for consumer in step.consumers)
            self._plans[shard] = group.plan_of(shard) if has_cells else group.plan
        return self._plans[shard]

    def to_json(self) -> str:
        return json.dumps(to_json(self))


@cache
def read_worker_plan(text: str) -> WorkerPlan:
    """Return the plan that `WorkerPlan.to_json` wrote; cached per process."""
    content = json.loads(text)
    content.pop("carried", None)  # written by earlier releases; now part of the sources of steps
    return from_json(WorkerPlan, content)


@dataclass(frozen=True)
class Layout:
    """A job with its shards and the ids of its queries."""

    job: Job
    """Its streams have the columns that the pipeline carries."""
    pinned_json: str = ""
    """The pinned layout of its checkpoint, see `compatibility`; empty if the checkpoint is new."""
    query_ids: Mapping[str, int] = field(default_factory=dict)
    """By query, the id in results and reports; a query without an entry has its position as the id."""
    last_query_id: int = -1
    """The largest id of a dropped query, which no other query gets; -1 if none was dropped."""
    added_columns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stream, the columns that were added later, each with the first batch whose tuples have it."""
    shard_ids: tuple[int, ...] = ()
    """By shard, the id by which Spark groups its rows; see `pipeline.with_shard_ids`."""

    @classmethod
    def of(cls, job: Job, placement: Placement, **numbering: Any) -> Layout:
        """Return the layout of a job, with its queries added to `placement`, which has none yet."""
        for query in job.queries.values():
            placement = placement.with_query(query, job.streams)
        return cls(replace(job, placement=placement), **numbering)

    @property
    def placement(self) -> Placement:
        assert isinstance(self.job.placement, Placement)  # noqa: S101 - `of` has set it
        return self.job.placement

    @property
    def requested_shards(self) -> int:
        """The number of shards that the user asked for."""
        return self.placement.requested_shards

    @property
    def streams(self) -> tuple[StreamSchema, ...]:
        return tuple(self.job.streams.values())

    @property
    def queries(self) -> tuple[tuple[str, str], ...]:
        """Name and SQL of each query."""
        return tuple((name, query.sql) for name, query in self.job.queries.items())

    @property
    def time_zones(self) -> dict[str, str]:
        """Time zones of the queries whose constants are not read in UTC."""
        return {name: query.time_zone for name, query in self.job.queries.items() if query.time_zone != "UTC"}

    @property
    def needs_clock(self) -> bool:
        return any(stream.idle_after is not None or stream.max_ahead is not None for stream in self.streams)

    @cached_property
    def group_steps(self) -> list[tuple[range, list[JoinStep]]]:
        """The shard numbers of each group, and the joins that these shards run."""
        joins = self.job.joint_plan.joins if self.job.planned_together else ()
        steps = [(join.queries[0], step) for join, step in zip(joins, self.job.joint_steps, strict=True)]
        steps += self.job.standalone_steps.items()
        group_steps = []
        for group in self.placement.groups:
            names = {query.name for query in group.queries}
            group_steps.append((group.shard_range, [step for query, step in steps if query in names]))
        return group_steps

    def copies(self, query: str, aliases: Collection[str]) -> int:
        """Return the number of shards that a combination of tuples of some aliases goes to; see `Copies`."""
        grid = HypercubeGrid(dimensions_of(self.job.queries[query]), self.placement.assignments[query].splits)
        return grid.copies(*aliases)

    def first_batch(self, query: str) -> int:
        """Return the first batch whose tuples a query sees."""
        return self.job.registered[query].start.first_batch

    def query_id(self, query: str) -> int:
        """Return the id of a query in results and reports."""
        return self.query_ids[query] if query in self.query_ids else list(self.job.registered).index(query)

    def _shard_config(self, groups: Sequence[ShardGroupPlan]) -> Config:
        """Return the configuration with a shard's part of the shedding cap; refuse a cap that is too small."""
        shedding = self.job.config.shedding
        if shedding is None:
            return self.job.config
        from dovetail.engine.shedding.caps import check_shedding_cap  # noqa: PLC0415 - loads the engine

        shards = sum(group.shard_count for group in groups)
        for group in groups:
            check_shedding_cap(shedding, group.plan, self.job.streams, shards)
        return replace(self.job.config, shedding=shedding_per_shard(shedding, shards))

    def for_workers(
        self,
        digest: str,
        previous_plan: WorkerPlan | None = None,
        first_batch: int = 0,
        progress: Mapping[str, Any] | None = None,
    ) -> WorkerPlan:
        """Return the plan for workers; `digest` is that of the pinned layout.

        The plan replaces `previous_plan` from `first_batch` on. Views that both have keep their flag bits, so that rows stay valid.
        `progress` is that of the streams before that batch.
        """
        previous_groups = previous_plan.groups if previous_plan is not None else ()
        previous_plans = {group.first_shard: group.plan for group in previous_groups}
        groups = []
        for group, (_, steps) in zip(self.placement.groups, self.group_steps, strict=True):
            routes = {stream: tuple(group.routes[stream].values()) for stream in sorted(group.routes)}
            plan = ExecutionPlan.of(steps, previous_plans.get(group.first_shard))
            groups.append(ShardGroupPlan(group.first_shard, group.grid.splits, routes, plan))
        joins = dict.fromkeys(tuple(sorted({ref.stream for ref in query.refs})) for query in self.job.queries.values())
        query_ids = {name: self.query_id(name) for name in self.job.queries}
        boundaries = {batch for columns in self.added_columns.values() for batch in columns.values()}
        boundaries |= {
            query.start.first_batch for query in self.job.registered.values() if query.start.is_planned_jointly
        }
        worker_plan = WorkerPlan(
            self.streams,
            query_ids,
            tuple(joins),
            self._shard_config(groups),
            digest,
            tuple(groups),
            first_batch,
            segment_boundaries=tuple(sorted(boundaries)),
        )
        if previous_plan is None:
            return worker_plan
        retired = tuple(sorted({*previous_plan.active_shards(first_batch)} - set(worker_plan.shard_list)))
        return replace(worker_plan, retired=retired, progress=progress or {}, epoch=previous_plan.epoch + 1)
