"""How far plans are from the optimum: small random sets of queries, which can be planned exactly. Not in the thesis.

Two or three queries are connected parts, of two to four streams, of one random graph over three to five streams; a tuple finds
between 0.1 and 10 partners in each window, uniform in the logarithm. The limits lie between a little less than the least that is
needed and somewhat more than what is needed without storing anything (CPU), or with all that saves CPU (memory), so in about a
quarter of the cases nothing fits. In every fourth case memory has no limit, and in every fourth CPU has none.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import dovetail as dt
from dovetail.config import Strategy

STRATEGIES: tuple[Strategy, ...] = ("exchange", "shared", "shared-naive", "naive")
SPAN = 10.0
"""Seconds, for which partners are drawn."""


@dataclass(frozen=True)
class Size:
    """From how many to how many: streams of a graph, queries over parts of it, inputs of a query. And the windows to choose from."""

    streams: tuple[int, int] = (3, 5)
    queries: tuple[int, int] = (2, 3)
    inputs: tuple[int, int] = (2, 4)
    spans: tuple[float, ...] = (10.0,)
    further: float = 0.2
    """The chance of each edge that makes a cycle."""


SMALL = Size()


def cases(count: int, seed: int) -> list[dict[str, Any]]:
    """Plan some cases with every strategy, and exactly: CPU and memory by strategy, None where no plan was found."""
    return [case(random.Random(f"{seed} optimum {number}")) for number in range(count)]  # noqa: S311 - replayable


def case(rng: random.Random) -> dict[str, Any]:
    """Plan one case."""
    queries = random_queries(rng)
    budget = random_budget(rng, queries)
    strategies: tuple[Strategy, ...] = ("exact", *STRATEGIES)
    return {"plans": {strategy: _load(queries, budget, strategy) for strategy in strategies}}


def random_queries(rng: random.Random, size: Size = SMALL) -> dict[str, dt.JoinGraph]:
    """Parts of one random graph."""
    names = [f"S{number}" for number in range(rng.randint(*size.streams))]
    rates = {name: rng.uniform(1, 50) for name in names}
    tree = [(names[rng.randrange(number)], names[number]) for number in range(1, len(names))]
    others = [pair for pair in combinations(names, 2) if pair not in tree and rng.random() < size.further]
    edges = {}
    for pair in tree + others:
        edges[pair] = min(1.0, 10 ** rng.uniform(-1, 1) / (SPAN * max(rates[name] for name in pair)))
    return {f"q{number}": _part(rng, size, rates, edges) for number in range(rng.randint(*size.queries))}


def _part(
    rng: random.Random, size: Size, rates: Mapping[str, float], edges: Mapping[tuple[str, str], float]
) -> dt.JoinGraph:
    inside = {rng.choice(sorted(rates))}
    wanted = rng.randint(size.inputs[0], min(size.inputs[1], len(rates)))
    while len(inside) < wanted:
        near = {name for edge in edges if len(inside.intersection(edge)) == 1 for name in edge}
        inside.add(rng.choice(sorted(near - inside)))
    names = sorted(inside)
    chosen = {edge: value for edge, value in edges.items() if inside.issuperset(edge)}
    span = rng.choice(size.spans) if len(size.spans) > 1 else size.spans[0]
    return dt.JoinGraph({name: rates[name] for name in names}, chosen, dict.fromkeys(names, span))


def random_budget(rng: random.Random, queries: Mapping[str, dt.JoinGraph]) -> dt.Budget:
    """Limits around what the queries need."""
    units = dt.optimizer.UnitCosts.thesis()
    plain = dt.optimizer.plan_queries(queries, None, "shared-naive", units=units)
    best = dt.optimizer.plan_queries(queries, None, "exact", units=units)
    cpu = rng.uniform(0.9 * best.cpu_ms_per_second, 1.2 * plain.cpu_ms_per_second)
    most = max(1.2 * best.memory_bytes, 1.3 * plain.memory_bytes)
    memory = int(rng.uniform(0.95 * plain.memory_bytes, most))
    limits: tuple[float | None, int | None] = rng.choice(((cpu, memory), (cpu, memory), (None, memory), (cpu, None)))
    return dt.Budget(*limits)


def _load(queries: Mapping[str, dt.JoinGraph], budget: dt.Budget, strategy: Strategy) -> dict[str, float] | None:
    try:
        plan = dt.optimizer.plan_queries(queries, budget, strategy, units=dt.optimizer.UnitCosts.thesis())
    except dt.BudgetError:
        return None
    return {"cpu": plan.cpu_ms_per_second, "memory": plan.memory_bytes}
