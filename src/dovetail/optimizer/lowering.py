"""From a `SharedPlan` to the steps that run: sources instead of aliases, stored sub-joins as inputs, orders as probe paths.

A join that serves several queries is the same in all of them, so any of them says what it is; the first does. Windows are the
largest of the queries served. A join for one query alone, over windows only, is that query's own plan, by its own aliases and in
the orders that the plan of all queries has for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product

import pyarrow as pa

from dovetail.config import Config
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.graph.from_query import DEFAULT_RATE, MICROS_PER_SECOND, join_graph
from dovetail.optimizer.graph.join_graph import JoinGraph, Pair
from dovetail.optimizer.planner import access_rule, complete_orders, objective
from dovetail.plan.paths import PathMaker
from dovetail.plan.query_plan import PlannerStats, QueryPlan
from dovetail.plan.shared_plan import JoinInput, JoinNode, SharedPlan
from dovetail.plan.steps import Cell, Consumer, JoinStep, SourceUse
from dovetail.query.expressions import Call, Column, Expression, canonical, cast, map_columns, rename_alias
from dovetail.query.model import (
    Condition,
    CountWindow,
    Equality,
    EqualityClass,
    JoinQuery,
    Key,
    Output,
    StoredWindow,
    StreamRef,
    TimeWindow,
    Window,
)
from dovetail.schema import StreamSchema, is_exact, sql_type


@dataclass(frozen=True)
class Lowering:
    """Makes steps of queries.

    `streams`: those that the queries read. `since`: the batch from which on they see tuples; with `backfill` also those that the
    windows held then, by stream from batch `complete_from` on. `cells`: by query, which results a shard gives, its keys over the
    query's aliases.
    """

    streams: Mapping[str, StreamSchema]
    config: Config
    since: int = 0
    cells: Mapping[str, Cell] | None = None
    backfill: bool = False
    complete_from: Mapping[str, int] = field(default_factory=dict)

    def own(self, plan: QueryPlan) -> JoinStep:
        """The step of a query that shares nothing."""
        query = plan.query
        consumer = self.consumer(query, {alias: alias for alias in query.aliases})
        return JoinStep(plan, self.sources(query, {}), (consumer,), since=self.since, backfill=self.backfill)

    def steps(self, plan: SharedPlan, plans: Mapping[str, QueryPlan]) -> tuple[JoinStep, ...]:
        """The steps of a plan of bound queries; `plans` are the plans that they have by themselves."""
        maker = _Maker(self, plan, plans)
        return tuple(maker.step(join) for join in plan.joins)

    def consumer(self, query: JoinQuery, sources: Mapping[str, str]) -> Consumer:
        """A query as one that takes results; `sources` are those of its aliases."""
        outputs = tuple(Output(output.name, _renamed(output.expression, sources)) for output in query.outputs)
        windows = {sources[ref.alias]: ref.window for ref in query.refs}
        spans = {source: window.micros for source, window in windows.items() if isinstance(window, TimeWindow)}
        cell = tuple((_key(key, sources), share, part) for key, share, part in (self.cells or {}).get(query.name, ()))
        return Consumer(query.name, dict(sources), outputs, _same_outputs(query), spans, cell)

    def sources(self, flat: JoinQuery, inside: Mapping[str, str]) -> tuple[SourceUse, ...]:
        """The sources of a join; `inside` are the stored inputs that some of them are part of."""
        found = []
        for ref in flat.refs:
            assert not isinstance(ref.window, StoredWindow)  # noqa: S101 - a source is a stream's
            filters, keys = _filters(flat, ref.alias), _keys(flat, ref.alias)
            partition = self._partition(ref.stream, ref.window)
            led_to = inside.get(ref.alias, ref.alias)
            complete_from = self.complete_from.get(ref.stream, 0)
            found.append(SourceUse(ref.alias, ref.stream, ref.window, led_to, filters, keys, partition, complete_from))
        return tuple(found)

    def _partition(self, stream: str, window: Window) -> tuple[Expression, Column] | None:
        if not isinstance(window, CountWindow) or window.partition_by is None:
            return None
        column = Column("", window.partition_by, self.streams[stream].columns.field(window.partition_by).type)
        key = cast(column, sql_type(column.type) or column.type)
        if pa.types.is_decimal(key.type) and not is_exact(key.type):
            key = cast(key, pa.string())  # values of any length are told apart by their bytes
        return key, column


@dataclass
class _Maker:
    """Makes steps, one for each join of a plan."""

    lowering: Lowering
    plan: SharedPlan
    plans: Mapping[str, QueryPlan]

    @cached_property
    def stored(self) -> dict[str, float]:
        """The stored sub-joins, with the matches per second that each is expected to get."""
        return {state.id: state.rate for state in self.plan.states}

    def step(self, join: JoinNode) -> JoinStep:
        answers = [answer.query for answer in self.plan.answers if answer.result == join.output]
        inputs = {each.node: each.sources for each in join.inputs if each.node in self.stored}
        if not inputs and len(answers) == 1 and join.output not in self.stored:
            return self.lowering.own(self._own(join, answers[0]))
        flat = self._flat(join)
        collapse = _Collapse(flat, inputs)
        state = join.output if join.output in self.stored else None
        consumers = tuple(self.lowering.consumer(self.plans[name].query, self._sources(name)) for name in answers)
        sources = self.lowering.sources(flat, collapse.inside)
        plan = self._plan(join, collapse.query)
        own = self.lowering
        return JoinStep(plan, sources, consumers, state, collapse.columns, own.since, own.backfill)

    def _own(self, join: JoinNode, name: str) -> QueryPlan:
        """A query's own plan, in the orders of its join: they may have been chosen together with those of others."""
        plan, config = self.plans[name], self.lowering.config
        orders = {driver: (driver, *(alias for (alias,) in path)) for (driver,), *path in self.plan.paths(join, name)}
        changed = [
            path.driver
            for path in plan.paths
            if [alias for alias in path.order if alias != path.driver] != list(orders[path.driver][1:])
        ]
        if not changed:
            return plan
        graph = join_graph(plan.query, plan.known.rates, plan.known.hints)
        access, maker = access_rule(plan.query, graph, config), PathMaker(plan.query)
        paths = tuple(
            maker.path(path.driver, orders[path.driver], access) if path.driver in changed else path
            for path in plan.paths
        )
        return replace(plan, paths=paths, estimate=estimate(graph, orders, objective(config)))

    def _flat(self, join: JoinNode) -> JoinQuery:
        first = join.queries[0]
        return _restricted(self.plans[first].query, self._sources(first), join, self._windows(join))

    def _plan(self, join: JoinNode, query: JoinQuery) -> QueryPlan:
        config = self.lowering.config
        names = [self._name(each) for each in join.inputs]
        rates = {ref.alias: self.stored.get(ref.stream) or self._rate(ref.stream) for ref in query.refs}
        hints = self._between(join) if set(names) & self.stored.keys() else self._over_sources(join)
        graph = join_graph(query, rates, hints)
        others = {names[place]: [names[each] for each in order] for place, order in enumerate(join.orders)}
        orders = complete_orders(graph, config, others)
        access, maker = access_rule(query, graph, config), PathMaker(query)
        paths = tuple(maker.path(alias, orders[alias], access) for alias in query.aliases)
        return QueryPlan(
            query, paths, config.ordering, PlannerStats(rates, hints), estimate(graph, orders, objective(config))
        )

    def _rate(self, stream: str) -> float:
        return self.lowering.streams[stream].rate or DEFAULT_RATE

    def _sources(self, query: str) -> dict[str, str]:
        """The source of each alias of a query."""
        return {alias: source for source, alias in self.plan.answer(query).aliases.items()}

    def _windows(self, join: JoinNode) -> dict[str, Window]:
        """For each source the largest window of the queries that a join serves, in whole microseconds."""
        windows: dict[str, Window] = {}
        for name in join.queries:
            aliases = self.plan.answer(name).aliases
            for source in join.sources:
                window, largest = self.plans[name].query.ref(aliases[source]).window, windows.get(source)
                is_smaller = (
                    isinstance(largest, TimeWindow)
                    and isinstance(window, TimeWindow)
                    and window.micros < largest.micros
                )
                windows[source] = largest if largest is not None and is_smaller else window
        return windows

    def _over_sources(self, join: JoinNode) -> dict[Pair, float]:
        """What was said of the selectivities of a join's queries, by source; the first query is believed first."""
        hints: dict[Pair, float] = {}
        for name in reversed(join.queries):
            sources = self._sources(name)
            inside = {alias for alias, source in sources.items() if source in join.sources}
            for pair, value in self.plans[name].known.hints.items():
                if pair <= inside:
                    hints[frozenset(sources[alias] for alias in pair)] = value
        return hints

    def _between(self, join: JoinNode) -> dict[Pair, float]:
        """For each two inputs that have to do with each other, the share of their pairs that match."""
        first = self.plans[join.queries[0]]
        graph = join_graph(first.query, first.known.rates, first.known.hints)
        aliases = self.plan.answer(first.query.name).aliases
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


