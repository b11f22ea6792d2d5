"""What to say when no plan fits a budget: which query, which resource, how much it needs, how much there is, and what would help."""

from __future__ import annotations

from dovetail.errors import BudgetError
from dovetail.optimizer.sharing.model.costs import CostModel
from dovetail.optimizer.sharing.model.draft import Draft, mjoin
from dovetail.plan.shared_plan import Load

UNITS = {"CPU": "ms per second", "memory": "bytes"}


def does_not_fit(model: CostModel, limits: Load, need: Load, *, proved: bool) -> BudgetError:
    """Say that all queries together `need` more than the `limits`; the one that takes the most of it is named.

    Delivering results is part of both.
    """
    delivering = Load(model.delivering_all)
    limits, need = limits.plus(delivering), need.plus(delivering)
    resource = "CPU" if need.cpu / limits.cpu >= need.memory / limits.memory else "memory"
    limit, wanted = amount(resource, limits), amount(resource, need)
    workload = model.workload
    alone = [
        amount(resource, Draft().joined(query, mjoin(model, query)).load(model))
        for query in range(len(workload.queries))
    ]
    dearest = workload.queries[alone.index(max(alone))]
    needs = "every plan needs" if proved else "the best plan found needs"
    within = (
        f" within {limits.memory:.4g} bytes of memory" if resource == "CPU" and limits.memory < float("inf") else ""
    )
    message = (
        f"the queries do not fit the budget together: {needs} {'at least ' if proved else ''}{wanted:.4g} {UNITS[resource]} of "
        f"{resource}{within}, the limit is {limit:.4g}; query {dearest.name!r} takes the most, {max(alone):.4g} by itself"
    )
    return BudgetError(message, hint(resource, dearest.name, dearest.window, limit / wanted, limit))


def check_windows(model: CostModel, limits: Load) -> None:
    """Refuse `limits` of memory that are less than the windows of all queries, which every plan keeps."""
    windows = model.least_windows()
    if windows.memory > limits.memory * (1 + 1e-9):
        raise does_not_fit(model, limits, Load(0.0, windows.memory), proved=True)


def amount(resource: str, load: Load) -> float:
    """Give how much of `resource` a `load` is."""
    return load.cpu if resource == "CPU" else load.memory


def hint(resource: str, name: str, window: float, share: float, limit: float) -> str:
    """Say what would fit, if `share` of what is needed is there, which is `limit`.

    A window shortened by as much as is missing is a start, for state grows at least as fast as the window.
    """
    option = "cpu_ms_per_second" if resource == "CPU" else "memory_bytes"
    smaller = (
        f"a smaller window in {name!r} (try {window * share:.3g} s instead of {window:g} s), " if share > 0 else ""
    )
    shedding = ""
    if resource == "memory" and limit >= 1:
        shedding = (
            f", or Config(shedding=dt.Shedding(max_bytes={int(limit)})) in the place of the budget, which loses results"
        )
    return f"plan fewer queries together, or use {smaller}a larger Budget({option}=...){shedding}"
