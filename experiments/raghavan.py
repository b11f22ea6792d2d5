"""Raghavan, Zhu, Rundensteiner, Dougherty: "Multi-Join Continuous Query Optimization", sections 3.3, 4 and 5 (figures 4, 7, 9, 10).

For each shape of join graph and 3 to 20 streams, 500 random settings: how often does a method find the optimal plan, how much
dearer are its plans otherwise, how long does it take? That is 9,000 settings per shape, as in the paper, for F-Greedy, TreeOpt, FAB
and Weave.

What the paper leaves out, and what we take:

- selectivities: uniform above 0 and up to 1. The range decides the results, so two more are run on a smaller grid (`RANGES`);
- windows: 1 second, so that one input's partial results are its rate times the paper's products;
- general acyclic graphs: each stream is joined to a random earlier one;
- cyclic graphs: such a tree, and each further pair with probability 0.3, at least one;
- a plan is optimal if its cost, the sum over all streams' pipelines, is that of DMJoin to nine digits.

Cost is tuples produced per second; on stars comparisons are counted as well (`COMPARED`). DMJoin gives the optimum for every graph
with a cycle, up to 20 streams; for acyclic graphs it does so up to `CHECKED` streams, and TreeOpt beyond: the two agree in every
smaller setting, or the run fails.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

from rich.console import Console

import dovetail as dt
from dovetail.config import Ordering
from experiments.points import Points

Objective: TypeAlias = Literal["produced", "comparisons"]
SHAPES = ("linear", "star", "acyclic", "cyclic", "complete")
ACYCLIC = SHAPES[:3]
METHODS: tuple[Ordering, ...] = ("f-greedy", "treeopt", "fab", "weave")
CHECKED = 12
"""Streams of an acyclic graph up to which DMJoin is run as well."""
RANGES = {"uniform": (0.0, 1.0), "log-uniform": (0.001, 1.0), "low": (0.0, 0.1)}
"""Selectivities: two uniform ranges, and one with a uniform logarithm."""
EXTRA = 0.3
OPTIMAL = 1 + 1e-9
COMPARED, COMPARED_RUNS = (4, 6, 8, 10, 12), 200
"""Streams of stars for which comparisons are counted, on the first settings of the grid."""
SEARCHED, SEARCH_RUNS = (6, 10, 14, 18, 20), 200
"""Where Weave is run without its exact part as well, on the first settings of the grid."""


@dataclass(frozen=True)
class Grid:
    """What is run."""

    most: int = 20
    runs: int = 500
    seed: int = 2010
    range_counts: tuple[int, ...] = (6, 10, 14)
    range_runs: int = 200

    def points(self) -> Iterator[Point]:
        """The paper's grid, then the other selectivities, then Weave's search, then comparisons on stars."""
        for count in range(3, self.most + 1):
            for shape in SHAPES:
                yield Point(shape, count, self.runs)
        for selectivities in list(RANGES)[1:]:
            for shape in ("acyclic", "cyclic", "complete"):
                for count in self.range_counts:
                    yield Point(shape, count, self.range_runs, selectivities)
        for shape in ("cyclic", "complete"):
            for count in (count for count in SEARCHED if count <= self.most):
                yield Point(shape, count, min(self.runs, SEARCH_RUNS), exact=0)
        for count in (count for count in COMPARED if count <= self.most):
            yield Point("star", count, min(self.runs, COMPARED_RUNS), objective="comparisons")


@dataclass(frozen=True)
class Point:
    """One shape and number of streams."""

    shape: str
    count: int
    runs: int
    selectivities: str = "uniform"
    exact: int | None = None
    """Up to how many streams Weave looks at all sets; None for its own choice."""
    objective: Objective = "produced"
    """What is counted."""

    @property
    def settings(self) -> str:
        """What the random settings depend on."""
        return f"{self.selectivities}-{self.shape}-{self.count:02d}"

    @property
    def name(self) -> str:
        counted = "" if self.objective == "produced" else f"-{self.objective}"
        return f"{self.settings}{counted}{'' if self.exact is None else '-search'}"

    @property
    def is_papers(self) -> bool:
        """Whether it is of the paper's grid."""
        return self.selectivities == "uniform" and self.exact is None and self.objective == "produced"


QUICK = Grid(most=10, runs=20, range_counts=(6,), range_runs=20)


def run(console: Console, points: Points, grid: Grid) -> dict[Point, dict[str, Any]]:
    """Compute all points that are not there yet."""
    return points.fill(console, grid.points(), lambda point: run_point(point, grid.seed), _weight)


