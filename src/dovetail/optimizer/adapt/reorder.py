"""New probe orders for running queries, from measured probes.

A measured probe gives the fraction of pairs (partial result, tuple in the window) that matched, for a set of joined aliases. The model
has selectivities per pair of aliases. If one pair connects the probed alias with the joined ones, the measured selectivity is that
pair's; if several do, they are scaled together until their product is the measured one. Old probes are fitted first; recent ones
override them. In both groups probes after a single alias come first, because they determine one pair.

An input's order is replaced only if the model expects the new one to be `MIN_COST_RATIO` times cheaper, the first probe of each new
tuple included, and if the saving matters for the whole query: estimates are noisy, and an order that alternates builds indexes in
vain. If both orders were measured recently, their measured costs must agree.

Paths that share stages are not judged alone: an order that is more expensive for one query may be cheaper for all. `replan_sharing`
chooses their orders together, and replaces one if it makes its path, as part of its tree, or the whole tree `MIN_COST_RATIO` times
cheaper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from dovetail.config import Config
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.cost.probe_cost import probe_cost
from dovetail.optimizer.graph.from_query import build_graph
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.graph.selectivities import PairSelectivities, PredicateIndex
from dovetail.optimizer.ordering.shared_orders import ReorderableJoin, can_share_orders, choose_shared_orders
from dovetail.optimizer.planner import access_rule, choose_orders, general_placement, objective, scan_cost
from dovetail.plan.paths import AccessRule, PathBuilder
from dovetail.plan.query_plan import Access, QueryPlan, SharingJoin
from dovetail.query.model import JoinQuery
from dovetail.stats.probes import ProbeCounts, ProbeKey, ProbeOrderChange, QueryStats

MIN_COST_RATIO = 1.2
"""The cost ratio required of a new order."""
MAX_COST_RATIO = 0.999
"""The largest cost of a new general nested-loop order, as a fraction of the old one's."""
MIN_SAVED_FRACTION = 0.02
"""The fraction of a query's whole cost that a change must save."""
MIN_PROBES = 200
"""Probes with fewer samples are not trusted."""
_ROUNDS = 3
_EXACT = 16
"""The largest join ordered exactly: that takes milliseconds, during which a batch waits."""


