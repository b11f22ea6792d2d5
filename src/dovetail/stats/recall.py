"""Recall under shedding: the fraction of a query's results that was not lost, always with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Self


@dataclass(frozen=True, slots=True)
class LossEstimate:
    """Estimated number of lost results, with 95 % confidence bounds as distances `below` and `above` it."""

    middle: float = 0.0
    below: float = 0.0
    above: float = 0.0

    def __add__(self, other: LossEstimate) -> LossEstimate:
        """Return the sum; the errors are taken as independent."""
        below, above = (sqrt(a * a + b * b) for a, b in ((self.below, other.below), (self.above, other.above)))
        return LossEstimate(self.middle + other.middle, below, above)


@dataclass(frozen=True, slots=True)
class Recall:
    """Fraction of a query's results that was delivered; if it is unknown, `why` gives the reason."""

    estimate: float | None
    low: float | None
    high: float | None
    """`low` and `high` bound the recall with 95 % confidence."""
    given: int
    """Delivered results."""
    lost: LossEstimate
    why: str | None = None

    @classmethod
    def of(cls, given: int, lost: LossEstimate | str) -> Self:
        """Return the recall of `given` delivered results; a text as `lost` says why the loss is unknown."""
        if isinstance(lost, str):
            return cls(None, None, None, given, LossEstimate(), lost)
        losses = (lost.middle, lost.middle + lost.above, max(0.0, lost.middle - lost.below))
        estimate, low, high = (given / (given + loss) if given + loss else 1.0 for loss in losses)
        return cls(estimate, low, high, given, lost)

    def __add__(self, other: Self) -> Self:
        """Return the recall of two shards together."""
        if (why := self.why or other.why) is not None:
            return type(self).of(self.given + other.given, why)
        return type(self).of(self.given + other.given, self.lost + other.lost)

    def __str__(self) -> str:
        if self.estimate is None:
            return f"not known: {self.why}"
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"
