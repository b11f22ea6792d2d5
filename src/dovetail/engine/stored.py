"""What the JSON of a snapshot looks like, and whether it can be believed.

A snapshot may come from anyone: its digest says that nothing has happened to it by accident, not who wrote it. So every name, number
and list is checked before anything is made of it, and what was made is compared with what it claims to be. A session that somebody
wanted to give wrong results will do so; it will not read outside its arrays, nor fail later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from dovetail.config import Budget
from dovetail.engine.progress import StreamProgress
from dovetail.engine.shapes import LARGEST, Count, Positive, Size, Time, check
from dovetail.engine.shard import ShardEngine
from dovetail.errors import StateError, listed
from dovetail.plan.global_json import plan_from_json
from dovetail.plan.global_plan import GlobalPlan, Load
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.statistics import Change
from dovetail.plan.steps import JoinStep
from dovetail.query.durations import LONGEST
from dovetail.query.model import CountWindow
from dovetail.schema import StreamSchema, stored_schema

MOST_WORDS = 1 << 10
"""Words of flags that a window may have: 65,536 aliases."""
Place = tuple[Annotated[int, (0, MOST_WORDS - 1)], Annotated[int, (1, 1 << 63)]]
Span = Annotated[int, (0, LONGEST)]
Hints = list[tuple[tuple[str, str], Annotated[float, (1e-30, 1)]]]
SchemaJson = TypedDict("SchemaJson", {**get_type_hints(StreamSchema), "columns": str})  # type: ignore[misc]
PlanJson = TypedDict("PlanJson", {**get_type_hints(GlobalPlan), "limits": tuple[Positive | None, Positive | None]})  # type: ignore[misc]


class StreamJson(TypedDict):
    """A stream and how far it has come."""

    schema: SchemaJson
    progress: dict[str, Any]


class RunnerJson(TypedDict):
    """What was counted along a path."""

    order: list[str]
    access: list[Literal["hash", "scan", "new"]]
    counts: list[tuple[Count, Count, Count, Count]]
    noted: list[tuple[Count, Count, Count, Count]]


class WatchJson(TypedDict):
    """What a join's probes have found."""

    found: list[tuple[list[str], str, Size, Size, Size, Count]]
    settled: list[tuple[list[str], str, Size]]
    tried: list[tuple[str, list[str], Size, Size]]
    rates: dict[str, Size]
    sizes: dict[str, Size]
    fresh: Count
    time: Time | None
    ready_at: Time | None
    patience: Count
    skipped: Count
    changes: list[Change]
    unmeasured: dict[str, Count]
    credit: Annotated[float, (-LARGEST, LARGEST)] | None
    seen: dict[str, tuple[Count, Count]]
    costs: dict[str, Size]


class TakerJson(TypedDict):
    """A query that a join answers."""

    name: str
    sql: str
    results: Count


class RunJson(TypedDict):
    """One join."""

    name: str
    sources: dict[str, Place]
    inputs: dict[str, Place]
    takers: list[TakerJson]
    runners: dict[str, RunnerJson]
    watch: WatchJson
    retired: tuple[Count, Count, Count]
    state: str | None
    windows: dict[str, Span]


class GroupJson(TypedDict):
    """Joins over the same windows."""

    name: str
    frontier: list[str] | None
    batches: Count
    runs: list[RunJson]


class ChoicesJson(TypedDict):
    """What was asked of a query's plan."""

    hints: Hints
    orders: dict[str, list[str]] | None


class JointJson(TypedDict):
    """The plan of several queries."""

    plan: PlanJson
    queries: dict[str, str]
    choices: dict[str, ChoicesJson]
    time_zones: dict[str, str]


class ExtraJson(TypedDict):
    """What a session adds."""

    hints: Hints
    choices: dict[str, ChoicesJson]
    budget: Budget | None
    joint: JointJson | None
    alone: dict[str, Load]


class SnapshotJson(TypedDict):
    """The whole of it."""

    config: dict[str, Any]
    batches: Count
    streams: list[StreamJson]
    groups: list[GroupJson]
    windows: list[str]
    stores: dict[str, Any]
    extra: dict[str, Any]


