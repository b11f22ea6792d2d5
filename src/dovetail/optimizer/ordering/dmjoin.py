"""DMJoin: the cheapest orders, by dynamic programming over sets of inputs (Raghavan et al., 3.1).

The paper runs Selinger's algorithm once per driver, from the driver outward. Working backwards takes one run for all drivers: the cost
that remains once a set is joined, G(S) = min over next x of size(S + x) + G(S + x), does not depend on where the path began, because
the size of a join is a function of its set. A driver's new tuples are 1/W of its window, so its optimum is G({driver}) / W. That is
O(n·2ⁿ) for all drivers together instead of O(n²·2ⁿ), and NumPy processes a whole layer of equally large sets at once: 20 inputs take
about a tenth of a second. Memory is about 28 bytes per set, which limits `MAX_INPUTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail._typing import Int64Array
from dovetail.errors import PlanError
from dovetail.optimizer.graph.indexed import IndexedGraph, members
from dovetail.optimizer.ordering.problem import IndexPath, OrderingProblem, OrderingResult

MAX_INPUTS = 22
"""The largest graph that is ordered exactly."""


def dmjoin(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver at the least cost."""
    count = problem.graph.count
    if count > MAX_INPUTS:
        raise PlanError(
            f"method 'dmjoin' searches 2^n sets; the graph has {count} inputs, and it takes at most {MAX_INPUTS}",
            "use 'weave', or 'treeopt', which is optimal too if the graph has no cycle",
        )
    sizes = set_sizes(problem.graph)
    remaining_cost, steps = _remaining_costs(problem, sizes)
    paths = [_cheapest_path(problem, sizes, remaining_cost, driver) for driver in range(count)]
    return OrderingResult(paths, steps)


def set_sizes(graph: IndexedGraph) -> NDArray[np.float64]:
    """Return the expected join size of every set of inputs; each input doubles the table."""
    sizes = np.ones(1 << graph.count)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for index in range(graph.count):
            half = 1 << index
            added = np.full(half, graph.sizes[index])
            for other in range(index):
                if (factor := graph.factors[index][other]) != 1.0:
                    # A view of the sets of earlier inputs that contain `other`.
                    added.reshape(-1, 2, 1 << other)[:, 1] *= factor
            np.multiply(sizes[:half], added, out=sizes[half : 2 * half])
        for key_class in graph.classes:
            sizes *= _class_factors(graph.count, key_class.counts)
    return sizes


def _class_factors(count: int, counts: Mapping[int, float]) -> NDArray[np.float64]:
    least, product = np.full(1 << count, np.inf), np.ones(1 << count)
    for index in range(count):
        half = 1 << index
        distinct = counts.get(index)
        least[half : 2 * half] = least[:half] if distinct is None else np.minimum(least[:half], distinct)
        product[half : 2 * half] = product[:half] * (1.0 if distinct is None else distinct)
    return np.where(np.isinf(least), 1.0, least / product)


def _remaining_costs(problem: OrderingProblem, sizes: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Return the remaining cost of every set, for `produced` with the set's own size; and the steps."""
    graph, steps = problem.graph, 0
    everything = (1 << graph.count) - 1
    reach = np.zeros(1 << graph.count, dtype=np.int32)
    for index in range(graph.count):
        half = 1 << index
        np.bitwise_or(reach[:half], graph.neighbours[index], out=reach[half : 2 * half])
    # A set's own entry is infinite until it is computed, so a step that adds nothing never wins.
    remaining_cost = np.full(1 << graph.count, np.inf)
    remaining_cost[-1] = sizes[-1] if problem.objective == "produced" else 0.0
    free = problem.cross_products or graph.is_complete
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for layer in reversed(_layers(graph.count)[1:-1]):
            best, size = np.full(len(layer), np.inf), sizes[layer]
            reachable = reach[layer] if not free else np.int32(everything)
            steps += int(np.bitwise_count(~layer & reachable).sum())
            for index in range(graph.count):
                costs = remaining_cost[layer | (1 << index)]
                if not free:
                    costs[(reachable & (1 << index)) == 0] = np.inf
                if problem.objective == "comparisons":
                    costs += size * graph.sizes[index]
                np.minimum(best, costs, out=best)
            remaining_cost[layer] = best + size if problem.objective == "produced" else best
    return remaining_cost, steps


def _cheapest_path(
    problem: OrderingProblem, sizes: NDArray[np.float64], remaining_cost: NDArray[np.float64], driver: int
) -> IndexPath:
    path, joined, reach = [driver], 1 << driver, problem.graph.neighbours[driver]
    while candidates := problem.candidates(joined, reach):

        def cost(index: int, joined: int = joined) -> float:
            compared = sizes[joined] * problem.graph.sizes[index] if problem.objective == "comparisons" else 0.0
            return float(compared + remaining_cost[joined | 1 << index])

        path.append(min(members(candidates), key=cost))
        joined |= 1 << path[-1]
        reach |= problem.graph.neighbours[path[-1]]
    return path


@lru_cache(maxsize=4)
def _layers(count: int) -> list[Int64Array]:
    """Return all sets of `count` inputs, grouped by their size."""
    lengths = np.bitwise_count(np.arange(1 << count, dtype=np.int32))
    sets = np.argsort(lengths, kind="stable").astype(np.int32)
    return np.split(sets, np.cumsum(np.bincount(lengths, minlength=count + 1))[:-1])
