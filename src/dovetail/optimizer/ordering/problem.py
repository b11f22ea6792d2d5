"""Input and output of the ordering methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.optimizer.cost.probe_cost import path_cost
from dovetail.optimizer.graph.indexed import IndexedGraph
from dovetail.stats.probes import Objective

ProbeOrders: TypeAlias = Mapping[str, Sequence[str]]
"""For each input, the others in the order in which its new tuples probe them."""
IndexPath: TypeAlias = list[int]
"""Indexes of all inputs, the driver first."""


@dataclass(frozen=True, slots=True)
class NestedLoopOptions:
    """Options of nested-loop joins, for `golab` only (Golab and Özsu, sections 5.2 to 5.4)."""

    tau: float | None = None
    """Time between executions; None for eager evaluation."""
    buckets: Mapping[str, int] | None = None
    """Hash buckets of each window; a window without an entry is scanned."""
    expense: Mapping[str, float] | None = None
    """Price of one comparison in each input's loop; 1.0 by default."""


@dataclass(frozen=True, slots=True)
class OrderingProblem:
    """A join graph whose probe orders are to be chosen."""

    graph: IndexedGraph
    objective: Objective = "produced"
    cross_products: bool = False
    loops: NestedLoopOptions = NestedLoopOptions()
    exact: int | None = None
    """For `weave`: the largest number of inputs for an exact search; None for its default."""

    def candidates(self, joined: int, reach: int) -> int:
        """Return the inputs that may follow the set `joined`, whose edges lead to the set `reach`."""
        remaining = self.graph.all & ~joined
        return remaining if self.cross_products else remaining & reach

    def cost(self, path: IndexPath) -> float:
        return path_cost(self.graph, path, self.objective)


@dataclass(frozen=True, slots=True)
class OrderingResult:
    """The path of every driver, as chosen by one method."""

    paths: list[IndexPath]
    """By driver."""
    steps: int
    """Candidates evaluated, sets visited or edges compared: the unit of the stated complexity."""


def cheapest_paths(problem: OrderingProblem, alternatives: Iterable[OrderingResult]) -> OrderingResult:
    """Return, for each driver, the cheapest path of `alternatives`; the first of equal ones."""
    results = list(alternatives)
    paths = []
    for options in zip(*(result.paths for result in results), strict=True):
        are_equal = all(path == options[0] for path in options)
        paths.append(options[0] if are_equal else min(options, key=problem.cost))
    return OrderingResult(paths, sum(result.steps for result in results))
