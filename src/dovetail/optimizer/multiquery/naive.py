"""`naive` and `shared-naive`: each query by itself, with the Two-Layer JTree-Finder of Zhu et al. (Alrahmani, sections 3.4 and 4.1).

The first layer takes the n-ary join if it fits, else the tree of binary joins; the second adds states to the one or removes
states from the other until a plan fits. The first that does is taken. A query may use its allocation; if nothing fits into that,
all that the queries before it have left.

`naive` keeps everything per query, base windows too. `shared-naive` makes the same choices, without looking at the other queries, and
then computes and keeps equal things once; what that saves is left for the queries after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.optimizer.multiquery.bjtree import bjtree
from dovetail.optimizer.multiquery.costs import CostModel, total
from dovetail.optimizer.multiquery.draft import Draft, Subplan, mjoin
from dovetail.optimizer.multiquery.infeasible import nothing_fits
from dovetail.optimizer.multiquery.state_removal import state_removal
from dovetail.optimizer.multiquery.state_selection import state_selection
from dovetail.optimizer.multiquery.turn import Turn
from dovetail.plan.global_plan import Load


def naive(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan each query by itself and share nothing; one draft per query."""
    drafts: list[Draft] = []
    for place, query in enumerate(order):
        others = total(draft.load(model) for draft in drafts)
        drafts.append(Draft().joined(query, jtree(Turn(model, Draft(), order[place:], limits, others))))
    return drafts


def shared_naive(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Plan each query by itself, then share what happens to be equal."""
    draft = Draft()
    for place, query in enumerate(order):
        turn = Turn(model, Draft(), order[place:], limits, draft.load(model))
        draft = draft.joined(query, jtree(turn))
    return draft


def jtree(turn: Turn) -> Subplan:
    """The first plan of the two layers that fits."""
    for within in (turn.allocated, turn.available):
        for subplan in _two_layers(turn):
            if turn.added(subplan).fits(within):
                return subplan
    nary = turn.added(mjoin(turn.model, turn.query))
    if nary.memory > turn.available.memory:
        raise nothing_fits(turn, "memory", nary.memory)
    raise nothing_fits(turn, "CPU", min(turn.added(subplan).cpu for subplan in _two_layers(turn)))


def _two_layers(turn: Turn) -> Iterator[Subplan]:
    nary = mjoin(turn.model, turn.query)
    yield nary
    tree = bjtree(turn)
    yield tree
    yield from state_selection(turn, nary)
    yield from state_removal(turn, tree)
