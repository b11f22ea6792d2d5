"""A query as the planner of many sees it: a join graph whose inputs and predicates have names that mean the same in every query.

Two sub-joins are the same, and may be shared, exactly if they have equal sources and equal predicates between these (Alrahmani,
section 3.3; filters below a join belong to its sources). So everything rests on names, and there are two ways to get them:

- `named(graph)`, for a plain `JoinGraph`: inputs with equal names are the same stream, and edges between the same inputs with the
  same selectivity are the same predicate. Two queries that join A and B with different selectivities are taken to mean different
  predicates.
- `translate.named_query(query, graph)`, for a bound `JoinQuery`: sources are streams and their filters, predicates are what was
  written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.errors import PlanError, listed
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.plan.shared_plan import PlanSource


@dataclass(frozen=True)
class NamedPredicate:
    """A condition between inputs."""

    inputs: frozenset[str]
    text: str
    """What it says, over the names of sources: equal text, equal condition."""


@dataclass(frozen=True)
class NamedGraph:
    """A join graph with an identity for each of its inputs, predicates and common keys."""

    graph: JoinGraph
    sources: Mapping[str, PlanSource]
    """What each input is."""
    predicates: tuple[NamedPredicate, ...]
    keys: tuple[Mapping[str, str], ...]
    """For each class of the graph the text of each input's key; a part of a class is known by the keys of its inputs."""
    unstorable: frozenset[str] = frozenset()
    """Inputs of no stored sub-join: only a condition over three or more leads to them, which a sub-join of fewer does not have."""
    orders: Mapping[str, Sequence[str]] | None = None
    """The orders of the n-ary join over its own windows, if they were chosen before."""

    def __post_init__(self) -> None:
        if set(self.sources) != set(self.graph.rates):
            raise PlanError(
                f"NamedGraph: sources are given for {listed(self.sources)}; the inputs are {listed(self.graph.rates)}"
            )
        names = [source.name for source in self.sources.values()]
        if len(set(names)) < len(names):
            raise PlanError(
                f"NamedGraph: two inputs are the same source; sources are {listed(names)}",
                "give each entry of a self-join an occurrence of its own",
            )


def named(graph: JoinGraph) -> NamedGraph:
    """Name the inputs and predicates of a plain graph by what it holds.

    >>> graph = JoinGraph({"A": 10, "B": 20}, {("A", "B"): 0.1}, {"A": 60, "B": 60})
    >>> [predicate.text for predicate in named(graph).predicates]
    ['A-B 0.1']
    """
    pairs = (graph.edges - graph.implied) | set(graph.factors)
    predicates = [
        NamedPredicate(pair, f"{'-'.join(sorted(pair))} {graph.factors.get(pair, 1.0)!r}")
        for pair in sorted(pairs, key=sorted)
    ]
    keys = [
        {name: f"{name} key of {graph.distinct[name, number]!r}" for name in inputs}
        for number, inputs in enumerate(graph.classes)
    ]
    return NamedGraph(graph, {name: PlanSource(name, name) for name in graph.rates}, tuple(predicates), tuple(keys))
