"""The plan of one query: a probe path per input, with one stage per window it probes.

Results never depend on the plan. A path starts from the new tuples of its driver; in a nested-loop plan of the naive or general kind
(Golab and Özsu, 3.1 and 3.3) these may be at any position of the order, so the driver is a stage like the others, with access `new`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dovetail.query.expressions import Expression
from dovetail.query.model import Condition, JoinQuery, Key
from dovetail.stats.probes import PlanEstimate, QueryStats

Access: TypeAlias = Literal["new", "hash", "scan"]
DEFAULT_RATE = 1.0
"""Tuples per second that are assumed of a stream without a rate."""
DEFAULT_EQUALITY = 0.01
"""Selectivity that is assumed of an equality."""
DEFAULT_CONDITION = 0.3
"""Selectivity that is assumed of any other condition."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One equality of a stage: an expression over its alias, and the earlier key it must equal.

    Both have the same type.
    """

    target: Expression
    source: Key


@dataclass(frozen=True, slots=True)
class ProbeStage:
    """One probe: partial results are joined with one alias's window."""

    alias: str
    access: Access
    key: tuple[KeyPart, ...]
    """One part for every class of equal columns that this alias shares with earlier ones."""
    conditions: tuple[Condition, ...]
    """Conditions that can be checked from this alias on."""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """The stages that turn new tuples of one alias into results."""

    driver: str
    stages: tuple[ProbeStage, ...]

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(stage.alias for stage in self.stages)


@dataclass(frozen=True)
class PlannerStats:
    """The planner's input for a join: enough to choose its orders again."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Tuples, or materialized matches, per second of each alias."""
    selectivities: Mapping[frozenset[str], float] = field(default_factory=dict, metadata={"name": "hints"})
    """By pair of aliases, those given by the user or measured; defaults are not listed."""
    forced: tuple[str, ...] = ()
    """Aliases with a probe order set by the user."""


@dataclass(frozen=True)
class QueryPlan:
    """One path for each alias of a query."""

    query: JoinQuery
    paths: tuple[ProbePath, ...]
    ordering: str
    """The method that chose the orders that are not forced, for `explain`."""
    stats: PlannerStats = field(default_factory=PlannerStats, metadata={"name": "known"})
    estimate: PlanEstimate = field(default_factory=PlanEstimate, compare=False)
    """Expected cost of the orders, for `explain`."""


class SharingJoin(NamedTuple):
    """A running join that shares stages with other joins."""

    plan: QueryPlan
    measured: QueryStats
    drivers: frozenset[str]
    """Drivers of the paths that share stages."""
