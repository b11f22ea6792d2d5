"""Measured and expected work of probe paths; plans are chosen and explained by these numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dovetail.codec import Count, Size, optional

ProbeKey: TypeAlias = tuple[frozenset[str], str]
"""A probe: the aliases joined so far, and the alias whose window is probed."""


@dataclass(slots=True)
class ProbeCounts:
    """Counters of all probes with the same `ProbeKey`."""

    probes: Size = 0.0
    pairs: Size = 0.0
    """Probes times the tuples in the probed window."""
    matches: Size = 0.0
    age: Count = 0
    """Readings of the counters since the last of these probes."""

    @property
    def selectivity(self) -> float | None:
        """Fraction of pairs that matched; without any match, that of half a match."""
        return max(self.matches, 0.5) / self.pairs if self.pairs else None

    def __add__(self, other: ProbeCounts) -> ProbeCounts:
        return ProbeCounts(self.probes + other.probes, self.pairs + other.pairs, self.matches + other.matches)

    def followed_by(self, newer: ProbeCounts, memory: float) -> ProbeCounts:
        """Return these counts decayed by the fraction of `memory` probes that `newer` fills, plus `newer`."""
        weight = max(0.0, 1.0 - newer.probes / memory)
        return ProbeCounts(self.probes * weight, self.pairs * weight, self.matches * weight) + newer


Objective: TypeAlias = Literal["produced", "comparisons"]
"""The unit of a cost: tuples produced, or tuples compared."""


class PathCost(NamedTuple):
    """Cost of a path per new tuple."""

    produced: Size
    """Partial and final results."""
    comparisons: Size
    """Tuples compared."""

    def mean(self, other: PathCost) -> PathCost:
        return PathCost((self.produced + other.produced) / 2, (self.comparisons + other.comparisons) / 2)


@dataclass(frozen=True)
class QueryStats:
    """Recent measurements of one query."""

    rates: Mapping[str, float]
    """New tuples of each alias per second of event time."""
    sizes: Mapping[str, float]
    """Tuples in each alias's window."""
    probe_counts: Mapping[ProbeKey, ProbeCounts]
    order_costs: Mapping[str, Mapping[tuple[str, ...], PathCost]] = field(default_factory=dict)
    """Measured cost of each path, by driver and order without the driver; a path no longer in use keeps its last cost."""
    tau: float | None = None
    """Seconds of event time in the latest batch, if known."""

    def gain(
        self, driver: str, old_order: tuple[str, ...], new_order: tuple[str, ...], objective: Objective
    ) -> float | None:
        """Return the measured cost ratio of two orders, counting the new tuple; None unless both are known."""
        costs = self.order_costs.get(driver, {})
        if old_order not in costs or new_order not in costs:
            return None
        old_cost, new_cost = (getattr(costs[order], objective) for order in (old_order, new_order))
        return float((1 + old_cost) / (1 + new_cost))


@dataclass(frozen=True, slots=True)
class PathEstimate:
    """Expected work of one input's path, and the best alternative that was considered."""

    rows: tuple[float, ...]
    """Partial results after each stage, per new tuple; the first stage is the new tuple itself."""
    cost: float
    """Tuples produced (or compared) per second."""
    other: tuple[str, ...] = ()
    other_cost: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeOrderChange:
    """Replacement of one input's probe order."""

    driver: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    predicted_before: float
    """Tuples produced per new tuple, by the statistics at the time of the change."""
    predicted_after: float
    measured_before: float | None = None
    measured_after: float | None = None
    batch: int = 0


@dataclass(frozen=True)
class PlanEstimate:
    """Expected work of a query's paths, by driver."""

    paths: Mapping[str, PathEstimate] = field(default_factory=dict)
    is_measured: bool | None = optional()
    """Whether it rests on an engine's measurements alone."""
