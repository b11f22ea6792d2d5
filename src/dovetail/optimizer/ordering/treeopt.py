"""TreeOpt: optimal orders for acyclic graphs, by ranks (Raghavan et al., 4; Ibaraki and Kameda).

Rooted at a driver, an acyclic graph is a tree, and an input may only follow its parent. A run of consecutive inputs has T, the tuples
that one partial result becomes, and C, their cost: C = T = λσW for produced tuples, C = λW for comparisons,
C(ab) = C(a) + T(a)·C(b), T(ab) = T(a)·T(b). Runs of smaller rank (T - 1) / C go first; if a parent's rank is larger than its child's,
the two become one run. The driver is never merged or ranked.

The paper merges from the leaves up and sorts the children's chains at every fork. This implementation repeatedly takes the run of the
smallest rank, which must directly follow its parent, and appends it to its parent's run: the same runs, found with one heap in
O(n log n) per driver at any depth of the tree, O(n² log n) for all.

A cyclic graph is replaced by its minimum spanning tree; an edge's weight is the size of the join of its two windows (the paper's
λ·λ·σ, with each input's own window). The other edges are ignored, and nothing is guaranteed. Cross products are never used.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf, isnan

from dovetail.optimizer.graph.indexed import IndexedGraph, members
from dovetail.optimizer.ordering.problem import IndexPath, OrderingProblem, OrderingResult


def treeopt(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver along a tree."""
    tree, steps = _spanning_tree(problem.graph)
    paths = []
    for driver in range(problem.graph.count):
        path, compared = _linearize(problem, tree, driver)
        paths.append(path)
        steps += compared
    return OrderingResult(paths, steps)


def _spanning_tree(graph: IndexedGraph) -> tuple[list[list[tuple[int, float]]], int]:
    """Return each input's neighbours and selectivities in the minimum spanning tree (Prim), and the steps."""
    tree: list[list[tuple[int, float]]] = [[] for _ in graph.names]
    lightest = [(inf, 0, 1.0)] * graph.count
    newest, remaining, steps = 0, graph.all & ~1, 0
    while remaining:
        for other in members(graph.neighbours[newest] & remaining):
            selectivity = graph.selectivity(newest, other)
            weight = graph.sizes[newest] * graph.sizes[other] * selectivity
            if weight < lightest[other][0] or lightest[other][0] == inf:
                lightest[other] = (min(weight, 1e308), newest, selectivity)
        steps += remaining.bit_count()
        newest = min(members(remaining), key=lightest.__getitem__)
        _, parent, selectivity = lightest[newest]
        tree[parent].append((newest, selectivity))
        tree[newest].append((parent, selectivity))
        remaining &= ~(1 << newest)
    return tree, steps


def _linearize(problem: OrderingProblem, tree: list[list[tuple[int, float]]], driver: int) -> tuple[IndexPath, int]:
    """Return the cheapest order that keeps parents before children, and the number of runs compared."""
    sizes, count = problem.graph.sizes, problem.graph.count
    parent, growth, cost = [driver] * count, [1.0] * count, [0.0] * count
    visited = [driver]
    for above in visited:
        for below, selectivity in tree[above]:
            if below != parent[above] or above == driver:
                parent[below] = above
                growth[below] = sizes[below] * selectivity
                cost[below] = growth[below] if problem.objective == "produced" else sizes[below]
                visited.append(below)
    head, last, following = list(range(count)), list(range(count)), [-1] * count
    ranked = [(_rank(growth[index], cost[index]), index) for index in visited[1:]]
    heapify(ranked)
    current = {index: rank for rank, index in ranked}
    steps = 0
    while ranked:
        rank, run = heappop(ranked)
        steps += len(ranked).bit_length() + 1
        if current.get(run) != rank:
            continue  # a stale entry: the run was merged, or has a new rank
        del current[run]
        above = _find_head(head, parent[run])
        head[run] = above
        following[last[above]], last[above] = run, last[run]
        if above != driver:
            cost[above] += growth[above] * cost[run]
            growth[above] *= growth[run]
            current[above] = _rank(growth[above], cost[above])
            heappush(ranked, (current[above], above))
    path = [driver]
    while following[path[-1]] >= 0:
        path.append(following[path[-1]])
    return path, steps


def _find_head(head: list[int], index: int) -> int:
    """Return the first input of the run that contains the input `index`."""
    while head[index] != index:
        head[index] = head[head[index]]
        index = head[index]
    return index


def _rank(growth: float, cost: float) -> float:
    if cost == 0:
        return -inf
    rank = (growth - 1) / cost
    return 1.0 if isnan(rank) else rank
