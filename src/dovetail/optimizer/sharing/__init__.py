"""Many queries, one plan that fits a CPU and a memory budget (Alrahmani, chapter 3).

- `model`: what is planned and what it costs, whoever plans. Read `named`, `workload`, `costs`, `draft`.
- `search`: our own strategies, over sets of stored sub-joins. Read `state_plans`, `exchange`.
- `thesis`: the thesis's strategy and its baselines, one query after the other. Read `shared`, `jtrees`.

`STRATEGIES` is the whole choice at a glance. `steps` turns a plan into what an engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from dovetail.config import Budget
from dovetail.errors import PlanError, listed
from dovetail.optimizer.cost.probe_cost import OBJECTIVES
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering import METHODS
from dovetail.optimizer.sharing.model.build import PlanBuilder
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, draft_of, load_of
from dovetail.optimizer.sharing.model.infeasible import does_not_fit
from dovetail.optimizer.sharing.model.named import NamedGraph
from dovetail.optimizer.sharing.model.workload import workload_of
from dovetail.optimizer.sharing.search.exact import exact
from dovetail.optimizer.sharing.search.exchange import exchange
from dovetail.optimizer.sharing.thesis.baselines import bjtrees, mjoins, naive, shared_naive
from dovetail.optimizer.sharing.thesis.query_order import QUERY_ORDERS, ordered
from dovetail.optimizer.sharing.thesis.shared import shared
from dovetail.plan.shared_plan import Load, SharedPlan
from dovetail.stats.probes import Objective

STRATEGIES: Mapping[str, Callable[[CostModel, Sequence[int], Load], list[Draft]]] = {
    "exchange": exchange,
    "shared": shared,
    "shared-naive": shared_naive,
    "naive": naive,
    "exact": exact,
    "mjoin": mjoins,
    "bjtree": bjtrees,
}
"""From prices, an order of the queries and limits to drafts, which share windows only; most give one for all queries."""


def plan_queries(
    queries: Mapping[str, JoinGraph | NamedGraph] | Iterable[tuple[str, JoinGraph | NamedGraph]],
    budget: Budget | None = None,
    strategy: str = "exchange",
    query_order: str = "shared-predicate",
    *,
    units: UnitCosts | None = None,
    ordering: str = "weave",
    objective: Objective = "produced",
) -> SharedPlan:
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
        (trees of binary joins). All but `naive` compute equal joins once; all keep a window once for all queries, as the engine does.
    query_order
        In which order `shared` and the baselines take the queries: `shared-predicate`, `heaviest`, `lightest` or `given`.
    units
        What a tuple costs in milliseconds and bytes.
    ordering, objective
        The method that orders the probes of every join, and what it minimises; see `order_probes`. Orders that a `NamedGraph` has
        are those of its query's own n-ary join.

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
    for parameter, given, allowed in (
        ("strategy", strategy, STRATEGIES),
        ("query_order", query_order, QUERY_ORDERS),
        ("ordering", ordering, METHODS),
        ("objective", objective, OBJECTIVES),
    ):
        if given not in allowed:
            raise PlanError(f"plan_queries: {parameter} is {given!r}; allowed: {listed(allowed)}")
    if budget is not None and not isinstance(budget, Budget):
        raise PlanError(f"plan_queries: budget is {budget!r}; expected a dt.Budget, or None for no limits")
    model = CostModel(workload_of(queries), units or UnitCosts(), ordering, objective)
    limits = limits_of(budget)
    left = Load(limits.cpu - model.delivering_all, limits.memory)
    if left.cpu <= 0:
        raise does_not_fit(model, left, Load(), proved=True)
    order = ordered(model.workload, query_order)
    plan = PlanBuilder(model, STRATEGIES[strategy](model, order, left)).plan(strategy, order, limits)
    if not plan.qualified:
        raise does_not_fit(model, left, Load(plan.load.cpu - model.delivering_all, plan.load.memory), proved=False)
    return plan


def priced_again(
    queries: Mapping[str, NamedGraph],
    running: Sequence[SharedPlan],
    shares: Sequence[float],
    units: UnitCosts | None,
    ordering: str,
    objective: Objective,
) -> Load:
    """Give what plans that were made before take together by what is known of their `queries` now; they share windows only.

    Orders are chosen anew: an engine adapts them by itself. `shares`: for each plan, what joins over windows cost in trees of probes,
    as a share of what they would by themselves.
    """
    model = CostModel(workload_of(queries), units or UnitCosts(), ordering, objective)
    drafts = [draft_of(model, plan) for plan in running]
    saved = sum((1 - share) * draft.over_windows(model) for share, draft in zip(shares, drafts, strict=True))
    return load_of(model, drafts).plus(Load(model.delivering_all - saved))


def limits_of(budget: Budget | None) -> Load:
    """Give `budget` as limits; infinite where it has none."""
    if budget is None:
        return Load(inf, inf)
    return Load(budget.cpu_ms_per_second or inf, budget.memory_bytes or inf)
