"""Plans as text for people, as data for programs, as a picture (mermaid). Stable: one fact per line, no addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from dovetail.codec import LARGEST, to_json
from dovetail.config import Config
from dovetail.errors import ConfigError
from dovetail.plan.explain.shared import FORMS, Explanation, describe_global, explain_shared
from dovetail.plan.names import mermaid_text
from dovetail.plan.prefixes import sharers, stems
from dovetail.plan.query_plan import ProbeStage, QueryPlan
from dovetail.plan.shared_plan import SharedPlan
from dovetail.plan.steps import Consumer, JoinStep
from dovetail.query.expressions import Expression, map_columns
from dovetail.query.model import CountWindow, JoinQuery, StoredWindow, Window
from dovetail.schema import StreamSchema
from dovetail.stats.counters import JoinFigures, Measurements
from dovetail.stats.history import History

_MOST_NAMED = 5
"""Queries that are named where a stage is shared."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (
    ("day", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
)


class Units(Protocol):
    """What a stage costs."""

    def stage(self, calls: float, probes: float, matches: float) -> float: ...


class Declared(Protocol):
    """What a session was told."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]: ...

    @property
    def queries(self) -> Mapping[str, JoinQuery]: ...


def explain(  # noqa: PLR0913 - a form for each kind of knowledge
    declared: Declared,
    steps: Sequence[JoinStep],
    config: Config,
    form: str = "text",
    *,
    measured: Measurements | None = None,
    units: Units | None = None,
    plan: SharedPlan | None = None,
    history: History | None = None,
    together: Sequence[Sequence[JoinStep]] = (),
) -> Explanation:
    """Show what will be done with the queries and, given metrics, what was done: rows and times per new tuple.

    A global plan is shown as well: what is shared by which queries, and what its parts take. Of steps that run `together`, over the
    same windows, it is shown which stages they share.
    """
    if form not in FORMS:
        raise ConfigError.choice("explain(...)", form, FORMS)
    found, past = measured or Measurements(), history or History()
    if form == "mermaid" and plan is not None:
        return explain_shared(plan, form)
    description = describe(declared, steps, config)
    for step in steps:
        alone = step.is_own
        entry = description["queries" if alone else "joins"][step.name]
        known: Mapping[str, JoinFigures] = found.queries if alone else found.joins
        add_figures(entry, step.plan, known.get(step.name), units)
        if step.since:
            entry["since"] = step.since
        if step.backfill:
            times = past.reached.get(step.name, {})
            entry["held_from"] = {s.name: _moment(times[s.name]) if s.name in times else None for s in step.sources}
    for same in together if config.joins_in_turn else ():
        _add_sharers(description, same)
    _add_shed(description, found)
    if plan is not None:
        description["plan"] = describe_global(plan, found.nodes)
    if past.migrations:
        description["migrations"] = to_json(past.migrations)
    if form == "dict":
        return description
    if form == "mermaid":
        return _mermaid(description)
    whole = [str(explain_shared(plan, "text", found.nodes))] if plan is not None else []
    changed = ["\n".join(map(str, past.migrations))] if past.migrations else []
    return "\n\n".join([_text(description), *whole, *changed])


def _add_sharers(description: dict[str, Any], steps: Sequence[JoinStep]) -> None:
    """Add to each stage that is probed once for several joins whom it serves besides."""
    served = {step.name: [consumer.query for consumer in step.consumers] or [step.name] for step in steps}
    own = {step.name for step in steps if step.is_own}
    for paths in stems(steps).values():
        for (step, driver), others in sharers(paths).items():
            stages = description["queries" if step in own else "joins"][step]["paths"][driver]
            for stage, names in zip(stages[1:], others, strict=False):
                if names:
                    stage["shared_with"] = [query for name in names for query in served[name]]


def _add_shed(description: dict[str, Any], found: Measurements) -> None:
    """Add what was shed, and what that cost, where it may be."""
    for name, stream in found.streams.items():
        if stream.shed is not None and name in description["streams"]:
            last = None if stream.last_shed is None else _moment(stream.last_shed)
            description["streams"][name]["shed"] = {"tuples": stream.shed, "last": last}
    for name, query in found.queries.items():
        if query.recall is not None and name in description["queries"]:
            description["queries"][name]["recall"] = to_json(query.recall) | {"text": str(query.recall)}


def describe(declared: Declared, steps: Sequence[JoinStep], config: Config) -> dict[str, Any]:
    """The plan as plain data: what the other forms are drawn from."""
    queries = declared.queries
    own = {step.name: step for step in steps if step.is_own}
    answered = {consumer.query: (step, consumer) for step in steps for consumer in step.consumers}
    description = {
        "evaluation": config.evaluation,
        "expiration": config.expiration,
        "streams": {
            name: {
                "event_time": schema.event_time,
                "lateness": duration(schema.lateness),
                "rate": schema.rate,
                "used_by": [f"{q.name}.{ref.alias}" for q in queries.values() for ref in q.refs if ref.stream == name],
            }
            for name, schema in declared.streams.items()
        },
        "queries": {
            name: _query(own[name], query.sql) if name in own else _answered(query, *answered[name])
            for name, query in queries.items()
        },
    }
    joins = {step.name: _query(step, step.plan.query.sql) for step in steps if not step.is_own}
    return description | ({"joins": joins} if joins else {})


def _answered(query: JoinQuery, step: JoinStep, consumer: Consumer) -> dict[str, Any]:
    """A query whose results come from a join that serves others, too, or reads stored sub-joins."""
    return {
        "sql": query.sql,
        "inputs": {alias: {**entry, "source": consumer.sources[alias]} for alias, entry in _inputs(query).items()},
        "join": step.name,
        "output": query.schema.names,
    }


def _query(step: JoinStep, sql: str) -> dict[str, Any]:
    plan, query = step.plan, step.plan.query
    return {
        "sql": sql,
        "inputs": _inputs(query),
        "equal": [[f"{key.alias}: {_plain(key.expression, step)}" for key in group.keys] for group in query.classes],
        "conditions": [condition.text for condition in query.conditions],
        "filters": [condition.text for condition in query.filters],
        "output": query.schema.names,
        "ordering": plan.ordering,
        "waits_for_watermark": [ref.stream for ref in query.refs if isinstance(ref.window, CountWindow)],
        "paths": {path.driver: [_stage(stage, step) for stage in path.stages] for path in plan.paths},
    }


def _inputs(query: JoinQuery) -> dict[str, dict[str, Any]]:
    """Each alias's stream and window; for a window that is not written, the conditions it follows from."""
    inferred = dict(query.inferred)
    return {
        ref.alias: {"stream": ref.stream, "window": window_text(ref.window)}
        | ({"follows_from": list(inferred[ref.alias])} if ref.alias in inferred else {})
        for ref in query.refs
    }


