"""The Spark pipeline: builds the streaming query of a job, and changes a running job.

    source_i -> project -> route -> union -> group by shard -> join -> decode -> sinks

`worker.callbacks` routes and joins, `running` decodes. A changed job is planned while the old one runs, and replaces it between two
batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.errors import ConfigError, StateError, listed, warn
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.plan.explain.describe import explain
from dovetail.plan.explain.explanation import Explanation
from dovetail.session.job import Job
from dovetail.session.registered_query import QueryStart
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import current_json, digest
from dovetail.spark.checkpoint.directories import JVM_ERRORS, reason
from dovetail.spark.checkpoint.plan_log import PlanLogEntry, in_force, pack
from dovetail.spark.driver.arguments import check_sinks, with_trigger
from dovetail.spark.driver.job import CHECKPOINT, HeldLock, RunningJob, claim_sinks
from dovetail.spark.driver.job_diff import with_query, without_query
from dovetail.spark.driver.layout import Layout, WorkerPlan, read_worker_plan
from dovetail.spark.driver.reports import BatchProgress, observed_columns
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import Staging
from dovetail.spark.state.log import MANIFEST
from dovetail.spark.wire import CLOCK, RESULT_SCHEMA, ROUTED_SCHEMA
from dovetail.spark.worker.callbacks import SEGMENTS, ShardProcessor, router_function
from dovetail.stats.counters import Measurements
from dovetail.stats.history import History

_CANDIDATES_PER_SHARD = 100
"""Ids that are tried for each shard."""


@dataclass(frozen=True)
class SparkPipeline:
    """Builds one streaming query for all queries of a job."""

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    run_id: str = ""
    trigger: Mapping[str, Any] = field(default_factory=dict)

    def encoded_results(
        self, layout: Layout, plans: Sequence[str], staged: Mapping[int, Staging] | None = None
    ) -> DataFrame:
        """Return the rows that shards produce: results as Arrow IPC bytes, counts and metrics."""
        ids = list(with_shard_ids(self.spark, layout).shard_ids)
        # Spark stores the time of a batch, so a replay reads the same.
        clock = [F.unix_micros(F.current_timestamp()).alias(CLOCK)] if layout.needs_clock else []
        packed, routed = pack(plans), []
        for number, stream in enumerate(layout.streams):
            frame = self.frames[stream.name].select(*(F.col(f"`{name}`") for name in stream.columns.names), *clock)
            routed.append(frame.mapInArrow(router_function(packed, number, ids), from_arrow_schema(ROUTED_SCHEMA)))
        processor = ShardProcessor(packed, ids, self.run_id, staged)
        joined = (
            reduce(DataFrame.unionAll, routed)
            .groupBy("shard")
            .transformWithStateInPandas(processor, outputStructType=RESULT_SCHEMA, outputMode="append", timeMode="none")
        )
        return joined.observe("dovetail", *observed_columns(layout))

    def writer(self, job: RunningJob, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """Return the streaming query of a job, ready to start; `write` is called with each batch."""
        writer = self.encoded_results(job.layout, job.plans, job.staged).writeStream.foreachBatch(write)
        writer = writer.outputMode("append").option("checkpointLocation", job.checkpoint.directory.uri)
        return with_trigger(writer, self.trigger)

    def explain(self, layout: Layout, measured: Measurements | None, history: History | None = None) -> Explanation:
        """Return the plan of a layout, with its shards' measurements if they run."""
        job, units = layout.job, None
        if measured is not None:
            from dovetail.calibrate import unit_times_for  # noqa: PLC0415 - it loads the engine

            units = unit_times_for(measured)
        explanation = explain(
            job,
            job.steps,
            job.config,
            measured=measured,
            units=units,
            plan=job.explained_plan,
            history=history,
            groups=[steps for _, steps in layout.group_steps],
        )
        return replace(explanation, text=f"{explanation.text}\n\n{layout.placement.describe()}")

    # -- changes of a job ---------------------------------------------------------------------------------------------------

    def with_query(self, job: RunningJob, name: str, sql: str, sink: Sink, *, backfill: bool) -> JobChange:
        """Return the change that adds a query to a job; refuse one that cannot run or exceeds the budget."""
        layout = job.layout
        query = job.declared.bind(name, sql, None, str(self.spark.conf.get("spark.sql.session.timeZone")))
        bound = query.plan.query
        check_sinks({name: sink}, [name])
        if not isinstance(backfill, bool):
            raise ConfigError.choice("add_query(backfill=...)", backfill, (True, False))
        missing = [ref.stream for ref in bound.refs if ref.stream not in layout.job.streams]
        if missing:
            raise ConfigError(
                f"query {name!r} reads {listed(missing)}; the job that runs was started without, and Spark does not add sources to it",
                "start the session with all streams declared and a new checkpoint",
            )
        for text in bound.warnings:
            warn(text)
        layout.job.check_running_query(replace(query, start=QueryStart(backfill=backfill)))
        declared = job.declared.with_started_query(query)

        def layout_from(since: int) -> Layout:
            started = replace(query, start=QueryStart(since, backfill))
            return with_shard_ids(self.spark, with_query(layout, started, declared.streams))

        change = JobChange(self, job, declared, layout_from, {**job.sinks, name: sink}, name)
        try:
            change.claim(layout_from(job.checkpoint.last_batch + 1))
        except BaseException:
            change.undo()
            raise
        return change

    def without_query(self, job: RunningJob, name: str) -> JobChange:
        """Return the change that drops a query of a job."""
        declared = job.declared.without_query(name)
        if len(job.layout.job.registered) == 1:
            raise ConfigError(f"query {name!r} is the last one that runs", "stop() the job, or add another query first")
        layout = without_query(job.layout, name)
        sinks = {query: sink for query, sink in job.sinks.items() if query != name}
        return JobChange(self, job, declared, lambda _: layout, sinks)

    def replanned(self, job: RunningJob, proposal: Proposal) -> JobChange:
        """Return the change that switches a job to a proposed plan."""
        layout = replace(job.layout, job=job.layout.job.replanned(proposal))
        return JobChange(self, job, job.declared, lambda _: layout, job.sinks, cause=proposal.cause)

    def unchanged(self, job: RunningJob) -> JobChange:
        """Return the change that starts the same job under a new epoch."""
        return JobChange(self, job, job.declared, lambda _: job.layout, job.sinks)

    def next_entry(
        self,
        layout: Layout,
        before: WorkerPlan | None,
        checkpoint: Checkpoint,
        reported: BatchProgress | None = None,
        cause: str = "",
    ) -> tuple[Layout, PlanLogEntry]:
        """Return the layout and the plan log entry that replace `before` from the next batch on.

        New shards start with the progress that the streams have made, and the first shard takes over the counters of retired ones.
        `reported` holds both if shards reported them; otherwise they are read from the state store.
        """
        since = checkpoint.next_batch
        if before is None:
            plan = layout.for_workers(digest(layout))
        else:
            shards = [number for group in layout.placement.groups for number in group.numbers]
            needs_counters = shards != before.shards or before.retired or before.since == since
            starts = [query.start for query in layout.job.registered.values()]
            needs_times = any(start.since == since and not start.max_event_times for start in starts)
            if since and (needs_counters or needs_times) and (reported is None or not reported.progress):
                reported = read_progress(self.spark, checkpoint.directory.uri, layout.shard_ids)
            reported = reported or BatchProgress()
            times = {name: int(progress["head"]) for name, progress in reported.progress.items()}
            layout = replace(layout, job=layout.job.with_start_times(since, times))
            plan = layout.for_workers(before.digest, before, since, reported.progress or before.progress)
            # A batch without tuples calls no shard, so some may not have retired yet.
            retired = {*plan.retired, *(shard for shard in before.retired if shard in reported.counters)}
            plan = replace(plan, retired=tuple(sorted(retired)), inherited=reported.total(retired))
        epoch = checkpoint.next_epoch
        earlier = [(entry.first, entry.epoch) for entry in in_force(checkpoint.log, since) if entry.first < since]
        plan = replace(plan, epoch=epoch, epochs=(*earlier, (since, epoch)))
        return layout, PlanLogEntry(since, current_json(layout), plan.to_json(), cause, epoch=epoch)


