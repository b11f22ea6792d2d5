"""Explains shared plans as text, plain data or a mermaid diagram. The text is stable: one fact per line, no addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import Any

from dovetail.plan.explain.explanation import Explanation
from dovetail.plan.names import mermaid_text
from dovetail.plan.shared_plan import JoinNode, Load, Node, SharedPlan, WindowNode
from dovetail.stats.counters import PlanMetrics


def explain_shared(plan: SharedPlan, measured: PlanMetrics | Mapping[str, Any] | None = None) -> Explanation:
    """Explain a shared plan: its windows and joins, their queries, and their expected and measured load.

    `measured` is `metrics()["nodes"]` of a session that runs the plan.
    """
    metrics = measured if isinstance(measured, PlanMetrics) else PlanMetrics.from_json(measured or {})
    text = _text(plan, _MeasuredLoads(plan, metrics))
    return Explanation(text, describe_shared(plan, metrics), _mermaid(plan))


# -- data --------------------------------------------------------------------------------------------------------------------


def describe_shared(plan: SharedPlan, measured: PlanMetrics | None = None) -> dict[str, Any]:
    """Return the plan as plain data that `json.dumps` accepts."""
    loads = _MeasuredLoads(plan, measured or PlanMetrics())
    return {
        "strategy": plan.strategy,
        "query_order": list(plan.query_order),
        "qualified": plan.qualified,
        "cpu_ms_per_second": _resource(plan.load.cpu, plan.limits.cpu),
        "memory_bytes": _resource(plan.load.memory, plan.limits.memory),
        "windows": {
            node.id: {
                "stream": node.stream,
                "seconds": node.span,
                "rate": node.rate,
                "tuples": node.tuples,
                **_common(node, loads),
            }
            for node in plan.windows
        },
        "joins": {
            node.id: {
                "kind": node.kind,
                "inputs": [{"node": edge.node, "sources": list(edge.sources)} for edge in node.inputs],
                "orders": _orders(node),
                "predicates": list(node.predicates),
                "seconds": dict(node.spans),
                "output": node.output,
                "produced": node.produced,
                **_common(node, loads),
            }
            for node in plan.joins
        },
        "results": {
            node.id: {
                "join": node.join,
                "stored": node.stored,
                "seconds": dict(node.spans),
                "rate": node.rate,
                "tuples": node.tuples,
                **_common(node, loads),
            }
            for node in plan.results
        },
        "queries": {
            answer.query: {
                "result": answer.result,
                "aliases": dict(answer.aliases),
                "seconds": dict(answer.spans),
                "narrowed": dict(plan.narrowed(answer.query)),
            }
            for answer in plan.answers
        },
    }


def _resource(used: float, limit: float) -> dict[str, float | None]:
    return {"used": used, "limit": None if isinf(limit) else limit}


def _common(node: Node, loads: _MeasuredLoads) -> dict[str, Any]:
    load = loads.load(node)
    measured = {"cpu_ms_per_second": load.cpu, "memory_bytes": load.memory} if load is not None else None
    return {
        "queries": list(node.queries),
        "cpu_ms_per_second": node.load.cpu,
        "memory_bytes": node.load.memory,
        **({"measured": measured} if measured else {}),
    }


@dataclass(frozen=True)
class _MeasuredLoads:
    """The measured loads of the nodes of a plan, per second of event time."""

    plan: SharedPlan
    measured: PlanMetrics

    def load(self, node: Node) -> Load | None:
        """Return the CPU and memory of a node; None if nothing was measured."""
        measured, seconds = self.measured, self.measured.span.seconds
        if isinstance(node, WindowNode):
            metrics = [measured.windows.get(node.stream)]
        elif isinstance(node, JoinNode):
            # A private join runs under its query's name.
            metrics = [measured.joins.get(name) for name in dict.fromkeys((node.id, *self._answered(node.output)))]
        else:
            metrics = [measured.states.get(node.id), *map(measured.results.get, self._answered(node.id))]
        present = [entry for entry in metrics if entry is not None]
        if not present or not seconds:
            return None
        return Load(sum(entry.ms for entry in present) / seconds, sum(entry.bytes or 0 for entry in present))

    def _answered(self, result: str) -> list[str]:
        """Return the queries that a result answers."""
        return [answer.query for answer in self.plan.answers if answer.result == result]


def _orders(node: JoinNode) -> dict[str, list[str]]:
    labels = [_label(edge.sources) for edge in node.inputs]
    return {labels[index]: [labels[other] for other in order] for index, order in enumerate(node.orders)}


def _label(sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({', '.join(sources)})"


# -- text --------------------------------------------------------------------------------------------------------------------


def _text(plan: SharedPlan, loads: _MeasuredLoads) -> str:
    lines = [
        f"plan for {_count(len(plan.answers), 'query', 'queries')}, strategy {plan.strategy}",
        f"cpu {_used(plan.load.cpu, plan.limits.cpu, format_cpu)}",
        f"memory {_used(plan.load.memory, plan.limits.memory, format_bytes)}",
    ]
    for window in plan.windows:
        lines += ["", f"window {window.id.removeprefix('window:')}: {window.span:g} s, {window.rate:g}/s"]
        lines.append(f"  for {', '.join(window.queries)}")
        lines += [f"  {line}" for line in _load_lines(plan, loads, window)]
    results = {result.id: result for result in plan.results}
    for join in plan.joins:
        result = results[join.output]
        verb = "materialize" if result.stored else "deliver"
        lines += ["", f"{join.kind} {join.id.removeprefix('join:')} -> {verb} {result.id}"]
        lines += [f"  {line}" for line in _join_lines(plan, join)]
        lines.append(
            f"  output {result.rate:.4g} rows/s" + (f", holds {result.tuples:.4g} rows" if result.stored else "")
        )
        lines += [f"  {line}" for line in _load_lines(plan, loads, join, result)]
    for answer in plan.answers:
        lines += ["", f"query {answer.query}: {answer.result}"]
        lines += [f"  {alias} is {source}" for source, alias in sorted(answer.aliases.items()) if alias != source]
        lines += [f"  keep {source} within {span:g} s" for source, span in sorted(plan.narrowed(answer.query).items())]
    return "\n".join(lines)


def _join_lines(plan: SharedPlan, join: JoinNode) -> list[str]:
    lines = [f"for {', '.join(join.queries)}" + (" (shared)" if len(join.queries) > 1 else "")]
    lines += [f"read {edge.node}" + _as(plan, edge.node, edge.sources) for edge in join.inputs]
    lines += [f"where {text}" for text in join.predicates]
    lines += [f"new {driver} -> {' -> '.join(order)}" for driver, order in _orders(join).items()]
    return lines


def _as(plan: SharedPlan, name: str, sources: Sequence[str]) -> str:
    node = plan.nodes[name]
    is_plain = not isinstance(node, WindowNode) or sources == (node.stream,)
    return "" if is_plain else f" as {sources[0]}"


def _load_lines(plan: SharedPlan, loads: _MeasuredLoads, *nodes: Node) -> list[str]:
    """Format the total load of some nodes: expected and, if available, measured."""
    lines = [_load_text(Load.total(node.load for node in nodes), plan.limits)]
    measured = [load for load in map(loads.load, nodes) if load is not None]
    return [*lines, f"measured {_load_text(Load.total(measured), plan.limits)}"] if measured else lines


def _load_text(load: Load, limits: Load) -> str:
    parts = [f"cpu {format_cpu(load.cpu)}{_percent(load.cpu, limits.cpu)}"]
    if load.memory:
        parts.append(f"memory {format_bytes(load.memory)}{_percent(load.memory, limits.memory)}")
    return ", ".join(parts)


def _used(used: float, limit: float, text: Any) -> str:
    return f"{text(used)} of {text(limit)}{_percent(used, limit)}" if limit < inf else f"{text(used)}, no limit"


def _percent(used: float, limit: float) -> str:
    return f" ({used / limit:.1%})" if limit < inf else ""


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


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# -- diagram -----------------------------------------------------------------------------------------------------------------


def _mermaid(plan: SharedPlan) -> str:
    """Draw windows as cylinders, joins as circles and materialized joins as boxes; shared nodes have a thick border."""
    cpu = _used(plan.load.cpu, plan.limits.cpu, format_cpu)
    memory = _used(plan.load.memory, plan.limits.memory, format_bytes)
    lines = ["---", f"title: cpu {cpu}; memory {memory}", "---", "flowchart LR"]
    ids: Mapping[str, str] = {name: f"n{index}" for index, name in enumerate(plan.nodes)}
    results = {result.id: result for result in plan.results}
    for window in plan.windows:
        label = _label_lines(window.id.replace("window:", ""), f"{window.span:g} s, {window.rate:g}/s", window.load)
        lines.append(f'  {ids[window.id]}[("{label}")]')
    for join in plan.joins:
        result = results[join.output]
        shape = ('["', '"]') if result.stored else ('(["', '"])')
        kind = "materialized " if result.stored else ""
        label = _label_lines(kind + result.id.replace("state:", "").replace("answer:", "results of "), "", result.load)
        lines.append(f'  {ids[join.id]}(("{_label_lines("join", "", join.load)}"))')
        lines.append(f"  {ids[result.id]}{shape[0]}{label}{shape[1]}")
        lines += [f"  {ids[edge.node]} --> {ids[join.id]}" for edge in join.inputs]
        lines.append(f"  {ids[join.id]} --> {ids[result.id]}")
    for index, answer in enumerate(plan.answers):
        lines.append(f'  q{index}{{{{"{mermaid_text(answer.query)}"}}}}')
        lines.append(f"  {ids[answer.result]} --> q{index}")
    shared = [ids[node.id] for node in plan.shared()]
    if shared:
        lines += ["  classDef shared stroke-width:3px", f"  class {','.join(shared)} shared"]
    return "\n".join(lines)


def _label_lines(name: str, about: str, load: Load) -> str:
    parts = [
        mermaid_text(name),
        about,
        format_cpu(load.cpu) if load.cpu else "",
        format_bytes(load.memory) if load.memory else "",
    ]
    return "<br/>".join(part for part in parts if part)
