"""How plans are compared: sharing degree and effective cost, equations 3-6 to 3-10 and table 3-1 of Alrahmani (section 3.3).

Where we differ: the degree of an operation over several edges counts the queries that have all of them, and only those that are still
to be planned, for the others have made their choice. Table 3-1 adds the global plan's use to fractions that hold it already (3-10),
and is false whenever one resource is equal: here a plan is better if it is at most equal in both and less in one. A resource without a
limit is never the scarce one; if neither has a limit, CPU is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan
from dovetail.optimizer.sharing.model.workload import QuerySet, Target
from dovetail.plan.shared_plan import Load


def sharing_degree(workload: QuerySet, target: Target, queries: Sequence[int]) -> float:
    """Give 3-6: Σ W / max W over the queries that have a sub-join; above 1 it is worth sharing."""
    windows = [workload.queries[query].window for query in workload.holders(target.signature, queries)]
    return sum(windows) / max(windows) if windows else 1.0


def effective_load(model: CostModel, subplan: Subplan, draft: Draft, left: Sequence[int]) -> Load:
    """Give 3-8 and 3-9: what a subplan adds to a draft, each operation divided by its sharing degree (3-7)."""
    stored = {part for parts in subplan.joins.values() for part in parts if not part.is_base}
    loads = []
    for target, parts in subplan.joins.items():
        degree = sharing_degree(model.workload, target, left)
        cpu = 0.0 if target in draft.joins else model.cpu(target, parts)
        state = model.state(target) if target in stored - draft.stored else Load()
        loads.append(Load((cpu + state.cpu) / degree, state.memory / degree))
    # A target of the draft that nobody has read so far has to be stored now.
    loads += [model.state(target) for target in stored - draft.stored if target not in subplan.joins]
    return Load.total(loads)


def improves(load: Load, before: Load, limits: Load) -> bool:
    """Say whether an effective cost, with what the draft uses (3-10), is better than another: table 3-1, mended."""
    if load.cpu <= before.cpu and load.memory <= before.memory:
        return load != before
    if load.cpu >= before.cpu and load.memory >= before.memory:
        return False
    cpu_used, memory_used = load.cpu / limits.cpu, load.memory / limits.memory  # without a limit nothing is scarce
    if load.cpu < before.cpu:
        return memory_used < cpu_used or (isinf(limits.cpu) and isinf(limits.memory))
    return cpu_used < memory_used
