"""Explains execution plans as text, plain data or a mermaid diagram. The text is stable: one fact per line, no addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from dovetail.codec import LARGEST, to_json
from dovetail.config import Config
from dovetail.plan.explain.explanation import Explanation
from dovetail.plan.explain.shared import explain_shared
from dovetail.plan.names import mermaid_text
from dovetail.plan.prefixes import shared_prefixes, sharing_steps
from dovetail.plan.query_plan import ProbeStage, QueryPlan
from dovetail.plan.shared_plan import SharedPlan
from dovetail.plan.steps import Consumer, JoinStep
from dovetail.query.durations import exact_duration
from dovetail.query.expressions import Expression, map_columns
from dovetail.query.model import CountWindow, JoinQuery, StoredWindow, Window
from dovetail.schema import StreamSchema
from dovetail.stats.counters import JoinMetrics, Measurements
from dovetail.stats.history import History

_MAX_NAMED = 5
"""Maximum number of queries named where a stage is shared."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StageCosts(Protocol):
    """Expected cost of a stage in microseconds."""

    def stage(self, calls: float, probes: float, matches: float) -> float: ...


class Declarations(Protocol):
    """The streams and queries of a session."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]: ...

    @property
    def queries(self) -> Mapping[str, JoinQuery]: ...


def explain(
    declared: Declarations,
    steps: Sequence[JoinStep],
    config: Config,
    *,
    measured: Measurements | None = None,
    units: StageCosts | None = None,
    plan: SharedPlan | None = None,
    history: History | None = None,
    together: Sequence[Sequence[JoinStep]] = (),
) -> Explanation:
    """Explain the plan of a session's queries; with metrics, also the measured rows and times per new tuple.

    A shared plan adds which queries share what, and the cost of each node. For each list of steps in `together`, which run over the
    same windows, shared stages are marked.
    """
    metrics, past = measured or Measurements(), history or History()
    description = _describe(declared, steps, config)
    for step in steps:
        entry = description["queries" if step.is_private else "joins"][step.name]
        step_metrics: Mapping[str, JoinMetrics] = metrics.queries if step.is_private else metrics.joins
        _add_costs(entry, step.plan, step_metrics.get(step.name), units)
        if step.since:
            entry["since"] = step.since
        if step.backfill:
            times = past.reached.get(step.name, {})
            entry["held_from"] = {s.name: _timestamp(times[s.name]) if s.name in times else None for s in step.sources}
    for same_windows in together if config.can_share_stages else ():
        _add_shared_stages(description, same_windows)
    _add_shedding(description, metrics)
    shared = None if plan is None else explain_shared(plan, metrics.nodes)
    if shared is not None:
        description["plan"] = shared.to_dict()
    if past.migrations:
        description["migrations"] = to_json(past.migrations)
    parts = [_text(description)]
    if shared is not None:
        parts.append(shared.text)
    if past.migrations:
        parts.append("\n".join(map(str, past.migrations)))
    diagram = _mermaid(description) if shared is None else shared.diagram
    return Explanation("\n\n".join(parts), description, diagram)


def _add_shared_stages(description: dict[str, Any], steps: Sequence[JoinStep]) -> None:
    """Add, to each stage that several joins share, the queries of the other joins."""
    queries = {step.name: [consumer.query for consumer in step.consumers] or [step.name] for step in steps}
    private = {step.name for step in steps if step.is_private}
    for prefixes in shared_prefixes(steps).values():
        for (step, driver), others in sharing_steps(prefixes).items():
            stages = description["queries" if step in private else "joins"][step]["paths"][driver]
            for stage, names in zip(stages[1:], others, strict=False):
                if names:
                    stage["shared_with"] = [query for name in names for query in queries[name]]


def _add_shedding(description: dict[str, Any], metrics: Measurements) -> None:
    """Add the number of shed tuples to streams, and the recall to queries, if shedding is on."""
    for name, stream in metrics.streams.items():
        if stream.shed is not None and name in description["streams"]:
            last = None if stream.last_shed is None else _timestamp(stream.last_shed)
            description["streams"][name]["shed"] = {"tuples": stream.shed, "last": last}
    for name, query in metrics.queries.items():
        if query.recall is not None and name in description["queries"]:
            description["queries"][name]["recall"] = to_json(query.recall) | {"text": str(query.recall)}


def _describe(declared: Declarations, steps: Sequence[JoinStep], config: Config) -> dict[str, Any]:
    """Return the plan as plain data, the basis of the other forms."""
    queries = declared.queries
    private = {step.name: step for step in steps if step.is_private}
    answered = {consumer.query: (step, consumer) for step in steps for consumer in step.consumers}
    description = {
        "evaluation": config.evaluation,
        "expiration": config.expiration,
        "streams": {
            name: {
                "event_time": schema.event_time,
                "lateness": exact_duration(schema.lateness),
                "rate": schema.rate,
                "used_by": [f"{q.name}.{ref.alias}" for q in queries.values() for ref in q.refs if ref.stream == name],
            }
            for name, schema in declared.streams.items()
        },
        "queries": {
            name: _describe_join(private[name], query.sql)
            if name in private
            else _describe_consumer(query, *answered[name])
            for name, query in queries.items()
        },
    }
    joins = {step.name: _describe_join(step, step.plan.query.sql) for step in steps if not step.is_private}
    return description | ({"joins": joins} if joins else {})


def _describe_consumer(query: JoinQuery, step: JoinStep, consumer: Consumer) -> dict[str, Any]:
    """Describe a query that reads the results of a join under `joins`."""
    return {
        "sql": query.sql,
        "inputs": {alias: {**entry, "source": consumer.sources[alias]} for alias, entry in _inputs(query).items()},
        "join": step.name,
        "output": query.schema.names,
    }


def _describe_join(step: JoinStep, sql: str) -> dict[str, Any]:
    plan, query = step.plan, step.plan.query
    return {
        "sql": sql,
        "inputs": _inputs(query),
        "equal": [
            [f"{key.alias}: {_over_sources(key.expression, step)}" for key in group.keys] for group in query.classes
        ],
        "conditions": [condition.text for condition in query.conditions],
        "filters": [condition.text for condition in query.filters],
        "output": query.schema.names,
        "ordering": plan.ordering,
        "waits_for_watermark": [ref.stream for ref in query.refs if isinstance(ref.window, CountWindow)],
        "paths": {path.driver: [_describe_stage(stage, step) for stage in path.stages] for path in plan.paths},
    }


def _inputs(query: JoinQuery) -> dict[str, dict[str, Any]]:
    """Describe each alias's stream and window; for an inferred window, also the conditions it follows from."""
    inferred = dict(query.inferred)
    return {
        ref.alias: {"stream": ref.stream, "window": _window_text(ref.window)}
        | ({"follows_from": list(inferred[ref.alias])} if ref.alias in inferred else {})
        for ref in query.refs
    }


