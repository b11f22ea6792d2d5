"""A plan for many queries as JSON can hold it: for snapshots, and for workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import inf, isinf
from typing import Any

from dovetail.plan.global_plan import Answer, GlobalPlan, JoinInput, JoinNode, Load, ResultNode, Source, WindowNode

_NODES: Mapping[str, Any] = {"windows": WindowNode, "joins": JoinNode, "results": ResultNode, "answers": Answer}


def plan_to_json(plan: GlobalPlan) -> dict[str, Any]:
    """All that a plan is; `plan_from_json` reads it."""
    return {
        **{name: [asdict(node) for node in getattr(plan, name)] for name in _NODES},
        "sources": {name: asdict(source) for name, source in plan.sources.items()},
        "strategy": plan.strategy,
        "query_order": plan.query_order,
        "limits": [None if isinf(limit) else limit for limit in plan.limits],
    }


def plan_from_json(stored: Mapping[str, Any]) -> GlobalPlan:
    """The plan that `plan_to_json` wrote; made again, it is checked again."""
    nodes = {name: tuple(_node(kind, node) for node in stored[name]) for name, kind in _NODES.items()}
    return GlobalPlan(
        **nodes,
        sources={name: _node(Source, source) for name, source in stored["sources"].items()},
        strategy=stored["strategy"],
        query_order=tuple(stored["query_order"]),
        limits=Load(*(inf if limit is None else limit for limit in stored["limits"])),
    )


def _node(kind: Any, stored: Mapping[str, Any]) -> Any:
    """A node, its lists as tuples again."""
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    if kind is JoinNode:
        found["inputs"] = tuple(JoinInput(each["node"], tuple(each["sources"])) for each in stored["inputs"])
        found["orders"] = tuple(map(tuple, stored["orders"]))
    if "load" in found:
        found["load"] = Load(*found["load"])
    return kind(**found)
