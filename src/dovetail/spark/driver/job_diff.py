"""From one set of queries to another: what is kept, what is new, what is dropped, and what a checkpoint's log does for it.

A checkpoint holds the tuples that its queries needed, whatever they did with them. So a query that has changed goes on with what the
log holds, as far as its tuples lie in the same shards; one that is new begins with empty windows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from dovetail.codec import from_json
from dovetail.config import Config
from dovetail.errors import StateError
from dovetail.optimizer.planner import plan_query
from dovetail.partition import Grid, dimensions_of
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import SharedPlan
from dovetail.plan.subset import part_of
from dovetail.query.durations import in_words
from dovetail.query.expressions import columns
from dovetail.query.model import CountWindow, JoinQuery
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.spark.checkpoint.compatibility import check_version, meaning, refused, still_chosen, thawed
from dovetail.spark.driver.layout import Layout, QueryStart
from dovetail.spark.driver.placement import ShardAssignment, ShardGroup

_OPTIONS = ("lateness", "idle_after", "max_ahead")
"""What may change of a stream."""


@dataclass(frozen=True)
class Comparison:
    """What becomes of a checkpoint in another session."""

    kept: tuple[str, ...] = ()
    """Queries that go on as they were."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Queries that mean something else now, and what they begin with."""
    new: tuple[str, ...] = ()
    """Queries that begin with empty windows."""
    dropped: tuple[str, ...] = ()
    """Queries that end; what only they used is freed."""
    streams: tuple[str, ...] = ()
    """What has changed of streams."""

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.new or self.dropped or self.streams)

    def __str__(self) -> str:
        lines = [f"query {name!r} is kept" for name in self.kept]
        lines += [f"query {name!r} is changed: {how}" for name, how in self.changed.items()]
        lines += [f"query {name!r} is new: it sees tuples from now on" for name in self.new]
        lines += [f"query {name!r} is dropped" for name in self.dropped]
        return "\n".join([*lines, *self.streams])


def stored_layout(stored: str, first: str, config: Config) -> Layout:
    """The layout that a checkpoint has come to; `first` is what it was bound to when it was made."""
    content = json.loads(stored)
    streams = tuple(from_json(StreamSchema, stream) for stream in content["streams"])
    catalog, zones = {stream.name: stream for stream in streams}, content.get("time_zones", {})
    queries = [parse_query(name, sql, catalog, zones.get(name, "UTC")) for name, sql in content["queries"]]
    firsts = content.get("firsts", {})
    return Layout(
        streams,
        tuple(plan_query(query, catalog, config) for query in queries),
        config,
        content["shards"],
        frozen={name: ShardAssignment(tuple(shares), firsts.get(name)) for name, shares in content["shares"].items()},
        stored=first,
        came={name: from_json(QueryStart, came) for name, came in content.get("came", {}).items()},
        numbers=content.get("numbers", {}),
        last_number=content.get("last_number", -1),
        numbered=content.get("numbered", 0),
        ids=tuple(content.get("ids", ())),
        widened=content.get("widened", {}),
        chosen=from_json(SharedPlan, content["chosen"]) if content.get("chosen") else None,
    )


def bind(layout: Layout, stored: str, first: str) -> tuple[Layout, Comparison | None]:
    """The layout that a checkpoint has come to, and what becomes of it if another is to go on with it; refuse one that cannot.

    `first`: what it was bound to when it was made.
    """
    check_version(layout.bound, stored)
    old = stored_layout(stored, first, layout.config)
    comparison = compare(layout, old)
    return (thawed(layout, old), None) if comparison.is_same else (old, comparison)


def compare(new: Layout, old: Layout) -> Comparison:
    """What becomes of the queries and streams of an old layout; raise `StateError` if the checkpoint cannot go on with the new one."""
    if faults := refused(new, old):
        raise StateError(
            f"the checkpoint cannot go on with this session: {'; '.join(faults)}",
            "start with a new checkpoint directory and new sinks (the old ones belong to the old checkpoint), or with the "
            "streams and shards that wrote this one; dovetail reshard changes the number of shards",
        )
    before, now = old.bound, new.bound
    same = [name for name in before if name in now and meaning(before[name]) == meaning(now[name])]
    sheds = new.config.shedding is not None
    changed = {
        name: _begins_with(now[name], before[name], sheds=sheds) for name in before if name in now and name not in same
    }
    streams = []
    for stream in old.streams:
        declared = new.catalog[stream.name]
        for option in _OPTIONS:
            was, is_ = getattr(stream, option), getattr(declared, option)
            if was != is_:
                texts = ["None" if value is None else in_words(value) for value in (was, is_)]
                text = f"{option} of stream {stream.name!r} was {texts[0]}, is {texts[1]}"
                if option == "lateness" and is_ > was:
                    text += ": tuples that are no longer late miss partners that have expired already"
                streams.append(text)
        more = [each.name for each in declared.columns if each.name not in stream.columns.names]
        streams += [f"column {name!r} of stream {stream.name!r} is carried from now on" for name in more]
    dropped = tuple(name for name in before if name not in now)
    return Comparison(tuple(same), changed, tuple(name for name in now if name not in before), dropped, tuple(streams))


def _begins_with(query: JoinQuery, before: JoinQuery, *, sheds: bool) -> str:
    if sheds:
        return "where tuples may be shed the log holds only what queries needed: it sees tuples from now on"
    if query.has_count_window:
        return "its count windows are empty, and fill from now on"
    if _ways(query) != _ways(before):
        return "its tuples lie in other shards, where it sees them from now on"
    return "new tuples meet those that the log holds"


