"""What was measured of a running query, and what was expected of it: the facts that plans are chosen by and explained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dovetail.codec import Count, Size

ProbeKey: TypeAlias = tuple[frozenset[str], str]
"""A probe: the aliases joined so far, and the alias whose window they meet."""


@dataclass(slots=True)
class ProbeCounts:
    """What probes of one kind have found."""

    probes: Size = 0.0
    pairs: Size = 0.0
    """Probes times the tuples in the window they met."""
    matches: Size = 0.0
    age: Count = 0
    """Looks at the counters since the last of these probes."""

    @property
    def selectivity(self) -> float | None:
        """The share of pairs that matched; where none did, less than one match."""
        return max(self.matches, 0.5) / self.pairs if self.pairs else None

    def __add__(self, other: ProbeCounts) -> ProbeCounts:
        return ProbeCounts(self.probes + other.probes, self.pairs + other.pairs, self.matches + other.matches)

    def followed_by(self, newer: ProbeCounts, memory: float) -> ProbeCounts:
        """The sum, with as much of the older part forgotten as the newer one fills of `memory` probes."""
        kept = max(0.0, 1.0 - newer.probes / memory)
        return ProbeCounts(self.probes * kept, self.pairs * kept, self.matches * kept) + newer


Objective: TypeAlias = Literal["produced", "comparisons"]
"""What a cost counts."""


class Cost(NamedTuple):
    """What a path costs for each new tuple."""

    produced: Size
    """Partial and final results."""
    comparisons: Size
    """Tuples looked at."""

    def mean(self, other: Cost) -> Cost:
        return Cost((self.produced + other.produced) / 2, (self.comparisons + other.comparisons) / 2)


@dataclass(frozen=True)
class Measured:
    """A query's recent past."""

    rates: Mapping[str, float]
    """New tuples of each alias per second of event time."""
    sizes: Mapping[str, float]
    """Tuples in each alias's window."""
    found: Mapping[ProbeKey, ProbeCounts]
    tried: Mapping[str, Mapping[tuple[str, ...], Cost]] = field(default_factory=dict)
    """By driver and order, the driver left out: the costs of paths, of those no longer taken as they were then."""
    tau: float | None = None
    """Seconds of event time in the latest batch, where that is known."""

    def gain(self, driver: str, before: tuple[str, ...], after: tuple[str, ...], objective: Objective) -> float | None:
        """How many times cheaper the second order was, the new tuple itself counted in; None unless both were tried."""
        tried = self.tried.get(driver, {})
        if before not in tried or after not in tried:
            return None
        first, second = (getattr(tried[order], objective) for order in (before, after))
        return float((1 + first) / (1 + second))


@dataclass(frozen=True, slots=True)
class PathEstimate:
    """What is expected of one input's path, and of the best other path that was considered."""

    rows: tuple[float, ...]
    """Partial results after each stage, per new tuple; the first stage is the new tuple itself."""
    cost: float
    """Tuples produced (or compared) per second."""
    other: tuple[str, ...] = ()
    other_cost: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeOrderChange:
    """One input's path was replaced."""

    driver: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    predicted_before: float
    """Tuples produced per new tuple, by the statistics of the moment."""
    predicted_after: float
    measured_before: float | None = None
    measured_after: float | None = None
    batch: int = 0


@dataclass(frozen=True)
class PlanEstimate:
    """What is expected of a query's paths, by driver."""

    paths: Mapping[str, PathEstimate] = field(default_factory=dict)