def _add_costs(entry: dict[str, Any], plan: QueryPlan, metrics: JoinMetrics | None, units: StageCosts | None) -> None:
    """Add the expected and measured costs of each stage to the description of a join."""
    entry["changes"] = to_json(metrics.changes) if metrics else []
    entry["costs"] = {}
    for path in plan.paths:
        expected = plan.estimate.paths.get(path.driver)
        measured = metrics.paths[path.driver] if metrics else ()
        if tuple(stage.alias for stage in measured) != path.order or not measured[0].matches:
            measured = ()
        if expected is not None:
            other = list(expected.other) or None
            entry["costs"][path.driver] = {"cost": expected.cost, "next": other, "next_cost": expected.other_cost}
        for index, stage in enumerate(entry["paths"][path.driver]):
            if index and expected is not None:
                stage["expected"] = {"rows": expected.rows[index]}
            if index and measured:
                new, timed, probe = measured[0].matches, measured[0].timed, measured[index]
                stage["measured"] = {"rows": probe.matches / new}
                if timed:
                    stage["measured"]["us"] = 1000 * probe.ms / timed
                if timed and units is not None and expected is not None and probe.access == "hash":
                    calls = measured[0].probes / new
                    stage["expected"]["us"] = units.stage(calls, expected.rows[index - 1], expected.rows[index])


def _over_sources(expression: Expression, step: JoinStep) -> Expression:
    """Rewrite columns of materialized inputs as columns of their sources."""
    return map_columns(expression, lambda column: step.columns.get(column.name, column))


def _describe_stage(stage: ProbeStage, step: JoinStep) -> dict[str, Any]:
    equalities = [(_over_sources(part.target, step), _over_sources(part.source.expression, step)) for part in stage.key]
    return {
        "alias": stage.alias,
        "access": stage.access,
        "on": [f"{left} = {right}" for left, right in equalities],
        "conditions": [condition.text for condition in stage.conditions],
    }


