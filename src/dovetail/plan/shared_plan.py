"""The shared plan of queries: windows, joins, materialized joins, and the result that answers each.

A plan is a graph of two kinds of nodes (Alrahmani, section 2.1.5). *OR-nodes hold tuples*: a `WindowNode` the latest tuples of a
stream, a `ResultNode` the output of a join, materialized or only delivered. *AND-nodes join*: a `JoinNode` has two or more inputs,
which are OR-nodes, and one output. A plan is checked at construction by the thesis's rules on edges:

    incoming edges   AND-node: two or more;   window: none;   result: one
    outgoing edges   AND-node: one;           OR-node: any number; a result without any must answer a query

Semantics:

- A **source** is one input of a query: a stream, the filters below the join and, for a self-join, its occurrence. Its name is the same
  in all queries; a `QueryAnswer` maps it to the query's alias.
- `joins` are in topological order: each reads only windows and results of earlier joins.
- A new tuple of an input is joined with the other inputs in the order of `JoinNode.orders`; partial results must satisfy the
  `predicates` and, for each source, the `window_seconds` of the join. A composite, from an input that is a result, has the latest
  event time of its tuples.
- The expressions of a join are those of the first of its queries (`JoinExpressions`). `SharedPlan.paths` returns the orders as aliases
  of a query. Plans from `dt.optimizer.plan_queries`, and serialized ones, have no expressions: `optimizer.expressions` adds them.
- A materialized result is held like a window: a composite expires with the first of its tuples. Other results go to queries only.
- A query's windows may be smaller than those of the result that answers it, or of a materialized result below it (only the largest
  window is joined, section 2.1.3): `QueryAnswer.window_seconds` filter the output. Filters below the join are part of its sources.

CPU is milliseconds per second, memory is bytes, as in a `Budget`. `window_seconds` has the unit of the cost model; expressions have
windows in microseconds, as everything that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple, TypeAlias

from dovetail.errors import PlanError, listed
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.steps import SourceUse
from dovetail.query.expressions import Column
from dovetail.query.model import JoinQuery


class Load(NamedTuple):
    """CPU in milliseconds per second, and memory in bytes."""

    cpu: float = 0.0
    memory: float = 0.0

    @classmethod
    def total(cls, loads: Iterable[Load]) -> Load:
        cpu = memory = 0.0
        for load in loads:
            cpu += load.cpu
            memory += load.memory
        return cls(cpu, memory)

    def plus(self, other: Load) -> Load:
        return Load(self.cpu + other.cpu, self.memory + other.memory)

    def fits(self, limits: Load) -> bool:
        """Whether the load is within limits, to nine digits: sums in another order differ in the last digits."""
        return self.cpu <= limits.cpu * (1 + 1e-9) and self.memory <= limits.memory * (1 + 1e-9)


NO_LIMITS = Load(inf, inf)


@dataclass(frozen=True, slots=True)
class PlanSource:
    """One input of a query, independent of its alias: equal sources may share joins."""

    name: str
    """Name in the plan: the stream, then filters, occurrence and count window if there are any."""
    stream: str
    """The window it reads: a stream's, or that of one shard group if several groups hold the stream."""
    filters: tuple[str, ...] = ()
    """Filters below the join, as text over the stream's name."""
    occurrence: int = 1
    """Position among the entries of a self-join."""
    materializable: bool = field(default=True, metadata={"name": "storable"})
    """Whether a join over it may be materialized; one over a count window may not."""


@dataclass(frozen=True, slots=True)
class WindowNode:
    """The latest tuples of a stream: an OR-node without a producer."""

    id: str
    stream: str
    window_seconds: float = field(metadata={"name": "span"})
    """The largest window that any of its queries has on the stream."""
    rate: float
    queries: tuple[str, ...]
    load: Load

    @property
    def tuples(self) -> float:
        """Expected number of tuples."""
        return self.rate * self.window_seconds


