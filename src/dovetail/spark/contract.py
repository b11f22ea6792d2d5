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

from dovetail.errors import DovetailError, StateError
from dovetail.plan.codec import from_json, to_json
from dovetail.query.durations import in_words
from dovetail.query.expressions import Expression, rename_alias
from dovetail.query.model import JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.spark.layout import Layout

VERSION = 4
"""Of how tuples are assigned to shards, of where a shard keeps its state, and of which windows a query's text means."""
WITHOUT_BOUNDS = 3
"""The version in which an alias without a bracket always took the next one to its right."""


def frozen_json(layout: Layout) -> str:
    """What a checkpoint of a layout is bound to: what an earlier start has stored, or else what is to be stored."""
    if layout.stored:
        return layout.stored
    streams = [to_json(replace(stream, rate=None)) for stream in layout.streams]
    content = {
        "version": VERSION,
        "streams": streams,
        "queries": layout.queries,
        "shards": layout.shards,
        "shares": layout.placement.shares,
    } | ({"time_zones": layout.time_zones} if layout.time_zones else {})
    return json.dumps(content, sort_keys=True)


def digest(layout: Layout) -> str:
    """What every shard stores, to know the layout that it belongs to."""
    return blake2b(frozen_json(layout).encode(), digest_size=16).hexdigest()


def thawed(layout: Layout, stored: str) -> Layout:
    """A layout with the order and the shares of a checkpoint; raise `StateError` if `stored` is that of another layout."""
    content = json.loads(stored)
    differences = _differences(layout, content)
    if differences:
        raise StateError(
            f"the checkpoint belongs to another session: {'; '.join(differences)}",
            "start with a new checkpoint directory and new sinks (the old ones belong to the old checkpoint), or with the "
            "streams, queries and shards that wrote this one",
        )
    # Spark tells sources apart by their order, and shards are numbered in the order of queries.
    own = {plan.query.name: plan for plan in layout.plans}
    return replace(
        layout,
        streams=tuple(layout.catalog[stream["name"]] for stream in content["streams"]),
        plans=tuple(own[name] for name, _ in content["queries"]),
        frozen=tuple((name, tuple(shares)) for name, shares in content["shares"].items()),
        stored=stored,
    )


def _differences(layout: Layout, content: Mapping[str, Any]) -> list[str]:
    found = []
    if content.get("version") not in (WITHOUT_BOUNDS, VERSION):
        return [f"its layout has format version {content.get('version', 1)}; this release writes version {VERSION}"]
    if content["version"] == WITHOUT_BOUNDS:
        others = [name for name, query in layout.bound.items() if query.inferred]
        found += [f"the windows of query {name!r}, then of brackets, now follow from its conditions" for name in others]
    if content["shards"] != layout.shards:
        found.append(f"it has {content['shards']} shards, this session {layout.shards}")
    stored = {schema["name"]: from_json(StreamSchema, schema) for schema in content["streams"]}
    found += _named_differences("stream", set(stored), set(layout.catalog))
    for name in stored.keys() & layout.catalog.keys():
        found += _stream_differences(stored[name], layout.catalog[name])
    queries, own = dict(content["queries"]), dict(layout.queries)
    found += _named_differences("query", set(queries), set(own))
    zones, now = content.get("time_zones", {}), layout.time_zones
    for name in queries.keys() & own.keys():
        was, is_ = (named.get(name, "UTC") for named in (zones, now))
        if was != is_:
            found.append(f"the constants of query {name!r} were read in time zone {was}, now in {is_}")
    return found + [
        f"query {name!r} was another: it was\n{queries[name]}\nand is\n{own[name]}\n"
        for name in queries
        if name in own and not _means(layout, name, queries[name])
    ]


def _means(layout: Layout, name: str, text: str) -> bool:
    """Whether a query says the same as an earlier text; how it is written, and the case of aliases, may differ."""
    if text == dict(layout.queries)[name]:
        return True
    try:
        before = parse_query(name, text, layout.catalog, layout.time_zones.get(name, "UTC"))
    except DovetailError:
        return False
    return _meaning(before) == _meaning(layout.bound[name])


def _meaning(query: JoinQuery) -> tuple[object, ...]:
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


def _named_differences(kind: str, stored: set[str], own: set[str]) -> list[str]:
    faults = [f"it lacks {kind} {name!r}" for name in sorted(own - stored)]
    return faults + [f"it also has {kind} {name!r}" for name in sorted(stored - own)]


def _stream_differences(stored: StreamSchema, own: StreamSchema) -> list[str]:
    faults = []
    columns = {field.name: field.type for field in stored.columns}
    now = {field.name: field.type for field in own.columns}
    for name in dict.fromkeys((*columns, *now)):
        if columns.get(name) != now.get(name):
            was, is_ = (f"{types[name]}" if name in types else "not used" for types in (columns, now))
            faults.append(f"column {name!r} of stream {own.name!r} was {was}, is {is_}")
    for option in ("event_time", "lateness", "progress_by", "idle_after", "max_ahead"):
        before, after = getattr(stored, option), getattr(own, option)
        if before != after:
            was, is_ = (in_words(value) if isinstance(value, int) else repr(value) for value in (before, after))
            faults.append(f"{option} of stream {own.name!r} was {was}, is {is_}")
    return faults
