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

from dovetail.optimizer.multiquery.bjtree import bjtree
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft, Subplan, mjoin
from dovetail.optimizer.multiquery.infeasible import nothing_fits
from dovetail.optimizer.multiquery.state_removal import state_removal
from dovetail.optimizer.multiquery.state_selection import state_selection
from dovetail.optimizer.multiquery.turn import Turn
from dovetail.plan.global_plan import Load


def shared(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Plan queries in an order; each uses what those before it have made."""
    draft = Draft()
    for place in range(len(order)):
        turn = Turn(model, draft, order[place:], limits)
        draft = draft.joined(turn.query, plan_one(turn))
    return draft


def plan_one(turn: Turn) -> Subplan:
    """Plan the query whose turn it is."""
    for target in turn.draft.joins:
        if turn.model.workload.serves(target, turn.query):
            return Subplan(target, {})  # another query asks for the same, or for more
    nary = mjoin(turn.model, turn.query)
    load = turn.added(nary)
    if load.memory > turn.available.memory * (1 + 1e-9):
        raise nothing_fits(turn, "memory", load.memory)
    if load.cpu <= turn.allocated.cpu:
        within = (each for each in state_selection(turn, nary) if turn.added(each).fits(turn.allocated))
        return best(turn, (nary, *within))
    return _second_layer(turn, nary)


def _second_layer(turn: Turn, nary: Subplan) -> Subplan:
    tree = bjtree(turn)
    load = turn.added(tree)
    if load.memory <= turn.allocated.memory and load.cpu <= turn.available.cpu:
        return tree
    mixed = [tree, *state_removal(turn, tree), nary, *state_selection(turn, nary)]
    qualified = [each for each in mixed if turn.added(each).fits(turn.available)]
    if not qualified:
        fitting = [each for each in mixed if turn.added(each).memory <= turn.available.memory * (1 + 1e-9)]
        raise nothing_fits(turn, "CPU", min(turn.added(each).cpu for each in fitting))
    return best(turn, qualified)


def best(turn: Turn, subplans: Iterable[Subplan]) -> Subplan:
    """The plan with the best effective cost; of equal ones the first."""
    first, *others = subplans
    chosen, cost = first, turn.effective(first)
    for each in others:
        if (found := turn.effective(each)).better_than(cost):
            chosen, cost = each, found
    return chosen
