"""Errors for budgets that no plan fits: the query, the resource, the need, the limit, and a hint."""

from __future__ import annotations

from dovetail.errors import BudgetError
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, mjoin
from dovetail.optimizer.sharing.model.query_set import NumberedQuery, QuerySet
from dovetail.plan.shared_plan import Load

_SHORTEST_SECONDS = 0.001
_LEAST_SHEDDING_BYTES = 1 << 20
"""A smaller cap may be refused, because windows have a minimum size."""
UNITS = {"CPU": "ms of CPU per second", "memory": "bytes of memory"}


def budget_error(model: CostModel, limits: Load, need: Load, *, proved: bool) -> BudgetError:
    """Return the error that all queries together `need` more than the `limits`.

    It names the most expensive of several queries.

    Neither load includes the delivery of results, which the error adds to both.
    """
    delivery = Load(model.total_delivery_cost)
    limits, need = limits.plus(delivery), need.plus(delivery)
    resource = "CPU" if need.cpu / limits.cpu >= need.memory / limits.memory else "memory"
    limit, required = amount(resource, limits), amount(resource, need)
    query_set = model.query_set
    alone = [
        amount(resource, _load_alone(model, query).plus(Load(model.delivery_cost(query))))
        for query in range(len(query_set.queries))
    ]
    most_expensive = query_set.queries[alone.index(max(alone))]
    needs = "every plan needs at least" if proved else "the best one found needs"
    within = (
        f" within {limits.memory:.4g} bytes of memory" if resource == "CPU" and limits.memory < float("inf") else ""
    )
    message = f"no plan fits the budget: {needs} {required:.4g} {UNITS[resource]}{within}; the limit is {limit:.4g}"
    if len(alone) == 1:
        message = f"query {most_expensive.name!r}: {message}"
    else:
        most = f"alone needs {max(alone):.4g}" if max(alone) <= required * (1 + 1e-9) else "needs most of it"
        message = f"{message}, and query {most_expensive.name!r} {most}"
    hint = budget_hint(query_set, most_expensive, resource, limit / required, limit)
    return BudgetError(message, hint, resource=resource)


def _load_alone(model: CostModel, query: int) -> Load:
    """Return the load of a query with a join of its own, without the delivery of its results."""
    return Draft().with_query(query, mjoin(model, query)).load(model)


def check_windows(model: CostModel, limits: Load) -> None:
    """Raise `BudgetError` if the windows of all queries, which every plan keeps, exceed the memory limit."""
    windows = model.least_windows()
    if windows.memory > limits.memory * (1 + 1e-9):
        raise budget_error(model, limits, Load(0.0, windows.memory), proved=True)


def amount(resource: str, load: Load) -> float:
    """Return the part of `load` that is `resource`."""
    return load.cpu if resource == "CPU" else load.memory


def budget_hint(query_set: QuerySet, query: NumberedQuery, resource: str, fraction: float, limit: float) -> str:
    """Return the hint for a budget whose `limit` is `fraction` of the need.

    It suggests a window of `query` shortened by that fraction, because state grows at least as fast as the window, and shedding where
    queries allow it.
    """
    option = "cpu_ms_per_second" if resource == "CPU" else "memory_bytes"
    shorter = query.window * fraction
    smaller = f"smaller windows in {query.name!r}, " if query.has_count_windows else ""
    if not smaller and shorter >= _SHORTEST_SECONDS:
        # Written so that it can be typed into a query, which takes no exponents.
        rounded = f"{shorter:.3g}" if shorter < 100 else f"{shorter:.0f}"
        smaller = f"a smaller window in {query.name!r} (try {rounded} s instead of {query.window:g} s), "
    shedding = ""
    if resource == "memory" and limit >= _LEAST_SHEDDING_BYTES and not query_set.has_count_windows:
        shedding = (
            f", or replace the budget by Config(shedding=dt.Shedding(max_bytes={int(limit)})), which loses results"
        )
    fewer = "register fewer queries, or " if len(query_set.queries) > 1 else ""
    larger = f"a larger Budget({option}=...)"
    return f"{fewer}use {smaller}{'or ' if smaller and not fewer and not shedding else ''}{larger}{shedding}"
