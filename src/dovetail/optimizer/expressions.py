"""Expressions of a shared plan.

Its joins are queries over their inputs; each query has its individual plan.

A join that serves several queries is the same in all of them, so it is described by the first, with the largest windows of all. A join
over windows for a single query needs no expressions of its own: it runs by that query's plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import pyarrow as pa

from dovetail.optimizer.graph.from_query import MICROS_PER_SECOND, planned_graph
from dovetail.optimizer.graph.join_graph import JoinGraph, Pair
from dovetail.plan.query_plan import QueryPlan
from dovetail.plan.shared_plan import JoinExpressions, JoinInput, JoinNode, SharedPlan
from dovetail.plan.steps import SourceUse
from dovetail.query.expressions import Call, Column, Expression, canonical, map_columns, rename_alias
from dovetail.query.model import (
    Condition,
    Equality,
    EqualityClass,
    JoinQuery,
    Key,
    MaterializedWindow,
    StreamRef,
    TimeWindow,
    Window,
)


def with_expressions(plan: SharedPlan, plans: Mapping[str, QueryPlan]) -> SharedPlan:
    """Return a shared plan with the expressions of its queries; `plans` are the individual ones."""
    if all(answer.plan is plans[answer.query] for answer in plan.answers):
        return plan
    answers = tuple(replace(answer, plan=plans[answer.query]) for answer in plan.answers)
    plan = replace(plan, answers=answers)
    materialized = {result.id for result in plan.materialized}
    joins = tuple(replace(join, expressions=_expressions(plan, plans, join, materialized)) for join in plan.joins)
    return replace(plan, joins=joins)


def filters_of(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """Return the filters of an alias, and equalities of its keys in one class; columns have no alias."""
    filters = [condition.expression for condition in query.filters if condition.aliases == (alias,)]
    for group in query.classes:
        first, *others = group.of(alias) or (None,)
        if first is not None:
            filters.extend(Call("eq", (first, other), pa.bool_()) for other in others)
    without_alias = [canonical(rename_alias(expression, lambda _: "")) for expression in filters]
    return tuple(sorted(without_alias, key=str))


def keys_of(query: JoinQuery, alias: str) -> tuple[Expression, ...]:
    """Return one key of each class of the alias; columns have no alias."""
    keys = (rename_alias(group.of(alias)[0], lambda _: "") for group in query.classes if group.of(alias))
    return tuple(key for _, key in sorted({str(key): key for key in keys}.items()))


def _expressions(
    plan: SharedPlan, plans: Mapping[str, QueryPlan], join: JoinNode, materialized: set[str]
) -> JoinExpressions | None:
    inputs = {edge.node: edge.sources for edge in join.inputs if edge.node in materialized}
    answered = sum(answer.result == join.output for answer in plan.answers)
    if not inputs and answered == 1 and join.output not in materialized:
        return None
    first = plans[join.queries[0]]
    sources = {alias: source for source, alias in plan.answer(first.query.name).aliases.items()}
    over_inputs = _OverInputs(
        {alias: source for alias, source in sources.items() if source in join.sources},
        {source: name for name, inside in inputs.items() for source in inside},
    )
    windows = _largest_windows(plan, plans, join)
    query = over_inputs.query(join.id, first.query, windows)
    selectivities = (
        _input_selectivities(first, join, over_inputs) if inputs else _source_selectivities(plan, plans, join)
    )
    return JoinExpressions(query, over_inputs.source_uses(first.query, windows), over_inputs.columns, selectivities)


@dataclass
class _OverInputs:
    """Rewrites a part of a query over the inputs of a join: a materialized join is one alias."""

    sources: Mapping[str, str]
    """The source of each alias of that part."""
    materialized: Mapping[str, str]
    """The materialized join of each source that is in one."""
    columns: dict[str, Column] = field(default_factory=dict)
    """The source column behind each column of a materialized join."""

    def query(self, name: str, query: JoinQuery, windows: Mapping[str, Window]) -> JoinQuery:
        """Return the part of a query, over inputs."""
        spans: dict[str, dict[str, int]] = {}
        for source, join in self.materialized.items():
            window = windows[source]
            spans.setdefault(join, {}).update({source: window.micros} if isinstance(window, TimeWindow) else {})
        return JoinQuery(
            name,
            query.sql,
            (
                *(StreamRef(join, join, _materialized_window(inside)) for join, inside in spans.items()),
                *(
                    StreamRef(self.sources[ref.alias], ref.stream, windows[self.sources[ref.alias]])
                    for ref in query.refs
                    if ref.alias in self.sources and self.sources[ref.alias] not in self.materialized
                ),
            ),
            tuple(
                Equality(self._key(edge.left), self._key(edge.right), edge.type, edge.text)
                for edge in query.equalities
                if self._crosses((edge.left.alias, edge.right.alias))
            ),
            tuple(
                Condition(self._rewrite(condition.expression), condition.text)
                for condition in query.conditions
                if self._crosses(condition.aliases)
            ),
            tuple(
                Condition(self._rewrite(condition.expression), condition.text)
                for condition in query.filters
                if self.sources.get(condition.aliases[0], "") not in {"", *self.materialized}
            ),
            (),
            tuple(EqualityClass(tuple(map(self._key, group.keys)), group.type) for group in self._classes(query)),
        )

    def source_uses(self, query: JoinQuery, windows: Mapping[str, Window]) -> tuple[SourceUse, ...]:
        """Return the sources of the join, with the filters and keys of the query."""
        part, uses = replace(query, classes=self._classes(query)), []
        for ref in query.refs:
            if ref.alias in self.sources:
                source, filters, keys = self.sources[ref.alias], filters_of(part, ref.alias), keys_of(part, ref.alias)
                window = windows[source]
                assert not isinstance(window, MaterializedWindow)  # noqa: S101 - a source is a stream's
                uses.append(SourceUse(source, ref.stream, window, self.input_of(ref.alias), filters, keys))
        return tuple(uses)

    def name_of(self, edge: JoinInput) -> str:
        """Return the name of an input: a materialized join, or a source."""
        return self.materialized.get(edge.sources[0], edge.sources[0])

    def input_of(self, alias: str) -> str:
        """Return the input that holds the tuples of an alias."""
        return self.materialized.get(self.sources[alias], self.sources[alias])

    def _classes(self, query: JoinQuery) -> tuple[EqualityClass, ...]:
        """Return the classes with keys of two or more sources, over aliases."""
        keys = [(tuple(key for key in group.keys if key.alias in self.sources), group.type) for group in query.classes]
        return tuple(EqualityClass(*part) for part in keys if len({key.alias for key in part[0]}) > 1)

    def _crosses(self, aliases: Iterable[str]) -> bool:
        """Whether `aliases` are sources of the join, in more than one input."""
        return self.sources.keys() >= set(aliases) and len(set(map(self.input_of, aliases))) > 1

    def _key(self, key: Key) -> Key:
        return Key(self.input_of(key.alias), self._rewrite(key.expression))

    def _rewrite(self, expression: Expression) -> Expression:
        return map_columns(expression, self._column)

    def _column(self, column: Column) -> Column:
        source = self.sources[column.alias]
        if source not in self.materialized:
            return Column(source, column.name, column.type)
        name = f"[{source}].{column.name}"
        self.columns[name] = Column(source, column.name, column.type)
        return Column(self.materialized[source], name, column.type)


def _materialized_window(spans: Mapping[str, int]) -> MaterializedWindow:
    pace = sum(MICROS_PER_SECOND / max(micros, 1) for micros in spans.values())
    return MaterializedWindow(tuple(spans.items()), 1 / pace)


def _largest_windows(plan: SharedPlan, plans: Mapping[str, QueryPlan], join: JoinNode) -> dict[str, Window]:
    """Return, by source, the largest window of the queries that a join serves.

    Queries never share count windows.
    """
    windows: dict[str, Window] = {}
    for name in join.queries:
        aliases = plan.answer(name).aliases
        for source in join.sources:
            window = plans[name].query.ref(aliases[source]).window
            windows[source] = max(windows.get(source, window), window, key=_length)
    return windows


def _length(window: Window) -> int:
    return window.micros if isinstance(window, TimeWindow) else 0


def _source_selectivities(plan: SharedPlan, plans: Mapping[str, QueryPlan], join: JoinNode) -> dict[Pair, float]:
    """Return the selectivities of a join's queries by pair of sources; the first query has precedence."""
    selectivities: dict[Pair, float] = {}
    for name in reversed(join.queries):
        sources = {alias: source for source, alias in plan.answer(name).aliases.items() if source in join.sources}
        for pair, value in plans[name].stats.selectivities.items():
            if pair <= sources.keys():
                selectivities[frozenset(sources[alias] for alias in pair)] = value
    return selectivities


def _input_selectivities(plan: QueryPlan, join: JoinNode, over_inputs: _OverInputs) -> dict[Pair, float]:
    """Return the selectivity of each pair of inputs with a predicate between them.

    The statistics are those of one query.
    """
    graph = planned_graph(plan)
    aliases = {source: alias for alias, source in over_inputs.sources.items()}
    inputs = {over_inputs.name_of(edge): [aliases[source] for source in edge.sources] for edge in join.inputs}
    related = graph.edges | set(graph.factors)
    selectivities = {}
    for (first, left), (second, right) in combinations(inputs.items(), 2):
        if any(frozenset(pair) in related for pair in product(left, right)):
            selectivity = _size(graph, [*left, *right]) / (_size(graph, left) * _size(graph, right))
            selectivities[frozenset((first, second))] = min(1.0, selectivity)
    return selectivities


def _size(graph: JoinGraph, names: list[str]) -> float:
    size, joined = 1.0, list[str]()
    for name in names:
        size *= graph.extension(joined, name)
        joined.append(name)
    return size
