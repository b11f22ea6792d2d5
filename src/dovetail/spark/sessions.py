"""Session: declares streams and queries, and starts them as one Structured Streaming query.

`driver.pipeline` builds that streaming query; `running` writes its results.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession

from dovetail._display import count_of
from dovetail.config import Budget, Config
from dovetail.errors import ConfigError, StateError, listed, suggestion, warn
from dovetail.plan.explain.describe import explain
from dovetail.plan.explain.explanation import Explanation
from dovetail.query.catalog import check_names, stream_schema
from dovetail.session.job import Job
from dovetail.session.job_html import job_html, job_text
from dovetail.session.options import check_options
from dovetail.session.unknown_names import missing_attribute, reject_unknown_arguments
from dovetail.session.unused_selectivities import unused_selectivities
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import digest, pinned_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.checkpoint.plan_log import PlanLogEntry
from dovetail.spark.compat import is_connect, to_arrow_schema
from dovetail.spark.connect import ConnectSession, check_connect_sinks
from dovetail.spark.driver.arguments import (
    ELSEWHERE,
    check_checkpoint,
    check_dropped,
    check_frame,
    check_not_stopped,
    check_shards,
    check_sinks,
    check_spark,
    check_trigger,
    warn_of_many_shards,
    watermark_delay,
)
from dovetail.spark.driver.builder import check_session
from dovetail.spark.driver.job import CHECKPOINT, RunningJob, claim_sinks, sink_ids
from dovetail.spark.driver.job_diff import Comparison, projected, with_changes
from dovetail.spark.driver.layout import Layout, WorkerPlan, read_worker_plan
from dovetail.spark.driver.pipeline import SparkPipeline, staging_directories, with_shard_ids
from dovetail.spark.driver.placement import Placement
from dovetail.spark.running import RunningSession, clear_ended
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import sweep_abandoned
from dovetail.spark.state.shared_memory import create_run_directory
from dovetail.spark.wire import decode_results


@reject_unknown_arguments
class Session:
    """A session on Spark: declare streaming DataFrames, register queries, start them together.

    Parameters
    ----------
    spark
        A session from `dovetail.spark.session()`, or your own; it is checked for settings that would break the pipeline.
    budget
        CPU and memory that the queries may use together, over all shards, as estimated from the declared rates and selectivities. A
        query that does not fit raises `BudgetError`.
    shards
        The number of parts of each join; by default twice the shuffle partitions. `dovetail.reshard` changes it for a checkpoint.
    config
        How queries are run; results never depend on it.
    """

    def __init__(
        self, spark: SparkSession, budget: Budget | None = None, shards: int | None = None, config: Config | None = None
    ) -> None:
        check_options("Session", budget, config)
        if shards is not None:
            check_shards("Session", shards)
        check_spark(spark)
        check_session(spark)
        self._spark = spark
        self._has_default_shards = shards is None
        self._shards = shards or 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self._job = Job(config or Config(), budget, Placement(self._shards))
        self._frames: dict[str, DataFrame] = {}
        self._cached_layout: tuple[Job, Layout] | None = None
        """The last layout and its job: `start` does not repeat the planning of `explain`."""
        self._is_started = False

    def __repr__(self) -> str:
        state = "started" if self._is_started else "not started"
        return f"<Session: {job_text(self._job)}; {count_of(self._shards, 'shard', 'shards')}, {state}>"

    def _repr_html_(self) -> str:
        return job_html(repr(self), self._job)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_attribute(Session, name, ELSEWHERE)

    def stream(
        self,
        name: str,
        frame: DataFrame,
        event_time: str,
        lateness: str | float | timedelta | None = None,
        rate: float | None = None,
        *,
        progress_by: str | None = None,
        idle_after: str | float | timedelta | None = None,
        max_ahead: str | float | timedelta | None = None,
    ) -> None:
        """Declare a stream: any streaming DataFrame with a timestamp column.

        Parameters
        ----------
        name
            Its name in queries.
        frame
            The source: `spark.readStream...`, with any projection or filter, read with the `SparkSession` of this session.
        event_time
            The timestamp column that windows are measured in.
        lateness
            How far a tuple may lag behind the largest event time of earlier micro-batches. Tuples that lag further are dropped and
            counted. The default is the delay of the frame's own `withWatermark` on this column, or zero if it has none.
        rate
            Expected tuples per second of event time; helps the planner.
        progress_by
            A column that identifies source partitions (Kafka partition, file); progress is the minimum over them.
        idle_after
            After this long without progress, by the clock of micro-batches, the stream stops delaying expiry in the others.
        max_ahead
            Tuples further ahead of that clock are dropped and counted.
        """
        self._check_declaring(f"stream {name!r}")
        check_names(name, event_time, progress_by)
        check_frame(name, frame, event_time, self._spark)
        lateness = watermark_delay(name, frame, event_time) if lateness is None else lateness
        schema = to_arrow_schema(frame.schema)
        declared = stream_schema(
            name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
        )
        self._job = self._job.with_stream(declared)
        self._frames[name] = frame

    def query(self, name: str, sql: str, probe_orders: Mapping[str, Sequence[str]] | None = None) -> None:
        """Register a query; see `LocalSession.query`."""
        self._check_declaring(f"query {name!r}")
        query = self._job.plan_individually(
            name, sql, probe_orders, str(self._spark.conf.get("spark.sql.session.timeZone"))
        )
        for text in query.plan.query.warnings:
            warn(text)
        self._job = self._job.with_query(query)

    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which fraction of pairs meets a condition; see `LocalSession.selectivity`."""
        self._check_declaring(f"the selectivity of {condition!r}")
        self._job = self._job.with_hint(condition, value)

    def _check_declaring(self, what: str) -> None:
        check_not_stopped(self._spark)
        if self._is_started:
            raise ConfigError(
                f"{what} cannot be declared after start(): the running job is fixed",
                "for more queries use add_query() of what start() returned; streams and selectivities need a new Session",
            )

    def explain(self) -> Explanation:
        """Return the plan: `print` shows its text, `to_dict()` and `mermaid()` give data and a diagram."""
        if not self._job.queries:
            return explain(self._job, self._job.steps, self._job.config)
        return self._pipeline().explain(self._layout(), None)

    def _pipeline(self, run_id: str = "", trigger: Mapping[str, Any] | None = None) -> SparkPipeline:
        return SparkPipeline(self._spark, self._frames, run_id, trigger or {})

    # -- the pipeline -------------------------------------------------------------------------------------------------------

    def dataframe(self, name: str) -> DataFrame:
        """Return a query's results as a streaming DataFrame, to be written with `writeStream` as usual.

        Each such DataFrame is a pipeline with windows of its own; `start` shares windows among queries.
        """
        check_not_stopped(self._spark)
        layout = self._layout(only=name)
        run_id = uuid.uuid4().hex
        create_run_directory(run_id)
        encoded = self._pipeline(run_id).encoded_results(layout, [layout.for_workers(digest(layout)).to_json()])
        return decode_results(encoded, 0, layout.job.queries[name].schema)

    def start(
        self,
        sinks: Mapping[str, Sink],
        checkpoint: str | os.PathLike[str],
        trigger: Mapping[str, Any] | None = None,
        dropped: Sink | None = None,
    ) -> RunningSession:
        """Run all queries as one streaming query. Afterwards no more streams and queries can be declared.

        The session can be started again while it runs, with another checkpoint and other sinks: a second run with its own windows.

        Parameters
        ----------
        sinks
            The sink of each query: `dt.sinks.parquet(...)` and others. A sink belongs to the checkpoint that first wrote to it.
        checkpoint
            A directory that belongs to this session; a start with the same directory continues where the last one ended.
        trigger
            As for `writeStream.trigger`, e.g. `{"availableNow": True}` or `{"processingTime": "1 second"}`.
        dropped
            A sink for the tuples that are dropped: late, too far ahead of the clock, without an event time, or shed. Its columns are
            `stream`, `reason`, `event_time`, `shard` (only of shed tuples) and `row`, a JSON object of the columns that queries read.
        """
        check_not_stopped(self._spark)
        sinks = check_dropped(dropped, check_sinks(sinks, self._job.queries))
        if is_connect(self._spark):
            check_connect_sinks(sinks)
        options, path = check_trigger(trigger), check_checkpoint(checkpoint)
        clear_ended()
        for text in unused_selectivities(self._job):
            warn(text)
        running = self._start(sinks, directory_at(self._spark, path), options)
        self._is_started = True
        return running

    def _start(self, sinks: Mapping[str, Sink], directory: Directory, trigger: Mapping[str, Any]) -> RunningSession:
        with ExitStack() as undo:  # releases everything if the start fails
            checkpoint = Checkpoint.open(directory)
            undo.callback(checkpoint.release)
            layout, changes, entry = checkpoint.reconcile(self._layout())
            run_id = uuid.uuid4().hex
            pipeline = self._pipeline(run_id, trigger)
            layout = with_shard_ids(self._spark, layout)
            previous_plan = _previous_plan(layout, checkpoint, entry)
            if changes is not None:
                layout = with_changes(self._layout(), layout, changes, self._job.streams, checkpoint.next_batch)
                layout = with_shard_ids(self._spark, layout)
            layout, entry = pipeline.next_entry(layout, previous_plan, checkpoint)  # plan before any sink is claimed
            uses, locks = claim_sinks(self._spark, layout, sinks, checkpoint)
            ids = sink_ids(layout)
            prepared = {ids[name]: sinks[name].committer(use, run_id) for name, use in uses.items()}
            committers = {query_id: committer for query_id, committer in prepared.items() if committer is not None}
            entry = replace(entry, sinks=staging_directories(layout, committers))
            plans = (entry.plan,) if previous_plan is None else (previous_plan.to_json(), entry.plan)
            updated = replace(checkpoint, pinned_json=pinned_json(layout), plan_log=(*checkpoint.plan_log, entry))
            job = RunningJob(self._job, layout, plans, sinks, updated, committers, {CHECKPOINT: checkpoint, **locks})
            kind = ConnectSession if is_connect(self._spark) else RunningSession
            running = kind(pipeline, job, run_id, changes)
            undo.callback(running._clear)  # noqa: SLF001 - users call stop()
            create_run_directory(run_id)
            for committer in committers.values():
                committer.prepare()
            for target in {target for old in checkpoint.plan_log for target in old.sinks.values()}:
                sweep_abandoned(Path(target))
            if changes is not None:
                warn(f"the checkpoint {directory.uri} continues with a changed job\n{changes}")
            elif checkpoint.pinned_json is None and self._has_default_shards:
                warn_of_many_shards(self._spark, self._shards)
            checkpoint.discard_uncommitted_state(checkpoint.next_batch)
            checkpoint.append_entry(entry)  # from here on the checkpoint belongs to this session
            running._begin()  # noqa: SLF001
            undo.pop_all()
        return running

    def compare(self, checkpoint: str | os.PathLike[str]) -> Comparison:
        """Return the queries that a start with a checkpoint would keep, change, add and drop.

        The checkpoint is not changed. Raise `StateError` if the session cannot be started with it.
        """
        check_not_stopped(self._spark)
        directory, layout = directory_at(self._spark, check_checkpoint(checkpoint)), self._layout()
        if not {"dovetail", "offsets"} & set(directory.names()):
            raise StateError(
                f"{directory.uri} holds no checkpoint: it {'has other files' if directory.names() else 'is empty or does not exist'}",
                "compare() takes the directory that start(checkpoint=...) was given; a start with a new one adds all queries",
            )
        opened = Checkpoint.open(directory)
        try:
            reconciled, changes, _ = opened.reconcile(layout)
        finally:
            opened.release()
        return changes or Comparison(tuple(reconciled.job.queries))

    def _layout(self, only: str | None = None) -> Layout:
        job = self._job
        names = [only] if only is not None else list(job.queries)
        if not names:
            raise ConfigError("the session has no query", "add one with query()")
        if only is not None and only not in job.queries:
            hint = suggestion(only, job.queries, "add one with query()")
            raise ConfigError(f"there is no query {only!r}; registered: {listed(job.queries)}", hint)
        if only is None and self._cached_layout is not None and self._cached_layout[0] is job:
            return self._cached_layout[1]
        queries = [job.queries[name] for name in names]
        used = {ref.stream for query in queries for ref in query.refs}
        # Spark cannot add sources to a running job, so streams that no query reads are kept for queries added later.
        streams = {
            name: projected(schema, queries) for name, schema in job.streams.items() if only is None or name in used
        }
        registered = {name: job.registered[name] for name in names}
        layout = Layout.of(replace(job, streams=streams, registered=registered), Placement(self._shards))
        if only is None:
            self._cached_layout = (job, layout)
        return layout


def _previous_plan(layout: Layout, checkpoint: Checkpoint, entry: PlanLogEntry | None) -> WorkerPlan | None:
    """Return the plan that the next one replaces: that of `entry`; None if the checkpoint is new."""
    if checkpoint.pinned_json is None:
        return None
    return layout.for_workers(digest(layout)) if entry is None else read_worker_plan(entry.plan)
