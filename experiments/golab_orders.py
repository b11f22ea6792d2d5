"""The cost model of Golab and Özsu: all orders tried (5.1), the heuristic's choice, and the curves of figures 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import inf
from operator import methodcaller
from typing import TypeAlias

import dovetail as dt

StreamStatistics = dt.optimizer.nested_loop.StreamStatistics
multi_way_cost = dt.optimizer.nested_loop.multi_way_cost
naive_cost = dt.optimizer.nested_loop.naive_cost
origin_cost = dt.optimizer.nested_loop.origin_cost
Streams: TypeAlias = "Mapping[str, StreamStatistics]"
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
        size, distinct = dt.optimizer.nested_loop.join_size(size, distinct, stream, stream.tuples(tau))
    return size


def all_costs(streams: Streams, cost: CostFunction = multi_way_cost, tau: float | None = None) -> dict[Order, float]:
    """Give what each of the n! global orders costs."""
    return {order: sum(cost(streams, order, tau).values()) for order in permutations(streams)}


def search_orders(streams: Streams, cost: CostFunction = multi_way_cost, tau: float | None = None) -> OrderSearch:
    """Try all n! global orders of `multi_way_cost` or `naive_cost`; of equal ones the first by the order of `streams` wins.

    >>> streams = {"a": StreamStatistics(10, 100, 500), "b": StreamStatistics(1, 100, 50), "c": StreamStatistics(1, 200, 40)}
    >>> found = search_orders(streams)
    >>> found.best, found.best_order
    (4000.0, ('a', 'b', 'c'))
    """
    totals = all_costs(streams, cost, tau)
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


def common_key(streams: Streams) -> dt.JoinGraph:
    """Give the join of all streams on one attribute, as the orderings take it."""
    return dt.JoinGraph(
        {name: stream.rate for name, stream in streams.items()},
        {},
        {name: stream.window for name, stream in streams.items()},
        distinct={name: stream.distinct for name, stream in streams.items()},
    )


def heuristic_order(streams: Streams, tau: float | None = None) -> Order:
    """Give the global order that `golab` chooses, with the buckets and expenses of the streams.

    >>> heuristic_order({"a": StreamStatistics(1, 100, 50), "b": StreamStatistics(2, 100, 50), "c": StreamStatistics(3, 50, 50)})
    ('a', 'c', 'b')
    """
    buckets = {name: stream.buckets for name, stream in streams.items()}
    expense = {name: stream.expense for name, stream in streams.items()}
    paths = dt.optimizer.order_probes(common_key(streams), "golab", tau=tau, buckets=buckets, expense=expense)
    first = next(name for name in streams if all(paths[other][0] == name for other in streams if other != name))
    return (first, *paths[first])


def initial_orders(streams: Streams) -> tuple[Order, Order]:
    """Give the order by the sizes of joins, before fast streams are moved, from either stream of the smallest pair (5.1).

    >>> streams = {"1": (100, 100, 200), "2": (1, 100, 200), "3": (1, 100, 20), "4": (3, 100, 2)}
    >>> [",".join(order) for order in initial_orders({name: StreamStatistics(*row) for name, row in streams.items()})]
    ['2,3,4,1', '3,2,4,1']
    """

    def size(order: Order) -> float:
        return intermediate_size(streams[name] for name in order)

    order: Order = min(combinations(streams, 2), key=size)
    while left := [name for name in streams if name not in order]:
        order = (*order, min(left, key=lambda name, order=order: size((*order, name))))  # type: ignore[misc]
    return order, (order[1], order[0], *order[2:])
