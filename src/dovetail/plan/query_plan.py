"""A plan says everything the engine needs and nothing else: one path per input, one stage per window it meets.

Results never depend on the plan. A path starts from the new tuples of its driver; in a nested-loop plan of the naive or general kind
(Golab and Özsu, 3.1 and 3.3) those may stand at any place in the order, so the driver is a stage like the others, with access `new`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dovetail.query.expressions import Expression
from dovetail.query.model import Condition, JoinQuery, Key
from dovetail.stats.probes import Measured, PlanEstimate

Access: TypeAlias = Literal["new", "hash", "scan"]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One equality of a stage: an expression over the stage's alias and the one it must equal, in the same type."""

    target: Expression
    source: Key


@dataclass(frozen=True, slots=True)
class ProbeStage:
    """Partial results meet one alias's window."""

    alias: str
    access: Access
    key: tuple[KeyPart, ...]
    """Every class of equal columns that this alias shares with those before it."""
    conditions: tuple[Condition, ...]
    """Conditions whose last alias this is."""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """How the new tuples of one alias become results."""

    driver: str
    stages: tuple[ProbeStage, ...]

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(stage.alias for stage in self.stages)


@dataclass(frozen=True)
class PlannerStats:
    """What a planner was told of a join: enough to choose its orders again."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Tuples, or stored matches, per second of each alias."""
    hints: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Selectivities, by pair of aliases."""
    forced: tuple[str, ...] = ()
    """Aliases whose orders the user gave."""


@dataclass(frozen=True)
class QueryPlan:
    """One path for each alias of a query."""

    query: JoinQuery
    paths: tuple[ProbePath, ...]
    ordering: str
    """How the orders were chosen, for people."""
    known: PlannerStats = field(default_factory=PlannerStats)
    estimate: PlanEstimate = field(default_factory=PlanEstimate, compare=False)
    """What is expected of them, for people."""


class Sharing(NamedTuple):
    """A running join that shares stages with others."""

    plan: QueryPlan
    measured: Measured
    drivers: frozenset[str]
    """Those of its paths that do."""