def _window_text(window: Window) -> str:
    if isinstance(window, CountWindow):
        return f"last {window.rows} rows" + (f" per {window.partition_by}" if window.partition_by else "")
    if isinstance(window, StoredWindow):
        spans = (f"{source} range {exact_duration(micros)}" for source, micros in window.spans)
        return f"materialized, {', '.join(spans)}"
    if window.micros % 1000 == 999:  # inferred from a strict condition
        return f"range under {exact_duration(window.micros + 1)}"
    return f"range {exact_duration(window.micros)}"


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
    return f"; {shed['tuples']:,} tuples shed" + (f", the last at {shed['last']}" if shed["last"] is not None else "")


def _query_lines(query: Mapping[str, Any]) -> list[str]:
    recall = [f"recall {query['recall']['text']}"] if "recall" in query else []
    return _plan_lines(query) + recall


def _plan_lines(query: Mapping[str, Any]) -> list[str]:
    lines = [
        f"input {alias}: {entry['stream']}, {entry['window']}"
        + (f", inferred from {' and '.join(entry['follows_from'])}" if "follows_from" in entry else "")
        for alias, entry in query["inputs"].items()
    ]
    if "join" in query:
        renamed = [
            f"{alias} is {entry['source']}" for alias, entry in query["inputs"].items() if alias != entry["source"]
        ]
        mapping = f" ({', '.join(renamed)})" if renamed else ""
        return [
            *lines,
            f"reads join {query['join'].removeprefix('join:')}{mapping}",
            f"output {', '.join(query['output'])}",
        ]
    if "since" in query:
        lines.append(f"starts at batch {query['since']}{_backfill_text(query)}")
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


def _backfill_text(query: Mapping[str, Any]) -> str:
    held = [f"{name} from {time}" if time else f"{name} none" for name, time in query.get("held_from", {}).items()]
    return f"; backfill: {', '.join(held)}" if held else ""


def _timestamp(micros: int) -> str:
    """Format an event time; one below the allowed range is the beginning."""
    if micros <= -LARGEST:
        return "the beginning"
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


def _cost_text(query: Mapping[str, Any], driver: str) -> str:
    cost = query.get("costs", {}).get(driver)
    if cost is None:
        return ""
    text = f": cost {_format_number(cost['cost'])} rows/s"
    if not cost["next"]:
        return text
    kind = "next best" if cost["next_cost"] >= cost["cost"] else "cheaper"
    return f"{text} ({kind} order {', '.join(cost['next'][1:])}: {_format_number(cost['next_cost'])})"


def _change_text(change: Mapping[str, Any]) -> str:
    orders = [", ".join(change[name]) for name in ("before", "after")]
    costs = [
        "?" if change[name] is None else _format_number(change[name])
        for name in ("predicted_before", "predicted_after", "measured_before", "measured_after")
    ]
    return (
        f"batch {change['batch']}: order of new {change['driver']} changed from {orders[0]} to {orders[1]}: "
        f"{costs[0]} -> {costs[1]} rows per tuple expected, {costs[2]} -> {costs[3]} measured"
    )


def _stage_cost_text(stage: Mapping[str, Any]) -> str:
    parts = []
    for unit in ("rows", "us"):
        values = [(stage[kind][unit], kind) for kind in ("expected", "measured") if unit in stage.get(kind, {})]
        if values:
            (value, kind), *rest = values
            others = "".join(f", {_format_number(other)} {other_kind}" for other, other_kind in rest)
            parts.append(f"{_format_number(value)} {unit} {kind}{others}")
    return f": {'; '.join(parts)}" if parts else ""


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _stage_text(stage: Mapping[str, Any]) -> str:
    verb = {"hash": "probe", "scan": "scan", "new": "join new"}[stage["access"]]
    on = f" on {' and '.join(stage['on'])}" if stage["on"] else ""
    where = f" where {' and '.join(stage['conditions'])}" if stage["conditions"] else ""
    return f"{verb} {stage['alias']}{on}{where}{_stage_cost_text(stage)}{_shared_text(stage)}"


def _shared_text(stage: Mapping[str, Any]) -> str:
    """Name the other queries that use a stage, at most `_MAX_NAMED`."""
    names = stage.get("shared_with", ())
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"; shared with {', '.join(names[:_MAX_NAMED])}{more}" if names else ""


def _mermaid(description: Mapping[str, Any]) -> str:
    lines = ["flowchart LR"]
    streams = {name: f"s{index}" for index, name in enumerate(description["streams"])}
    lines += [f'  {node}[("{mermaid_text(name)}")]' for name, node in streams.items()]
    for index, (name, query) in enumerate(description["queries"].items()):
        node = f"q{index}"
        lines += [f'  subgraph {node}["{mermaid_text(name)}"]', "    direction LR"]
        aliases = {alias: f"{node}a{position}" for position, alias in enumerate(query["inputs"])}
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
