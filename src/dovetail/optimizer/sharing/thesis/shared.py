"""`shared`: the thesis's method, one query at a time into a global plan (Alrahmani, algorithm 4).

A query's n-ary join is tried first; if its CPU is within the query's *allocation* and its memory is *available*, state selection
looks for stored sub-joins with a better effective cost, within the allocation. Otherwise the binary tree is taken if its memory
is within the allocation and its CPU available, or else states are removed from it while that is needed, and of the plans that fit
into what is available the one with the best effective cost is taken.

Where we differ: line 30 gives up when the binary tree takes too much CPU, but a binary tree can cost more CPU than the n-ary join
(1.4288 against 1.3592 in figure 3-1's first query), so the mixed plans are tried before giving up. A query for which nothing fits is
an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, mjoin, tidied
from dovetail.optimizer.sharing.thesis.jtrees import bjtree, state_removal, state_selection
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.optimizer.sharing.thesis.sharing import improves
from dovetail.plan.shared_plan import Load


def shared(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan the queries in `order`; each uses what those before it have made."""
    return [tidied(model, shared_draft(model, order, limits))]


def shared_draft(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Give the plan as the algorithm leaves it."""
    draft = Draft()
    for place in range(len(order)):
        query = NextQuery(model, draft, order[place:], limits)
        draft = draft.joined(query.number, plan_one(query))
    return draft


def plan_one(query: NextQuery) -> Subplan:
    """Plan one query on top of the draft."""
    for target in query.draft.joins:
        if query.model.workload.serves(target, query.number):
            return Subplan(target, {})  # another query asks for the same, or for more
    nary = mjoin(query.model, query.number)
    load = query.added(nary)
    if load.memory > query.available.memory * (1 + 1e-9):
        raise query.nothing_fits("memory", load.memory)
    if load.cpu <= query.allocated.cpu:
        within = (each for each in state_selection(query, nary) if query.added(each).fits(query.allocated))
        return best(query, (nary, *within))
    return _second_layer(query, nary)


def _second_layer(query: NextQuery, nary: Subplan) -> Subplan:
    tree = bjtree(query)
    load = query.added(tree)
    if load.memory <= query.allocated.memory and load.cpu <= query.available.cpu:
        return tree
    mixed = [tree, *state_removal(query, tree), nary, *state_selection(query, nary)]
    qualified = [each for each in mixed if query.added(each).fits(query.available)]
    if not qualified:
        loads = map(query.added, mixed)
        fitting = [load.cpu for load in loads if load.memory <= query.available.memory * (1 + 1e-9)]
        raise query.nothing_fits("CPU", min(fitting))
    return best(query, qualified)


def best(query: NextQuery, subplans: Iterable[Subplan]) -> Subplan:
    """Give the plan with the best effective cost; of equal ones the first."""
    first, *others = subplans
    chosen, cost = first, query.effective(first)
    for each in others:
        if improves(other := query.effective(each), cost, query.limits):
            chosen, cost = each, other
    return chosen