@dataclass(frozen=True, slots=True)
class JoinInput:
    """An edge into a join: a window, as one source, or a materialized result."""

    node: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinExpressions:
    """A join as a query over its inputs: equalities, conditions, filters and windows."""

    query: JoinQuery
    """A materialized input is one alias, with its name as the stream."""
    sources: tuple[SourceUse, ...]
    columns: Mapping[str, Column]
    """The source column behind each column of a materialized input."""
    selectivities: Mapping[frozenset[str], float]
    """By pair of inputs."""


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Two or more inputs joined in one step: an AND-node."""

    id: str
    inputs: tuple[JoinInput, ...]
    orders: tuple[tuple[int, ...], ...]
    """For each input, the order in which its new tuples probe the others, as indexes into `inputs`."""
    predicates: tuple[str, ...]
    """The conditions between its inputs, over the names of sources."""
    window_seconds: Mapping[str, float] = field(metadata={"name": "spans"})
    """By source, the largest window among the queries served."""
    output: str
    queries: tuple[str, ...]
    """The queries that use its results, directly or through other joins."""
    produced: float
    """Partial and final results per second."""
    load: Load
    expressions: JoinExpressions | None = field(default=None, compare=False)
    """None for a join over windows of one query, which runs by `QueryAnswer.plan`."""

    @property
    def kind(self) -> str:
        """`binary`, or `mjoin` for three or more inputs."""
        return "binary" if len(self.inputs) == 2 else "mjoin"

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(source for edge in self.inputs for source in edge.sources))


@dataclass(frozen=True, slots=True)
class ResultNode:
    """The output of a join: an OR-node."""

    id: str
    join: str
    sources: tuple[str, ...]
    window_seconds: Mapping[str, float] = field(metadata={"name": "spans"})
    is_materialized: bool = field(metadata={"name": "stored"})
    """Whether other joins can read it like a window."""
    rate: float
    """Composites per second."""
    tuples: float
    """Expected number of composites within their windows."""
    queries: tuple[str, ...]
    load: Load
    """Cost of inserts, deletes and memory if it is materialized, and of delivery if it answers queries."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The result that answers a query, and how it maps to the query."""

    query: str
    result: str
    aliases: Mapping[str, str]
    """The query's alias of each source."""
    window_seconds: Mapping[str, float] = field(metadata={"name": "spans"})
    """The query's windows, by source."""
    plan: QueryPlan | None = field(default=None, compare=False)
    """The query's individual plan."""


Node: TypeAlias = WindowNode | JoinNode | ResultNode


