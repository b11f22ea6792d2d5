"""How long tuples take: from one event to the next, and from an event to its arrival."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1

import numpy as np

from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND, Integers

LONGEST = 8
"""Of mean lags: none is longer. That leaves out 0.03 % of an exponential distribution, and 0.3 % of its mean."""


def lags(rng: np.random.Generator, mean: float, shape: int | tuple[int, ...]) -> Integers:
    """Draw microseconds from an exponential distribution with a mean in seconds, cut off at `LONGEST` times that."""
    reached = -expm1(-LONGEST)
    return (-mean * SECOND * np.log1p(-reached * rng.random(shape))).astype(np.int64)


def longest_lag(mean: float) -> int:
    """Microseconds that no lag with such a mean exceeds."""
    return int(LONGEST * mean * SECOND) + 1


@dataclass(frozen=True)
class Delay:
    """How long after their event times tuples arrive: out of order, and some too late.

    Without `lateness` every tuple arrives at its event time.
    """

    mean: float = 0.0
    """Seconds, in an exponential distribution that is cut off at the lateness."""
    lateness: float = 0.0
    """Seconds that a stream should allow for; all tuples but the late ones arrive sooner."""
    late_share: float = 0.0
    """Of tuples that arrive later than that."""
    late_by: float = 1.0
    """Seconds by which these exceed the lateness: once to twice as many. If batches are no longer than that, all of them are late."""

    def __post_init__(self) -> None:
        for name in ("mean", "lateness"):
            checks.within(f"delay: {name}", getattr(self, name), 0)
        checks.within("delay: late_share", self.late_share, 0, 1)
        checks.above("delay: late_by", self.late_by)

    @property
    def longest(self) -> int:
        """Microseconds that no tuple exceeds."""
        return int((self.lateness + (2 * self.late_by if self.late_share else 0)) * SECOND) + 1

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """Draw microseconds for so many tuples."""
        usual = (self.mean * SECOND * rng.standard_exponential(count)).astype(np.int64)
        usual = np.minimum(usual, max(0, int(self.lateness * SECOND) - 1))
        if not self.late_share:
            return usual
        late = (self.lateness + (1 + rng.random(count)) * self.late_by) * SECOND
        return np.where(rng.random(count) < self.late_share, late.astype(np.int64), usual)
