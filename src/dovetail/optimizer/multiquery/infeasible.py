"""What to say when no plan fits a budget: which query, which resource, how much it needs, how much there is, and what would help."""

from __future__ import annotations

from dovetail.errors import BudgetError, listed
from dovetail.optimizer.multiquery.costs import CostModel
from dovetail.optimizer.multiquery.draft import Draft, mjoin
from dovetail.optimizer.multiquery.turn import Turn
from dovetail.plan.global_plan import Load

_UNITS = {"CPU": "ms per second", "memory": "bytes"}


def nothing_fits(turn: Turn, resource: str, need: float) -> BudgetError:
    """No plan for the query whose turn it is fits into what the queries before it have left."""
    workload = turn.model.workload
    query = workload.queries[turn.query]
    delivering = turn.model.delivering_all if resource == "CPU" else 0.0
    limit, left = _of(resource, turn.limits) + delivering, max(_of(resource, turn.available), 0.0)
    planned = [name for number, name in enumerate(workload.names) if number not in turn.left]
    others = f", after {listed(planned)}" if planned else ""
    message = (
        f"query {query.name!r} does not fit the budget: no plan that was tried needs less than {need:.4g} {_UNITS[resource]} of "
        f"{resource}, and {left:.4g} of {limit:.4g} are left{others}"
    )
    return BudgetError(message, _hint(resource, query.name, query.window, left / need))


def does_not_fit(model: CostModel, limits: Load, need: Load, *, proved: bool) -> BudgetError:
    """All queries together need more than there is; the one that takes most of it is named. Delivering results is part of both."""
    delivering = Load(model.delivering_all)
    limits, need = limits.plus(delivering), need.plus(delivering)
    resource = "CPU" if need.cpu / limits.cpu >= need.memory / limits.memory else "memory"
    limit, wanted = _of(resource, limits), _of(resource, need)
    workload = model.workload
    alone = [
        _of(resource, Draft().joined(query, mjoin(model, query)).load(model)) for query in range(len(workload.queries))
    ]
    dearest = workload.queries[alone.index(max(alone))]
    needs = "every plan needs" if proved else "the best plan found needs"
    within = (
        f" within {limits.memory:.4g} bytes of memory" if resource == "CPU" and limits.memory < float("inf") else ""
    )
    message = (
        f"the queries do not fit the budget together: {needs} {'at least ' if proved else ''}{wanted:.4g} {_UNITS[resource]} of "
        f"{resource}{within}, the limit is {limit:.4g}; query {dearest.name!r} takes the most, {max(alone):.4g} by itself"
    )
    return BudgetError(message, _hint(resource, dearest.name, dearest.window, limit / wanted))


def _of(resource: str, load: Load) -> float:
    return load.cpu if resource == "CPU" else load.memory


def _hint(resource: str, name: str, window: float, share: float) -> str:
    """What would fit: a window shortened by as much as is missing is a start, for state grows at least as fast as the window."""
    option = "cpu_ms_per_second" if resource == "CPU" else "memory_bytes"
    smaller = (
        f"a smaller window in {name!r} (try {window * share:.3g} s instead of {window:g} s), " if share > 0 else ""
    )
    return f"plan fewer queries together, or use {smaller}a larger Budget({option}=...), or load shedding"
