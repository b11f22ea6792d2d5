"""One plan for many queries, within a CPU and a memory budget (Alrahmani, chapter 3).

- `model`: queries, costs and drafts of plans, common to all strategies. Read `named`, `query_set`, `costs`, `draft`.
- `search`: Dovetail's own strategies, which search sets of materialized joins. Read `join_sets`, `exchange`.
- `thesis`: the thesis's strategy and its baselines, which plan one query after the other. Read `shared`, `jtrees`.

`STRATEGY_FUNCTIONS` lists all strategies. `optimizer.lowering` turns a plan into the steps that an engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from dovetail.config import Budget, Ordering, Strategy
from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.probe_cost import OBJECTIVES
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.sharing.model.build import PlanBuilder
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, draft_of, load_of
from dovetail.optimizer.sharing.model.infeasible import budget_error
from dovetail.optimizer.sharing.model.named import NamedGraph
from dovetail.optimizer.sharing.model.query_set import number_queries
from dovetail.optimizer.sharing.search.exact import exact
from dovetail.optimizer.sharing.search.exchange import exchange
from dovetail.optimizer.sharing.thesis.baselines import bjtrees, mjoins, naive, shared_naive
from dovetail.optimizer.sharing.thesis.query_order import QUERY_ORDERS, QueryOrder, order_queries
from dovetail.optimizer.sharing.thesis.shared import shared
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.stats.probes import Objective

STRATEGY_FUNCTIONS: Mapping[Strategy, Callable[[CostModel, Sequence[int], Load], list[Draft]]] = {
    "exchange": exchange,
    "shared": shared,
    "shared-naive": shared_naive,
    "naive": naive,
    "exact": exact,
    "mjoin": mjoins,
    "bjtree": bjtrees,
}
"""Each plans the queries of a cost model, in an order and within limits, and returns drafts.

Two drafts share nothing but windows, and most strategies return one.
"""


def plan_queries(
    queries: Mapping[str, JoinGraph | NamedGraph] | Iterable[tuple[str, JoinGraph | NamedGraph]],
    budget: Budget | None = None,
    strategy: Strategy = "exchange",
    query_order: QueryOrder = "shared-predicate",
    *,
    units: UnitCosts | None = None,
    ordering: Ordering = "weave",
    objective: Objective = "produced",
) -> SharedPlan:
    """Plan queries together, so that they fit a budget and common work is done once.

    Parameters
    ----------
    queries
        Join graphs by query. Inputs with equal names are the same stream, and edges between the same inputs with the same
        selectivity are the same predicate; a `NamedGraph` names them explicitly. Windows may differ between queries: a shared join
        has the largest, and queries with smaller windows filter its matches.
    budget
        CPU and memory for all queries together; None, or a field that is None, means no limit.
    strategy
        `exchange` (local search over materialized joins, the default), `shared` (the thesis's), `shared-naive` and `naive` (its
        baselines), `exact` (branch and bound, for small cases), `mjoin` (one n-ary join per query, none materialized) or `bjtree`
        (trees of binary joins). All but `naive` compute equal joins once; all keep a window once for all queries, as the engine does.
    query_order
        Order in which `shared` and the baselines plan the queries: `shared-predicate`, `heaviest`, `lightest` or `given`.
    units
        Cost of a tuple in milliseconds and bytes.
    ordering, objective
        Method that orders the probes of every join, and what it minimises; see `order_probes`. The orders of a `NamedGraph` apply
        to its query's own n-ary join.

    Raises
    ------
    BudgetError
        No plan fits, or the strategy finds none; it names a query, the resource, the need and the limit.

    Examples
    --------
    >>> rates, windows = {"A": 10, "B": 12, "C": 10, "D": 30}, dict.fromkeys("ABCD", 10)
    >>> def query(*edges):
    ...     names = sorted({name for edge in edges for name in edge})
    ...     known = {"AB": 0.001, "BC": 0.01, "BD": 0.02}
    ...     return JoinGraph({n: rates[n] for n in names}, {tuple(e): known[e] for e in edges}, {n: 10 for n in names})
    >>> plan = plan_queries({"q1": query("AB", "BC"), "q2": query("AB", "BD")}, Budget(cpu_ms_per_second=100))
    >>> [(join.id, join.queries) for join in plan.materialized]
    [('state:A+B', ('q1', 'q2'))]
    """
    for parameter, value, allowed in (
        ("strategy", strategy, STRATEGY_FUNCTIONS),
        ("query_order", query_order, QUERY_ORDERS),
        ("ordering", ordering, METHODS),
        ("objective", objective, OBJECTIVES),
    ):
        if value not in allowed:
            raise PlanError(f"plan_queries: {parameter} is {value!r}; allowed: {listed(allowed)}")
    if budget is not None and not isinstance(budget, Budget):
        raise PlanError(f"plan_queries: budget is {budget!r}; expected a dt.Budget, or None for no limits")
    model = CostModel(number_queries(queries), units or UnitCosts(), ordering, objective)
    limits = limits_of(budget)
    available = Load(limits.cpu - model.total_delivery_cost, limits.memory)
    order = order_queries(model.query_set, query_order)
    # Where the delivery of results takes the whole budget, a plan without that limit says how much is needed.
    within = available if available.cpu > 0 else Load(inf, limits.memory)
    plan = PlanBuilder(model, STRATEGY_FUNCTIONS[strategy](model, order, within)).plan(strategy, order, limits)
    if not plan.fits_budget:
        need = Load(plan.load.cpu - model.total_delivery_cost, plan.load.memory)
        raise budget_error(model, available, need, proved=False)
    return plan


def load_of_plans(
    queries: Mapping[str, NamedGraph],
    running: Sequence[SharedPlan],
    cost_ratios: Sequence[float],
    units: UnitCosts | None,
    ordering: Ordering,
    objective: Objective,
) -> Load:
    """Return the load of `running` plans, which share only windows, by current statistics of `queries`.

    Orders are chosen again, because an engine adapts them. `cost_ratios` has, for each plan, the cost of joins over windows in probe
    trees divided by their cost without sharing.
    """
    model = CostModel(number_queries(queries), units or UnitCosts(), ordering, objective)
    drafts = [draft_of(model, plan) for plan in running]
    saved = sum((1 - ratio) * draft.window_join_cpu(model) for ratio, draft in zip(cost_ratios, drafts, strict=True))
    return load_of(model, drafts).plus(Load(model.total_delivery_cost - saved))


def limits_of(budget: Budget | None) -> Load:
    """Return `budget` as a load; infinite where it sets no limit."""
    if budget is None:
        return Load(inf, inf)
    return Load(budget.cpu_ms_per_second or inf, budget.memory_bytes or inf)
