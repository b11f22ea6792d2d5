"""New probe orders for a running query, from what its probes have found.

A measured probe says what share of the pairs (partial result, tuple in the window) matched, given which aliases were joined before.
The model knows shares per pair of aliases. Where one pair connects the next alias with those before it, the measured share is that
pair's; where several do, they are scaled together until their product is what was measured. Probes behind one alias are fitted
first, because they leave nothing to share out; probes that are no longer made are fitted before all others, which then overrule them.

An input's order is replaced only if the model expects the new one to be `GAIN` times cheaper, the first probe of each new tuple
included, and if the saving counts in the whole query: estimates carry noise, and an order that changes to and fro costs indexes
that are built for nothing. Where both orders were tried lately, what they cost then is asked as well.

Paths that share stages are not judged alone: an order that is dearer for one query may be cheaper for all. Theirs are chosen
`together`, as they were at first, and replaced where that makes what a path adds to its tree, or a whole tree, `GAIN` times cheaper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from dovetail.config import Config
from dovetail.optimizer.adapt.selectivity import GraphShape, Shares
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.cost.probe_cost import probe_cost
from dovetail.optimizer.graph.from_query import graph_of
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering.shared_orders import Candidate, are_chosen_together, chosen_together
from dovetail.optimizer.planner import access_rule, general_placement, multi_way_orders, objective, scan_cost
from dovetail.plan.paths import AccessRule, PathMaker
from dovetail.plan.query_plan import Access, QueryPlan, Sharing
from dovetail.query.model import JoinQuery
from dovetail.stats.probes import Measured, ProbeCounts, ProbeKey, ProbeOrderChange

GAIN = 1.2
"""How many times cheaper a new order must be."""
LESS = 0.999
"""What a general nested-loop order must cost of the one before, at most."""
LEAST_SHARE = 0.02
"""The part of a query's whole cost that a change must save."""
LEAST_PROBES = 200
"""Probes below which what they found is not trusted."""
_ROUNDS = 3
_EXACT = 16
"""Inputs whose sets are all looked at: in milliseconds, for a batch waits meanwhile."""


