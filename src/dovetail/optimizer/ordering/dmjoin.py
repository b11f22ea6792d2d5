"""DMJoin: the cheapest order of every input, by dynamic programming over sets of inputs (Raghavan et al., 3.1).

The paper runs Selinger's algorithm once per driver, from the driver outward. Going backwards needs only one run for all of them:
how much is still to be produced once a set is joined, G(S) = min over next x of size(S + x) + G(S + x), does not depend on where the
path began, because the size of a join is a function of its set. A driver's new tuples are 1/W of its window, so its optimum is
G({driver}) / W. That is O(n·2ⁿ) for all drivers together, against O(n²·2ⁿ), and NumPy takes a whole layer of equally large sets at
once: 20 inputs take about a tenth of a second. Memory is about 28 bytes per set, which is what bounds `MOST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail._typing import Int64Array
from dovetail.errors import PlanError
from dovetail.optimizer.graph.indexed import Indexed, members
from dovetail.optimizer.ordering.task import Path, SearchResult, Task

MOST = 22
"""Inputs that are still ordered exactly."""


def dmjoin(task: Task) -> SearchResult:
    """Order the probes of every driver at the least cost."""
    count = task.graph.count
    if count > MOST:
        raise PlanError(
            f"method 'dmjoin' looks at 2^n sets; the graph has {count} inputs, and it takes at most {MOST}",
            "use 'weave', or 'treeopt', which is optimal too if the graph has no cycle",
        )
    sizes = set_sizes(task.graph)
    onward, steps = _cost_onward(task, sizes)
    paths = [_cheapest_path(task, sizes, onward, driver) for driver in range(count)]
    return SearchResult(paths, steps)


def set_sizes(graph: Indexed) -> NDArray[np.float64]:
    """Give the expected size of the join of every set of inputs; each new input doubles what is known."""
    sizes = np.ones(1 << graph.count)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for number in range(graph.count):
            half = 1 << number
            added = np.full(half, graph.sizes[number])
            for other in range(number):
                if (factor := graph.factors[number][other]) != 1.0:
                    # Sets of earlier inputs that hold `other`, as a view.
                    added.reshape(-1, 2, 1 << other)[:, 1] *= factor
            np.multiply(sizes[:half], added, out=sizes[half : 2 * half])
        for each in graph.classes:
            sizes *= _class_shares(graph.count, each.counts)
    return sizes


def _class_shares(count: int, counts: Mapping[int, float]) -> NDArray[np.float64]:
    least, product = np.full(1 << count, np.inf), np.ones(1 << count)
    for number in range(count):
        half = 1 << number
        distinct = counts.get(number)
        least[half : 2 * half] = least[:half] if distinct is None else np.minimum(least[:half], distinct)
        product[half : 2 * half] = product[:half] * (1.0 if distinct is None else distinct)
    return np.where(np.isinf(least), 1.0, least / product)


def _cost_onward(task: Task, sizes: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """For every set what it costs to come to it (produced tuples only) and to go on from it; and the steps between sets."""
    graph, steps = task.graph, 0
    everything = (1 << graph.count) - 1
    reach = np.zeros(1 << graph.count, dtype=np.int32)
    for number in range(graph.count):
        half = 1 << number
        np.bitwise_or(reach[:half], graph.near[number], out=reach[half : 2 * half])
    # A set's own cost is infinite until it is known, so a step that stays where it is never wins.
    onward = np.full(1 << graph.count, np.inf)
    onward[-1] = sizes[-1] if task.objective == "produced" else 0.0
    free = task.cross_products or graph.complete
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for layer in reversed(_layers(graph.count)[1:-1]):
            best, own = np.full(len(layer), np.inf), sizes[layer]
            leads_to = reach[layer] if not free else np.int32(everything)
            steps += int(np.bitwise_count(~layer & leads_to).sum())
            for number in range(graph.count):
                costs = onward[layer | (1 << number)]
                if not free:
                    costs[(leads_to & (1 << number)) == 0] = np.inf
                if task.objective == "comparisons":
                    costs += own * graph.sizes[number]
                np.minimum(best, costs, out=best)
            onward[layer] = best + own if task.objective == "produced" else best
    return onward, steps


def _cheapest_path(task: Task, sizes: NDArray[np.float64], onward: NDArray[np.float64], driver: int) -> Path:
    path, joined, reach = [driver], 1 << driver, task.graph.near[driver]
    while candidates := task.candidates(joined, reach):

        def cost(number: int, joined: int = joined) -> float:
            compared = sizes[joined] * task.graph.sizes[number] if task.objective == "comparisons" else 0.0
            return float(compared + onward[joined | 1 << number])

        path.append(min(members(candidates), key=cost))
        joined |= 1 << path[-1]
        reach |= task.graph.near[path[-1]]
    return path


@lru_cache(maxsize=4)
def _layers(count: int) -> list[Int64Array]:
    """All sets of `count` inputs, by how many they hold."""
    held = np.bitwise_count(np.arange(1 << count, dtype=np.int32))
    sets = np.argsort(held, kind="stable").astype(np.int32)
    return np.split(sets, np.cumsum(np.bincount(held, minlength=count + 1))[:-1])
