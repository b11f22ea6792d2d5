"""The job: streams, queries, shared plan. Sessions hold one; every change makes another.

Each query has an *individual plan*, its `QueryPlan`. While streams and queries are being *declared*, a query is only checked: that
it can be planned, and that it fits the budget with the others. When the job begins to *run*, all queries are planned jointly. A
*late* query, one that is added after that, must fit what the others leave of the budget. It has a *standalone* join, which runs its
individual plan, until it has caught up and the monitor plans it with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dovetail.config import Budget, Config, StrategyOption
from dovetail.errors import BudgetError, ConfigError, listed, suggestion
from dovetail.optimizer.adapt.proposal import Proposal, propose
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.expressions import with_expressions
from dovetail.optimizer.graph.hints import hints_for, parse_hint
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.ordering.problem import ProbeOrders
from dovetail.optimizer.planner import PlanningOptions, plan_query
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.plan.sheddable import check_sheddable
from dovetail.plan.steps import Cell, JoinStep
from dovetail.plan.subset import restrict_plan
from dovetail.query.catalog import check_name
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.admission import CostUpperBound, ShardPlacement, cost_upper_bound, remaining_budget
from dovetail.session.assumptions import has_unknown_selectivities, with_assumptions
from dovetail.session.registered_query import RegisteredQuery, check_backfill


@dataclass(frozen=True)
class Job:
    """Streams, queries with their starts, configuration and shared plan."""

    config: Config
    budget: Budget | None = None
    placement: ShardPlacement | None = None
    """Shards of the queries; None in one process."""
    streams: Mapping[str, StreamSchema] = field(default_factory=dict)
    hints: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Selectivities that users gave, by pair of aliases or streams."""
    registered: Mapping[str, RegisteredQuery] = field(default_factory=dict)
    adopted_plan: SharedPlan | None = None
    """The joint plan once a session has adopted it; None while queries are declared, and on Spark until they are replanned."""
    upper_bound: CostUpperBound | None = field(default_factory=CostUpperBound)
    """Upper bound of the queries' cost, with their joint planning: kept under a budget and for strategy `exact`.

    None after a query was dropped or added late, and after a restore, until the next `with_query`.
    """

    def __str__(self) -> str:
        return f"streams {listed(self.streams)} and queries {listed(self.registered)}"

    @cached_property
    def queries(self) -> dict[str, JoinQuery]:
        return {name: query.plan.query for name, query in self.registered.items()}

    @cached_property
    def plans(self) -> dict[str, QueryPlan]:
        """By query, its individual plan."""
        return {name: query.plan for name, query in self.registered.items()}

    @cached_property
    def planned_together(self) -> dict[str, QueryPlan]:
        """Individual plans of the jointly planned queries: the first, and late ones that have caught up."""
        return {name: query.plan for name, query in self.registered.items() if not query.start.is_standalone}

    @cached_property
    def standalone_queries(self) -> dict[str, RegisteredQuery]:
        """The late queries that are not planned with the others yet."""
        return {name: query for name, query in self.registered.items() if query.start.is_standalone}

    # -- declaring ----------------------------------------------------------------------------------------------------------

    def with_stream(self, schema: StreamSchema) -> Job:
        if schema.name in self.streams:
            raise ConfigError(
                f"stream {schema.name!r} is already declared",
                "give the second one another name; in a notebook, make the session anew in this cell",
            )
        return replace(self, streams={**self.streams, schema.name: schema})

    def with_hint(self, condition: str, value: float) -> Job:
        """Return the job with a selectivity; it holds for queries registered afterwards."""
        return replace(self, hints={**self.hints, **parse_hint(condition, value, self.streams)})

    def plan_individually(
        self, name: str, sql: str, orders: ProbeOrders | None, time_zone: str = "UTC"
    ) -> RegisteredQuery:
        """Parse a query and make its individual plan."""
        check_name("query", name)
        query = parse_query(name, sql, self.streams, time_zone)
        if name in self.registered:
            raise ConfigError(
                f"query {name!r} is already registered",
                "choose another name, or in a notebook make the session anew in this cell; drop_query() removes a query that runs",
            )
        if self.config.shedding is not None:
            check_sheddable(query, self.config.shedding)
        options = PlanningOptions(hints_for(self.hints, query.refs), orders)
        return RegisteredQuery(plan_query(query, self.streams, self.config, options), options)

    def with_query(self, query: RegisteredQuery) -> Job:
        """Return the job with another declared query; raise an error unless all can be planned and fit."""
        job = self._with(query, adopted_plan=None)
        try:
            return replace(job, upper_bound=cost_upper_bound(job, query.plan))
        except BudgetError as error:
            raise with_assumptions(error, [query.plan], self.streams) from None

    def _with(self, query: RegisteredQuery, **changes: Any) -> Job:
        placement, name = self.placement, query.plan.query.name
        if placement is not None:
            placement = placement.with_query(query.plan.query, self.streams)
        return replace(self, registered={**self.registered, name: query}, placement=placement, **changes)

    def unshared_execution_plan(self, plans: Iterable[QueryPlan], before: ExecutionPlan | None = None) -> ExecutionPlan:
        """Return an execution plan in which each query has a join of its own, after those of `before`."""
        lowering = Lowering(self.streams, self.config)
        return (before or ExecutionPlan()).with_steps(map(lowering.individual_step, plans))

    def unit_costs(self, unshared: ExecutionPlan) -> UnitCosts:
        """Return the unit costs of the windows that joins share."""
        from dovetail.calibrate import unit_costs_for  # noqa: PLC0415 - loads the engine, which a driver without budget need not

        return unit_costs_for(unshared, self.streams, None if self.placement is None else self.placement.window_copies)

    # -- running ------------------------------------------------------------------------------------------------------------

    @cached_property
    def joint_plan(self) -> SharedPlan:
        """The plan of the jointly planned queries: the adopted one if it is of these, else a new one."""
        adopted = self.adopted_plan
        if adopted is not None and {answer.query for answer in adopted.answers} == self.planned_together.keys():
            return with_expressions(adopted, self.planned_together)
        planning = None if self.upper_bound is None else self.upper_bound.planning
        if planning is None or (planning.plans, planning.scopes) != (self.planned_together, self._scopes):
            planning = self.joint_planning()
        has_byte_cap = self.config.shedding is not None and self.config.shedding.max_bytes is not None
        # Under a cap in bytes nothing is materialized, because the size of a materialized join has no bound.
        return planning.plan_windows_only() if has_byte_cap else planning.plan()

    @property
    def has_adopted_plan(self) -> bool:
        """Whether a session has adopted a plan of its queries; on Spark only after a late query or a replan."""
        return self.adopted_plan is not None or bool(self.standalone_queries)

    def with_initial_plan(self) -> Job:
        """Return the job as it begins to run: it adopts the joint plan."""
        if not self.planned_together:
            return self
        job = replace(self, adopted_plan=self.joint_plan)
        # If `explain` has planned and lowered the declared queries, that plan runs.
        job.__dict__["joint_plan"], job.__dict__["joint_steps"] = self.joint_plan, self.joint_steps
        return job

    @cached_property
    def steps(self) -> tuple[JoinStep, ...]:
        """The joins to run."""
        return (*self.joint_steps, *self.standalone_steps.values())

    @property
    def explained_plan(self) -> SharedPlan | None:
        """The joint plan if `explain` shows it: under a budget, or if joins are shared or materialized."""
        if not self.planned_together:
            return None
        is_shared = self.joint_plan.materialized or not all(step.is_individual for step in self.joint_steps)
        return self.joint_plan if self.budget is not None or is_shared else None

    @cached_property
    def joint_steps(self) -> tuple[JoinStep, ...]:
        """The joins of the joint plan, in its order."""
        if not self.planned_together:
            return ()
        return Lowering(self.streams, self.config, cells=self._cells).steps(self.joint_plan)

    @cached_property
    def standalone_steps(self) -> dict[str, JoinStep]:
        """By late query, its standalone join."""
        return {name: self.standalone_step(query) for name, query in self.standalone_queries.items()}

    def standalone_step(self, query: RegisteredQuery) -> JoinStep:
        """Return the standalone join of a late query."""
        start = query.start
        lowering = Lowering(
            self.streams, self.config, start.first_batch, self._cells, start.backfill, start.complete_from
        )
        return lowering.individual_step(query.plan)

    @cached_property
    def _cells(self) -> Mapping[str, Cell] | None:
        return None if self.placement is None else self.placement.cells

    @cached_property
    def standalone_plans(self) -> dict[str, SharedPlan]:
        """By late query, the plan of its standalone join, which states its load."""
        budget = None if self.budget is None else Budget()
        return {
            name: self.planning({name: query.plan}, budget, "mjoin").plan()
            for name, query in self.standalone_queries.items()
        }

    def joint_planning(self, units: UnitCosts | None = None) -> JointPlanning:
        """Return the planning of the queries that are planned jointly."""
        sheds_on_shards = self.config.shedding is not None and self.placement is not None
        return self.planning(self.planned_together, self.budget, "mjoin" if sheds_on_shards else None, units)

    def planning(
        self,
        plans: Mapping[str, QueryPlan],
        budget: Budget | None,
        strategy: StrategyOption | None = None,
        units: UnitCosts | None = None,
    ) -> JointPlanning:
        """Return the planning of some queries; under a budget, `units` default to those of their windows."""
        config = self.config if strategy is None else replace(self.config, strategy=strategy)
        if units is None and budget is not None:
            units = self.unit_costs(self.unshared_execution_plan(plans.values()))
        return JointPlanning(plans, config, budget, units, self._scopes)

    @property
    def _scopes(self) -> Mapping[str, str]:
        return {} if self.placement is None else self.placement.scopes

    def with_late_query(self, query: RegisteredQuery, stats: RuntimeStats | None = None) -> Job:
        """Return the job with a late query; raise an error unless it fits what the others leave of the budget."""
        name, plan = query.plan.query.name, self.plan_late_query(query, stats)
        job = self.with_late_query_unchecked(query)
        # The other queries are not planned or lowered again.
        job.__dict__["standalone_plans"] = {**self.standalone_plans, name: plan}
        job.__dict__["standalone_steps"] = {**self.standalone_steps, name: job.standalone_step(query)}
        job.__dict__["joint_steps"] = self.joint_steps
        return job

    def plan_late_query(self, query: RegisteredQuery, stats: RuntimeStats | None = None) -> SharedPlan:
        """Return the standalone plan of a late query that is to be added; raise an error if it is refused.

        What the others leave of the budget follows from `stats` where their selectivities were unknown.
        """
        name = query.plan.query.name
        check_backfill(query.plan.query, self.config, backfill=query.start.backfill)
        if name in {step.name for step in self.steps}:
            raise ConfigError(f"query {name!r} has the name of a join in the plan", "give it another name")
        remaining = None if self.budget is None else remaining_budget(self.budget, self._loads(stats))
        try:
            return self.planning({name: query.plan}, remaining, "mjoin").plan()
        except BudgetError as error:
            error = with_assumptions(error, [query.plan], self.streams)
            message = f"running queries leave too little of the budget: {error.message}"
            raise BudgetError(message, f"drop a query, or {error.hint}", resource=error.resource) from None

    def with_late_query_unchecked(self, query: RegisteredQuery) -> Job:
        """Return the job with a late query, without checking the budget."""
        return self._with(query, upper_bound=None)

    def _loads(self, stats: RuntimeStats | None) -> list[Load]:
        """Return the loads of the running queries; those with unknown selectivities are measured by `stats`."""
        running = [*([self.joint_plan] if self.planned_together else []), *self.standalone_plans.values()]
        return [self._current_load(plan, stats) for plan in running]

    def _current_load(self, running: SharedPlan, stats: RuntimeStats | None) -> Load:
        plans = {answer.query: self.plans[answer.query] for answer in running.answers}
        if not any(map(has_unknown_selectivities, plans.values())):
            return running.load
        measured = plans if stats is None else self._planned_by(stats, plans)
        return self.planning(measured, self.budget).optimistic.load_of([running])

    def check_query(self, name: str) -> None:
        if name not in self.registered:
            raise ConfigError(
                f"there is no query {name!r}; registered: {listed(self.registered)}",
                suggestion(name, self.registered, "") or None,
            )

    def without_query(self, name: str) -> Job:
        """Return the job without a query, and without what only that query needed."""
        self.check_query(name)
        adopted_plan = _restrict(self.adopted_plan, self.planned_together.keys() - {name})
        registered = {other: query for other, query in self.registered.items() if other != name}
        placement = self.placement
        if placement is not None:
            placement = placement.restricted(query.plan.query for query in registered.values())
        job = replace(self, registered=registered, placement=placement, adopted_plan=adopted_plan, upper_bound=None)
        if self.placement is None:
            if name in self.standalone_queries:
                job.__dict__["joint_steps"] = self.joint_steps
            _copy_standalone_caches(job, self)
        return job

    def without_materialized_joins(self) -> Job:
        """Return the job with a plan that materializes no joins, at any cost in CPU."""
        if not self.planned_together or not self.joint_plan.materialized:
            return self
        return replace(self, adopted_plan=JointPlanning(self.planned_together, self.config).plan_windows_only())

    # -- adapting -----------------------------------------------------------------------------------------------------------

    @property
    def can_replan(self) -> bool:
        """Whether a replan may help: there is a budget, a strategy that materializes joins, or a late query."""
        can_materialize = JointPlanning({}, self.config, self.budget).strategy != "mjoin"
        return self.budget is not None or can_materialize or bool(self.standalone_queries)

    def caught_up(self, watermarks: Mapping[str, int]) -> list[str]:
        """Return the late queries that have caught up and can be planned with the others."""
        running = [plan.query for plan in self.plans.values()]
        return [
            name
            for name, query in self.standalone_queries.items()
            if query.start.has_caught_up(query.plan.query, watermarks, self.streams, running)
        ]

    def propose(
        self,
        stats: RuntimeStats,
        cause: str,
        caught_up: Collection[str],
        batch_rate: float,
        load_near_limit: Load | None,
    ) -> Proposal | None:
        """Return a better plan for the first and the `caught_up` queries; None if none is worth a change."""
        joined = {name: plan for name, plan in self.plans.items() if name in self.planned_together or name in caught_up}
        if not joined:
            return None
        plans = self._planned_by(stats, joined)
        others = [plan.load for name, plan in self.standalone_plans.items() if name not in joined]
        budget = None if self.budget is None else remaining_budget(self.budget, others)
        # A materialized join that was dropped to make room must not come back while tuples may be shed.
        planning = self.planning(plans, budget, None if self.config.shedding is None else "mjoin").with_batch_rate(
            batch_rate
        )
        running = [self.joint_plan] if self.planned_together else []
        running += [plan for name, plan in self.standalone_plans.items() if name in joined]
        return propose(planning, running, cause, load_near_limit)

    def _planned_by(self, stats: RuntimeStats, plans: Mapping[str, QueryPlan]) -> dict[str, QueryPlan]:
        """Return the individual plan of each query, by measured rates and selectivities."""
        measured = stats.planner_stats({name: plan.query for name, plan in plans.items()}, plans)
        return {
            name: plan_query(plan.query, self.streams, self.config, self.registered[name].options, measured[name])
            for name, plan in plans.items()
        }

    def replanned(self, proposal: Proposal) -> Job:
        """Return the job with a proposed plan; late queries in it are planned jointly from now on."""
        registered = dict(self.registered)
        for name, plan in proposal.plans.items():
            query = registered[name]
            registered[name] = replace(
                query, plan=plan, start=replace(query.start, is_planned_jointly=query.start.first_batch > 0)
            )
        return _copy_standalone_caches(replace(self, registered=registered, adopted_plan=proposal.plan), self)

    def with_standalone_late_queries(self) -> Job:
        """Return the job with standalone joins for all late queries, also those planned with the others."""
        registered = {
            name: replace(query, start=replace(query.start, is_planned_jointly=False))
            for name, query in self.registered.items()
        }
        job = replace(self, registered=registered)
        return replace(job, adopted_plan=_restrict(self.adopted_plan, job.planned_together.keys()))

    def with_start_times(self, first_batch: int, max_event_times: Mapping[str, int]) -> Job:
        """Return the job with the event times before `first_batch` in the late queries that start with it."""
        registered = dict(self.registered)
        for name, query in self.registered.items():
            if first_batch and query.start.first_batch == first_batch:
                registered[name] = replace(query, start=replace(query.start, max_event_times=max_event_times))
        return replace(self, registered=registered)


def _copy_standalone_caches(job: Job, before: Job) -> Job:
    """Copy the cached plans and joins of late queries from the job before a change."""
    for cached in ("standalone_plans", "standalone_steps"):
        values = getattr(before, cached)
        job.__dict__[cached] = {name: value for name, value in values.items() if name in job.standalone_queries}
    return job


def _restrict(plan: SharedPlan | None, queries: Iterable[str]) -> SharedPlan | None:
    return None if plan is None else restrict_plan(plan, queries)
