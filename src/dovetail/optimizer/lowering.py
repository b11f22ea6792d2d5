"""Lowering of a `SharedPlan` to steps: joins over sources and materialized joins, with probe paths.

A join that serves several queries is the same in all of them, so it is described by the first. Its windows are the largest of the
queries. A join over windows for a single query is that query's own plan, with its own aliases and the orders of the shared plan.
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
from dovetail.plan.paths import PathBuilder
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
    """Builds the steps of queries that start together.

    `streams` are those that the queries read. The queries see tuples from batch `since` on; with `backfill` also the tuples that the
    windows held then, by stream from batch `complete_from` on. `cells` has, by query, the results that a shard owns, with keys over
    the query's aliases.
    """

    streams: Mapping[str, StreamSchema]
    config: Config
    since: int = 0
    cells: Mapping[str, Cell] | None = None
    backfill: bool = False
    complete_from: Mapping[str, int] = field(default_factory=dict)

    def unshared_step(self, plan: QueryPlan) -> JoinStep:
        """Return the step of a query that shares nothing."""
        query = plan.query
        consumer = self.consumer(query, {alias: alias for alias in query.aliases})
        return JoinStep(plan, self.sources(query, {}), (consumer,), since=self.since, backfill=self.backfill)

    def steps(self, plan: SharedPlan, plans: Mapping[str, QueryPlan]) -> tuple[JoinStep, ...]:
        """Return the steps of a shared plan; `plans` are the individual plans of its queries."""
        builder = _StepBuilder(self, plan, plans)
        return tuple(builder.step(join) for join in plan.joins)

    def consumer(self, query: JoinQuery, sources: Mapping[str, str]) -> Consumer:
        """Return a query as the consumer of a step; `sources` maps its aliases to sources."""
        outputs = tuple(Output(output.name, _renamed(output.expression, sources)) for output in query.outputs)
        windows = {sources[ref.alias]: ref.window for ref in query.refs}
        spans = {source: window.micros for source, window in windows.items() if isinstance(window, TimeWindow)}
        cell = tuple((_key(key, sources), splits, part) for key, splits, part in (self.cells or {}).get(query.name, ()))
        return Consumer(query.name, dict(sources), outputs, _same_outputs(query), spans, cell)

    def sources(self, flat: JoinQuery, inside: Mapping[str, str]) -> tuple[SourceUse, ...]:
        """Return the sources of a join; `inside` maps the sources of materialized joins to these."""
        uses = []
        for ref in flat.refs:
            assert not isinstance(ref.window, StoredWindow)  # noqa: S101 - a source is a stream's
            filters, keys = _filters(flat, ref.alias), _keys(flat, ref.alias)
            partition = self._partition(ref.stream, ref.window)
            join_input = inside.get(ref.alias, ref.alias)
            complete_from = self.complete_from.get(ref.stream, 0)
            use = SourceUse(ref.alias, ref.stream, ref.window, join_input, filters, keys, partition, complete_from)
            uses.append(use)
        return tuple(uses)

    def _partition(self, stream: str, window: Window) -> tuple[Expression, Column] | None:
        if not isinstance(window, CountWindow) or window.partition_by is None:
            return None
        column = Column("", window.partition_by, self.streams[stream].columns.field(window.partition_by).type)
        key = cast(column, sql_type(column.type) or column.type)
        if pa.types.is_decimal(key.type) and not is_exact(key.type):
            key = cast(key, pa.string())  # decimals of any length are compared as text
        return key, column


@dataclass
class _StepBuilder:
    """Builds a step for each join of a shared plan."""

    lowering: Lowering
    plan: SharedPlan
    plans: Mapping[str, QueryPlan]

    @cached_property
    def stored(self) -> dict[str, float]:
        """Expected new matches per second of each materialized join."""
        return {state.id: state.rate for state in self.plan.states}

    def step(self, join: JoinNode) -> JoinStep:
        answers = [answer.query for answer in self.plan.answers if answer.result == join.output]
        lowering = self.lowering
        inputs = {item.node: item.sources for item in join.inputs if item.node in self.stored}
        if not inputs and len(answers) == 1 and join.output not in self.stored:
            return lowering.unshared_step(self._reordered_plan(join, answers[0]))
        flat = self._flat(join)
        collapse = _Collapse(flat, inputs)
        state = join.output if join.output in self.stored else None
        consumers = tuple(lowering.consumer(self.plans[name].query, self._sources(name)) for name in answers)
        sources = lowering.sources(flat, collapse.inside)
        plan = self._plan(join, collapse.query)
        return JoinStep(plan, sources, consumers, state, collapse.columns, lowering.since, lowering.backfill)

    def _reordered_plan(self, join: JoinNode, name: str) -> QueryPlan:
        """Return a query's individual plan, with the orders that the shared plan chose for its join."""
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
        access, builder = access_rule(plan.query, graph, config), PathBuilder(plan.query)
        paths = tuple(
            builder.path(path.driver, orders[path.driver], access) if path.driver in changed else path
            for path in plan.paths
        )
        return replace(plan, paths=paths, estimate=estimate(graph, orders, objective(config)))

    def _flat(self, join: JoinNode) -> JoinQuery:
        first = join.queries[0]
        return _restricted(self.plans[first].query, self._sources(first), join, self._windows(join))

    def _plan(self, join: JoinNode, query: JoinQuery) -> QueryPlan:
        config = self.lowering.config
        names = [self._name(item) for item in join.inputs]
        rates = {ref.alias: self.stored.get(ref.stream) or self._rate(ref.stream) for ref in query.refs}
        hints = self._input_selectivities(join) if set(names) & self.stored.keys() else self._source_hints(join)
        graph = join_graph(query, rates, hints)
        probe_orders = {names[index]: [names[other] for other in order] for index, order in enumerate(join.orders)}
        orders = complete_orders(graph, config, probe_orders)
        access, builder = access_rule(query, graph, config), PathBuilder(query)
        paths = tuple(builder.path(alias, orders[alias], access) for alias in query.aliases)
        return QueryPlan(
            query, paths, config.ordering, PlannerStats(rates, hints), estimate(graph, orders, objective(config))
        )

    def _rate(self, stream: str) -> float:
        return self.lowering.streams[stream].rate or DEFAULT_RATE

    def _sources(self, query: str) -> dict[str, str]:
        """Return the source of each alias of a query."""
        return {alias: source for source, alias in self.plan.answer(query).aliases.items()}

    def _windows(self, join: JoinNode) -> dict[str, Window]:
        """Return, for each source, the largest window of the queries that a join serves."""
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

    def _source_hints(self, join: JoinNode) -> dict[Pair, float]:
        """Return the hints of a join's queries by pair of sources; the first query has precedence."""
        hints: dict[Pair, float] = {}
        for name in reversed(join.queries):
            sources = self._sources(name)
            inside = {alias for alias, source in sources.items() if source in join.sources}
            for pair, value in self.plans[name].known.hints.items():
                if pair <= inside:
                    hints[frozenset(sources[alias] for alias in pair)] = value
        return hints

    def _input_selectivities(self, join: JoinNode) -> dict[Pair, float]:
        """Return the selectivity of each pair of inputs with a predicate between them."""
        first = self.plans[join.queries[0]]
        graph = join_graph(first.query, first.known.rates, first.known.hints)
        aliases = self.plan.answer(first.query.name).aliases
        inputs = [(self._name(item), [aliases[source] for source in item.sources]) for item in join.inputs]
        related = graph.edges | set(graph.factors)
        selectivities = {}
        for (first_name, left), (second_name, right) in combinations(inputs, 2):
            if any(frozenset(pair) in related for pair in product(left, right)):
                selectivity = _size(graph, [*left, *right]) / (_size(graph, left) * _size(graph, right))
                selectivities[frozenset((first_name, second_name))] = min(1.0, selectivity)
        return selectivities

    def _name(self, join_input: JoinInput) -> str:
        return join_input.node if join_input.node in self.stored else join_input.sources[0]


