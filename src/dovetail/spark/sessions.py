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
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from dovetail.config import Budget, Config
from dovetail.errors import ConfigError, listed, warn
from dovetail.plan.explain import explain
from dovetail.plan.explain_global import Explanation
from dovetail.plan.measurements import Measurements
from dovetail.query.catalog import check_name
from dovetail.query.expressions import columns
from dovetail.query.model import CountWindow, JoinQuery
from dovetail.registry import Registry
from dovetail.schema import StreamSchema
from dovetail.spark.arguments import check_checkpoint, check_frame, check_sinks, check_trigger, triggered
from dovetail.spark.builder import check
from dovetail.spark.callbacks import ShardProcessor, cutter
from dovetail.spark.checkpoint import Checkpoint
from dovetail.spark.contract import digest
from dovetail.spark.directories import Directory
from dovetail.spark.layout import Layout, WorkerPlan
from dovetail.spark.live import claim
from dovetail.spark.metrics import observed
from dovetail.spark.placement import Placement
from dovetail.spark.running import RunningSession, claim_sinks, clear_ended
from dovetail.spark.sinks import Sink
from dovetail.spark.staging import Staging
from dovetail.spark.wire import CLOCK, CUT_SCHEMA, RESULT_SCHEMA, decoded

_MOST_TRIED_IDS = 100
_MOST_SHARDS = 10_000


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
        Into how many parts each join is cut; twice the shuffle partitions by default. Fixed for the life of a checkpoint.
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
        if shards is not None and (
            not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MOST_SHARDS
        ):
            raise ConfigError(f"Session(shards={shards!r}): it must be a whole number from 1 to {_MOST_SHARDS:,}")
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
                "declare everything before start(); for more queries make a new Session, with a checkpoint and sinks of its own "
                "(adding queries to one that runs is not there yet)",
            )

    def explain(self, form: str = "text") -> Explanation:
        """Show the plan: `text` for people, `dict` for programs, `mermaid` for a picture."""
        return self._explained(form, self._layout(), None)

    def _explained(self, form: str, layout: Layout, measured: Measurements | None) -> Explanation:
        """The plan of a layout, and what its shards have measured, if they run."""
        plan = layout.joint if layout.budget is not None or not layout.is_plain else None
        units = None
        if measured is not None:
            from dovetail.calibrate import units_of  # noqa: PLC0415 - it loads the engine

            units = units_of(measured)
        catalog = self._registry.catalog
        described = explain(catalog, layout.steps, layout.config, form, measured=measured, units=units, plan=plan)
        return described if form != "text" else f"{described}\n\n{layout.placement.describe()}"

    # -- the pipeline -------------------------------------------------------------------------------------------------------

    def dataframe(self, name: str) -> DataFrame:
        """A query's results as a streaming DataFrame, to be written with `writeStream` as usual.

        Each such DataFrame is a pipeline of its own with windows of its own: for several queries `start` shares them.
        """
        layout = self._layout(only=name)
        run_id = uuid.uuid4().hex
        claim(run_id)
        encoded = self._encoded(layout, layout.for_workers(digest(layout)), run_id)
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
            layout = taken.bind(self._layout())
            plan = layout.for_workers(digest(layout))  # what cannot be planned is not started
            run_id = uuid.uuid4().hex
            staged, locks = claim_sinks(self._spark, layout, given, taken, run_id)
            running = RunningSession(self._explained, layout, given, run_id, staged, (taken, *locks))
            undo.callback(running.clear)
            claim(run_id)
            for staging in staged.values():
                staging.prepare()
            writer = self._encoded(layout, plan, run_id, staged).writeStream.foreachBatch(running.write_batch)
            writer = writer.outputMode("append").option("checkpointLocation", taken.directory.uri)
            running.begin(triggered(writer, options))
            undo.pop_all()
        self._is_started = True
        return running

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
        streams = tuple(_projected(schema, queries) for name, schema in registry.streams.items() if name in used)
        layout = Layout(streams, plans, registry.config, self._shards, registry.budget)
        if only is None:
            self._drafted = layout
        return layout

    def _encoded(
        self, layout: Layout, plan: WorkerPlan, run_id: str, staged: Mapping[int, Staging] | None = None
    ) -> DataFrame:
        text, ids = plan.to_json(), self._shard_ids(layout.placement.total)
        # The batch's own time: a replay reads the same.
        clock = [F.unix_micros(F.current_timestamp()).alias(CLOCK)] if layout.needs_clock else []
        pieces = []
        for number, stream in enumerate(layout.streams):
            frame = self._frames[stream.name].select(*(F.col(f"`{name}`") for name in stream.columns.names), *clock)
            pieces.append(frame.mapInArrow(cutter(text, number, ids), from_arrow_schema(CUT_SCHEMA)))
        processor = ShardProcessor(text, ids, run_id, staged)
        joined = (
            reduce(DataFrame.unionAll, pieces)
            .groupBy("shard")
            .transformWithStateInPandas(processor, outputStructType=RESULT_SCHEMA, outputMode="append", timeMode="none")
        )
        return joined.observe("dovetail", *observed(layout))

    def _shard_ids(self, count: int) -> list[int]:
        """Numbers that Spark's hash partitioner spreads evenly over any number of partitions that divides the shards'.

        They are the keys of the stored state, so they must depend on nothing but the number of shards.
        """
        tried = self._spark.range(count * _MOST_TRIED_IDS).select(
            F.col("id").cast("int").alias("id"), F.expr(f"pmod(hash(cast(id as int)), {count})").alias("part")
        )
        first: dict[int, int] = {}
        for row in tried.sort("id").collect():
            first.setdefault(row.part, row.id)
        return [first[part] for part in range(count)]


def _projected(stream: StreamSchema, queries: Sequence[JoinQuery]) -> StreamSchema:
    """A stream with the columns its queries use; all of them where a count window orders ties by content."""
    needed = {stream.event_time, stream.progress_by}
    for query in queries:
        own = {ref.alias for ref in query.refs if ref.stream == stream.name}
        if own and any(isinstance(ref.window, CountWindow) for ref in query.refs):
            return stream
        expressions = [output.expression for output in query.outputs]
        expressions += [condition.expression for condition in (*query.conditions, *query.filters)]
        expressions += [key.expression for group in query.classes for key in group.keys]
        needed |= {c.name for expression in expressions for c in columns(expression) if c.alias in own}
    return replace(stream, columns=pa.schema([field for field in stream.columns if field.name in needed]))
