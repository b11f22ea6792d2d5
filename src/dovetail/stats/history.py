"""What happened to a plan while it ran: it was replaced by another, or its budget was exceeded. For people, and for `metrics()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.codec import optional


@dataclass(frozen=True)
class Migration:
    """Another plan was adopted. CPU is in milliseconds per second of event time."""

    batch: int
    """The first that was joined by it."""
    cause: str
    predicted_before: float
    predicted_after: float
    seconds: float
    """That the change has taken."""
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
    """A budget was exceeded."""

    batch: int
    resource: str
    used: float
    limit: float

    def __str__(self) -> str:
        return f"{self.resource} is {self.used:.4g} at batch {self.batch}; the budget is {self.limit:.4g}"


@dataclass(frozen=True)
class History:
    """What explanations tell of a plan's past."""

    reached: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By step that also sees tuples from before it, and by source: the earliest event time."""
    migrations: Sequence[Migration] = ()
