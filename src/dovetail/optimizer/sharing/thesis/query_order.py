"""In which order queries are planned: algorithms 1 to 3 of Alrahmani (section 3.1).

A predicate weighs λ_a·λ_b·σ divided by the number of queries left that have it (3-1, 3-2), a query as much as its predicates
together (3-3). Weights are taken anew after each query, because a predicate is shared by fewer of those that are left. Ties go to
the query that was given first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from dovetail.optimizer.graph.indexed import members
from dovetail.optimizer.sharing.model.workload import QuerySet

_SAME = 1 + 1e-12
"""Weights this close are equal."""


def gauged_weight(workload: QuerySet, query: int, pair: int) -> float:
    """Give 3-1: λ_a·λ_b·σ_ab of one edge."""
    graph = workload.queries[query].graph
    first, second = members(pair)
    return graph.rates[first] * graph.rates[second] * graph.pair(first, second)


def predicate_weights(workload: QuerySet, queries: Sequence[int]) -> dict[int, dict[int, float]]:
    """Give 3-2 for each query's predicates, by number of their signature."""
    pairs = {
        query: {workload.signature(query, pair): pair for pair in workload.queries[query].edges()} for query in queries
    }
    counts = Counter(chain.from_iterable(pairs.values()))
    return {
        query: {
            signature: gauged_weight(workload, query, pair) / counts[signature] for signature, pair in edges.items()
        }
        for query, edges in pairs.items()
    }


def query_weights(workload: QuerySet, queries: Sequence[int]) -> dict[int, float]:
    """Give 3-3: what each query weighs among some."""
    return {query: sum(weights.values()) for query, weights in predicate_weights(workload, queries).items()}


def heaviest(workload: QuerySet, left: Sequence[int]) -> int:
    """Choose the query that weighs most (algorithm 1)."""
    weights = query_weights(workload, left)
    return max(left, key=weights.__getitem__)


def lightest(workload: QuerySet, left: Sequence[int]) -> int:
    """Choose the query that weighs least (algorithm 2)."""
    weights = query_weights(workload, left)
    return min(left, key=weights.__getitem__)


def shared_predicate(workload: QuerySet, left: Sequence[int]) -> int:
    """Choose the heaviest of the queries that have the lightest shared predicate; if none is shared, the lightest (algorithm 3).

    Where several predicates weigh the same, queries that have any of them take part (section 3.1.3).
    """
    weights = predicate_weights(workload, left)
    holders: dict[int, list[int]] = {}
    for query, edges in weights.items():
        for signature in edges:
            holders.setdefault(signature, []).append(query)
    shared = [signature for signature, queries in holders.items() if len(queries) > 1] or list(holders)
    weight = {signature: weights[holders[signature][0]][signature] for signature in shared}
    least = min(weight.values())
    chosen = {query for signature in shared if weight[signature] <= least * _SAME for query in holders[signature]}
    return max(sorted(chosen), key=lambda query: sum(weights[query].values()))


def as_given(_: QuerySet, left: Sequence[int]) -> int:
    """Choose the query that was given first."""
    return left[0]


QUERY_ORDERS: Mapping[str, Callable[[QuerySet, Sequence[int]], int]] = {
    "shared-predicate": shared_predicate,
    "heaviest": heaviest,
    "lightest": lightest,
    "given": as_given,
}


def ordered(workload: QuerySet, query_order: str) -> list[int]:
    """Give all queries in the order in which they are planned."""
    choose = QUERY_ORDERS[query_order]
    left, order = list(range(len(workload.queries))), list[int]()
    while left:
        order.append(choose(workload, left))
        left.remove(order[-1])
    return order
