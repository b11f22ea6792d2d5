"""Random join graphs of every shape."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import strategies as st

import dovetail as dt

SHAPES = ("linear", "star", "acyclic", "cyclic", "complete")
TREES = SHAPES[:3]


def random_edges(rng: random.Random, count: int, shape: str) -> list[tuple[int, int]]:
    """Draw the edges of a connected graph; with few inputs a shape may degenerate to a simpler one."""
    if shape == "linear":
        return [(number, number + 1) for number in range(count - 1)]
    if shape == "star":
        return [(0, number) for number in range(1, count)]
    if shape == "complete":
        return list(combinations(range(count), 2))
    tree = [(rng.randrange(number), number) for number in range(1, count)]
    others = [pair for pair in combinations(range(count), 2) if pair not in tree]
    return tree + (rng.sample(others, rng.randint(1, len(others))) if shape == "cyclic" and others else [])


def random_graph(rng: random.Random, count: int, shape: str) -> dt.JoinGraph:
    """Draw rates from 1 to 100 and selectivities from 0 to 1, as in the paper, and windows of up to 10 seconds."""
    names = [f"S{number}" for number in rng.sample(range(100), count)]
    return dt.JoinGraph(
        {name: rng.uniform(1, 100) for name in names},
        {(names[left], names[right]): 1 - rng.random() for left, right in random_edges(rng, count, shape)},
        {name: rng.uniform(0.1, 10) for name in names},
    )


def with_classes(rng: random.Random, graph: dt.JoinGraph) -> dt.JoinGraph:
    """Return the graph with one or two common keys and a condition that connects nothing."""
    names = list(graph.rates)
    classes = [rng.sample(names, rng.randint(2, len(names))) for _ in range(rng.randint(1, 2))]
    distinct = {(name, number): rng.randint(1, 500) for number, group in enumerate(classes) for name in group}
    first, second = rng.sample(names, 2)
    return dt.JoinGraph(
        graph.rates,
        graph.selectivities,
        graph.windows,
        distinct,
        classes,
        conditions={(first, second): 1 - rng.random()} if rng.random() < 0.5 else None,
    )


@st.composite
def graphs(draw: st.DrawFn, most: int = 7, shapes: tuple[str, ...] = SHAPES, *, classes: bool = True) -> dt.JoinGraph:
    """Draw a graph; hypothesis shrinks its size and shape, and a seed fills in the numbers."""
    count, shape = draw(st.integers(2, most)), draw(st.sampled_from(shapes))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    graph = random_graph(rng, count, shape)
    return with_classes(rng, graph) if classes and draw(st.booleans()) else graph