@dataclass(frozen=True)
class SharedPlan:
    """Windows, joins and results for all queries, and the result that answers each."""

    windows: tuple[WindowNode, ...]
    joins: tuple[JoinNode, ...]
    results: tuple[ResultNode, ...]
    answers: tuple[QueryAnswer, ...]
    sources: Mapping[str, PlanSource]
    strategy: str
    query_order: tuple[str, ...]
    """The order in which the queries were planned."""
    limits: Load = field(default=NO_LIMITS)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by id: windows, then each join before its result."""
        nodes: dict[str, Node] = {node.id: node for node in self.windows}
        results = {result.id: result for result in self.results}
        for join in self.joins:
            nodes |= {join.id: join} | ({join.output: results[join.output]} if join.output in results else {})
        return nodes

    @property
    def materialized(self) -> tuple[ResultNode, ...]:
        """The materialized results."""
        return tuple(result for result in self.results if result.is_materialized)

    @property
    def load(self) -> Load:
        """CPU and memory of all nodes; each node counts once, however many queries use it."""
        return Load.total(node.load for node in self.nodes.values())

    @property
    def cpu_ms_per_second(self) -> float:
        return self.load.cpu

    @property
    def memory_bytes(self) -> float:
        return self.load.memory

    @property
    def fits_budget(self) -> bool:
        """Whether the plan fits its limits: the thesis calls it qualified."""
        return self.load.fits(self.limits)

    def answer(self, query: str) -> QueryAnswer:
        """Return the answer of a query."""
        for answer in self.answers:
            if answer.query == query:
                return answer
        raise PlanError(f"the plan has no query {query!r}; it has {listed(answer.query for answer in self.answers)}")

    def top(self, query: str) -> JoinNode:
        """Return the join that produces a query's results."""
        return self._join_of(self.answer(query).result)

    def below(self, query: str) -> tuple[Node, ...]:
        """Return every node that a query depends on, windows first."""
        needed, stack = set[str](), [self.answer(query).result]
        while stack:
            node = stack.pop()
            needed.add(node)
            if isinstance(self.nodes[node], ResultNode):
                join = self._join_of(node)
                needed.add(join.id)
                stack += [edge.node for edge in join.inputs]
        return tuple(node for name, node in self.nodes.items() if name in needed)

    def shared(self) -> tuple[Node, ...]:
        """Return the nodes that more than one query uses."""
        return tuple(node for node in self.nodes.values() if len(node.queries) > 1)

    def narrower_windows(self, query: str) -> Mapping[str, float]:
        """Return the sources whose window in a query is smaller than in its result, with that window."""
        answer = self.answer(query)
        joined = self._result(answer.result).window_seconds
        return {source: seconds for source, seconds in answer.window_seconds.items() if seconds < joined[source]}

    def paths(self, join: JoinNode, query: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Return the probe order of each input of a join, as aliases of a query that uses the join.

        A path starts with the aliases of its own input; a materialized input has several.
        """
        aliases = self.answer(query).aliases
        inputs = [tuple(aliases[source] for source in edge.sources) for edge in join.inputs]
        return tuple((inputs[index], *(inputs[other] for other in order)) for index, order in enumerate(join.orders))

    def reads_materialized(self, join: JoinNode) -> bool:
        """Whether a join reads materialized results."""
        return not {edge.node for edge in join.inputs}.isdisjoint(result.id for result in self.materialized)

    def with_orders(self, join: JoinNode, orders: Mapping[str, Sequence[str]]) -> JoinNode:
        """Return a join over windows with other orders, given as aliases of the first query that uses it."""
        aliases = self.answer(join.queries[0]).aliases
        indexes = {aliases[edge.sources[0]]: index for index, edge in enumerate(join.inputs)}
        new_orders = list(join.orders)
        for driver, order in orders.items():
            new_orders[indexes[driver]] = tuple(indexes[alias] for alias in order if alias != driver)
        return replace(join, orders=tuple(new_orders))

    def _result(self, name: str) -> ResultNode:
        node = self.nodes[name]
        assert isinstance(node, ResultNode)  # noqa: S101 - checked when the plan was made
        return node

    def _join_of(self, result: str) -> JoinNode:
        node = self.nodes[self._result(result).join]
        assert isinstance(node, JoinNode)  # noqa: S101 - checked when the plan was made
        return node


# -- validation ---------------------------------------------------------------------------------------------------------------------


def check(plan: SharedPlan) -> None:
    """Raise `PlanError`, naming the node, if a plan breaks a rule of section 2.1.5 or contradicts itself."""
    for problem in problems(plan):
        raise PlanError(f"invalid plan: {problem}")


def problems(plan: SharedPlan) -> Iterator[str]:
    """Yield the inconsistencies of a plan."""
    names = [node.id for group in (plan.windows, plan.joins, plan.results) for node in group]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        yield f"{listed(repeated)} are used for more than one node"
    readable = {node.id for node in plan.windows}
    produced = {join.output: join for join in plan.joins}
    if len(produced) < len(plan.joins):
        yield "two joins have the same output; a result has one incoming edge"
    results = {result.id: result for result in plan.results}
    for join in plan.joins:
        yield from _join_problems(join, readable)
        if join.output not in results or results[join.output].join != join.id:
            yield f"join {join.id!r} has the output {join.output!r}, which is not a result of this join"
        readable.add(join.output)
    yield from _result_problems(plan, produced)
    yield from _answer_problems(plan, results)


def _join_problems(join: JoinNode, readable: set[str]) -> Iterator[str]:
    if len(join.inputs) < 2:
        yield f"join {join.id!r} has {len(join.inputs)} inputs; an AND-node has two or more incoming edges"
    for edge in join.inputs:
        if edge.node not in readable:
            yield f"join {join.id!r} reads {edge.node!r}, which is neither a window nor the result of an earlier join"
    if len(set(join.sources)) < len(join.sources):
        yield f"two inputs of join {join.id!r} have the same source"
    if set(join.window_seconds) != set(join.sources):
        yield f"join {join.id!r} has windows for {listed(join.window_seconds)}; its sources are {listed(join.sources)}"
    indexes = list(range(len(join.inputs)))
    if [sorted((index, *order)) for index, order in enumerate(join.orders)] != [indexes] * len(indexes):
        yield f"the orders of join {join.id!r} must name, for each input, every other input once"


def _result_problems(plan: SharedPlan, produced: Mapping[str, JoinNode]) -> Iterator[str]:
    readers = {edge.node: join for join in plan.joins for edge in join.inputs}
    answered = {answer.result for answer in plan.answers}
    for result in plan.results:
        if result.id not in produced:
            yield f"result {result.id!r} has no join that produces it; it needs one incoming edge"
            continue
        if not set(result.sources) == set(result.window_seconds) == set(produced[result.id].sources):
            yield f"result {result.id!r} and its join have different sources"
        if result.id in readers and not result.is_materialized:
            yield f"join {readers[result.id].id!r} reads result {result.id!r}, which is not materialized"
        if result.id not in readers and result.id not in answered:
            yield f"result {result.id!r} is read by no join and answers no query"
        for join in plan.joins:
            if any(edge.node == result.id for edge in join.inputs):
                yield from _short_windows(result, f"join {join.id!r}", join.window_seconds)
    for window in plan.windows:
        if window.id not in readers:
            yield f"window {window.id!r} is read by no join"
        for join in plan.joins:
            for source in (edge.sources[0] for edge in join.inputs if edge.node == window.id):
                yield from _short_windows(window, f"join {join.id!r}", {source: join.window_seconds[source]})


def _answer_problems(plan: SharedPlan, results: Mapping[str, ResultNode]) -> Iterator[str]:
    names = [answer.query for answer in plan.answers]
    if len(set(names)) < len(names):
        yield "a query has two answers"
    for answer in plan.answers:
        if answer.result not in results:
            yield f"query {answer.query!r} is answered by {answer.result!r}, which is not a result"
            continue
        result = results[answer.result]
        if set(answer.window_seconds) != set(result.sources) or set(answer.aliases) != set(result.sources):
            yield f"query {answer.query!r} and result {result.id!r}, which answers it, have different sources"
            continue
        if missing := [source for source in result.sources if source not in plan.sources]:
            yield f"sources {listed(missing)} are missing from the plan's sources"
        yield from _short_windows(result, f"query {answer.query!r}", answer.window_seconds)


def _short_windows(node: WindowNode | ResultNode, reader: str, needed: Mapping[str, float]) -> Iterator[str]:
    """Yield the sources whose window in a node is shorter than its reader needs."""
    kind = "window" if isinstance(node, WindowNode) else "result"
    for source, seconds in needed.items():
        held = node.window_seconds if isinstance(node, WindowNode) else node.window_seconds.get(source, inf)
        if held < seconds:
            yield f"{kind} {node.id!r} keeps {source!r} for {held:g} s; {reader}, which reads it, needs {seconds:g} s"


def in_order(names: Sequence[str], selected: set[str]) -> tuple[str, ...]:
    """Return the selected names, in the order of `names`."""
    return tuple(name for name in names if name in selected)