def add_figures(entry: dict[str, Any], plan: QueryPlan, measured: JoinFigures | None, units: Units | None) -> None:
    """Add to a query's description what was expected of each stage and what was measured."""
    entry["changes"] = to_json(measured.changes) if measured else []
    entry["costs"] = {}
    for path in plan.paths:
        expected = plan.estimate.paths.get(path.driver)
        counted = measured.paths[path.driver] if measured else ()
        if tuple(stage.alias for stage in counted) != path.order or not counted[0].matches:
            counted = ()
        if expected is not None:
            other = list(expected.other) or None
            entry["costs"][path.driver] = {"cost": expected.cost, "next": other, "next_cost": expected.other_cost}
        for place, stage in enumerate(entry["paths"][path.driver]):
            if place and expected is not None:
                stage["expected"] = {"rows": expected.rows[place]}
            if place and counted:
                new, timed, met = counted[0].matches, counted[0].timed, counted[place]
                stage["measured"] = {"rows": met.matches / new}
                if timed:
                    stage["measured"]["us"] = 1000 * met.ms / timed
                if timed and units is not None and expected is not None and met.access == "hash":
                    calls = counted[0].probes / new
                    stage["expected"]["us"] = units.stage(calls, expected.rows[place - 1], expected.rows[place])


def _plain(expression: Expression, step: JoinStep) -> Expression:
    """An expression over sources, also where they are part of a stored input."""
    return map_columns(expression, lambda column: step.columns.get(column.name, column))


