"""Golab and Özsu's heuristics for nested loops and hash buckets (CS-2003-01, section 5).

The method ignores the objective: its cost is comparisons per unit time, as in `dovetail.optimizer.cost.nested_loop`.

- **One common key** (5.1): one global order for all drivers, each driver's new tuples outermost. Start from the pair with the smallest
  join, in both orders; add the stream that keeps the join smallest; then move fast streams (rate above the mean) to every position
  but the outermost, and keep the cheapest order. That tries nᶠ orders for f fast streams; beyond `MAX_COMBINED_ORDERS`, streams move
  one at a time.
- **Lazy evaluation** (5.2): `tau` makes windows longer by `tau`, because expiry is as lazy. `general_orders` returns for each origin
  an order in which its new tuples may be at any position; the new tuples of `tau` count as its size.
- **Hash buckets** (5.3): a lookup scans one of `buckets`. The order by discounted sizes, which the section asks for, is tried
  as well as the order by true sizes: only the scan gets shorter, not the result.
- **Hybrid** (5.4): orders with the indexed windows in the inner loops are tried too.
- **Expensive predicates** (5.4): `expense` weights the comparisons with a stream, and expensive streams are moved like fast ones.
- **Different attributes** (5.4): the driver outermost, then always the most selective join that the graph allows, which for "more
  selective = smaller result" (5.1) is F-Greedy; with the same alternatives for indexes and expensive predicates.

A session passes the windows with an index, with one bucket per value, and the length of its batches (`planner.choose_orders`). It
has no information about expensive predicates. General lazy hash joins (3.4: an index, and new tuples anywhere but outermost) are no
matter of orders here: where it saves probes, the engine moves the new tuples of a batch to the second position
(`engine.join.reversed`).

The summary's "descending order of selectivities" and table 7's "ascending" mean the same: smallest result first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import inf, prod
from typing import TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.nested_loop import StreamStatistics, multi_way_cost, origin_cost
from dovetail.optimizer.graph.indexed import Prefix, members
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering.problem import IndexPath, NestedLoopOptions, OrderingProblem, OrderingResult

MAX_COMBINED_ORDERS = 256
"""The largest number of orders to try with all fast streams moving at once."""
_TIE = 1e-12

Names: TypeAlias = tuple[str, ...]
Cost: TypeAlias = Callable[[Names], float]


def golab(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver."""
    _check(problem.loops, problem.graph.names)
    if not _one_common_key(problem):
        return _order_along_graph(problem)
    streams, tau = _statistics(problem), problem.loops.tau
    entering = {name: stream.tuples(tau or 0.0) for name, stream in streams.items()}
    order, steps = _cheapest_order(streams, entering, lambda order: sum(multi_way_cost(streams, order, tau).values()))
    indexes = [problem.graph.names.index(name) for name in order]
    return OrderingResult(
        [[driver, *(index for index in indexes if index != driver)] for driver in range(problem.graph.count)], steps
    )


def general_orders(
    graph: JoinGraph, tau: float, buckets: Mapping[str, int] | None = None, expense: Mapping[str, float] | None = None
) -> dict[str, Names]:
    """Return, for each input, an order of all inputs in which its new tuples may be anywhere (5.2).

    >>> rates = {"1": 1, "2": 1, "3": 1, "4": 10}
    >>> graph = JoinGraph(rates, {}, dict.fromkeys(rates, 100), distinct=dict.fromkeys(rates, 50))
    >>> general_orders(graph, tau=50)["4"]
    ('1', '2', '3', '4')
    """
    problem = OrderingProblem(graph.indexed, "comparisons", loops=NestedLoopOptions(tau, buckets, expense))
    _check(problem.loops, problem.graph.names)
    if not _one_common_key(problem):
        raise PlanError(
            "general_orders: the inputs do not all share one key, and nothing else joins them",
            "give distinct counts for all inputs, in one class, and no selectivities",
        )
    streams, orders = _statistics(problem), {}
    for origin in streams:
        entering = {name: stream.tuples(tau) for name, stream in streams.items()}
        entering[origin] = streams[origin].rate * tau

        def cost(order: Names, origin: str = origin) -> float:
            return origin_cost(streams, origin, order, tau)

        orders[origin], _ = _cheapest_order(streams, entering, cost)
    return orders


def has_one_common_key(graph: JoinGraph) -> bool:
    """Whether all inputs share one key, and no other predicate joins them."""
    return _one_common_key(OrderingProblem(graph.indexed))


def _cheapest_order(
    streams: Mapping[str, StreamStatistics], entering: Mapping[str, float], cost: Cost
) -> tuple[Names, int]:
    scanned = {name: size / streams[name].buckets for name, size in entering.items()}
    starts = [order for sizes in (entering, scanned) for order in _by_size(streams, sizes)]
    starts += [_move_indexed_last(streams, order) for order in starts]
    costs: dict[Names, float] = {}

    def evaluate(order: Names) -> float:
        if order not in costs:
            costs[order] = cost(order)
        return costs[order]

    for start in dict.fromkeys(starts):
        for order in _move_streams(streams, start, evaluate):
            evaluate(order)
    smallest = min(costs.values())
    return next(order for order, total in costs.items() if total <= smallest * (1 + _TIE)), len(costs)


