"""Differences between two jobs: queries that are kept, new, changed or dropped, and the new layout.

A checkpoint holds the tuples that its queries needed. So a changed query continues with the tuples in the log if they are on the same
shards; a new query begins with empty windows. `checkpoint.compatibility` says which differences are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dovetail._display import html_table, html_text
from dovetail.codec import from_json
from dovetail.config import Config
from dovetail.errors import StateError
from dovetail.optimizer.planner import plan_query
from dovetail.partition import HypercubeGrid, dimensions_of
from dovetail.plan.shared_plan import SharedPlan
from dovetail.query.durations import exact_duration
from dovetail.query.expressions import columns
from dovetail.query.model import CountWindow, JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.session.registered_query import QueryStart, RegisteredQuery
from dovetail.spark.checkpoint.compatibility import (
    check_version,
    incompatibilities,
    semantic_key,
    with_definitions,
    with_new_definitions,
    with_valid_plan,
)
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.placement import Placement, ShardAssignment, ShardGroup

_OPTIONS = ("lateness", "idle_after", "max_ahead")
"""Options of a stream that a session may change."""


@dataclass(frozen=True)
class Comparison:
    """The changes that a session makes to the job of a checkpoint."""

    kept: tuple[str, ...] = ()
    """Queries that continue unchanged."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Queries with another meaning, and what their windows begin with."""
    new: tuple[str, ...] = ()
    """Queries that begin with empty windows."""
    dropped: tuple[str, ...] = ()
    """Queries that end; state that only they used is freed."""
    streams: tuple[str, ...] = ()
    """Changes of streams, as text."""

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.new or self.dropped or self.streams)

    def __str__(self) -> str:
        lines = [f"query {name!r} is kept" for name in self.kept]
        lines += [f"query {name!r} is changed: {how}" for name, how in self.changed.items()]
        lines += [f"query {name!r} is new: it sees tuples from now on" for name in self.new]
        lines += [f"query {name!r} is dropped" for name in self.dropped]
        return "\n".join([*lines, *self.streams])

    def __repr__(self) -> str:
        return str(self) or "<Comparison of jobs without queries>"

    def _repr_html_(self) -> str:
        rows = [[name, "kept", ""] for name in self.kept]
        rows += [[name, "changed", how] for name, how in self.changed.items()]
        rows += [[name, "new", "it sees tuples from now on"] for name in self.new]
        rows += [[name, "dropped", ""] for name in self.dropped]
        table = html_table(("query", "is", ""), rows) if rows else html_text(repr(self))
        return table + "".join(html_text(text) for text in self.streams)


def read_layout(current: str, pinned: str, config: Config) -> Layout:
    """Read the current layout of a checkpoint from JSON; `pinned` is its pinned layout."""
    content = json.loads(current)
    schemas = [from_json(StreamSchema, stream) for stream in content["streams"]]
    streams, zones = {schema.name: schema for schema in schemas}, content.get("time_zones", {})
    starts = {name: from_json(QueryStart, start) for name, start in content.get("came", {}).items()}
    registered = {}
    for name, sql in content["queries"]:
        query = parse_query(name, sql, streams, zones.get(name, "UTC"))
        plan = plan_query(query, streams, config)
        registered[name] = RegisteredQuery(plan, start=starts.get(name, QueryStart()))
    chosen = from_json(SharedPlan, content["chosen"]) if content.get("chosen") else None
    firsts = content.get("firsts", {})
    assignments = {name: ShardAssignment(tuple(splits), firsts.get(name)) for name, splits in content["shares"].items()}
    return Layout.of(
        Job(config, streams=streams, registered=registered, adopted_plan=chosen, upper_bound=None),
        Placement(content["shards"], assignments, content.get("numbered", 0)),
        pinned_json=pinned,
        query_ids=content.get("numbers", {}),
        last_query_id=content.get("last_number", -1),
        shard_ids=tuple(content.get("ids", ())),
        added_columns=content.get("widened", {}),
    )


def reconcile_layouts(layout: Layout, current: str, pinned: str) -> tuple[Layout, Comparison | None]:
    """Return the layout of a checkpoint and the changes that `layout` makes to it, if any.

    `current` and `pinned` are the checkpoint's layouts as JSON. Raise `StateError` if it cannot continue with `layout`.
    """
    check_version(layout.job.queries, current)
    old = read_layout(current, pinned, layout.job.config)
    comparison = compare(layout, old)
    return (with_new_definitions(layout, old), None) if comparison.is_same else (old, comparison)


def compare(new: Layout, old: Layout) -> Comparison:
    """Return the changes between two layouts; raise `StateError` if a checkpoint of `old` forbids them."""
    if faults := incompatibilities(new, old):
        raise StateError(
            f"the checkpoint cannot continue with this session: {'; '.join(faults)}",
            "start with a new checkpoint directory and new sinks (the old ones belong to the old checkpoint), or with the "
            "streams and shards that wrote this one; dovetail reshard changes the number of shards",
        )
    old_queries, new_queries = old.job.queries, new.job.queries
    kept = [
        name
        for name, query in old_queries.items()
        if name in new_queries and semantic_key(query) == semantic_key(new_queries[name])
    ]
    sheds = new.job.config.shedding is not None
    changed = {
        name: _describe_change(new_queries[name], query, sheds=sheds)
        for name, query in old_queries.items()
        if name in new_queries and name not in kept
    }
    streams = []
    for stream in old.streams:
        declared = new.job.streams[stream.name]
        for option in _OPTIONS:
            before, after = getattr(stream, option), getattr(declared, option)
            if before != after:
                texts = ["None" if value is None else exact_duration(value) for value in (before, after)]
                text = f"{option} of stream {stream.name!r} was {texts[0]}, is {texts[1]}"
                if option == "lateness" and after > before:
                    text += ": tuples accepted by the new lateness may miss matches that have already expired"
                streams.append(text)
        columns_added = [name for name in declared.columns.names if name not in stream.columns.names]
        streams += [f"column {name!r} of stream {stream.name!r} is stored from now on" for name in columns_added]
    added = tuple(name for name in new_queries if name not in old_queries)
    dropped = tuple(name for name in old_queries if name not in new_queries)
    return Comparison(tuple(kept), changed, added, dropped, tuple(streams))


