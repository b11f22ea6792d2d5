"""What probe orders cost: the equations of Raghavan et al., section 2.2, with a window per input.

Joining the new tuples of input k in order (k, x1, ..., xn-1) makes, per second,

    produced     λk · Σ_i Π_{j<=i} (λ_xj · W_xj · σ_xj)            partial and final results
    comparisons  λk · Σ_i (λ_xi · W_xi) · Π_{j<i} (λ_xj · W_xj · σ_xj)      pairs of tuples looked at (equation 2)

where σ_xj is the product of the selectivities between xj and everything before it. Equation 2 counts comparisons, so the last
selectivity is free; section 4's C = T = λσW and the worked examples count produced tuples. We minimise **produced tuples, the final
result included**, unless asked: an index finds matches without looking at the rest, so a hash join pays per probe and per match,
and both have the produced-tuples optimum. Differences from the paper: W is each input's own, and equal columns are not independent
(`JoinGraph.classes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph.indexed import Indexed
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.stats.probes import Objective

OBJECTIVES: tuple[Objective, ...] = ("produced", "comparisons")


@dataclass(frozen=True)
class ProbeCost:
    """What orders cost, per second and input.

    `float(cost)` is the total.
    """

    objective: Objective
    per_input: Mapping[str, float]
    """Tuples produced, or comparisons made, by the new tuples of each input."""
    arrivals: float
    """New tuples of all inputs; as many are inserted and as many expire."""
    memory: float
    """Tuples in all windows: Σ λ·W. Partial results are not stored."""

    @property
    def total(self) -> float:
        """The sum over all inputs."""
        return sum(self.per_input.values())

    def __float__(self) -> float:
        return self.total

    def cpu(self, insert: float = 1.0, delete: float = 1.0, join: float = 1.0) -> float:
        """Give equation 3: λ · (C_insert + C_delete) for every input, and C_join for all that is produced or compared."""
        return self.arrivals * (insert + delete) + self.total * join


def probe_cost(graph: JoinGraph, orders: Mapping[str, Sequence[str]], objective: Objective = "produced") -> ProbeCost:
    """Give what probe orders cost.

    Parameters
    ----------
    graph
        Rates, windows and selectivities.
    orders
        For each input the others in the order in which its new tuples probe them. Inputs left out cost nothing.
    objective
        `produced` counts partial and final results per second, `comparisons` the pairs of tuples that a scan looks at.

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
    numbers = {name: number for number, name in enumerate(indexed.names)}
    costs = {}
    for driver, order in _checked(graph, orders).items():
        costs[driver] = path_cost(indexed, [numbers[driver], *(numbers[name] for name in order)], objective)
    named = [numbers[name] for name in costs]
    arrivals = sum(indexed.rates[number] for number in named)
    return ProbeCost(objective, costs, arrivals, sum(indexed.sizes))


def path_cost(graph: Indexed, path: Sequence[int], objective: Objective) -> float:
    """Give the cost per second of one path, which starts with the driver."""
    partials, cost = graph.rates[path[0]], 0.0
    least = [each.counts.get(path[0], inf) for each in graph.classes]
    for place, number in enumerate(path[1:], start=1):
        if objective == "comparisons":
            cost += partials * graph.sizes[number]
        partials *= graph.sizes[number] * prod(map(graph.factors[number].__getitem__, path[:place]))
        for which, each in enumerate(graph.classes):
            if number in each.counts:
                partials /= max(least[which], each.counts[number]) if least[which] < inf else 1.0
                least[which] = min(least[which], each.counts[number])
        if objective == "produced":
            cost += partials
    return cost


def _checked(graph: JoinGraph, orders: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    if not isinstance(orders, Mapping) or not orders:
        raise PlanError(f"orders is {orders!r}; expected {{input: (the other inputs in order)}}")
    for driver, order in orders.items():
        if driver not in graph.rates:
            raise PlanError(f"orders names {driver!r}; the inputs are {listed(graph.rates)}")
        others = [name for name in graph.rates if name != driver]
        ordered = isinstance(order, Sequence) and not isinstance(order, str)
        if not ordered or len(order) != len(others) or set(order) != set(others):
            raise PlanError(
                f"orders[{driver!r}] is {order!r}; it must name each of {listed(others)} once",
                "an order does not name the input that it starts from",
            )
    return orders
