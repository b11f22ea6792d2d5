"""Many queries, one plan that fits a CPU and a memory budget (Alrahmani, chapter 3). One file per algorithm.

Reading order: `named` (what makes sub-joins of different queries the same), `workload`, `costs` (equations 2-1 to 2-6), `draft`;
then the thesis's method: `query_order` (algorithms 1 to 3), `allocation`, `sharing`, `shared` (algorithm 4), `state_selection`
(5), `bjtree` (6), `state_removal` (7); its baselines: `naive`; ours: `states`, `exchange`, `exact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from dovetail.config import PLANNERS, Budget
from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.multiquery.bjtree import bjtree
from dovetail.optimizer.multiquery.build import PlanBuilder
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft, mjoin, tidied
from dovetail.optimizer.multiquery.exact import MOST, candidate_states, exact
from dovetail.optimizer.multiquery.exchange import exchange
from dovetail.optimizer.multiquery.infeasible import does_not_fit
from dovetail.optimizer.multiquery.naive import naive, shared_naive
from dovetail.optimizer.multiquery.named import NamedGraph
from dovetail.optimizer.multiquery.query_order import QUERY_ORDERS, ordered
from dovetail.optimizer.multiquery.shared import shared
from dovetail.optimizer.multiquery.turn import Turn
from dovetail.optimizer.multiquery.workload import workload_of
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.global_plan import NO_LIMITS, GlobalPlan, Load

STRATEGIES = PLANNERS


def plan_queries(
    queries: Mapping[str, JoinGraph | NamedGraph] | Iterable[tuple[str, JoinGraph | NamedGraph]],
    budget: Budget | None = None,
    strategy: str = "exchange",
    query_order: str = "shared-predicate",
    *,
    units: UnitCosts | None = None,
) -> GlobalPlan:
    """Plan queries together, so that they fit a budget and do common work once.

    Parameters
    ----------
    queries
        Join graphs by query. Inputs with equal names are the same stream, and edges between the same inputs with the same
        selectivity are the same predicate; a `NamedGraph` gives them names of their own. Windows may differ between queries: a
        shared join has the largest, and queries with smaller ones take what lies in theirs.
    budget
        CPU and memory for all queries together; None, or a field that is None, is no limit.
    strategy
        `exchange` (local search over stored sub-joins, the default), `shared` (the thesis's), `shared-naive` and `naive` (its
        baselines), `exact` (branch and bound, for small cases), `mjoin` (one n-ary join per query, nothing stored) or `bjtree`
        (trees of binary joins). All but `naive` compute equal joins once.
    query_order
        In which order `shared` and the baselines take the queries: `shared-predicate`, `heaviest`, `lightest` or `given`.
    units
        What a tuple costs in milliseconds and bytes.

    Raises
    ------
    BudgetError
        No plan fits, or the strategy finds none; it names a query, the resource, what is needed and what is there.

    Examples
    --------
    >>> rates, spans = {"A": 10, "B": 12, "C": 10, "D": 30}, dict.fromkeys("ABCD", 10)
    >>> def query(*edges):
    ...     names = sorted({name for edge in edges for name in edge})
    ...     known = {"AB": 0.001, "BC": 0.01, "BD": 0.02}
    ...     return JoinGraph({n: rates[n] for n in names}, {tuple(e): known[e] for e in edges}, {n: 10 for n in names})
    >>> plan = plan_queries({"q1": query("AB", "BC"), "q2": query("AB", "BD")}, Budget(cpu_ms_per_second=100))
    >>> [(state.id, state.queries) for state in plan.states]
    [('state:A+B', ('q1', 'q2'))]
    """
    for place, found, allowed in (("strategy", strategy, STRATEGIES), ("query_order", query_order, QUERY_ORDERS)):
        if found not in allowed:
            raise PlanError(f"plan_queries: {place} is {found!r}; allowed: {listed(allowed)}")
    if budget is not None and not isinstance(budget, Budget):
        raise PlanError(f"plan_queries: budget is {budget!r}; expected a dt.Budget, or None for no limits")
    model = CostModel(workload_of(queries), units or UnitCosts())
    limits = limits_of(budget)
    left = Load(limits.cpu - model.delivering_all, limits.memory)
    if left.cpu <= 0:
        raise does_not_fit(model, left, Load(), proved=True)
    order = ordered(model.workload, query_order)
    builder = PlanBuilder(model)
    if strategy == "naive":
        for query, draft in zip(order, naive(model, order, left), strict=True):
            builder.add(draft, f"{model.workload.names[query]}/")
    else:
        builder.add(tidied(model, _draft(model, strategy, order, left)))
    plan = builder.plan(strategy, order, limits)
    if not plan.qualified:
        raise does_not_fit(model, left, Load(plan.load.cpu - model.delivering_all, plan.load.memory), proved=False)
    return plan


def limits_of(budget: Budget | None) -> Load:
    """A budget as limits; infinite where it has none."""
    if budget is None:
        return Load(inf, inf)
    return Load(budget.cpu_ms_per_second or inf, budget.memory_bytes or inf)


def _draft(model: CostModel, strategy: str, order: list[int], limits: Load) -> Draft:
    if strategy == "shared":
        return shared(model, order, limits)
    if strategy == "shared-naive":
        return shared_naive(model, order, limits)
    if strategy in ("mjoin", "bjtree"):
        return _uniform(model, strategy, order)
    windows = model.least_windows()
    if windows.memory > limits.memory * (1 + 1e-9):
        raise does_not_fit(model, limits, Load(0.0, windows.memory), proved=True)
    if strategy == "exchange":
        draft = exchange(model, order, limits)
        if draft.load(model).fits(limits):
            return draft
        if len(candidate_states(model.workload)) > MOST:
            raise does_not_fit(model, limits, draft.load(model), proved=False)
    if (best := exact(model, limits)) is not None:
        return best
    least = exact(model, Load(inf, limits.memory))
    assert least is not None  # noqa: S101 - the n-ary joins fit the memory
    raise does_not_fit(model, limits, least.load(model), proved=True)


def _uniform(model: CostModel, strategy: str, order: list[int]) -> Draft:
    """All queries in the same way, whatever it costs."""
    draft = Draft()
    for place, query in enumerate(order):
        turn = Turn(model, draft, order[place:], NO_LIMITS)
        draft = draft.joined(query, bjtree(turn) if strategy == "bjtree" else mjoin(model, query))
    return draft
