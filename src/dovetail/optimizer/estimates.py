"""What a planner expects of the orders it chose: rows per stage, cost, and the best order that it did not choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.optimizer.cost import path_cost
from dovetail.optimizer.graph import JoinGraph
from dovetail.plan.statistics import Objective, PathEstimate, PlanEstimate


def estimate(graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective) -> PlanEstimate:
    """Estimate paths, each of which starts with its driver."""
    paths = {}
    for driver, order in orders.items():
        if order[0] == driver:  # a nested-loop plan may put new tuples further in; its rows are not those of a path
            paths[driver] = _path(graph, tuple(order), objective)
    return PlanEstimate(paths)


def _path(graph: JoinGraph, order: tuple[str, ...], objective: Objective) -> PathEstimate:
    rows = [1.0]
    for place, alias in enumerate(order[1:], start=1):
        rows.append(rows[-1] * graph.extension(order[:place], alias))
    cost = _cost(graph, order, objective)
    others = [(_cost(graph, other, objective), other) for other in _one_move_away(graph, order)]
    other_cost, other = min(others, default=(None, ()))
    return PathEstimate(tuple(rows), cost, other, other_cost)


def _cost(graph: JoinGraph, order: Sequence[str], objective: Objective) -> float:
    place = {name: number for number, name in enumerate(graph.indexed.names)}
    return path_cost(graph.indexed, [place[name] for name in order], objective)


def _one_move_away(graph: JoinGraph, order: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders that differ by one alias moved elsewhere, without cross products."""
    for first in range(1, len(order)):
        rest = order[:first] + order[first + 1 :]
        for place in range(1, len(order)):
            moved = (*rest[:place], order[first], *rest[place:])
            if moved != order and all(graph.connected(moved[:end], moved[end]) for end in range(1, len(moved))):
                yield moved
