"""Several queries planned together: which of them share a join or a stored sub-join, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dovetail.config import Budget, Config
from dovetail.errors import BudgetError
from dovetail.optimizer.multiquery import plan_queries, priced_again
from dovetail.optimizer.multiquery.model.named import NamedGraph
from dovetail.optimizer.multiquery.model.translate import named_query
from dovetail.optimizer.planner import objective
from dovetail.optimizer.query_graph import join_graph
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.global_plan import GlobalPlan, Load
from dovetail.plan.nodes import QueryPlan


@dataclass(frozen=True)
class JointPlanning:
    """Queries, each with the plan that it has by itself, to be planned so that they do common work once.

    Without a budget nothing is stored but windows: equal joins are computed once, all others are n-ary. With one, sub-joins are
    stored where that saves CPU and memory allows it. Queries of different `scopes` share nothing.
    """

    plans: Mapping[str, QueryPlan]
    config: Config
    budget: Budget | None = None
    units: UnitCosts | None = None
    scopes: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> GlobalPlan:
        """Give the plan; raise `BudgetError` if none fits."""
        return self._plan(self.strategy)

    def check(self) -> GlobalPlan:
        """Raise an error if there is no plan, else give one: n-ary joins are planned fast, and often they fit."""
        if self.strategy == "exchange":
            with suppress(BudgetError):
                return self.apart()
        return self.plan()

    def apart(self) -> GlobalPlan:
        """Give the plan that stores nothing but windows."""
        return self._plan("mjoin")

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

    def _graphs(self) -> dict[str, NamedGraph]:
        graphs = {}
        for name, plan in self.plans.items():
            graph = join_graph(plan.query, plan.known.rates, plan.known.hints)
            whole = named_query(plan.query, graph, self.scopes.get(name, ""), storable=not plan.known.forced)
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
