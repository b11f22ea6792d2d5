"""Weave, the default method: the cheapest orders that combine pieces of other methods' orders.

The size of a join is a function of its set of inputs, so the best continuation from a set is the same for every driver and method.
Weave exploits that:

1. A graph without cycles goes to TreeOpt, which is optimal.
2. Up to `EXACT` inputs, or the caller's limit, the table of all sets is small: DMJoin, optimal.
3. Beyond that, take the orders that F-Greedy, global impact and TreeOpt find for *every* driver. The sets along these orders form a
   web, together with their neighbours: sets with one input moved earlier or later. One backward sweep from the full set finds the
   cheapest path through the web for every driver. Add the new paths to the web and sweep again, while that helps, at most `ROUNDS`
   times.

Every starting order is a path through the web, so weave is never worse than FAB, nor than TreeOpt on the spanning tree. A driver's
order can change anywhere at once, whereas local search changes one position at a time. A path adds O(n²) sets, each with at most n
continuations: O(n³) per driver, O(n⁴) for all, a factor of n above FAB. For wide joins only nearer neighbours are added
(`NEIGHBOURS`), so that 50 inputs are ordered within a second.

Quality of the search alone (`exact=0`), on 200 random graphs per size with a known optimum: of its plans for cyclic graphs
with 10, 14, 18 and 20 inputs 99, 94, 75 and 62 % were optimal, and the worst cost 1.26 times the optimum; of FAB's 38, 6, 0 and 0 %,
and up to 6.9 times. For complete graphs 99, 94, 93 and 88 %, at most 1.07; FAB's 22, 12, 6 and 9 %, at most 2.01
(`make reproduce PAPER=raghavan`, seed 2010).
"""

from __future__ import annotations

from math import inf

from dovetail.optimizer.graph.indexed import Prefix, members
from dovetail.optimizer.ordering.dmjoin import dmjoin
from dovetail.optimizer.ordering.f_greedy import f_greedy
from dovetail.optimizer.ordering.fab import global_impact
from dovetail.optimizer.ordering.problem import IndexPath, OrderingProblem, OrderingResult
from dovetail.optimizer.ordering.treeopt import treeopt

EXACT = 20
"""The largest graph ordered exactly; beyond, the table of all sets takes longer than the web, and each input doubles that time."""
ROUNDS = 6
"""The largest number of sweeps; two to four is usual."""
NEIGHBOURS = 800_000
"""Divided by n³, the positions by which an input may move in a neighbouring set: any up to 29 inputs, six at 50."""


def weave(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver by the cheapest paths through the web."""
    if problem.graph.is_acyclic and not problem.cross_products:
        return treeopt(problem)
    if problem.graph.count <= (EXACT if problem.exact is None else problem.exact):
        return dmjoin(problem)
    starts = [method(problem) for method in (global_impact, f_greedy, treeopt)]
    web = _Web(problem)
    paths: list[IndexPath] = [path for result in starts for path in result.paths]
    best = [inf] * problem.graph.count
    for _ in range(ROUNDS):
        for path in paths:
            web.add_path(path)
        costs = web.sweep()
        if all(cost >= old_cost * (1 - 1e-12) for cost, old_cost in zip(costs, best, strict=True)):
            break
        best, paths = costs, [web.path(driver) for driver in range(problem.graph.count)]
    return OrderingResult(paths, sum(result.steps for result in starts) + web.steps)


class _Web:
    """Sets of inputs, their join sizes, and the cheapest next input of each."""

    def __init__(self, problem: OrderingProblem) -> None:
        self._problem = problem
        self._graph = problem.graph
        self._sizes: dict[int, float] = {}
        self._reach: dict[int, int] = {}
        self._layers: list[list[int]] = [[] for _ in range(problem.graph.count + 1)]
        self._next: dict[int, int] = {}
        self._max_distance = max(NEIGHBOURS // problem.graph.count**3, 1)
        self.steps = 0
        for index, size in enumerate(problem.graph.sizes):
            self._add(1 << index, size, problem.graph.neighbours[index])

    def add_path(self, path: IndexPath) -> None:
        """Add the sets along a path, and their neighbours."""
        prefix = Prefix(self._graph, path[0])
        for position, index in enumerate(path[1:], start=1):
            for early in path[position : position + 1 + self._max_distance]:
                self._extend(prefix, early)
            prefix.add(index)
            for late in path[max(1, position - self._max_distance) : position]:
                self._shrink(prefix.joined, late)

    def sweep(self) -> list[float]:
        """Find the cheapest next input of each set, largest sets first; return the cost of each driver's path."""
        remaining_cost = {self._graph.all: 0.0}
        for layer in reversed(self._layers[1:-1]):
            for joined in layer:
                self._extend_sweep(joined, remaining_cost)
        return [remaining_cost[1 << index] for index in range(self._graph.count)]

    def _extend_sweep(self, joined: int, remaining_cost: dict[int, float]) -> None:
        size = self._sizes[joined]
        produced = self._problem.objective == "produced"
        candidates = self._problem.candidates(joined, self._reach[joined])
        self.steps += candidates.bit_count()
        while candidates:
            lowest = candidates & -candidates
            candidates ^= lowest
            larger = joined | lowest
            if larger in remaining_cost:
                step = self._sizes[larger] if produced else size * self._graph.sizes[lowest.bit_length() - 1]
                total = step + remaining_cost[larger]
                if joined not in remaining_cost or total < remaining_cost[joined]:
                    remaining_cost[joined] = total
                    self._next[joined] = lowest.bit_length() - 1

    def path(self, driver: int) -> IndexPath:
        """Return the path that the last sweep found."""
        path, joined = [driver], 1 << driver
        while joined != self._graph.all:
            path.append(self._next[joined])
            joined |= 1 << path[-1]
        return path

    def _extend(self, prefix: Prefix, index: int) -> None:
        larger = prefix.joined | 1 << index
        if larger not in self._sizes:
            size = self._sizes[prefix.joined] * prefix.matches[index]
            self._add(larger, size, prefix.reach | self._graph.neighbours[index])

    def _shrink(self, joined: int, index: int) -> None:
        smaller = joined & ~(1 << index)
        if smaller not in self._sizes:
            matches = self._graph.extension(smaller, index)
            reach = 0
            for other in members(smaller):
                reach |= self._graph.neighbours[other]
            self._add(smaller, self._sizes[joined] / matches if matches else inf, reach)

    def _add(self, joined: int, size: float, reach: int) -> None:
        self._sizes[joined] = size
        self._reach[joined] = reach
        self._layers[joined.bit_count()].append(joined)
