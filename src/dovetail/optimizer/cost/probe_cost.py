"""Cost of probe orders: the equations of Raghavan et al., section 2.2, with a window per input.

Joining the new tuples of input k in order (k, x1, ..., xn-1) costs, per second,

    produced     λk · Σ_i Π_{j<=i} (λ_xj · W_xj · σ_xj)            partial and final results
    comparisons  λk · Σ_i (λ_xi · W_xi) · Π_{j<i} (λ_xj · W_xj · σ_xj)      pairs of tuples compared (equation 2)

where σ_xj is the product of the selectivities between xj and everything before it. Equation 2 counts comparisons, so the last
selectivity does not matter; section 4's C = T = λσW and the worked examples count produced tuples. The default objective is **produced
tuples, the final result included**: an index finds matches without comparing the rest, so a hash join pays per probe and per match,
and both have the produced-tuples optimum. Differences from the paper: each input has its own W, and equal columns are not independent
(`JoinGraph.classes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph.indexed import IndexedGraph
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.stats.probes import Objective

OBJECTIVES: tuple[Objective, ...] = ("produced", "comparisons")


@dataclass(frozen=True)
class ProbeCost:
    """Cost of probe orders per second, by input; `float(cost)` is the total."""

    objective: Objective
    per_input: Mapping[str, float]
    """Tuples produced, or comparisons made, by the new tuples of each input."""
    arrivals: float
    """New tuples of all inputs per second; each is inserted once and expires once."""
    memory: float
    """Tuples in all windows: Σ λ·W. Partial results are not stored."""

    @property
    def total(self) -> float:
        """The sum over all inputs."""
        return sum(self.per_input.values())

    def __float__(self) -> float:
        return self.total

    def cpu(self, insert: float = 1.0, delete: float = 1.0, join: float = 1.0) -> float:
        """Return equation 3: λ · (C_insert + C_delete) of every input, plus C_join per tuple of the objective."""
        return self.arrivals * (insert + delete) + self.total * join


def probe_cost(graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective = "produced") -> ProbeCost:
    """Return the cost of probe orders.

    Parameters
    ----------
    graph
        Rates, windows and selectivities.
    orders
        For each input, the others in the order in which its new tuples probe them. Omitted inputs cost nothing.
    objective
        `produced` counts partial and final results per second, `comparisons` the pairs of tuples that a scan compares.

    Examples
    --------
    >>> graph = JoinGraph({"A": 10, "B": 20, "C": 5}, {("A", "B"): 0.1, ("B", "C"): 0.5}, {"A": 1, "B": 1, "C": 1})
    >>> cost = probe_cost(graph, {"A": ("B", "C"), "B": ("A", "C"), "C": ("B", "A")})
    >>> cost.per_input
    {'A': 70.0, 'B': 70.0, 'C': 100.0}
    >>> cost.total, cost.memory, cost.cpu(insert=2, delete=1, join=0.5)
    (240.0, 35.0, 225.0)
    """
    if objective not in OBJECTIVES:
        raise PlanError(f"objective is {objective!r}; allowed: {listed(OBJECTIVES)}")
    indexed = graph.indexed
    _check_orders(graph, orders)
    indexes = {name: index for index, name in enumerate(indexed.names)}
    costs = {
        driver: path_cost(indexed, [indexes[driver], *(indexes[name] for name in order)], objective)
        for driver, order in orders.items()
    }
    arrivals = sum(indexed.rates[indexes[driver]] for driver in costs)
    return ProbeCost(objective, costs, arrivals, sum(indexed.sizes))


def path_cost(graph: IndexedGraph, path: Sequence[int], objective: Objective) -> float:
    """Return the cost per second of one path, which starts with the driver."""
    partials, cost = graph.rates[path[0]], 0.0
    least = [key_class.counts.get(path[0], inf) for key_class in graph.classes]
    for position, index in enumerate(path[1:], start=1):
        if objective == "comparisons":
            cost += partials * graph.sizes[index]
        partials *= graph.sizes[index] * prod(map(graph.factors[index].__getitem__, path[:position]))
        for class_index, key_class in enumerate(graph.classes):
            if index in key_class.counts:
                count = key_class.counts[index]
                partials /= max(least[class_index], count) if least[class_index] < inf else 1.0
                least[class_index] = min(least[class_index], count)
        if objective == "produced":
            cost += partials
    return cost


def _check_orders(graph: JoinGraph, orders: Mapping[str, Sequence[str]]) -> None:
    if not isinstance(orders, Mapping) or not orders:
        raise PlanError(f"orders is {orders!r}; expected {{input: (the other inputs in order)}}")
    for driver, order in orders.items():
        if driver not in graph.rates:
            raise PlanError(f"orders names {driver!r}; the inputs are {listed(graph.rates)}")
        expected = [name for name in graph.rates if name != driver]
        is_sequence = isinstance(order, Sequence) and not isinstance(order, str)
        if not is_sequence or len(order) != len(expected) or set(order) != set(expected):
            raise PlanError(
                f"orders[{driver!r}] is {order!r}; it must name each of {listed(expected)} once",
                "an order does not name the input that it starts from",
            )
