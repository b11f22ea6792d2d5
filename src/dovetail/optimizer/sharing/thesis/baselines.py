"""The thesis's baselines: each query planned by itself, or all queries in the same way.

`naive` and `shared-naive` plan each query with the Two-Layer JTree-Finder of Zhu et al. (Alrahmani, sections 3.4 and 4.1). The first
layer takes the n-ary join if it fits, else the tree of binary joins; the second adds states to the former or removes states from the
latter, and takes the first plan that fits. A query may use its allocation; if nothing fits that, all that earlier queries left.

`naive` computes and stores everything per query. The thesis's version keeps base windows per query as well; an engine has one window
per stream for all queries, so here windows count once. (Queries over streams with different names have separate windows: this is how
`make reproduce PAPER=alrahmani` gets the thesis's version.) `shared-naive` ignores the other queries when it chooses, and then
computes and keeps equal joins once; the savings are available to later queries.

`mjoin` and `bjtree` plan all queries as n-ary joins, or as trees of binary joins, at any cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, Subplan, load_of, mjoin, tidy
from dovetail.optimizer.sharing.thesis.jtrees import bjtree, state_removal, state_selection
from dovetail.optimizer.sharing.thesis.next_query import NextQuery
from dovetail.plan.shared_plan import NO_LIMITS, Load


def naive(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan each query by itself and share no joins: one draft per query."""
    drafts: list[Draft] = []
    for position, query in enumerate(order):
        draft = Draft(scope=f"{model.query_set.names[query]}/")
        alone = NextQuery(model, draft, order[position:], limits, _load_beside(model, drafts, query))
        drafts.append(draft.with_query(query, pick_first_fitting(alone, alone)))
    return drafts


def _load_beside(model: CostModel, drafts: Sequence[Draft], query: int) -> Load:
    """Return the load of `drafts` without the windows that they share with `query`."""
    nary = Draft().with_query(query, mjoin(model, query))
    both, query_load = load_of(model, [*drafts, nary]), nary.load(model)
    return Load(both.cpu - query_load.cpu, both.memory - query_load.memory)


def shared_naive(model: CostModel, order: Sequence[int], limits: Load) -> list[Draft]:
    """Plan each query by itself, then share equal joins."""
    draft = Draft()
    for position, query in enumerate(order):
        alone = NextQuery(model, Draft(), order[position:], limits, draft.load(model))
        draft = draft.with_query(query, pick_first_fitting(alone, NextQuery(model, draft, order[position:], limits)))
    return [tidy(model, draft)]


def mjoins(model: CostModel, order: Sequence[int], _: Load) -> list[Draft]:
    """Plan one n-ary join for each query; equal ones are computed once."""
    draft = reduce(lambda before, query: before.with_query(query, mjoin(model, query)), order, Draft())
    return [tidy(model, draft)]


def bjtrees(model: CostModel, order: Sequence[int], _: Load) -> list[Draft]:
    """Plan a tree of binary joins for each query; each reuses the joins of earlier ones."""
    draft = Draft()
    for position, query in enumerate(order):
        draft = draft.with_query(query, bjtree(NextQuery(model, draft, order[position:], NO_LIMITS)))
    return [tidy(model, draft)]


def pick_first_fitting(alone: NextQuery, together: NextQuery) -> Subplan:
    """Return the first plan that fits the query's allocation alone, or else adds at most what is left."""
    for query, limit in ((alone, alone.allocation), (together, together.available)):
        for subplan in _two_layers(alone):
            if query.added_load(subplan).fits(limit):
                return subplan
    loads = [together.added_load(subplan) for subplan in _two_layers(alone)]
    if loads[0].memory > together.available.memory:
        raise together.budget_error("memory", loads[0].memory)
    raise together.budget_error("CPU", min(load.cpu for load in loads))


def _two_layers(query: NextQuery) -> Iterator[Subplan]:
    nary = mjoin(query.model, query.index)
    yield nary
    tree = bjtree(query)
    yield tree
    yield from state_selection(query, nary)
    yield from state_removal(query, tree)
