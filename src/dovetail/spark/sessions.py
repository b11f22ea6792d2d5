"""Session: declared streams and queries as one Structured Streaming pipeline.

    source_i -> project -> cut by shard -> union -> group by shard -> join -> decode -> sinks

One streaming query runs all joins; what becomes of its results is in `running`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from dovetail.config import Budget, Config
from dovetail.errors import ConfigError, listed, warn
from dovetail.plan.explain.shared import Explanation
from dovetail.query.catalog import check_name
from dovetail.session.registry import Registry
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import digest, frozen_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.plan_log import PlanLogEntry
from dovetail.spark.driver.arguments import check_checkpoint, check_frame, check_shards, check_sinks, check_trigger
from dovetail.spark.driver.builder import check
from dovetail.spark.driver.job import CHECKPOINT, Job, claim_sinks
from dovetail.spark.driver.job_diff import Comparison, projected, revised
from dovetail.spark.driver.layout import Layout, WorkerPlan, read_worker_plan
from dovetail.spark.driver.pipeline import SparkPipeline, staging_directories
from dovetail.spark.driver.placement import Placement
from dovetail.spark.running import RunningSession, clear_ended
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import sweep_abandoned
from dovetail.spark.state.shared_memory import claim
from dovetail.spark.wire import decoded


class Session:
    """Declare streaming DataFrames, register queries, start them together.

    Parameters
    ----------
    spark
        A session from `dovetail.spark.session()`, or your own; it is checked for settings that would break the pipeline.
    budget
        CPU and memory that the queries may use together, over all shards, as the planner expects it of the declared rates and
        selectivities. A query that does not fit raises `BudgetError`.
    shards
        Into how many parts each join is cut; twice the shuffle partitions by default. `dovetail.reshard` changes it for a checkpoint.
    config
        How queries are run; results never depend on it.
    """

    def __init__(
        self, spark: SparkSession, budget: Budget | None = None, shards: int | None = None, config: Config | None = None
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"Session(budget=...) is a {type(budget).__name__}; expected a dovetail.Budget")
        if config is not None and not isinstance(config, Config):
            raise ConfigError(f"Session(config=...) is a {type(config).__name__}; expected a dovetail.Config")
        if shards is not None:
            check_shards("Session", shards)
        check(spark)
        self._spark = spark
        self._shards = shards or 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self._registry = Registry(config or Config(), budget, Placement(self._shards))
        self._frames: dict[str, DataFrame] = {}
        self._drafted: Layout | None = None
        """The layout of all queries so far, if it was asked for: what is planned for `explain` is not planned again to start."""
        self._is_started = False

    def stream(
        self,
        name: str,
        frame: DataFrame,
        event_time: str,
        lateness: str | float | timedelta = "0 seconds",
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
            The source: `spark.readStream...`, and whatever was selected from it.
        event_time
            The timestamp column that windows are measured in.
        lateness
            How far a tuple may lag behind the largest event time of earlier micro-batches. Later ones are dropped and counted.
        rate
            Expected tuples per second of event time; helps the planner.
        progress_by
            A column whose values (files, partitions) are read out of step: progress is the minimum over them.
        idle_after
            Standing still for longer, by the time of the micro-batch, the stream no longer holds the others' state.
        max_ahead
            Tuples further ahead of that time are set aside and counted.
        """
        self._check_declaring(f"stream {name!r}")
        check_name("stream", name)
        check_frame(name, frame, event_time)
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        self._registry.catalog.declare_stream(
            name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
        )
        self._frames[name] = frame

    def query(self, name: str, sql: str, probe_orders: Mapping[str, Sequence[str]] | None = None) -> None:
        """Register a query; see `LocalSession.query`."""
        self._check_declaring(f"query {name!r}")
        plan = self._registry.bind(name, sql, probe_orders, str(self._spark.conf.get("spark.sql.session.timeZone")))
        for text in plan.query.warnings:
            warn(text)
        self._registry.declare(plan, probe_orders)

    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which share of pairs meets a condition; see `LocalSession.selectivity`."""
        self._check_declaring(f"the selectivity of {condition!r}")
        self._registry.selectivity(condition, value)

    def _check_declaring(self, what: str) -> None:
        if self._is_started:
            raise ConfigError(
                f"{what} comes after start(): what runs was settled then, and this would run nowhere",
                "declare everything before start(); for more queries use add_query() of what start() returned",
            )

    def explain(self, form: str = "text") -> Explanation:
        """Show the plan: `text` for people, `dict` for programs, `mermaid` for a picture."""
        return self._pipeline().explained(form, self._layout(), None)

    def _pipeline(self, run_id: str = "", trigger: Mapping[str, Any] | None = None) -> SparkPipeline:
        return SparkPipeline(self._spark, self._frames, self._registry, run_id, trigger or {})

    # -- the pipeline -------------------------------------------------------------------------------------------------------

    def dataframe(self, name: str) -> DataFrame:
        """A query's results as a streaming DataFrame, to be written with `writeStream` as usual.

        Each such DataFrame is a pipeline of its own with windows of its own: for several queries `start` shares them.
        """
        layout = self._layout(only=name)
        run_id = uuid.uuid4().hex
        claim(run_id)
        encoded = self._pipeline().encoded(layout, [layout.for_workers(digest(layout)).to_json()], run_id)
        return decoded(encoded, 0, layout.bound[name].schema)

    def start(
        self,
        sinks: Mapping[str, Sink],
        checkpoint: str | os.PathLike[str],
        trigger: Mapping[str, Any] | None = None,
    ) -> RunningSession:
        """Run all queries as one streaming query. From then on the session takes no more streams and queries.

        It may be started again while it runs, with another checkpoint and other sinks: that is a second run, with windows of its own.

        Parameters
        ----------
        sinks
            Where each query's results go: `dt.sinks.parquet(...)` and others. What a checkpoint has written to is its own.
        checkpoint
            A directory that belongs to this session; starting again with it goes on where it ended.
        trigger
            As for `writeStream.trigger`, e.g. `{"availableNow": True}` or `{"processingTime": "1 second"}`.
        """
        given = check_sinks(sinks, self._registry.queries)
        options, path = check_trigger(trigger), check_checkpoint(checkpoint)
        clear_ended()
        with ExitStack() as undo:  # what a start that fails has taken
            taken = Checkpoint.open(Directory.of(self._spark, path))
            undo.callback(taken.release)
            layout, changes, entry = taken.bind(self._layout())
            run_id = uuid.uuid4().hex
            pipeline = self._pipeline(run_id, options)
            # What runs may change from now on, and other runs of this session do not.
            pipeline = replace(pipeline, registry=self._registry.copy())
            layout = pipeline.placed(layout)
            before = _plan_before(layout, taken, entry)
            if changes is not None:
                layout = revised(self._layout(), layout, changes, self._registry.streams, taken.next_batch)
                layout = pipeline.placed(layout)
            layout, entry = pipeline.next_entry(layout, before, taken)  # what cannot be planned is not started
            uses, locks = claim_sinks(self._spark, layout, given, taken)
            found = {layout.number_of(name): given[name].staging(use, run_id) for name, use in uses.items()}
            staged = {number: staging for number, staging in found.items() if staging is not None}
            entry = replace(entry, sinks=staging_directories(layout, staged))
            plans = (entry.plan,) if before is None else (before.to_json(), entry.plan)
            bound = replace(taken, layout=frozen_json(layout), log=(*taken.log, entry))
            job = Job(layout, plans, given, bound, staged, {CHECKPOINT: taken, **locks})
            running = RunningSession(pipeline, job, run_id, changes)
            undo.callback(running.clear)
            claim(run_id)
            for staging in staged.values():
                staging.prepare()
            for target in {target for old in taken.log for target in old.sinks.values()}:
                sweep_abandoned(Path(target))
            if changes is not None:
                warn(f"the checkpoint {taken.directory.uri} goes on with other queries or streams\n{changes}")
            taken.discard_uncommitted_state(taken.next_batch)
            taken.append_entry(entry)  # from here on the checkpoint belongs to this session
            running.begin()
            undo.pop_all()
        self._is_started = True
        return running

    def compare(self, checkpoint: str | os.PathLike[str]) -> Comparison:
        """What becomes of a checkpoint if this session is started with it: what is kept, changed, new and dropped.

        Nothing is changed. `StateError` says why it cannot be started.
        """
        directory, own = Directory.of(self._spark, check_checkpoint(checkpoint)), self._layout()
        if not directory.names():
            return Comparison(new=tuple(own.bound))
        taken = Checkpoint.open(directory)
        try:
            layout, changes, _ = taken.bind(own)
        finally:
            taken.release()
        return changes or Comparison(tuple(layout.bound))

    def _layout(self, only: str | None = None) -> Layout:
        registry = self._registry
        names = [only] if only is not None else list(registry.queries)
        if not names or any(name not in registry.queries for name in names):
            raise ConfigError(
                f"there is no query {only!r}; registered: {listed(registry.queries)}", "add one with query()"
            )
        plans = tuple(registry.plans[name] for name in names)
        if only is None and self._drafted is not None and self._drafted.plans == plans:
            return self._drafted
        used = {ref.stream for plan in plans for ref in plan.query.refs}
        queries = [plan.query for plan in plans]
        # Spark adds no sources to a job that runs, so streams that no query reads yet are there for those that come.
        streams = tuple(
            projected(schema, queries) for name, schema in registry.streams.items() if only is None or name in used
        )
        layout = Layout(streams, plans, registry.config, self._shards, registry.budget)
        if only is None:
            self._drafted = layout
        return layout


def _plan_before(layout: Layout, checkpoint: Checkpoint, entry: PlanLogEntry | None) -> WorkerPlan | None:
    """Return the plan of the log entry that a start continues; None if the checkpoint is new."""
    if checkpoint.layout is None:
        return None
    return layout.for_workers(digest(layout)) if entry is None else read_worker_plan(entry.plan)
