"""Golab and Özsu's heuristics for nested loops and hash buckets (CS-2003-01, section 5).

Its cost is its own, whatever the objective: comparisons per unit time, as in `dovetail.optimizer.cost.nested_loop`.

- **One common key** (5.1): one global order for all drivers, each driver's new tuples in front. Start from the pair with the smallest
  join, both ways round; add whatever keeps the join smallest; then move fast streams (rate above the mean) to every place but the
  top, and keep the cheapest order. That tries nᶠ orders for f fast streams; beyond `TRIED`, streams move one at a time.
- **Lazy evaluation** (5.2): `tau` makes the windows that much longer, expiry being as lazy. `general_orders` gives an order to
  each origin in which its new tuples may stand at any place; sizes count them for `tau`.
- **Hash buckets** (5.3): a lookup scans one of `buckets`. The order by discounted sizes, which the section asks for, is tried
  as well as the one by true sizes: only the scan gets shorter, not the result.
- **Hybrid** (5.4): windows with an index in the inner loops is tried too.
- **Expensive predicates** (5.4): `expense` weighs the comparisons with a stream, and expensive streams are moved like fast ones.
- **Different attributes** (5.4): the driver outermost, then always the most selective join that the graph allows, which for "more
  selective = smaller result" (5.1) is F-Greedy; with the same alternatives for indexes and expensive predicates.

A session passes on what it knows (`planner.multi_way_orders`): the windows with an index, with a bucket for each value, and how long
its batches are. It knows no expensive predicates. General lazy hash joins (3.4: an index, and new tuples anywhere but outermost) are
not built: new tuples that are not outermost would need an index of their own in each batch, to save probes that look at matches alone.

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
from dovetail.optimizer.ordering.task import Loops, Path, SearchResult, Task

TRIED = 256
"""Orders that are tried for all fast streams at once."""
_TIE = 1e-12

Names: TypeAlias = tuple[str, ...]
Cost: TypeAlias = Callable[[Names], float]


def golab(task: Task) -> SearchResult:
    """Order the probes of every driver."""
    _check(task.loops, task.graph.names)
    if not _one_common_key(task):
        return _along_the_graph(task)
    streams, tau = _statistics(task), task.loops.tau
    entering = {name: stream.tuples(tau or 0.0) for name, stream in streams.items()}
    order, steps = _best_order(streams, entering, lambda order: sum(multi_way_cost(streams, order, tau).values()))
    numbers = [task.graph.names.index(name) for name in order]
    return SearchResult(
        [[driver, *(number for number in numbers if number != driver)] for driver in range(task.graph.count)], steps
    )


def general_orders(
    graph: JoinGraph, tau: float, buckets: Mapping[str, int] | None = None, expense: Mapping[str, float] | None = None
) -> dict[str, Names]:
    """Give for each input an order of all inputs in which its new tuples may stand anywhere (5.2).

    >>> rates = {"1": 1, "2": 1, "3": 1, "4": 10}
    >>> graph = JoinGraph(rates, {}, dict.fromkeys(rates, 100), distinct=dict.fromkeys(rates, 50))
    >>> general_orders(graph, tau=50)["4"]
    ('1', '2', '3', '4')
    """
    task = Task(graph.indexed, "comparisons", loops=Loops(tau, buckets, expense))
    _check(task.loops, task.graph.names)
    if not _one_common_key(task):
        raise PlanError(
            "general_orders: the inputs do not all share one key, and nothing else joins them",
            "give distinct counts for all inputs, in one class, and no selectivities",
        )
    streams, orders = _statistics(task), {}
    for origin in streams:
        entering = {name: stream.tuples(tau) for name, stream in streams.items()}
        entering[origin] = streams[origin].rate * tau

        def cost(order: Names, origin: str = origin) -> float:
            return origin_cost(streams, origin, order, tau)

        orders[origin], _ = _best_order(streams, entering, cost)
    return orders


def one_common_key(graph: JoinGraph) -> bool:
    """Whether all inputs share one key, and nothing else joins them."""
    return _one_common_key(Task(graph.indexed))


def _best_order(
    streams: Mapping[str, StreamStatistics], entering: Mapping[str, float], cost: Cost
) -> tuple[Names, int]:
    scanned = {name: size / streams[name].buckets for name, size in entering.items()}
    starts = [order for sizes in (entering, scanned) for order in _by_size(streams, sizes)]
    starts += [_indexed_last(streams, order) for order in starts]
    tried: dict[Names, float] = {}

    def weighed(order: Names) -> float:
        if order not in tried:
            tried[order] = cost(order)
        return tried[order]

    for start in dict.fromkeys(starts):
        for order in _moved_up(streams, start, weighed):
            weighed(order)
    least = min(tried.values())
    return next(order for order, total in tried.items() if total <= least * (1 + _TIE)), len(tried)


def _by_size(streams: Mapping[str, StreamStatistics], sizes: Mapping[str, float]) -> Iterator[Names]:
    """Give the order that keeps the join smallest, from the smallest pair, both ways round."""

    def joined(names: Names) -> float:
        size, least = 1.0, inf
        for name in names:
            size *= sizes[name] / (1.0 if least == inf else max(least, streams[name].distinct))
            least = min(least, streams[name].distinct)
        return size

    pairs: list[Names] = [*permutations(streams, 2)] or [tuple(streams)]
    smallest = min(map(joined, pairs))
    first = next(pair for pair in pairs if joined(pair) <= smallest * (1 + _TIE))
    for start in dict.fromkeys((first, first[::-1])):
        order: Names = start
        while left := [name for name in streams if name not in order]:
            order = (*order, min(left, key=lambda name, order=order: joined((*order, name))))  # type: ignore[misc]
        yield order


def _indexed_last(streams: Mapping[str, StreamStatistics], order: Names) -> Names:
    return tuple(sorted(order, key=lambda name: streams[name].buckets > 1))


def _moved_up(streams: Mapping[str, StreamStatistics], start: Names, cost: Cost) -> Iterator[Names]:
    """Give the order `start`, and those in which its fast and expensive streams stand elsewhere, though not on top."""
    yield start
    mean = sum(stream.rate for stream in streams.values()) / len(streams)
    moving = [name for name in start if streams[name].rate > mean * (1 + _TIE) or streams[name].expense > 1]
    rest = tuple(name for name in start if name not in moving)
    if not moving or not rest:
        return
    places = [range(1, len(start) - len(moving) + 1 + number) for number in range(len(moving))]
    if prod(map(len, places)) <= TRIED:
        for chosen in product(*places):
            yield _inserted(rest, zip(moving, chosen, strict=True))
        return
    best = start
    for name in sorted(moving, key=lambda name: -streams[name].rate):
        others = tuple(other for other in best if other != name)
        options = [_inserted(others, [(name, place)]) for place in range(1, len(start))]
        yield from options
        best = min((best, *options), key=cost)


def _inserted(order: Names, moves: Iterable[tuple[str, int]]) -> Names:
    names = list(order)
    for name, place in moves:
        names.insert(place, name)
    return tuple(names)


# -- different attributes -------------------------------------------------------------------------------------------------------


def _along_the_graph(task: Task) -> SearchResult:
    graph, loops = task.graph, task.loops
    buckets, expense = loops.buckets or {}, loops.expense or {}
    scanned = sum(1 << number for number, name in enumerate(graph.names) if buckets.get(name, 1) == 1)
    dear = sum(1 << number for number, name in enumerate(graph.names) if expense.get(name, 1.0) > 1)
    preferences = tuple(dict.fromkeys((graph.all, scanned or graph.all, dear or graph.all)))
    weights = [expense.get(name, 1.0) / buckets.get(name, 1) for name in graph.names]
    paths, steps = [], 0
    for driver in range(graph.count):
        options = [_greedy(task, driver, preferred) for preferred in preferences]
        paths.append(min((path for path, _ in options), key=lambda path: _scans(task, path, weights)))
        steps += sum(weighed for _, weighed in options)
    return SearchResult(paths, steps)


def _greedy(task: Task, driver: int, preferred: int) -> tuple[Path, int]:
    """Order as F-Greedy does, with `preferred` inputs before all others where the graph allows it; count what is weighed."""
    path, prefix, steps = [driver], Prefix(task.graph, driver), 0
    while candidates := task.candidates(prefix.joined, prefix.reach):
        weighed = candidates & preferred or candidates
        steps += weighed.bit_count()
        path.append(min(members(weighed), key=prefix.matches.__getitem__))
        prefix.add(path[-1])
    return path, steps


def _scans(task: Task, path: Path, weights: Sequence[float]) -> float:
    """Count the comparisons of `path`, weighed; windows are longer by tau."""
    graph, tau = task.graph, task.loops.tau or 0.0
    longer = [1 + tau / window for window in graph.windows]
    prefix, partials, cost = Prefix(graph, path[0]), graph.rates[path[0]], 0.0
    for number in path[1:]:
        cost += partials * graph.sizes[number] * longer[number] * weights[number]
        partials *= prefix.matches[number] * longer[number]
        prefix.add(number)
    return cost


def _one_common_key(task: Task) -> bool:
    graph = task.graph
    plain = all(factor == 1.0 for row in graph.factors for factor in row)
    return plain and len(graph.classes) == 1 and graph.classes[0].members == graph.all


def _statistics(task: Task) -> dict[str, StreamStatistics]:
    graph, loops = task.graph, task.loops
    counts = graph.classes[0].counts
    buckets, expense = loops.buckets or {}, loops.expense or {}
    return {
        name: StreamStatistics(
            graph.rates[number], graph.windows[number], counts[number], buckets.get(name, 1), expense.get(name, 1.0)
        )
        for number, name in enumerate(graph.names)
    }


def _check(loops: Loops, names: Sequence[str]) -> None:
    for option, given in (("buckets", loops.buckets), ("expense", loops.expense)):
        for name, value in (given or {}).items():
            if name not in names:
                raise PlanError(f"golab: {option} names {name!r}; the inputs are {listed(names)}")
            if not 0 < value < inf or (option == "buckets" and value < 1):
                bound = "at least 1" if option == "buckets" else "above 0"
                raise PlanError(f"golab: {option}[{name!r}] is {value!r}; it must be finite and {bound}")
    if loops.tau is not None and not 0 < loops.tau < inf:
        raise PlanError(f"golab: tau is {loops.tau!r}; it must be finite and above 0, or None for eager evaluation")
