"""Admission control: an upper bound on what the registered queries can cost.

For late queries, it has what the others leave of the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import TYPE_CHECKING, Protocol

from dovetail.config import Budget
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.sharing import limits_of
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.names import WindowCopies
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.plan.steps import Cell
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema

if TYPE_CHECKING:
    from dovetail.session.job import Job

_EASY_FRACTION = 0.8
"""If the upper bound of all queries uses at most this fraction of the budget, a query is admitted without joint planning."""
EXHAUSTED_LIMIT = 1e-9
"""Stands for an exhausted limit: a `Budget` accepts no zero."""


class ShardPlacement(Protocol):
    """Shards of queries: which queries can share joins, and on how many shards a tuple is kept."""

    @property
    def scopes(self) -> Mapping[str, str]:
        """By query, the name of its group of shards; empty if there is one group.

        Queries of different groups share nothing.
        """

    @property
    def window_copies(self) -> Mapping[str, WindowCopies]:
        """By name of a window, in how many shards each of its tuples is."""

    @property
    def cells(self) -> Mapping[str, Cell]:
        """By query, the results that a shard may emit."""

    def with_query(self, query: JoinQuery, streams: Mapping[str, StreamSchema]) -> ShardPlacement:
        """Return the placement with one more query, over some of `streams`."""

    def restricted(self, queries: Iterable[JoinQuery]) -> ShardPlacement:
        """Return the placement of some of its queries."""


@dataclass(frozen=True)
class CostUpperBound:
    """CPU and memory if no query shared a join with another.

    Queries share windows even then, so a window is charged once, at its longest retention. The bound admits most queries without
    planning all of them together.
    """

    unshared_plan: ExecutionPlan = field(default_factory=ExecutionPlan)
    """Execution plan in which each query has a join of its own: it determines the columns of windows."""
    planning: JointPlanning | None = None
    """The planning of all queries together: the job begins with the plans that were made to admit them."""
    cpu: float = 0.0
    """CPU of joins and results."""
    windows: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds and tuples per second of each window."""

    def with_query(self, unshared_plan: ExecutionPlan, planning: JointPlanning, plan: SharedPlan) -> CostUpperBound:
        """Return the bound with the joins and windows of `plan` added.

        The other arguments are those of all queries.
        """
        windows = dict(self.windows)
        for window in plan.windows:
            windows[window.stream] = (
                max(window.window_seconds, windows.get(window.stream, (0.0, 0.0))[0]),
                window.rate,
            )
        joins = plan.load.cpu - sum(window.load.cpu for window in plan.windows)
        return CostUpperBound(unshared_plan, planning, self.cpu + joins, windows)

    @property
    def load(self) -> Load:
        units = (self.planning and self.planning.units) or UnitCosts()
        insert_cpu = sum(rate for _, rate in self.windows.values()) * units.keep
        window_bytes = [seconds * rate * units.window_bytes(name) for name, (seconds, rate) in self.windows.items()]
        return Load(self.cpu + insert_cpu, sum(window_bytes))


def cost_upper_bound(job: Job, added: QueryPlan) -> CostUpperBound | None:
    """Return the upper bound with a query just added; raise an error if its queries cannot be planned.

    The bound adds up plans of single queries. Only if it comes near the budget, all queries are planned together.
    """
    name, before, is_exact = added.query.name, job.upper_bound, job.config.strategy == "exact"
    if job.budget is None:
        if not is_exact:
            JointPlanning({name: added}, job.config).find_feasible_plan()
            return None
        planning = job.joint_planning()
        return CostUpperBound().with_query(ExecutionPlan(), planning, planning.find_feasible_plan())
    plans, unshared = (job.plans.values(), None) if before is None else ([added], before.unshared_plan)
    unshared = job.unshared_execution_plan(plans, unshared)
    planning = job.joint_planning(job.unit_costs(unshared))
    if before is not None and not is_exact:
        single, limits = job.planning({name: added}, None, units=planning.units), limits_of(job.budget)
        upper_bound = before.with_query(unshared, planning, single.plan_windows_only())
        if upper_bound.load.cpu > limits.cpu and single.optimistic is not single:
            upper_bound = before.with_query(unshared, planning, single.optimistic.plan_windows_only())
        if upper_bound.load.fits(Load(*(_EASY_FRACTION * limit for limit in limits))):
            return upper_bound
    return CostUpperBound().with_query(unshared, planning, planning.find_feasible_plan())


def remaining_budget(budget: Budget, loads: Iterable[Load]) -> Budget:
    """Return what running queries leave of the budget."""
    used, limits = Load.total(loads), limits_of(budget)
    cpu, memory = max(limits.cpu - used.cpu, EXHAUSTED_LIMIT), max(limits.memory - used.memory, EXHAUSTED_LIMIT)
    return Budget(None if isinf(cpu) else cpu, None if isinf(memory) else memory)
