"""From streams and queries to what Spark runs, and from one set of queries to the next.

    source_i -> project -> cut by shard -> union -> group by shard -> join -> decode -> sinks

A job that runs can get another query, or lose one: it is planned while the old one runs, and takes its place between two batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.errors import ConfigError, StateError, listed, warn
from dovetail.optimizer.adapt.proposal import Proposal, propose
from dovetail.plan.explain.execution import explain
from dovetail.plan.explain.shared import Explanation
from dovetail.session.monitor import Monitor
from dovetail.session.registry import Registry
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import digest, revised_json
from dovetail.spark.checkpoint.directories import JVM_ERRORS, reason
from dovetail.spark.checkpoint.plan_log import PlanLogEntry, in_force, pack
from dovetail.spark.driver.arguments import check_sinks, triggered
from dovetail.spark.driver.job import CHECKPOINT, Held, Job, claim_sinks
from dovetail.spark.driver.job_diff import begun, replanned, with_plan, without
from dovetail.spark.driver.layout import Layout, QueryStart, WorkerPlan, read_worker_plan
from dovetail.spark.driver.reports import BatchProgress, observed
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import Staging
from dovetail.spark.state.log import MANIFEST
from dovetail.spark.wire import CLOCK, RESULT_SCHEMA, ROUTED_SCHEMA
from dovetail.spark.worker.callbacks import SEGMENTS, ShardProcessor, router_function
from dovetail.stats.counters import Measurements
from dovetail.stats.history import History

_MOST_TRIED_IDS = 100


@dataclass(frozen=True)
class SparkPipeline:
    """Declared streams and queries as one streaming query."""

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    registry: Registry
    run_id: str = ""
    trigger: Mapping[str, Any] = field(default_factory=dict)

    def encoded(
        self, layout: Layout, plans: Sequence[str], run_id: str, staged: Mapping[int, Staging] | None = None
    ) -> DataFrame:
        """What shards give, as rows that are still to be decoded."""
        ids = list(self.placed(layout).ids)
        # The batch's own time: a replay reads the same.
        clock = [F.unix_micros(F.current_timestamp()).alias(CLOCK)] if layout.needs_clock else []
        packed, pieces = pack(plans), []
        for number, stream in enumerate(layout.streams):
            frame = self.frames[stream.name].select(*(F.col(f"`{name}`") for name in stream.columns.names), *clock)
            pieces.append(frame.mapInArrow(router_function(packed, number, ids), from_arrow_schema(ROUTED_SCHEMA)))
        processor = ShardProcessor(packed, ids, run_id, staged)
        joined = (
            reduce(DataFrame.unionAll, pieces)
            .groupBy("shard")
            .transformWithStateInPandas(processor, outputStructType=RESULT_SCHEMA, outputMode="append", timeMode="none")
        )
        return joined.observe("dovetail", *observed(layout))

    def writer(
        self, job: Job, run_id: str, staged: Mapping[int, Staging], write: Callable[[DataFrame, int], None]
    ) -> DataStreamWriter:
        """The streaming query of a job, to be started; `write` takes its batches."""
        writer = self.encoded(job.layout, job.plans, run_id, staged).writeStream.foreachBatch(write)
        writer = writer.outputMode("append").option("checkpointLocation", job.checkpoint.directory.uri)
        return triggered(writer, self.trigger)

    def explained(
        self,
        form: str,
        layout: Layout,
        measured: Measurements | None,
        history: History | None = None,
    ) -> Explanation:
        """The plan of a layout, and what its shards have measured, if they run."""
        plan = layout.joint if layout.budget is not None or not layout.is_plain else None
        units = None
        if measured is not None:
            from dovetail.calibrate import units_of  # noqa: PLC0415 - it loads the engine

            units = units_of(measured)
        described = explain(
            self.registry.catalog,
            layout.steps,
            layout.config,
            form,
            measured=measured,
            units=units,
            plan=plan,
            history=history,
            together=[steps for _, steps in layout.parts],
        )
        return described if form != "text" else f"{described}\n\n{layout.placement.describe()}"

    # -- queries that come and go -------------------------------------------------------------------------------------------

    def with_query(self, job: Job, name: str, sql: str, sink: Sink, *, backfill: bool) -> JobChange:
        """A job with one more query; it is refused if it cannot be run, or does not fit, beside the others."""
        registry, layout = self.registry, job.layout
        plan = registry.bind(name, sql, None, str(self.spark.conf.get("spark.sql.session.timeZone")))
        check_sinks({name: sink}, [name])
        if not isinstance(backfill, bool):
            raise ConfigError.choice("add_query(backfill=...)", backfill, (True, False))
        registry.check_backfill(plan.query, backfill=backfill)
        missing = [ref.stream for ref in plan.query.refs if ref.stream not in layout.catalog]
        if missing:
            raise ConfigError(
                f"query {name!r} reads {listed(missing)}; the job that runs was started without, and Spark does not add sources to it",
                "start the session with all streams declared and a new checkpoint",
            )
        for text in plan.query.warnings:
            warn(text)
        registry.declare(plan, None)

        def made(since: int) -> Layout:
            return self.placed(with_plan(layout, plan, registry.streams, QueryStart(since, backfill)))

        change = JobChange(self, job, made, {**job.sinks, name: sink}, name)
        try:
            change.claim(made(job.checkpoint.last_batch + 1))
        except BaseException:
            change.undo()
            raise
        return change

    def without_query(self, job: Job, name: str) -> JobChange:
        """A job with one query less."""
        registry, layout = self.registry, job.layout
        registry.catalog.check_query(name)
        if len(layout.plans) == 1:
            raise ConfigError(f"query {name!r} is the last one that runs", "stop() the job, or add another query first")
        made = without(layout, [name])
        sinks = {query: sink for query, sink in job.sinks.items() if query != name}
        return JobChange(self, job, lambda _: made, sinks, dropped=name)

    def proposal(self, job: Job, monitor: Monitor, cause: str, late: Collection[str]) -> Proposal | None:
        """Another plan for the queries that are planned together and those that came `late`; None if it is not worth it."""
        layout, registry = job.layout, self.registry
        joined = {plan.query.name: plan for plan in layout.plans if plan.query.name in {*layout.together, *late}}
        if not joined:
            return None
        alone = [layout.planning({name: joined[name]}, None).apart() for name in joined if name not in layout.together]
        others = {plan.query.name: plan for plan in layout.plans if plan.query.name not in joined}
        left = layout.budget
        if left is not None and others:
            left = registry.left(left, [layout.planning(others, layout.budget).apart().load])
        planning = layout.planning(registry.planned_again(joined, monitor.picture), left).paced(monitor.pace)
        running = [layout.joint, *alone] if layout.together else alone
        return propose(planning, running, cause, monitor.strained)

    def replanned(self, job: Job, proposal: Proposal) -> JobChange:
        """A job whose queries are planned together in another way."""
        layout = replanned(job.layout, proposal.plan, proposal.plans)
        return JobChange(self, job, lambda _: layout, job.sinks, cause=proposal.cause)

    def next_entry(
        self,
        layout: Layout,
        before: WorkerPlan | None,
        checkpoint: Checkpoint,
        reached: BatchProgress | None = None,
        cause: str = "",
    ) -> tuple[Layout, PlanLogEntry]:
        """Build the plan log entry that replaces `before` with `layout` from the next batch on; return the layout and the entry.

        New shards start from the streams' progress, and the first shard inherits the counters of retired ones. `reached` holds both
        if shards reported them; otherwise they are read from the state store.
        """
        since = checkpoint.next_batch
        if before is None:
            plan = layout.for_workers(digest(layout))
        else:
            changes = layout.for_workers(before.digest, before, since)
            replaces = changes.shards != before.shards or before.retired or before.since == since
            late = any(came.since == since and not came.heads for came in layout.came.values())
            if since and (replaces or late) and (reached is None or not reached.progress):
                reached = stored_progress(self.spark, checkpoint.directory.uri, layout.ids)
            reached = reached or BatchProgress()
            layout = begun(layout, since, reached.progress)
            plan = layout.for_workers(before.digest, before, since, reached.progress or before.progress)
            # A batch without tuples calls no shard, so some may not have retired yet.
            retired = {*plan.retired, *(shard for shard in before.retired if shard in reached.counters)}
            plan = replace(plan, retired=tuple(sorted(retired)), inherited=reached.total(retired))
        epoch = checkpoint.next_epoch
        earlier = [(entry.first, entry.epoch) for entry in in_force(checkpoint.log, since) if entry.first < since]
        plan = replace(plan, epoch=epoch, epochs=(*earlier, (since, epoch)))
        return layout, PlanLogEntry(since, revised_json(layout), plan.to_json(), cause, epoch=epoch)

    def placed(self, layout: Layout) -> Layout:
        """A layout whose shards all have ids; those that have some keep them."""
        missing = layout.placement.total - len(layout.ids)
        return replace(layout, ids=(*layout.ids, *shard_ids(self.spark, missing, layout.ids))) if missing else layout


@dataclass
class JobChange:
    """A job that takes the place of another between two batches; `made` gives its layout for the batch that it begins with."""

    pipeline: SparkPipeline
    job: Job
    made: Callable[[int], Layout]
    sinks: Mapping[str, Sink]
    late: str | None = None
    dropped: str | None = None
    cause: str = ""
    staged: dict[int, Staging] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def claim(self, layout: Layout) -> None:
        """Make the sink of the query that comes the checkpoint's own."""
        assert self.late is not None  # noqa: S101 - asked of changes with a new query only
        pack([self.job.plans[-1], layout.for_workers("").to_json()])  # what cannot be planned, or run, is not begun
        uses, locks = claim_sinks(self.pipeline.spark, layout, self.sinks, self.job.checkpoint.refreshed(), self.late)
        self.held |= locks
        staging = self.sinks[self.late].staging(uses[self.late], self.pipeline.run_id)
        if staging is not None:
            staging.prepare()
            self.staged[layout.number_of(self.late)] = staging

    def undo(self) -> None:
        """Release what the added query has claimed, and its name."""
        for staging in self.staged.values():
            staging.clear()
        for held in self.held.values():
            held.release()
        if self.late is not None:
            self.pipeline.registry.drop(self.late)

    def commit(self, progress: Mapping[int, BatchProgress]) -> Job:
        """Write the plan log entry and return the job that starts with the first uncompleted batch.

        A batch that was begun is run again: queries that ran before get the same results, an added query gets its own.
        """
        try:
            checkpoint = self.job.checkpoint.refreshed()
            since = checkpoint.next_batch
            layout, before = self.made(since), read_worker_plan(self.job.plans[-1])
            layout, entry = self.pipeline.next_entry(layout, before, checkpoint, progress.get(since - 1), self.cause)
            numbers = {layout.number_of(name) for name in layout.bound}
            staged = {**self.job.staged, **self.staged}
            staged = {number: staging for number, staging in staged.items() if number in numbers}
            checkpoint.discard_uncommitted_state(since)
            # Last of all: once the log names the new epoch, the old job cannot continue.
            checkpoint = checkpoint.append_entry(replace(entry, sinks=staging_directories(layout, staged)))
        except BaseException:
            self.undo()
            raise
        if self.dropped is not None:
            self.pipeline.registry.drop(self.dropped)
        earlier = [text for text in self.job.plans if read_worker_plan(text).since < since]
        kept = {name: held for name, held in self.job.held.items() if name in layout.bound or name == CHECKPOINT}
        return Job(layout, (*earlier[-1:], entry.plan), self.sinks, checkpoint, staged, {**kept, **self.held})


