"""Writes the description of a plan as text, one fact per line. Equal plans have equal texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail._display import iso_time, name_some
from dovetail.codec import LARGEST
from dovetail.plan.explain.basis import assumes_rates, basis_lines
from dovetail.plan.query_plan import DEFAULT_RATE

_NO_BASIS: Mapping[str, Any] = {"rates": {}}
_MAX_NAMED = 5
"""Maximum number of queries named where a stage is shared."""


def plan_text(description: Mapping[str, Any], migrations: Iterable[object] = ()) -> str:
    """Return a paragraph each for streams, plan and windows, each query and join, and migrations.

    A query that has its own join, for instance:

        query funnel
          input i: impressions, range 10 min
          input c: clicks, range 10 min
          filter i.price > 10
          probe orders: weave
          new i: cost 171 rows/s
            probe c on c.ad_id = i.ad_id: 0.09 rows expected
          new c: cost 171 rows/s
            probe i on i.ad_id = c.ad_id: 1.8 rows expected
          output ad_id, clicked_at
    """
    plan: Any = description.get("plan")
    nodes = joins_with_results(description)
    paragraphs = [_session_lines(description), *([_plan_lines(plan)] if plan else [])]
    for kind, label in (("queries", "query"), ("joins", "join")):
        for name, entry in description.get(kind, {}).items():
            title, lines = f"{label} {join_label(name)}", _entry_lines(name, entry, plan)
            if name in nodes:
                join, result_name, result = nodes[name]
                title += f", materialized as {result_name}" if result["stored"] else ""
                held = f", {result['tuples']:.4g} rows held" if result["stored"] else ""
                if join["queries"] != [name]:
                    lines.insert(0, f"for {', '.join(join['queries'])}" + " (shared)" * (len(join["queries"]) > 1))
                if not result.get("is_assumed"):
                    lines.append(f"results {result['rate']:.4g} rows/s expected{held}")
                lines += _load_lines([join, result], plan)
            paragraphs.append([title, *(f"  {line}" for line in lines)])
    return "\n\n".join("\n".join(lines) for lines in [*paragraphs, [*map(str, migrations)]] if lines)


def join_label(name: str) -> str:
    """Return the name of a join for people."""
    return name.removeprefix("join:")


def joins_with_results(description: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """Return the nodes of the shared plan by the join that runs them.

    They are the join, the name of its result, and the result.

    A join that runs an individual plan has the name of its query.
    """
    plan = description.get("plan", {"joins": {}})
    queries = {answer["result"]: query for query, answer in plan.get("queries", {}).items()}
    nodes = {}
    for name, join in plan["joins"].items():
        run_as = name if name in description.get("joins", {}) else queries[join["output"]]
        nodes[run_as] = join, join["output"], plan["results"][join["output"]]
    return nodes


def _session_lines(description: Mapping[str, Any]) -> list[str]:
    if "evaluation" not in description:
        return []
    lines = []
    for name, stream in description["streams"].items():
        rate = f", rate {stream['rate']:g}/s declared" if stream["rate"] else ", rate not declared"
        rate += f", {_format_number(stream['measured_rate'])}/s measured" if "measured_rate" in stream else ""
        used = ", ".join(stream["used_by"]) or "no query"
        text = f"stream {name}: event time {stream['event_time']}, lateness {stream['lateness']}{rate}; used by {used}"
        if shed := stream.get("shed"):
            text += f"; {shed['tuples']:,} tuples shed" + (f", the last at {shed['last']}" if shed["last"] else "")
        lines.append(text)
    if (description["evaluation"], description["expiration"]) != ("lazy", "lazy"):
        lines.append(f"evaluation {description['evaluation']}, expiration {description['expiration']}")
    return lines or ["no streams"]


def _plan_lines(plan: Mapping[str, Any]) -> list[str]:
    count = len(plan["queries"])
    lines = [f"plan for {count} {'query' if count == 1 else 'queries'}, strategy {plan['strategy']}", *total_load(plan)]
    if plan.get("assumed_rates"):
        lines.append(
            f"rate of {name_some(plan['assumed_rates'])} unknown, {DEFAULT_RATE:g}/s assumed: loads are not shown"
        )
    for name, window in plan["windows"].items():
        about, users = window_size(window), ", ".join(window["queries"])
        lines.append(f"window {name.removeprefix('window:')}: {about}, for {users}")
        lines += [f"  {line}" for line in _load_lines([window], plan)]
    return lines


def _entry_lines(name: str, entry: Mapping[str, Any], plan: Mapping[str, Any] | None) -> list[str]:
    """Describe a join, or a query that reads the results of a join of several queries."""
    lines = []
    for alias, source in entry["inputs"].items():
        inferred = f", inferred from {' and '.join(source['follows_from'])}" if "follows_from" in source else ""
        lines.append(f"input {alias}: {source['stream']}, {source['window']}{inferred}")
    if "join" in entry:
        renamed = [f"{alias} is {item['source']}" for alias, item in entry["inputs"].items() if alias != item["source"]]
        lines.append(f"reads join {join_label(entry['join'])}" + (f" ({', '.join(renamed)})" if renamed else ""))
        narrower = plan["queries"][name]["narrower_windows"] if plan else {}
        lines += [f"window of {source} narrowed to {seconds:g} s" for source, seconds in sorted(narrower.items())]
    if "since" in entry:
        times = entry.get("backfilled_from", {}).items()
        backfill = [f"{source} from {time}" if time else f"{source} none" for source, time in times]
        lines.append(f"starts at batch {entry['since']}" + (f"; backfill: {', '.join(backfill)}" if backfill else ""))
    lines += [f"filter {text}" for text in entry.get("filters", ())]
    lines += [f"condition {text}" for text in entry.get("conditions", ())]
    if entry.get("waits_for_watermark"):
        lines.append(f"results wait for the watermark of {', '.join(entry['waits_for_watermark'])}")
    lines += basis_lines(entry["basis"]) if "basis" in entry else []
    if "ordering" in entry:
        forced = f"; forced for {', '.join(entry['forced'])}" if "forced" in entry else ""
        lines.append(f"probe orders: {entry['ordering']}{forced}")
    for driver, stages in entry.get("paths", {}).items():
        lines.append(f"new {driver}{_cost_text(entry, driver)}")
        shown = [stage for stage in stages if stages[0] is not stage or stage["access"] != "new"]
        lines += [f"  {_stage_text(stage, kinds_shown(entry))}" for stage in shown]
    lines += map(_change_text, entry.get("changes", ()))
    if entry.get("output"):
        lines.append(f"output {', '.join(entry['output'])}")
    return lines + ([f"recall {entry['recall']['text']}"] if "recall" in entry else [])


def timestamp(micros: int) -> str:
    """Format an event time; one below the allowed range is the beginning."""
    if micros <= -LARGEST:
        return "the beginning"
    return iso_time(micros)


def kinds_shown(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which figures of a stage are shown: without rates, only measured ones."""
    return ("measured",) if assumes_rates(entry.get("basis", _NO_BASIS)) else ("expected", "measured")


