"""What the thesis compares itself with: each query by itself, or all in the same way.

`naive` and `shared-naive` plan each query with the Two-Layer JTree-Finder of Zhu et al. (Alrahmani, sections 3.4 and 4.1). The first
layer takes the n-ary join if it fits, else the tree of binary joins; the second adds states to the one or removes states from the
other until a plan fits. The first that does is taken. A query may use its allocation; if nothing fits into that, all that the
queries before it have left.

`naive` computes and stores everything per query. The thesis's keeps base windows per query as well; an engine has one window of a
stream for all queries, and a plan says what runs, so here windows count once. (Queries over streams with names of their own have
windows of their own: so `make reproduce PAPER=alrahmani` has the thesis's.) `shared-naive` makes its choices without looking at the
other queries, and then computes and keeps equal things once; what that saves is left for the queries after it.

`mjoin` and `bjtree` give all queries n-ary joins, or trees of binary joins, whatever they cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, load_of, mjoin, tidied
from dovetail.optimizer.sharing.thesis.jtrees import bjtree, state_removal, state_selection
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.plan.shared_plan import NO_LIMITS, Load


def naive(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan each query by itself and share no joins: one draft per query."""
    drafts: list[Draft] = []
    for place, query in enumerate(order):
        own = Draft(scope=f"{model.workload.names[query]}/")
        alone = NextQuery(model, own, order[place:], limits, _beside(model, drafts, query))
        drafts.append(own.joined(query, first_that_fits(alone, alone)))
    return drafts


def _beside(model: CostModel, drafts: Sequence[Draft], query: int) -> Load:
    """Give what `drafts` take beside the windows of `query`, which are the same in all its plans."""
    nary = Draft().joined(query, mjoin(model, query))
    both, own = load_of(model, [*drafts, nary]), nary.load(model)
    return Load(both.cpu - own.cpu, both.memory - own.memory)


def shared_naive(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan each query by itself, then share what happens to be equal."""
    draft = Draft()
    for place, query in enumerate(order):
        alone = NextQuery(model, Draft(), order[place:], limits, draft.load(model))
        draft = draft.joined(query, first_that_fits(alone, NextQuery(model, draft, order[place:], limits)))
    return [tidied(model, draft)]


def mjoins(model: CostModel, order: Sequence[int], _: Load) -> list[Draft]:
    """Plan one n-ary join for each query; equal ones are computed once."""
    draft = reduce(lambda before, query: before.joined(query, mjoin(model, query)), order, Draft())
    return [tidied(model, draft)]


def bjtrees(model: CostModel, order: Sequence[int], _: Load) -> list[Draft]:
    """Plan a tree of binary joins for each query; each uses what those before it have made."""
    draft = Draft()
    for place, query in enumerate(order):
        draft = draft.joined(query, bjtree(NextQuery(model, draft, order[place:], NO_LIMITS)))
    return [tidied(model, draft)]


def first_that_fits(alone: NextQuery, together: NextQuery) -> Subplan:
    """Give the first plan of the two layers that fits the query's allocation by itself, or else what is left, with what it adds."""
    for query, within in ((alone, alone.allocated), (together, together.available)):
        for subplan in _two_layers(alone):
            if query.added(subplan).fits(within):
                return subplan
    loads = [together.added(subplan) for subplan in _two_layers(alone)]
    if loads[0].memory > together.available.memory:
        raise together.nothing_fits("memory", loads[0].memory)
    raise together.nothing_fits("CPU", min(load.cpu for load in loads))


def _two_layers(query: NextQuery) -> Iterator[Subplan]:
    nary = mjoin(query.model, query.number)
    yield nary
    tree = bjtree(query)
    yield tree
    yield from state_selection(query, nary)
    yield from state_removal(query, tree)
