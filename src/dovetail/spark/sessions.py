"""Session: declared streams and queries as one Structured Streaming pipeline.

    source_i -> project -> cut by shard -> union -> group by shard -> join -> decode -> sinks

One streaming query runs all joins; what becomes of its results is in `running`.
"""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from dovetail.config import Budget, Config
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, listed
from dovetail.optimizer.hints import hints_for, parse_hint
from dovetail.optimizer.joint import Together
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.plan.explain import Explanation, explain
from dovetail.plan.nodes import QueryPlan
from dovetail.query.catalog import Catalog, check_name
from dovetail.query.expressions import columns
from dovetail.query.model import CountWindow, JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.spark.arguments import check_checkpoint, check_frame, check_sinks, check_trigger, triggered
from dovetail.spark.builder import check
from dovetail.spark.checkpoint import Checkpoint
from dovetail.spark.layout import Layout
from dovetail.spark.live import claim
from dovetail.spark.metrics import observed
from dovetail.spark.places import Place
from dovetail.spark.running import RunningSession, claim_sinks, clear_ended, decoded
from dovetail.spark.sinks import Sink
from dovetail.spark.stages import CLOCK, CUT_SCHEMA, RESULT_SCHEMA, ShardProcessor, cutter
from dovetail.spark.staging import Staging

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
        self._budget = budget
        self._config = config or Config()
        self._shards = shards or 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self._catalog = Catalog()
        self._frames: dict[str, DataFrame] = {}
        self._hints: dict[frozenset[str], float] = {}
        self._choices: dict[str, PlanChoices] = {}
        self._plans: dict[str, QueryPlan] = {}
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
        self._catalog.declare_stream(
            name, schema, event_time, lateness, rate, progress_by, idle_after=idle_after, max_ahead=max_ahead
        )
        self._frames[name] = frame

    def query(self, name: str, sql: str, probe_orders: Mapping[str, Sequence[str]] | None = None) -> None:
        """Register a query; see `LocalSession.query`."""
        self._check_declaring(f"query {name!r}")
        check_name("query", name)
        zone = str(self._spark.conf.get("spark.sql.session.timeZone"))
        query = parse_query(name, sql, self._catalog.streams, zone)
        self._catalog.check_new_query(name)
        for text in query.warnings:
            warnings.warn(text, DovetailWarning, stacklevel=2)
        choices = PlanChoices(hints_for(self._hints, query.aliases), probe_orders)
        self._plans[name] = plan_query(query, self._catalog.streams, self._config, choices)
        self._catalog.add_query(query)
        self._choices[name] = choices
        whole = self._budget is not None or self._config.strategy == "exact"
        try:
            self._together(self._layout(None if whole else name)).check()
        except DovetailError:
            self._catalog.drop_query(name)
            del self._choices[name]
            raise

    def selectivity(self, condition: str, value: float) -> None:
        """Tell the planner which share of pairs meets a condition; see `LocalSession.selectivity`."""
        self._check_declaring(f"the selectivity of {condition!r}")
        self._hints.update(parse_hint(condition, value))

    def _check_declaring(self, what: str) -> None:
        if self._is_started:
            raise ConfigError(
                f"{what} comes after start(): what runs was settled then, and this would run nowhere",
                "declare everything before start(); for more queries make a new Session, with a checkpoint and sinks of its own "
                "(adding queries to one that runs is not there yet)",
            )

    def explain(self, form: str = "text") -> Explanation:
        """Show the plan: `text` for people, `dict` for programs, `mermaid` for a picture."""
        return self.explain_run(form, self._planned(self._layout()), None)

    def explain_run(self, form: str, layout: Layout, measured: Mapping[str, Any] | None) -> Explanation:
        """The plan of a layout, and what its shards have measured, if they run."""
        plan = layout.joint.plan if self._budget is not None or not layout.joint.is_plain else None
        units = None
        if measured:
            from dovetail.calibrate import units_of  # noqa: PLC0415 - it loads the engine

            units = units_of(measured)
        described = explain(
            self._catalog, layout.joint.run.steps, self._config, form, measured=measured, units=units, plan=plan
        )
        return described if form != "text" else f"{described}\n\n{layout.describe_shards()}"

    # -- the pipeline -------------------------------------------------------------------------------------------------------

    def dataframe(self, name: str) -> DataFrame:
        """A query's results as a streaming DataFrame, to be written with `writeStream` as usual.

        Each such DataFrame is a pipeline of its own with windows of its own: for several queries `start` shares them.
        """
        layout = self._planned(self._layout(only=name))
        run = uuid.uuid4().hex
        claim(run)
        encoded = self._encoded(layout, run)
        return decoded(encoded, 0, layout.bound[name])

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
        given = check_sinks(sinks, self._catalog.queries)
        options, path = check_trigger(trigger), check_checkpoint(checkpoint)
        clear_ended()
        with ExitStack() as undo:  # what a start that fails has taken
            taken = Checkpoint.open(Place.of(self._spark, path))
            undo.callback(taken.release)
            layout = self._planned(taken.bind(self._layout()))
            run = uuid.uuid4().hex
            staged, locks = claim_sinks(self._spark, layout, given, taken, run)
            running = RunningSession(self, layout, given, run, staged, (taken, *locks))
            undo.callback(running.clear)
            claim(run)
            for staging in staged.values():
                staging.prepare()
            writer = self._encoded(layout, run, staged).writeStream.foreachBatch(running.write_batch)
            writer = writer.outputMode("append").option("checkpointLocation", taken.place.uri)
            running.begin(triggered(writer, options))
            undo.pop_all()
        self._is_started = True
        return running

    def _layout(self, only: str | None = None) -> Layout:
        names = [only] if only is not None else list(self._catalog.queries)
        if not names or any(name not in self._catalog.queries for name in names):
            raise ConfigError(
                f"there is no query {only!r}; registered: {listed(self._catalog.queries)}", "add one with query()"
            )
        queries = [self._catalog.queries[name] for name in names]
        used = dict.fromkeys(ref.stream for query in queries for ref in query.refs)
        streams = tuple(
            _projected(self._catalog.streams[stream], queries) for stream in self._catalog.streams if stream in used
        )
        choices = tuple((name, json.dumps(self._choices[name].to_json())) for name in names)
        zones = tuple((q.name, q.time_zone) for q in queries if q.time_zone != "UTC")
        texts = tuple((q.name, q.sql) for q in queries)
        return Layout(streams, texts, choices, self._config, self._shards, time_zones=zones)

    def _planned(self, layout: Layout) -> Layout:
        """With a plan for all queries; made last, for what can be shared depends on where tuples lie."""
        return replace(layout, plan=json.dumps(self._together(layout).plan().to_json()))

    def _together(self, layout: Layout) -> Together:
        if self._budget is None:
            return replace(layout.together(), plans=self._plans)
        from dovetail.calibrate import units_for  # noqa: PLC0415 - only who has a budget loads the engine here

        plans = [plan_query(query, layout.catalog, self._config) for query in layout.bound.values()]
        return layout.together(self._budget, units_for(plans, layout.catalog, layout.copies))

    def _encoded(self, layout: Layout, run: str, staged: Mapping[int, Staging] | None = None) -> DataFrame:
        text, ids = layout.to_json(), self._shard_ids(layout.total)
        # The batch's own time: a replay reads the same.
        clock = [F.unix_micros(F.current_timestamp()).alias(CLOCK)] if layout.needs_clock else []
        pieces = []
        for number, stream in enumerate(layout.streams):
            frame = self._frames[stream.name].select(*(F.col(f"`{name}`") for name in stream.columns.names), *clock)
            pieces.append(frame.mapInArrow(cutter(text, number, ids), CUT_SCHEMA))
        processor = ShardProcessor(text, ids, run, staged)
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
            F.col("id").cast("int").alias("id"), F.expr(f"pmod(hash(cast(id as int)), {count})").alias("place")
        )
        first: dict[int, int] = {}
        for row in tried.sort("id").collect():
            first.setdefault(row.place, row.id)
        return [first[place] for place in range(count)]


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
