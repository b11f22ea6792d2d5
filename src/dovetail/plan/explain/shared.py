"""A plan for many queries as text for people, as data for programs, as a picture (mermaid). One fact per line, no addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import Any, TypeAlias

from dovetail.errors import ConfigError
from dovetail.plan.names import mermaid_text
from dovetail.plan.shared_plan import JoinNode, Load, Node, SharedPlan, WindowNode
from dovetail.stats.counters import PlanFigures

Explanation: TypeAlias = str | dict[str, Any]
FORMS = ("text", "dict", "mermaid")


def explain_shared(
    plan: SharedPlan, form: str = "text", measured: PlanFigures | Mapping[str, Any] | None = None
) -> Explanation:
    """Show what is kept and joined for which queries, and what it takes of the budget: as expected, and as measured.

    `measured` is `metrics()["nodes"]` of a session that runs the plan.
    """
    if form not in FORMS:
        raise ConfigError.choice("explain_shared(...)", form, FORMS)
    if form == "mermaid":
        return _mermaid(plan)
    figures = measured if isinstance(measured, PlanFigures) else PlanFigures.from_json(measured or {})
    return describe_global(plan, figures) if form == "dict" else _text(plan, _Loads(plan, figures))


# -- data --------------------------------------------------------------------------------------------------------------------


def describe_global(plan: SharedPlan, measured: PlanFigures | None = None) -> dict[str, Any]:
    """The plan as plain data, which JSON can hold."""
    found = _Loads(plan, measured or PlanFigures())
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
                **_common(node, found),
            }
            for node in plan.windows
        },
        "joins": {
            node.id: {
                "kind": node.kind,
                "inputs": [{"node": each.node, "sources": list(each.sources)} for each in node.inputs],
                "orders": _orders(node),
                "predicates": list(node.predicates),
                "seconds": dict(node.spans),
                "output": node.output,
                "produced": node.produced,
                **_common(node, found),
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
                **_common(node, found),
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


def _common(node: Node, found: _Loads) -> dict[str, Any]:
    load = found.load(node)
    measured = {"cpu_ms_per_second": load.cpu, "memory_bytes": load.memory} if load is not None else None
    return {
        "queries": list(node.queries),
        "cpu_ms_per_second": node.load.cpu,
        "memory_bytes": node.load.memory,
        **({"measured": measured} if measured else {}),
    }


@dataclass(frozen=True)
class _Loads:
    """What the nodes of a plan have taken, per second of event time."""

    plan: SharedPlan
    measured: PlanFigures

    def load(self, node: Node) -> Load | None:
        """CPU and memory of a node; None if nothing was measured."""
        measured, seconds = self.measured, self.measured.span.seconds
        if isinstance(node, WindowNode):
            figures = [measured.windows.get(node.stream)]
        elif isinstance(node, JoinNode):
            # A join for one query alone runs under that query's name.
            figures = [measured.joins.get(name) for name in dict.fromkeys((node.id, *self._answers(node.output)))]
        else:
            figures = [measured.states.get(node.id), *map(measured.results.get, self._answers(node.id))]
        known = [figure for figure in figures if figure is not None]
        if not known or not seconds:
            return None
        return Load(sum(figure.ms for figure in known) / seconds, sum(figure.bytes or 0 for figure in known))

    def _answers(self, result: str) -> list[str]:
        """The queries that a result is taken for."""
        return [answer.query for answer in self.plan.answers if answer.result == result]


def _orders(node: JoinNode) -> dict[str, list[str]]:
    labels = [_label(each.sources) for each in node.inputs]
    return {labels[place]: [labels[number] for number in order] for place, order in enumerate(node.orders)}


def _label(sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({', '.join(sources)})"


# -- text --------------------------------------------------------------------------------------------------------------------


def _text(plan: SharedPlan, found: _Loads) -> str:
    lines = [
        f"plan for {_count(len(plan.answers), 'query', 'queries')}, strategy {plan.strategy}",
        f"cpu {_used(plan.load.cpu, plan.limits.cpu, cpu_text)}",
        f"memory {_used(plan.load.memory, plan.limits.memory, bytes_text)}",
    ]
    for window in plan.windows:
        lines += ["", f"window {window.id.removeprefix('window:')}: {window.span:g} s, {window.rate:g}/s"]
        lines.append(f"  for {', '.join(window.queries)}")
        lines += [f"  {line}" for line in _shares(plan, found, window)]
    results = {result.id: result for result in plan.results}
    for join in plan.joins:
        result = results[join.output]
        what = "store" if result.stored else "pass on"
        lines += ["", f"{join.kind} {join.id.removeprefix('join:')} -> {what} {result.id}"]
        lines += [f"  {line}" for line in _join_lines(plan, join)]
        lines.append(f"  gives {result.rate:.4g}/s" + (f", holds {result.tuples:.4g}" if result.stored else ""))
        lines += [f"  {line}" for line in _shares(plan, found, join, result)]
    for answer in plan.answers:
        lines += ["", f"query {answer.query}: {answer.result}"]
        lines += [f"  {alias} is {source}" for source, alias in sorted(answer.aliases.items()) if alias != source]
        lines += [f"  keep {source} within {span:g} s" for source, span in sorted(plan.narrowed(answer.query).items())]
    return "\n".join(lines)


def _join_lines(plan: SharedPlan, join: JoinNode) -> list[str]:
    lines = [f"for {', '.join(join.queries)}" + (" (shared)" if len(join.queries) > 1 else "")]
    lines += [f"read {each.node}" + _as(plan, each.node, each.sources) for each in join.inputs]
    lines += [f"where {text}" for text in join.predicates]
    lines += [f"new {driver} -> {' -> '.join(order)}" for driver, order in _orders(join).items()]
    return lines


def _as(plan: SharedPlan, node: str, sources: Sequence[str]) -> str:
    found = plan.nodes[node]
    plain = not isinstance(found, WindowNode) or sources == (found.stream,)
    return "" if plain else f" as {sources[0]}"


def _shares(plan: SharedPlan, found: _Loads, *nodes: Node) -> list[str]:
    """What some nodes take together: as expected and, if it is known, as measured."""
    lines = [_share(Load.total(node.load for node in nodes), plan.limits)]
    measured = [load for load in map(found.load, nodes) if load is not None]
    return [*lines, f"measured {_share(Load.total(measured), plan.limits)}"] if measured else lines


def _share(load: Load, limits: Load) -> str:
    parts = [f"cpu {cpu_text(load.cpu)}{_percent(load.cpu, limits.cpu)}"]
    if load.memory:
        parts.append(f"memory {bytes_text(load.memory)}{_percent(load.memory, limits.memory)}")
    return ", ".join(parts)


def _used(used: float, limit: float, text: Any) -> str:
    return f"{text(used)} of {text(limit)}{_percent(used, limit)}" if limit < inf else f"{text(used)}, no limit"


def _percent(used: float, limit: float) -> str:
    return f" ({used / limit:.1%})" if limit < inf else ""


def cpu_text(milliseconds: float) -> str:
    """CPU per second: `1.36 ms/s`."""
    return f"{milliseconds:.4g} ms/s"


def bytes_text(count: float) -> str:
    """Bytes in a readable unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# -- picture -----------------------------------------------------------------------------------------------------------------


