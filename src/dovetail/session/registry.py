"""What a session was told, and the plans that follow from it: declared, parsed, planned, checked, and taken back if refused.

While streams and queries are being *declared*, a query is only checked: that it can be run, and that it fits the budget with those
before it. When the session begins to *run*, all queries are planned together, once. A query that comes later is planned by itself,
within what the others leave of the budget. Queries that were planned together are a `Cohort`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import Any

from dovetail.codec import Count, Time, from_json, to_json
from dovetail.config import Budget, Config
from dovetail.errors import BudgetError, ConfigError, StateError, listed
from dovetail.optimizer.adapt.proposal import Proposal, propose
from dovetail.optimizer.adapt.runtime_stats import RuntimeStats
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.hints import Selectivity, hints_for, parse_hint
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.lowering import Lowering
from dovetail.optimizer.planner import PlanChoices, plan_query
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.query_plan import PlannerStats, QueryPlan
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.plan.sheddable import check_sheddable
from dovetail.plan.steps import JoinStep
from dovetail.plan.subset import part_of
from dovetail.query.catalog import Catalog, check_name
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.admission import Cohort, CostUpperBound, Placed
from dovetail.session.monitor import Monitor, caught_up

Orders = Mapping[str, Sequence[str]]
SMALLEST = 1e-9
"""What is left of a budget that is used up."""
_EASY = 0.8
"""A query is let in without planning all of them again while they use no more than this part of the budget."""


class Registry:
    """Streams, queries and plans of a session."""

    def __init__(self, config: Config, budget: Budget | None, placed: Placed | None = None) -> None:
        """Start with nothing; `placed` says where tuples go if there are several shards."""
        self.config, self.budget = config, budget
        self._placed = placed
        self.catalog = Catalog()
        self.hints: dict[frozenset[str], float] = {}
        self.choices: dict[str, PlanChoices] = {}
        """What was asked of each query's plan."""
        self.plans: dict[str, QueryPlan] = {}
        """The plan that each query has by itself."""
        self.cohorts: tuple[Cohort, ...] = ()
        """Empty until queries run."""
        self._drafted: Cohort | None = None
        """The first cohort, if it was asked for before queries run."""
        self._most: CostUpperBound | None = CostUpperBound()

    def copy(self) -> Registry:
        """Another one that knows the same, and is changed by itself."""
        other = Registry(self.config, self.budget, self._placed)
        other.catalog, other.hints = self.catalog.copy(), dict(self.hints)
        other.choices, other.plans = dict(self.choices), dict(self.plans)
        other._most = self._most
        return other

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self.catalog.streams

    @property
    def queries(self) -> Mapping[str, JoinQuery]:
        return self.catalog.queries

    # -- declaring ----------------------------------------------------------------------------------------------------------

    def selectivity(self, condition: str, value: float) -> None:
        """Take note of the share of pairs that meets a condition."""
        self.hints.update(parse_hint(condition, value))

    def bind(self, name: str, sql: str, orders: Orders | None, time_zone: str = "UTC") -> QueryPlan:
        """Parse and plan a query, by itself. Changes nothing."""
        check_name("query", name)
        query = parse_query(name, sql, self.streams, time_zone)
        self.catalog.check_new_query(name)
        if self.config.shedding is not None:
            check_sheddable(query, self.config.shedding)
        return plan_query(query, self.streams, self.config, self._asked(query, orders))

    def _asked(self, query: JoinQuery, orders: Orders | None) -> PlanChoices:
        return PlanChoices(hints_for(self.hints, query.aliases), orders)

    def declare(self, plan: QueryPlan, orders: Orders | None) -> None:
        """Add a query before queries run; refuse one that cannot be planned, or does not fit, with those before it."""
        most = self._checked(plan)
        self._add(plan, orders)
        self.cohorts, self._most = (), most

    def _add(self, plan: QueryPlan, orders: Orders | None) -> None:
        name = plan.query.name
        self._drafted, self._most = None, None
        self.catalog.add_query(plan.query)
        self.choices[name], self.plans[name] = self._asked(plan.query, orders), plan

    def mend(self, streams: Iterable[str], running: Iterable[str] | None) -> None:
        """After a change that was not completed: know these `streams`, and of queries that run only those that are `running`."""
        self.catalog.keep(streams, self.plans.keys() & self.choices.keys())
        for names in (self.plans, self.choices):
            for name in names.keys() - self.queries.keys():
                del names[name]
        if running is not None:
            self.keep(running)
        else:
            self.cohorts, self._drafted, self._most = (), None, None

    def _checked(self, plan: QueryPlan) -> CostUpperBound | None:
        """What queries take at most, this one included; raise an error if they cannot be planned."""
        name, plans = plan.query.name, {**self.plans, plan.query.name: plan}
        if self.budget is None:
            JointPlanning(plans if self.config.strategy == "exact" else {name: plan}, self.config).check()
            return None
        if self._most is not None and self.config.strategy != "exact":
            own, placed = self._own([plan], self._most.own), self._place([plan], self._most.placed)
            units = self._units(own, placed)
            scopes = placed.scopes if placed is not None else {}
            alone = JointPlanning({name: plan}, self.config, units=units, scopes=scopes).apart()
            most = self._most.with_query(own, placed, units, alone)
            if most.load.fits(Load(*(_EASY * limit for limit in limits_of(self.budget)))):
                return most
        own, placed = self._own(plans.values()), self._place(plans.values(), self._placed)
        units = self._units(own, placed)
        scopes = placed.scopes if placed is not None else {}
        joint = JointPlanning(plans, self.config, self.budget, units, scopes).check()
        return CostUpperBound().with_query(own, placed, units, joint)

    def _own(self, plans: Iterable[QueryPlan], before: ExecutionPlan | None = None) -> ExecutionPlan:
        """Queries, each with a join of its own, beside others."""
        lowering = Lowering(self.streams, self.config)
        return (before or ExecutionPlan()).with_steps(map(lowering.own, plans))

    def _place(self, plans: Iterable[QueryPlan], before: Placed | None) -> Placed | None:
        placed = before or self._placed
        for plan in plans if placed is not None else ():
            assert placed is not None  # noqa: S101 - it never becomes None
            placed = placed.with_query(plan.query, self.streams)
        return placed

    def _units(self, own: ExecutionPlan, placed: Placed | None = None) -> UnitCosts:
        from dovetail.calibrate import units_for  # noqa: PLC0415 - it loads the engine, which a driver does without

        return units_for(own, self.streams, placed.copies if placed is not None else None)

    def _planned(self) -> SharedPlan:
        units = self._units(self._own(self.plans.values())) if self.budget is not None else None
        planning = JointPlanning(self.plans, self.config, self.budget, units)
        by_bytes = self.config.shedding is not None and self.config.shedding.max_bytes is not None
        return planning.apart() if by_bytes else planning.plan()  # stored matches take as many bytes as they like

    # -- running ------------------------------------------------------------------------------------------------------------

    def drafted(self) -> tuple[Cohort, ...]:
        """The cohorts that run, or, before queries do, the one that would."""
        if self.cohorts or not self.plans:
            return self.cohorts
        if self._drafted is None:
            self._drafted = self._cohort(self._planned(), 0)
        return (self._drafted,)

    def begin(self) -> None:
        """All queries run from now on; they are planned together."""
        self.cohorts = self.drafted()

    def join_in(
        self, plan: QueryPlan, orders: Orders | None, since: int, heads: Mapping[str, int], *, backfill: bool = False
    ) -> None:
        """Add a query to those that run, from batch `since` on; it is planned by itself, within what they leave of the budget.

        `heads`: how far streams have come.
        """
        name = plan.query.name
        self.check_backfill(plan.query, backfill=backfill)
        if name in {step.name for step in self.steps}:
            raise ConfigError(f"query {name!r} has the name of a join in the plan", "give it another name")
        planning = JointPlanning({name: plan}, replace(self.config, strategy="mjoin"))
        if self.budget is not None:
            used = [cohort.plan.load for cohort in self.cohorts]
            planning = replace(planning, budget=self.left(self.budget, used), units=self._units(self._own([plan])))
        try:
            found = planning.plan()
        except BudgetError as error:
            raise BudgetError(f"running queries leave too little of the budget: {error}") from None
        self._add(plan, orders)
        cohort = self._cohort(found, since, backfill=backfill)
        self.cohorts = (*self.cohorts, replace(cohort, heads=dict(heads)))

    def check_backfill(self, query: JoinQuery, *, backfill: bool) -> None:
        """Refuse to show a query what was there before it, if that is not known."""
        if backfill and self.config.shedding is not None:
            raise ConfigError(
                f"query {query.name!r} cannot see what was there before it: tuples may have been shed, or not been kept as no query "
                "needed them",
                "leave backfill out, and its windows fill from now on",
            )
        if backfill and query.has_count_window:
            raise ConfigError(
                f"query {query.name!r} has count windows: which tuples were the last ones before it came is not known any more",
                "leave backfill out, and its windows fill from now on",
            )

    def _cohort(self, plan: SharedPlan, since: int, *, backfill: bool = False) -> Cohort:
        lowering = Lowering(self.streams, self.config, since, backfill=backfill)
        return Cohort(plan, since, lowering.steps(plan, self.plans), backfill)

    @staticmethod
    def left(budget: Budget, loads: Iterable[Load]) -> Budget:
        """What running queries leave of the budget."""
        used = Load.total(loads)
        limits = limits_of(budget)
        cpu, memory = max(limits.cpu - used.cpu, SMALLEST), max(limits.memory - used.memory, SMALLEST)
        return Budget(None if isinf(cpu) else cpu, None if isinf(memory) else memory)

    @property
    def has_choice(self) -> bool:
        """Whether there is a budget to watch, or more than one way to run the queries together."""
        stores = JointPlanning({}, self.config, self.budget).stores
        return self.budget is not None or stores or any(cohort.since for cohort in self.cohorts)

    def caught_up(self, watermarks: Mapping[str, int]) -> list[str]:
        """Return the late queries that caught up and can be planned with the first ones; see `monitor.caught_up`."""
        return [
            name
            for cohort in self.cohorts
            for name in cohort.queries
            if cohort.since and caught_up(self.queries[name], cohort.heads, watermarks, self.streams)
        ]

    def proposal(self, monitor: Monitor, cause: str, late: Collection[str]) -> Proposal | None:
        """Another plan for the queries that were there first and those that came `late`; None if it is not worth it.

        Late queries that have not caught up stay as they are.
        """
        joined = [cohort for cohort in self.cohorts if not cohort.since or set(cohort.queries) <= set(late)]
        names = [name for cohort in joined for name in cohort.queries]
        if not names:
            return None
        plans = self.planned_again({name: self.plans[name] for name in names}, monitor.picture)
        # Where tuples may be shed for room, nothing is stored that was given up for it.
        config = self.config if self.config.shedding is None else replace(self.config, strategy="mjoin")
        planning = JointPlanning(plans, config)
        if self.budget is not None:
            others = [cohort.plan.load for cohort in self.cohorts if cohort not in joined]
            budget, units = self.left(self.budget, others), self._units(self._own(plans.values()))
            planning = replace(planning, budget=budget, units=units).paced(monitor.pace)
        return propose(planning, [cohort.plan for cohort in joined], cause, monitor.strained)

    def planned_again(self, plans: Mapping[str, QueryPlan], picture: RuntimeStats) -> dict[str, QueryPlan]:
        """Queries, each by itself, planned by what was measured of them."""
        known = picture.known({name: plan.query for name, plan in plans.items()}, plans)
        found = {}
        for name, plan in plans.items():
            choices = replace(self.choices[name], hints=known[name].hints)
            found[name] = plan_query(plan.query, self.streams, self.config, choices, known[name].rates)
        return found

    def migrated(self, proposal: Proposal) -> tuple[Cohort, ...]:
        """The cohorts by a proposal; `migrate` makes them those that run."""
        plans = {**self.plans, **proposal.plans}
        steps = Lowering(self.streams, self.config).steps(proposal.plan, plans)
        others = [cohort for cohort in self.cohorts if not set(cohort.queries) & proposal.plans.keys()]
        return (Cohort(proposal.plan, 0, steps), *others)

    def migrate(self, proposal: Proposal, cohorts: tuple[Cohort, ...]) -> None:
        """Let other cohorts run."""
        self.plans.update(proposal.plans)
        self.cohorts = cohorts

    def drop(self, name: str) -> None:
        """Forget a query, and what its cohort did for it alone."""
        self.catalog.check_query(name)
        self.keep(self.queries.keys() - {name})

    def keep(self, queries: Iterable[str]) -> None:
        """Forget all queries but these."""
        self._drafted, self._most = None, None
        wanted, left = set(queries), []
        for cohort in self.cohorts:
            if wanted.issuperset(cohort.queries):
                left.append(cohort)
                continue
            part = part_of(cohort.plan, wanted)
            if part is not None:
                again = self._cohort(part, cohort.since, backfill=cohort.backfill)
                left.append(replace(again, heads=cohort.heads))
        self.cohorts = tuple(left)
        for gone in self.queries.keys() - wanted:
            self.catalog.drop_query(gone)
            del self.choices[gone], self.plans[gone]

    def give_up_stored(self) -> None:
        """Go on with plans that store nothing but windows, whatever they cost."""
        left = []
        for cohort in self.cohorts:
            if cohort.plan.states:
                apart = JointPlanning({name: self.plans[name] for name in cohort.queries}, self.config).apart()
                again = self._cohort(apart, cohort.since, backfill=cohort.backfill)
                left.append(replace(again, heads=cohort.heads))
            else:
                left.append(cohort)
        self.cohorts = tuple(left)

    def with_query(self, plan: QueryPlan) -> ExecutionPlan:
        """The windows of all queries and one more, each with a join of its own."""
        return self._own([*self.plans.values(), plan])

    @property
    def steps(self) -> list[JoinStep]:
        """The joins that run."""
        return [step for cohort in self.cohorts for step in cohort.steps]

    # -- as JSON ------------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """All that was declared, but the streams, and the plans of the queries that run."""
        queries = {
            name: _StoredQuery(query.sql, query.time_zone, self.choices[name], self.plans[name].known)
            for name, query in self.queries.items()
        }
        cohorts = tuple((cohort.since, cohort.backfill, cohort.plan) for cohort in self.cohorts)
        heads = tuple(cohort.heads for cohort in self.cohorts)
        written: dict[str, Any] = to_json(_Stored(self.hints, self.budget, queries, cohorts, heads))
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any], config: Config, streams: Iterable[StreamSchema]) -> Registry:
        stored = from_json(_Stored, written, "the session")
        registry = cls(config, stored.budget)
        for schema in streams:
            registry.catalog.add_stream(schema)
        for name, asked in stored.queries.items():
            query = parse_query(name, asked.sql, registry.streams, asked.time_zone)
            registry.catalog.add_query(query)
            registry.choices[name] = asked.choices
            known = asked.known or PlannerStats(hints=asked.choices.hints)
            choices = replace(asked.choices, hints=known.hints)
            registry.plans[name] = plan_query(query, registry.streams, config, choices, known.rates)
        registry.hints = dict(stored.hints)
        for _, _, plan in stored.cohorts:
            _check_stored(plan)
        registry.cohorts = tuple(
            registry._cohort(plan, since, backfill=backfill) for since, backfill, plan in stored.cohorts
        )
        if len(stored.heads) == len(registry.cohorts):
            pairs = zip(registry.cohorts, stored.heads, strict=True)
            registry.cohorts = tuple(replace(cohort, heads=heads) for cohort, heads in pairs)
        return registry


