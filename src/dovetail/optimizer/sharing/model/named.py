"""Join graphs whose inputs and predicates have names that mean the same in every query.

Two sub-joins are the same, and may be shared, exactly if they have equal sources and equal predicates between these (Alrahmani,
section 3.3; filters below a join belong to its sources). There are two ways to name a query's inputs and predicates:

- `name_graph(graph)`, for a plain `JoinGraph`: inputs with equal names are the same stream, and edges between the same inputs with the
  same selectivity are the same predicate. Two queries that join A and B with different selectivities are taken to mean different
  predicates.
- `translate.name_query(query, graph)`, for a bound `JoinQuery`: sources are streams with their filters, predicates are the texts of
  its conditions.
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
    """The condition over the names of sources; equal texts mean equal conditions."""


@dataclass(frozen=True)
class NamedGraph:
    """A join graph with an identity for each of its inputs, predicates and common keys."""

    graph: JoinGraph
    sources: Mapping[str, PlanSource]
    """The source of each input."""
    predicates: tuple[NamedPredicate, ...]
    keys: tuple[Mapping[str, str], ...]
    """For each class of the graph, the text of each input's key; these identify any part of a class."""
    unmaterializable: frozenset[str] = frozenset()
    """Inputs that no materialized join may contain: a probe reaches them only along a condition over three or more inputs."""
    orders: Mapping[str, Sequence[str]] | None = None
    """Fixed orders of the n-ary join over the query's own windows."""

    def __post_init__(self) -> None:
        if set(self.sources) != set(self.graph.rates):
            raise PlanError(
                f"NamedGraph: sources are given for {listed(self.sources)}; the inputs are {listed(self.graph.rates)}"
            )
        names = [source.name for source in self.sources.values()]
        if len(set(names)) < len(names):
            raise PlanError(
                f"NamedGraph: two inputs are the same source; sources are {listed(names)}",
                "give each input of a self-join its own occurrence",
            )


def name_graph(graph: JoinGraph) -> NamedGraph:
    """Name the inputs and predicates of a plain graph by its own names and numbers.

    >>> graph = JoinGraph({"A": 10, "B": 20}, {("A", "B"): 0.1}, {"A": 60, "B": 60})
    >>> [predicate.text for predicate in name_graph(graph).predicates]
    ['A-B 0.1']
    """
    pairs = (graph.edges - graph.class_pairs) | set(graph.factors)
    predicates = [
        NamedPredicate(pair, f"{'-'.join(sorted(pair))} {graph.factors.get(pair, 1.0)!r}")
        for pair in sorted(pairs, key=sorted)
    ]
    keys = [
        {name: f"{name} key of {graph.distinct[name, index]!r}" for name in inputs}
        for index, inputs in enumerate(graph.classes)
    ]
    return NamedGraph(graph, {name: PlanSource(name, name) for name in graph.rates}, tuple(predicates), tuple(keys))
