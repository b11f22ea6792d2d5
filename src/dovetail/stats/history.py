"""Events of a running plan, for `explain()` and `metrics()`: migrations and budget breaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.codec import optional


@dataclass(frozen=True)
class Migration:
    """Adoption of a new plan. CPU is in milliseconds per second of event time."""

    batch: int
    """The first batch joined by the new plan."""
    cause: str
    predicted_before: float
    predicted_after: float
    seconds: float
    """Duration of the change."""
    measured_before: float | None = optional()
    measured_after: float | None = optional()

    def __str__(self) -> str:
        text = (
            f"migrated before batch {self.batch} in {self.seconds:.3g} s, because {self.cause}: cpu "
            f"{self.predicted_before:.4g} -> {self.predicted_after:.4g} ms/s expected"
        )
        if self.measured_before is None or self.measured_after is None:
            return text
        return f"{text}, {self.measured_before:.4g} -> {self.measured_after:.4g} ms/s measured"


@dataclass(frozen=True)
class Breach:
    """Use of a resource beyond the budget."""

    batch: int
    resource: str
    used: float
    limit: float

    def __str__(self) -> str:
        return f"{self.resource} is {self.used:.4g} at batch {self.batch}; the budget is {self.limit:.4g}"


@dataclass(frozen=True)
class History:
    """A plan's past, as shown by `explain()`."""

    earliest_visible: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By step with backfill, and by source: the earliest event time that the step sees."""
    migrations: Sequence[Migration] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    """Measured tuples per second of event time, by stream."""