def _cost_text(query: Mapping[str, Any], driver: str) -> str:
    cost = query.get("costs", {}).get(driver)
    if cost is None:
        return ""
    if assumes_rates(query.get("basis", _NO_BASIS)):
        if not cost["next"] or not cost["cost"]:
            return ""
        ratio, order = cost["next_cost"] / cost["cost"], ", ".join(cost["next"][1:])
        if f"{ratio:.3g}" == "1":
            return f" (next best order {order}: the same cost)"
        return f" ({'next best' if ratio >= 1 else 'cheaper'} order {order}: {ratio:.3g} times the cost)"
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


def _stage_cost_text(stage: Mapping[str, Any], kinds: Sequence[str]) -> str:
    parts = []
    for unit in ("rows", "us"):
        values = [(stage[kind][unit], kind) for kind in kinds if unit in stage.get(kind, {})]
        if values:
            (value, kind), *rest = values
            others = "".join(f", {_format_number(other)} {other_kind}" for other, other_kind in rest)
            parts.append(f"{_format_number(value)} {unit} {kind}{others}")
    return f": {'; '.join(parts)}" if parts else ""


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _stage_text(stage: Mapping[str, Any], kinds: Sequence[str]) -> str:
    verb = {"hash": "probe", "scan": "scan", "new": "join new"}[stage["access"]]
    on = f" on {' and '.join(stage['on'])}" if stage.get("on") else ""
    where = f" where {' and '.join(stage['conditions'])}" if stage.get("conditions") else ""
    text, names = f"{verb} {stage['alias']}{on}{where}{_stage_cost_text(stage, kinds)}", stage.get("shared_with", ())
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{text}; shared with {', '.join(names[:_MAX_NAMED])}{more}" if names else text


def total_load(plan: Mapping[str, Any]) -> list[str]:
    """Return CPU and memory of a shared plan as texts; with assumed rates only what has a limit."""
    texts, assumed = [], ", at the assumed rates" if plan.get("assumed_rates") else ""
    for label, (name, text) in _RESOURCES.items():
        used, limit = plan[name]["used"], plan[name]["limit"]
        if assumed and limit is None:
            continue
        of = ", no limit" if limit is None else f" of {text(limit)}{_percent(used, limit)}"
        texts.append(f"{label} {text(used)}{of}{assumed}")
    return texts


def _load_lines(nodes: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[str]:
    """Format the total load of some nodes: measured, and expected unless that rests on assumed rates."""
    measured = [node["measured"] for node in nodes if "measured" in node]
    expected = [] if any(node.get("is_assumed") for node in nodes) else [_load_text(nodes, plan)]
    return [*expected, *([f"measured {_load_text(measured, plan)}"] if measured else [])]


def window_size(window: Mapping[str, Any]) -> str:
    """Return the seconds of a window and the rate of its stream, unless that is assumed."""
    return f"{window['seconds']:g} s" + ("" if window.get("is_assumed") else f", {window['rate']:.4g}/s")


def _load_text(loads: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> str:
    used = [(label, sum(load[name] for load in loads), name, text) for label, (name, text) in _RESOURCES.items()]
    parts = (
        f"{label} {text(total)}{_percent(total, plan[name]['limit'])}" for label, total, name, text in used if total
    )
    return ", ".join(parts)


def _percent(used: float, limit: float | None) -> str:
    return "" if limit is None else f" ({used / limit:.1%})"


def format_cpu(milliseconds: float) -> str:
    """Format CPU time per second: `1.36 ms/s`."""
    return f"{milliseconds:.4g} ms/s"


def format_bytes(count: float) -> str:
    """Format bytes in a readable unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


_RESOURCES: dict[str, tuple[str, Callable[[float], str]]] = {
    "cpu": ("cpu_ms_per_second", format_cpu),
    "memory": ("memory_bytes", format_bytes),
}
