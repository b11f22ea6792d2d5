"""Q-Aware: TreeOpt for acyclic graphs, FAB for cyclic ones (Raghavan et al., section 6, table 2).

O(n³). Optimal for linear, star and other acyclic graphs, near-optimal for the rest.
"""

from __future__ import annotations

from dovetail.optimizer.ordering.fab import fab
from dovetail.optimizer.ordering.task import SearchResult, Task
from dovetail.optimizer.ordering.treeopt import treeopt


def q_aware(task: Task) -> SearchResult:
    """Order the probes of every driver by the method that suits the graph's shape."""
    return treeopt(task) if task.graph.is_acyclic and not task.cross_products else fab(task)
