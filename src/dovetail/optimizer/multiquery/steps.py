"""From a `GlobalPlan` to steps that an engine runs: sources instead of aliases, stored sub-joins as inputs, orders as probe paths.

A join that serves several queries is the same in all of them, so any of them says what it is; the first does. Windows are the
largest of the queries served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product

import pyarrow as pa

from dovetail.config import Config
from dovetail.optimizer.estimates import estimate
from dovetail.optimizer.graph import JoinGraph, Pair
from dovetail.optimizer.planner import PlanChoices, access_rule, objective, plan_query
from dovetail.optimizer.query_graph import MICROS_PER_SECOND, join_graph
from dovetail.plan.global_plan import GlobalPlan, JoinInput, JoinNode, ResultNode
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.paths import PathMaker
from dovetail.plan.steps import JoinStep, Taker
from dovetail.query.expressions import Column, Expression, map_columns, rename_alias
from dovetail.query.model import (
    Condition,
    Equality,
    EqualityClass,
    JoinQuery,
    Key,
    StoredWindow,
    StreamRef,
    TimeWindow,
    Window,
)
from dovetail.schema import TIMESTAMP, StreamSchema


@dataclass(frozen=True)
class RunnablePlan:
    """Steps, and what a planner must know to choose their orders again."""

    steps: tuple[JoinStep, ...]
    states: Mapping[str, StreamSchema]
    """Stored sub-joins as streams."""
    choices: Mapping[str, PlanChoices]
    """What is known of each step's selectivities."""


def runnable(
    plan: GlobalPlan,
    queries: Mapping[str, JoinQuery],
    streams: Mapping[str, StreamSchema],
    config: Config,
    choices: Mapping[str, PlanChoices],
) -> RunnablePlan:
    """Turn a plan of bound queries into steps; `choices` are what was asked of each query's own plan.

    A join over base windows for one query alone is that query's own plan, by its own aliases.
    """
    states = {state.id: _as_stream(state) for state in plan.states}
    maker = _Maker(plan, queries, {**streams, **states}, config, choices)
    steps = [maker.step(join) for join in plan.joins]
    return RunnablePlan(tuple(steps), states, maker.known)


@dataclass
class _Maker:
    """Makes steps, one for each join."""

    plan: GlobalPlan
    queries: Mapping[str, JoinQuery]
    streams: Mapping[str, StreamSchema]
    config: Config
    choices: Mapping[str, PlanChoices]
    known: dict[str, PlanChoices] = field(default_factory=dict)

    @cached_property
    def stored(self) -> set[str]:
        return {state.id for state in self.plan.states}

    def step(self, join: JoinNode) -> JoinStep:
        answers = [answer.query for answer in self.plan.answers if answer.result == join.output]
        takers = tuple(Taker(self.queries[name], _sources(self.plan, name)) for name in answers)
        inputs = {each.node: each.sources for each in join.inputs if each.node in self.stored}
        if not inputs and len(answers) == 1 and join.output not in self.stored:
            choices = self.known[answers[0]] = self.choices.get(answers[0], PlanChoices())
            known = self._cheapest(join, answers[0])
            return JoinStep.single(plan_query(takers[0].query, self.streams, self.config, choices, known))
        first = join.queries[0]
        flat = _restricted(
            self.queries[first], _sources(self.plan, first), join, _windows(self.plan, join, self.queries)
        )
        state = join.output if join.output in self.stored else None
        if not inputs:
            choices = self.known[join.id] = self._over_sources(join)
            return JoinStep(plan_query(flat, self.streams, self.config, choices), flat, takers, state)
        collapse = _Collapse(flat, inputs)
        self.known[join.id] = PlanChoices(self._between(join))
        return JoinStep(self._paths(join, collapse.query), flat, takers, state, collapse.columns)

    def _cheapest(self, join: JoinNode, query: str) -> dict[str, list[str]]:
        """The orders that the plan has found for a join over base windows, by alias."""
        aliases = self.plan.answer(query).aliases
        names = [aliases[each.sources[0]] for each in join.inputs]
        return {names[place]: [names[number] for number in order] for place, order in enumerate(join.orders)}

    def _over_sources(self, join: JoinNode) -> PlanChoices:
        """What was asked of a join's queries, by source; orders that one of them forces are forced on all."""
        hints: dict[Pair, float] = {}
        orders: dict[str, list[str]] = {}
        for name in reversed(join.queries):
            sources, choices = _sources(self.plan, name), self.choices.get(name, PlanChoices())
            inside = {alias for alias, source in sources.items() if source in join.sources}
            for pair, value in choices.hints.items():
                if pair <= inside:
                    hints[frozenset(sources[alias] for alias in pair)] = value
            if len(inside) == len(sources):
                forced = (choices.orders or {}).items()
                orders |= {sources[alias]: [sources[other] for other in order] for alias, order in forced}
        return PlanChoices(hints, orders or None)

    def _between(self, join: JoinNode) -> dict[Pair, float]:
        """For each two inputs that have to do with each other, the share of their pairs that match."""
        first = join.queries[0]
        hints = self.choices.get(first, PlanChoices()).hints
        graph = join_graph(self.queries[first], self.streams, hints)
        aliases = self.plan.answer(first).aliases
        inputs = [(self._name(each), [aliases[source] for source in each.sources]) for each in join.inputs]
        related = graph.edges | set(graph.factors)
        found = {}
        for (one, left), (other, right) in combinations(inputs, 2):
            if any(frozenset(pair) in related for pair in product(left, right)):
                share = _size(graph, [*left, *right]) / (_size(graph, left) * _size(graph, right))
                found[frozenset((one, other))] = min(1.0, share)
        return found

    def _name(self, given: JoinInput) -> str:
        return given.node if given.node in self.stored else given.sources[0]

    def _paths(self, join: JoinNode, query: JoinQuery) -> QueryPlan:
        names = [self._name(each) for each in join.inputs]
        orders = {
            names[place]: (names[place], *(names[number] for number in order))
            for place, order in enumerate(join.orders)
        }
        graph = join_graph(query, self.streams, self.known[join.id].hints)
        access = access_rule(query, graph, self.config)
        maker = PathMaker(query)
        paths = tuple(maker.path(alias, orders[alias], access) for alias in query.aliases)
        return QueryPlan(query, paths, self.plan.strategy, estimate(graph, orders, objective(self.config)))