@dataclass
class JobChange:
    """A change of a job between two batches; `layout_from` gives the layout from a batch on."""

    pipeline: SparkPipeline
    job: RunningJob
    declared: Job
    layout_from: Callable[[int], Layout]
    sinks: Mapping[str, Sink]
    added: str | None = None
    cause: str = ""
    staged: dict[int, Staging] = field(default_factory=dict)
    locks: dict[str, HeldLock] = field(default_factory=dict)

    def claim(self, layout: Layout) -> None:
        """Claim the sink of the added query for the checkpoint, and prepare its staging."""
        assert self.added is not None  # noqa: S101 - called for changes with an added query only
        pack([self.job.plans[-1], layout.for_workers("").to_json()])  # raises an error if the plan is too large
        uses, locks = claim_sinks(self.pipeline.spark, layout, self.sinks, self.job.checkpoint.refreshed(), self.added)
        self.locks |= locks
        staging = self.sinks[self.added].staging(uses[self.added], self.pipeline.run_id)
        if staging is not None:
            staging.prepare()
            self.staged[layout.number_of(self.added)] = staging

    def undo(self) -> None:
        """Release the staging and locks of the added query."""
        for staging in self.staged.values():
            staging.clear()
        for lock in self.locks.values():
            lock.release()

    def commit(self, progress: Mapping[int, BatchProgress]) -> RunningJob:
        """Write the plan log entry and return the job that starts with the first uncompleted batch.

        A batch that was begun and not committed is replayed under the new plan: queries that ran before get the same results.
        """
        try:
            checkpoint = self.job.checkpoint.refreshed()
            since = checkpoint.next_batch
            layout, before = self.layout_from(since), read_worker_plan(self.job.plans[-1])
            layout, entry = self.pipeline.next_entry(layout, before, checkpoint, progress.get(since - 1), self.cause)
            numbers = {layout.number_of(name) for name in layout.job.queries}
            staged = {**self.job.staged, **self.staged}
            staged = {number: staging for number, staging in staged.items() if number in numbers}
            checkpoint.discard_uncommitted_state(since)
            # Last of all: once the log names the new epoch, the old job cannot continue.
            checkpoint = checkpoint.append_entry(replace(entry, sinks=staging_directories(layout, staged)))
        except BaseException:
            self.undo()
            raise
        earlier = [text for text in self.job.plans if read_worker_plan(text).since < since]
        locks = {
            name: lock for name, lock in self.job.locks.items() if name in layout.job.queries or name == CHECKPOINT
        }
        plans = (*earlier[-1:], entry.plan)
        return RunningJob(self.declared, layout, plans, self.sinks, checkpoint, staged, {**locks, **self.locks})


