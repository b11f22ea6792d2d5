"""`naive` and `shared-naive`: each query by itself, with the Two-Layer JTree-Finder of Zhu et al. (Alrahmani, sections 3.4 and 4.1).

The first layer takes the n-ary join if it fits, else the tree of binary joins; the second adds states to the one or removes
states from the other until a plan fits. The first that does is taken. A query may use its allocation; if nothing fits into that,
all that the queries before it have left.

`naive` keeps everything per query, base windows too. `shared-naive` makes its choices without looking at the other queries, and then
computes and keeps equal things once; what that saves is left for the queries after it.
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
        alone = Turn(model, Draft(), order[place:], limits, others)
        drafts.append(Draft().joined(query, jtree(alone, alone)))
    return drafts


def shared_naive(model: CostModel, order: Sequence[int], limits: Load) -> Draft:
    """Plan each query by itself, then share what happens to be equal."""
    draft = Draft()
    for place, query in enumerate(order):
        alone = Turn(model, Draft(), order[place:], limits, draft.load(model))
        draft = draft.joined(query, jtree(alone, Turn(model, draft, order[place:], limits)))
    return draft


def jtree(alone: Turn, together: Turn) -> Subplan:
    """The first plan of the two layers that fits the query's allocation by itself, or else what is left, with what it adds."""
    for turn, within in ((alone, alone.allocated), (together, together.available)):
        for subplan in _two_layers(alone):
            if turn.added(subplan).fits(within):
                return subplan
    loads = [together.added(subplan) for subplan in _two_layers(alone)]
    if loads[0].memory > together.available.memory:
        raise nothing_fits(together, "memory", loads[0].memory)
    raise nothing_fits(together, "CPU", min(load.cpu for load in loads))


def _two_layers(turn: Turn) -> Iterator[Subplan]:
    nary = mjoin(turn.model, turn.query)
    yield nary
    tree = bjtree(turn)
    yield tree
    yield from state_selection(turn, nary)
    yield from state_removal(turn, tree)