def _weight(point: Point) -> int:
    """What a point's time grows with, for the progress bar."""
    exact = point.shape not in ACYCLIC or point.count <= CHECKED
    return point.runs * (point.count**3 // 50 + (2**point.count // 400 if exact else 0) + 1)


def run_point(point: Point, seed: int) -> dict[str, Any]:
    """Give costs over the optimum by method, optimal pipelines, and mean planning time."""
    started = time.process_time()
    tally = Tally(point.objective, point.exact)
    for number in range(point.runs):
        tally.add(random_graph(point, random.Random(f"{seed} {point.settings} {number}")))  # noqa: S311 - replayable
    return {**tally.result(), "seconds": {**tally.mean_seconds(), "total": time.process_time() - started}}


def random_graph(point: Point, rng: random.Random) -> dt.JoinGraph:
    """One setting: rates from 1 to 100 per second, as in the paper.

    >>> random_graph(Point("cyclic", 4, 1), random.Random(1)).shape
    'cyclic'
    """
    names = [f"S{number}" for number in range(1, point.count + 1)]
    edges = _edges(point, rng)
    return dt.JoinGraph(
        rates={name: rng.uniform(1, 100) for name in names},
        selectivities={(names[left], names[right]): _selectivity(point.selectivities, rng) for left, right in edges},
        windows=dict.fromkeys(names, 1.0),
    )


def _edges(point: Point, rng: random.Random) -> list[tuple[int, int]]:
    count = point.count
    if point.shape == "linear":
        return [(number, number + 1) for number in range(count - 1)]
    if point.shape == "star":
        return [(0, number) for number in range(1, count)]
    if point.shape == "complete":
        return list(combinations(range(count), 2))
    tree = [(rng.randrange(number), number) for number in range(1, count)]
    if point.shape == "acyclic":
        return tree
    others = [pair for pair in combinations(range(count), 2) if pair not in tree]
    return tree + ([pair for pair in others if rng.random() < EXTRA] or [rng.choice(others)])


def _selectivity(kind: str, rng: random.Random) -> float:
    low, high = RANGES[kind]
    share = 1 - rng.random()  # above 0, up to 1
    return float(low * (high / low) ** share) if kind == "log-uniform" else low + share * (high - low)


class Tally:
    """What is counted over the runs of a point."""

    def __init__(self, objective: Objective = "produced", exact: int | None = None) -> None:
        self._objective = objective
        self._exact = exact
        self._ratios: dict[str, list[float]] = {method: [] for method in METHODS}
        self._pipelines: dict[str, int] = dict.fromkeys(METHODS, 0)
        self._from_leaves: dict[str, int] = dict.fromkeys(METHODS, 0)
        self._all, self._leaves = 0, 0
        self._seconds: dict[str, list[float]] = {}

    def add(self, graph: dt.JoinGraph) -> None:
        """Order one setting by every method and compare with the optimum."""
        _ = graph.indexed, graph.shape  # both are kept: no method pays for them alone
        costs = {method: self._timed(graph, method) for method in METHODS}
        exact = graph.shape not in ACYCLIC or len(graph.rates) <= CHECKED
        best = self._timed(graph, "dmjoin") if exact else costs["treeopt"]
        if graph.shape in ACYCLIC and costs["treeopt"].total > best.total * OPTIMAL:
            raise AssertionError(f"TreeOpt is not optimal on an acyclic graph: {graph}")
        leaves = {name for name in graph.rates if sum(name in pair for pair in graph.selectivities) == 1}
        self._all += len(graph.rates)
        self._leaves += len(leaves)
        for method, cost in costs.items():
            self._ratios[method].append(max(1.0, cost.total / best.total))
            good = {name for name, value in cost.per_input.items() if value <= best.per_input[name] * OPTIMAL}
            self._pipelines[method] += len(good)
            self._from_leaves[method] += len(good & leaves)

    def _timed(self, graph: dt.JoinGraph, method: Ordering) -> dt.optimizer.ProbeCost:
        started = time.process_time()
        exact = self._exact if method == "weave" else None
        orders = dt.optimizer.order_probes(graph, method, self._objective, exact=exact)
        self._seconds.setdefault(method, []).append(time.process_time() - started)
        return dt.optimizer.probe_cost(graph, orders, self._objective)

    def result(self) -> dict[str, Any]:
        leaves = self._leaves
        return {
            "ratios": {method: [float(f"{ratio:.7g}") for ratio in found] for method, found in self._ratios.items()},
            "optimal": {method: _share(found) for method, found in self._ratios.items()},
            "pipelines": {method: good / self._all for method, good in self._pipelines.items()},
            "from_leaves": {method: good / leaves for method, good in self._from_leaves.items()} if leaves else None,
        }

    def mean_seconds(self) -> Mapping[str, float]:
        return {method: sum(found) / len(found) for method, found in self._seconds.items()}


def _share(ratios: Sequence[float]) -> float:
    return sum(ratio <= OPTIMAL for ratio in ratios) / len(ratios)
