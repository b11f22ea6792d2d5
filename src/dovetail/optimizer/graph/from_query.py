"""The join graph of a query, built from declared rates, windows and the user's selectivity hints.

Defaults fill the gaps: `DEFAULT_RATE` for a stream without a rate, and from `adapt.selectivity` 1 / `DEFAULT_EQUALITY` distinct values
for a key and `DEFAULT_CONDITION` for any other condition.

A hint is the fraction of pairs of two aliases that match, all conditions between them included. The pair's classes of equal columns
take their distinct counts from it: a hint of 0.001 for one edge of a common key means 1,000 values on both sides of that edge, and on
every alias of the class without a hint, because a common key has one domain. If hints contradict each other inside a class
(containment allows no such counts), an alias gets the smallest count that one of its hints allows; the part of a hint that the counts
do not explain stays with its pair, so that each hint holds exactly for the pair that it names.

A condition over more than two aliases is checked once all of them are joined. Its selectivity is spread evenly over their pairs, whose
product it is. A condition is an edge only if no chain of equalities connects its aliases, because following one takes a scan. A query
that equalities connect is therefore never probed along anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.optimizer.adapt.selectivity import PairSelectivities, PredicateIndex
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.model import CountWindow, JoinQuery, StoredWindow, StreamRef
from dovetail.schema import StreamSchema
from dovetail.stats.probes import QueryStats

DEFAULT_RATE = 1.0
MICROS_PER_SECOND = 1_000_000
_GRAPH = "graph"
"""Where a `QueryPlan`, which knows no join graphs, keeps its own."""


def join_graph(query: JoinQuery, rates: Mapping[str, float], hints: Mapping[frozenset[str], float]) -> JoinGraph:
    """Return the graph of a query, given rates by alias and selectivity hints by pair of aliases."""
    return graph_of(query, rates, PairSelectivities(PredicateIndex.of(query), hints))


def planned_graph(plan: QueryPlan) -> JoinGraph:
    """Return the graph of a query by the statistics that it was planned with."""
    if _GRAPH not in plan.__dict__:
        keep_graph(plan, join_graph(plan.query, plan.stats.rates, plan.stats.hints))
    graph: JoinGraph = plan.__dict__[_GRAPH]
    return graph


def keep_graph(plan: QueryPlan, graph: JoinGraph) -> None:
    """Keep a plan's graph with it, as `cached_property` would, so that it is built once."""
    plan.__dict__[_GRAPH] = graph


def declared_rates(query: JoinQuery, streams: Mapping[str, StreamSchema]) -> dict[str, float]:
    """Return the tuples per second of each alias, as declared for its stream."""
    return {ref.alias: streams[ref.stream].rate or DEFAULT_RATE for ref in query.refs}


def graph_of(
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
    if isinstance(ref.window, StoredWindow):
        return ref.window.seconds
    # A window of no length holds the tuples of one instant.
    return max(ref.window.micros, 1) / MICROS_PER_SECOND
