"""New probe orders for a running query, from what its probes have found.

A measured probe says what share of the pairs (partial result, tuple in the window) matched, given which aliases were joined before.
The model knows shares per pair of aliases. Where one pair connects the next alias with those before it, the measured share is that
pair's; where several do, they are scaled together until their product is what was measured. Probes behind one alias are fitted
first, because they leave nothing to share out; probes that are no longer made are fitted before all others, which then overrule them.

An input's order is replaced only if the model expects the new one to be `GAIN` times cheaper, the first probe of each new tuple
included, and if the saving counts in the whole query: estimates carry noise, and an order that changes to and fro costs indexes
that are built for nothing. Where both orders were tried lately, what they cost then is asked as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.config import Config
from dovetail.optimizer.cost import probe_cost
from dovetail.optimizer.estimates import estimate
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.planner import PlanChoices, access_rule, objective
from dovetail.optimizer.query_graph import join_graph
from dovetail.plan.nodes import Access, QueryPlan
from dovetail.plan.paths import AccessRule, probe_path
from dovetail.plan.statistics import Change, Found, Measured, Step
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema

GAIN = 1.2
"""How many times cheaper a new order must be."""
LEAST_SHARE = 0.02
"""The part of a query's whole cost that a change must save."""
LEAST_PROBES = 200
"""Probes below which what they found is not trusted."""
_ROUNDS = 3
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Replanner:
    """Plans queries of one session again."""

    streams: Mapping[str, StreamSchema]
    config: Config
    choices: Mapping[str, PlanChoices]

    def __call__(self, plan: QueryPlan, measured: Measured) -> tuple[QueryPlan, list[Change]] | None:
        """The plan to go on with, its estimates as of now, and what it changes; None if too little was measured."""
        choices = self.choices.get(plan.query.name, PlanChoices())
        if self.config.nested_loop != "multi-way" or measured.sizes.keys() < set(plan.query.aliases):
            return None
        graph = measured_graph(plan.query, self.streams, choices.hints, measured)
        aim = objective(self.config)
        current = {path.driver: path.order[1:] for path in plan.paths}
        wanted = order_probes(graph, self.config.ordering, aim)
        now, then = (probe_cost(graph, orders, aim).per_input for orders in (current, wanted))
        least = LEAST_SHARE * sum(now.values())
        changes = []
        for driver, order in current.items():
            rate, saved = graph.rates[driver], now[driver] - then[driver]
            if driver in (choices.orders or {}) or saved <= least or now[driver] + rate <= GAIN * (then[driver] + rate):
                continue
            seen = measured.gain(driver, order, wanted[driver], aim)
            if seen is not None and seen <= GAIN:
                continue
            changes.append(Change(driver, order, wanted[driver], now[driver] / rate, then[driver] / rate))
        orders = {driver: (driver, *order) for driver, order in current.items()}
        orders.update({change.driver: (change.driver, *change.after) for change in changes})
        return self.with_orders(plan, orders, graph), changes

    def with_orders(
        self,
        plan: QueryPlan,
        orders: Mapping[str, tuple[str, ...]],
        graph: JoinGraph | None = None,
        *,
        access: Mapping[str, Mapping[str, Access]] | None = None,
    ) -> QueryPlan:
        """A plan with other orders, each of which starts with its driver; and with `access` by driver and alias, if it is given."""
        choices = self.choices.get(plan.query.name, PlanChoices())
        known = graph or join_graph(plan.query, self.streams, choices.hints)
        rule = access_rule(plan.query, known, self.config)

        def rule_of(driver: str) -> AccessRule:
            return rule if access is None else lambda alias, _: access[driver][alias]

        paths = tuple(probe_path(plan.query, driver, orders[driver], rule_of(driver)) for driver in plan.query.aliases)
        return QueryPlan(plan.query, paths, plan.ordering, estimate(known, orders, objective(self.config)))


def measured_graph(
    query: JoinQuery, streams: Mapping[str, StreamSchema], hints: Mapping[frozenset[str], float], measured: Measured
) -> JoinGraph:
    """The query's graph with rates, window sizes and selectivities as measured, where enough was."""
    trusted = {step: found for step, found in measured.found.items() if found.probes >= LEAST_PROBES and found.pairs}
    fitted = dict(hints)
    old, new = ([step for step, found in trusted.items() if (found.age == 0) is recent] for recent in (False, True))
    for steps, rounds in ((old, 1), (new, _ROUNDS)):
        for _ in range(rounds):
            for step in sorted(steps, key=lambda step: (len(step[0]), sorted(step[0]), step[1])):
                fitted.update(_scaled(join_graph(query, streams, fitted, measured), step, trusted[step]))
    return join_graph(query, streams, fitted, measured)


def _scaled(graph: JoinGraph, step: Step, found: Found) -> dict[frozenset[str], float]:
    """The shares of the pairs that lead to a step, so that together they are what was found."""
    joined, alias = step
    expected = graph.extension(sorted(joined), alias) / (graph.rates[alias] * graph.windows[alias])
    share = found.selectivity
    if share is None:
        return {}
    pairs = _binding(graph, joined, alias)
    factor = (share / expected) ** (1 / len(pairs)) if pairs else 1.0
    return {
        frozenset((other, alias)): min(1.0, max(_SMALLEST, graph.selectivity(other, alias) * factor)) for other in pairs
    }


def _binding(graph: JoinGraph, joined: frozenset[str], alias: str) -> list[str]:
    """Those of the joined aliases that the matches of the next one depend on: of a common key, the one with fewest values."""
    found = {other for other in joined if frozenset((other, alias)) in graph.factors}
    for number, group in enumerate(graph.classes):
        inside = [other for other in sorted(joined) if other in group]
        if alias in group and inside:
            found.add(min(inside, key=lambda other: graph.distinct[other, number]))
    return sorted(found)