def _renamed(expression: Expression, sources: Mapping[str, str]) -> Expression:
    return rename_alias(expression, sources.__getitem__)


def _key(key: Key, sources: Mapping[str, str]) -> Key:
    return Key(sources[key.alias], _renamed(key.expression, sources))


def _filters(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """An alias's filters, the equality of its own keys within one class among them; over no alias."""
    written = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        first, *others = group.of(alias) or (None,)
        if first is not None:
            written.extend(Call("eq", (first, other), pa.bool_()) for other in others)
    bare = [canonical(rename_alias(expression, lambda _: "")) for expression in written]
    return tuple(sorted(bare, key=str))


def _keys(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """One key of each class that the alias takes part in; over no alias."""
    keys = (rename_alias(group.of(alias)[0], lambda _: "") for group in query.classes if group.of(alias))
    return tuple(key for _, key in sorted({str(key): key for key in keys}.items()))


def _same_outputs(query: JoinQuery) -> tuple[int, ...]:
    """For each output the number of the first that holds the same in every result: keys, in the type that they are compared in.

    Floats are left out: 0.0 equals -0.0.
    """
    first: dict[Expression | int, int] = {}
    same = []
    for number, output in enumerate(query.outputs):
        expression = output.expression
        classes = [
            place
            for place, group in enumerate(query.classes)
            if group.type == expression.type
            and not pa.types.is_floating(group.type)
            and any(key.expression == expression for key in group.keys)
        ]
        same.append(first.setdefault(classes[0] if classes else expression, number))
    return tuple(same)


def _restricted(
    query: JoinQuery, sources: Mapping[str, str], join: JoinNode, windows: Mapping[str, Window]
) -> JoinQuery:
    """A part of a query: the sources of a join, and all that is between them."""
    inside = {alias for alias, source in sources.items() if source in join.sources}

    def within(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
        return tuple(
            Condition(_renamed(each.expression, sources), each.text)
            for each in conditions
            if inside.issuperset(each.aliases)
        )

    classes = [
        EqualityClass(tuple(_key(each, sources) for each in group.keys if each.alias in inside), group.type)
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
            Equality(_key(edge.left, sources), _key(edge.right, sources), edge.type, edge.text)
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
        self.inside = {source: state for state, sources in stored.items() for source in sources}
        windows = {ref.alias: ref.window for ref in flat.refs}
        refs = [
            StreamRef(state, state, _stored_window({source: windows[source] for source in sources}))
            for state, sources in stored.items()
        ]
        self.query = replace(
            flat,
            refs=(*refs, *(ref for ref in flat.refs if ref.alias not in self.inside)),
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
            filters=tuple(each for each in flat.filters if each.aliases[0] not in self.inside),
            classes=tuple(
                EqualityClass(tuple(self._key(key) for key in group.keys), group.type) for group in flat.classes
            ),
        )

    def _crosses(self, sources: Iterable[str]) -> bool:
        """Whether something is between inputs, and not inside one."""
        return len({self.inside.get(source, source) for source in sources}) > 1

    def _key(self, key: Key) -> Key:
        return Key(self.inside.get(key.alias, key.alias), self._moved(key.expression))

    def _moved(self, expression: Expression) -> Expression:
        return map_columns(expression, self._column)

    def _column(self, column: Column) -> Column:
        if column.alias not in self.inside:
            return column
        name = f"[{column.alias}].{column.name}"
        self.columns[name] = column
        return Column(self.inside[column.alias], name, column.type)


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