def check_snapshot(content: Any) -> None:
    """Raise `StateError` unless the JSON of a snapshot has the shape that we write, and names each thing once."""
    check(content, SnapshotJson, "the snapshot")
    groups = content["groups"]
    runs = [run for group in groups for run in group["runs"]]
    queries = [taker["name"] for run in runs for taker in run["takers"]]
    _once("stream", [stream["schema"]["name"] for stream in content["streams"]])
    _once("group", [group["name"] for group in groups])
    _once("join", [run["name"] for run in runs])
    _once("query", queries)
    if [group["frontier"] is None for group in groups] != [True] + [False] * (len(groups) - 1):
        raise StateError("the snapshot's first group must be the one without count windows, and no other")
    if content["extra"]:  # an engine alone has none
        _check_extra(content["extra"], set(queries))
    for stream in content["streams"]:
        schema = stream["schema"]
        for option in ("lateness", "idle_after", "max_ahead"):
            check(schema[option], Span | None, f"stream {schema['name']!r}: {option}")


def _check_extra(extra: Any, queries: set[str]) -> None:
    check(extra, ExtraJson, "the snapshot.extra")
    if set(extra["choices"]) != queries or not set(extra["alone"]) <= queries:
        raise StateError(f"the snapshot's choices are not for its queries: {listed(sorted(queries))}")
    if extra["joint"] is not None:
        _check_joint(extra["joint"])


def _check_joint(joint: Any) -> None:
    plan, queries = plan_from_json(joint["plan"]), set(joint["queries"])
    _same("the queries of the snapshot's plan", {answer.query for answer in plan.answers}, queries)
    _same("the queries with choices in the snapshot's plan", set(joint["choices"]), queries)
    _same("the order of the queries in the snapshot's plan", set(plan.query_order), queries)
    below = {name: {node.id for node in plan.below(name)} for name in queries}
    for node in plan.nodes.values():
        needed = {name for name in queries if node.id in below[name]}
        _same(f"the queries that need {node.id!r} in the snapshot's plan", set(node.queries), needed)


def check_stream(schema: StreamSchema, progress: Mapping[str, Any]) -> None:
    """Raise `StateError` unless a stream is one that could be declared, and its progress is what such a stream has."""
    if StreamSchema.from_json(schema.to_json()) != schema or stored_schema(schema.columns) != schema.columns:
        raise StateError(f"stream {schema.name!r} has columns that none is kept with: {schema.columns}")
    fresh, place = StreamProgress(schema).to_json(), f"the progress of stream {schema.name!r}"
    if progress.keys() != fresh.keys():
        raise StateError(f"{place} has {listed(progress)}; expected {listed(fresh)}")
    for name, value in progress.items():
        if name == "partition_heads":
            check(value, list[tuple[str | Annotated[int, (0, (1 << 64) - 1)] | None, Time]], f"{place}: {name}")
        elif fresh[name] is None:
            check(value, Time | None, f"{place}: {name}")
        else:
            check(value, Count if fresh[name] == 0 and name != "late_by" else Time, f"{place}: {name}")


def check_run(stored: Mapping[str, Any], step: JoinStep, group: Mapping[str, Any], words: int) -> None:
    """Raise `StateError` unless what is stored of a join fits it; `words` are the words of flags that tuples have."""
    place = f"join {step.name!r}"
    counted = {ref.stream for ref in step.flat.refs if isinstance(ref.window, CountWindow)}
    _same(f"{place}: its group's streams with count windows", set(group["frontier"] or ()), counted)
    _same(f"{place}: its sources", set(stored["sources"]), {ref.alias for ref in step.flat.refs})
    _same(f"{place}: its stored inputs", set(stored["inputs"]), set(step.stored_inputs))
    _same(f"{place}: its windows", set(stored["windows"]), set(step.windows))
    for source, micros in stored["windows"].items():
        if micros > step.windows[source]:
            raise StateError(f"{place}: its window on {source!r} is larger than any query's: {micros} microseconds")
    if unknown := {taker["name"] for taker in stored["takers"]} - {taker.query.name for taker in step.takers}:
        raise StateError(f"{place} cannot answer {listed(sorted(unknown))}")
    if stored["state"] not in (None, step.state):
        raise StateError(f"{place} stores its results as {stored['state']!r}; expected {step.state!r}")
    for kind, limit in (("sources", words), ("inputs", MOST_WORDS)):
        for source, (word, bit) in stored[kind].items():
            if word >= limit or bit & (bit - 1):
                raise StateError(f"{place}: the flag of {source!r} is bit {bit} of word {word}, which no tuple has")
    _check_runners(place, stored["runners"], step.plan)


