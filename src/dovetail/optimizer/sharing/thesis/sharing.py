"""Comparison of plans by sharing degree and effective cost (Alrahmani, section 3.3).

These are equations 3-6 to 3-10 and table 3-1.

Where we differ: the degree of an operation over several edges counts the queries that contain all of them, and only those still to be
planned, because the others are fixed. Table 3-1 adds the global plan's use to fractions that already include it (3-10), and is false
whenever one resource is equal: here a plan is better if neither resource is larger and one is smaller. A resource without a limit is
never the scarce one; if neither has a limit, CPU is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan
from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin
from dovetail.plan.shared_plan import Load


def sharing_degree(query_set: QuerySet, sub_join: SubJoin, queries: Sequence[int]) -> float:
    """Return 3-6: Σ W / max W over the queries that contain a sub-join; above 1 it is worth sharing."""
    windows = [query_set.queries[query].window for query in query_set.holders(sub_join.signature, queries)]
    return sum(windows) / max(windows) if windows else 1.0


def effective_load(model: CostModel, subplan: Subplan, draft: Draft, remaining: Sequence[int]) -> Load:
    """Return 3-8 and 3-9: the added load, each operation divided by its sharing degree (3-7)."""
    materialized = {part for parts in subplan.joins.values() for part in parts if not part.is_base}
    loads = []
    for sub_join, parts in subplan.joins.items():
        degree = sharing_degree(model.query_set, sub_join, remaining)
        cpu = 0.0 if sub_join in draft.joins else model.cpu(sub_join, parts)
        state = model.materialization(sub_join) if sub_join in materialized - draft.materialized else Load()
        loads.append(Load((cpu + state.cpu) / degree, state.memory / degree))
    # A sub-join of the draft that had no reader so far has to be materialized now.
    loads += [
        model.materialization(sub_join)
        for sub_join in materialized - draft.materialized
        if sub_join not in subplan.joins
    ]
    return Load.total(loads)


def improves(load: Load, other: Load, limits: Load) -> bool:
    """Whether an effective cost with the draft's load (3-10) beats another, by a corrected table 3-1."""
    if load.cpu <= other.cpu and load.memory <= other.memory:
        return load != other
    if load.cpu >= other.cpu and load.memory >= other.memory:
        return False
    cpu_used, memory_used = load.cpu / limits.cpu, load.memory / limits.memory  # 0 without a limit
    if load.cpu < other.cpu:
        return memory_used < cpu_used or (isinf(limits.cpu) and isinf(limits.memory))
    return cpu_used < memory_used
