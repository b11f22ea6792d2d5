"""Joint planning of several queries: shared joins and materialized joins, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from dovetail.config import Budget, Config, Strategy, can_materialize
from dovetail.errors import BudgetError
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.expressions import with_expressions
from dovetail.optimizer.graph.from_query import planned_graph
from dovetail.optimizer.graph.selectivities import PredicateIndex, assumed_pairs
from dovetail.optimizer.ordering.shared_orders import (
    ReorderableJoin,
    SharedOrders,
    can_share_orders,
    choose_shared_orders,
)
from dovetail.optimizer.planner import access_rule, objective
from dovetail.optimizer.sharing import limits_of, load_of_plans, plan_queries
from dovetail.optimizer.sharing.model.named import NamedGraph
from dovetail.optimizer.sharing.model.translate import name_query
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import JoinNode, Load, SharedPlan

OPTIMISTIC_SELECTIVITY = 1e-9
"""Stands for an unknown selectivity when a query is admitted: practically nothing matches."""


@dataclass(frozen=True)
class JointPlanning:
    """Queries with their individual plans, to be planned together so that common work is done once.

    Under `auto` without a budget no join is materialized: equal joins are computed once, all others are n-ary. With a budget,
    sub-joins are materialized where that saves CPU and memory allows it. Queries of different `scopes` share nothing. The orders of
    joins over windows are chosen together, so that the paths of one stream share a prefix where that is cheaper.
    """

    plans: Mapping[str, QueryPlan]
    config: Config
    budget: Budget | None = None
    units: UnitCosts | None = None
    scopes: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> SharedPlan:
        """Return the plan; raise `BudgetError` if none fits.

        A strategy named in the configuration is used as it is. Under `auto`, joins are materialized only once some selectivity is
        given or measured, unless no plan without them fits the budget. A join materialized on a guess often costs more than it saves.
        Nor are joins materialized if shared stages, which the search does not consider, save as much CPU.

        Where selectivities are unknown, a plan that exceeds the CPU limit by assumed ones is returned if `optimistic` fits.
        """
        try:
            return self._cheapest_plan()
        except BudgetError:
            if self.budget is None or self.optimistic is self:
                raise
        self.optimistic.find_feasible_plan()
        plan = replace(self, budget=replace(self.budget, cpu_ms_per_second=None)).plan()
        return replace(plan, limits=limits_of(self.budget))

    def _cheapest_plan(self) -> SharedPlan:
        windows_only = None
        if self.config.strategy == "auto" and self.strategy != "mjoin":
            with suppress(BudgetError):
                windows_only = self._with_shared_orders("mjoin")
            has_selectivities = any(plan.stats.selectivities for plan in self.plans.values())
            if windows_only is not None and not has_selectivities:
                return with_expressions(windows_only, self.plans)
        best = self._with_shared_orders(self.strategy)
        if windows_only is not None and windows_only.load.cpu <= best.load.cpu:
            best = windows_only
        return with_expressions(best, self.plans)

    def find_feasible_plan(self) -> SharedPlan:
        """Return a plan that fits the budget, with each query's own orders; raise an error if there is none.

        N-ary joins are tried first: they are planned fast and often fit. Where selectivities are unknown, a plan that fits as long as
        nothing matches by these is enough: they are measured once the queries run.
        """
        try:
            return self._feasible_plan()
        except BudgetError:
            if self.optimistic is self:
                raise
        return self.optimistic.find_feasible_plan()

    @cached_property
    def optimistic(self) -> JointPlanning:
        """The planning if pairs with unknown selectivities matched nothing.

        Unknown are those that are neither given nor measured; if there are none, it is this planning itself.
        """
        plans = {name: _optimistic(plan) for name, plan in self.plans.items()}
        is_same = all(plan is self.plans[name] for name, plan in plans.items())
        return self if is_same else replace(self, plans=plans)

    def _feasible_plan(self) -> SharedPlan:
        if self.strategy == "exchange":
            with suppress(BudgetError):
                return self._plan("mjoin")
        return self._plan(self.strategy)

    def plan_windows_only(self) -> SharedPlan:
        """Return the plan that materializes no joins."""
        return with_expressions(self._with_shared_orders("mjoin"), self.plans)

    def load_of(self, running: Sequence[SharedPlan]) -> Load:
        """Return the load of `running` plans of these queries, by their current statistics."""
        config, ratios = self.config, [self._shared_orders(plan).cost_ratio for plan in running]
        return load_of_plans(self._graphs, running, ratios, self.units, config.ordering, objective(config))

    def with_batch_rate(self, batches_per_second: float) -> JointPlanning:
        """Return this planning for another number of batches per second."""
        return self if self.units is None else replace(self, units=self.units.with_batch_rate(batches_per_second))

    @cached_property
    def _plans_by_strategy(self) -> dict[str, SharedPlan]:
        """Plans by strategy, so that `plan` reuses those of `find_feasible_plan`."""
        return {}

    def _plan(self, strategy: Strategy) -> SharedPlan:
        """Return the plan of a strategy, with each query's own orders."""
        if strategy not in self._plans_by_strategy:
            config = self.config
            self._plans_by_strategy[strategy] = plan_queries(
                self._graphs,
                self.budget,
                strategy,
                units=self.units,
                ordering=config.ordering,
                objective=objective(config),
            )
        return self._plans_by_strategy[strategy]

    def _with_shared_orders(self, strategy: Strategy) -> SharedPlan:
        """Choose the orders of joins over windows together, and charge the joins their cost in probe trees."""
        plan = self._plan(strategy)
        (orders, ratio), changed = self._shared_orders(plan), dict[str, dict[str, Sequence[str]]]()
        for (name, driver), order in orders.items():
            changed.setdefault(name, {})[driver] = order
        joins = []
        for join in plan.joins:
            if ratio < 1 and not plan.reads_materialized(join):
                charged = replace(join, load=Load(ratio * join.load.cpu, join.load.memory))
                joins.append(plan.with_orders(charged, changed.get(join.id, {})))
            else:
                joins.append(join)
        return replace(plan, joins=tuple(joins))

    def _shared_orders(self, plan: SharedPlan) -> SharedOrders:
        """Choose the orders of joins over windows together."""
        flat = [join for join in plan.joins if not plan.reads_materialized(join)]
        if len(flat) < 2 or not can_share_orders(self.config):
            return SharedOrders({}, 1.0)
        return choose_shared_orders([self._reorderable(plan, join) for join in flat])

    def _reorderable(self, plan: SharedPlan, join: JoinNode) -> ReorderableJoin:
        """Describe a join by its first query, with the largest windows of all; forced orders are fixed."""
        first = join.queries[0]
        query, graph, aliases = self.plans[first].query, planned_graph(self.plans[first]), plan.answer(first).aliases
        indexes = {alias: index for index, alias in enumerate(graph.indexed.names)}
        windows = list(graph.indexed.windows)
        for source, seconds in join.window_seconds.items():
            windows[indexes[aliases[source]]] = seconds
        forced = [
            aliases[source]
            for name in join.queries
            for source, alias in plan.answer(name).aliases.items()
            if alias in self.plans[name].stats.forced and source in join.window_seconds
        ]
        orders = {path[0][0]: tuple(alias for (alias,) in path) for path in plan.paths(join, first)}
        access, scope = access_rule(query, graph, self.config), self.scopes.get(first, "")
        return ReorderableJoin(join.id, query, replace(graph.indexed, windows=windows), access, orders, forced, scope)

    @cached_property
    def _graphs(self) -> dict[str, NamedGraph]:
        graphs = {}
        for name, plan in self.plans.items():
            graph, scope = planned_graph(plan), self.scopes.get(name, "")
            named = name_query(plan.query, graph, scope, materializable=not plan.stats.forced)
            orders = {path.driver: [alias for alias in path.order if alias != path.driver] for path in plan.paths}
            graphs[name] = replace(named, orders=orders)
        return graphs

    @property
    def strategy(self) -> Strategy:
        """The strategy to use: `auto` is `exchange` under a budget if `can_materialize(config)`, else `mjoin`."""
        if self.config.strategy != "auto":
            return self.config.strategy
        return "exchange" if self.budget is not None and can_materialize(self.config) else "mjoin"


def _optimistic(plan: QueryPlan) -> QueryPlan:
    """Return a plan by which nothing matches where a selectivity is unknown."""
    stats = plan.stats
    unknown = assumed_pairs(PredicateIndex.of(plan.query), stats.selectivities)
    if not unknown:
        return plan
    selectivities = {**stats.selectivities, **dict.fromkeys(unknown, OPTIMISTIC_SELECTIVITY)}
    return replace(plan, stats=replace(stats, selectivities=selectivities))
