"""Compatibility of layouts with checkpoints: a checkpoint pins streams, queries and shards, not plans.

A checkpoint has two layouts, both as JSON. The *pinned* layout is the one that it was created with; every shard stores its digest. The
*current* layout has all changes since; each plan log entry stores one. A start continues if its layout means the same as the current
one, even if its queries are written differently. `driver.job_diff` describes other changes; those in `incompatibilities` are refused.
A checkpoint holds tuples, and any plan can continue from those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from dovetail.codec import to_json
from dovetail.errors import StateError
from dovetail.optimizer.joint import JointPlanning
from dovetail.optimizer.sharing import limits_of
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema
from dovetail.spark.driver.layout import Layout

VERSION = 4
"""Covers the assignment of tuples to shards, the state of a shard, and the windows that a text means."""
VERSION_WITHOUT_INFERRED_WINDOWS = 3
"""The version in which an alias without a bracket always took the next bracket to its right."""


def pinned_json(layout: Layout) -> str:
    """Return the pinned layout as JSON; in a new checkpoint it is `layout` itself."""
    return layout.pinned_json or json.dumps(_content(layout), sort_keys=True)


def current_json(layout: Layout) -> str:
    """Return the current layout as JSON: with all changes since its checkpoint was created."""
    content = _content(layout) | {
        "firsts": {name: assignment.first_shard for name, assignment in layout.placement.assignments.items()},
        "numbers": {name: layout.query_id(name) for name in layout.job.queries},
        "last_number": layout.last_query_id,
        "numbered": layout.placement.total,
        "ids": layout.shard_ids,
        "widened": layout.added_columns,
        "came": {
            name: to_json(query.start) for name, query in layout.job.registered.items() if query.start.first_batch
        },
        "chosen": None if layout.job.adopted_plan is None else to_json(layout.job.adopted_plan),
    }
    return json.dumps(content, sort_keys=True)


def _content(layout: Layout) -> dict[str, Any]:
    content = {
        "version": VERSION,
        "streams": [to_json(replace(stream, rate=None)) for stream in layout.streams],
        "queries": layout.queries,
        "shards": layout.requested_shards,
        "shares": layout.placement.splits,
    }
    return content | ({"time_zones": layout.time_zones} if layout.time_zones else {})


def digest(layout: Layout) -> str:
    """Return the digest of the pinned layout; every shard stores it with its state."""
    return blake2b(pinned_json(layout).encode(), digest_size=16).hexdigest()


def with_new_definitions(layout: Layout, old: Layout) -> Layout:
    """Return the layout of a checkpoint with the queries and options of a layout that means the same."""
    return with_definitions(with_valid_plan(old, layout), layout, ("rate",))


def with_definitions(old: Layout, new: Layout, options: Sequence[str]) -> Layout:
    """Return an old layout with the queries, configuration and some stream options of a new one.

    Streams and queries keep their order: Spark identifies sources by it, and shards are numbered by it.
    """
    streams = {
        name: replace(stream, **{option: getattr(new.job.streams[name], option) for option in options})
        for name, stream in old.job.streams.items()
    }
    registered = {
        name: replace(new.job.registered[name], start=query.start) for name, query in old.job.registered.items()
    }
    job = replace(old.job, streams=streams, registered=registered, config=new.job.config, budget=new.job.budget)
    return replace(old, job=job)


def with_valid_plan(old: Layout, new: Layout) -> Layout:
    """Return an old layout without its chosen plan if the new one has another strategy or budget."""
    chosen, planning = old.job.adopted_plan, JointPlanning({}, new.job.config, new.job.budget)
    if chosen is None or (chosen.strategy, chosen.limits) == (planning.strategy, limits_of(new.job.budget)):
        return old
    return replace(old, job=replace(old.job, adopted_plan=None))


def check_version(queries: Mapping[str, JoinQuery], current: str) -> None:
    """Refuse a current layout, as JSON, that this release cannot read.

    It also refuses one in which `queries` had other windows.
    """
    version, faults = json.loads(current).get("version", 1), []
    if version not in (VERSION_WITHOUT_INFERRED_WINDOWS, VERSION):
        faults = [f"its layout has format version {version}; this release writes version {VERSION}"]
    elif version == VERSION_WITHOUT_INFERRED_WINDOWS:
        inferred = [name for name, query in queries.items() if query.inferred]
        faults = [
            f"query {name!r} took its windows from brackets when the checkpoint was written; this release infers them from its "
            "conditions"
            for name in inferred
        ]
    if faults:
        raise StateError(
            f"the checkpoint cannot continue with this session: {'; '.join(faults)}",
            "start with a new checkpoint directory and new sinks, or with the release that wrote this one",
        )


def incompatibilities(new: Layout, old: Layout) -> list[str]:
    """Return the reasons why a checkpoint of the old layout cannot continue with the new one."""
    faults = []
    if old.requested_shards != new.requested_shards:
        faults.append(f"it has {old.requested_shards} shards, this session {new.requested_shards}")
    used = {ref.stream for query in new.job.queries.values() for ref in query.refs}
    faults += [f"it lacks stream {name!r}" for name in sorted(used - old.job.streams.keys())]
    faults += [f"it also has stream {name!r}" for name in sorted(old.job.streams.keys() - new.job.streams.keys())]
    for name in old.job.streams.keys() & new.job.streams.keys():
        faults += _stream_faults(old.job.streams[name], new.job.streams[name])
    for name in old.job.queries.keys() & new.job.queries.keys():
        before, after = old.job.queries[name].time_zone, new.job.queries[name].time_zone
        if before != after:
            faults.append(f"the constants of query {name!r} were read in time zone {before}, now in {after}")
    return faults


def semantic_key(query: JoinQuery) -> tuple[object, ...]:
    """Return everything that determines a query's results and shards, independent of how it is written."""

    def casefolded(expression: Expression) -> Expression:
        return rename_alias(expression, str.casefold)

    return (
        [(ref.alias.casefold(), ref.stream, ref.window) for ref in query.refs],
        [(output.name, casefolded(output.expression)) for output in query.outputs],
        [casefolded(edge.expression) for edge in query.equalities],
        [casefolded(condition.expression) for condition in query.conditions],
        [casefolded(condition.expression) for condition in query.filters],
    )


def _stream_faults(old: StreamSchema, new: StreamSchema) -> list[str]:
    types = {field.name: field.type for field in new.columns}
    faults = [
        f"column {field.name!r} of stream {new.name!r} was {field.type}, is {types[field.name]}"
        for field in old.columns
        if field.name in types and types[field.name] != field.type
    ]
    for option in ("event_time", "progress_by"):
        before, after = getattr(old, option), getattr(new, option)
        if before != after:
            faults.append(f"{option} of stream {new.name!r} was {before!r}, is {after!r}")
    return faults