def _renamed(expression: Expression, sources: Mapping[str, str]) -> Expression:
    return rename_alias(expression, sources.__getitem__)


def _key(key: Key, sources: Mapping[str, str]) -> Key:
    return Key(sources[key.alias], _renamed(key.expression, sources))


def _filters(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """Return the filters of an alias, and equalities of its keys in one class; columns have no alias."""
    filters = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        first, *others = group.of(alias) or (None,)
        if first is not None:
            filters.extend(Call("eq", (first, other), pa.bool_()) for other in others)
    without_alias = [canonical(rename_alias(expression, lambda _: "")) for expression in filters]
    return tuple(sorted(without_alias, key=str))


def _keys(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """Return one key of each class of the alias; columns have no alias."""
    keys = (rename_alias(group.of(alias)[0], lambda _: "") for group in query.classes if group.of(alias))
    return tuple(key for _, key in sorted({str(key): key for key in keys}.items()))


def _same_outputs(query: JoinQuery) -> tuple[int, ...]:
    """Return, for each output, the index of the first output with the same value in every result.

    Keys of one class are equal if they have the type in which they are compared; floats are excluded, because 0.0 equals -0.0.
    """
    first: dict[Expression | int, int] = {}
    same = []
    for index, output in enumerate(query.outputs):
        expression = output.expression
        classes = [
            class_index
            for class_index, group in enumerate(query.classes)
            if group.type == expression.type
            and not pa.types.is_floating(group.type)
            and any(key.expression == expression for key in group.keys)
        ]
        same.append(first.setdefault(classes[0] if classes else expression, index))
    return tuple(same)


def _restricted(
    query: JoinQuery, sources: Mapping[str, str], join: JoinNode, windows: Mapping[str, Window]
) -> JoinQuery:
    """Return the part of a query over the sources of a join, with their predicates and filters."""
    inside = {alias for alias, source in sources.items() if source in join.sources}

    def within(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
        return tuple(
            Condition(_renamed(condition.expression, sources), condition.text)
            for condition in conditions
            if inside.issuperset(condition.aliases)
        )

    classes = [
        EqualityClass(tuple(_key(key, sources) for key in group.keys if key.alias in inside), group.type)
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
        tuple(group for group in classes if len({key.alias for key in group.keys}) > 1),
    )


class _Collapse:
    """A join over sources, rewritten over its inputs: each materialized join becomes one alias."""

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
                Condition(self._rewrite(condition.expression), condition.text)
                for condition in flat.conditions
                if self._crosses(condition.aliases)
            ),
            filters=tuple(condition for condition in flat.filters if condition.aliases[0] not in self.inside),
            classes=tuple(
                EqualityClass(tuple(self._key(key) for key in group.keys), group.type) for group in flat.classes
            ),
        )

    def _crosses(self, sources: Iterable[str]) -> bool:
        """Whether `sources` belong to more than one input."""
        return len({self.inside.get(source, source) for source in sources}) > 1

    def _key(self, key: Key) -> Key:
        return Key(self.inside.get(key.alias, key.alias), self._rewrite(key.expression))

    def _rewrite(self, expression: Expression) -> Expression:
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
