"""The thesis's two baselines as algorithm 4 prints them; `plan_queries` has them mended.

Each query gets an allocation of the limits once (3-4; 3-5 read literally is the query's part of all windows) and is planned alone:

- its n-ary join, if its CPU is within the *allocation*; if that takes more memory than is available, there is no plan (line 21);
- otherwise its binary tree, if its memory is within the allocation; if that takes more CPU than is available, no plan (line 30);
- otherwise states are removed from the tree (algorithm 7), and the first plan that fits what is available is taken.

Lines 46 and 47 charge each query its whole cost. `naive` keeps everything per query, windows as well. `shared-naive` takes the same
plans and computes and keeps equal windows and joins once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any, TypeAlias

import dovetail as dt

Tree: TypeAlias = Any
"""A stream's name, or a tuple of trees."""
NAIVE, SHARED_NAIVE = "naive, as printed", "shared-naive, as printed"
Queries: TypeAlias = Mapping[str, dt.JoinGraph]
PRINTED = (NAIVE, SHARED_NAIVE)
UNITS = dt.optimizer.UnitCosts.thesis()


@dataclass(frozen=True)
class Cost:
    """CPU in milliseconds per second, and memory in tuples."""

    cpu: float = 0.0
    memory: float = 0.0


def printed(queries: Queries, cpu: float | None, memory: float | None) -> dict[str, dict[str, float] | None]:
    """What the plans of both baselines take, and how many sub-joins they store; None where the algorithm gives up."""
    started = time.perf_counter()
    trees = plan(queries, Cost(inf if cpu is None else cpu, inf if memory is None else memory))
    seconds = time.perf_counter() - started
    if trees is None:
        return {NAIVE: None, SHARED_NAIVE: None}
    each, (once, kept) = alone(queries, trees), together(queries, trees)
    states = sum(1 for tree in trees.values() for _ in _states(tree))
    common = {"shared": 0, "seconds": seconds}
    return {
        NAIVE: {"cpu": each.cpu, "memory": each.memory, "states": states, **common},
        SHARED_NAIVE: {"cpu": once.cpu, "memory": once.memory, "states": kept, **common},
    }


def plan(queries: Queries, limits: Cost) -> dict[str, Tree] | None:
    """Each query's tree of joins, planned in their order; None if the algorithm gives up."""
    allocations = _allocations(queries, limits)
    left, trees = limits, dict[str, Tree]()
    for name, graph in queries.items():
        tree = _plan_one(graph, allocations[name], left)
        if tree is None:
            return None
        taken = cost(graph, tree)
        left, trees[name] = Cost(left.cpu - taken.cpu, left.memory - taken.memory), tree
    return trees


def _plan_one(graph: dt.JoinGraph, allocated: Cost, available: Cost) -> Tree | None:
    nary = tuple(graph.rates)
    load = cost(graph, nary)
    if load.cpu <= allocated.cpu:
        return nary if load.memory <= available.memory else None
    tree = dt.optimizer.binary_tree(graph)
    load = cost(graph, tree)
    if load.memory <= allocated.memory:
        return tree if load.cpu <= available.cpu else None
    for smaller in _removals(graph, tree):
        load = cost(graph, smaller)
        if load.cpu <= available.cpu and load.memory <= available.memory:
            return smaller
    return None


def _allocations(queries: Queries, limits: Cost) -> dict[str, Cost]:
    """The weight of a query's predicates over that of all (3-4), and its window over the sum of all (3-5)."""
    weights = {
        name: sum(prod(graph.rates[end] for end in edge) * value for edge, value in graph.selectivities.items())
        for name, graph in queries.items()
    }
    windows = {name: max(graph.windows.values()) for name, graph in queries.items()}
    cpu, memory = sum(weights.values()), sum(windows.values())
    return {name: Cost(limits.cpu * weights[name] / cpu, limits.memory * windows[name] / memory) for name in queries}