def _describe_change(query: JoinQuery, old_query: JoinQuery, *, sheds: bool) -> str:
    """Return what the windows of a changed query begin with."""
    if sheds:
        return "with shedding, the log keeps only tuples that queries needed; the query starts with empty windows"
    if query.has_count_window:
        return "its count windows start empty"
    if _routes(query) != _routes(old_query):
        return "its tuples are partitioned differently; it starts with empty windows"
    return "new tuples are joined with those in the log"


def _routes(query: JoinQuery) -> object:
    """Return the dimensions and routes of a query; if they are equal, so are the shards of all tuples."""
    axes = dimensions_of(query)
    routes = ShardGroup.of(query, HypercubeGrid(axes, (1,) * len(axes)), 0).routes
    return len(axes), {stream: sorted(texts) for stream, texts in routes.items()}


def with_changes(
    new: Layout, old: Layout, comparison: Comparison, declared_streams: Mapping[str, StreamSchema], first_batch: int
) -> Layout:
    """Return an old layout with the queries and streams of a new one, from `first_batch` on."""
    assignments = old.placement.assignments
    layout = with_valid_plan(old, new)
    for name in (*comparison.dropped, *comparison.changed):
        layout = without_query(layout, name)
    if comparison.streams:  # tuples that are accepted now may match older ones than before
        layout = replace(layout, job=layout.job.with_standalone_late_queries())
    layout = with_definitions(layout, new, (*_OPTIONS, "rate"))
    for name, query in new.job.registered.items():
        if name in comparison.changed:
            bound = query.plan.query
            keeps_shards = not bound.has_count_window and _routes(bound) == _routes(old.job.queries[name])
            start = QueryStart(first_batch, backfill=keeps_shards and new.job.config.shedding is None)
            assignment = assignments[name] if keeps_shards else None
            layout = with_query(layout, replace(query, start=start), declared_streams, assignment)
        elif name in comparison.new:
            layout = with_query(layout, replace(query, start=QueryStart(first_batch)), declared_streams)
    return layout


def with_query(
    layout: Layout,
    query: RegisteredQuery,
    declared_streams: Mapping[str, StreamSchema],
    assignment: ShardAssignment | None = None,
) -> Layout:
    """Return a layout with a query that starts while others run.

    Shards store the columns that only it needs from its first batch on. `assignment` gives its shards if it replaces another query.
    """
    bound, since = query.plan.query, query.start.first_batch
    streams, added_columns, complete_from = dict[str, StreamSchema](), dict(layout.added_columns), dict[str, int]()
    for stream in layout.streams:
        names, needed = set(stream.columns.names), projected(declared_streams[stream.name], [bound]).columns
        added = [column for column in needed if column.name not in names]
        streams[stream.name] = replace(stream, columns=pa.schema([*stream.columns, *added]))
        first_batches = {**added_columns.get(stream.name, {}), **{column.name: since for column in added}}
        added_columns |= {stream.name: first_batches} if first_batches else {}
        last_added = max((first_batches.get(column.name, 0) for column in needed), default=0)
        complete_from |= {stream.name: last_added} if last_added else {}
    placement, query_ids = layout.placement, _query_ids(layout)
    if assignment is not None:
        placement = replace(placement, pinned={**placement.pinned, bound.name: assignment})
    job = replace(layout.job, streams=streams, placement=placement)
    job = job.with_late_query_unchecked(replace(query, start=replace(query.start, complete_from=complete_from)))
    query_ids[bound.name] = 1 + max((layout.last_query_id, *query_ids.values()))
    return replace(layout, job=job, query_ids=query_ids, added_columns=added_columns)


def without_query(layout: Layout, name: str) -> Layout:
    """Return a layout without a query; the others keep their shards and ids."""
    query_ids = _query_ids(layout)
    last_query_id = max((layout.last_query_id, *query_ids.values()))
    del query_ids[name]
    return replace(layout, job=layout.job.without_query(name), query_ids=query_ids, last_query_id=last_query_id)


def _query_ids(layout: Layout) -> dict[str, int]:
    return {name: layout.query_id(name) for name in layout.job.registered}


def projected(stream: StreamSchema, queries: Sequence[JoinQuery]) -> StreamSchema:
    """Return a stream with the columns that queries read; all if a count window orders ties by content."""
    needed = {stream.event_time, stream.progress_by}
    for query in queries:
        aliases = {ref.alias for ref in query.refs if ref.stream == stream.name}
        if aliases and any(isinstance(ref.window, CountWindow) for ref in query.refs):
            return stream
        expressions = [output.expression for output in query.outputs]
        expressions += [condition.expression for condition in (*query.conditions, *query.filters)]
        expressions += [key.expression for group in query.classes for key in group.keys]
        needed |= {
            column.name for expression in expressions for column in columns(expression) if column.alias in aliases
        }
    return replace(stream, columns=pa.schema([field for field in stream.columns if field.name in needed]))
