"""The job: streams, queries with their starts, and the shared plan. Sessions hold one; every change makes another.

While streams and queries are being *declared*, a query is only checked: that it can be planned, and that it fits the budget with the
others. When the job begins to *run*, all queries are planned together, once. A *late* query, one that is added after that, is planned
alone, within what the others leave of the budget, until it has caught up and the monitor plans it with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dovetail.config import Budget, Config, Strategy
from dovetail.errors import BudgetError, ConfigError, listed
from dovetail.optimizer.adapt.proposal import Proposal, propose
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.expressions import with_expressions
from dovetail.optimizer.graph.hints import hints_for, parse_hint
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import Orders, PlanningOptions, plan_query
from dovetail.optimizer.sharing import limits_of
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
from dovetail.session.admission import CostUpperBound, ShardPlacement, remaining_budget
from dovetail.session.registered_query import RegisteredQuery

_EASY_FRACTION = 0.8
"""If the upper bound of all queries uses at most this fraction of the budget, a query is admitted without joint planning."""


@dataclass(frozen=True)
class Job:
    """Streams, queries with their starts, configuration and shared plan."""

    config: Config
    budget: Budget | None = None
    placement: ShardPlacement | None = None
    """Shards of the queries; None in one process."""
    streams: Mapping[str, StreamSchema] = field(default_factory=dict)
    hints: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Selectivities that users gave, by pair of aliases."""
    registered: Mapping[str, RegisteredQuery] = field(default_factory=dict)
    chosen: SharedPlan | None = None
    """Plan of the queries that run together; None while they are declared, and on Spark until they are replanned."""
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
        """The individual plans of queries that are planned together: the first ones, and late ones that have caught up."""
        return {name: query.plan for name, query in self.registered.items() if not query.start.is_planned_alone}

    @cached_property
    def planned_alone(self) -> dict[str, RegisteredQuery]:
        """The late queries that have not been planned with the others yet."""
        return {name: query for name, query in self.registered.items() if query.start.is_planned_alone}

    # -- declaring ----------------------------------------------------------------------------------------------------------

    def with_stream(self, schema: StreamSchema) -> Job:
        if schema.name in self.streams:
            raise ConfigError(f"stream {schema.name!r} is already declared", "give the second one another name")
        return replace(self, streams={**self.streams, schema.name: schema})

    def with_hint(self, condition: str, value: float) -> Job:
        """Return the job with a selectivity; it holds for queries registered afterwards."""
        return replace(self, hints={**self.hints, **parse_hint(condition, value)})

    def bind(self, name: str, sql: str, orders: Orders | None, time_zone: str = "UTC") -> RegisteredQuery:
        """Parse a query and plan it alone."""
        check_name("query", name)
        query = parse_query(name, sql, self.streams, time_zone)
        if name in self.registered:
            raise ConfigError(
                f"query {name!r} is already registered",
                "give it another name, or drop_query() the first where it runs",
            )
        if self.config.shedding is not None:
            check_sheddable(query, self.config.shedding)
        options = PlanningOptions(hints_for(self.hints, query.aliases), orders)
        return RegisteredQuery(plan_query(query, self.streams, self.config, options), options)

    def with_query(self, query: RegisteredQuery) -> Job:
        """Return the job with a query declared; refuse one that cannot be planned, or does not fit, with the others."""
        job = self._with(query, chosen=None)
        return replace(job, upper_bound=_upper_bound(job, query.plan))

    def _with(self, query: RegisteredQuery, **changes: Any) -> Job:
        placement, bound = self.placement, query.plan.query
        if placement is not None:
            placement = placement.with_query(bound, self.streams)
        return replace(self, registered={**self.registered, bound.name: query}, placement=placement, **changes)

    def unshared(self, plans: Iterable[QueryPlan], before: ExecutionPlan | None = None) -> ExecutionPlan:
        """Return an execution plan in which each query has its own join, after those of `before`."""
        lowering = Lowering(self.streams, self.config)
        return (before or ExecutionPlan()).with_steps(map(lowering.unshared_step, plans))

    def unit_costs(self, unshared: ExecutionPlan) -> UnitCosts:
        """Return the unit costs of the windows that joins share."""
        from dovetail.calibrate import unit_costs_for  # noqa: PLC0415 - loads the engine, which a driver without budget need not

        return unit_costs_for(unshared, self.streams, None if self.placement is None else self.placement.copies)

    # -- running ------------------------------------------------------------------------------------------------------------

    @cached_property
    def shared_plan(self) -> SharedPlan:
        """The plan of the queries that are planned together: the chosen one, or else the first one."""
        if self.chosen is not None and {answer.query for answer in self.chosen.answers} == self.planned_together.keys():
            return with_expressions(self.chosen, self.planned_together)
        planning = None if self.upper_bound is None else self.upper_bound.planning
        if planning is None or (planning.plans, planning.scopes) != (self.planned_together, self._scopes):
            planning = self.joint_planning()
        has_byte_cap = self.config.shedding is not None and self.config.shedding.max_bytes is not None
        # Under a cap in bytes nothing is materialized, because the size of a materialized join has no bound.
        return planning.plan_windows_only() if has_byte_cap else planning.plan()

    @property
    def has_adopted_plan(self) -> bool:
        """Whether a session has adopted a plan of its queries; on Spark only after a late query or a replan."""
        return self.chosen is not None or bool(self.planned_alone)

    def begun(self) -> Job:
        """Return the job as it begins to run."""
        if not self.planned_together:
            return self
        job = replace(self, chosen=self.shared_plan)
        # If `explain` has planned and lowered the declared queries, that plan runs.
        job.__dict__["shared_plan"], job.__dict__["shared_steps"] = self.shared_plan, self.shared_steps
        return job

    @cached_property
    def steps(self) -> tuple[JoinStep, ...]:
        """The joins to run."""
        return (*self.shared_steps, *self.separate_steps.values())

    @property
    def explained_plan(self) -> SharedPlan | None:
        """The shared plan if `explain` shows it: under a budget, or if joins are shared or materialized."""
        if not self.planned_together:
            return None
        is_shared = self.shared_plan.states or not all(step.is_private for step in self.shared_steps)
        return self.shared_plan if self.budget is not None or is_shared else None

    @cached_property
    def shared_steps(self) -> tuple[JoinStep, ...]:
        """The joins of the shared plan, in its order."""
        if not self.planned_together:
            return ()
        return Lowering(self.streams, self.config, cells=self._cells).steps(self.shared_plan)

    @cached_property
    def separate_steps(self) -> dict[str, JoinStep]:
        """The joins of queries that are planned alone, by query."""
        return {name: self.separate_step(query) for name, query in self.planned_alone.items()}

    def separate_step(self, query: RegisteredQuery) -> JoinStep:
        """Return the join of a query that is planned alone."""
        start = query.start
        lowering = Lowering(self.streams, self.config, start.since, self._cells, start.backfill, start.complete_from)
        return lowering.unshared_step(query.plan)

    @cached_property
    def _cells(self) -> Mapping[str, Cell] | None:
        return None if self.placement is None else self.placement.cells

    @cached_property
    def separate_plans(self) -> dict[str, SharedPlan]:
        """The plan of each query that is planned alone."""
        budget = None if self.budget is None else Budget()
        return {
            name: self.planning({name: query.plan}, budget, "mjoin").plan()
            for name, query in self.planned_alone.items()
        }

    def joint_planning(self, units: UnitCosts | None = None) -> JointPlanning:
        """Return the planning of the queries that are planned together."""
        sheds_on_shards = self.config.shedding is not None and self.placement is not None
        return self.planning(self.planned_together, self.budget, "mjoin" if sheds_on_shards else None, units)

    def planning(
        self,
        plans: Mapping[str, QueryPlan],
        budget: Budget | None,
        strategy: Strategy | None = None,
        units: UnitCosts | None = None,
    ) -> JointPlanning:
        """Return the planning of some queries; without `units`, under a budget, by the unit costs of their windows."""
        config = self.config if strategy is None else replace(self.config, strategy=strategy)
        if units is None and budget is not None:
            units = self.unit_costs(self.unshared(plans.values()))
        return JointPlanning(plans, config, budget, units, self._scopes)

    @property
    def _scopes(self) -> Mapping[str, str]:
        return {} if self.placement is None else self.placement.scopes

    def with_running_query(self, query: RegisteredQuery) -> Job:
        """Return the job with a late query; it must fit what the others leave of the budget."""
        name, plan = query.plan.query.name, self.check_running_query(query)
        job = self.with_started_query(query)
        # The other queries are not planned or lowered again.
        job.__dict__["separate_plans"] = {**self.separate_plans, name: plan}
        job.__dict__["separate_steps"] = {**self.separate_steps, name: job.separate_step(query)}
        job.__dict__["shared_steps"] = self.shared_steps
        return job

    def check_running_query(self, query: RegisteredQuery) -> SharedPlan:
        """Return the plan of a query that is to be added late; raise an error if it is refused."""
        name = query.plan.query.name
        check_backfill(query.plan.query, self.config, backfill=query.start.backfill)
        if name in {step.name for step in self.steps}:
            raise ConfigError(f"query {name!r} has the name of a join in the plan", "give it another name")
        remaining = None if self.budget is None else remaining_budget(self.budget, self._loads())
        try:
            return self.planning({name: query.plan}, remaining, "mjoin").plan()
        except BudgetError as error:
            raise BudgetError(f"running queries leave too little of the budget: {error}") from None

    def with_started_query(self, query: RegisteredQuery) -> Job:
        """Return the job with a late query, without checking the budget."""
        return self._with(query, upper_bound=None)

    def _loads(self) -> list[Load]:
        return [
            *([self.shared_plan.load] if self.planned_together else []),
            *(plan.load for plan in self.separate_plans.values()),
        ]

    def check_query(self, name: str) -> None:
        if name not in self.registered:
            raise ConfigError(f"there is no query {name!r}; registered: {listed(self.registered)}")

    def without_query(self, name: str) -> Job:
        """Return the job without a query, and without what only that query needed."""
        self.check_query(name)
        chosen = None if self.chosen is None else restrict_plan(self.chosen, self.planned_together.keys() - {name})
        registered = {other: query for other, query in self.registered.items() if other != name}
        placement = self.placement
        if placement is not None:
            placement = placement.restricted(query.plan.query for query in registered.values())
        job = replace(self, registered=registered, placement=placement, chosen=chosen, upper_bound=None)
        if self.placement is None:
            if name in self.planned_alone:
                job.__dict__["shared_steps"] = self.shared_steps
            _keep_separate(job, self)
        return job

    def without_materialized_joins(self) -> Job:
        """Return the job with a plan that materializes nothing but windows, at any cost in CPU."""
        if not self.planned_together or not self.shared_plan.states:
            return self
        return replace(self, chosen=JointPlanning(self.planned_together, self.config).plan_windows_only())

    # -- adapting -----------------------------------------------------------------------------------------------------------

    @property
    def has_choice(self) -> bool:
        """Whether there is a budget to watch, or more than one plan for the queries."""
        can_materialize = JointPlanning({}, self.config, self.budget).strategy != "mjoin"
        return self.budget is not None or can_materialize or bool(self.planned_alone)

    def caught_up(self, watermarks: Mapping[str, int]) -> list[str]:
        """Return the late queries that have caught up and can be planned with the others."""
        return [
            name
            for name, query in self.planned_alone.items()
            if query.start.has_caught_up(query.plan.query, watermarks, self.streams)
        ]

    def propose(
        self,
        stats: RuntimeStats,
        cause: str,
        caught_up: Collection[str],
        batch_rate: float,
        load_near_limit: Load | None,
    ) -> Proposal | None:
        """Return a better plan for the first queries and those that have `caught_up`; None if none is worth a change."""
        joined = {name: plan for name, plan in self.plans.items() if name in self.planned_together or name in caught_up}
        if not joined:
            return None
        plans = self._planned_by(stats, joined)
        others = [plan.load for name, plan in self.separate_plans.items() if name not in joined]
        budget = None if self.budget is None else remaining_budget(self.budget, others)
        # A materialized join that was dropped to make room must not come back while tuples may be shed.
        planning = self.planning(plans, budget, None if self.config.shedding is None else "mjoin").with_batch_rate(
            batch_rate
        )
        running = [self.shared_plan] if self.planned_together else []
        running += [plan for name, plan in self.separate_plans.items() if name in joined]
        return propose(planning, running, cause, load_near_limit)

    def _planned_by(self, stats: RuntimeStats, plans: Mapping[str, QueryPlan]) -> dict[str, QueryPlan]:
        """Return the individual plan of each query, by measured rates and selectivities."""
        measured = stats.planner_stats({name: plan.query for name, plan in plans.items()}, plans)
        return {
            name: plan_query(plan.query, self.streams, self.config, self.registered[name].options, measured[name])
            for name, plan in plans.items()
        }

    def replanned(self, proposal: Proposal) -> Job:
        """Return the job with a proposed plan; late queries in it are merged, planned with the others from now on."""
        registered = dict(self.registered)
        for name, plan in proposal.plans.items():
            query = registered[name]
            registered[name] = replace(query, plan=plan, start=replace(query.start, is_merged=query.start.since > 0))
        return _keep_separate(replace(self, registered=registered, chosen=proposal.plan), self)

    def unmerged(self) -> Job:
        """Return the job with its late queries planned alone again."""
        registered = {
            name: replace(query, start=replace(query.start, is_merged=False)) for name, query in self.registered.items()
        }
        job = replace(self, registered=registered)
        return replace(
            job, chosen=None if self.chosen is None else restrict_plan(self.chosen, job.planned_together.keys())
        )

    def with_start_times(self, since: int, max_event_times: Mapping[str, int]) -> Job:
        """Return the job with the largest event times before batch `since`, for the queries that start with it."""
        registered = dict(self.registered)
        for name, query in self.registered.items():
            if since and query.start.since == since:
                registered[name] = replace(query, start=replace(query.start, max_event_times=max_event_times))
        return replace(self, registered=registered)


