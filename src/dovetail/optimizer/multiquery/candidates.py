"""Sub-joins that are worth storing: which sets of inputs, and with which windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from dovetail.optimizer.multiquery.workload import Target, Workload

ALL_STATES = 200
"""Connected sub-joins of all queries together up to which each is tried."""


def variants(workload: Workload, query: int, mask: int) -> list[Target]:
    """A sub-join with the windows of each query that has it, and with the largest of all."""
    holders = workload.holders(workload.signature(query, mask))
    own = [workload.target(other, workload.place(workload.signature(query, mask), other)) for other in holders]
    return list(dict.fromkeys((workload.widest(query, mask, holders), *own)))


def storable_sets(workload: Workload, query: int, most: int | None = None) -> list[int]:
    """The connected sub-joins of a query that may be stored; all of it only if another query has it inside."""
    bound = workload.queries[query]
    sets = [mask for mask in bound.connected_sets(most) if not mask & bound.unstorable]
    return [mask for mask in sets if mask != bound.all or _inside_another(workload, query)]


def _inside_another(workload: Workload, query: int) -> bool:
    signature = workload.signature(query, workload.queries[query].all)
    return any(workload.place(signature, other) not in (0, bound.all) for other, bound in enumerate(workload.queries))


def all_if_few(workload: Workload) -> list[Target]:
    """Every sub-join that may be stored, or none if there are too many."""
    found: dict[Target, None] = {}
    for query in range(len(workload.queries)):
        for mask in storable_sets(workload, query, ALL_STATES):
            found |= dict.fromkeys(variants(workload, query, mask))
            if len(found) > ALL_STATES:
                return []
    return list(found)


def common(workload: Workload) -> list[Target]:
    """The largest sub-joins that pairs of queries have in common."""
    found: dict[Target, None] = {}
    for first, second in combinations(range(len(workload.queries)), 2):
        for mask in _shared_components(workload, first, second):
            if mask != workload.queries[first].all or _inside_another(workload, first):
                found |= dict.fromkeys(variants(workload, first, mask))
    return list(found)


def _shared_components(workload: Workload, first: int, second: int) -> Iterator[int]:
    bound = workload.queries[first]
    pieces: list[int] = []
    for edge in bound.edges():
        if edge & bound.unstorable or not workload.place(workload.signature(first, edge), second):
            continue
        touching = [piece for piece in pieces if piece & edge]
        pieces = [piece for piece in pieces if not piece & edge] + [_union([*touching, edge])]
    for piece in pieces:
        if workload.place(workload.signature(first, piece), second):
            yield piece


def _union(masks: Sequence[int]) -> int:
    """The union of sets."""
    union = 0
    for mask in masks:
        union |= mask
    return union
