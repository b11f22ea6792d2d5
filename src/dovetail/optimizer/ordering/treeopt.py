"""TreeOpt: the optimal order for acyclic graphs, by ranks (Raghavan et al., section 4, after Ibaraki and Kameda).

Seen from a driver, an acyclic graph is a tree, and an input may come only after its parent. A run of inputs that stays together has
T, the tuples that one partial result becomes, and C, what that costs: C = T = λσW for produced tuples, C = λW for comparisons,
C(ab) = C(a) + T(a)·C(b), T(ab) = T(a)·T(b). Runs of smaller rank (T - 1) / C go first; where a parent's rank is larger than its
child's the two become one run. The driver is never merged or ranked.

The paper merges from the leaves up and sorts the children's chains at every fork. We take the run of the smallest rank of all, which
must come directly after its parent, join it to its parent's run, and go on: the same runs, found with one heap in O(n log n) per
driver whatever the tree's depth, O(n² log n) for all.

A cyclic graph is replaced by its minimum spanning tree, with the size of the join of two windows as an edge's weight (the paper's
λ·λ·σ, with each input's own window). The edges left out are then ignored, and nothing is guaranteed. Cross products are never used.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf, isnan

from dovetail.optimizer.graph.indexed import Indexed, members
from dovetail.optimizer.ordering.task import Path, SearchResult, Task


def treeopt(task: Task) -> SearchResult:
    """Order the probes of every driver along a tree."""
    tree, steps = _spanning_tree(task.graph)
    paths = []
    for driver in range(task.graph.count):
        path, weighed = _linearized(task, tree, driver)
        paths.append(path)
        steps += weighed
    return SearchResult(paths, steps)


def _spanning_tree(graph: Indexed) -> tuple[list[list[tuple[int, float]]], int]:
    """Neighbours with selectivities along the lightest tree (Prim, O(n²)); of an acyclic graph that is all of it."""
    tree: list[list[tuple[int, float]]] = [[] for _ in graph.names]
    lightest = [(inf, 0, 1.0)] * graph.count
    newest, left, steps = 0, graph.all & ~1, 0
    while left:
        for other in members(graph.near[newest] & left):
            share = graph.pair(newest, other)
            weight = graph.sizes[newest] * graph.sizes[other] * share
            if weight < lightest[other][0] or lightest[other][0] == inf:
                lightest[other] = (min(weight, 1e308), newest, share)
        steps += left.bit_count()
        newest = min(members(left), key=lightest.__getitem__)
        _, parent, share = lightest[newest]
        tree[parent].append((newest, share))
        tree[newest].append((parent, share))
        left &= ~(1 << newest)
    return tree, steps


def _linearized(task: Task, tree: list[list[tuple[int, float]]], driver: int) -> tuple[Path, int]:
    """The cheapest order that keeps parents before children, and how many runs were compared."""
    sizes, count = task.graph.sizes, task.graph.count
    parent, grown, cost = [driver] * count, [1.0] * count, [0.0] * count
    waiting = [driver]
    for above in waiting:
        for below, share in tree[above]:
            if below != parent[above] or above == driver:
                parent[below] = above
                grown[below] = sizes[below] * share
                cost[below] = grown[below] if task.objective == "produced" else sizes[below]
                waiting.append(below)
    head, last, following = list(range(count)), list(range(count)), [-1] * count
    ranked = [(_rank(grown[number], cost[number]), number) for number in waiting[1:]]
    heapify(ranked)
    current = {number: rank for rank, number in ranked}
    steps = 0
    while ranked:
        rank, run = heappop(ranked)
        steps += len(ranked).bit_length() + 1
        if current.get(run) != rank:
            continue  # it has been merged since, or stands in the heap again with a new rank
        del current[run]
        above = _head_of(head, parent[run])
        head[run] = above
        following[last[above]], last[above] = run, last[run]
        if above != driver:
            cost[above] += grown[above] * cost[run]
            grown[above] *= grown[run]
            current[above] = _rank(grown[above], cost[above])
            heappush(ranked, (current[above], above))
    path = [driver]
    while following[path[-1]] >= 0:
        path.append(following[path[-1]])
    return path, steps


def _head_of(head: list[int], number: int) -> int:
    """The first input of the run that an input belongs to."""
    while head[number] != number:
        head[number] = head[head[number]]
        number = head[number]
    return number


def _rank(grown: float, cost: float) -> float:
    if cost == 0:
        return -inf
    rank = (grown - 1) / cost
    return 1.0 if isnan(rank) else rank
