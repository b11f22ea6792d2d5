"""What is planned when queries are registered is not planned again when they begin to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from ten_queries import COLUMNS, PRICES, RATES, TEN, batches

import dovetail as dt
from dovetail import calibrate
from dovetail.config import StrategyOption
from dovetail.optimizer import joint, planner
from dovetail.optimizer.graph import from_query
from dovetail.session.job import Job

FEW = ("q1", "q3", "q8")
AMPLE = dt.Budget(cpu_ms_per_second=1000)
TIGHT = dt.Budget(cpu_ms_per_second=1000, memory_bytes=15 << 10)
"""Most of it is used, so queries are admitted only by planning all of them together."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of the planner."""
    counts: Counter[str] = Counter()

    def count(target: Any, name: str, label: Callable[..., str]) -> None:
        function = getattr(target, name)

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[label(*args)] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(target, name, counted)

    monkeypatch.setattr(calibrate, "_calibrated", lambda: (PRICES, PRICES))
    count(planner, "choose_orders", lambda *_: "orders")
    count(
        from_query,
        "build_graph",
        lambda query, *_: f"graph of a {'join' if query.name.startswith('join:') else 'query'}",
    )
    count(joint, "plan_queries", lambda graphs, _, strategy: f"{strategy} of {len(graphs)}")
    count(Job, "unit_costs", lambda *_: "unit costs")
    return counts


@pytest.mark.parametrize(
    ("budget", "strategy", "registering", "beginning"),
    [
        (None, "auto", {"mjoin of 1": 3}, {"mjoin of 3": 1}),
        (None, "exact", {"exact of 1": 1, "exact of 2": 1, "exact of 3": 1}, {}),
        (AMPLE, "auto", {"mjoin of 1": 3, "unit costs": 3}, {"mjoin of 3": 1, "exchange of 3": 1}),
        (TIGHT, "auto", {"mjoin of 1": 3, "unit costs": 3, "mjoin of 3": 1}, {"exchange of 3": 1}),
    ],
)
def test_the_first_batch_plans_nothing_again(
    calls: Counter[str],
    budget: dt.Budget | None,
    strategy: StrategyOption,
    registering: dict[str, int],
    beginning: dict[str, int],
) -> None:
    session = dt.LocalSession(budget, dt.Config(strategy=strategy))
    for name, rate in RATES.items():
        session.stream(name, COLUMNS, "ts", lateness="2 seconds", rate=rate)
    session.selectivity("a.x = b.x", 0.1)
    for name in FEW:
        session.query(name, TEN[name])
    assert calls == {"orders": 3, "graph of a query": 3, **registering}
    calls.clear()
    session.explain()
    first, second = batches(1, 2)
    session.push(first)
    del calls["graph of a join"]  # joins of several queries are new
    assert calls == beginning
    calls.clear()
    session.explain()
    session.push(second)
    assert not calls