def _as_stream(state: ResultNode) -> StreamSchema:
    return StreamSchema(state.id, pa.schema([("ts", TIMESTAMP)]), "ts", rate=state.rate)


def _sources(plan: GlobalPlan, query: str) -> dict[str, str]:
    """The source of each alias of a query."""
    return {alias: source for source, alias in plan.answer(query).aliases.items()}


def _windows(plan: GlobalPlan, join: JoinNode, queries: Mapping[str, JoinQuery]) -> dict[str, Window]:
    """For each source the largest window of the queries that a join serves, in whole microseconds."""
    windows: dict[str, Window] = {}
    for name in join.queries:
        aliases = plan.answer(name).aliases
        for source in join.sources:
            window, largest = queries[name].ref(aliases[source]).window, windows.get(source)
            is_smaller = (
                isinstance(largest, TimeWindow) and isinstance(window, TimeWindow) and window.micros < largest.micros
            )
            windows[source] = largest if largest is not None and is_smaller else window
    return windows


def _restricted(
    query: JoinQuery, sources: Mapping[str, str], join: JoinNode, windows: Mapping[str, Window]
) -> JoinQuery:
    """A part of a query: the sources of a join, and all that is between them."""
    inside = {alias for alias, source in sources.items() if source in join.sources}

    def renamed(expression: Expression) -> Expression:
        return rename_alias(expression, sources.__getitem__)

    def key(given: Key) -> Key:
        return Key(sources[given.alias], renamed(given.expression))

    def within(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
        return tuple(
            Condition(renamed(each.expression), each.text) for each in conditions if inside.issuperset(each.aliases)
        )

    classes = [
        EqualityClass(tuple(key(each) for each in group.keys if each.alias in inside), group.type)
        for group in query.classes
    ]
    return JoinQuery(
        join.id,
        query.sql,
        tuple(
            StreamRef(sources[ref.alias], ref.stream, windows[sources[ref.alias]])
            for ref in query.refs
            if ref.alias in inside
        ),
        tuple(
            Equality(key(edge.left), key(edge.right), edge.type, edge.text)
            for edge in query.equalities
            if {edge.left.alias, edge.right.alias} <= inside
        ),
        within(query.conditions),
        within(query.filters),
        (),
        tuple(group for group in classes if len({each.alias for each in group.keys}) > 1),
    )


class _Collapse:
    """A join over sources as a join over its inputs: each stored sub-join becomes one alias."""

    def __init__(self, flat: JoinQuery, stored: Mapping[str, tuple[str, ...]]) -> None:
        self.columns: dict[str, Column] = {}
        self._input = {source: state for state, sources in stored.items() for source in sources}
        windows = {ref.alias: ref.window for ref in flat.refs}
        refs = [
            StreamRef(state, state, _stored_window({source: windows[source] for source in sources}))
            for state, sources in stored.items()
        ]
        self.query = replace(
            flat,
            refs=(*refs, *(ref for ref in flat.refs if ref.alias not in self._input)),
            equalities=tuple(
                Equality(self._key(edge.left), self._key(edge.right), edge.type, edge.text)
                for edge in flat.equalities
                if self._crosses((edge.left.alias, edge.right.alias))
            ),
            conditions=tuple(
                Condition(self._moved(each.expression), each.text)
                for each in flat.conditions
                if self._crosses(each.aliases)
            ),
            filters=tuple(each for each in flat.filters if each.aliases[0] not in self._input),
            classes=tuple(
                EqualityClass(tuple(self._key(key) for key in group.keys), group.type) for group in flat.classes
            ),
        )

    def _crosses(self, sources: Iterable[str]) -> bool:
        """Whether something is between inputs, and not inside one."""
        return len({self._input.get(source, source) for source in sources}) > 1

    def _key(self, key: Key) -> Key:
        return Key(self._input.get(key.alias, key.alias), self._moved(key.expression))

    def _moved(self, expression: Expression) -> Expression:
        return map_columns(expression, self._column)

    def _column(self, column: Column) -> Column:
        if column.alias not in self._input:
            return column
        name = f"[{column.alias}].{column.name}"
        self.columns[name] = column
        return Column(self._input[column.alias], name, column.type)


def _stored_window(windows: Mapping[str, Window]) -> StoredWindow:
    spans = {source: window.micros for source, window in windows.items() if isinstance(window, TimeWindow)}
    pace = sum(MICROS_PER_SECOND / max(micros, 1) for micros in spans.values())
    return StoredWindow(tuple(spans.items()), 1 / pace)


def _size(graph: JoinGraph, names: list[str]) -> float:
    size, joined = 1.0, list[str]()
    for name in names:
        size *= graph.extension(joined, name)
        joined.append(name)
    return size