@dataclass(frozen=True)
class Replanner:
    """Plans queries of one session again."""

    config: Config
    _shapes: dict[str, tuple[JoinQuery, GraphShape]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What does not change of a query that is planned again."""

    def __call__(self, plan: QueryPlan, measured: Measured) -> tuple[QueryPlan, list[ProbeOrderChange]] | None:
        """The plan to go on with, its estimates as of now, and what it changes; None if too little was measured."""
        known = plan.known
        if self.config.nested_loop == "general" and measured.tau is not None:
            return self._placed(plan, measured.tau)
        if self.config.nested_loop != "multi-way" or measured.sizes.keys() < set(plan.query.aliases):
            return None
        graph = measured_graph(plan.query, known.rates, Shares(self._shape(plan.query), known.hints), measured)
        return self._revised(plan, graph, self._cheaper(plan, graph, measured))

    @property
    def chooses_together(self) -> bool:
        """Whether orders of paths that share stages are chosen together."""
        return are_chosen_together(self.config)

    def together(self, joins: Mapping[str, Sharing]) -> dict[str, tuple[QueryPlan, list[ProbeOrderChange]]]:
        """The plans to go on with of joins that share stages, as far as enough was measured of them."""
        graphs, orders = dict[str, JoinGraph](), dict[str, dict[str, tuple[str, ...]]]()
        candidates = []
        for name, (plan, measured, shared) in joins.items():
            query, known, fixed = plan.query, plan.known, plan.known.forced
            shares = Shares(self._shape(query), known.hints)
            if measured.sizes.keys() >= set(query.aliases):
                graph = graphs[name] = measured_graph(query, known.rates, shares, measured)
                orders[name] = self._cheaper(plan, graph, measured, shared)
            else:
                graph, fixed = graph_of(query, known.rates, shares), query.aliases
            now = {path.driver: path.order for path in plan.paths}
            tried = partial(measured.gain, objective=objective(self.config))
            access = access_rule(query, graph, self.config)
            candidates.append(Candidate(name, query, graph.indexed, access, now, fixed, tried=tried))
        for (name, driver), order in chosen_together(candidates, GAIN).orders.items():
            orders[name][driver] = order[1:]
        return {name: self._revised(joins[name].plan, graph, orders[name]) for name, graph in graphs.items()}

    def _cheaper(
        self, plan: QueryPlan, graph: JoinGraph, measured: Measured, shared: Collection[str] = ()
    ) -> dict[str, tuple[str, ...]]:
        """By driver the orders that are cheaper for the query alone than those that it has; not of paths that are `shared`."""
        aim, known = objective(self.config), plan.known
        current = {path.driver: path.order[1:] for path in plan.paths}
        if current.keys() <= set(shared):
            return {}
        exact = _EXACT if self.config.ordering == "weave" else None
        access = access_rule(plan.query, graph, self.config)
        wanted = multi_way_orders(graph, self.config, access, measured.tau, exact)
        now, then = (probe_cost(graph, orders, aim).per_input for orders in (current, wanted))
        least = LEAST_SHARE * sum(now.values())
        found = {}
        for driver, order in current.items():
            rate, saved = graph.rates[driver], now[driver] - then[driver]
            if driver in known.forced or driver in shared:
                continue
            if saved <= least or now[driver] + rate <= GAIN * (then[driver] + rate):
                continue
            seen = measured.gain(driver, order, wanted[driver], aim)
            if seen is None or seen > GAIN:
                found[driver] = wanted[driver]
        return found

    def _revised(
        self, plan: QueryPlan, graph: JoinGraph, changed: Mapping[str, tuple[str, ...]]
    ) -> tuple[QueryPlan, list[ProbeOrderChange]]:
        """The plan with other orders of some drivers, which are left out in them, and its estimates as of now."""
        aim = objective(self.config)
        current = {path.driver: path.order[1:] for path in plan.paths}
        orders = {driver: (driver, *changed.get(driver, order)) for driver, order in current.items()}
        changes = []
        for driver, after in changed.items():
            costs = [probe_cost(graph, {driver: order}, aim).total for order in (current[driver], after)]
            before, then = (cost / graph.rates[driver] for cost in costs)
            changes.append(ProbeOrderChange(driver, current[driver], after, before, then))
        if not changes and self.config.join != "hybrid":  # which scans what has become small
            return replace(plan, estimate=estimate(graph, orders, aim)), changes
        return self.with_orders(plan, orders, graph), changes

    def _placed(self, plan: QueryPlan, tau: float) -> tuple[QueryPlan, list[ProbeOrderChange]]:
        """General nested loops for batches of `tau` seconds. Scans have no index to build, so any gain counts.

        Rates are those that the plan was made with: a path that does not begin with new tuples does not count them.
        """
        known = plan.known
        graph = graph_of(plan.query, known.rates, Shares(self._shape(plan.query), known.hints))
        multi_way = multi_way_orders(graph, self.config, access_rule(plan.query, graph, self.config), tau)
        wanted, changes = general_placement(graph, multi_way, tau), list[ProbeOrderChange]()
        orders = {path.driver: path.order for path in plan.paths}
        for driver, order in orders.items():
            now, then = (scan_cost(graph, driver, each, tau) for each in (order, wanted[driver]))
            if driver not in known.forced and then < now * LESS:
                rate = graph.rates[driver]
                changes.append(ProbeOrderChange(driver, order, wanted[driver], now / rate, then / rate))
        orders |= {change.driver: change.after for change in changes}
        return self.with_orders(plan, orders, graph), changes

    def _shape(self, query: JoinQuery) -> GraphShape:
        known = self._shapes.get(query.name)
        if known is None or known[0] is not query:
            known = self._shapes[query.name] = (query, GraphShape.of(query))
        return known[1]

    def with_orders(
        self,
        plan: QueryPlan,
        orders: Mapping[str, tuple[str, ...]],
        graph: JoinGraph | None = None,
        *,
        access: Mapping[str, Mapping[str, Access]] | None = None,
    ) -> QueryPlan:
        """A plan with other orders, with all aliases in each; and with `access` by driver and alias, if it is given."""
        known = plan.known
        graph = graph or graph_of(plan.query, known.rates, Shares(self._shape(plan.query), known.hints))
        rule = access_rule(plan.query, graph, self.config)

        def rule_of(driver: str) -> AccessRule:
            return rule if access is None else lambda alias, _: access[driver][alias]

        maker = PathMaker(plan.query)
        paths = tuple(maker.path(driver, orders[driver], rule_of(driver)) for driver in plan.query.aliases)
        return replace(plan, paths=paths, estimate=estimate(graph, orders, objective(self.config)))


def measured_graph(query: JoinQuery, rates: Mapping[str, float], shares: Shares, measured: Measured) -> JoinGraph:
    """The query's graph with rates, window sizes and selectivities as measured, where enough was."""
    fit(shares, measured.found)
    return graph_of(query, rates, shares, measured)


def fit(shares: Shares, measured: Mapping[ProbeKey, ProbeCounts]) -> None:
    """ProbeOrderChange shares to what probes have found, where enough were made."""
    trusted = [
        (found.age == 0, len(joined), sorted(joined), alias, found.selectivity)
        for (joined, alias), found in measured.items()
        if found.probes >= LEAST_PROBES and found.selectivity
    ]
    trusted.sort()
    for recent, rounds in ((False, 1), (True, _ROUNDS)):
        for _ in range(rounds):
            for new, _, joined, alias, share in trusted:
                if new is recent:
                    shares.fit((frozenset(joined), alias), share)
