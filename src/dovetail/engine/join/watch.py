"""What a query's probes have found lately, and which changes of its plan came of it.

Probes are counted where they happen (`PathRunner`), and there are three ways to use the counters, each far dearer than the one before:

- a *glance*, after a thousand new tuples, asks what each path has produced per new tuple: a few microseconds;
- a *look* reads what every probe has found since the last glance. Older findings are forgotten as newer ones fill the memory, which is
  counted in probes and not in time: a busy query notices a drift within a batch, a quiet one is not led astray by three tuples;
- orders are *considered* when a probe's selectivity, or the size of a window, has left the range it had when they last were, and
  else ever more rarely. Joins that share stages pay, and wait until they have paid for all of them to be considered together.

Watching pays with credit, which is `SHARE` of the tuples that the joins produce, so it costs the same part of the time whatever the
width of a join. Most of the credit is kept for glances that find a drift. Credit is counted in tuples, never in seconds: the same
batches are followed by the same orders on any machine.

What an order really cost is remembered too. An estimate can promise the same gain again and again, from each of two orders to the
other; an order that was tried and was no better is not tried again until the costs drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Protocol

from dovetail.codec import LARGEST, Count, Positive, Size, Time
from dovetail.engine.join.path import PathRunner
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.plan.query_plan import QueryPlan, Sharing
from dovetail.stats.probes import Cost, Measured, ProbeCounts, ProbeKey, ProbeOrderChange

MEMORY = 1000
"""Probes of one kind that are remembered."""
LOOK_AFTER = 1000
"""New tuples between two glances at the counters; more from `WIDE` inputs on, in proportion, and up to so many for each join if
there are several, until a glance is paid for."""
WIDE = 5
GLANCE = 200
"""What a glance costs for each input, in tuples."""
MANY = 16
"""Joins from which on each has less credit."""
LEAST_NEW = 50
"""New tuples of one driver that a glance judges its path by."""
SHARE = 0.02
"""What watching may cost, in tuples, for each tuple that a stage produces: some 30 nanoseconds."""
MOST_CREDIT = 200_000
"""Tuples that watching may cost at once, besides looking and considering orders four times; less from `MANY` joins on, which begin
with half of both."""
RESERVE = 0.75
"""The part of that which is kept for drifts."""
MOST_PATIENCE = 64
"""How many looks may pass before orders are considered again though nothing drifts."""
DRIFT = 1.5
"""The factor by which a selectivity, or the size of a window, must change to be a drift."""
OLDEST = 1000
"""Looks after which what a probe found is forgotten, if no such probe was made again."""
TOGETHER = 2
"""How many times dearer it is to consider the orders of joins together than one after another."""
MOST_CHANGES = 100
"""Changes that are remembered."""


class Replan(Protocol):
    """Chooses new orders."""

    def __call__(self, plan: QueryPlan, measured: Measured) -> tuple[QueryPlan, list[ProbeOrderChange]] | None:
        """A plan with the orders to go on with and its estimates, and what it changes; None if there is nothing to go by."""

    @property
    def chooses_together(self) -> bool:
        """Whether orders of paths that share stages are chosen together."""

    def together(self, joins: Mapping[str, Sharing]) -> Mapping[str, tuple[QueryPlan, list[ProbeOrderChange]]]:
        """The same for joins that share stages, by name; those are left out of which too little is known."""


@dataclass(slots=True)
class ProbeWatch:
    """One query's statistics."""

    found: dict[ProbeKey, ProbeCounts] = field(default_factory=dict)
    rates: dict[str, Positive] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    tried: dict[str, dict[tuple[str, ...], Cost]] = field(default_factory=dict)
    changes: list[ProbeOrderChange] = field(default_factory=list)
    fresh: Count = 0
    """New tuples since the last glance."""
    wait: Count = 0
    """How many there have to be for the next."""
    credit: Annotated[float, (-LARGEST, inf)] = inf
    """Tuples that watching may still cost; what the first glance finds is too much."""
    seen: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    """By driver, at the last glance: its new tuples so far, and all that its path had produced, these included."""
    costs: dict[str, Size] = field(default_factory=dict)
    """By driver, at the last look: what its path produced per new tuple."""
    time: Time | None = None
    ready_at: Time | None = None
    patience: Count = 1
    skipped: Count = 0
    settled: dict[ProbeKey, Size] = field(default_factory=dict)
    """When orders were last considered: selectivities, and, as steps after no input, the rows that probes met in each window."""
    unmeasured: dict[str, Count] = field(default_factory=dict)
    """Drivers whose last change waits for its measured cost."""
    waits: Count = 0
    """How often orders should have been considered since they last were, together with those of joins that share stages."""

    def is_ready(self, runners: Mapping[str, PathRunner], time: int, span: int, joins: int = 1) -> bool:
        """Whether to look now; not before windows of `span` microseconds have filled for the first time. `joins`: of the group."""
        due = max(min(self.wait, LOOK_AFTER * joins), LOOK_AFTER * max(WIDE, len(runners)) / WIDE)
        if self.fresh < due or time <= LONG_AGO:
            return False
        fresh, self.fresh = self.fresh, 0
        if self.ready_at is None:
            self.ready_at = time + span
        if time < self.ready_at:
            return False
        look, price = look_cost(len(runners)), consider_cost(len(runners))
        drifted = self._glance(runners, fresh)
        most = MOST_CREDIT * MANY / max(MANY, joins) + 4 * (look + price)
        self.credit = min(self.credit, most if self.credit < inf or joins <= MANY else most / 2)
        # What has drifted may still be on its way: windows change places in the time that they last.
        least = 2 * (look + price) if self.patience == 1 else RESERVE * most
        if self.time is not None and self.credit >= (look + price if drifted else least):
            return True
        self.time = time
        for runner in runners.values():
            runner.forget()
        return False

    def _glance(self, runners: Mapping[str, PathRunner], fresh: int) -> bool:
        """Take credit for what `fresh` tuples were joined with; say whether a path's cost has drifted since the last look.

        What joins share is counted once, in parts. The next glance is due when as many tuples will have paid for it.
        """
        drifted, paid = False, 0.0
        for driver, runner in runners.items():
            before = self.seen.get(driver, (0, 0))
            self.seen[driver] = new, whole = runner.produced
            new, made = new - before[0], whole - before[1]
            paid += made * runner.part
            if new >= LEAST_NEW:
                drifted |= not 1 / DRIFT < made / new / (1 + self.costs.get(driver, 0.0)) < DRIFT
        self.credit += SHARE * paid
        self.wait = int(GLANCE * len(runners) * fresh / (SHARE * max(paid, 1.0)))
        return drifted

    def look(self, runners: Mapping[str, PathRunner], time: int) -> bool:
        """Read the counters; say whether orders should be considered."""
        looking, price = look_cost(len(runners)), consider_cost(len(runners))
        self.credit -= looking
        seconds = (time - self.time) / 1e6 if self.time is not None and time > self.time else None
        self.time = time
        self.found = {step: found for step, found in self.found.items() if found.age < OLDEST}
        for found in self.found.values():
            found.age += 1
        newer: dict[ProbeKey, ProbeCounts] = {}
        for driver, runner in runners.items():
            new = runner.since_last()
            if not new[0][2]:
                continue
            rate = new[0][2] / (seconds or 1.0)
            self.rates[driver] = (self.rates[driver] + rate) / 2 if driver in self.rates else rate
            cost = Cost(*(sum(counted[kind] for counted in new[1:]) / new[0][2] for kind in (2, 1)))
            self._note_change(driver, cost.produced)
            self._note_cost(driver, runner.path.order[1:], cost)
            for step, found in _steps(runner.path.order, new):
                newer[step] = newer.get(step, ProbeCounts()) + found
        drifted = False
        for step, found in newer.items():
            drifted |= self._note_step(step, found)
        self._measure_sizes()
        for alias, size in self.sizes.items():
            drifted |= _left_range(self.settled.get((frozenset(), alias)), size)
        self.skipped += 1
        # Without a drift, enough is left to answer one.
        calm = self.skipped >= self.patience and self.credit >= looking + 2 * price
        if self.credit < price or not (drifted or calm):
            return False
        self.credit -= price
        self.patience = 1 if drifted else min(2 * self.patience, MOST_PATIENCE)
        self.skipped = 0
        self.settled = {step: found.selectivity or 0.0 for step, found in self.found.items()}
        self.settled |= {(frozenset(), alias): size for alias, size in self.sizes.items()}
        return True

    def _note_step(self, step: ProbeKey, newer: ProbeCounts) -> bool:
        """Take note of what a probe has found, whatever the driver; say whether its selectivity left its range."""
        self.found[step] = self.found.get(step, ProbeCounts()).followed_by(newer, MEMORY)
        return _left_range(self.settled.get(step), self.found[step].selectivity)

    def _note_cost(self, driver: str, order: tuple[str, ...], cost: Cost) -> None:
        """Take note of what an order costs; when that has drifted, what others cost once says nothing any more."""
        before = self.tried.get(driver, {}).get(order, cost)
        if not 1 / DRIFT < (1 + before.produced) / (1 + cost.produced) < DRIFT:
            self.tried[driver] = {}
            before = cost
        self.tried.setdefault(driver, {})[order] = before.mean(cost)
        self.costs[driver] = cost.produced

    def _measure_sizes(self) -> None:
        """The rows that probes met in each window, on average over the recent ones."""
        recent: dict[str, list[ProbeCounts]] = {}
        for (_, alias), found in self.found.items():
            if found.age == 0:
                recent.setdefault(alias, []).append(found)
        for alias, steps in recent.items():
            self.sizes[alias] = sum(found.pairs for found in steps) / sum(found.probes for found in steps)

    def _note_change(self, driver: str, produced: float) -> None:
        if driver in self.unmeasured:
            number = self.unmeasured.pop(driver)
            self.changes[number] = replace(self.changes[number], measured_after=produced)

    def changed(self, changes: list[ProbeOrderChange], runners: Mapping[str, PathRunner], batch: int) -> None:
        """Take note of a new plan; `runners` are those of the old one."""
        if len(self.changes) + len(changes) > MOST_CHANGES:
            del self.changes[: len(changes)]
            self.unmeasured.clear()
        for change in changes:
            measured = runners[change.driver].produced_lately
            self.unmeasured[change.driver] = len(self.changes)
            self.seen.pop(change.driver, None)
            self.changes.append(replace(change, measured_before=measured, batch=batch))

    @property
    def measured(self) -> Measured:
        return Measured(self.rates, self.sizes, self.found, self.tried)


def _left_range(before: float | None, after: float | None) -> bool:
    """Whether something has drifted since orders were last considered."""
    return bool(after and (not before or not before / DRIFT < after < before * DRIFT))


def look_cost(width: int) -> float:
    """Tuples that a join of so many inputs produces while its counters are read."""
    return 1500 + 200 * width**2


def consider_cost(width: int) -> float:
    """The same while its orders are considered."""
    return 12_000 + 18 * width**4


def _steps(order: tuple[str, ...], counted: list[list[int]]) -> Iterator[tuple[ProbeKey, ProbeCounts]]:
    """What was found along a path, as far as anything came."""
    for place in range(1, len(order)):
        probes, _, matches, offered = counted[place]
        if not probes:
            return
        yield (frozenset(order[:place]), order[place]), ProbeCounts(probes, offered, matches)