def staging_directories(layout: Layout, staged: Mapping[int, Staging]) -> dict[str, str]:
    """Return the sink directories in which shards stage results, by query."""
    numbers = {layout.number_of(name): name for name in layout.job.queries}
    return {numbers[number]: staging.target for number, staging in staged.items()}


def read_state(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Return the segments and manifests of all shards as of the last completed batch."""
    state = spark.read.format("statestore").option("stateVarName", SEGMENTS).load(checkpoint)
    return state.select("key.shard", "user_map_key.number", "user_map_value.content")


def read_manifests(spark: SparkSession, checkpoint: str, ids: Sequence[int]) -> dict[int, bytes]:
    """Read the manifests of a checkpoint, by shard; `ids` are the keys of the stored state."""
    try:
        rows = read_state(spark, checkpoint).where(F.col("number") == MANIFEST).collect()
    except JVM_ERRORS as error:
        raise StateError(
            f"Spark cannot read the state of {checkpoint}: {reason(error)}",
            "if it was renamed or copied, move it back to the path that it was started with: Spark stores absolute paths in it",
        ) from error
    return {ids.index(row.shard): bytes(row.content) for row in rows}


def read_progress(spark: SparkSession, checkpoint: str, ids: Sequence[int]) -> BatchProgress:
    """Read the streams' progress and the shards' counters from the state of the last completed batch."""
    manifests = {shard: json.loads(content) for shard, content in read_manifests(spark, checkpoint, ids).items()}
    counters = {shard: manifest["progress"] for shard, manifest in manifests.items()}
    latest = max(manifests, key=lambda shard: int(manifests[shard]["batches"]), default=None)
    return BatchProgress({} if latest is None else counters[latest], counters)


def with_shard_ids(spark: SparkSession, layout: Layout) -> Layout:
    """Return a layout whose shards all have ids; existing ids stay."""
    ids = layout.shard_ids
    missing = layout.placement.total - len(ids)
    return replace(layout, shard_ids=(*ids, *choose_shard_ids(spark, missing, ids))) if missing else layout


def choose_shard_ids(spark: SparkSession, count: int, used: Sequence[int] = ()) -> list[int]:
    """Return `count` ids that Spark's hash partitioner spreads evenly over its partitions.

    This holds for any number of partitions that divides `count`. The ids are the keys of the stored state, so they must depend only on
    the number of shards and the ids `used` before.
    """
    if not count:
        return []
    candidates = spark.range(len(used) + count * _CANDIDATES_PER_SHARD).select(
        F.col("id").cast("int").alias("id"), F.expr(f"pmod(hash(cast(id as int)), {count})").alias("part")
    )
    first: dict[int, int] = {}
    for row in candidates.sort("id").collect():
        if row.id not in used:
            first.setdefault(row.part, row.id)
    return [first[part] for part in range(count)]
