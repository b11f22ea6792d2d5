"""One plan for many queries: which windows are kept, which sub-joins are stored, and which operator answers which query.

A plan is a graph of two kinds of nodes (Alrahmani, section 2.1.5). *OR-nodes hold tuples*: a `WindowNode` the latest tuples of a
stream, a `ResultNode` what a join produces, stored or only passed on. *AND-nodes join*: a `JoinNode` has two or more inputs,
which are OR-nodes, and one output. A plan is checked when it is made, by the thesis's rules on edges:

    incoming edges   AND-node: two or more;   window: none;   result: one
    outgoing edges   AND-node: one;           OR-node: any number, and a result that nobody reads and no query asks for is refused

How an engine reads it:

- A **source** is what one input of a query is: a stream, the filters below the join, and, for a stream that a query joins with itself,
  which of its occurrences. Sources have the same name in all queries; an `QueryAnswer` says which alias of the query each of them is.
- `joins` come in an order in which each reads only windows and results of joins before it.
- A new tuple of an input starts at that input and meets the others in the order `JoinNode.orders` gives; partial results must meet the
  `predicates` and, for each source, the window `spans` of the join. What arrives from an input that is a result is the composite that
  its join has produced, and the composite's latest event time counts as its own.
- To find the expressions, take any query of `JoinNode.queries`: the predicates between its aliases of these sources are the join's.
  `SharedPlan.paths` gives the orders as aliases of that query.
- A stored result is kept like a window: a composite leaves as soon as one of its tuples has left its source's span. Results that
  are not stored go to the queries only.
- A query's own windows may be smaller than those of the result that answers it, or of a stored result below (only the largest
  window is joined, section 2.1.3): `QueryAnswer.spans` are applied to what comes out. Filters below the join are part of its sources.

CPU is milliseconds per second, memory is bytes, as in a `Budget`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple, TypeAlias

from dovetail.errors import PlanError, listed


class Load(NamedTuple):
    """What something uses: CPU in milliseconds per second, memory in bytes."""

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
        """Whether it is within limits, to nine digits: sums in another order differ in the last ones."""
        return self.cpu <= limits.cpu * (1 + 1e-9) and self.memory <= limits.memory * (1 + 1e-9)


NO_LIMITS = Load(inf, inf)


@dataclass(frozen=True, slots=True)
class PlanSource:
    """What one input of a query is, whatever its alias: equal sources may share joins."""

    name: str
    """Its name in the plan: the stream, then filters, occurrence and count window if there are any."""
    stream: str
    """Whose window it reads: a stream's, or that of one of several groups that keep the stream for themselves."""
    filters: tuple[str, ...] = ()
    """Conditions that its tuples meet before they are joined, as text over the stream's name."""
    occurrence: int = 1
    """Which entry of a self-join it is."""
    storable: bool = True
    """Whether a sub-join over it may be stored; one over a count window may not."""


@dataclass(frozen=True, slots=True)
class WindowNode:
    """The latest tuples of a stream: an OR-node without a producer."""

    id: str
    stream: str
    span: float
    """Seconds: the largest window that any of its queries has on the stream."""
    rate: float
    queries: tuple[str, ...]
    load: Load

    @property
    def tuples(self) -> float:
        """How many it is expected to hold."""
        return self.rate * self.span


@dataclass(frozen=True, slots=True)
class JoinInput:
    """An edge into a join: a window, seen as one source, or a stored result."""

    node: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Two or more inputs joined in one step: an AND-node."""

    id: str
    inputs: tuple[JoinInput, ...]
    orders: tuple[tuple[int, ...], ...]
    """For each input the others, by place in `inputs`, in the order in which its new tuples meet them."""
    predicates: tuple[str, ...]
    """What is checked here: the conditions between its inputs, over the names of sources."""
    spans: Mapping[str, float]
    """For each source the seconds that its tuples take part: the largest window of the queries served."""
    output: str
    queries: tuple[str, ...]
    """Whom its results serve, directly or through other joins."""
    produced: float
    """Partial and final results per second."""
    load: Load

    @property
    def kind(self) -> str:
        """`binary`, or `mjoin` for three inputs and more."""
        return "binary" if len(self.inputs) == 2 else "mjoin"

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(source for each in self.inputs for source in each.sources))


@dataclass(frozen=True, slots=True)
class ResultNode:
    """What a join produces: an OR-node. Stored, it is a sub-join that other joins read like a window."""

    id: str
    join: str
    sources: tuple[str, ...]
    spans: Mapping[str, float]
    stored: bool
    rate: float
    """Composites per second."""
    tuples: float
    """Composites that are in their windows; kept if it is stored."""
    queries: tuple[str, ...]
    load: Load
    """Inserting and deleting, and the bytes, if it is stored; delivering, if it answers queries."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Where a query's results come from."""

    query: str
    result: str
    aliases: Mapping[str, str]
    """The query's alias of each source."""
    spans: Mapping[str, float]
    """The query's own windows, by source, in seconds."""


