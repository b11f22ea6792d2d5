"""What shards measure: frozen figures that add up over shards and travel as JSON.

Every class is added field by field. Fields sum unless they say otherwise. As JSON the figures are what `metrics()` of a session
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from dovetail.codec import from_json, optional, to_json
from dovetail.stats.probes import ProbeOrderChange
from dovetail.stats.recall import Recall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one thing."""

    def __add__(self, other: Self) -> Self:
        """The figures of both together."""
        return type(self)(
            **{
                each.name: each.metadata.get("add", _sum)(getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        written: dict[str, Any] = to_json(self)
        return written

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The figures in `stored`, whatever else it holds."""
        return from_json(cls, {each.name: stored[each.name] for each in fields(cls) if each.name in stored})


def merged(left: Mapping[str, T], right: Mapping[str, T], add: Callable[[T, T], T] | None = None) -> dict[str, T]:
    """The entries of both; `add` says what becomes of two with the same name, which else are summed."""
    return {
        **left,
        **{name: (add or _sum)(left[name], value) if name in left else value for name, value in right.items()},
    }


def _sum(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return left if right is None else right
    return merged(left, right) if isinstance(left, Mapping) else left + right


def _largest(left: Any, right: Any) -> Any:
    return max((value for value in (left, right) if value is not None), default=None)


def _first(left: T, _: T) -> T:
    return left


@dataclass(frozen=True, slots=True)
class StreamFigures(Figures):
    """A stream's tuples."""

    arrivals: int
    late: int
    ahead: int
    refused: int
    lateness_needed: float = field(metadata={"add": _largest})
    """The lateness, in seconds, that would have kept every tuple."""
    event_time: int | None = field(metadata={"add": _largest})
    state_tuples: int
    state_bytes: int
    """Of arrays, room for more tuples included."""
    hottest: Mapping[str, Mapping[str, int]] | None = optional()
    """By key column and value, about how many tuples have it: values that at least one in twenty has."""
    shed: int | None = optional()
    """Tuples that were forgotten for want of room."""
    last_shed: int | None = field(default=None, metadata={"optional": True, "add": _largest})
    """The event time at which that last happened."""


@dataclass(frozen=True, slots=True)
class StageFigures(Figures):
    """One stage of a probe path."""

    alias: str = field(metadata={"add": _first})
    access: str = field(metadata={"add": _first})
    probes: int
    """Partial results that came in."""
    looked: int
    """Rows of the window that were looked at."""
    matches: int
    ms: float
    timed: int | None = optional()
    """Of a path's first stage: the new tuples that milliseconds are about."""


PathFigures = tuple[StageFigures, ...]
"""A path's stages; none when shards run them in different orders."""


def _add_paths(left: Mapping[str, PathFigures], right: Mapping[str, PathFigures]) -> dict[str, PathFigures]:
    def add(one: PathFigures, other: PathFigures) -> PathFigures:
        same = [stage.alias for stage in one] == [stage.alias for stage in other]
        return tuple(a + b for a, b in zip(one, other, strict=True)) if same else ()

    return merged(left, right, add)


@dataclass(frozen=True, slots=True)
class JoinFigures(Figures):
    """A join."""

    probes: int
    looked: int
    matches: int
    paths: Mapping[str, PathFigures] = field(metadata={"add": _add_paths})
    """By driver."""
    changes: tuple[ProbeOrderChange, ...]


@dataclass(frozen=True, slots=True)
class QueryFigures(JoinFigures):
    """A query: its results, and the join that they come from."""

    results: int
    recall: Recall | None = field(default=None, metadata={"optional": True})
    """How much was not lost, where tuples are shed."""


@dataclass(frozen=True, slots=True)
class PartFigures(Figures):
    """A part of a plan: a window or stored sub-join (`tuples`, `bytes`), a join (`probes`, `matches`), or a query's `results`."""

    ms: float
    tuples: int | None = optional()
    bytes: int | None = optional()
    probes: int | None = optional()
    matches: int | None = optional()
    results: int | None = optional()


@dataclass(frozen=True, slots=True)
class Span(Figures):
    """How much event time the milliseconds of a plan's parts are about."""

    seconds: float = field(default=0.0, metadata={"add": _largest})


@dataclass(frozen=True, slots=True)
class PlanFigures(Figures):
    """What the parts of a plan have taken, by the names that they have in it."""

    windows: Mapping[str, PartFigures] = field(default_factory=dict)
    joins: Mapping[str, PartFigures] = field(default_factory=dict)
    states: Mapping[str, PartFigures] = field(default_factory=dict)
    results: Mapping[str, PartFigures] = field(default_factory=dict)
    span: Span = field(default_factory=Span)


@dataclass(frozen=True, slots=True)
class Measurements(Figures):
    """All that a shard, or several together, have measured."""

    streams: Mapping[str, StreamFigures] = field(default_factory=dict)
    queries: Mapping[str, QueryFigures] = field(default_factory=dict)
    joins: Mapping[str, JoinFigures] = field(default_factory=dict)
    """Those that serve several queries, or read stored sub-joins."""
    nodes: PlanFigures = field(default_factory=PlanFigures)
