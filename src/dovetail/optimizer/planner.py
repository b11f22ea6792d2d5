"""From a query, its statistics and the configuration to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.config import Config
from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.graph.from_query import declared_rates, join_graph
from dovetail.optimizer.graph.hints import Selectivity
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.ordering.golab import general_orders, one_common_key
from dovetail.plan.paths import AccessRule, PathMaker
from dovetail.plan.query_plan import Access, PlannerStats, QueryPlan
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.stats.probes import Objective

ASSUMED_TAU = 1.0
"""Seconds of event time in a batch, for general nested loops, until a batch has come: then it is measured."""
Orders: TypeAlias = Mapping[str, Sequence[str]]
"""For each input the others in the order in which its new tuples meet them."""


@dataclass(frozen=True)
class PlanChoices:
    """What a user asked of one query's plan."""

    hints: Mapping[frozenset[str], Selectivity] = field(default_factory=dict)
    """Selectivities, by pair of aliases."""
    orders: Mapping[str, Sequence[str]] | None = None
    """Probe orders forced on some inputs: the other aliases, or all of them for a nested-loop plan in which new tuples stand
    further in."""


def plan_query(
    query: JoinQuery,
    streams: Mapping[str, StreamSchema],
    config: Config,
    choices: PlanChoices | None = None,
    measured: Mapping[str, float] | None = None,
) -> QueryPlan:
    """Choose an order and an access path for every input; `measured` are tuples per second of aliases, where they are known."""
    choices = choices or PlanChoices()
    rates = {**declared_rates(query, streams), **(measured or {})}
    graph = join_graph(query, rates, choices.hints)
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
    chosen: Orders = {}
    if not forced.keys() >= set(query.aliases):
        chosen = complete_orders(graph, config, multi_way_orders(graph, config, access))
    paths, maker = [], PathMaker(query)
    for driver in query.aliases:
        order = _checked_order(query, driver, forced[driver], config) if driver in forced else chosen[driver]
        paths.append(maker.path(driver, order, access))
    expected = estimate(graph, {path.driver: path.order for path in paths}, objective(config))
    known = PlannerStats(rates, choices.hints, tuple(forced))
    return QueryPlan(query, tuple(paths), "given" if forced else config.ordering, known, expected)


def multi_way_orders(
    graph: JoinGraph, config: Config, access: AccessRule, tau: float | None = None, exact: int | None = None
) -> dict[str, tuple[str, ...]]:
    """For each alias the others, by the method of the configuration.

    `golab` also knows what section 5 of 003 asks for: how long a batch is where that is known (5.2), and which windows have an
    index. Ours finds matches alone, so it has a bucket for each value (5.3); under `hybrid` small windows have none (5.4).
    """
    if config.ordering != "golab":
        return order_probes(graph, config.ordering, objective(config), exact=exact)
    keyed = {
        alias: max(1, round(count)) for (alias, _), count in sorted(graph.distinct.items(), key=lambda each: each[1])
    }
    buckets = {alias: count for alias, count in keyed.items() if access(alias, True) == "hash"}
    lazily = tau if config.evaluation == "lazy" else None
    return order_probes(graph, "golab", objective(config), tau=lazily, buckets=buckets)


def objective(config: Config) -> Objective:
    """What orders are chosen by: a scan pays for what it looks at, a probe for what it finds."""
    return "comparisons" if config.join == "nested-loop" else "produced"


def complete_orders(graph: JoinGraph, config: Config, orders: Orders) -> dict[str, tuple[str, ...]]:
    """For each driver all aliases, given the others in order; only the naive and general nested loops put it anywhere but first."""
    if config.nested_loop == "naive":
        start = min(graph.rates, key=lambda alias: graph.rates[alias] * graph.windows[alias])
        return dict.fromkeys(graph.rates, (start, *orders[start]))
    if config.nested_loop == "general":
        return general_placement(graph, orders, ASSUMED_TAU)
    return {driver: (driver, *others) for driver, others in orders.items()}


def general_placement(graph: JoinGraph, orders: Orders, tau: float) -> dict[str, tuple[str, ...]]:
    """For each driver an order of all aliases in which its new tuples of `tau` seconds may stand anywhere (003, sections 3.3, 5.2).

    Tried are every place in the multi-way order of every input, naive plans among them, and where all share one key the orders of
    section 5.2. So by its own price none of these is better.
    """
    along = [(start, *others) for start, others in orders.items()]
    by_size = general_orders(graph, tau) if one_common_key(graph) else {}
    return {driver: _best_place(graph, driver, [*along, *by_size.values()], tau) for driver in graph.rates}


def _best_place(graph: JoinGraph, driver: str, orders: Sequence[Sequence[str]], tau: float) -> tuple[str, ...]:
    tried: dict[tuple[str, ...], float] = {}
    for order in orders:
        rest = [alias for alias in order if alias != driver]
        for place in range(len(rest) + 1):
            placed = (*rest[:place], driver, *rest[place:])
            if placed not in tried:
                tried[placed] = scan_cost(graph, driver, placed, tau)
    # Of equal ones, that in which new tuples stand furthest out.
    return min(tried, key=lambda order: (round(tried[order], 6), order.index(driver)))


def scan_cost(graph: JoinGraph, driver: str, order: Sequence[str], tau: float) -> float:
    """Rows compared per second by a nested-loop plan that runs every `tau` seconds over the driver's new tuples.

    That is H_i of 003, appendix A: windows are longer by `tau`, expiry being as lazy; the outermost scan compares nothing.
    """
    partials, cost = 1.0, 0.0
    for place, alias in enumerate(order):
        seconds = tau if alias == driver else graph.windows[alias] + tau
        if place:
            cost += partials * graph.rates[alias] * seconds
        partials *= graph.extension(order[:place], alias) * seconds / graph.windows[alias]
    return cost / tau


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
