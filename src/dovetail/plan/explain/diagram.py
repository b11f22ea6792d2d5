"""Draws the description of a plan as a mermaid diagram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plan.explain.text import format_bytes, format_cpu, join_label, joins_with_results, total_load, window_size
from dovetail.plan.names import holds_stream, mermaid_text


def plan_diagram(description: Mapping[str, Any]) -> str:
    """Draw streams as cylinders, and joins as boxes with their inputs, probe orders and results.

    A query that reads the results of a join of several queries is a hexagon. What several queries share has a thick border.
    """
    plan, nodes = description.get("plan"), joins_with_results(description)
    lines = (
        ["---", f"title: {'; '.join(total_load(plan))}", "---", "flowchart LR"]
        if plan and total_load(plan)
        else ["flowchart LR"]
    )
    origins, outputs, shared = dict[str, str](), dict[str, str](), list[str]()
    for index, name in enumerate(description["streams"]):
        origins[name] = f"s{index}"
        windows = (
            [window for window in plan["windows"].values() if holds_stream(window["stream"], name)] if plan else []
        )
        sizes = [text for window in windows for text in (window_size(window), _load(window))]
        lines.append(f'  s{index}[("{_label(name, *sizes)}")]')
        shared += [f"s{index}"] * any(len(window["queries"]) > 1 for window in windows)
    joins = {**description["queries"], **description.get("joins", {})}
    for index, (name, join) in enumerate((name, join) for name, join in joins.items() if "paths" in join):
        node, result_name, result = nodes.get(name, ({"queries": ()}, "", {"stored": False}))
        origins[result_name] = outputs[name] = f"j{index}out"
        aliases = {alias: f"j{index}a{position}" for position, alias in enumerate(join["inputs"])}
        lines += [f'  subgraph j{index}["{_label(join_label(name), _load(node))}"]', "    direction LR"]
        for alias, source in join["inputs"].items():
            lines.append(f'    {aliases[alias]}["{_label(alias, source["window"])}"]')
        about = f"{len(join['output'])} columns" if join.get("output") else "results"
        if result["stored"]:
            lines.append(f'    j{index}out["{_label(f"materialized {result_name}", _load(result))}"]')
        else:
            lines.append(f'    j{index}out(["{_label(about, _load(result))}"])')
        for driver, stages in join["paths"].items():
            order = " → ".join(stage["alias"] for stage in stages)
            lines.append(f'    {aliases[driver]} -- "{mermaid_text(order)}" --> j{index}out')
        lines.append("  end")
        lines += [f"  {origins[source['stream']]} --> {aliases[alias]}" for alias, source in join["inputs"].items()]
        shared += [f"j{index}"] * (len(node["queries"]) > 1)
    for index, (name, query) in enumerate(description["queries"].items()):
        if "join" in query:
            lines += [f'  q{index}{{{{"{_label(name)}"}}}}', f"  {outputs[query['join']]} --> q{index}"]
    return "\n".join(
        [*lines, "  classDef shared stroke-width:3px", f"  class {','.join(shared)} shared"] if shared else lines
    )


def _load(node: Mapping[str, Any]) -> str:
    if node.get("is_assumed"):
        return ""
    cpu, memory = node.get("cpu_ms_per_second"), node.get("memory_bytes")
    return _label(format_cpu(cpu) if cpu else "", format_bytes(memory) if memory else "")


def _label(*parts: str) -> str:
    return "<br/>".join(mermaid_text(part) for part in parts if part)
