"""Plans as text for people, as data for programs, as a picture (mermaid). Stable: one fact per line, no addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dovetail.config import Config
from dovetail.errors import ConfigError
from dovetail.plan.nodes import ProbeStage, QueryPlan
from dovetail.query.model import CountWindow, Window
from dovetail.schema import StreamSchema

Explanation: TypeAlias = str | dict[str, Any]
FORMS = ("text", "dict", "mermaid")
_UNITS = (
    ("day", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
)


def explain(
    streams: Mapping[str, StreamSchema], plans: Sequence[QueryPlan], config: Config, form: str = "text"
) -> Explanation:
    """Show what will be done with the queries."""
    if form not in FORMS:
        raise ConfigError.choice("explain(...)", form, FORMS)
    description = describe(streams, plans, config)
    if form == "dict":
        return description
    return _text(description) if form == "text" else _mermaid(description)


def describe(streams: Mapping[str, StreamSchema], plans: Sequence[QueryPlan], config: Config) -> dict[str, Any]:
    """The plan as plain data: what the other forms are drawn from."""
    return {
        "evaluation": config.evaluation,
        "expiration": config.expiration,
        "streams": {
            name: {
                "event_time": schema.event_time,
                "lateness": duration(schema.lateness),
                "rate": schema.rate,
                "used_by": [f"{p.query.name}.{ref.alias}" for p in plans for ref in p.query.refs if ref.stream == name],
            }
            for name, schema in streams.items()
        },
        "queries": {plan.query.name: _query(plan) for plan in plans},
    }


def _query(plan: QueryPlan) -> dict[str, Any]:
    query = plan.query
    return {
        "sql": query.sql,
        "inputs": {ref.alias: {"stream": ref.stream, "window": window_text(ref.window)} for ref in query.refs},
        "equal": [[f"{key.alias}: {key.expression}" for key in group.keys] for group in query.classes],
        "conditions": [condition.text for condition in query.conditions],
        "filters": [condition.text for condition in query.filters],
        "output": query.schema.names,
        "ordering": plan.ordering,
        "waits_for_watermark": [ref.stream for ref in query.refs if isinstance(ref.window, CountWindow)],
        "paths": {path.driver: [_stage(stage) for stage in path.stages] for path in plan.paths},
    }


def _stage(stage: ProbeStage) -> dict[str, Any]:
    return {
        "alias": stage.alias,
        "access": stage.access,
        "on": [f"{part.target} = {part.source.expression}" for part in stage.key],
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
    return f"range {duration(window.micros)}"


def _text(description: Mapping[str, Any]) -> str:
    lines = [f"evaluation {description['evaluation']}, expiration {description['expiration']}"]
    for name, stream in description["streams"].items():
        rate = f", rate {stream['rate']:g}/s" if stream["rate"] else ""
        used = ", ".join(stream["used_by"]) or "no query"
        lines.append(
            f"stream {name}: event time {stream['event_time']}, lateness {stream['lateness']}{rate}; used by {used}"
        )
    for name, query in description["queries"].items():
        lines += ["", f"query {name}", *(f"  {line}" for line in _query_lines(query))]
    return "\n".join(lines)


def _query_lines(query: Mapping[str, Any]) -> list[str]:
    lines = [f"input {alias}: {entry['stream']}, {entry['window']}" for alias, entry in query["inputs"].items()]
    lines += [f"filter {text}" for text in query["filters"]]
    lines += [f"condition {text}" for text in query["conditions"]]
    if query["waits_for_watermark"]:
        lines.append(f"results wait for the watermark of {', '.join(query['waits_for_watermark'])}")
    lines.append(f"probe orders: {query['ordering']}")
    for driver, stages in query["paths"].items():
        lines.append(f"new {driver}")
        lines += [f"  {_stage_text(stage)}" for stage in stages if stages[0] is not stage or stage["access"] != "new"]
    lines.append(f"output {', '.join(query['output'])}")
    return lines


def _stage_text(stage: Mapping[str, Any]) -> str:
    verb = {"hash": "probe", "scan": "scan", "new": "meet new"}[stage["access"]]
    on = f" on {' and '.join(stage['on'])}" if stage["on"] else ""
    where = f" where {' and '.join(stage['conditions'])}" if stage["conditions"] else ""
    return f"{verb} {stage['alias']}{on}{where}"


def _mermaid(description: Mapping[str, Any]) -> str:
    lines = ["flowchart LR"]
    streams = {name: f"s{number}" for number, name in enumerate(description["streams"])}
    lines += [f'  {node}[("{_quoted(name)}")]' for name, node in streams.items()]
    for number, (name, query) in enumerate(description["queries"].items()):
        node = f"q{number}"
        lines += [f'  subgraph {node}["{_quoted(name)}"]', "    direction LR"]
        aliases = {alias: f"{node}a{place}" for place, alias in enumerate(query["inputs"])}
        lines += [
            f'    {aliases[alias]}["{_quoted(alias)}<br/>{entry["window"]}"]'
            for alias, entry in query["inputs"].items()
        ]
        lines += [f'    {node}out(["{len(query["output"])} columns"])']
        for driver, stages in query["paths"].items():
            order = " → ".join(stage["alias"] for stage in stages)
            lines.append(f'    {aliases[driver]} -- "{_quoted(order)}" --> {node}out')
        lines.append("  end")
        lines += [f"  {streams[entry['stream']]} --> {aliases[alias]}" for alias, entry in query["inputs"].items()]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
