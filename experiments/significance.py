"""The one rule by which all statements of all papers are judged, and the intervals that it needs.

A number that was drawn several times is given as its median; beside it stands an interval that holds the true median in at least 95
of 100 cases, whatever the distribution: from the second smallest to the second largest of ten. Fewer than six cannot be so sure:
there the interval is all of them. A share of many draws has Wilson's interval, of the same confidence.

`RULE` says the rule in words. Each paper's module declares for every statement what it is about, by the function that it calls:
`always`, `within`, `happens` or `example`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.report import Claim

Numbers: TypeAlias = NDArray[np.float64]
Band: TypeAlias = tuple[float, float]
Interval: TypeAlias = tuple[float, float, float]
"""A number, and what it lies between."""
TINY = 1e-9
BELOW: Band = (0.0, 1.0 - TINY)
"""Ratios that say: less."""
ABOVE: Band = (1.0 + TINY, np.inf)
"""Ratios that say: more."""
YES: Band = (1.0, 1.0)
"""Of cases that are 1 if the statement holds, and 0 if not."""
ENOUGH = 0.95
"""The share of draws in which a statement about all cases has to hold."""
_UNSURE = "the draws differ too much to be sure of it"
RULE = (
    "Each statement is of one of four kinds. Its paper's module declares which, and the result files decide the rest:\n\n"
    f"- **all cases** (“always”, “for every tau”): it agrees if it holds in at least {ENOUGH:.0%} of the draws and no case "
    "contradicts it beyond measured noise. A case that was measured several times contradicts it if the whole interval of its median "
    "does; a case that was computed, or drawn once, has no noise, and one is enough. A smaller grid finds fewer of these, so "
    "agreement there is worth less than on the full one.\n"
    "- **median** (“about 20 % less”, a curve, a share): it agrees if the interval lies inside what is said, in every setting that "
    "it is about, and differs if the interval of one setting lies outside.\n"
    "- **can happen**: the opposite of a statement about all cases; it agrees if one case shows it.\n"
    "- **example**: a printed number or order; it agrees if ours is the same, rounded as the paper rounds.\n\n"
    "What is neither so nor otherwise is *too close to tell*. The interval of a median goes from the second smallest to the second "
    "largest of ten draws and holds the true one in at least 95 of 100 cases, whatever the distribution; with fewer than six draws it "
    "is all of them. “About”, “similar” and “nearly” allow 5 % unless the paper says otherwise. Where ours is *computed*, by a cost "
    "model or from the equations, the paper's arithmetic was done again; that is counted apart from what was measured."
)


def interval(numbers: Numbers) -> Interval:
    """The median, and what it lies between.

    >>> [float(value) for value in interval(np.arange(10.0))]
    [4.5, 1.0, 8.0]
    """
    count = len(numbers)
    heads = np.cumsum(
        [exp(lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2)) for k in range(count)]
    )
    inner = max(
        0, int(np.sum(heads <= 0.025)) - 1
    )  # of a fair coin: so many heads or fewer in at most 2.5 of 100 cases
    ordered = np.sort(numbers)
    return float(np.median(numbers)), float(ordered[inner]), float(ordered[count - 1 - inner])


def share(cases: Sequence[Any] | NDArray[np.bool_]) -> Interval:
    """The share of cases that are true, and what the true share lies between.

    >>> [round(value, 3) for value in share([True] * 9 + [False])]
    [0.9, 0.596, 0.982]
    """
    count, found, z = len(cases), float(np.mean(cases)), 1.959964
    middle, half = found + z * z / (2 * count), z * sqrt(found * (1 - found) / count + z * z / (4 * count * count))
    low, high = ((middle + side * half) / (1 + z * z / count) for side in (-1, 1))
    return found, max(0.0, low), min(1.0, high)


def always(
    place: str,
    says: str,
    cases: Sequence[Numbers] | Numbers,
    band: Band,
    what: str,
    because: str,
    *,
    computed: bool = False,
) -> Claim:
    """A claim about all cases: the draws of each, or one number for each."""
    draws = np.concatenate(list(cases)) if isinstance(cases, Sequence) else cases
    single = len(draws) == len(cases)
    held = float(np.mean((band[0] <= draws) & (draws <= band[1])))
    against = (
        int(np.sum([_outside(interval(case), band) for case in cases]))
        if not single
        else round((1 - held) * len(draws))
    )
    holds = False if against else True if held >= ENOUGH else None
    spread = _spread(draws if single else np.array([np.median(case) for case in cases]))
    number = f"{len(draws):,} cases" if single else f"{len(draws):,} draws, against it {against} of {len(cases)} cases"
    shown = (
        f"so in {_percent(held)} of {number}{what}"
        if band == YES
        else f"{spread}{what}; so in {_percent(held)} of {number}"
    )
    return Claim(place, says, shown, holds, _UNSURE if holds is None else because, "all cases", computed)


def within(
    place: str,
    says: str,
    cells: Sequence[Numbers],
    band: Band,
    what: str,
    because: str,
    *,
    computed: bool = False,
) -> Claim:
    """A claim that a median lies in a band, in every setting."""
    return inside(place, says, [interval(cell) for cell in cells], band, what, because, computed=computed)


def inside(
    place: str,
    says: str,
    found: Sequence[Interval],
    band: Band,
    what: str,
    because: str,
    *,
    computed: bool = False,
) -> Claim:
    """A claim that numbers with intervals lie in a band, in every setting."""
    so = [band[0] <= low and high <= band[1] for _, low, high in found]
    holds = True if all(so) else False if any(_outside(each, band) for each in found) else None
    if len(found) == 1:
        middle, low, high = found[0]
        shown = f"{middle:.3f} ({low:.3f} to {high:.3f}){what}"
    else:
        shown = f"{_spread(np.array([middle for middle, _, _ in found]))}{what}; so in {sum(so)} of {len(so)} settings"
    return Claim(place, says, shown, holds, _UNSURE if holds is None else because, "median", computed)


def happens(
    place: str, says: str, cases: Numbers, band: Band, what: str, because: str, *, computed: bool = False
) -> Claim:
    """A claim that something can be so: one case shows it."""
    held = (band[0] <= cases) & (cases <= band[1])
    shown = f"{_spread(cases)}{what}; so in {int(held.sum()):,} of {len(cases):,} cases"
    return Claim(place, says, shown, bool(held.any()), because, "can happen", computed)


def example(
    place: str,
    says: str,
    ours: str,
    same: Any,
    because: str,
    *,
    computed: bool = False,
) -> Claim:
    """A claim about one printed example."""
    return Claim(place, says, ours, bool(same), because, "example", computed)


def _outside(found: Interval, band: Band) -> bool:
    return found[2] < band[0] or found[1] > band[1]


def _spread(numbers: Numbers) -> str:
    low, high = float(np.min(numbers)), float(np.max(numbers))
    return f"{low:.3f} to {high:.3f}" if high < 1000 else f"{low:.3g} to {high:.3g}"


def _percent(part: float) -> str:
    """Never 100 % for less than all, nor 0 % for more than none."""
    return f"{part:.1%}" if part in (0, 1) else f"{min(max(part, 0.001), 0.999):.1%}"
