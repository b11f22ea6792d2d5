"""The join graph of a query, from declared rates, windows and the user's selectivity hints.

What is not known is assumed: `DEFAULT_RATE` for a stream without a rate, and what `shares` assumes of keys and conditions: 1 /
`DEFAULT_EQUALITY` distinct values for a key, `DEFAULT_CONDITION` for any other condition.

A hint is about a pair of aliases and says which share of their pairs match, all conditions between them included. The pair's classes
of equal columns take their distinct counts from it: a hint of 0.001 for one edge of a common key means 1,000 values on both sides of
that edge, and on every alias of the class without a hint of its own, because a common key has one domain. Hints that contradict
each other inside a class (containment allows no such counts) lower an alias to the smallest count that one of its hints allows;
what a hint says beyond the counts stays with its pair, so that each hint holds exactly for the pair that it names.

A condition over more than two aliases can be checked once all of them are there. Its selectivity is spread evenly over their pairs, so
that all of them together have it. A condition is an edge only where no equality connects its aliases, if need be through others: what
it takes to follow one is a scan. So a query that equalities connect is never probed along anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.optimizer.adapt.selectivity import GraphShape, Shares
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.query.model import CountWindow, JoinQuery, StoredWindow, StreamRef
from dovetail.schema import StreamSchema
from dovetail.stats.probes import Measured

DEFAULT_RATE = 1.0
MICROS_PER_SECOND = 1_000_000


def join_graph(query: JoinQuery, rates: Mapping[str, float], hints: Mapping[frozenset[str], float]) -> JoinGraph:
    """The graph of a query, from the rates of its aliases and the user's selectivity hints (by pair of aliases)."""
    return graph_of(query, rates, Shares(GraphShape.of(query), hints))


def declared_rates(query: JoinQuery, streams: Mapping[str, StreamSchema]) -> dict[str, float]:
    """Tuples per second of each alias, as its stream was declared."""
    return {ref.alias: streams[ref.stream].rate or DEFAULT_RATE for ref in query.refs}


def graph_of(
    query: JoinQuery, rates: Mapping[str, float], shares: Shares, measured: Measured | None = None
) -> JoinGraph:
    """The graph of a query whose pairs match by `shares`.

    With `measured` rates and the sizes of windows are as measured; it has the sizes of all aliases.
    """
    if measured is None:
        windows = {ref.alias: _seconds(ref, rates[ref.alias]) for ref in query.refs}
    else:
        rates = {alias: measured.rates.get(alias) or rate for alias, rate in rates.items()}
        windows = {alias: max(measured.sizes[alias], 1.0) / rate for alias, rate in rates.items()}
    factors = shares.factors
    edges = {pair: value for pair, value in factors.items() if pair in shares.shape.edges}
    inside = {pair: value for pair, value in factors.items() if pair not in edges and value < 1}
    return JoinGraph(rates, edges, windows, shares.counts, shares.shape.classes, conditions=inside)


def _seconds(ref: StreamRef, rate: float) -> float:
    if isinstance(ref.window, CountWindow):
        return ref.window.rows / rate
    if isinstance(ref.window, StoredWindow):
        return ref.window.seconds
    # A window of no length holds the tuples of one instant.
    return max(ref.window.micros, 1) / MICROS_PER_SECOND
