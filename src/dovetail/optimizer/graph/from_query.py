"""The join graph of a query, built from rates, windows and the selectivities that are known.

Defaults fill the gaps: `DEFAULT_RATE` for a stream without a rate, 1 / `DEFAULT_EQUALITY` distinct values for a key and
`DEFAULT_CONDITION` for any other condition.

A selectivity that a user gives, or that was measured, is the fraction of pairs of two aliases that match, all conditions between them
included. The pair's classes of equal columns take their distinct counts from it: 0.001 for one edge of a common key means 1,000 values
on both sides of that edge, and on every alias of the class without a selectivity, because a common key has one domain. If the
selectivities of a class contradict each other (containment allows no such counts), an alias gets the smallest count that one of its
selectivities allows; the part that the counts do not explain stays with its pair, so that each holds exactly for its own pair.

A condition over more than two aliases is checked once all of them are joined. Its selectivity is spread evenly over their pairs, whose
product it is. A condition is an edge only if no chain of equalities connects its aliases, because following one takes a scan. A query
that equalities connect is therefore never probed along anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.graph.selectivities import PairSelectivities, PredicateIndex
from dovetail.plan.query_plan import DEFAULT_RATE, QueryPlan
from dovetail.query.model import CountWindow, JoinQuery, MaterializedWindow, StreamRef
from dovetail.schema import StreamSchema
from dovetail.stats.probes import QueryStats

MICROS_PER_SECOND = 1_000_000
_GRAPH = "graph"
"""Key in `QueryPlan.__dict__` that caches its join graph; `plan` may not import the optimizer."""


def join_graph(
    query: JoinQuery, rates: Mapping[str, float], selectivities: Mapping[frozenset[str], float]
) -> JoinGraph:
    """Return the graph of a query, given rates by alias and selectivities by pair of aliases."""
    return build_graph(query, rates, PairSelectivities(PredicateIndex.of(query), selectivities))


def planned_graph(plan: QueryPlan) -> JoinGraph:
    """Return the graph of a query by the statistics that it was planned with."""
    if _GRAPH not in plan.__dict__:
        cache_graph(plan, join_graph(plan.query, plan.stats.rates, plan.stats.selectivities))
    graph: JoinGraph = plan.__dict__[_GRAPH]
    return graph


def cache_graph(plan: QueryPlan, graph: JoinGraph) -> None:
    """Cache the graph of a plan, as `cached_property` would."""
    plan.__dict__[_GRAPH] = graph


def declared_rates(query: JoinQuery, streams: Mapping[str, StreamSchema]) -> dict[str, float]:
    """Return the tuples per second of each alias, as declared for its stream."""
    return {ref.alias: streams[ref.stream].rate or DEFAULT_RATE for ref in query.refs}


def build_graph(
    query: JoinQuery, rates: Mapping[str, float], selectivities: PairSelectivities, measured: QueryStats | None = None
) -> JoinGraph:
    """Return the graph of a query with the given selectivities.

    Rates and window sizes are taken from `measured` if it is given; it must have the sizes of all aliases.
    """
    if measured is None:
        windows = {ref.alias: _seconds(ref, rates[ref.alias]) for ref in query.refs}
    else:
        rates = {alias: measured.rates.get(alias) or rate for alias, rate in rates.items()}
        windows = {alias: max(measured.sizes[alias], 1.0) / rate for alias, rate in rates.items()}
    factors, predicates = selectivities.factors, selectivities.predicates
    edges = {pair: value for pair, value in factors.items() if pair in predicates.edges}
    conditions = {pair: value for pair, value in factors.items() if pair not in edges and value < 1}
    return JoinGraph(rates, edges, windows, selectivities.counts, predicates.classes, conditions=conditions)


def _seconds(ref: StreamRef, rate: float) -> float:
    if isinstance(ref.window, CountWindow):
        return ref.window.rows / rate
    if isinstance(ref.window, MaterializedWindow):
        return ref.window.seconds
    # A window of no length holds the tuples of one instant.
    return max(ref.window.micros, 1) / MICROS_PER_SECOND
