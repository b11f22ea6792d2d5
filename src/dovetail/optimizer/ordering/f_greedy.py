"""F-Greedy: always probe next the input with the fewest expected matches (Raghavan et al., 3.2).

O(n²) per driver, O(n³) for all. Optimal on stars for produced tuples, not for comparisons; on linear graphs only from an end: the
paper's "optimal for linear" is too strong, because an inner input chooses between two arms, and a bad next input may hide a good arm.
The choice is the same for both objectives. Only inputs connected to those already joined are candidates, unless cross products are
allowed.
"""

from __future__ import annotations

from dovetail.optimizer.graph.indexed import Prefix, members
from dovetail.optimizer.ordering.problem import OrderingProblem, OrderingResult


def f_greedy(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver."""
    paths, steps = [], 0
    for driver in range(problem.graph.count):
        path, prefix = [driver], Prefix(problem.graph, driver)
        while candidates := problem.candidates(prefix.joined, prefix.reach):
            steps += candidates.bit_count()
            path.append(min(members(candidates), key=prefix.matches.__getitem__))
            prefix.add(path[-1])
        paths.append(path)
    return OrderingResult(paths, steps)
