"""Several queries planned together: which of them share a join or a stored sub-join, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from dovetail.config import Budget, Config
from dovetail.errors import BudgetError
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.from_query import join_graph
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering.shared_orders import Candidate, Chosen, are_chosen_together, chosen_together
from dovetail.optimizer.planner import access_rule, objective
from dovetail.optimizer.sharing import plan_queries, priced_again
from dovetail.optimizer.sharing.model.named import NamedGraph
from dovetail.optimizer.sharing.model.translate import named_query
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import JoinNode, Load, SharedPlan


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

    def plan(self) -> SharedPlan:
        """Give the plan; raise `BudgetError` if none fits.

        Who names a strategy gets it. Else nothing is stored if sharing stages saves as much, which the search does not know, nor while
        nothing is known of any selectivity: what is stored on a guess costs more than it saves, and joins over windows find out.
        """
        apart = None
        if self.config.strategy == "auto" and self.strategy != "mjoin":
            with suppress(BudgetError):
                apart = self.apart()
            if apart is not None and not self._knows_anything:
                return apart
        best = self._in_shared_orders(self._plan(self.strategy))
        return best if apart is None or best.load.cpu < apart.load.cpu else apart

    @property
    def _knows_anything(self) -> bool:
        return any(plan.known.hints for plan in self.plans.values())

    def check(self) -> SharedPlan:
        """Raise an error if there is no plan, else give one with orders of each query's own.

        N-ary joins are planned fast, and often they fit.
        """
        if self.strategy == "exchange":
            with suppress(BudgetError):
                return self._plan("mjoin")
        return self._plan(self.strategy)

    def apart(self) -> SharedPlan:
        """Give the plan that stores nothing but windows."""
        return self._in_shared_orders(self._plan("mjoin"))

    def priced(self, running: Sequence[SharedPlan]) -> Load:
        """Give what plans of these queries take together by what is known of them now."""
        config, shares = self.config, [self._chosen(plan).share for plan in running]
        return priced_again(self._graphs(), running, shares, self.units, config.ordering, objective(config))

    def paced(self, batches: float) -> JointPlanning:
        """The same where so many batches come in a second."""
        return self if self.units is None else replace(self, units=self.units.paced(batches))

    def _plan(self, strategy: str) -> SharedPlan:
        config = self.config
        return plan_queries(
            self._graphs(),
            self.budget,
            strategy,
            units=self.units,
            ordering=config.ordering,
            objective=objective(config),
        )

    def _in_shared_orders(self, plan: SharedPlan) -> SharedPlan:
        """The plan, its joins over windows in orders that were chosen together, at the price that they have in trees."""
        (orders, share), changed = self._chosen(plan), dict[str, dict[str, Sequence[str]]]()
        for (name, driver), order in orders.items():
            changed.setdefault(name, {})[driver] = order
        joins = []
        for join in plan.joins:
            if share < 1 and not plan.reads_stored(join):
                price = replace(join, load=Load(share * join.load.cpu, join.load.memory))
                joins.append(plan.reordered(price, changed.get(join.id, {})))
            else:
                joins.append(join)
        return replace(plan, joins=tuple(joins))

    def _chosen(self, plan: SharedPlan) -> Chosen:
        """The orders of joins over windows."""
        flat = [join for join in plan.joins if not plan.reads_stored(join)]
        if len(flat) < 2 or not are_chosen_together(self.config):
            return Chosen({}, 1.0)
        return chosen_together([self._candidate(plan, join) for join in flat])

    def _candidate(self, plan: SharedPlan, join: JoinNode) -> Candidate:
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
