"""What each query may use: equations 3-4 and 3-5 of Alrahmani (section 3.2).

CPU is shared out by the weight of a query's predicates, Σ λ·λ·σ, memory by that times its window. Read literally, 3-5 gives W_i / ΣW,
because the sums in its numerator and denominator are the same; we take the sum over all queries of W·Σ, so that the shares add up to
one, as the text says. What one query leaves unused goes to the others: shares are of what is still there, among the queries that are
still to come.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.optimizer.multiquery.query_order import gauged_weight
from dovetail.optimizer.multiquery.workload import Workload
from dovetail.plan.global_plan import Load


def shares(workload: Workload, queries: Sequence[int]) -> dict[int, Load]:
    """Each query's share of CPU (3-4) and memory (3-5) among some."""
    weights = {
        query: sum(gauged_weight(workload, query, pair) for pair in workload.queries[query].edges())
        for query in queries
    }
    windowed = {query: weight * workload.queries[query].window for query, weight in weights.items()}
    cpu, memory = sum(weights.values()), sum(windowed.values())
    return {query: Load(weights[query] / cpu, windowed[query] / memory) for query in queries}


def allocated(workload: Workload, left: Sequence[int], available: Load) -> Load:
    """What the first of the queries that are left may use of what is available."""
    share = shares(workload, left)[left[0]]
    return Load(available.cpu * share.cpu, available.memory * share.memory)
