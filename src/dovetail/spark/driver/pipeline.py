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
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.errors import ConfigError, StateError, listed, warn
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats
from dovetail.plan.explain.describe import explain
from dovetail.plan.explain.explanation import Explanation
from dovetail.session.job import Job
from dovetail.session.registered_query import QueryStart
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import current_json, digest
from dovetail.spark.checkpoint.directories import JVM_ERRORS, reason
from dovetail.spark.checkpoint.plan_log import PlanLogEntry, in_force, pack
from dovetail.spark.compat import from_arrow_schema
from dovetail.spark.driver.arguments import check_sinks, with_trigger
from dovetail.spark.driver.backfill_warnings import invisible_to_backfill
from dovetail.spark.driver.job import CHECKPOINT, HeldLock, RunningJob, check_query_name, claim_sinks, sink_ids
from dovetail.spark.driver.job_diff import with_query, without_query
from dovetail.spark.driver.layout import Layout, WorkerPlan, read_worker_plan
from dovetail.spark.driver.reports import BatchEndState, observed_columns
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.stage import Stage
from dovetail.spark.state.log import MANIFEST
from dovetail.spark.wire import CLOCK, DROPPED, RESULT_SCHEMA, ROUTED_SCHEMA, SHARD_ID
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
        self,
        layout: Layout,
        plans: Sequence[str],
        stages: Mapping[int, Stage] | None = None,
        *,
        with_dropped: bool = False,
    ) -> DataFrame:
        """Return the rows that shards produce: results as Arrow IPC bytes, dropped tuples, counts and metrics."""
        shard_ids = list(with_shard_ids(self.spark, layout).shard_ids)
        # Spark stores the time of a batch, so a replay reads the same.
        clock = [F.unix_micros(F.current_timestamp()).alias(CLOCK)] if layout.needs_clock else []
        packed, routed = pack(plans), []
        for stream_index, stream in enumerate(layout.streams):
            frame = self.frames[stream.name].select(*(F.col(f"`{name}`") for name in stream.columns.names), *clock)
            route = router_function(packed, stream_index, shard_ids, self.run_id, sends_dropped=with_dropped)
            routed.append(frame.mapInArrow(route, from_arrow_schema(ROUTED_SCHEMA)))
        processor = ShardProcessor(packed, shard_ids, self.run_id, stages, returns_dropped=with_dropped)
        joined = (
            reduce(DataFrame.unionAll, routed)
            .groupBy(SHARD_ID)
            .transformWithStateInPandas(processor, outputStructType=RESULT_SCHEMA, outputMode="append", timeMode="none")
        )
        return joined.observe("dovetail", *observed_columns(layout))

    def writer(self, job: RunningJob, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """Return the streaming query of a job, ready to start; `write` is called with each batch."""
        stages = {query_id: committer.stage for query_id, committer in job.committers.items()}
        encoded = self.encoded_results(job.layout, job.plans, stages, with_dropped=DROPPED in job.sinks)
        writer = encoded.writeStream.foreachBatch(write)
        writer = writer.outputMode("append").option("checkpointLocation", job.checkpoint.directory.uri)
        return with_trigger(writer, self.trigger)

    def explain(
        self, layout: Layout, measured: Measurements | None, history: History | None = None, *, with_times: bool = True
    ) -> Explanation:
        """Return the plan of a layout, with its shards' measurements if they run.

        Expected times load the engine, which takes a second.
        """
        job, units = layout.job, None
        if measured is not None and with_times:
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

    def prepare_add_query(
        self, job: RunningJob, name: str, sql: str, sink: Sink, stats: RuntimeStats, *, backfill: bool
    ) -> JobChange:
        """Return the change that adds a query to a job.

        A query is refused if it cannot run or, by `stats`, exceeds the budget.
        """
        layout = job.layout
        query = job.declared_job.plan_individually(
            name, sql, None, str(self.spark.conf.get("spark.sql.session.timeZone"))
        )
        bound = query.plan.query
        check_sinks({name: sink}, [name])
        check_query_name(name, job.sinks)
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
        layout.job.plan_late_query(replace(query, start=QueryStart(backfill=backfill)), stats)
        declared_job = job.declared_job.with_late_query_unchecked(query)

        def layout_from(first_batch: int) -> Layout:
            started = replace(query, start=QueryStart(first_batch, backfill))
            return with_shard_ids(self.spark, with_query(layout, started, declared_job.streams))

        changed = layout_from(job.checkpoint.last_batch + 1)
        if backfill and job.checkpoint.last_batch >= 0:
            for text in invisible_to_backfill(layout, changed, bound):
                warn(text)
        change = JobChange(self, job, declared_job, layout_from, {**job.sinks, name: sink}, name)
        try:
            change.claim(changed)
        except BaseException:
            change.undo()
            raise
        return change

    def prepare_drop_query(self, job: RunningJob, name: str) -> JobChange:
        """Return the change that drops a query of a job."""
        declared_job = job.declared_job.without_query(name)
        if len(job.layout.job.registered) == 1:
            raise ConfigError(f"query {name!r} is the last one that runs", "stop() the job, or add another query first")
        layout = without_query(job.layout, name)
        sinks = {query: sink for query, sink in job.sinks.items() if query != name}
        return JobChange(self, job, declared_job, lambda _: layout, sinks)

    def prepare_replan(self, job: RunningJob, proposal: Proposal) -> JobChange:
        """Return the change that switches a job to a proposed plan."""
        layout = replace(job.layout, job=job.layout.job.replanned(proposal))
        return JobChange(self, job, job.declared_job, lambda _: layout, job.sinks, cause=proposal.cause)

    def prepare_restart(self, job: RunningJob) -> JobChange:
        """Return the change that starts the same job under a new epoch."""
        return JobChange(self, job, job.declared_job, lambda _: job.layout, job.sinks)

    def next_entry(
        self,
        layout: Layout,
        previous_plan: WorkerPlan | None,
        checkpoint: Checkpoint,
        batch_end: BatchEndState | None = None,
        cause: str = "",
    ) -> tuple[Layout, PlanLogEntry]:
        """Return the layout and the plan log entry that replace `previous_plan` from the next batch on.

        New shards start with the progress that the streams have made, and the first shard takes over the counters of retired ones.
        `batch_end` holds both if shards reported them; otherwise they are read from the state store.
        """
        first_batch = checkpoint.next_batch
        if previous_plan is None:
            plan = layout.for_workers(digest(layout))
        else:
            shards = [shard for group in layout.placement.groups for shard in group.shard_range]
            has_changed = shards != previous_plan.shard_list or previous_plan.first_batch == first_batch
            needs_counters = has_changed or previous_plan.retired
            starts = [query.start for query in layout.job.registered.values()]
            needs_times = any(start.first_batch == first_batch and not start.max_event_times for start in starts)
            if first_batch and (needs_counters or needs_times) and (batch_end is None or not batch_end.streams):
                batch_end = read_batch_end(self.spark, checkpoint.directory.uri, layout.shard_ids)
            batch_end = batch_end or BatchEndState()
            times = {name: int(progress["head"]) for name, progress in batch_end.streams.items()}
            layout = replace(layout, job=layout.job.with_start_times(first_batch, times))
            progress = batch_end.streams or previous_plan.progress
            plan = layout.for_workers(previous_plan.digest, previous_plan, first_batch, progress)
            # A batch without tuples calls no shard, so some may not have retired yet.
            retired = {*plan.retired, *(shard for shard in previous_plan.retired if shard in batch_end.counters)}
            plan = replace(plan, retired=tuple(sorted(retired)), inherited=batch_end.total(retired))
        epoch = checkpoint.next_epoch
        entries = in_force(checkpoint.plan_log, first_batch)
        earlier = [(entry.first_batch, entry.epoch) for entry in entries if entry.first_batch < first_batch]
        plan = replace(plan, epoch=epoch, epochs=(*earlier, (first_batch, epoch)))
        return layout, PlanLogEntry(first_batch, current_json(layout), plan.to_json(), cause, epoch=epoch)


@dataclass
class JobChange:
    """A change of a job between two batches; `layout_from` gives the layout from a batch on."""

    pipeline: SparkPipeline
    job: RunningJob
    declared_job: Job
    layout_from: Callable[[int], Layout]
    sinks: Mapping[str, Sink]
    added: str | None = None
    cause: str = ""
    committers: dict[int, Committer] = field(default_factory=dict)
    locks: dict[str, HeldLock] = field(default_factory=dict)

    def claim(self, layout: Layout) -> None:
        """Claim the sink of the added query for the checkpoint, and prepare its committer."""
        assert self.added is not None  # noqa: S101 - called for changes with an added query only
        pack([self.job.plans[-1], layout.for_workers("").to_json()])  # raises an error if the plan is too large
        uses, locks = claim_sinks(self.pipeline.spark, layout, self.sinks, self.job.checkpoint.refreshed(), self.added)
        self.locks |= locks
        committer = self.sinks[self.added].committer(uses[self.added], self.pipeline.run_id)
        if committer is not None:
            self.committers[layout.query_id(self.added)] = committer
            committer.prepare()

    def undo(self) -> None:
        """Release the committer and locks of the added query."""
        for committer in self.committers.values():
            committer.clear()
        for lock in self.locks.values():
            lock.release()

    def commit(self, recent_batches: Mapping[int, BatchEndState]) -> RunningJob:
        """Write the plan log entry and return the job that starts with the first uncompleted batch.

        A batch that was begun and not committed is replayed under the new plan: queries that ran before get the same results.
        """
        try:
            checkpoint = self.job.checkpoint.refreshed()
            first_batch = checkpoint.next_batch
            layout, previous_plan = self.layout_from(first_batch), read_worker_plan(self.job.plans[-1])
            batch_end = recent_batches.get(first_batch - 1)
            layout, entry = self.pipeline.next_entry(layout, previous_plan, checkpoint, batch_end, self.cause)
            query_ids = set(sink_ids(layout).values())
            committers = {**self.job.committers, **self.committers}
            committers = {query_id: committer for query_id, committer in committers.items() if query_id in query_ids}
            checkpoint.discard_uncommitted_state(first_batch)
            # Last of all: once the log names the new epoch, the old job cannot continue.
            checkpoint = checkpoint.append_entry(replace(entry, sinks=staging_directories(layout, committers)))
        except BaseException:
            self.undo()
            raise
        earlier = [text for text in self.job.plans if read_worker_plan(text).first_batch < first_batch]
        kept = {*sink_ids(layout), CHECKPOINT}
        locks = {name: lock for name, lock in self.job.locks.items() if name in kept}
        plans = (*earlier[-1:], entry.plan)
        return RunningJob(self.declared_job, layout, plans, self.sinks, checkpoint, committers, {**locks, **self.locks})


def staging_directories(layout: Layout, committers: Mapping[int, Committer]) -> dict[str, str]:
    """Return the sink directories in which shards stage results, by query."""
    names = {sink_id: name for name, sink_id in sink_ids(layout).items()}
    directories = {names[query_id]: committer.staging_directory for query_id, committer in committers.items()}
    return {query: directory for query, directory in directories.items() if directory}


def read_state(spark: SparkSession, checkpoint: str, batch: int | None = None) -> DataFrame:
    """Return the segments and manifests of all shards as of a batch, by default the last completed one."""
    reader = spark.read.format("statestore").option("stateVarName", SEGMENTS)
    state = (reader if batch is None else reader.option("batchId", batch)).load(checkpoint)
    return state.select(f"key.{SHARD_ID}", "user_map_key.number", "user_map_value.content")


def read_manifests(spark: SparkSession, checkpoint: str, shard_ids: Sequence[int]) -> dict[int, bytes]:
    """Read the manifests of a checkpoint, by shard; `shard_ids` are the keys of the stored state."""
    try:
        rows = read_state(spark, checkpoint).where(F.col("number") == MANIFEST).collect()
    except JVM_ERRORS as error:
        raise StateError(
            f"Spark cannot read the state of {checkpoint}: {reason(error)}",
            "if it was renamed or copied, move it back to the path that it was started with: Spark stores absolute paths in it",
        ) from error
    return {shard_ids.index(row[SHARD_ID]): bytes(row.content) for row in rows}


def read_batch_end(spark: SparkSession, checkpoint: str, shard_ids: Sequence[int]) -> BatchEndState:
    """Read the streams' progress and the shards' counters from the state of the last completed batch."""
    manifests = {shard: json.loads(content) for shard, content in read_manifests(spark, checkpoint, shard_ids).items()}
    counters = {shard: manifest["progress"] for shard, manifest in manifests.items()}
    latest = max(manifests, key=lambda shard: int(manifests[shard]["batches"]), default=None)
    return BatchEndState({} if latest is None else counters[latest], counters)


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