def _ways(query: JoinQuery) -> object:
    """How a query places its tuples."""
    axes = dimensions_of(query)
    ways = ShardGroup.of(query, Grid(axes, (1,) * len(axes)), 0).ways
    return len(axes), {stream: sorted(own) for stream, own in ways.items()}


def revised(
    new: Layout, old: Layout, comparison: Comparison, declared: Mapping[str, StreamSchema], since: int
) -> Layout:
    """An old layout with the queries and streams of a new one, from batch `since` on."""
    seats = old.placement.seats
    left = without(still_chosen(old, new), [*comparison.dropped, *comparison.changed])
    if comparison.streams:  # tuples that are let in now may meet older ones than those let in before
        left = apart_again(left)
    streams = []
    for stream in old.streams:
        options = {option: getattr(new.catalog[stream.name], option) for option in (*_OPTIONS, "rate")}
        streams.append(replace(stream, **options))
    own = {plan.query.name: plan for plan in new.plans}
    kept = tuple(own[plan.query.name] for plan in left.plans)
    layout = replace(left, streams=tuple(streams), plans=kept, config=new.config, budget=new.budget)
    for name, plan in own.items():
        if name in comparison.changed:
            query = plan.query
            stays = not query.has_count_window and _ways(query) == _ways(old.bound[name])
            came = QueryStart(since, backfill=stays and new.config.shedding is None)
            layout = with_plan(layout, plan, declared, came, seats[name] if stays else None)
        elif name in comparison.new:
            layout = with_plan(layout, plan, declared, QueryStart(since))
    return layout


def replanned(layout: Layout, chosen: SharedPlan, plans: Mapping[str, QueryPlan]) -> Layout:
    """A layout whose queries are planned together as was `chosen`, those that came late among them; `plans`: each by itself."""
    came = {name: replace(each, merged=each.merged or name in plans) for name, each in layout.came.items()}
    own = tuple(plans.get(plan.query.name, plan) for plan in layout.plans)
    return replace(layout, chosen=chosen, plans=own, came=came)


def apart_again(layout: Layout) -> Layout:
    """A layout in which queries that came late are planned by themselves again."""
    came = {name: replace(each, merged=False) for name, each in layout.came.items()}
    return replace(layout, came=came, chosen=_part(layout.chosen, layout.together.keys() - came.keys()))


def _part(chosen: SharedPlan | None, names: Collection[str]) -> SharedPlan | None:
    return part_of(chosen, names) if chosen is not None else None


def begun(layout: Layout, since: int, progress: Mapping[str, Any] | None) -> Layout:
    """A layout that knows how far streams had come before the queries that come with batch `since`."""
    heads = {name: int(found["head"]) for name, found in (progress or {}).items()}
    came = {name: replace(each, heads=heads) if each.since == since else each for name, each in layout.came.items()}
    return replace(layout, came=came)


def with_plan(
    layout: Layout,
    plan: QueryPlan,
    declared: Mapping[str, StreamSchema],
    came: QueryStart,
    seat: ShardAssignment | None = None,
) -> Layout:
    """A layout with one more query; columns that no query has read yet are carried from then on.

    `seat`: where it has to be, if it is in place of another.
    """
    query, streams, widened, carried = plan.query, list[StreamSchema](), dict(layout.widened), dict[str, int]()
    for stream in layout.streams:
        known, needed = set(stream.columns.names), projected(declared[stream.name], [query]).columns
        more = [each for each in needed if each.name not in known]
        streams.append(replace(stream, columns=pa.schema([*stream.columns, *more])))
        own = {**widened.get(stream.name, {}), **{each.name: came.since for each in more}}
        widened |= {stream.name: own} if own else {}
        first = max((own.get(each.name, 0) for each in needed), default=0)
        carried |= {stream.name: first} if first else {}
    return replace(
        layout,
        streams=tuple(streams),
        plans=(*layout.plans, plan),
        came={**layout.came, query.name: replace(came, carried=carried)},
        numbers={**numbered(layout), query.name: 1 + max((layout.last_number, *numbered(layout).values()))},
        widened=widened,
        frozen=layout.placement.seats | ({query.name: seat} if seat is not None else {}),
        numbered=layout.placement.total,
    )


def without(layout: Layout, names: Collection[str]) -> Layout:
    """A layout without some queries; what is known of the others stays."""
    numbers = numbered(layout)
    return replace(
        layout,
        plans=tuple(plan for plan in layout.plans if plan.query.name not in names),
        came={name: came for name, came in layout.came.items() if name not in names},
        numbers={name: number for name, number in numbers.items() if name not in names},
        last_number=max((layout.last_number, *numbers.values())),
        frozen={name: seat for name, seat in layout.placement.seats.items() if name not in names},
        numbered=layout.placement.total,
        chosen=_part(layout.chosen, layout.together.keys() - set(names)),
    )


def numbered(layout: Layout) -> dict[str, int]:
    return {name: layout.number_of(name) for name in layout.bound}


def projected(stream: StreamSchema, queries: Sequence[JoinQuery]) -> StreamSchema:
    """A stream with the columns its queries use; all of them where a count window orders ties by content."""
    needed = {stream.event_time, stream.progress_by}
    for query in queries:
        own = {ref.alias for ref in query.refs if ref.stream == stream.name}
        if own and any(isinstance(ref.window, CountWindow) for ref in query.refs):
            return stream
        expressions = [output.expression for output in query.outputs]
        expressions += [condition.expression for condition in (*query.conditions, *query.filters)]
        expressions += [key.expression for group in query.classes for key in group.keys]
        needed |= {c.name for expression in expressions for c in columns(expression) if c.alias in own}
    return replace(stream, columns=pa.schema([field for field in stream.columns if field.name in needed]))
