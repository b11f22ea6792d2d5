"""How much of a query's results was not lost to shedding, with an interval: never a bare number."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Self


@dataclass(frozen=True, slots=True)
class Lost:
    """An estimate of results that were lost, and how far it may be off with 95 % confidence, downwards and upwards."""

    middle: float = 0.0
    below: float = 0.0
    above: float = 0.0

    def __add__(self, other: Lost) -> Lost:
        """Both together; what they are off by is independent."""
        below, above = (sqrt(a * a + b * b) for a, b in ((self.below, other.below), (self.above, other.above)))
        return Lost(self.middle + other.middle, below, above)


@dataclass(frozen=True, slots=True)
class Recall:
    """The share of a query's results that was given; None if it is not known, and then why."""

    estimate: float | None
    low: float | None
    high: float | None
    """Between these it lies with 95 % confidence."""
    given: int
    lost: Lost
    why: str | None = None

    @classmethod
    def of(cls, given: int, lost: Lost | str) -> Self:
        """Of so many results; a text says why it is not known what was lost."""
        if isinstance(lost, str):
            return cls(None, None, None, given, Lost(), lost)
        ends = (lost.middle, lost.middle + lost.above, max(0.0, lost.middle - lost.below))
        estimate, low, high = (given / (given + each) if given + each else 1.0 for each in ends)
        return cls(estimate, low, high, given, lost)

    def __add__(self, other: Self) -> Self:
        """Of two shards together."""
        if (why := self.why or other.why) is not None:
            return type(self).of(self.given + other.given, why)
        return type(self).of(self.given + other.given, self.lost + other.lost)

    def __str__(self) -> str:
        if self.estimate is None:
            return f"not known: {self.why}"
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"
