"""Weave: the cheapest orders that can be put together from the pieces of all good ones; our own.

The size of a join is a function of its set of inputs, so the best way on from a set is the same whichever driver reached it, and by
whatever method. Weave exploits that:

1. A graph without cycles goes to TreeOpt, which is optimal.
2. Up to `EXACT` inputs, or as many as the caller says, the table of all sets is small: DMJoin, optimal.
3. Beyond, take the orders that F-Greedy, global impact and TreeOpt find for *every* driver. The sets that these pass through form a
   web; so do their neighbours, in which one later input comes early or one earlier input comes late. The cheapest path from each
   driver through the web is found from the full set backwards, in one sweep for all drivers. Put the new paths into the web and
   sweep again, while that helps, at most `ROUNDS` times.

Every starting order is a path through the web, so weave is never worse than FAB, nor than TreeOpt on the spanning tree. A driver's
order can change anywhere at once, where local search would have to climb change by change. A path brings O(n²) sets, each with at
most n ways on: O(n³) per driver, O(n⁴) for all, a factor of n above FAB. Of wide joins only nearer neighbours are taken
(`NEIGHBOURS`), so that 50 inputs are ordered within a second.

How good the search is by itself (`exact=0`), on 200 random graphs per size with a known optimum: of its plans for cyclic graphs
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
from dovetail.optimizer.ordering.task import Path, SearchResult, Task
from dovetail.optimizer.ordering.treeopt import treeopt

EXACT = 20
"""Inputs that are ordered exactly; beyond, the table of all sets takes longer than the web, and twice that with each input."""
ROUNDS = 6
"""Sweeps at most; two to four is usual."""
NEIGHBOURS = 800_000
"""Bounds how far from its place an input comes early or late: this divided by n³ places. That is all up to 29 inputs, six at 50."""


def weave(task: Task) -> SearchResult:
    """Order the probes of every driver by what all drivers' orders have shown."""
    if task.graph.acyclic and not task.cross_products:
        return treeopt(task)
    if task.graph.count <= (EXACT if task.exact is None else task.exact):
        return dmjoin(task)
    started = [method(task) for method in (global_impact, f_greedy, treeopt)]
    web = _Web(task)
    paths: list[Path] = [path for each in started for path in each.paths]
    best = [inf] * task.graph.count
    for _ in range(ROUNDS):
        for path in paths:
            web.take(path)
        costs = web.sweep()
        if all(cost >= before * (1 - 1e-12) for cost, before in zip(costs, best, strict=True)):
            break
        best, paths = costs, [web.path(driver) for driver in range(task.graph.count)]
    return SearchResult(paths, sum(each.steps for each in started) + web.steps)


class _Web:
    """Sets of inputs, the size of their joins, and the cheapest way on from each."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._graph = task.graph
        self._sizes: dict[int, float] = {}
        self._reach: dict[int, int] = {}
        self._layers: list[list[int]] = [[] for _ in range(task.graph.count + 1)]
        self._next: dict[int, int] = {}
        self._far = max(NEIGHBOURS // task.graph.count**3, 1)
        self.steps = 0
        for number, size in enumerate(task.graph.sizes):
            self._add(1 << number, size, task.graph.near[number])

    def take(self, path: Path) -> None:
        """Add the sets that a path passes through, and their neighbours."""
        prefix = Prefix(self._graph, path[0])
        for place, number in enumerate(path[1:], start=1):
            for early in path[place : place + 1 + self._far]:
                self._extend(prefix, early)
            prefix.add(number)
            for late in path[max(1, place - self._far) : place]:
                self._shrink(prefix.joined, late)

    def sweep(self) -> list[float]:
        """Find the cheapest way on from each set, the largest first; give what it costs from each driver."""
        ahead = {self._graph.all: 0.0}
        for layer in reversed(self._layers[1:-1]):
            for joined in layer:
                self._look_ahead(joined, ahead)
        return [ahead[1 << number] for number in range(self._graph.count)]

    def _look_ahead(self, joined: int, ahead: dict[int, float]) -> None:
        size = self._sizes[joined]
        produced = self._task.objective == "produced"
        candidates = self._task.candidates(joined, self._reach[joined])
        self.steps += candidates.bit_count()
        while candidates:
            lowest = candidates & -candidates
            candidates ^= lowest
            larger = joined | lowest
            if larger in ahead:
                step = self._sizes[larger] if produced else size * self._graph.sizes[lowest.bit_length() - 1]
                total = step + ahead[larger]
                if joined not in ahead or total < ahead[joined]:
                    ahead[joined] = total
                    self._next[joined] = lowest.bit_length() - 1

    def path(self, driver: int) -> Path:
        """Give the path that the last sweep found."""
        path, joined = [driver], 1 << driver
        while joined != self._graph.all:
            path.append(self._next[joined])
            joined |= 1 << path[-1]
        return path

    def _extend(self, prefix: Prefix, number: int) -> None:
        larger = prefix.joined | 1 << number
        if larger not in self._sizes:
            size = self._sizes[prefix.joined] * prefix.matches[number]
            self._add(larger, size, prefix.reach | self._graph.near[number])

    def _shrink(self, joined: int, number: int) -> None:
        smaller = joined & ~(1 << number)
        if smaller not in self._sizes:
            matches = self._graph.extension(smaller, number)
            reach = 0
            for other in members(smaller):
                reach |= self._graph.near[other]
            self._add(smaller, self._sizes[joined] / matches if matches else inf, reach)

    def _add(self, joined: int, size: float, reach: int) -> None:
        self._sizes[joined] = size
        self._reach[joined] = reach
        self._layers[joined.bit_count()].append(joined)
