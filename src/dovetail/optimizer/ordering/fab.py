"""FAB: the cheaper of global impact ordering and F-Greedy for each driver (Raghavan et al., 5).

Global impact fills the order from its end: of the remaining inputs, the one without which the join of the rest is smallest goes last.
The paper's algorithm 1 multiplies each pair's selectivity twice; here each pair counts once, which gives the join's size, and a pair
without an edge counts as 1. Inputs whose removal would disconnect the rest are skipped, unless cross products are allowed.

O(n²) per driver, O(n³) for all, as in the paper: the contribution of each input is updated as others are removed, and one depth-first
search over bit sets finds all inputs whose removal would disconnect the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dovetail.optimizer.graph.indexed import IndexedGraph, KeyClass, members
from dovetail.optimizer.ordering.f_greedy import f_greedy
from dovetail.optimizer.ordering.problem import IndexPath, OrderingProblem, OrderingResult, cheapest_paths


def fab(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver by global impact and by F-Greedy, and take the cheaper."""
    return cheapest_paths(problem, (global_impact(problem), f_greedy(problem)))


def global_impact(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver from the back (algorithm 1)."""
    removal = _Removal(problem)
    contributions = _contributions(problem.graph)
    paths = [_order_from_back(problem, removal, contributions, driver) for driver in range(problem.graph.count)]
    return OrderingResult(paths, removal.steps)


def _order_from_back(problem: OrderingProblem, removal: _Removal, contributions: list[float], driver: int) -> IndexPath:
    graph, remaining, backwards = problem.graph, problem.graph.all, []
    while remaining != 1 << driver:
        removable = removal.removable(remaining) & ~(1 << driver)
        removal.steps += removable.bit_count()
        impact = _with_classes(graph, remaining, contributions) if graph.classes else contributions
        chosen = max(members(removable), key=impact.__getitem__)
        backwards.append(chosen)
        remaining &= ~(1 << chosen)
        contributions = [value / factor for value, factor in zip(contributions, graph.factors[chosen], strict=True)]
    return [driver, *reversed(backwards)]


def _contributions(graph: IndexedGraph) -> list[float]:
    """Return the factor by which each input multiplies the join of all others, apart from the classes."""
    contributions = list(graph.sizes)
    for row in graph.factors:
        contributions = [value * factor for value, factor in zip(contributions, row, strict=True)]
    return contributions


def _with_classes(graph: IndexedGraph, remaining: int, contributions: list[float]) -> list[float]:
    impact = list(contributions)
    for key_class in graph.classes:
        first, second, smallest_index = _two_smallest(key_class, remaining)
        for index in members(remaining & key_class.members):
            without = second if index == smallest_index else first
            # A class contributes least / product; without its only input it contributes 1.
            if without < inf:
                impact[index] *= first / (without * key_class.counts[index])
    return impact


def _two_smallest(key_class: KeyClass, remaining: int) -> tuple[float, float, int]:
    """Return the two smallest counts of a class among `remaining`, and the input with the smallest."""
    first, second, smallest_index = inf, inf, -1
    for index in members(remaining & key_class.members):
        if (count := key_class.counts[index]) < first:
            first, second, smallest_index = count, first, index
        elif count < second:
            second = count
    return first, second, smallest_index


class _Removal:
    """Inputs whose removal leaves the rest of a set connected; cached, because drivers share most sets."""

    def __init__(self, problem: OrderingProblem) -> None:
        self._neighbours = problem.graph.neighbours
        self._always = problem.cross_products or problem.graph.is_complete
        self._removable: dict[int, int] = {}
        self.steps = 0

    def removable(self, remaining: int) -> int:
        if self._always:
            return remaining
        if remaining not in self._removable:
            self.steps += remaining.bit_count()
            self._removable[remaining] = remaining & ~_cut_vertices(self._neighbours, remaining)
        return self._removable[remaining]


def _cut_vertices(neighbours: Sequence[int], remaining: int) -> int:
    """Return the cut vertices of a connected set.

    A depth-first tree has no edges between its branches. So an input is a cut vertex if no edge leads from one of its branches to
    an ancestor of the input; the root is one if it has several branches.
    """
    unseen, cut_vertices, branches = remaining & (remaining - 1), 0, 0
    stack, ancestors = [(remaining & -remaining).bit_length() - 1], [0]
    reachable = [neighbours[stack[0]]]
    while stack:
        current = stack[-1]
        if following := neighbours[current] & unseen:
            lowest = following & -following
            unseen ^= lowest
            ancestors.append(ancestors[-1] | 1 << current)
            stack.append(lowest.bit_length() - 1)
            reachable.append(neighbours[stack[-1]])
            continue
        stack.pop()
        ancestors.pop()
        branch = reachable.pop()
        if len(stack) > 1 and not branch & ancestors[-1]:
            cut_vertices |= 1 << stack[-1]
        elif len(stack) == 1:
            branches += 1
        if stack:
            reachable[-1] |= branch
    return cut_vertices | (remaining & -remaining if branches > 1 else 0)
