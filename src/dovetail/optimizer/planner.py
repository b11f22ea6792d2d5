"""From a query, its statistics and the configuration to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dovetail.config import Config
from dovetail.errors import PlanError, listed
from dovetail.optimizer.estimates import estimate
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.query_graph import join_graph
from dovetail.plan.nodes import Access, QueryPlan
from dovetail.plan.paths import AccessRule, PathMaker
from dovetail.plan.statistics import Objective
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema

Orders: TypeAlias = Mapping[str, Sequence[str]]
"""For each input the others in the order in which its new tuples meet them."""


@dataclass(frozen=True)
class PlanChoices:
    """What a user asked of one query's plan."""

    hints: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Selectivities, by pair of aliases."""
    orders: Mapping[str, Sequence[str]] | None = None
    """Probe orders forced on some inputs: the other aliases, or all of them for a nested-loop plan in which new tuples stand
    further in."""

    def to_json(self) -> dict[str, Any]:
        hints = [[sorted(pair), value] for pair, value in self.hints.items()]
        return {"hints": hints, "orders": {alias: list(order) for alias, order in (self.orders or {}).items()}}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PlanChoices:
        return cls({frozenset(pair): value for pair, value in stored["hints"]}, stored["orders"])


def plan_query(
    query: JoinQuery,
    streams: Mapping[str, StreamSchema],
    config: Config,
    choices: PlanChoices | None = None,
    known: Orders | None = None,
) -> QueryPlan:
    """Choose an order and an access path for every input; `known` are the cheapest orders, if they were found before."""
    choices = choices or PlanChoices()
    graph = join_graph(query, streams, choices.hints)
    access = access_rule(query, graph, config)
    forced = choices.orders or {}
    if not isinstance(forced, Mapping):
        raise PlanError(
            f"query {query.name!r}: probe orders are {forced!r}; expected {{alias: (other aliases in order)}}"
        )
    unknown = [alias for alias in forced if alias not in query.aliases]
    if unknown:
        raise PlanError(
            f"query {query.name!r}: probe orders name {listed(unknown)}; its aliases are {listed(query.aliases)}"
        )
    if known is not None and not forced and _by_weave(config):
        chosen = {driver: (driver, *others) for driver, others in known.items()}
    else:
        chosen = {} if forced.keys() >= set(query.aliases) else _orders(graph, config)
    paths, maker = [], PathMaker(query)
    for driver in query.aliases:
        order = _checked_order(query, driver, forced[driver], config) if driver in forced else chosen[driver]
        paths.append(maker.path(driver, order, access))
    expected = estimate(graph, {path.driver: path.order for path in paths}, objective(config))
    return QueryPlan(query, tuple(paths), "given" if forced else config.ordering, expected)


def _by_weave(config: Config) -> bool:
    """Whether orders are what the planner of many queries would choose, too."""
    return config.ordering == "weave" and config.join != "nested-loop"


def cheapest_orders(plan: QueryPlan, config: Config) -> Orders | None:
    """The orders of a plan, the drivers left out, if nothing but their cost has led to them."""
    found = plan.ordering == "weave" and _by_weave(config)
    return {path.driver: path.order[1:] for path in plan.paths} if found else None


def objective(config: Config) -> Objective:
    """What orders are chosen by: a scan pays for what it looks at, a probe for what it finds."""
    return "comparisons" if config.join == "nested-loop" else "produced"


def _orders(graph: JoinGraph, config: Config) -> dict[str, tuple[str, ...]]:
    """For each driver all aliases in order; only the naive and general nested loops put it anywhere but first."""
    orders = order_probes(graph, config.ordering, objective(config))
    if config.nested_loop == "naive":
        start = min(graph.rates, key=lambda alias: graph.rates[alias] * graph.windows[alias])
        return dict.fromkeys(graph.rates, (start, *orders[start]))
    if config.nested_loop == "general":
        return {driver: _best_place(graph, driver, others) for driver, others in orders.items()}
    return {driver: (driver, *others) for driver, others in orders.items()}


def _best_place(graph: JoinGraph, driver: str, others: tuple[str, ...]) -> tuple[str, ...]:
    placements = [(*others[:place], driver, *others[place:]) for place in range(len(others) + 1)]
    return min(placements, key=lambda order: _scan_cost(graph, driver, order))


def _scan_cost(graph: JoinGraph, driver: str, order: Sequence[str]) -> float:
    """Rows looked at by one run of a nested-loop plan over one second of the driver's new tuples."""
    partials, cost = 1.0, 0.0
    for place, alias in enumerate(order):
        seconds = 1.0 if alias == driver else graph.windows[alias]
        cost += partials * graph.rates[alias] * seconds
        matches = graph.extension(order[:place], alias)
        partials *= matches * seconds / graph.windows[alias]
    return cost


def access_rule(query: JoinQuery, graph: JoinGraph, config: Config) -> AccessRule:
    """How stages find their rows."""
    if config.join == "nested-loop":
        return lambda alias, keyed: "scan"  # noqa: ARG005
    mean = sum(graph.rates[alias] * graph.windows[alias] for alias in query.aliases) / len(query.aliases)

    def choose(alias: str, keyed: bool) -> Access:  # noqa: FBT001
        if not keyed and config.join == "hash":
            raise PlanError(
                f"query {query.name!r}: no equality leads to {alias!r}, so it cannot be probed by hash",
                "use Config(join='auto'), which scans such windows, or add an equality",
            )
        small = config.join == "hybrid" and graph.rates[alias] * graph.windows[alias] < mean
        return "hash" if keyed and not small else "scan"

    return choose


def _checked_order(query: JoinQuery, driver: str, order: Sequence[str], config: Config) -> tuple[str, ...]:
    if not isinstance(order, Sequence):
        raise PlanError(
            f"query {query.name!r}: the probe order of {driver!r} is {order!r}; expected a sequence of aliases"
        )
    complete = tuple(order) if driver in order else (driver, *order)
    if sorted(complete) != sorted(query.aliases):
        raise PlanError(
            f"query {query.name!r}: the probe order of {driver!r} is {listed(order)}; it must name each of "
            f"{listed(alias for alias in query.aliases if alias != driver)} once"
        )
    if complete[0] != driver and config.join != "nested-loop":
        raise PlanError(
            f"query {query.name!r}: the probe order of {driver!r} does not start with it",
            "only Config(join='nested-loop') lets new tuples stand further in",
        )
    return complete
