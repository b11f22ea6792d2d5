"""When a difference counts: intervals over draws, and the claims that follow from them.

A number that was drawn several times is given as its median; beside it stands an interval that holds the true median in at least 95
of 100 cases, whatever the distribution: from the second smallest to the second largest of ten. Fewer than six cannot be so sure:
there the interval is all of them. A share of many draws has Wilson's interval, of the same confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.report import Claim

Numbers: TypeAlias = NDArray[np.float64]
Band: TypeAlias = tuple[float, float]
TINY = 1e-9
BELOW: Band = (0.0, 1.0 - TINY)
"""Ratios that say: less."""
ABOVE: Band = (1.0 + TINY, np.inf)
"""Ratios that say: more."""


def interval(numbers: Numbers) -> tuple[float, float, float]:
    """The median, and what it lies between.

    >>> [float(value) for value in interval(np.arange(10.0))]
    [4.5, 1.0, 8.0]
    """
    count, inner = len(numbers), 0
    while 2 * sum(comb(count, more) for more in range(inner + 2)) <= 0.05 * 2**count:
        inner += 1
    ordered = np.sort(numbers)
    return float(np.median(numbers)), float(ordered[inner]), float(ordered[count - 1 - inner])


def share(cases: Sequence[Any] | NDArray[np.bool_]) -> tuple[float, float, float]:
    """The share of cases that are true, and what the true share lies between.

    >>> [round(value, 3) for value in share([True] * 9 + [False])]
    [0.9, 0.596, 0.982]
    """
    count, found, z = len(cases), float(np.mean(cases)), 1.959964
    middle, half = found + z * z / (2 * count), z * sqrt(found * (1 - found) / count + z * z / (4 * count * count))
    low, high = ((middle + side * half) / (1 + z * z / count) for side in (-1, 1))
    return found, max(0.0, low), min(1.0, high)


def within(place: str, says: str, cells: Sequence[Numbers], band: Band, what: str, because: str) -> Claim:
    """A claim that a median lies between two numbers: it agrees if the whole interval does, in every cell."""
    intervals = [interval(cell) for cell in cells]
    inside = [band[0] <= low and high <= band[1] for _, low, high in intervals]
    likely = all(band[0] <= middle <= band[1] for middle, _, _ in intervals)
    if likely:
        because = "the medians are as stated, but the draws differ too much to be sure of it"
    if len(cells) == 1:
        middle, low, high = intervals[0]
        measured = f"{middle:.3f} ({low:.3f} to {high:.3f}){what}"
    else:
        medians = [middle for middle, _, _ in intervals]
        measured = f"{min(medians):.3f} to {max(medians):.3f}{what}; so in {sum(inside)} of {len(inside)} cases"
    unsure = ", though all medians are" if likely and not all(inside) else ""
    return Claim(place, says, measured + unsure, all(inside), because)