def _upper_bound(job: Job, added: QueryPlan) -> CostUpperBound | None:
    """Return the upper bound of a job with a query just added; raise an error if its queries cannot be planned.

    The bound adds up plans of single queries. Only if it comes near the budget, all queries are planned together.
    """
    name, before, is_exact = added.query.name, job.upper_bound, job.config.strategy == "exact"
    if job.budget is None:
        if not is_exact:
            JointPlanning({name: added}, job.config).find_feasible_plan()
            return None
        planning = job.joint_planning()
        return CostUpperBound().with_query(ExecutionPlan(), planning, planning.find_feasible_plan())
    unshared = job.unshared(job.plans.values()) if before is None else job.unshared([added], before.unshared)
    planning = job.joint_planning(job.unit_costs(unshared))
    if before is not None and not is_exact:
        alone = job.planning({name: added}, None, units=planning.units).plan_windows_only()
        upper_bound = before.with_query(unshared, planning, alone)
        if upper_bound.load.fits(Load(*(_EASY_FRACTION * limit for limit in limits_of(job.budget)))):
            return upper_bound
    return CostUpperBound().with_query(unshared, planning, planning.find_feasible_plan())


def _keep_separate(job: Job, before: Job) -> Job:
    """Let a job take over the plans and joins of late queries from the job before a change."""
    for cached in ("separate_plans", "separate_steps"):
        values = getattr(before, cached)
        job.__dict__[cached] = {name: value for name, value in values.items() if name in job.planned_alone}
    return job


def check_backfill(query: JoinQuery, config: Config, *, backfill: bool) -> None:
    """Refuse `backfill` where the tuples from before the query are not known."""
    if backfill and config.shedding is not None:
        raise ConfigError(
            f"query {query.name!r} cannot see tuples from before it: some may have been shed, or not been kept because no query "
            "needed them",
            "leave backfill out, and its windows fill from now on",
        )
    if backfill and query.has_count_window:
        raise ConfigError(
            f"query {query.name!r} has count windows: the latest tuples from before it are no longer known",
            "leave backfill out, and its windows fill from now on",
        )