def _removals(graph: dt.JoinGraph, tree: Tree) -> Iterator[Tree]:
    """Trees with fewer and fewer states, each time without the one that saves most memory for its CPU (algorithm 7)."""
    while states := list(_states(tree)):
        before = cost(graph, tree)
        smaller = [_without(tree, state) for state in states]
        loads = [cost(graph, each) for each in smaller]
        ratios = [(load.cpu - before.cpu) / (before.memory - load.memory) for load in loads]
        tree = smaller[ratios.index(min(ratios))]
        yield tree


def _states(tree: Tree) -> Iterator[Tree]:
    """The stored sub-joins of a tree, inner ones as well."""
    for part in tree:
        if not isinstance(part, str):
            yield part
            yield from _states(part)


def _without(tree: Tree, state: Tree) -> Tree:
    """The tree whose join of `state` reads the inputs of `state` itself."""
    parts: list[Tree] = []
    for part in tree:
        if part == state:
            parts += part
        else:
            parts.append(part if isinstance(part, str) else _without(part, state))
    return tuple(parts)


# -- costs --------------------------------------------------------------------------------------------------------------------------


def cost(graph: dt.JoinGraph, tree: Tree) -> Cost:
    """What a query takes alone."""
    load = dt.optimizer.tree_cost(graph, tree, UNITS)
    return Cost(load.cpu, load.memory)


def alone(queries: Queries, trees: Mapping[str, Tree]) -> Cost:
    """What all queries take if each keeps its own windows, joins and states."""
    loads = [cost(queries[name], tree) for name, tree in trees.items()]
    return Cost(sum(load.cpu for load in loads), sum(load.memory for load in loads))


def together(queries: Queries, trees: Mapping[str, Tree]) -> tuple[Cost, int]:
    """What all queries take if equal windows, joins and states are there once, and the number of states."""
    windows: dict[str, Cost] = {}
    joins: dict[Any, float] = {}
    states: dict[Any, Cost] = {}
    for name, tree in trees.items():
        graph = queries[name]
        for stream, rate in graph.rates.items():
            windows[stream] = Cost(rate * UNITS.keep, rate * graph.windows[stream])
        for part in (tree, *_states(tree)):
            joins[_key(part)] = _own_cpu(graph, part)
        for part in _states(tree):
            states[_key(part)] = _stored(graph, part)
    kept = [*windows.values(), *states.values()]
    cpu = sum(joins.values()) + sum(each.cpu for each in kept)
    return Cost(cpu, sum(each.memory for each in kept)), len(states)


def _own_cpu(graph: dt.JoinGraph, tree: Tree) -> float:
    """The CPU of one join, without its inputs and what stores them."""
    part = _part(graph, tree)
    below = sum(_own_cpu(graph, state) + _stored(graph, state).cpu for state in _states(tree))
    return cost(part, tree).cpu - below - sum(part.rates.values()) * UNITS.keep


def _stored(graph: dt.JoinGraph, tree: Tree) -> Cost:
    """What a state takes to be kept: its matches per second, and those in a window."""
    part = _part(graph, tree)
    (window,) = set(part.windows.values())
    size = prod((*(rate * window for rate in part.rates.values()), *part.selectivities.values()))
    return Cost(len(part.rates) * size / window * UNITS.keep, size)


def _part(graph: dt.JoinGraph, tree: Tree) -> dt.JoinGraph:
    names = set(_leaves(tree))
    return dt.JoinGraph(
        {name: rate for name, rate in graph.rates.items() if name in names},
        {edge: value for edge, value in graph.selectivities.items() if names.issuperset(edge)},
        {name: span for name, span in graph.windows.items() if name in names},
    )


def _leaves(tree: Tree) -> Iterator[str]:
    for part in tree:
        if isinstance(part, str):
            yield part
        else:
            yield from _leaves(part)


def _key(tree: Tree) -> Any:
    """Equal for equal joins, whatever the order of their inputs."""
    return frozenset(part if isinstance(part, str) else _key(part) for part in tree)
