"""Estimates shown by `explain()`: rows per stage, cost, and the best neighbouring order of each path.

No plan is chosen by these estimates, so they are computed on first access: a query is planned and replanned far more often than it is
explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.optimizer.graph.indexed import IndexedGraph, Prefix
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.stats.probes import Objective, PathEstimate, PlanEstimate


def estimate(
    graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective, *, is_measured: bool | None = None
) -> PlanEstimate:
    """Return lazy estimates of the paths that start with their driver.

    `is_measured`: the graph has an engine's measurements.
    """
    # A nested-loop plan may place new tuples in an inner loop; it has no rows per stage.
    paths = _Paths(graph, {name: order for name, order in orders.items() if order[0] == name}, objective)
    return PlanEstimate(paths, is_measured)


class _Paths(Mapping[str, PathEstimate]):
    """Estimates of paths by driver, each computed on first access."""

    def __init__(self, graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective) -> None:
        self._graph, self._orders, self._objective = graph, orders, objective
        self._estimates: dict[str, PathEstimate] = {}

    def __getitem__(self, driver: str) -> PathEstimate:
        if driver not in self._estimates:
            self._estimates[driver] = _estimate_path(self._graph.indexed, self._orders[driver], self._objective)
        return self._estimates[driver]

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)


def _estimate_path(graph: IndexedGraph, order: Sequence[str], objective: Objective) -> PathEstimate:
    path = [graph.names.index(name) for name in order]
    prefix, rows = Prefix(graph, path[0]), [1.0]
    matches, reach = [], []
    """Before each stage: the expected matches of every remaining input, and the inputs that an edge leads to."""
    for index in path[1:]:
        matches.append(prefix.matches)
        reach.append(prefix.reach)
        rows.append(rows[-1] * prefix.matches[index])
        prefix.add(index)
    sizes = [graph.sizes[index] for index in path]
    costs = [0.0, *(_stage_cost(objective, rows[at - 1], sizes[at], rows[at]) for at in range(1, len(path)))]
    cost, best, move = sum(costs), float("inf"), None
    for late in range(2, len(path)):
        # Moving the input of stage `late` to stage `early` adds it to the sets between the two; later sets stay the same.
        moved_rows = [rows[at] * matches[at][path[late]] for at in range(late)]
        change = 0.0
        for early in range(late - 1, 0, -1):
            change += _stage_cost(objective, moved_rows[early - 1], sizes[early], moved_rows[early]) - costs[early + 1]
            moved = _stage_cost(objective, rows[early - 1], sizes[late], moved_rows[early - 1]) - costs[early]
            if reach[early - 1] >> path[late] & 1 and cost + change + moved < best:
                best, move = cost + change + moved, (early, late)
    rate = graph.rates[path[0]]
    if move is None:
        return PathEstimate(tuple(rows), rate * cost)
    early, late = move
    other = (*order[:early], order[late], *order[early:late], *order[late + 1 :])
    return PathEstimate(tuple(rows), rate * cost, other, rate * best)


def _stage_cost(objective: Objective, probes: float, size: float, matches: float) -> float:
    return matches if objective == "produced" else probes * size