def _by_size(streams: Mapping[str, StreamStatistics], sizes: Mapping[str, float]) -> Iterator[Names]:
    """Yield the orders that keep the join smallest, from the smallest pair in both orders."""

    def size_of(names: Names) -> float:
        size, distinct = 1.0, inf
        for name in names:
            size *= sizes[name] / (1.0 if distinct == inf else max(distinct, streams[name].distinct))
            distinct = min(distinct, streams[name].distinct)
        return size

    pairs: list[Names] = [*permutations(streams, 2)] or [tuple(streams)]
    smallest = min(map(size_of, pairs))
    first = next(pair for pair in pairs if size_of(pair) <= smallest * (1 + _TIE))
    for start in dict.fromkeys((first, first[::-1])):
        order: Names = start
        while remaining := [name for name in streams if name not in order]:
            order = (*order, min(remaining, key=lambda name, order=order: size_of((*order, name))))  # type: ignore[misc]
        yield order


def _move_indexed_last(streams: Mapping[str, StreamStatistics], order: Names) -> Names:
    return tuple(sorted(order, key=lambda name: streams[name].buckets > 1))


def _move_streams(streams: Mapping[str, StreamStatistics], start: Names, cost: Cost) -> Iterator[Names]:
    """Yield the order `start`, and orders with its fast and expensive streams elsewhere, except outermost."""
    yield start
    mean = sum(stream.rate for stream in streams.values()) / len(streams)
    moving = [name for name in start if streams[name].rate > mean * (1 + _TIE) or streams[name].expense > 1]
    fixed = tuple(name for name in start if name not in moving)
    if not moving or not fixed:
        return
    positions = [range(1, len(start) - len(moving) + 1 + index) for index in range(len(moving))]
    if prod(map(len, positions)) <= MAX_COMBINED_ORDERS:
        for combination in product(*positions):
            yield _insert(fixed, zip(moving, combination, strict=True))
        return
    best = start
    for name in sorted(moving, key=lambda name: -streams[name].rate):
        without = tuple(other for other in best if other != name)
        options = [_insert(without, [(name, position)]) for position in range(1, len(start))]
        yield from options
        best = min((best, *options), key=cost)


def _insert(order: Names, moves: Iterable[tuple[str, int]]) -> Names:
    names = list(order)
    for name, position in moves:
        names.insert(position, name)
    return tuple(names)


# -- different attributes -------------------------------------------------------------------------------------------------------


def _order_along_graph(problem: OrderingProblem) -> OrderingResult:
    graph, loops = problem.graph, problem.loops
    buckets, expense = loops.buckets or {}, loops.expense or {}
    scanned = sum(1 << index for index, name in enumerate(graph.names) if buckets.get(name, 1) == 1)
    expensive = sum(1 << index for index, name in enumerate(graph.names) if expense.get(name, 1.0) > 1)
    preferences = tuple(dict.fromkeys((graph.all, scanned or graph.all, expensive or graph.all)))
    weights = [expense.get(name, 1.0) / buckets.get(name, 1) for name in graph.names]
    paths, steps = [], 0
    for driver in range(graph.count):
        options = [_greedy(problem, driver, preferred) for preferred in preferences]
        paths.append(min((path for path, _ in options), key=lambda path: _scans(problem, path, weights)))
        steps += sum(option_steps for _, option_steps in options)
    return OrderingResult(paths, steps)


def _greedy(problem: OrderingProblem, driver: int, preferred: int) -> tuple[IndexPath, int]:
    """Return F-Greedy's path with `preferred` inputs first where the graph allows it, and the steps."""
    path, prefix, steps = [driver], Prefix(problem.graph, driver), 0
    while candidates := problem.candidates(prefix.joined, prefix.reach):
        candidates = candidates & preferred or candidates
        steps += candidates.bit_count()
        path.append(min(members(candidates), key=prefix.matches.__getitem__))
        prefix.add(path[-1])
    return path, steps


def _scans(problem: OrderingProblem, path: IndexPath, weights: Sequence[float]) -> float:
    """Return the weighted comparisons of `path`; windows are longer by tau."""
    graph, tau = problem.graph, problem.loops.tau or 0.0
    stretch = [1 + tau / window for window in graph.windows]
    prefix, partials, cost = Prefix(graph, path[0]), graph.rates[path[0]], 0.0
    for index in path[1:]:
        cost += partials * graph.sizes[index] * stretch[index] * weights[index]
        partials *= prefix.matches[index] * stretch[index]
        prefix.add(index)
    return cost


def _one_common_key(problem: OrderingProblem) -> bool:
    graph = problem.graph
    plain = all(factor == 1.0 for row in graph.factors for factor in row)
    return plain and len(graph.classes) == 1 and graph.classes[0].members == graph.all


def _statistics(problem: OrderingProblem) -> dict[str, StreamStatistics]:
    graph, loops = problem.graph, problem.loops
    counts = graph.classes[0].counts
    buckets, expense = loops.buckets or {}, loops.expense or {}
    return {
        name: StreamStatistics(
            graph.rates[index], graph.windows[index], counts[index], buckets.get(name, 1), expense.get(name, 1.0)
        )
        for index, name in enumerate(graph.names)
    }


def _check(loops: NestedLoopOptions, names: Sequence[str]) -> None:
    for option, values in (("buckets", loops.buckets), ("expense", loops.expense)):
        for name, value in (values or {}).items():
            if name not in names:
                raise PlanError(f"golab: {option} names {name!r}; the inputs are {listed(names)}")
            if not 0 < value < inf or (option == "buckets" and value < 1):
                bound = "at least 1" if option == "buckets" else "above 0"
                raise PlanError(f"golab: {option}[{name!r}] is {value!r}; it must be finite and {bound}")
    if loops.tau is not None and not 0 < loops.tau < inf:
        raise PlanError(f"golab: tau is {loops.tau!r}; it must be finite and above 0, or None for eager evaluation")
