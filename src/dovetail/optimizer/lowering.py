"""Lowering of a `SharedPlan` to steps: joins over sources and materialized joins, with probe paths.

The plan carries the expressions of its joins. A join over windows for a single query is that query's own plan, with its own aliases
and the orders of the shared plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from dovetail.config import Config
from dovetail.errors import PlanError
from dovetail.optimizer.cost.estimates import estimate
from dovetail.optimizer.expressions import filters_of, keys_of
from dovetail.optimizer.graph.from_query import join_graph, planned_graph
from dovetail.optimizer.planner import access_rule, complete_orders, objective
from dovetail.plan.paths import PathBuilder
from dovetail.plan.query_plan import DEFAULT_RATE, PlannerStats, QueryPlan
from dovetail.plan.shared_plan import JoinExpressions, JoinNode, QueryAnswer, SharedPlan
from dovetail.plan.steps import Cell, Consumer, JoinStep, SourceUse
from dovetail.query.expressions import Column, Expression, cast, rename_alias
from dovetail.query.model import CountWindow, JoinQuery, Key, MaterializedWindow, Output, TimeWindow, Window
from dovetail.schema import StreamSchema, is_exact, sql_type


@dataclass(frozen=True)
class Lowering:
    """Builds the steps of queries that start together.

    `streams` are those that the queries read. The queries see tuples from `first_batch` on; with `backfill` also the tuples that the
    windows held then, by stream from batch `complete_from` on. `cells` has, by query, the results that a shard owns, with keys over
    the query's aliases.
    """

    streams: Mapping[str, StreamSchema]
    config: Config
    first_batch: int = 0
    cells: Mapping[str, Cell] | None = None
    backfill: bool = False
    complete_from: Mapping[str, int] = field(default_factory=dict)

    def individual_step(self, plan: QueryPlan) -> JoinStep:
        """Return the step that runs a query by its individual plan."""
        query = plan.query
        consumer = self.consumer(query, {alias: alias for alias in query.aliases})
        return JoinStep(plan, self._sources(query), (consumer,), first_batch=self.first_batch, backfill=self.backfill)

    def steps(self, plan: SharedPlan) -> tuple[JoinStep, ...]:
        """Return the steps of a shared plan, which has expressions."""
        return tuple(map(_StepBuilder(self, plan).step, plan.joins))

    def consumer(self, query: JoinQuery, sources: Mapping[str, str]) -> Consumer:
        """Return a query as the consumer of a step; `sources` maps its aliases to sources."""
        outputs = tuple(Output(output.name, _renamed(output.expression, sources)) for output in query.outputs)
        windows = {sources[ref.alias]: ref.window for ref in query.refs}
        spans = {source: window.micros for source, window in windows.items() if isinstance(window, TimeWindow)}
        cell = tuple((_key(key, sources), splits, part) for key, splits, part in (self.cells or {}).get(query.name, ()))
        return Consumer(query.name, dict(sources), outputs, _same_outputs(query), spans, cell)

    def _sources(self, query: JoinQuery) -> tuple[SourceUse, ...]:
        """Return the sources of an individual plan, under the names of the query's aliases."""
        uses = []
        for ref in query.refs:
            assert not isinstance(ref.window, MaterializedWindow)  # noqa: S101 - a query reads streams
            filters, keys = filters_of(query, ref.alias), keys_of(query, ref.alias)
            partition, complete_from = self._partition(ref.stream, ref.window), self.complete_from.get(ref.stream, 0)
            use = SourceUse(ref.alias, ref.stream, ref.window, ref.alias, filters, keys, partition, complete_from)
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

    @cached_property
    def materialized(self) -> dict[str, float]:
        """Expected new matches per second of each materialized join."""
        return {result.id: result.rate for result in self.plan.materialized}

    def step(self, join: JoinNode) -> JoinStep:
        answers = [answer for answer in self.plan.answers if answer.result == join.output]
        lowering, expressions = self.lowering, join.expressions
        if expressions is None:
            return lowering.individual_step(self._reordered_plan(join, answers[0]))
        return JoinStep(
            self._plan(join, expressions),
            expressions.sources,
            tuple(lowering.consumer(*_query_over_sources(answer)) for answer in answers),
            join.output if join.output in self.materialized else None,
            expressions.columns,
            lowering.first_batch,
            lowering.backfill,
        )

    def _reordered_plan(self, join: JoinNode, answer: QueryAnswer) -> QueryPlan:
        """Return a query's individual plan, with the orders that the shared plan chose for its join."""
        plan, config = _plan_of(answer), self.lowering.config
        paths_by_alias = self.plan.paths(join, answer.query)
        orders = {driver: (driver, *(alias for (alias,) in path)) for (driver,), *path in paths_by_alias}
        changed = [
            path.driver
            for path in plan.paths
            if [alias for alias in path.order if alias != path.driver] != list(orders[path.driver][1:])
        ]
        if not changed:
            return plan
        graph = planned_graph(plan)
        access, builder = access_rule(plan.query, graph, config), PathBuilder(plan.query)
        paths = tuple(
            builder.path(path.driver, orders[path.driver], access) if path.driver in changed else path
            for path in plan.paths
        )
        return replace(plan, paths=paths, estimate=estimate(graph, orders, objective(config)))

    def _plan(self, join: JoinNode, expressions: JoinExpressions) -> QueryPlan:
        query, selectivities, config = expressions.query, expressions.selectivities, self.lowering.config
        names = [edge.node if edge.node in self.materialized else edge.sources[0] for edge in join.inputs]
        rates = {ref.alias: self.materialized.get(ref.stream) or self._rate(ref.stream) for ref in query.refs}
        graph = join_graph(query, rates, selectivities)
        probe_orders = {names[index]: [names[other] for other in order] for index, order in enumerate(join.orders)}
        orders = complete_orders(graph, config, probe_orders)
        access, builder = access_rule(query, graph, config), PathBuilder(query)
        paths = tuple(builder.path(alias, orders[alias], access) for alias in query.aliases)
        return QueryPlan(
            query,
            paths,
            config.ordering,
            PlannerStats(rates, selectivities),
            estimate(graph, orders, objective(config)),
        )

    def _rate(self, stream: str) -> float:
        return self.lowering.streams[stream].rate or DEFAULT_RATE


def _plan_of(answer: QueryAnswer) -> QueryPlan:
    if answer.plan is None:
        raise PlanError(f"the plan has no expressions for query {answer.query!r}: it was made from join graphs")
    return answer.plan


def _query_over_sources(answer: QueryAnswer) -> tuple[JoinQuery, dict[str, str]]:
    """Return a query, and the source of each of its aliases."""
    return _plan_of(answer).query, {alias: source for source, alias in answer.aliases.items()}


def _renamed(expression: Expression, sources: Mapping[str, str]) -> Expression:
    return rename_alias(expression, sources.__getitem__)


def _key(key: Key, sources: Mapping[str, str]) -> Key:
    return Key(sources[key.alias], _renamed(key.expression, sources))


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
