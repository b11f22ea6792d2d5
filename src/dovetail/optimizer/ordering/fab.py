"""FAB: the cheaper of global impact ordering and F-Greedy, for each driver (Raghavan et al., section 5).

Global impact fills the order from its end: of all inputs left, the one without which the join of the rest is smallest goes last. The
paper's algorithm 1 multiplies each pair's selectivity twice; we take each pair once, which is the join's size, and where no
edge is, nothing is multiplied. An input whose removal would cut the rest in two is passed over, unless cross products are allowed.

O(n²) per driver, O(n³) for all, as in the paper: what each input contributes is kept up to date as others leave, and one depth-first
walk with sets as machine words finds all inputs whose removal would cut the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dovetail.optimizer.graph.indexed import Indexed, KeyClass, members
from dovetail.optimizer.ordering.f_greedy import f_greedy
from dovetail.optimizer.ordering.task import Path, SearchResult, Task, cheaper


def fab(task: Task) -> SearchResult:
    """Order the probes of every driver from the back and from the front."""
    return cheaper(task, (global_impact(task), f_greedy(task)))


def global_impact(task: Task) -> SearchResult:
    """Order the probes of every driver from the back (algorithm 1)."""
    removal = _Removal(task)
    whole = _contributions(task.graph)
    paths = [_from_the_back(task, removal, whole, driver) for driver in range(task.graph.count)]
    return SearchResult(paths, removal.steps)


def _from_the_back(task: Task, removal: _Removal, whole: list[float], driver: int) -> Path:
    graph, left, backwards = task.graph, task.graph.all, []
    adds = whole
    while left != 1 << driver:
        free = removal.free(left) & ~(1 << driver)
        removal.steps += free.bit_count()
        impact = _with_classes(graph, left, adds) if graph.classes else adds
        chosen = max(members(free), key=impact.__getitem__)
        backwards.append(chosen)
        left &= ~(1 << chosen)
        adds = [each / factor for each, factor in zip(adds, graph.factors[chosen], strict=True)]
    return [driver, *reversed(backwards)]


def _contributions(graph: Indexed) -> list[float]:
    """What each input multiplies the join of all others by, classes apart."""
    adds = list(graph.sizes)
    for row in graph.factors:
        adds = [each * factor for each, factor in zip(adds, row, strict=True)]
    return adds


def _with_classes(graph: Indexed, left: int, adds: list[float]) -> list[float]:
    impact = list(adds)
    for each in graph.classes:
        first, second, holder = _two_least(each, left)
        for number in members(left & each.members):
            without = second if number == holder else first
            # The share of a class is least / product; without its only input it is 1.
            if without < inf:
                impact[number] *= first / (without * each.counts[number])
    return impact


def _two_least(key_class: KeyClass, left: int) -> tuple[float, float, int]:
    """The two smallest counts of a class among the inputs left, and who has the first."""
    first, second, holder = inf, inf, -1
    for number in members(left & key_class.members):
        if (count := key_class.counts[number]) < first:
            first, second, holder = count, first, number
        elif count < second:
            second = count
    return first, second, holder


class _Removal:
    """Which inputs of a set may leave so that the rest stays connected; remembered, for drivers share most sets."""

    def __init__(self, task: Task) -> None:
        self._near = task.graph.near
        self._always = task.cross_products or task.graph.complete
        self._known: dict[int, int] = {}
        self.steps = 0

    def free(self, left: int) -> int:
        if self._always:
            return left
        if left not in self._known:
            self.steps += left.bit_count()
            self._known[left] = left & ~_cuts(self._near, left)
        return self._known[left]


def _cuts(near: Sequence[int], left: int) -> int:
    """The inputs of a connected set that hold it together.

    A depth-first tree has no edges between its branches. So an input holds a child's branch in place if no edge leads from that
    branch to anything above the input; the root, if it has several branches.
    """
    unseen, cuts, branches = left & (left - 1), 0, 0
    stack, above = [(left & -left).bit_length() - 1], [0]
    leads_to = [near[stack[0]]]
    while stack:
        here = stack[-1]
        if following := near[here] & unseen:
            lowest = following & -following
            unseen ^= lowest
            above.append(above[-1] | 1 << here)
            stack.append(lowest.bit_length() - 1)
            leads_to.append(near[stack[-1]])
            continue
        stack.pop()
        above.pop()
        branch = leads_to.pop()
        if len(stack) > 1 and not branch & above[-1]:
            cuts |= 1 << stack[-1]
        elif len(stack) == 1:
            branches += 1
        if stack:
            leads_to[-1] |= branch
    return cuts | (left & -left if branches > 1 else 0)
