"""Sub-joins that are worth storing: which sets of inputs, and with which windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from operator import or_

from dovetail.optimizer.sharing.model.workload import QuerySet, Target

ALL_STATES = 200
"""Connected sub-joins of all queries together up to which each is tried."""


def variants(workload: QuerySet, query: int, mask: int) -> list[Target]:
    """Give the sub-join `mask` of `query` with the windows of each query that has it, and with the largest of all."""
    holders = workload.holders(workload.signature(query, mask))
    own = [workload.target(other, workload.mask(workload.signature(query, mask), other)) for other in holders]
    return list(dict.fromkeys((workload.widest(query, mask, holders), *own)))


def storable_targets(workload: QuerySet, most: int) -> Iterator[Target]:
    """Give what may be stored of the first `most` connected sub-joins of each query; all of it only if another has it inside."""
    for query, bound in enumerate(workload.queries):
        for mask in bound.connected_sets(most):
            if not mask & bound.unstorable and (mask != bound.all or _inside_another(workload, query)):
                yield from variants(workload, query, mask)


def _inside_another(workload: QuerySet, query: int) -> bool:
    signature = workload.signature(query, workload.queries[query].all)
    return any(workload.mask(signature, other) not in (0, bound.all) for other, bound in enumerate(workload.queries))


def all_if_few(workload: QuerySet) -> list[Target]:
    """Give every sub-join that may be stored, or none if there are too many."""
    storable: dict[Target, None] = {}
    for target in storable_targets(workload, ALL_STATES):
        storable[target] = None
        if len(storable) > ALL_STATES:
            return []
    return list(storable)


def common(workload: QuerySet) -> list[Target]:
    """Give the largest sub-joins that pairs of queries have in common."""
    shared: dict[Target, None] = {}
    known: set[int] = set()
    """Signatures that another pair has, too: their variants are the same."""
    for first, second in combinations(range(len(workload.queries)), 2):
        for mask in _shared_components(workload, first, second):
            signature = workload.signature(first, mask)
            if signature not in known and (mask != workload.queries[first].all or _inside_another(workload, first)):
                known.add(signature)
                shared |= dict.fromkeys(variants(workload, first, mask))
    return list(shared)


def _shared_components(workload: QuerySet, first: int, second: int) -> Iterator[int]:
    bound = workload.queries[first]
    pieces: list[int] = []
    for edge in bound.edges():
        if edge & bound.unstorable or not workload.mask(workload.signature(first, edge), second):
            continue
        touching = [piece for piece in pieces if piece & edge]
        pieces = [piece for piece in pieces if not piece & edge] + [reduce(or_, touching, edge)]
    for piece in pieces:
        if workload.mask(workload.signature(first, piece), second):
            yield piece
