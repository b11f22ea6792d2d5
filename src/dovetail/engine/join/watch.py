"""Monitor the probes of a join, decide when to plan its probe orders again, and record the changes.

`PathRunner` counts the probes. `ProbeWatch` uses its counters in three ways, each far more expensive than the one before:

- a *check*, after about a thousand new tuples, compares what each path produced per new tuple: a few microseconds;
- a *read* takes the counts of every probe since the last check. Older counts fade as newer ones arrive. The memory is measured in
  probes, not in time: a busy query detects a drift within a batch, and a quiet one is not misled by three tuples;
- a *replan* chooses probe orders again when the selectivity of a probe or the size of a window has left the range it had at the last
  replan, and otherwise ever more rarely. Joins that share stages are planned together, once they have saved enough credit for all.

Watching is paid from credit, `CREDIT_FRACTION` of the tuples that the joins produce, so its fraction of the time does not depend on
the width of a join. Most of the credit is reserved for checks that find a drift. Credit is counted in tuples, never in seconds: equal
batches lead to equal orders on any machine.

The measured cost of each order is recorded too. Estimates can promise a gain from each of two orders to the other, again and again;
an order that was tried without gain is not tried again until the costs drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Protocol

from dovetail.codec import LARGEST, Count, Positive, Size, Time
from dovetail.engine.join.path import PathRunner
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.plan.query_plan import QueryPlan, SharingJoin
from dovetail.stats.probes import PathCost, ProbeCounts, ProbeKey, ProbeOrderChange, QueryStats

ORDER_MEMORY_PROBES = 1000
"""Probes over which the counts of one kind of probe are averaged."""
CHECK_AFTER = 1000
"""New tuples between two checks; proportionally more above `WIDE_JOIN` inputs, and up to this many for each join of the group until
the next check is paid for."""
WIDE_JOIN = 5
"""Inputs above which a join is checked less often."""
CHECK_COST = 200
"""Cost of a check per input, in tuples."""
MANY_JOINS = 16
"""Joins of a group above which each has less credit."""
MIN_NEW_TUPLES = 50
"""New tuples of a driver that a check needs to detect a drift of its path."""
CREDIT_FRACTION = 0.02
"""Credit for each tuple that a stage produces, in tuples of some 30 nanoseconds."""
MAX_CREDIT = 200_000
"""Largest credit, besides the cost of four reads and replans; less above `MANY_JOINS` joins, which start with half of both."""
RESERVE = 0.75
"""Fraction of the largest credit that is reserved for drifts."""
MAX_PATIENCE = 64
"""Largest number of reads between two replans without a drift."""
ORDER_DRIFT_FACTOR = 1.5
"""Factor by which a selectivity or the size of a window must change to count as a drift."""
MAX_AGE = 1000
"""Reads after which the counts of a probe are dropped if it was not made again."""
JOINT_REPLAN_FACTOR = 2
"""Cost of planning joins together, relative to planning them one after another."""
MAX_CHANGES = 100
"""Number of recorded changes."""


class Replan(Protocol):
    """Chooses new probe orders."""

    def __call__(self, plan: QueryPlan, measured: QueryStats) -> tuple[QueryPlan, list[ProbeOrderChange]] | None:
        """Return a plan with new orders and estimates, and its changes; None if there are too few samples."""

    @property
    def can_share_orders(self) -> bool:
        """Whether the orders of paths that share stages are chosen together."""

    def replan_sharing(
        self, joins: Mapping[str, SharingJoin]
    ) -> Mapping[str, tuple[QueryPlan, list[ProbeOrderChange]]]:
        """Return new plans and changes of joins that share stages, by name; omit those with too few samples."""


@dataclass(slots=True)
class ProbeWatch:
    """Statistics of one join's probes, for its probe orders; `RuntimeStats` serves the shared plan.

    Snapshots hold the fields.
    """

    probe_counts: dict[ProbeKey, ProbeCounts] = field(default_factory=dict, metadata={"name": "found"})
    rates: dict[str, Positive] = field(default_factory=dict)
    """By driver, new tuples per second of event time."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """By alias, tuples in its window."""
    order_costs: dict[str, dict[tuple[str, ...], PathCost]] = field(default_factory=dict, metadata={"name": "tried"})
    """By driver, the measured cost of each order that ran."""
    changes: list[ProbeOrderChange] = field(default_factory=list)
    new_tuples: Count = field(default=0, metadata={"name": "fresh"})
    """New tuples since the last check."""
    check_after: Count = field(default=0, metadata={"name": "wait"})
    """New tuples that pay for the next check."""
    credit: Annotated[float, (-LARGEST, inf)] = inf
    """Tuples that watching may still cost; infinite until the first check, which caps it."""
    counters_at_check: dict[str, tuple[Count, Count]] = field(default_factory=dict, metadata={"name": "seen"})
    """By driver, at the last check: its new tuples so far, and all that its path had produced, including these."""
    costs: dict[str, Size] = field(default_factory=dict)
    """By driver, at the last read: tuples that its path produced per new tuple."""
    time: Time | None = None
    """Event time of the last check or read."""
    ready_at: Time | None = None
    """Event time at which windows have filled: until then there are no reads."""
    patience: Count = 1
    """Reads without a drift until the next replan; doubled by each."""
    reads_since_replan: Count = field(default=0, metadata={"name": "skipped"})
    baseline: dict[ProbeKey, Size] = field(default_factory=dict, metadata={"name": "settled"})
    """Selectivities at the last replan and, under keys without inputs, the size of each window."""
    pending_changes: dict[str, Count] = field(default_factory=dict, metadata={"name": "unmeasured"})
    """Index in `changes` of each driver's last change while its measured cost is pending."""
    skipped_joint_replans: Count = field(default=0, metadata={"name": "waits"})
    """Replans that were due since the last joint replan of the joins that share stages."""

    def is_ready(self, runners: Mapping[str, PathRunner], time: int, span: int, joins: int = 1) -> bool:
        """Whether to read the counters now; not before windows of `span` us have filled. `joins`: group size."""
        due = max(min(self.check_after, CHECK_AFTER * joins), CHECK_AFTER * max(WIDE_JOIN, len(runners)) / WIDE_JOIN)
        if self.new_tuples < due or time <= LONG_AGO:
            return False
        new_tuples, self.new_tuples = self.new_tuples, 0
        if self.ready_at is None:
            self.ready_at = time + span
        if time < self.ready_at:
            return False
        price = read_cost(len(runners)) + replan_cost(len(runners))
        drifted = self._check_costs(runners, new_tuples)
        max_credit = MAX_CREDIT * MANY_JOINS / max(MANY_JOINS, joins) + 4 * price
        self.credit = min(self.credit, max_credit if self.credit < inf or joins <= MANY_JOINS else max_credit / 2)
        # After a drift less credit suffices: the drift may go on until the contents of the windows have been replaced.
        min_credit = 2 * price if self.patience == 1 else RESERVE * max_credit
        if self.time is not None and self.credit >= (price if drifted else min_credit):
            return True
        self.time = time
        for runner in runners.values():
            runner.discard_recent_counts()
        return False

    def _check_costs(self, runners: Mapping[str, PathRunner], new_tuples: int) -> bool:
        """Add credit for `new_tuples`; return whether the cost of a path has drifted since the last read.

        Each path of a shared stage counts a fraction of its output. The next check is due when the tuples at this rate pay for it.
        """
        drifted, credited = False, 0.0
        for driver, runner in runners.items():
            new_before, total_before = self.counters_at_check.get(driver, (0, 0))
            self.counters_at_check[driver] = new, total = runner.produced
            new, produced = new - new_before, total - total_before
            credited += produced * runner.cost_fraction
            if new >= MIN_NEW_TUPLES:
                drifted |= (
                    not 1 / ORDER_DRIFT_FACTOR < produced / new / (1 + self.costs.get(driver, 0.0)) < ORDER_DRIFT_FACTOR
                )
        self.credit += CREDIT_FRACTION * credited
        self.check_after = int(CHECK_COST * len(runners) * new_tuples / (CREDIT_FRACTION * max(credited, 1.0)))
        return drifted

    def read_counters(self, runners: Mapping[str, PathRunner], time: int) -> bool:
        """Read the runners' counters; return whether to plan the probe orders again."""
        read_price, replan_price = read_cost(len(runners)), replan_cost(len(runners))
        self.credit -= read_price
        seconds = (time - self.time) / 1e6 if self.time is not None and time > self.time else None
        self.time = time
        self.probe_counts = {key: counts for key, counts in self.probe_counts.items() if counts.age < MAX_AGE}
        for counts in self.probe_counts.values():
            counts.age += 1
        recent: dict[ProbeKey, ProbeCounts] = {}
        for driver, runner in runners.items():
            stages = runner.take_recent_counts()
            new_tuples = stages[0][2]
            if not new_tuples:
                continue
            rate = new_tuples / (seconds or 1.0)
            self.rates[driver] = (self.rates[driver] + rate) / 2 if driver in self.rates else rate
            cost = PathCost(*(sum(stage[kind] for stage in stages[1:]) / new_tuples for kind in (2, 1)))
            self._record_change_cost(driver, cost.produced)
            self._record_cost(driver, runner.path.order[1:], cost)
            for key, counts in _probe_counts(runner.path.order, stages):
                recent[key] = recent.get(key, ProbeCounts()) + counts
        drifted = False
        for key, counts in recent.items():
            drifted |= self._record_probe(key, counts)
        self._measure_sizes()
        for alias, size in self.sizes.items():
            drifted |= _has_drifted(self.baseline.get((frozenset(), alias)), size)
        self.reads_since_replan += 1
        # Without a drift, keep enough credit for the next one.
        overdue = self.reads_since_replan >= self.patience and self.credit >= read_price + 2 * replan_price
        if self.credit < replan_price or not (drifted or overdue):
            return False
        self.credit -= replan_price
        self.patience = 1 if drifted else min(2 * self.patience, MAX_PATIENCE)
        self.reads_since_replan = 0
        self.baseline = {key: counts.selectivity or 0.0 for key, counts in self.probe_counts.items()}
        self.baseline |= {(frozenset(), alias): size for alias, size in self.sizes.items()}
        return True

    def _record_probe(self, key: ProbeKey, recent: ProbeCounts) -> bool:
        """Add recent counts of a probe, over all drivers; return whether its selectivity has drifted."""
        self.probe_counts[key] = self.probe_counts.get(key, ProbeCounts()).followed_by(recent, ORDER_MEMORY_PROBES)
        return _has_drifted(self.baseline.get(key), self.probe_counts[key].selectivity)

    def _record_cost(self, driver: str, order: tuple[str, ...], cost: PathCost) -> None:
        """Record the cost of an order; if it has drifted, drop the costs of the driver's other orders."""
        before = self.order_costs.get(driver, {}).get(order, cost)
        if not 1 / ORDER_DRIFT_FACTOR < (1 + before.produced) / (1 + cost.produced) < ORDER_DRIFT_FACTOR:
            self.order_costs[driver] = {}
            before = cost
        self.order_costs.setdefault(driver, {})[order] = before.mean(cost)
        self.costs[driver] = cost.produced

    def _measure_sizes(self) -> None:
        """Set the size of each window to the average over the probes of this read."""
        recent: dict[str, list[ProbeCounts]] = {}
        for (_, alias), counts in self.probe_counts.items():
            if counts.age == 0:
                recent.setdefault(alias, []).append(counts)
        for alias, probes in recent.items():
            self.sizes[alias] = sum(counts.pairs for counts in probes) / sum(counts.probes for counts in probes)

    def _record_change_cost(self, driver: str, produced: float) -> None:
        if driver in self.pending_changes:
            index = self.pending_changes.pop(driver)
            self.changes[index] = replace(self.changes[index], measured_after=produced)

    def record_changes(self, changes: list[ProbeOrderChange], runners: Mapping[str, PathRunner], batch: int) -> None:
        """Record the changes of a new plan; `runners` are those of the old plan."""
        if len(self.changes) + len(changes) > MAX_CHANGES:
            del self.changes[: len(changes)]
            self.pending_changes.clear()
        for change in changes:
            measured = runners[change.driver].produced_per_tuple
            self.pending_changes[change.driver] = len(self.changes)
            self.counters_at_check.pop(change.driver, None)
            self.changes.append(replace(change, measured_before=measured, batch=batch))

    @property
    def measured(self) -> QueryStats:
        return QueryStats(self.rates, self.sizes, self.probe_counts, self.order_costs)


def _has_drifted(before: float | None, after: float | None) -> bool:
    """Whether a value has left the range of `ORDER_DRIFT_FACTOR` around its value at the last replan."""
    return bool(after and (not before or not before / ORDER_DRIFT_FACTOR < after < before * ORDER_DRIFT_FACTOR))


def read_cost(width: int) -> float:
    """Return the cost of reading the counters of a join of `width` inputs, in tuples."""
    return 1500 + 200 * width**2


def replan_cost(width: int) -> float:
    """Return the cost of planning the probe orders of a join of `width` inputs, in tuples."""
    return 12_000 + 18 * width**4


def _probe_counts(order: tuple[str, ...], stages: list[list[int]]) -> Iterator[tuple[ProbeKey, ProbeCounts]]:
    """Yield the counts of each stage of a path, up to the first one without probes."""
    for depth in range(1, len(order)):
        probes, _, matches, pairs = stages[depth]
        if not probes:
            return
        yield (frozenset(order[:depth]), order[depth]), ProbeCounts(probes, pairs, matches)