def _stage(stage: ProbeStage, step: JoinStep) -> dict[str, Any]:
    return {
        "alias": stage.alias,
        "access": stage.access,
        "on": [f"{_plain(part.target, step)} = {_plain(part.source.expression, step)}" for part in stage.key],
        "conditions": [condition.text for condition in stage.conditions],
    }


def duration(micros: int) -> str:
    """A length of time in its largest whole unit: `90 s`, `10 min`."""
    if micros == 0:
        return "0 s"
    unit, size = next((unit, size) for unit, size in _UNITS if micros % size == 0)
    return f"{micros // size} {unit}"


def window_text(window: Window) -> str:
    if isinstance(window, CountWindow):
        return f"last {window.rows} rows" + (f" per {window.partition_by}" if window.partition_by else "")
    if isinstance(window, StoredWindow):
        return "stored, " + ", ".join(f"{source} range {duration(micros)}" for source, micros in window.spans)
    if window.micros % 1000 == 999:  # it follows from a strict condition
        return f"range under {duration(window.micros + 1)}"
    return f"range {duration(window.micros)}"


def _text(description: Mapping[str, Any]) -> str:
    lines = [f"evaluation {description['evaluation']}, expiration {description['expiration']}"]
    for name, stream in description["streams"].items():
        rate = f", rate {stream['rate']:g}/s" if stream["rate"] else ""
        used = ", ".join(stream["used_by"]) or "no query"
        lines.append(
            f"stream {name}: event time {stream['event_time']}, lateness {stream['lateness']}{rate}; used by {used}"
            + _shed_text(stream)
        )
    for name, query in description["queries"].items():
        lines += ["", f"query {name}", *(f"  {line}" for line in _query_lines(query))]
    for name, join in description.get("joins", {}).items():
        lines += ["", f"join {name.removeprefix('join:')}", *(f"  {line}" for line in _query_lines(join))]
    return "\n".join(lines)


def _shed_text(stream: Mapping[str, Any]) -> str:
    shed = stream.get("shed")
    if shed is None:
        return ""
    return f"; {shed['tuples']:,} shed" + (f", last at {shed['last']}" if shed["last"] is not None else "")


def _query_lines(query: Mapping[str, Any]) -> list[str]:
    recall = [f"recall {query['recall']['text']}"] if "recall" in query else []
    return _plan_lines(query) + recall


def _plan_lines(query: Mapping[str, Any]) -> list[str]:
    lines = [
        f"input {alias}: {entry['stream']}, {entry['window']}"
        + (f", from {' and '.join(entry['follows_from'])}" if "follows_from" in entry else "")
        for alias, entry in query["inputs"].items()
    ]
    if "join" in query:
        others = [
            f"{alias} is {entry['source']}" for alias, entry in query["inputs"].items() if alias != entry["source"]
        ]
        given = f" ({', '.join(others)})" if others else ""
        return [
            *lines,
            f"takes join {query['join'].removeprefix('join:')}{given}",
            f"output {', '.join(query['output'])}",
        ]
    if "since" in query:
        lines.append(f"sees tuples of batch {query['since']} and later{_held_text(query)}")
    lines += [f"filter {text}" for text in query["filters"]]
    lines += [f"condition {text}" for text in query["conditions"]]
    if query["waits_for_watermark"]:
        lines.append(f"results wait for the watermark of {', '.join(query['waits_for_watermark'])}")
    lines.append(f"probe orders: {query['ordering']}")
    for driver, stages in query["paths"].items():
        lines.append(f"new {driver}{_cost_text(query, driver)}")
        lines += [f"  {_stage_text(stage)}" for stage in stages if stages[0] is not stage or stage["access"] != "new"]
    lines += [_change_text(change) for change in query.get("changes", ())]
    if query["output"]:
        lines.append(f"output {', '.join(query['output'])}")
    return lines


