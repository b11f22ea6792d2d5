"""JSON schemas of snapshots and manifests, and checks of what is read from them.

A snapshot may come from anyone: its digest detects accidental damage, not who wrote it. So every name, number and list is checked
before it is used, and the plan that results is compared with the one in the snapshot. A malicious snapshot can give wrong results; it
cannot read outside its arrays, or fail later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from dovetail.codec import Count, Time, from_json, to_json
from dovetail.config import Config
from dovetail.engine.join.watch import ProbeWatch
from dovetail.engine.time.progress import PartitionValue
from dovetail.errors import StateError, listed
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.query_plan import Access, QueryPlan
from dovetail.plan.steps import JOINED
from dovetail.query.durations import LONGEST
from dovetail.schema import StreamSchema, stored_schema


class SerializedProgress(TypedDict):
    """Progress of a stream."""

    head: Time
    moved_at: Time | None
    arrived: Count
    late: Count
    ahead: Count
    refused: Count
    late_by: Time
    partition_heads: list[tuple[PartitionValue, Time]]


class SerializedStream(TypedDict):
    """A stream and its progress."""

    schema: StreamSchema
    progress: SerializedProgress


class SerializedRunner(TypedDict):
    """Order and counters of a probe path."""

    order: list[str]
    access: list[Access]
    counts: list[tuple[Count, Count, Count, Count]]
    noted: list[tuple[Count, Count, Count, Count]]


class SerializedRun(TypedDict):
    """Counters of a join."""

    results: dict[str, Count]
    runners: dict[str, SerializedRunner]
    watch: ProbeWatch
    retired: tuple[Count, Count, Count]


class EngineManifest(TypedDict):
    """State of an engine besides its plan and its arrays."""

    config: Config
    batches: Count
    streams: list[SerializedStream]
    groups: dict[str, Count]
    kept_from: dict[str, Time]
    runs: dict[str, SerializedRun]


class ArenaManifest(EngineManifest):
    """Everything that another engine needs, besides the plan, to attach to the arrays of an engine."""

    arrays: int
    """Format version of the arrays."""
    outline: list[Any]
    stores: dict[str, Any]


class SnapshotManifest(EngineManifest):
    """JSON of a snapshot."""

    windows: list[str]
    plan: ExecutionPlan
    extra: dict[str, Any]


def check_streams(streams: list[SerializedStream]) -> None:
    """Raise `StateError` unless every stream could be declared, and occurs once."""
    schemas = [stream["schema"] for stream in streams]
    for schema in schemas:
        if [other.name for other in schemas].count(schema.name) > 1:
            raise StateError(f"the snapshot has stream {schema.name!r} more than once")
        if from_json(StreamSchema, to_json(schema)) != schema or stored_schema(schema.columns) != schema.columns:
            raise StateError(f"stream {schema.name!r} has column types that are never stored: {schema.columns}")
        if not all(0 <= (span or 0) <= LONGEST for span in (schema.lateness, schema.idle_after, schema.max_ahead)):
            raise StateError(f"stream {schema.name!r} has a lateness, idle_after or max_ahead out of range")


def check_runs(content: EngineManifest, plan: ExecutionPlan) -> None:
    """Raise `StateError` unless the counters of joins match a plan."""
    _check_names("the groups of windows", set(content["groups"]), {JOINED, *(step.group for step in plan.steps)})
    _check_names("the joins with counters", set(content["runs"]), {step.name for step in plan.steps})
    for step in plan.steps:
        where, run = f"join {step.name!r}", content["runs"][step.name]
        _check_names(f"{where}: its queries", set(run["results"]), {consumer.query for consumer in step.consumers})
        _check_runners(where, run["runners"], step.plan)
        _check_watch(run["watch"], step.plan)


def _check_runners(where: str, runners: Mapping[str, SerializedRunner], plan: QueryPlan) -> None:
    aliases = sorted(plan.query.aliases)
    _check_names(f"{where}: its paths", set(runners), set(aliases))
    for driver, runner in runners.items():
        if sorted(runner["order"]) != aliases or any(
            len(runner[kind]) != len(aliases) for kind in ("access", "counts", "noted")
        ):
            raise StateError(f"{where}: the path of {driver!r} does not contain each of {listed(aliases)} once")
        if [alias for alias, kind in zip(runner["order"], runner["access"], strict=True) if kind == "new"] != [driver]:
            raise StateError(f"{where}: the path of {driver!r} is driven by another alias")
        for count, noted in zip(runner["counts"], runner["noted"], strict=True):
            if any(now < before for now, before in zip(count, noted, strict=True)):
                raise StateError(f"{where}: the counters of {driver!r} decrease")


def _check_watch(watch: ProbeWatch, plan: QueryPlan) -> None:
    """Raise `StateError` unless statistics refer to aliases and changes of a plan."""
    aliases, where = set(plan.query.aliases), f"the statistics of join {plan.query.name!r}"
    named = {
        *watch.rates,
        *watch.sizes,
        *watch.pending_changes,
        *watch.counters_at_check,
        *watch.costs,
        *watch.order_costs,
    }
    named |= {name for joined, alias in (*watch.probe_counts, *watch.baseline) for name in (*joined, alias)}
    named |= {name for orders in watch.order_costs.values() for order in orders for name in order}
    if not named <= aliases:
        raise StateError(f"{where} refer to unknown aliases {listed(sorted(named - aliases))}")
    if any(alias in joined for joined, alias in watch.probe_counts):
        raise StateError(f"{where} contain a probe of an alias by itself")
    if any(index >= len(watch.changes) for index in watch.pending_changes.values()):
        raise StateError(f"{where} refer to changes that were not made")


def _check_names(what: str, names: set[str], expected: set[str]) -> None:
    if names != expected:
        raise StateError(f"{what} are {listed(sorted(names))}; expected {listed(sorted(expected))}")
