"""Metrics of shards: frozen data that adds up over shards and travels as JSON.

Metrics are added field by field; a field is summed unless its metadata names another function. As JSON they are what a session's
`metrics()` returns.
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
class Metrics:
    """Base class of all metrics: addition, and conversion to and from JSON."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{
                item.name: item.metadata.get("add", _sum)(getattr(self, item.name), getattr(other, item.name))
                for item in fields(self)
            }
        )

    def to_json(self) -> dict[str, Any]:
        serialized: dict[str, Any] = to_json(self)
        return serialized

    @classmethod
    def from_json(cls, serialized: Mapping[str, Any]) -> Self:
        """Read metrics from `serialized`; keys that are not fields are ignored."""
        keys = [item.metadata.get("name", item.name) for item in fields(cls)]
        return from_json(cls, {key: serialized[key] for key in keys if key in serialized})


def merge(first: Mapping[str, T], second: Mapping[str, T], add: Callable[[T, T], T] | None = None) -> dict[str, T]:
    """Return the entries of both mappings; `add` combines two of the same name, by default their sum."""
    return {
        **first,
        **{name: (add or _sum)(first[name], value) if name in first else value for name, value in second.items()},
    }


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return first if second is None else second
    return merge(first, second) if isinstance(first, Mapping) else first + second


def _largest(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)


def _first(first: T, _: T) -> T:
    return first


@dataclass(frozen=True, slots=True)
class StreamMetrics(Metrics):
    """Counters of one stream's tuples."""

    arrivals: int
    late: int
    ahead: int
    refused: int
    lateness_needed: float = field(metadata={"add": _largest})
    """The smallest lateness, in seconds, at which no tuple would have been late."""
    event_time: int | None = field(metadata={"add": _largest})
    state_tuples: int
    state_bytes: int
    """Bytes of the arrays, spare capacity included."""
    hottest: Mapping[str, Mapping[str, int]] | None = optional()
    """Hot keys: by key column and value, the approximate tuples with that value, if at least one tuple in twenty has it."""
    shed: int | None = optional()
    """Tuples dropped under the memory cap."""
    last_shed: int | None = field(default=None, metadata={"optional": True, "add": _largest})
    """Event time of the last shedding."""
    shedding_bytes: int | None = optional()
    """Bytes of the data by which shedding decides, rolls back and estimates recall."""


@dataclass(frozen=True, slots=True)
class StageMetrics(Metrics):
    """Counters of one stage of a probe path."""

    alias: str = field(metadata={"add": _first})
    access: str = field(metadata={"add": _first})
    probes: int
    """Partial results that probed the window."""
    rows_read: int
    """Rows of the window that were compared."""
    matches: int
    ms: float
    timed: int | None = optional()
    """In a path's first stage only: the new tuples that were timed."""


PathMetrics = tuple[StageMetrics, ...]
"""A path's stages; empty when shards run them in different orders."""


def _add_paths(first: Mapping[str, PathMetrics], second: Mapping[str, PathMetrics]) -> dict[str, PathMetrics]:
    def add(one: PathMetrics, other: PathMetrics) -> PathMetrics:
        is_same_order = [stage.alias for stage in one] == [stage.alias for stage in other]
        return tuple(a + b for a, b in zip(one, other, strict=True)) if is_same_order else ()

    return merge(first, second, add)


@dataclass(frozen=True, slots=True)
class JoinMetrics(Metrics):
    """Counters of one join."""

    probes: int
    rows_read: int
    matches: int
    paths: Mapping[str, PathMetrics] = field(metadata={"add": _add_paths})
    """By driver."""
    changes: tuple[ProbeOrderChange, ...]


@dataclass(frozen=True, slots=True)
class QueryMetrics(JoinMetrics):
    """Results of a query, and counters of the join that produces them."""

    results: int
    recall: Recall | None = field(default=None, metadata={"optional": True})
    """Fraction of the results that shedding did not lose, if tuples are shed."""


@dataclass(frozen=True, slots=True)
class NodeMetrics(Metrics):
    """Metrics of one plan node.

    A window or materialized join has `tuples` and `bytes`, a join `probes` and `matches`, a query `results`.
    """

    ms: float
    tuples: int | None = optional()
    bytes: int | None = optional()
    probes: int | None = optional()
    matches: int | None = optional()
    results: int | None = optional()


@dataclass(frozen=True, slots=True)
class MeasuredSpan(Metrics):
    """Span of event time in which the milliseconds of a plan's nodes were measured."""

    seconds: float = field(default=0.0, metadata={"add": _largest})


@dataclass(frozen=True, slots=True)
class PlanMetrics(Metrics):
    """Metrics of a plan's nodes, by their names in the plan."""

    windows: Mapping[str, NodeMetrics] = field(default_factory=dict)
    joins: Mapping[str, NodeMetrics] = field(default_factory=dict)
    materialized: Mapping[str, NodeMetrics] = field(default_factory=dict, metadata={"name": "states"})
    results: Mapping[str, NodeMetrics] = field(default_factory=dict)
    span: MeasuredSpan = field(default_factory=MeasuredSpan)


@dataclass(frozen=True, slots=True)
class Measurements(Metrics):
    """All metrics of one shard, or of several added up."""

    streams: Mapping[str, StreamMetrics] = field(default_factory=dict)
    queries: Mapping[str, QueryMetrics] = field(default_factory=dict)
    joins: Mapping[str, JoinMetrics] = field(default_factory=dict)
    """Joins that serve several queries or read materialized joins."""
    nodes: PlanMetrics = field(default_factory=PlanMetrics)