@dataclass(frozen=True)
class Replanner:
    """Chooses new probe orders for the running queries of one session."""

    config: Config
    _predicates: dict[str, tuple[JoinQuery, PredicateIndex]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cached predicates of each query, which do not change."""

    def __call__(self, plan: QueryPlan, measured: QueryStats) -> tuple[QueryPlan, list[ProbeOrderChange]] | None:
        """Return the new plan, with current estimates, and its changes; None if too little was measured."""
        if self.config.nested_loop == "general" and measured.tau is not None:
            return self._replan_general(plan, measured.tau)
        if self.config.nested_loop != "multi-way" or measured.sizes.keys() < set(plan.query.aliases):
            return None
        graph = measured_graph(plan.query, plan.stats.rates, self._selectivities(plan), measured)
        return self._revise(plan, graph, self._cheaper_orders(plan, graph, measured))

    @property
    def can_share_orders(self) -> bool:
        """Whether the orders of paths that share stages are chosen together."""
        return can_share_orders(self.config)

    def replan_sharing(self, joins: Mapping[str, SharingJoin]) -> dict[str, tuple[QueryPlan, list[ProbeOrderChange]]]:
        """Return the new plans of joins that share stages, for those with enough measurements."""
        graphs, orders = dict[str, JoinGraph](), dict[str, dict[str, tuple[str, ...]]]()
        candidates = []
        for name, (plan, measured, shared) in joins.items():
            query, rates, fixed = plan.query, plan.stats.rates, plan.stats.forced
            selectivities = self._selectivities(plan)
            if measured.sizes.keys() >= set(query.aliases):
                graph = graphs[name] = measured_graph(query, rates, selectivities, measured)
                orders[name] = self._cheaper_orders(plan, graph, measured, shared)
            else:
                graph, fixed = build_graph(query, rates, selectivities), query.aliases
            current = {path.driver: path.order for path in plan.paths}
            gain = partial(measured.gain, objective=objective(self.config))
            access = access_rule(query, graph, self.config)
            join = ReorderableJoin(name, query, graph.indexed, access, current, fixed, measured_gain=gain)
            candidates.append(join)
        for (name, driver), order in choose_shared_orders(candidates, MIN_COST_RATIO).orders.items():
            orders[name][driver] = order[1:]
        return {name: self._revise(joins[name].plan, graph, orders[name]) for name, graph in graphs.items()}

    def _cheaper_orders(
        self, plan: QueryPlan, graph: JoinGraph, measured: QueryStats, shared: Collection[str] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Return, by driver, orders that are cheaper for the query alone; `shared` paths keep theirs."""
        unit, current = objective(self.config), {path.driver: path.order[1:] for path in plan.paths}
        if current.keys() <= set(shared):
            return {}
        exact = _EXACT if self.config.ordering == "weave" else None
        access = access_rule(plan.query, graph, self.config)
        best = choose_orders(graph, self.config, access, measured.tau, exact)
        old_costs, new_costs = (probe_cost(graph, orders, unit).per_input for orders in (current, best))
        min_saved = MIN_SAVED_FRACTION * sum(old_costs.values())
        changed = {}
        for driver, order in current.items():
            rate, old_cost, new_cost = graph.rates[driver], old_costs[driver], new_costs[driver]
            if driver in plan.stats.forced or driver in shared:
                continue
            if old_cost - new_cost <= min_saved or old_cost + rate <= MIN_COST_RATIO * (new_cost + rate):
                continue
            gain = measured.gain(driver, order, best[driver], unit)
            if gain is None or gain > MIN_COST_RATIO:
                changed[driver] = best[driver]
        return changed

    def _revise(
        self, plan: QueryPlan, graph: JoinGraph, changed: Mapping[str, tuple[str, ...]]
    ) -> tuple[QueryPlan, list[ProbeOrderChange]]:
        """Return the plan with the `changed` orders (without drivers) and current estimates; and the changes."""
        unit = objective(self.config)
        current = {path.driver: path.order[1:] for path in plan.paths}
        orders = {driver: (driver, *changed.get(driver, order)) for driver, order in current.items()}
        changes = []
        for driver, new_order in changed.items():
            costs = [probe_cost(graph, {driver: order}, unit).total for order in (current[driver], new_order)]
            old_cost, new_cost = (cost / graph.rates[driver] for cost in costs)
            changes.append(ProbeOrderChange(driver, current[driver], new_order, old_cost, new_cost))
        if not changes and self.config.join != "hybrid":  # `hybrid` may scan a window that has become small
            return replace(plan, estimate=estimate(graph, orders, unit, is_measured=True)), changes
        plan = self.with_orders(plan, orders, graph)
        return replace(plan, estimate=replace(plan.estimate, is_measured=True)), changes

    def _replan_general(self, plan: QueryPlan, tau: float) -> tuple[QueryPlan, list[ProbeOrderChange]]:
        """Replan general nested loops for batches of `tau` seconds.

        Scans have no index to build, so any gain counts.

        Rates are those of the plan: a path that does not begin with new tuples does not count them.
        """
        graph = build_graph(plan.query, plan.stats.rates, self._selectivities(plan))
        multi_way = choose_orders(graph, self.config, access_rule(plan.query, graph, self.config), tau)
        best, changes = general_placement(graph, multi_way, tau), list[ProbeOrderChange]()
        orders = {path.driver: path.order for path in plan.paths}
        for driver, order in orders.items():
            old_cost, new_cost = (scan_cost(graph, driver, option, tau) for option in (order, best[driver]))
            if driver not in plan.stats.forced and new_cost < old_cost * MAX_COST_RATIO:
                rate = graph.rates[driver]
                changes.append(ProbeOrderChange(driver, order, best[driver], old_cost / rate, new_cost / rate))
        orders |= {change.driver: change.after for change in changes}
        return self.with_orders(plan, orders, graph), changes

    def _selectivities(self, plan: QueryPlan) -> PairSelectivities:
        query = plan.query
        cached = self._predicates.get(query.name)
        if cached is None or cached[0] is not query:
            cached = self._predicates[query.name] = (query, PredicateIndex.of(query))
        return PairSelectivities(cached[1], plan.stats.selectivities)

    def with_orders(
        self,
        plan: QueryPlan,
        orders: Mapping[str, tuple[str, ...]],
        graph: JoinGraph | None = None,
        *,
        access: Mapping[str, Mapping[str, Access]] | None = None,
    ) -> QueryPlan:
        """Return the plan with other orders of all aliases; `access`, by driver and alias, overrides the rule."""
        graph = graph or build_graph(plan.query, plan.stats.rates, self._selectivities(plan))
        rule = access_rule(plan.query, graph, self.config)

        def rule_of(driver: str) -> AccessRule:
            return rule if access is None else lambda alias, _: access[driver][alias]

        builder = PathBuilder(plan.query)
        paths = tuple(builder.path(driver, orders[driver], rule_of(driver)) for driver in plan.query.aliases)
        return replace(plan, paths=paths, estimate=estimate(graph, orders, objective(self.config)))


def measured_graph(
    query: JoinQuery, rates: Mapping[str, float], selectivities: PairSelectivities, measured: QueryStats
) -> JoinGraph:
    """Return the query's graph with measured rates, window sizes and, given enough samples, selectivities."""
    fit(selectivities, measured.probe_counts)
    return build_graph(query, rates, selectivities, measured)


def fit(selectivities: PairSelectivities, measured: Mapping[ProbeKey, ProbeCounts]) -> None:
    """Fit selectivities to the measured probes that have enough samples."""
    trusted = [
        (counts.age == 0, len(joined), sorted(joined), alias, counts.selectivity)
        for (joined, alias), counts in measured.items()
        if counts.probes >= MIN_PROBES and counts.selectivity
    ]
    trusted.sort()
    for recent, rounds in ((False, 1), (True, _ROUNDS)):
        for _ in range(rounds):
            for is_recent, _, joined, alias, selectivity in trusted:
                if is_recent is recent:
                    selectivities.fit((frozenset(joined), alias), selectivity)
