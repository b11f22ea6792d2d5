"""Planning of one query: probe orders and access paths from statistics, hints and the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.config import Config
from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.graph.from_query import cache_graph, declared_rates, join_graph
from dovetail.optimizer.graph.hints import Selectivity
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.ordering.golab import general_orders, has_one_common_key
from dovetail.optimizer.ordering.problem import ProbeOrders
from dovetail.plan.paths import AccessRule, PathBuilder
from dovetail.plan.query_plan import Access, PlannerStats, QueryPlan
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.stats.probes import Objective

ASSUMED_TAU = 1.0
"""Seconds of event time in a batch, for general nested loops, until the first batch is measured."""


@dataclass(frozen=True)
class PlanningOptions:
    """Selectivity hints and probe orders that the user sets for one query."""

    hints: Mapping[frozenset[str], Selectivity] = field(default_factory=dict)
    """Selectivities, by pair of aliases."""
    orders: ProbeOrders | None = None
    """Forced probe orders of some inputs: the other aliases, or all of them if a nested-loop plan has new tuples in an inner loop."""


def plan_query(
    query: JoinQuery,
    streams: Mapping[str, StreamSchema],
    config: Config,
    options: PlanningOptions | None = None,
    stats: PlannerStats | None = None,
) -> QueryPlan:
    """Choose an order and an access path for every input.

    `stats` has measured rates and selectivities; without it, rates are those declared and selectivities are the hints of `options`.
    """
    options = options or PlanningOptions()
    rates = declared_rates(query, streams) | dict(stats.rates if stats is not None else {})
    selectivities = options.hints if stats is None else stats.selectivities
    graph = join_graph(query, rates, selectivities)
    access = access_rule(query, graph, config)
    forced = options.orders or {}
    if not isinstance(forced, Mapping):
        raise PlanError(
            f"query {query.name!r}: probe orders are {forced!r}; expected {{alias: (other aliases in order)}}"
        )
    unknown = [alias for alias in forced if alias not in query.aliases]
    if unknown:
        raise PlanError(
            f"query {query.name!r}: probe orders name {listed(unknown)}; its aliases are {listed(query.aliases)}"
        )
    chosen: ProbeOrders = {}
    if not forced.keys() >= set(query.aliases):
        chosen = complete_orders(graph, config, choose_orders(graph, config, access))
    paths, builder = [], PathBuilder(query)
    for driver in query.aliases:
        order = _checked_order(query, driver, forced[driver], config) if driver in forced else chosen[driver]
        paths.append(builder.path(driver, order, access))
    expected = estimate(graph, {path.driver: path.order for path in paths}, objective(config))
    used_stats = PlannerStats(rates, selectivities, tuple(forced))
    plan = QueryPlan(query, tuple(paths), config.ordering, used_stats, expected)
    cache_graph(plan, graph)
    return plan


def choose_orders(
    graph: JoinGraph, config: Config, access: AccessRule, tau: float | None = None, exact: int | None = None
) -> dict[str, tuple[str, ...]]:
    """Return, for each alias, the others in the order chosen by the configured method.

    `golab` also gets the parameters of Golab and Özsu's section 5: the length of a batch if it is known (5.2), and the windows with
    an index. The engine's index finds only matches, so it has one bucket per value (5.3); under `hybrid` small windows lack one (5.4).
    """
    if config.ordering != "golab":
        return order_probes(graph, config.ordering, objective(config), exact=exact)
    distinct = {
        alias: max(1, round(count)) for (alias, _), count in sorted(graph.distinct.items(), key=lambda item: item[1])
    }
    buckets = {alias: count for alias, count in distinct.items() if access(alias, True) == "hash"}
    lazy_tau = tau if config.evaluation == "lazy" else None
    return order_probes(graph, "golab", objective(config), tau=lazy_tau, buckets=buckets)


def objective(config: Config) -> Objective:
    """Return the objective of ordering: a scan pays per tuple compared, a hash probe per tuple found."""
    return "comparisons" if config.join == "nested-loop" else "produced"


def complete_orders(graph: JoinGraph, config: Config, orders: ProbeOrders) -> dict[str, tuple[str, ...]]:
    """Return, for each driver, an order of all aliases.

    Only naive and general nested loops place the driver anywhere but first.
    """
    if config.nested_loop == "naive":
        start = min(graph.rates, key=lambda alias: graph.rates[alias] * graph.windows[alias])
        return dict.fromkeys(graph.rates, (start, *orders[start]))
    if config.nested_loop == "general":
        return general_placement(graph, orders, ASSUMED_TAU)
    return {driver: (driver, *others) for driver, others in orders.items()}


def general_placement(graph: JoinGraph, orders: ProbeOrders, tau: float) -> dict[str, tuple[str, ...]]:
    """Return orders with new tuples at any position (Golab and Özsu, sections 3.3 and 5.2).

    The new tuples are those of `tau` seconds.

    The candidates are every position in the multi-way order of every input, which includes the naive plans, and the orders of
    section 5.2 if all inputs share one key. By its own cost, the result is the best of these.
    """
    multi_way = [(start, *others) for start, others in orders.items()]
    by_size = general_orders(graph, tau) if has_one_common_key(graph) else {}
    return {driver: _best_position(graph, driver, [*multi_way, *by_size.values()], tau) for driver in graph.rates}


def _best_position(graph: JoinGraph, driver: str, orders: Sequence[Sequence[str]], tau: float) -> tuple[str, ...]:
    costs: dict[tuple[str, ...], float] = {}
    for order in orders:
        others = [alias for alias in order if alias != driver]
        for position in range(len(others) + 1):
            candidate = (*others[:position], driver, *others[position:])
            if candidate not in costs:
                costs[candidate] = scan_cost(graph, driver, candidate, tau)
    # Of equal ones, the order with the new tuples furthest out.
    return min(costs, key=lambda order: (round(costs[order], 6), order.index(driver)))


def scan_cost(graph: JoinGraph, driver: str, order: Sequence[str], tau: float) -> float:
    """Return the comparisons per second of a nested-loop plan that joins new tuples every `tau` seconds.

    This is H_i of Golab and Özsu's appendix A: windows are longer by `tau`, because tuples expire only every `tau` seconds; the
    outermost scan compares nothing.
    """
    partials, cost = 1.0, 0.0
    for position, alias in enumerate(order):
        seconds = tau if alias == driver else graph.windows[alias] + tau
        if position:
            cost += partials * graph.rates[alias] * seconds
        partials *= graph.extension(order[:position], alias) * seconds / graph.windows[alias]
    return cost / tau


def access_rule(query: JoinQuery, graph: JoinGraph, config: Config) -> AccessRule:
    """Return the rule that chooses between hash index and scan for each stage."""
    if config.join == "nested-loop":
        return lambda alias, keyed: "scan"  # noqa: ARG005
    mean = sum(graph.rates[alias] * graph.windows[alias] for alias in query.aliases) / len(query.aliases)

    def choose(alias: str, keyed: bool) -> Access:  # noqa: FBT001
        if not keyed and config.join == "hash":
            raise PlanError(
                f"query {query.name!r}: no equality leads to {alias!r}, so it cannot be probed by hash",
                "use Config(join='auto'), which scans such windows, or add an equality",
            )
        is_small = config.join == "hybrid" and graph.rates[alias] * graph.windows[alias] < mean
        return "hash" if keyed and not is_small else "scan"

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
            "only Config(join='nested-loop') allows new tuples in an inner loop",
        )
    return complete
