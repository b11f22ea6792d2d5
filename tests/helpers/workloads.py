"""Small random sets of queries over common streams, with budgets near their minimum."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from graphs import random_edges

import dovetail as dt
from dovetail.optimizer import UnitCosts


@dataclass(frozen=True)
class Case:
    """Queries, and a budget that may or may not be enough."""

    queries: Mapping[str, dt.JoinGraph]
    budget: dt.Budget


def random_queries(
    rng: random.Random, streams: int = 5, count: int = 3, most: int = 4, *, windows: bool = False
) -> dict[str, dt.JoinGraph]:
    """Draw connected parts of one random graph over all streams, with 0.1 to 10 matches per probe."""
    names = [f"S{number}" for number in range(streams)]
    rates = {name: rng.uniform(1, 50) for name in names}
    shape = rng.choice(("linear", "star", "acyclic", "cyclic"))
    edges = {}
    for left, right in random_edges(rng, streams, shape):
        busier = 10 * max(rates[names[left]], rates[names[right]])
        edges[frozenset((names[left], names[right]))] = min(1.0, 10 ** rng.uniform(-1, 1) / busier)
    queries = {}
    for number in range(count):
        span = rng.choice((5.0, 10.0, 20.0)) if windows else 10.0
        queries[f"q{number}"] = part_of(rng, rates, edges, rng.randint(2, min(most, streams)), span)
    return queries


def part_of(
    rng: random.Random, rates: Mapping[str, float], edges: Mapping[frozenset[str], float], size: int, span: float
) -> dt.JoinGraph:
    """Draw a connected part with the given number of inputs and all edges between them."""
    inside = {rng.choice(sorted(rates))}
    while len(inside) < size:
        near = sorted({name for edge in edges if len(edge & inside) == 1 for name in edge - inside})
        inside.add(rng.choice(near))
    ordered = sorted(inside, key=lambda _: rng.random())
    return dt.JoinGraph(
        {name: rates[name] for name in ordered},
        {edge: value for edge, value in edges.items() if edge <= inside},
        dict.fromkeys(ordered, span),
    )


def random_case(seed: int, *, windows: bool = False) -> Case:
    """Draw queries and a budget from just below the minimum to somewhat above what n-ary joins and all binary trees need."""
    rng = random.Random(seed)
    queries = random_queries(rng, rng.randint(3, 5), rng.randint(2, 3), windows=windows)
    units = UnitCosts.thesis()
    nary = dt.optimizer.plan_queries(queries, None, "shared-naive", units=units)
    best = dt.optimizer.plan_queries(queries, None, "exchange", units=units)
    cpu = rng.uniform(0.9 * best.load.cpu, 1.2 * nary.load.cpu)
    memory = rng.uniform(0.95 * nary.load.memory, max(1.2 * best.load.memory, 1.3 * nary.load.memory))
    limits = rng.choice(((cpu, memory), (cpu, memory), (None, memory), (cpu, None)))
    return Case(queries, dt.Budget(limits[0], None if limits[1] is None else int(limits[1])))
