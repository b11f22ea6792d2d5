"""Order in which queries are planned: algorithms 1 to 3 of Alrahmani (section 3.1).

A predicate weighs λ_a·λ_b·σ divided by the number of remaining queries that contain it (3-1, 3-2), a query as much as its predicates
together (3-3). Weights are recomputed after each query, because fewer of the remaining ones share a predicate. Ties go to the query
that was given first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeAlias

from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.query_set import QuerySet

_SAME = 1 + 1e-12
"""Weights this close are equal."""


def gauged_weight(query_set: QuerySet, query: int, pair: int) -> float:
    """Return 3-1: λ_a·λ_b·σ_ab of one edge."""
    graph = query_set.queries[query].graph
    first, second = members(pair)
    return graph.rates[first] * graph.rates[second] * graph.selectivity(first, second)


def predicate_weights(query_set: QuerySet, queries: Sequence[int]) -> dict[int, dict[int, float]]:
    """Return 3-2 for each query's predicates, by index of their signature."""
    pairs = {
        query: {query_set.signature(query, pair): pair for pair in query_set.queries[query].edges()}
        for query in queries
    }
    counts = Counter(chain.from_iterable(pairs.values()))
    return {
        query: {
            signature: gauged_weight(query_set, query, pair) / counts[signature] for signature, pair in edges.items()
        }
        for query, edges in pairs.items()
    }


def query_weights(query_set: QuerySet, queries: Sequence[int]) -> dict[int, float]:
    """Return 3-3: the weight of each query among `queries`."""
    return {query: sum(weights.values()) for query, weights in predicate_weights(query_set, queries).items()}


def heaviest(query_set: QuerySet, remaining: Sequence[int]) -> int:
    """Choose the query that weighs most (algorithm 1)."""
    weights = query_weights(query_set, remaining)
    return max(remaining, key=weights.__getitem__)


def lightest(query_set: QuerySet, remaining: Sequence[int]) -> int:
    """Choose the query that weighs least (algorithm 2)."""
    weights = query_weights(query_set, remaining)
    return min(remaining, key=weights.__getitem__)


def shared_predicate(query_set: QuerySet, remaining: Sequence[int]) -> int:
    """Choose the heaviest query that has the lightest shared predicate (algorithm 3).

    If no predicate is shared, all predicates count.

    If several predicates weigh the same, the queries with any of them are candidates (section 3.1.3).
    """
    weights = predicate_weights(query_set, remaining)
    holders: dict[int, list[int]] = {}
    for query, edges in weights.items():
        for signature in edges:
            holders.setdefault(signature, []).append(query)
    shared = [signature for signature, queries in holders.items() if len(queries) > 1] or list(holders)
    weight = {signature: weights[holders[signature][0]][signature] for signature in shared}
    least = min(weight.values())
    chosen = {query for signature in shared if weight[signature] <= least * _SAME for query in holders[signature]}
    return max(sorted(chosen), key=lambda query: sum(weights[query].values()))


def as_given(_: QuerySet, remaining: Sequence[int]) -> int:
    """Choose the query that was given first."""
    return remaining[0]


QueryOrder: TypeAlias = Literal["shared-predicate", "heaviest", "lightest", "given"]
QUERY_ORDERS: Mapping[QueryOrder, Callable[[QuerySet, Sequence[int]], int]] = {
    "shared-predicate": shared_predicate,
    "heaviest": heaviest,
    "lightest": lightest,
    "given": as_given,
}


def order_queries(query_set: QuerySet, query_order: QueryOrder) -> list[int]:
    """Return all queries in the order in which to plan them."""
    choose = QUERY_ORDERS[query_order]
    remaining, order = list(range(len(query_set.queries))), list[int]()
    while remaining:
        order.append(choose(query_set, remaining))
        remaining.remove(order[-1])
    return order
