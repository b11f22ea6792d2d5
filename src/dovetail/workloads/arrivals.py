"""When tuples come: how many are expected by each moment, and how they are spaced.

A pattern says how many tuples are expected up to any moment; it repeats after each period and has the given rate in the mean.

============  =========================================================================================================
uniform       the same rate all the time
poisson       the same, at random moments
fast-slow     quarters of the tuples that come at twice the mean rate and at two thirds of it, in turn (Valsomatzis, Gounaris)
slow-fast     the same, from a slow one on
sinusoid      a rate between half of the mean and one and a half, two waves in a period
b-model       bursts within bursts: time is halved ten times, each time with `bias` of the tuples in one half
============  =========================================================================================================

Which half of the b-model has more is the first one, as in the datasets of Valsomatzis and Gounaris, or drawn for each cut (`turned`),
as Wang et al. have it ("Data mining meets performance evaluation: fast algorithms for modeling bursty traffic").

Tuples are spaced evenly along the expected count, jittered (each at a random moment of its own share of it), or random, which makes
any pattern a Poisson process.
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
"""Of a period of the b-model."""
_STEPS = 1024
_SPACING = {"uniform": "even", "poisson": "random"}

Reals: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """When tuples of a stream come.

    >>> Arrivals(rate=4, pattern="uniform").times(np.random.default_rng(0), 0, 1_000_000)
    array([     0, 250000, 500000, 750000])
    """

    rate: float
    """Per second, in the mean over a period."""
    pattern: str = "poisson"
    period: float = 60.0
    """Seconds after which the pattern repeats."""
    bias: float = 0.8
    """Of the b-model: the share of the tuples in one half, the first one unless cuts are turned."""
    turned: bool = False
    spacing: str | None = None
    """None: even for `uniform`, random for `poisson`, else jittered."""

    def __post_init__(self) -> None:
        checks.above("arrivals: rate", self.rate)
        checks.one_of("arrivals: pattern", self.pattern, PATTERNS)
        checks.above("arrivals: period", self.period)
        checks.within("arrivals: bias", self.bias, 0.01, 0.99)
        checks.one_of("arrivals: spacing", self.spacing, (None, *SPACINGS))

    def times(self, rng: np.random.Generator, first: int, last: int, key: Sequence[int] = (0,)) -> Integers:
        """Draw the moments of the tuples that come from `first` until before `last`, in microseconds, sorted.

        `key` is what cuts of the b-model are turned by: the same for all spans of a stream.
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
        # The last share may reach beyond the span; its tuple does not.
        found = np.interp(ranks, counts, moments)
        return np.clip(found, first, last - 1).astype(np.int64)

    def first_number(self, moment: int, key: Sequence[int] = (0,)) -> int:
        """How many evenly spaced tuples come before a moment: the number of the first one from there on."""
        moments, counts = self.curve(moment, moment, key)
        return ceil(np.interp(moment, moments, counts))

    def curve(self, first: int, last: int, key: Sequence[int] = (0,)) -> tuple[Reals, Reals]:
        """Give moments in microseconds that cover a span, and the tuples expected before each: a line between any two."""
        if self.pattern in ("uniform", "poisson"):
            moments = np.array((first, max(last, first + 1)), np.float64)
            return moments, moments * (self.rate / SECOND)
        length = self.period * SECOND
        cycles = range(int(first // length), max(ceil(last / length), int(first // length) + 1))
        parts = [(number, *self._cycle(number, key)) for number in cycles]
        moments = np.concatenate([*(number + at[:-1] for number, at, _ in parts), [cycles.stop]])
        shares = np.concatenate([*(number + of[:-1] for number, _, of in parts), [cycles.stop]])
        return moments * length, shares * (self.rate * self.period)

    def _cycle(self, number: int, key: Sequence[int]) -> tuple[Reals, Reals]:
        if self.pattern != "b-model" or not self.turned:
            return pattern_curve(self.pattern, self.bias)
        rng = np.random.default_rng([*key, number, HALVINGS])
        shares = np.ones(1)
        for level in range(HALVINGS):
            left = np.where(rng.random(1 << level) < 0.5, self.bias, 1 - self.bias)
            shares = np.stack((shares * left, shares * (1 - left)), axis=1).ravel()
        return np.linspace(0, 1, len(shares) + 1), np.append(0.0, np.cumsum(shares))


def pattern_curve(pattern: str, bias: float = 0.8) -> tuple[Reals, Reals]:
    """Give moments of a period, from 0 to 1, and which share of its tuples comes before each.

    >>> moments, shares = pattern_curve("fast-slow")
    >>> moments.tolist(), shares.tolist()
    ([0.0, 0.125, 0.5, 0.625, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if pattern in ("fast-slow", "slow-fast"):
        moments = np.array((0, 1, 4, 5, 8)) / 8
        return (moments if pattern == "fast-slow" else 1 - moments[::-1]), np.linspace(0, 1, 5)
    shares = np.ones(1)
    if pattern == "sinusoid":
        middles = (np.arange(_STEPS) + 0.5) / _STEPS
        shares = (1 + 0.5 * np.sin(4 * np.pi * middles)) / _STEPS
    elif pattern == "b-model":
        for _ in range(HALVINGS):
            shares = np.concatenate((bias * shares, (1 - bias) * shares))
    return np.linspace(0, 1, len(shares) + 1), np.append(0.0, np.cumsum(shares))
