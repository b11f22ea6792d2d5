"""One plan for the queries of a session: what `plan_queries` says, for bound queries, with what they cost on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from dovetail.config import Budget, Config
from dovetail.errors import BudgetError
from dovetail.optimizer.multiquery import plan_queries
from dovetail.optimizer.multiquery.steps import RunnablePlan, runnable
from dovetail.optimizer.multiquery.translate import named_query
from dovetail.optimizer.planner import PlanChoices, cheapest_orders
from dovetail.optimizer.query_graph import join_graph
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.global_json import plan_from_json, plan_to_json
from dovetail.plan.global_plan import GlobalPlan, Load
from dovetail.plan.nodes import QueryPlan
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema


@dataclass(frozen=True)
class JointPlan:
    """A plan for some queries, ready to run."""

    plan: GlobalPlan
    queries: Mapping[str, JoinQuery]
    choices: Mapping[str, PlanChoices]
    run: RunnablePlan

    @property
    def is_plain(self) -> bool:
        """Whether each query is by itself."""
        return not self.plan.states and all(len(step.takers) == 1 for step in self.run.steps)

    def load(self, queries: Iterable[str]) -> Load:
        """What the parts of the plan that some of its queries need take."""
        nodes = {node.id: node for name in queries for node in self.plan.below(name)}
        return reduce(Load.plus, (node.load for node in nodes.values()), Load())

    def to_json(self) -> dict[str, Any]:
        """The plan and its queries, with what was asked of them."""
        return {
            "plan": plan_to_json(self.plan),
            "queries": {name: query.sql for name, query in self.queries.items()},
            "choices": {name: asked.to_json() for name, asked in self.choices.items()},
            "time_zones": {name: query.time_zone for name, query in self.queries.items()},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], streams: Mapping[str, StreamSchema], config: Config) -> JointPlan:
        plan = plan_from_json(stored["plan"])
        zones = stored["time_zones"]
        queries = {name: parse_query(name, sql, streams, zones[name]) for name, sql in stored["queries"].items()}
        choices = {name: PlanChoices.from_json(asked) for name, asked in stored["choices"].items()}
        return cls(plan, queries, choices, runnable(plan, queries, streams, config, choices))


@dataclass(frozen=True)
class Together:
    """Queries to be planned so that they do common work once, within a budget.

    Without a budget nothing is stored but windows: equal joins are computed once, all others are n-ary. With one, sub-joins are
    stored where that saves CPU and memory allows it. Queries of different `scopes` share nothing.
    """

    queries: Mapping[str, JoinQuery]
    streams: Mapping[str, StreamSchema]
    config: Config
    choices: Mapping[str, PlanChoices]
    budget: Budget | None = None
    units: UnitCosts | None = None
    scopes: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, QueryPlan] = field(default_factory=dict)
    """Plans that queries have by themselves: their orders are not looked for again."""

    def plan(self) -> JointPlan:
        """Give the plan, ready to run; raise `BudgetError` if none fits."""
        plan = self._plan(self._strategy)
        run = runnable(plan, self.queries, self.streams, self.config, self.choices)
        return JointPlan(plan, dict(self.queries), dict(self.choices), run)

    def check(self) -> None:
        """Raise an error if there is no plan. N-ary joins are planned fast, and often they fit."""
        if self._strategy == "exchange":
            with suppress(BudgetError):
                self._plan("mjoin")
                return
        self._plan(self._strategy)

    def _plan(self, strategy: str) -> GlobalPlan:
        graphs = {}
        for name, query in self.queries.items():
            asked = self.choices.get(name, PlanChoices())
            graph = join_graph(query, self.streams, asked.hints)
            whole = named_query(query, graph, self.scopes.get(name, ""), storable=not asked.orders)
            orders = cheapest_orders(self.plans[name], self.config) if name in self.plans else None
            graphs[name] = replace(whole, orders=orders)
        return plan_queries(graphs, self.budget, strategy, units=self.units)

    @property
    def _strategy(self) -> str:
        """What `auto` means: stored sub-joins only under a budget, and only if tuples are not joined one by one."""
        if self.config.strategy != "auto":
            return self.config.strategy
        return "exchange" if self.budget is not None and self.config.can_store else "mjoin"
