"""What the cost model of Golab and Özsu is checked with: all orders tried (5.1), and the curves of figures 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf
from operator import methodcaller
from typing import TypeAlias

from dovetail.optimizer.nested_loop_cost import (
    Streams,
    StreamStatistics,
    joined,
    multi_way_cost,
    naive_cost,
    origin_cost,
)

Order: TypeAlias = tuple[str, ...]
"""Stream names, outermost loop first."""
CostFunction: TypeAlias = "Callable[[Streams, Sequence[str], float | None], dict[str, float]]"

_TIE = 1e-12  # Relative: orders whose costs differ by less are equal, and the first one wins.


@dataclass(frozen=True, slots=True)
class OrderSearch:
    """What the n! global orders of one algorithm cost."""

    best: float
    best_order: Order
    worst: float
    worst_order: Order
    average: float


@dataclass(frozen=True, slots=True)
class GeneralSearch:
    """The cheapest order for each origin, out of n * n!."""

    best: float
    orders: dict[str, Order]
    costs: dict[str, float]


@dataclass(frozen=True, slots=True)
class Curves:
    """Costs of the algorithms that a figure compares, one entry per place on its horizontal axis."""

    axis: tuple[float, ...]
    costs: dict[str, tuple[float, ...]]


def intermediate_size(streams: Iterable[StreamStatistics], tau: float = 0.0) -> float:
    """Give the expected size of the join of whole windows: φ, or with `tau` the lazy φ-hat (appendix A).

    It does not depend on the order: each join divides by max(min of the distinct counts so far, the next one), and the product of
    these is the product of all distinct counts but the smallest.

    >>> first, second = StreamStatistics(10, 100, 500), StreamStatistics(1, 100, 50)
    >>> intermediate_size([first, second])
    200.0
    """
    size, distinct = 1.0, inf
    for stream in streams:
        size, distinct = joined(size, distinct, stream, stream.tuples(tau))
    return size


def search_orders(streams: Streams, cost: CostFunction = multi_way_cost, tau: float | None = None) -> OrderSearch:
    """Try all n! global orders of `multi_way_cost` or `naive_cost`; of equal ones the first by the order of `streams` wins.

    >>> streams = {"a": StreamStatistics(10, 100, 500), "b": StreamStatistics(1, 100, 50), "c": StreamStatistics(1, 200, 40)}
    >>> found = search_orders(streams)
    >>> found.best, found.best_order
    (4000.0, ('a', 'b', 'c'))
    """
    totals = {order: sum(cost(streams, order, tau).values()) for order in permutations(streams)}
    best, worst = min(totals.values()), max(totals.values())
    return OrderSearch(
        best=best,
        best_order=next(order for order, total in totals.items() if total <= best * (1 + _TIE)),
        worst=worst,
        worst_order=next(order for order, total in totals.items() if total >= worst * (1 - _TIE)),
        average=sum(totals.values()) / len(totals),
    )


def search_general(streams: Streams, tau: float | None = None) -> GeneralSearch:
    """Find the cheapest order of each origin by itself; of equal ones the first that stands the new tuples outermost wins.

    >>> streams = {"a": StreamStatistics(1, 100, 50), "b": StreamStatistics(1, 100, 50), "c": StreamStatistics(1, 100, 50)}
    >>> search_general(streams, tau=10).orders["c"]
    ('c', 'a', 'b')
    """
    orders, costs = {}, {}
    for origin in streams:
        position = methodcaller("index", origin)
        totals = {
            order: origin_cost(streams, origin, order, tau) for order in sorted(permutations(streams), key=position)
        }
        costs[origin] = min(totals.values())
        orders[origin] = next(order for order, total in totals.items() if total <= costs[origin] * (1 + _TIE))
    return GeneralSearch(best=sum(costs.values()), orders=orders, costs=costs)


def scaling_curves(stream: StreamStatistics, counts: Iterable[int]) -> Curves:
    """Compare eager multi-way and naive joins of more and more equal streams (figure 2).

    >>> curves = scaling_curves(StreamStatistics(rate=1, window=100, distinct=50), counts=(2, 3))
    >>> curves.costs["multi-way"], curves.costs["naive"]
    ((200.0, 900.0), (200.0, 10800.0))
    """
    axis = tuple(counts)
    costs: dict[str, list[float]] = {"multi-way": [], "naive": []}
    for count in axis:
        streams = {str(number): stream for number in range(1, count + 1)}
        costs["multi-way"].append(sum(multi_way_cost(streams, tuple(streams)).values()))
        costs["naive"].append(sum(naive_cost(streams, tuple(streams)).values()))
    return Curves(axis, {name: tuple(values) for name, values in costs.items()})


def lazy_curves(streams: Streams, taus: Iterable[float]) -> Curves:
    """Compare the best order of each lazy algorithm as `tau` grows (figure 3).

    >>> streams = {name: StreamStatistics(1, 100, 50) for name in "abc"}
    >>> curves = lazy_curves(streams, taus=(10, 50))
    >>> curves.costs["multi-way"] == curves.costs["general"]
    True
    """
    axis = tuple(taus)
    return Curves(
        axis,
        {
            "naive": tuple(search_orders(streams, naive_cost, tau).best for tau in axis),
            "multi-way": tuple(search_orders(streams, multi_way_cost, tau).best for tau in axis),
            "general": tuple(search_general(streams, tau).best for tau in axis),
        },
    )
