"""Candidates for materialized joins: sets of inputs, and windows for each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from operator import or_

from dovetail.optimizer.sharing.model.query_set import QuerySet, SubJoin

MAX_EXHAUSTIVE = 200
"""The largest number of connected sub-joins, over all queries, for which every one is a candidate."""


def variants(query_set: QuerySet, query: int, mask: int) -> list[SubJoin]:
    """Return the sub-join `mask` with the windows of each query that contains it, and with the largest."""
    signature = query_set.signature(query, mask)
    holders = query_set.holders(signature)
    sub_joins = [query_set.sub_join(other, query_set.mask(signature, other)) for other in holders]
    return list(dict.fromkeys((query_set.widest(query, mask, holders), *sub_joins)))


def materializable_joins(query_set: QuerySet, limit: int) -> Iterator[SubJoin]:
    """Yield the first `limit` connected sub-joins of each query that may be materialized.

    A query's whole join is a candidate only if another query contains it.
    """
    for query, numbered in enumerate(query_set.queries):
        for mask in numbered.connected_sets(limit):
            if not mask & numbered.unmaterializable and (mask != numbered.all or _inside_another(query_set, query)):
                yield from variants(query_set, query, mask)


def _inside_another(query_set: QuerySet, query: int) -> bool:
    signature = query_set.signature(query, query_set.queries[query].all)
    return any(
        query_set.mask(signature, other) not in (0, numbered.all) for other, numbered in enumerate(query_set.queries)
    )


def all_candidates_if_few(query_set: QuerySet) -> list[SubJoin]:
    """Return every sub-join that may be materialized, or none if there are too many."""
    candidates: dict[SubJoin, None] = {}
    for sub_join in materializable_joins(query_set, MAX_EXHAUSTIVE):
        candidates[sub_join] = None
        if len(candidates) > MAX_EXHAUSTIVE:
            return []
    return list(candidates)


def common_subjoins(query_set: QuerySet) -> list[SubJoin]:
    """Return the largest common sub-joins of each pair of queries."""
    candidates: dict[SubJoin, None] = {}
    seen_signatures: set[int] = set()
    """Signatures of earlier pairs; their variants are the same."""
    for first, second in combinations(range(len(query_set.queries)), 2):
        for mask in _shared_components(query_set, first, second):
            signature = query_set.signature(first, mask)
            is_candidate = mask != query_set.queries[first].all or _inside_another(query_set, first)
            if signature not in seen_signatures and is_candidate:
                seen_signatures.add(signature)
                candidates |= dict.fromkeys(variants(query_set, first, mask))
    return list(candidates)


def _shared_components(query_set: QuerySet, first: int, second: int) -> Iterator[int]:
    numbered = query_set.queries[first]
    pieces: list[int] = []
    for edge in numbered.edges():
        if edge & numbered.unmaterializable or not query_set.mask(query_set.signature(first, edge), second):
            continue
        touching = [piece for piece in pieces if piece & edge]
        pieces = [piece for piece in pieces if not piece & edge] + [reduce(or_, touching, edge)]
    for piece in pieces:
        if query_set.mask(query_set.signature(first, piece), second):
            yield piece
