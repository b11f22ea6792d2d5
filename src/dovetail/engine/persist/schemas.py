"""What the JSON of a snapshot looks like, and whether it can be believed.

A snapshot may come from anyone: its digest says that nothing has happened to it by accident, not who wrote it. So every name, number
and list is checked before anything is made of it, and what was made is compared with what it claims to be. A session that somebody
wanted to give wrong results will do so; it will not read outside its arrays, nor fail later.
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


class StoredProgress(TypedDict):
    """How far a stream has come."""

    head: Time
    moved_at: Time | None
    arrived: Count
    late: Count
    ahead: Count
    refused: Count
    late_by: Time
    partition_heads: list[tuple[PartitionValue, Time]]


class StoredStream(TypedDict):
    """A stream and how far it has come."""

    schema: StreamSchema
    progress: StoredProgress


class StoredRunner(TypedDict):
    """What was counted along a path."""

    order: list[str]
    access: list[Access]
    counts: list[tuple[Count, Count, Count, Count]]
    noted: list[tuple[Count, Count, Count, Count]]


class StoredRun(TypedDict):
    """What one join has counted."""

    results: dict[str, Count]
    runners: dict[str, StoredRunner]
    watch: ProbeWatch
    retired: tuple[Count, Count, Count]


class EngineManifest(TypedDict):
    """What an engine knows beside its plan and its arrays."""

    config: Config
    batches: Count
    streams: list[StoredStream]
    groups: dict[str, Count]
    kept_from: dict[str, Time]
    runs: dict[str, StoredRun]


class LeftInArena(EngineManifest):
    """What another engine needs, beside the plan, to attach to the arrays of this one."""

    arrays: int
    """Their format."""
    outline: list[Any]
    stores: dict[str, Any]


class Snapshot(EngineManifest):
    """A snapshot without its windows."""

    windows: list[str]
    plan: ExecutionPlan
    extra: dict[str, Any]


def check_streams(streams: list[StoredStream]) -> None:
    """Raise `StateError` unless streams are such as can be declared, each once."""
    schemas = [stream["schema"] for stream in streams]
    for schema in schemas:
        if [each.name for each in schemas].count(schema.name) > 1:
            raise StateError(f"the snapshot has stream {schema.name!r} more than once")
        if from_json(StreamSchema, to_json(schema)) != schema or stored_schema(schema.columns) != schema.columns:
            raise StateError(f"stream {schema.name!r} has columns that none is kept with: {schema.columns}")
        if not all(0 <= (span or 0) <= LONGEST for span in (schema.lateness, schema.idle_after, schema.max_ahead)):
            raise StateError(f"stream {schema.name!r} has times that are out of range")


def check_runs(content: EngineManifest, plan: ExecutionPlan) -> None:
    """Raise `StateError` unless what is stored of joins fits a plan."""
    _same("the groups of windows", set(content["groups"]), {JOINED, *(step.group for step in plan.steps)})
    _same("the joins with counters", set(content["runs"]), {step.name for step in plan.steps})
    for step in plan.steps:
        place, stored = f"join {step.name!r}", content["runs"][step.name]
        _same(f"{place}: its queries", set(stored["results"]), {consumer.query for consumer in step.consumers})
        _check_runners(place, stored["runners"], step.plan)
        _check_watch(stored["watch"], step.plan)


def _check_runners(place: str, stored: Mapping[str, StoredRunner], plan: QueryPlan) -> None:
    aliases = sorted(plan.query.aliases)
    _same(f"{place}: its paths", set(stored), set(aliases))
    for driver, runner in stored.items():
        if sorted(runner["order"]) != aliases or any(
            len(runner[kind]) != len(aliases) for kind in ("access", "counts", "noted")
        ):
            raise StateError(f"{place}: the path of {driver!r} does not meet each of {listed(aliases)} once")
        if [alias for alias, way in zip(runner["order"], runner["access"], strict=True) if way == "new"] != [driver]:
            raise StateError(f"{place}: the path of {driver!r} has others' new tuples")
        for now, before in zip(runner["counts"], runner["noted"], strict=True):
            if any(one < other for one, other in zip(now, before, strict=True)):
                raise StateError(f"{place}: the counts of {driver!r} have become smaller")


def _check_watch(watch: ProbeWatch, plan: QueryPlan) -> None:
    """Raise `StateError` unless statistics are about a plan's aliases and changes."""
    aliases, place = set(plan.query.aliases), f"the statistics of join {plan.query.name!r}"
    named = {*watch.rates, *watch.sizes, *watch.unmeasured, *watch.seen, *watch.costs, *watch.tried}
    named |= {name for joined, alias in (*watch.found, *watch.settled) for name in (*joined, alias)}
    named |= {name for orders in watch.tried.values() for order in orders for name in order}
    if not named <= aliases:
        raise StateError(f"{place} are about {listed(sorted(named - aliases))}")
    if any(alias in joined for joined, alias in watch.found):
        raise StateError(f"{place} contradict themselves")
    if any(number >= len(watch.changes) for number in watch.unmeasured.values()):
        raise StateError(f"{place} are about changes that were not made")


def _same(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        raise StateError(f"{what} are {listed(sorted(found))}; expected {listed(sorted(expected))}")
