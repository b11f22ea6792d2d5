"""`shared`: the thesis's method, which plans one query at a time (Alrahmani, algorithm 4).

A query's n-ary join is tried first; if its CPU is within the query's *allocation* and its memory is *available*, state selection
looks for materialized sub-joins with a better effective cost, within the allocation. Otherwise the binary tree is taken if its memory
is within the allocation and its CPU available; if not, states are removed from it, and of the plans that fit the available budget the
one with the best effective cost is taken.

Where we differ: line 30 gives up when the binary tree takes too much CPU, but a binary tree can cost more CPU than the n-ary join
(1.4288 against 1.3592 in figure 3-1's first query), so the mixed plans are tried before giving up. A query for which nothing fits is
an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, mjoin, tidy
from dovetail.optimizer.sharing.thesis.jtrees import bjtree, state_removal, state_selection
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.optimizer.sharing.thesis.sharing import improves
from dovetail.plan.shared_plan import Load


def shared(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan the queries in `order`; each reuses the joins of earlier ones."""
    return [tidy(model, shared_draft(model, order, limits))]


def shared_draft(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Return the plan of the algorithm, before `tidy`."""
    draft = Draft()
    for position in range(len(order)):
        query = NextQuery(model, draft, order[position:], limits)
        draft = draft.with_query(query.index, plan_one(query))
    return draft


def plan_one(query: NextQuery) -> Subplan:
    """Plan one query on top of the draft."""
    for sub_join in query.draft.joins:
        if query.model.query_set.serves(sub_join, query.index):
            return Subplan(sub_join, {})  # an earlier query has the same join, with windows at least as large
    nary = mjoin(query.model, query.index)
    load = query.added_load(nary)
    if load.memory > query.available.memory * (1 + 1e-9):
        raise query.budget_error("memory", load.memory)
    if load.cpu <= query.allocation.cpu:
        options = (option for option in state_selection(query, nary) if query.added_load(option).fits(query.allocation))
        return best(query, (nary, *options))
    return _second_layer(query, nary)


def _second_layer(query: NextQuery, nary: Subplan) -> Subplan:
    tree = bjtree(query)
    load = query.added_load(tree)
    if load.memory <= query.allocation.memory and load.cpu <= query.available.cpu:
        return tree
    mixed = [tree, *state_removal(query, tree), nary, *state_selection(query, nary)]
    qualified = [option for option in mixed if query.added_load(option).fits(query.available)]
    if not qualified:
        loads = map(query.added_load, mixed)
        fitting = [load.cpu for load in loads if load.memory <= query.available.memory * (1 + 1e-9)]
        raise query.budget_error("CPU", min(fitting))
    return best(query, qualified)


def best(query: NextQuery, subplans: Iterable[Subplan]) -> Subplan:
    """Return the plan with the best effective cost; the first of equal ones."""
    best_plan, *others = subplans
    best_cost = query.effective_cost(best_plan)
    for other in others:
        if improves(cost := query.effective_cost(other), best_cost, query.limits):
            best_plan, best_cost = other, cost
    return best_plan