def staging_directories(layout: Layout, staged: Mapping[int, Staging]) -> dict[str, str]:
    """Return the sink directories in which shards stage results, by query."""
    numbers = {layout.number_of(name): name for name in layout.bound}
    return {numbers[number]: staging.target for number, staging in staged.items()}


def stored_state(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Return the segments and manifests of all shards, as of the last completed batch."""
    state = spark.read.format("statestore").option("stateVarName", SEGMENTS).load(checkpoint)
    return state.select("key.shard", "user_map_key.number", "user_map_value.content")


def stored_manifests(spark: SparkSession, checkpoint: str, ids: Sequence[int]) -> dict[int, bytes]:
    """Read the manifests of a checkpoint, by shard; `ids` are the keys of the stored state."""
    try:
        rows = stored_state(spark, checkpoint).where(F.col("number") == MANIFEST).collect()
    except JVM_ERRORS as error:
        raise StateError(
            f"Spark cannot read the state of {checkpoint}: {reason(error)}",
            "if it was renamed or copied, put it back to the path that it was started with: Spark writes whole paths into it",
        ) from error
    return {ids.index(row.shard): bytes(row.content) for row in rows}


def stored_progress(spark: SparkSession, checkpoint: str, ids: Sequence[int]) -> BatchProgress:
    """Read the streams' progress and the shards' counters from the state of the last completed batch."""
    manifests = {shard: json.loads(content) for shard, content in stored_manifests(spark, checkpoint, ids).items()}
    counters = {shard: manifest["progress"] for shard, manifest in manifests.items()}
    latest = max(manifests, key=lambda shard: int(manifests[shard]["batches"]), default=None)
    return BatchProgress({} if latest is None else counters[latest], counters)


def shard_ids(spark: SparkSession, count: int, taken: Sequence[int] = ()) -> list[int]:
    """Numbers that Spark's hash partitioner spreads evenly over any number of partitions that divides the shards'.

    They are the keys of the stored state, so they must depend on nothing but the number of shards, and on those `taken` before.
    """
    if not count:
        return []
    tried = spark.range(len(taken) + count * _MOST_TRIED_IDS).select(
        F.col("id").cast("int").alias("id"), F.expr(f"pmod(hash(cast(id as int)), {count})").alias("part")
    )
    first: dict[int, int] = {}
    for row in tried.sort("id").collect():
        if row.id not in taken:
            first.setdefault(row.part, row.id)
    return [first[part] for part in range(count)]
