"""What a planner expects of the orders it chose: rows per stage, cost, and the best order close by that it did not choose.

People read this, plans are not chosen by it. So it is worked out when somebody asks: a query is planned, and planned again while it
runs, far more often than it is explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.optimizer.graph.indexed import Indexed, Prefix
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.stats.probes import Objective, PathEstimate, PlanEstimate


def estimate(graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective) -> PlanEstimate:
    """Estimate paths, each of which starts with its driver."""
    # A nested-loop plan may put new tuples further in; its rows are not those of a path.
    return PlanEstimate(_Paths(graph, {name: order for name, order in orders.items() if order[0] == name}, objective))


class _Paths(Mapping[str, PathEstimate]):
    """The estimates of paths by driver, each made when it is first asked for."""

    def __init__(self, graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective) -> None:
        self._graph, self._orders, self._objective = graph, orders, objective
        self._known: dict[str, PathEstimate] = {}

    def __getitem__(self, driver: str) -> PathEstimate:
        if driver not in self._known:
            self._known[driver] = _path(self._graph.indexed, self._orders[driver], self._objective)
        return self._known[driver]

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)


def _path(graph: Indexed, order: Sequence[str], objective: Objective) -> PathEstimate:
    path = [graph.names.index(name) for name in order]
    prefix, rows = Prefix(graph, path[0]), [1.0]
    ahead, reach = [], []
    """After each stage: the matches of every input that is not joined yet, and which of them an edge leads to."""
    for number in path[1:]:
        ahead.append(prefix.matches)
        reach.append(prefix.reach)
        rows.append(rows[-1] * prefix.matches[number])
        prefix.add(number)
    sizes = [graph.sizes[number] for number in path]
    made = [0.0, *(_stage(objective, rows[at - 1], sizes[at], rows[at]) for at in range(1, len(path)))]
    cost, best, move = sum(made), float("inf"), None
    for late in range(2, len(path)):
        # Moved to stage `early`, an input is one more in each set from there on; from `late` on the sets are the same.
        with_it = [rows[at] * ahead[at][path[late]] for at in range(late)]
        change = 0.0
        for early in range(late - 1, 0, -1):
            change += _stage(objective, with_it[early - 1], sizes[early], with_it[early]) - made[early + 1]
            moved = _stage(objective, rows[early - 1], sizes[late], with_it[early - 1]) - made[early]
            if reach[early - 1] >> path[late] & 1 and cost + change + moved < best:
                best, move = cost + change + moved, (early, late)
    rate = graph.rates[path[0]]
    if move is None:
        return PathEstimate(tuple(rows), rate * cost)
    early, late = move
    other = (*order[:early], order[late], *order[early:late], *order[late + 1 :])
    return PathEstimate(tuple(rows), rate * cost, other, rate * best)


def _stage(objective: Objective, before: float, size: float, after: float) -> float:
    """What a stage costs that makes so many partial results of others."""
    return after if objective == "produced" else before * size
