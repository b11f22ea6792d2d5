"""`ProbeWatch` notices drifts, and its own cost stays within a fraction of the join's."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.codec import from_json, to_json
from dovetail.engine.join.watch import CREDIT_FRACTION, MAX_CREDIT, ProbeWatch, read_cost, replan_cost
from dovetail.stats.probes import PathCost, QueryStats


def test_costs_of_other_orders_are_dropped_after_a_drift() -> None:
    plans = QueryStats({}, {}, {}, {"a": {("b", "c"): PathCost(3.0, 30.0), ("c", "b"): PathCost(1.0, 30.0)}})
    assert plans.gain("a", ("b", "c"), ("c", "b"), "produced") == 2.0
    assert plans.gain("a", ("b", "c"), ("c", "b"), "comparisons") == 1.0
    assert plans.gain("b", ("b", "c"), ("c", "b"), "produced") is None
    watch = ProbeWatch()

    def look(order: str, produced: int) -> None:
        counted = [[100, 0, 100, 0], [100, 0, produced, 50_000]]
        runner: Any = SimpleNamespace(path=SimpleNamespace(order=("a", order)), take_recent_counts=lambda: counted)
        watch.read_counters({"a": runner}, 0)

    look("b", 200)
    look("c", 220)
    look("b", 220)
    assert {order: cost.produced for order, cost in watch.order_costs["a"].items()} == pytest.approx(
        {("b",): 2.1, ("c",): 2.2}
    )
    assert from_json(ProbeWatch, json.loads(json.dumps(to_json(watch)))).order_costs == watch.order_costs
    look("b", 500)
    assert watch.order_costs["a"] == {("b",): PathCost(5.0, 0.0)}


def test_equal_probes_of_two_paths_are_counted_together() -> None:
    """Within a batch, the first stream probes windows without the others' new tuples and the last probes all of them, so counts of
    the same probe on two paths may differ by more than a drift."""

    def path(order: str, matches: int) -> Any:
        counted = [[100, 0, 1000, 0], [1000, 0, 1000, 50_000], [1000, 0, matches, 50_000]]
        return SimpleNamespace(path=SimpleNamespace(order=tuple(order)), take_recent_counts=lambda: counted)

    watch = ProbeWatch()
    runners = {"a": path("acb", 500), "c": path("cab", 1500)}
    considered = [look for look in range(32) if watch.read_counters(runners, 1_000_000 * look)]
    assert considered == [0, 1, 3, 7, 15, 31]
    assert watch.probe_counts[frozenset("ac"), "b"].selectivity == pytest.approx(2000 / 100_000)


class Path10:
    """Fake path runner for one of ten inputs."""

    cost_fraction = 1.0

    def __init__(self, number: int) -> None:
        self.path = SimpleNamespace(order=tuple(f"s{(number + place) % 10}" for place in range(10)))
        self.counts = [[0, 0, 0, 0] for _ in range(10)]
        self.noted = [[0, 0, 0, 0] for _ in range(10)]

    def push(self, tuples: int, matches: int) -> None:
        for place, counted in enumerate(self.counts):
            added = (tuples, 0, matches if place else tuples, tuples * 1000)
            counted[:] = [n + more for n, more in zip(counted, added, strict=True)]

    def take_recent_counts(self) -> list[list[int]]:
        new = [[n - o for n, o in zip(now, old, strict=True)] for now, old in zip(self.counts, self.noted, strict=True)]
        self.discard_recent_counts()
        return new

    def discard_recent_counts(self) -> None:
        self.noted = [list(counted) for counted in self.counts]

    @property
    def produced(self) -> tuple[int, int]:
        return self.counts[0][2], sum(counted[2] for counted in self.counts)


def watched(matches: Callable[[int], int], batches: int, watch: ProbeWatch) -> tuple[list[int], list[int], float]:
    """Return the batches with a counter read, the batches with a replan, and the number of tuples produced."""
    runners: Any = {f"s{number}": Path10(number) for number in range(10)}
    looked, considered = [], []
    for batch in range(batches):
        for runner in runners.values():
            runner.push(1000, matches(batch))
        watch.new_tuples += 10_000
        if watch.is_ready(runners, batch * 1_000_000, 1_000_000):
            looked.append(batch)
            if watch.read_counters(runners, batch * 1_000_000):
                considered.append(batch)
    return looked, considered, sum(counted[2] for runner in runners.values() for counted in runner.counts)


def test_replanning_under_noise_stays_within_the_credit() -> None:
    """Every other batch matches ten times as often, so each counter read finds a drift."""
    looked, considered, produced = watched(lambda batch: 100 + 900 * (batch % 2), 2000, ProbeWatch())
    spent = len(looked) * read_cost(10) + len(considered) * replan_cost(10)
    assert spent <= CREDIT_FRACTION * produced + MAX_CREDIT + 4 * (read_cost(10) + replan_cost(10))
    assert len(considered) >= 0.3 * CREDIT_FRACTION * produced / replan_cost(
        10
    )  # counter reads leave enough credit for replanning


@pytest.mark.parametrize("at", [300, 301, 1000])
def test_a_drift_is_noticed_at_once_after_a_long_steady_phase(at: int) -> None:
    _, considered, _ = watched(lambda batch: 100 if batch < at else 1000, at + 10, ProbeWatch())
    assert any(at <= batch <= at + 2 for batch in considered)


def test_the_credit_survives_a_restart() -> None:
    watch = ProbeWatch()
    watched(lambda batch: 100 if batch < 50 else 1000, 51, watch)
    stored = json.loads(json.dumps(to_json(watch)))
    assert json.loads(json.dumps(to_json(from_json(ProbeWatch, stored)))) == stored
    assert 0 < stored["credit"] < MAX_CREDIT + 4 * (read_cost(10) + replan_cost(10))


def test_with_many_joins_each_is_checked_at_the_rate_it_earns_credit() -> None:
    """Paths that produce more per tuple earn checks sooner; a single join is checked equally often either way."""
    glances = {}
    for matches in (10, 100):
        for joins in (1, 1000):
            watch, runner, glances[matches, joins] = ProbeWatch(), Path10(0), 0
            runners: Any = {f"s{number}": runner for number in range(10)}
            for batch in range(200):
                runner.push(1000, matches)
                watch.new_tuples += 1000
                watch.is_ready(runners, batch * 1_000_000, 1_000_000, joins)
                glances[matches, joins] += watch.new_tuples == 0
    assert glances[10, 1] == glances[100, 1] >= 100
    assert glances[10, 1000] < glances[100, 1000] < glances[100, 1]