Node: TypeAlias = WindowNode | JoinNode | ResultNode


@dataclass(frozen=True)
class SharedPlan:
    """Windows, joins and results for all queries, and where each query's answer comes from."""

    windows: tuple[WindowNode, ...]
    joins: tuple[JoinNode, ...]
    results: tuple[ResultNode, ...]
    answers: tuple[QueryAnswer, ...]
    sources: Mapping[str, PlanSource]
    strategy: str
    query_order: tuple[str, ...]
    """In which order the queries were planned."""
    limits: Load = field(default=NO_LIMITS)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by id: windows, then each join before its result."""
        found: dict[str, Node] = {node.id: node for node in self.windows}
        results = {result.id: result for result in self.results}
        for join in self.joins:
            found[join.id] = join
            if join.output in results:
                found[join.output] = results[join.output]
        return found

    @property
    def states(self) -> tuple[ResultNode, ...]:
        """The sub-joins that are stored."""
        return tuple(result for result in self.results if result.stored)

    @property
    def load(self) -> Load:
        """CPU and memory of all nodes; each node once, however many queries it serves."""
        return Load(
            sum(node.load.cpu for node in self.nodes.values()), sum(node.load.memory for node in self.nodes.values())
        )

    @property
    def cpu_ms_per_second(self) -> float:
        return self.load.cpu

    @property
    def memory_bytes(self) -> float:
        return self.load.memory

    @property
    def qualified(self) -> bool:
        """Whether it fits the budget that it was made for."""
        return self.load.fits(self.limits)

    def answer(self, query: str) -> QueryAnswer:
        """Say where a query's results come from."""
        for answer in self.answers:
            if answer.query == query:
                return answer
        raise PlanError(f"the plan has no query {query!r}; it has {listed(answer.query for answer in self.answers)}")

    def top(self, query: str) -> JoinNode:
        """Give the join that produces a query's results."""
        return self._join_of(self.answer(query).result)

    def below(self, query: str) -> tuple[Node, ...]:
        """Give every node that a query's results come through, windows first."""
        wanted, waiting = set[str](), [self.answer(query).result]
        while waiting:
            node = waiting.pop()
            wanted.add(node)
            if isinstance(self.nodes[node], ResultNode):
                join = self._join_of(node)
                wanted.add(join.id)
                waiting += [each.node for each in join.inputs]
        return tuple(node for name, node in self.nodes.items() if name in wanted)

    def shared(self) -> tuple[Node, ...]:
        """Give the nodes that serve more than one query."""
        return tuple(node for node in self.nodes.values() if len(node.queries) > 1)

    def narrowed(self, query: str) -> Mapping[str, float]:
        """Give the sources whose window in a query is smaller than in the result that answers it: what is left to check."""
        answer = self.answer(query)
        spans = self._result(answer.result).spans
        return {source: span for source, span in answer.spans.items() if span < spans[source]}

    def paths(self, join: JoinNode, query: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Give, for each input of a join, what its new tuples go through, as aliases of a query that the join serves.

        A path starts with the aliases of its own input; an input that is a stored result brings several at once.
        """
        aliases = self.answer(query).aliases
        places = [tuple(aliases[source] for source in each.sources) for each in join.inputs]
        return tuple((places[place], *(places[number] for number in order)) for place, order in enumerate(join.orders))

    def reads_stored(self, join: JoinNode) -> bool:
        """Whether a join reads stored sub-joins."""
        stored = {state.id for state in self.states}
        return any(each.node in stored for each in join.inputs)

    def reordered(self, join: JoinNode, orders: Mapping[str, Sequence[str]]) -> JoinNode:
        """Give a join with other orders of some inputs, which are windows: all aliases of the first query that it serves."""
        aliases = self.answer(join.queries[0]).aliases
        places = {aliases[each.sources[0]]: place for place, each in enumerate(join.inputs)}
        changed = list(join.orders)
        for driver, order in orders.items():
            changed[places[driver]] = tuple(places[alias] for alias in order if alias != driver)
        return replace(join, orders=tuple(changed))

    def _result(self, name: str) -> ResultNode:
        node = self.nodes[name]
        assert isinstance(node, ResultNode)  # noqa: S101 - checked when the plan was made
        return node

    def _join_of(self, result: str) -> JoinNode:
        node = self.nodes[self._result(result).join]
        assert isinstance(node, JoinNode)  # noqa: S101 - checked when the plan was made
        return node


# -- what a plan must be ------------------------------------------------------------------------------------------------------------


def check(plan: SharedPlan) -> None:
    """Raise a `PlanError` that names the node at fault if a plan breaks a rule of section 2.1.5, or contradicts itself."""
    for problem in problems(plan):
        raise PlanError(f"not a plan: {problem}")


def problems(plan: SharedPlan) -> Iterator[str]:
    """Say what is wrong with a plan, the first thing first."""
    names = [node.id for group in (plan.windows, plan.joins, plan.results) for node in group]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        yield f"{listed(repeated)} are used for more than one node"
    known = {node.id for node in plan.windows}
    produced = {join.output: join for join in plan.joins}
    if len(produced) < len(plan.joins):
        yield "two joins have one output; a result has one incoming edge"
    results = {result.id: result for result in plan.results}
    for join in plan.joins:
        yield from _join_problems(join, known)
        if join.output not in results or results[join.output].join != join.id:
            yield f"join {join.id!r} has the output {join.output!r}, which is no result of its own"
        known.add(join.output)
    yield from _result_problems(plan, produced)
    yield from _answer_problems(plan, results)


def _join_problems(join: JoinNode, known: set[str]) -> Iterator[str]:
    if len(join.inputs) < 2:
        yield f"join {join.id!r} has {len(join.inputs)} inputs; an AND-node has two or more incoming edges"
    for each in join.inputs:
        if each.node not in known:
            yield f"join {join.id!r} reads {each.node!r}, which is no window and no result of a join before it"
    if len(set(join.sources)) < len(join.sources):
        yield f"two inputs of join {join.id!r} hold the same source"
    if set(join.spans) != set(join.sources):
        yield f"join {join.id!r} needs a span for each of {listed(join.sources)}, and no other"
    everything = list(range(len(join.inputs)))
    if [sorted((place, *order)) for place, order in enumerate(join.orders)] != [everything] * len(everything):
        yield f"the orders of join {join.id!r} must name, for each input, every other input once"


def _result_problems(plan: SharedPlan, produced: Mapping[str, JoinNode]) -> Iterator[str]:
    read = {each.node: join for join in plan.joins for each in join.inputs}
    answered = {answer.result for answer in plan.answers}
    for result in plan.results:
        if result.id not in produced:
            yield f"result {result.id!r} has no join that produces it; it needs one incoming edge"
            continue
        if not set(result.sources) == set(result.spans) == set(produced[result.id].sources):
            yield f"result {result.id!r} has other sources than its join"
        if result.id in read and not result.stored:
            yield f"join {read[result.id].id!r} reads result {result.id!r}, which is not stored"
        if result.id not in read and result.id not in answered:
            yield f"result {result.id!r} is read by no join and answers no query"
        for join in plan.joins:
            if any(each.node == result.id for each in join.inputs):
                yield from _narrow(f"result {result.id!r}", result.spans, f"join {join.id!r}", join.spans)
    for window in plan.windows:
        if window.id not in read:
            yield f"window {window.id!r} is read by no join"
        for join in plan.joins:
            for source in (each.sources[0] for each in join.inputs if each.node == window.id):
                yield from _narrow(
                    f"window {window.id!r}", {source: window.span}, f"join {join.id!r}", {source: join.spans[source]}
                )


def _answer_problems(plan: SharedPlan, results: Mapping[str, ResultNode]) -> Iterator[str]:
    names = [answer.query for answer in plan.answers]
    if len(set(names)) < len(names):
        yield "a query has two answers"
    for answer in plan.answers:
        if answer.result not in results:
            yield f"query {answer.query!r} is answered by {answer.result!r}, which is no result"
            continue
        result = results[answer.result]
        if set(answer.spans) != set(result.sources) or set(answer.aliases) != set(result.sources):
            yield f"query {answer.query!r} has other sources than result {result.id!r}, which answers it"
            continue
        if missing := [source for source in result.sources if source not in plan.sources]:
            yield f"sources {listed(missing)} are not described"
        yield from _narrow(f"result {result.id!r}", result.spans, f"query {answer.query!r}", answer.spans)


def _narrow(giver: str, given: Mapping[str, float], taker: str, wanted: Mapping[str, float]) -> Iterator[str]:
    for source, span in wanted.items():
        if given.get(source, inf) < span:
            yield f"{giver} keeps {source!r} for {given[source]:g} s; {taker}, which reads it, needs {span:g} s"


def in_order(names: Sequence[str], wanted: set[str]) -> tuple[str, ...]:
    """Give those of `names` that are wanted, in their order."""
    return tuple(name for name in names if name in wanted)