def _mermaid(plan: SharedPlan) -> str:
    """Drums are windows, circles join, boxes are stored sub-joins; what serves several queries has a thick border."""
    used = f"cpu {_used(plan.load.cpu, plan.limits.cpu, cpu_text)}; memory {_used(plan.load.memory, plan.limits.memory, bytes_text)}"
    lines = ["---", f"title: {used}", "---", "flowchart LR"]
    ids: Mapping[str, str] = {name: f"n{number}" for number, name in enumerate(plan.nodes)}
    results = {result.id: result for result in plan.results}
    for window in plan.windows:
        label = _label_lines(window.id.replace("window:", ""), f"{window.span:g} s, {window.rate:g}/s", window.load)
        lines.append(f'  {ids[window.id]}[("{label}")]')
    for join in plan.joins:
        result = results[join.output]
        shape = ('["', '"]') if result.stored else ('(["', '"])')
        what = "stored " if result.stored else ""
        label = _label_lines(what + result.id.replace("state:", "").replace("answer:", "results of "), "", result.load)
        lines.append(f'  {ids[join.id]}(("{_label_lines("join", "", join.load)}"))')
        lines.append(f"  {ids[result.id]}{shape[0]}{label}{shape[1]}")
        lines += [f"  {ids[each.node]} --> {ids[join.id]}" for each in join.inputs]
        lines.append(f"  {ids[join.id]} --> {ids[result.id]}")
    for number, answer in enumerate(plan.answers):
        lines.append(f'  q{number}{{{{"{mermaid_text(answer.query)}"}}}}')
        lines.append(f"  {ids[answer.result]} --> q{number}")
    shared = [ids[node.id] for node in plan.shared()]
    if shared:
        lines += ["  classDef shared stroke-width:3px", f"  class {','.join(shared)} shared"]
    return "\n".join(lines)


def _label_lines(name: str, about: str, load: Load) -> str:
    parts = [
        mermaid_text(name),
        about,
        cpu_text(load.cpu) if load.cpu else "",
        bytes_text(load.memory) if load.memory else "",
    ]
    return "<br/>".join(part for part in parts if part)
