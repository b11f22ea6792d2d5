"""What a checkpoint is bound to: streams, queries and where their tuples lie, not how they are planned.

It is written once, as JSON, and its digest is stored with every shard's state. A later start goes on with it if it means the same,
however its queries are written by then, and is refused with all that differs if it does not. A checkpoint holds tuples, and any
plan can go on from those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
"""Of how tuples are assigned to shards, of where a shard keeps its state, and of which windows a query's text means."""
WITHOUT_BOUNDS = 3
"""The version in which an alias without a bracket always took the next one to its right."""


def frozen_json(layout: Layout) -> str:
    """What a checkpoint of a layout is bound to: what an earlier start has stored, or else what is to be stored."""
    return layout.stored or json.dumps(_content(layout), sort_keys=True)


def revised_json(layout: Layout) -> str:
    """What a layout has come to since its checkpoint was made: queries came or went."""
    content = _content(layout) | {
        "firsts": {name: seat.first for name, seat in layout.placement.seats.items()},
        "numbers": {name: layout.number_of(name) for name in layout.bound},
        "last_number": layout.last_number,
        "numbered": layout.placement.total,
        "ids": layout.ids,
        "widened": layout.widened,
        "came": {name: to_json(came) for name, came in layout.came.items()},
        "chosen": None if layout.chosen is None else to_json(layout.chosen),
    }
    return json.dumps(content, sort_keys=True)


def _content(layout: Layout) -> dict[str, Any]:
    content = {
        "version": VERSION,
        "streams": [to_json(replace(stream, rate=None)) for stream in layout.streams],
        "queries": layout.queries,
        "shards": layout.shards,
        "shares": layout.placement.shares,
    }
    return content | ({"time_zones": layout.time_zones} if layout.time_zones else {})


def digest(layout: Layout) -> str:
    """What every shard stores, to know the layout that it belongs to."""
    return blake2b(frozen_json(layout).encode(), digest_size=16).hexdigest()


def thawed(layout: Layout, old: Layout) -> Layout:
    """A layout as its checkpoint has it, which means the same: how a query is written, and the order of declarations, may differ."""
    # Spark tells sources apart by their order, and shards are numbered in the order of queries.
    own = {plan.query.name: plan for plan in layout.plans}
    rates = {stream.name: stream.rate for stream in layout.streams}
    return replace(
        still_chosen(old, layout),
        streams=tuple(replace(stream, rate=rates.get(stream.name)) for stream in old.streams),
        plans=tuple(own[plan.query.name] for plan in old.plans),
        config=layout.config,
        budget=layout.budget,
    )


def still_chosen(old: Layout, new: Layout) -> Layout:
    """An old layout without the plan that was chosen while it ran, if another strategy or budget is asked for."""
    planning = JointPlanning({}, new.config, new.budget)
    same = old.chosen is not None and (old.chosen.strategy, old.chosen.limits) == (
        planning.strategy,
        limits_of(new.budget),
    )
    return old if same else replace(old, chosen=None)


def check_version(queries: Mapping[str, JoinQuery], stored: str) -> None:
    """Refuse a contract that this release cannot read, or whose `queries` it reads otherwise than the one that wrote it."""
    version, faults = json.loads(stored).get("version", 1), []
    if version not in (WITHOUT_BOUNDS, VERSION):
        faults = [f"its layout has format version {version}; this release writes version {VERSION}"]
    elif version == WITHOUT_BOUNDS:
        others = [name for name, query in queries.items() if query.inferred]
        faults = [f"the windows of query {name!r}, then of brackets, now follow from its conditions" for name in others]
    if faults:
        raise StateError(
            f"the checkpoint cannot go on with this session: {'; '.join(faults)}",
            "start with a new checkpoint directory and new sinks, or with the release that wrote this one",
        )


def refused(new: Layout, old: Layout) -> list[str]:
    """Why a checkpoint of one layout cannot go on with another."""
    found = []
    if old.shards != new.shards:
        found.append(f"it has {old.shards} shards, this session {new.shards}")
    used = {ref.stream for query in new.bound.values() for ref in query.refs}
    found += [f"it lacks stream {name!r}" for name in sorted(used - old.catalog.keys())]
    found += [f"it also has stream {name!r}" for name in sorted(old.catalog.keys() - new.catalog.keys())]
    for name in old.catalog.keys() & new.catalog.keys():
        found += _stream_faults(old.catalog[name], new.catalog[name])
    for name in old.bound.keys() & new.bound.keys():
        was, is_ = old.bound[name].time_zone, new.bound[name].time_zone
        if was != is_:
            found.append(f"the constants of query {name!r} were read in time zone {was}, now in {is_}")
    return found


def meaning(query: JoinQuery) -> tuple[object, ...]:
    """All that decides what a query's results are and where its tuples lie, without how it is written."""

    def plain(expression: Expression) -> Expression:
        return rename_alias(expression, str.casefold)

    return (
        [(ref.alias.casefold(), ref.stream, ref.window) for ref in query.refs],
        [(output.name, plain(output.expression)) for output in query.outputs],
        [plain(edge.expression) for edge in query.equalities],
        [plain(condition.expression) for condition in query.conditions],
        [plain(condition.expression) for condition in query.filters],
    )


def _stream_faults(stored: StreamSchema, own: StreamSchema) -> list[str]:
    now = {field.name: field.type for field in own.columns}
    faults = [
        f"column {field.name!r} of stream {own.name!r} was {field.type}, is {now[field.name]}"
        for field in stored.columns
        if field.name in now and now[field.name] != field.type
    ]
    for option in ("event_time", "progress_by"):
        before, after = getattr(stored, option), getattr(own, option)
        if before != after:
            faults.append(f"{option} of stream {own.name!r} was {before!r}, is {after!r}")
    return faults
