"""Several queries planned together: which of them share a join or a stored sub-join, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from dovetail.config import Budget, Config
from dovetail.errors import BudgetError
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.multiquery import plan_queries, priced_again
from dovetail.optimizer.multiquery.model.named import NamedGraph
from dovetail.optimizer.multiquery.model.translate import named_query
from dovetail.optimizer.planner import access_rule, objective
from dovetail.optimizer.query_graph import join_graph
from dovetail.optimizer.shared_orders import Candidate, are_chosen_together, chosen_together
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.global_plan import GlobalPlan, JoinNode, Load
from dovetail.plan.nodes import QueryPlan


@dataclass(frozen=True)
class JointPlanning:
    """Queries, each with the plan that it has by itself, to be planned so that they do common work once.

    Without a budget nothing is stored but windows: equal joins are computed once, all others are n-ary. With one, sub-joins are
    stored where that saves CPU and memory allows it. Queries of different `scopes` share nothing. Joins over windows only get their
    orders together, so that the paths of a stream's new tuples begin alike where that is cheaper.
    """

    plans: Mapping[str, QueryPlan]
    config: Config
    budget: Budget | None = None
    units: UnitCosts | None = None
    scopes: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> GlobalPlan:
        """Give the plan; raise `BudgetError` if none fits."""
        return self._in_shared_orders(self._plan(self.strategy))

    def check(self) -> GlobalPlan:
        """Raise an error if there is no plan, else give one with orders of each query's own.

        N-ary joins are planned fast, and often they fit.
        """
        if self.strategy == "exchange":
            with suppress(BudgetError):
                return self._plan("mjoin")
        return self._plan(self.strategy)

    def apart(self) -> GlobalPlan:
        """Give the plan that stores nothing but windows."""
        return self._in_shared_orders(self._plan("mjoin"))

    def priced(self, running: Sequence[GlobalPlan]) -> Load:
        """Give what plans of these queries take together by what is known of them now."""
        config = self.config
        return priced_again(self._graphs(), running, self.units, config.ordering, objective(config))

    def _plan(self, strategy: str) -> GlobalPlan:
        config = self.config
        return plan_queries(
            self._graphs(),
            self.budget,
            strategy,
            units=self.units,
            ordering=config.ordering,
            objective=objective(config),
        )

    def _in_shared_orders(self, plan: GlobalPlan) -> GlobalPlan:
        """The plan, its joins over windows in orders that were chosen together."""
        if len(plan.joins) < 2 or not are_chosen_together(self.config):
            return plan
        stored = {state.id for state in plan.states}
        flat = {join.id: join for join in plan.joins if not any(each.node in stored for each in join.inputs)}
        found = chosen_together([self._candidate(plan, join) for join in flat.values()])
        changed: dict[str, dict[str, Sequence[str]]] = {}
        for (name, driver), order in found.items():
            changed.setdefault(name, {})[driver] = order
        joins = [plan.reordered(flat[join.id], changed[join.id]) if join.id in changed else join for join in plan.joins]
        return replace(plan, joins=tuple(joins))

    def _candidate(self, plan: GlobalPlan, join: JoinNode) -> Candidate:
        """A join as its first query has it, with the largest windows of all; what one of its queries forces stays."""
        first = join.queries[0]
        own, graph, aliases = self.plans[first], self._own_graphs[first], plan.answer(first).aliases
        numbers = {alias: number for number, alias in enumerate(graph.indexed.names)}
        windows = list(graph.indexed.windows)
        for source, span in join.spans.items():
            windows[numbers[aliases[source]]] = span
        forced = [
            aliases[source]
            for name in join.queries
            for source, alias in plan.answer(name).aliases.items()
            if alias in self.plans[name].known.forced and source in join.spans
        ]
        orders = {path[0][0]: tuple(alias for (alias,) in path) for path in plan.paths(join, first)}
        access, scope = access_rule(own.query, graph, self.config), self.scopes.get(first, "")
        return Candidate(join.id, own.query, replace(graph.indexed, windows=windows), access, orders, forced, scope)

    @cached_property
    def _own_graphs(self) -> dict[str, JoinGraph]:
        plans = self.plans.items()
        return {name: join_graph(plan.query, plan.known.rates, plan.known.hints) for name, plan in plans}

    def _graphs(self) -> dict[str, NamedGraph]:
        graphs = {}
        for name, plan in self.plans.items():
            graph, scope = self._own_graphs[name], self.scopes.get(name, "")
            whole = named_query(plan.query, graph, scope, storable=not plan.known.forced)
            orders = {path.driver: [alias for alias in path.order if alias != path.driver] for path in plan.paths}
            graphs[name] = replace(whole, orders=orders)
        return graphs

    @property
    def stores(self) -> bool:
        """Whether sub-joins may be stored."""
        return self.strategy != "mjoin"

    @property
    def strategy(self) -> str:
        """The strategy; what `auto` means: stored sub-joins only under a budget, and only if tuples are not joined one by one."""
        if self.config.strategy != "auto":
            return self.config.strategy
        return "exchange" if self.budget is not None and self.config.can_store else "mjoin"
