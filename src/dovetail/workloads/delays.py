"""Random durations: lags between events, and delays from an event to its arrival."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1

import numpy as np

from dovetail.workloads import checks
from dovetail.workloads.arrivals import SECOND, Integers

LONGEST = 8
"""Longest lag, in mean lags. The cut removes 0.03 % of an exponential distribution and lowers its mean by 0.3 %."""


def lags(rng: np.random.Generator, mean: float, shape: int | tuple[int, ...]) -> Integers:
    """Draw exponential lags in microseconds, truncated at `LONGEST` times the mean, which is in seconds."""
    covered = -expm1(-LONGEST)
    return (-mean * SECOND * np.log1p(-covered * rng.random(shape))).astype(np.int64)


def longest_lag(mean: float) -> int:
    """Return an upper bound, in microseconds, of lags with this mean in seconds."""
    return int(LONGEST * mean * SECOND) + 1


@dataclass(frozen=True)
class Delay:
    """Delays from event time to arrival, which make tuples arrive out of order, and some of them late.

    Without `lateness` every tuple arrives at its event time.
    """

    mean: float = 0.0
    """Mean of the exponential delay in seconds; delays are cut off at the lateness."""
    lateness: float = 0.0
    """Lateness in seconds that the stream should declare; all tuples but the late ones arrive sooner."""
    late_share: float = 0.0
    """Fraction of tuples that arrive later than that."""
    late_by: float = 1.0
    """Late tuples exceed the lateness by one to two times this many seconds; with batches no longer than this, all are late."""

    def __post_init__(self) -> None:
        for name in ("mean", "lateness"):
            checks.within(f"delay: {name}", getattr(self, name), 0)
        checks.within("delay: late_share", self.late_share, 0, 1)
        checks.above("delay: late_by", self.late_by)

    @property
    def longest(self) -> int:
        """Upper bound of all delays, in microseconds."""
        return int((self.lateness + (2 * self.late_by if self.late_share else 0)) * SECOND) + 1

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """Draw the delays of `count` tuples, in microseconds."""
        on_time = (self.mean * SECOND * rng.standard_exponential(count)).astype(np.int64)
        on_time = np.minimum(on_time, max(0, int(self.lateness * SECOND) - 1))
        if not self.late_share:
            return on_time
        late = (self.lateness + (1 + rng.random(count)) * self.late_by) * SECOND
        return np.where(rng.random(count) < self.late_share, late.astype(np.int64), on_time)