def _held_text(query: Mapping[str, Any]) -> str:
    held = [f"{name} from {time}" if time else f"{name} none" for name, time in query.get("held_from", {}).items()]
    return f"; of those before it {', '.join(held)}" if held else ""


def _moment(micros: int) -> str:
    """An event time as text; one before all times is the beginning."""
    if micros <= -LARGEST:
        return "the beginning"
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


def _cost_text(query: Mapping[str, Any], driver: str) -> str:
    cost = query.get("costs", {}).get(driver)
    if cost is None:
        return ""
    text = f": {_number(cost['cost'])} produced per second expected"
    return text + (f", {_number(cost['next_cost'])} by {', '.join(cost['next'][1:])}" if cost["next"] else "")


def _change_text(change: Mapping[str, Any]) -> str:
    orders = [", ".join(change[name]) for name in ("before", "after")]
    measured = [change["measured_before"], change["measured_after"]]
    found = [_number(value) if value is not None else "?" for value in measured]
    return (
        f"in batch {change['batch']} new {change['driver']} went from {orders[0]} to {orders[1]}: "
        f"{_number(change['predicted_before'])} to {_number(change['predicted_after'])} produced per tuple expected, "
        f"{found[0]} to {found[1]} measured"
    )


def _figures_text(stage: Mapping[str, Any]) -> str:
    parts = []
    for kind, unit in (("rows", "rows"), ("us", "us")):
        told = [(stage[name][kind], name) for name in ("expected", "measured") if kind in stage.get(name, {})]
        if told:
            (value, name), *others = told
            parts.append(f"{_number(value)} {unit} {name}" + "".join(f", {_number(v)} {n}" for v, n in others))
    return f": {'; '.join(parts)}" if parts else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _stage_text(stage: Mapping[str, Any]) -> str:
    verb = {"hash": "probe", "scan": "scan", "new": "meet new"}[stage["access"]]
    on = f" on {' and '.join(stage['on'])}" if stage["on"] else ""
    where = f" where {' and '.join(stage['conditions'])}" if stage["conditions"] else ""
    return f"{verb} {stage['alias']}{on}{where}{_figures_text(stage)}{_shared_text(stage)}"


def _shared_text(stage: Mapping[str, Any]) -> str:
    """Whom a stage serves besides; of many, the first few."""
    names = stage.get("shared_with", ())
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; shared with {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _mermaid(description: Mapping[str, Any]) -> str:
    lines = ["flowchart LR"]
    streams = {name: f"s{number}" for number, name in enumerate(description["streams"])}
    lines += [f'  {node}[("{mermaid_text(name)}")]' for name, node in streams.items()]
    for number, (name, query) in enumerate(description["queries"].items()):
        node = f"q{number}"
        lines += [f'  subgraph {node}["{mermaid_text(name)}"]', "    direction LR"]
        aliases = {alias: f"{node}a{place}" for place, alias in enumerate(query["inputs"])}
        lines += [
            f'    {aliases[alias]}["{mermaid_text(alias)}<br/>{entry["window"]}"]'
            for alias, entry in query["inputs"].items()
        ]
        lines += [f'    {node}out(["{len(query["output"])} columns"])']
        for driver, stages in query["paths"].items():
            order = " → ".join(stage["alias"] for stage in stages)
            lines.append(f'    {aliases[driver]} -- "{mermaid_text(order)}" --> {node}out')
        lines.append("  end")
        lines += [f"  {streams[entry['stream']]} --> {aliases[alias]}" for alias, entry in query["inputs"].items()]
    return "\n".join(lines)
