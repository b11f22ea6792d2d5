"""Arrival processes: the expected number of tuples up to each moment, and their spacing.

A pattern gives the expected number of tuples up to any moment; it repeats after each period, and its mean is the given rate.

============  =========================================================================================================
uniform       constant rate
poisson       constant rate, at random moments
fast-slow     a quarter of the tuples at twice the mean rate, a quarter at two thirds of it, and again (Valsomatzis, Gounaris)
slow-fast     like fast-slow, but beginning with a slow quarter
sinusoid      a rate between one half and one and a half of the mean, two waves per period
b-model       bursts within bursts: time is halved ten times, each time with `bias` of the tuples in one half
============  =========================================================================================================

In the b-model the first half has more tuples, as in the datasets of Valsomatzis and Gounaris, or a random half (`turned`), as in Wang
et al. ("Data mining meets performance evaluation: fast algorithms for modeling bursty traffic").

Tuples are spaced evenly along the expected count, jittered (each at a random moment of its unit of the count), or at random, which
makes any pattern a Poisson process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dovetail.workloads import checks

SECOND = 1_000_000
PATTERNS = ("uniform", "poisson", "fast-slow", "slow-fast", "sinusoid", "b-model")
SPACINGS = ("even", "jittered", "random")
HALVINGS = 10
"""Number of times that the b-model halves a period."""
_STEPS = 1024
_SPACING = {"uniform": "even", "poisson": "random"}

Reals: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """The arrival process of a stream.

    >>> Arrivals(rate=4, pattern="uniform").times(np.random.default_rng(0), 0, 1_000_000)
    array([     0, 250000, 500000, 750000])
    """

    rate: float
    """Tuples per second, in the mean over a period."""
    pattern: str = "poisson"
    period: float = 60.0
    """Seconds after which the pattern repeats."""
    bias: float = 0.8
    """For the b-model: the fraction of the tuples in one half, the first one unless `turned`."""
    turned: bool = False
    """For the b-model: whether each half with more tuples is chosen at random."""
    spacing: str | None = None
    """None: even for `uniform`, random for `poisson`, otherwise jittered."""

    def __post_init__(self) -> None:
        checks.above("arrivals: rate", self.rate)
        checks.one_of("arrivals: pattern", self.pattern, PATTERNS)
        checks.above("arrivals: period", self.period)
        checks.within("arrivals: bias", self.bias, 0.01, 0.99)
        checks.one_of("arrivals: spacing", self.spacing, (None, *SPACINGS))

    def times(self, rng: np.random.Generator, first: int, last: int, key: Sequence[int] = (0,)) -> Integers:
        """Draw the sorted moments of the tuples from `first` until before `last`, in microseconds.

        `key` seeds the random halves of the b-model; it must be the same for all spans of a stream.
        """
        moments, counts = self.curve(first, last, key)
        begin, end = np.interp((first, last), moments, counts)
        spacing = self.spacing or _SPACING.get(self.pattern, "jittered")
        if spacing == "random":
            ranks = np.sort(rng.uniform(begin, end, rng.poisson(end - begin)))
        else:
            ranks = np.arange(ceil(begin), ceil(end), dtype=np.float64)
            if spacing == "jittered":
                ranks += rng.random(len(ranks))
        # A jittered rank may lie after the end of the span; its tuple must not.
        return np.clip(np.interp(ranks, counts, moments), first, last - 1).astype(np.int64)

    def count_before(self, moment: int, key: Sequence[int] = (0,)) -> int:
        """Return the number of evenly spaced tuples before a moment, in microseconds."""
        moments, counts = self.curve(moment, moment, key)
        return ceil(np.interp(moment, moments, counts))

    def curve(self, first: int, last: int, key: Sequence[int] = (0,)) -> tuple[Reals, Reals]:
        """Return moments that cover a span, and the expected tuples before each, which are linear between."""
        if self.pattern in ("uniform", "poisson"):
            moments = np.array((first, max(last, first + 1)), np.float64)
            return moments, moments * (self.rate / SECOND)
        length = self.period * SECOND
        cycles = range(int(first // length), max(ceil(last / length), int(first // length) + 1))
        parts = [(number, *self._cycle(number, key)) for number in cycles]
        moments = np.concatenate([*(number + at[:-1] for number, at, _ in parts), [cycles.stop]])
        fractions = np.concatenate([*(number + before[:-1] for number, _, before in parts), [cycles.stop]])
        return moments * length, fractions * (self.rate * self.period)

    def _cycle(self, number: int, key: Sequence[int]) -> tuple[Reals, Reals]:
        if self.pattern != "b-model" or not self.turned:
            return pattern_curve(self.pattern, self.bias)
        rng = np.random.default_rng([*key, number, HALVINGS])
        fractions = np.ones(1)
        for level in range(HALVINGS):
            first_half = np.where(rng.random(1 << level) < 0.5, self.bias, 1 - self.bias)
            fractions = np.stack((fractions * first_half, fractions * (1 - first_half)), axis=1).ravel()
        return np.linspace(0, 1, len(fractions) + 1), np.append(0.0, np.cumsum(fractions))


def pattern_curve(pattern: str, bias: float = 0.8) -> tuple[Reals, Reals]:
    """Return moments of a period, from 0 to 1, and the fraction of its tuples before each.

    >>> moments, fractions = pattern_curve("fast-slow")
    >>> moments.tolist(), fractions.tolist()
    ([0.0, 0.125, 0.5, 0.625, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if pattern in ("fast-slow", "slow-fast"):
        moments = np.array((0, 1, 4, 5, 8)) / 8
        return (moments if pattern == "fast-slow" else 1 - moments[::-1]), np.linspace(0, 1, 5)
    fractions = np.ones(1)
    if pattern == "sinusoid":
        middles = (np.arange(_STEPS) + 0.5) / _STEPS
        fractions = (1 + 0.5 * np.sin(4 * np.pi * middles)) / _STEPS
    elif pattern == "b-model":
        for _ in range(HALVINGS):
            fractions = np.concatenate((bias * fractions, (1 - bias) * fractions))
    return np.linspace(0, 1, len(fractions) + 1), np.append(0.0, np.cumsum(fractions))