def _check_runners(place: str, stored: Mapping[str, Any], plan: QueryPlan) -> None:
    aliases = sorted(plan.query.aliases)
    _same(f"{place}: its paths", set(stored), set(aliases))
    for driver, runner in stored.items():
        if sorted(runner["order"]) != aliases or {len(part) for part in runner.values()} != {len(aliases)}:
            raise StateError(f"{place}: the path of {driver!r} does not meet each of {listed(aliases)} once")
        if [alias for alias, way in zip(runner["order"], runner["access"], strict=True) if way == "new"] != [driver]:
            raise StateError(f"{place}: the path of {driver!r} has others' new tuples")
        for now, before in zip(runner["counts"], runner["noted"], strict=True):
            if any(one < other for one, other in zip(now, before, strict=True)):
                raise StateError(f"{place}: the counts of {driver!r} have become smaller")


def check_watch(stored: Mapping[str, Any], plan: QueryPlan) -> None:
    """Raise `StateError` unless statistics are about a plan's aliases, and numbers that a planner can work with."""
    aliases, place = set(plan.query.aliases), f"the statistics of join {plan.query.name!r}"
    named = [alias for kind in ("rates", "sizes", "unmeasured", "seen", "costs") for alias in stored[kind]]
    named += [name for joined, alias, *_ in (*stored["found"], *stored["settled"]) for name in (*joined, alias)]
    named += [name for driver, order, *_ in stored["tried"] for name in (driver, *order)]
    if not set(named) <= aliases:
        raise StateError(f"{place} are about {listed(sorted(set(named) - aliases))}")
    numbers = [number for _, _, *sums in stored["found"] for number in sums[:3]]
    numbers += [number for _, _, number in stored["settled"]]
    numbers += [number for _, _, *cost in stored["tried"] for number in cost]
    if any(
        number > LARGEST
        for number in (*numbers, *(n for kind in ("rates", "sizes", "costs") for n in stored[kind].values()))
    ):
        raise StateError(f"{place} are out of range")
    if not all(stored["rates"].values()) or any(joined and alias in joined for joined, alias, *_ in stored["found"]):
        raise StateError(f"{place} contradict themselves")
    if any(number >= len(stored["changes"]) for number in stored["unmeasured"].values()):
        raise StateError(f"{place} are about changes that were not made")


def check_filled(engine: ShardEngine) -> None:
    """Raise `StateError` unless an engine's joins fit together."""
    for group in engine.groups:
        for run in group.runs.values():
            if not run.collectors and run.state is None:
                raise StateError(f"join {run.name!r} serves nobody")
            if run.needed != run.windows:
                raise StateError(f"join {run.name!r} has windows of {run.windows}; its queries need {run.needed}")
            for path in run.plan.paths:
                for stage in path.stages:
                    if stage.access == "hash" and not stage.key:
                        raise StateError(f"join {run.name!r} looks for {stage.alias!r} by a key that it has not")
        for window in group.windows.values():
            _once("flag", [(usage.word, int(usage.bit)) for usage in window.usages.values()])
        for state in group.states.values():
            _once("flag", [(reader.word, int(reader.bit)) for reader in state.readers.values()])


def _once(kind: str, names: Iterable[Any]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise StateError(f"the snapshot has {listed(repeated)} more than once as {kind}")


def _same(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        raise StateError(f"{what} are {listed(sorted(found))}; expected {listed(sorted(expected))}")
