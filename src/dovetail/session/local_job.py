"""A job and the engine that runs it.

It adopts changed jobs, watches the load, and migrates to better plans.
"""

from __future__ import annotations

import time as clock
from contextlib import suppress
from dataclasses import replace

from dovetail._display import count_of
from dovetail.engine.measure import measure
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding.caps import check_shedding_cap
from dovetail.engine.time.progress import ArrivalStats
from dovetail.errors import ConfigError, PlanError, warn
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.optimizer.adapt.runtime_stats import ShardGroupReport
from dovetail.optimizer.ordering.problem import ProbeOrders
from dovetail.plan.execution import ExecutionPlan
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.session.arrow_input import ArrowInput
from dovetail.session.call_warnings import TimeArguments, invisible_to_backfill
from dovetail.session.job import Job
from dovetail.session.job_html import job_text
from dovetail.session.monitor import Meter, Monitor
from dovetail.session.registered_query import BackfillReach, QueryStart, backfill_reach
from dovetail.session.stream_warnings import StreamWarnings
from dovetail.session.synchronized import SynchronizedSession
from dovetail.session.unused_selectivities import unused_selectivities


class LocalJob(SynchronizedSession):
    """Keeps a job and its engine in step."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stream_warnings = StreamWarnings()
        self._arrow_input, self._time_arguments = ArrowInput(), TimeArguments()
        self._refused_query: str | None = None
        """The last query that was refused."""
        self._has_warned_of_late_query = False
        self._checked_hints = job.hints if job.adopted_plan is not None else {}
        """The selectivities of the user that were checked for having an effect."""
        self._warns_of_no_queries = False
        """Whether to warn of the push under way once it has been checked."""
        self._last_adoption: tuple[tuple[ExecutionPlan, Job], ...] = ()
        """The plans and jobs before and after the last change: a rollback leads to one of the two."""
        self._batch_time: int | None = None
        """The clock at the last push, in microseconds since 1970."""
        self._engine = self._new_engine()
        self._monitor, self._meter = Monitor(job.budget), Meter()

    def __repr__(self) -> str:
        results = sum(collector.results for collector in self._engine.collectors.values())
        counts = count_of(self._engine.batches, "batch", "batches"), count_of(results, "result", "results")
        return f"<{type(self).__name__}: {job_text(self._job)}; {', '.join(counts)}>"

    def _new_engine(self) -> ShardEngine:
        engine = ShardEngine(self._job.config, replan=Replanner(self._job.config))
        engine.on_arrivals = self._warn_of_arrivals
        engine.plan_without_materialized = self._plan_without_materialized
        for schema in self._job.streams.values():
            engine.add_stream(schema)
        return engine

    @property
    def _is_running(self) -> bool:
        """Whether a batch was pushed, or time advanced.

        Until then streams and queries are being declared, and no joint plan runs.
        """
        return self._engine.batches > 0

    def _begin(self) -> None:
        """Start the queries that wait for the first batch."""
        if self._job.hints is not self._checked_hints and self._job.registered:
            checked, self._checked_hints = self._checked_hints, self._job.hints
            for text in unused_selectivities(self._job, checked):
                warn(text)
        if not self._is_running and self._job.adopted_plan is None and self._job.registered:
            self._adopt(self._job.with_initial_plan())

    def _register(
        self, name: str, sql: str, orders: ProbeOrders | None, *, backfill: bool, is_deliberate: bool = True
    ) -> BackfillReach | None:
        """Register a query; `is_deliberate`: the user knows that one added late does not see earlier tuples."""
        self._refused_query = name
        if not isinstance(backfill, bool):
            raise ConfigError.choice("query(backfill=...)", backfill, (True, False))
        job, query = self._job, self._job.plan_individually(name, sql, orders)
        shedding = job.config.shedding
        if shedding is not None:
            check_shedding_cap(shedding, job.unshared_execution_plan([*job.plans.values(), query.plan]), job.streams)
        for text in query.plan.query.warnings:
            warn(text)
        if not self._is_running:
            self._job, self._refused_query = job.with_query(query), None
            return backfill_reach(query.plan.query, self._engine.earliest_visible) if backfill else None
        times = {name: progress.max_event_time for name, progress in self._engine.progress.streams.items()}
        query = replace(query, start=QueryStart(self._engine.batches, backfill, max_event_times=times))
        late = job.with_late_query(query, self._monitor.stats)
        if not (backfill or is_deliberate):
            self._warn_of_late_query(query.plan.query)
        for text in invisible_to_backfill(late.standalone_steps[name], self._engine) if backfill else ():
            warn(text)
        self._adopt(late, until_delivered=True)
        self._refused_query = None
        return backfill_reach(query.plan.query, self._engine.earliest_visible) if backfill else None

    def _warn_of_late_query(self, query: JoinQuery) -> None:
        """Say once that a late query sees nothing of the tuples before it, if there were any."""
        streams = self._engine.progress
        if self._has_warned_of_late_query or not any(streams[ref.stream].arrived for ref in query.refs):
            return
        self._has_warned_of_late_query = True
        warn(
            f"query {query.name!r} was registered after tuples had been pushed: it sees nothing of them\n"
            "Hint: add_query(...) adds a query on purpose; backfill=True joins new tuples also with those in the windows"
        )

    def _warn_of_no_queries(self) -> None:
        """Warn of a push that no query sees."""
        when, hint = "before any query was registered", "call query() first"
        if self._is_running:
            when = "when all queries had been dropped"
        elif self._refused_query is not None:
            when, hint = (
                "after every query was refused",
                f"correct the query {self._refused_query!r}; its error says how",
            )
        warn(f"push got tuples {when}: they are counted and dropped\nHint: {hint}")

    def _adopt(self, job: Job, *, until_delivered: bool = False) -> None:
        """Switch to another job; joins that stay keep the probe orders that they have."""
        plan = ExecutionPlan.of(job.steps, self._engine.plan).with_orders_of(self._engine.plan)
        self._last_adoption = ((self._engine.plan, self._job), (plan, job))
        with self._engine.savepoint(until_delivered=until_delivered):
            self._engine.adopt(plan)
            self._job = job

    def _complete_rollback(self) -> None:
        """Take the job whose plan the engine has after a rollback.

        It has no streams that the engine does not have.
        """
        for plan, job in self._last_adoption:
            if self._engine.plan is plan:
                self._job = job
        if self._job.streams.keys() - self._engine.streams.keys():
            self._job = replace(self._job, streams=dict(self._engine.streams))

    def _warn_of_arrivals(self, schema: StreamSchema, arrivals: ArrivalStats) -> None:
        """Warn once per stream of dropped tuples and of event times in another unit.

        Nothing has changed yet: if warnings are errors, the batch can be pushed again.
        """
        if self._warns_of_no_queries:
            self._warns_of_no_queries = False
            self._warn_of_no_queries()
        for text in self._stream_warnings.new_warnings(
            schema,
            arrived=arrivals.arrived,
            late=arrivals.late,
            late_by=arrivals.late_by,
            ahead=arrivals.ahead,
            refused=arrivals.refused,
            max_event_time=arrivals.max_event_time,
        ):
            warn(text)

    # -- the monitor --------------------------------------------------------------------------------------------------------

    def _replan_if_due(self) -> None:
        """Compare measurements with budget and plan now and then; switch to a better plan if there is one."""
        engine, job, monitor = self._engine, self._job, self._monitor
        arrived = sum([progress.arrived for progress in engine.progress.streams.values()])
        if not monitor.is_due(arrived, engine.max_event_time) or not self._is_running:
            return
        if not job.can_replan:
            monitor.schedule_next_check(arrived)
            return
        measured = measure(engine, hot_values=False)
        watermarks = {name: progress.watermark for name, progress in engine.progress.streams.items()}
        caught_up = job.caught_up(watermarks) if job.config.adaptive else []
        reports = [ShardGroupReport({0: measured}, [run.step for run in engine.runs])]
        cause, breaches = monitor.check(
            engine.batches, reports, self._meter.take_load(measured.nodes), caught_up=caught_up
        )
        for breach in breaches:
            warn(f"{breach}\nHint: drop a query, shorten a window, or give the session a larger Budget")
        if cause is not None and job.config.adaptive:
            began, proposal = clock.perf_counter(), None
            with suppress(PlanError):  # the batch must not fail because no other plan was found
                proposal = job.propose(monitor.stats, cause, caught_up, monitor.batch_rate, monitor.load_near_limit)
            if proposal is not None:
                self._migrate(proposal, began)
            monitor.record_replan(helped=proposal is not None)

    def _migrate(self, proposal: Proposal, began: float) -> None:
        """Switch to the proposed plan from the next batch on."""
        self._adopt(self._job.replanned(proposal))
        self._monitor.record_migration(proposal.migration(self._engine.batches, clock.perf_counter() - began))

    def _plan_without_materialized(self) -> ExecutionPlan:
        """Return the plan to use when there is no room for materialized joins."""
        job = self._job.without_materialized_joins()
        plan = ExecutionPlan.of(job.steps, self._engine.plan)
        self._last_adoption = ((self._engine.plan, self._job), (plan, job))
        self._job = job
        return plan