@dataclass(frozen=True)
class _StoredQuery:
    """A query as it was registered."""

    sql: str
    time_zone: str
    choices: PlanChoices
    known: PlannerStats | None = None
    """What it was last planned by; snapshots of earlier releases do not say it."""


@dataclass(frozen=True)
class _Stored:
    """A registry as JSON."""

    hints: Mapping[frozenset[str], Selectivity]
    budget: Budget | None
    queries: Mapping[str, _StoredQuery]
    cohorts: tuple[tuple[Count, bool, SharedPlan], ...]
    heads: tuple[Mapping[str, Time], ...] = ()
    """Of each cohort; snapshots of earlier releases have none."""


def _check_stored(plan: SharedPlan) -> None:
    """Raise `StateError` unless the nodes of a plan that was read say of themselves whom they serve."""
    queries = {answer.query for answer in plan.answers}
    below = {name: {node.id for node in plan.below(name)} for name in queries}
    if set(plan.query_order) != queries or not all(limit > 0 for limit in plan.limits):
        raise StateError("the stored plan is not one of its queries, within limits")
    for node in plan.nodes.values():
        if set(node.queries) != {name for name in queries if node.id in below[name]}:
            raise StateError(f"the stored plan has {node.id!r} for {listed(node.queries)}, who do not need it")
