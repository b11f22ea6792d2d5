"""Q-Aware: TreeOpt for acyclic graphs, FAB for cyclic ones (Raghavan et al., section 6, table 2).

O(n³). Optimal for linear, star and other acyclic graphs, near-optimal for the rest.
"""

from __future__ import annotations

from dovetail.optimizer.ordering.fab import fab
from dovetail.optimizer.ordering.problem import OrderingProblem, OrderingResult
from dovetail.optimizer.ordering.treeopt import treeopt


def q_aware(problem: OrderingProblem) -> OrderingResult:
    """Order the probes of every driver by the method that suits the graph's shape."""
    return treeopt(problem) if problem.graph.is_acyclic and not problem.cross_products else fab(problem)
