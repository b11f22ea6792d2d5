"""What an ordering method is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.optimizer.cost.probe_cost import path_cost
from dovetail.optimizer.graph.indexed import Indexed
from dovetail.stats.probes import Objective

Path: TypeAlias = list[int]
"""All inputs by number, the driver first."""


@dataclass(frozen=True, slots=True)
class Loops:
    """What only nested loops have, for `golab` (Golab and Özsu, sections 5.2 to 5.4)."""

    tau: float | None = None
    """Time between executions; None for eager evaluation."""
    buckets: Mapping[str, int] | None = None
    """Hash buckets of each window; 1 where it is scanned."""
    expense: Mapping[str, float] | None = None
    """What one comparison in each input's loop costs; 1.0 where nothing is said."""


@dataclass(frozen=True, slots=True)
class Task:
    """A graph to find orders for."""

    graph: Indexed
    objective: Objective = "produced"
    cross_products: bool = False
    loops: Loops = Loops()
    exact: int | None = None
    """For `weave`: the most inputs whose sets are all looked at; None for its own choice."""

    def candidates(self, joined: int, reach: int) -> int:
        """Give the set of inputs that may come after those `joined`; edges lead from these to `reach`."""
        left = self.graph.all & ~joined
        return left if self.cross_products else left & reach

    def cost(self, path: Path) -> float:
        return path_cost(self.graph, path, self.objective)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The orders that a method gives all inputs."""

    paths: list[Path]
    """By driver."""
    steps: int
    """How many candidates were weighed, sets looked at or edges compared: what the stated complexity is about."""


def cheaper(task: Task, alternatives: Iterable[SearchResult]) -> SearchResult:
    """Take for each driver the cheapest path of `alternatives`; of equal ones the first."""
    results = list(alternatives)
    paths = []
    for options in zip(*(each.paths for each in results), strict=True):
        same = all(path == options[0] for path in options)
        paths.append(options[0] if same else min(options, key=task.cost))
    return SearchResult(paths, sum(each.steps for each in results))
