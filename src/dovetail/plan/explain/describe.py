"""Explains plans: describes them as plain data, from which text and diagram are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Protocol

from dovetail.codec import to_json
from dovetail.config import Config, can_share_stages
from dovetail.plan.explain.basis import assumes_rates, describe_basis, mark_dependent_joins
from dovetail.plan.explain.diagram import plan_diagram
from dovetail.plan.explain.explanation import Explanation
from dovetail.plan.explain.text import plan_text, timestamp
from dovetail.plan.names import holds_stream
from dovetail.plan.prefixes import shareable_prefixes, sharing_steps
from dovetail.plan.query_plan import ProbeStage, QueryPlan
from dovetail.plan.shared_plan import JoinNode, Load, Node, QueryAnswer, SharedPlan, WindowNode
from dovetail.plan.steps import Consumer, JoinStep
from dovetail.query.durations import exact_duration
from dovetail.query.expressions import Expression, map_columns
from dovetail.query.model import CountWindow, JoinQuery, MaterializedWindow, Window
from dovetail.schema import StreamSchema
from dovetail.stats.counters import JoinMetrics, Measurements, PlanMetrics
from dovetail.stats.history import History


class StageCosts(Protocol):
    """Expected cost of a stage in microseconds."""

    def stage(self, calls: float, probes: float, matches: float) -> float: ...


class Declarations(Protocol):
    """The streams and queries of a session."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]: ...

    @property
    def hints(self) -> Mapping[frozenset[str], float]: ...

    @property
    def queries(self) -> Mapping[str, JoinQuery]: ...


def explain(
    declared: Declarations,
    steps: Sequence[JoinStep],
    config: Config,
    *,
    measured: Measurements | None = None,
    units: StageCosts | None = None,
    plan: SharedPlan | None = None,
    history: History | None = None,
    groups: Sequence[Sequence[JoinStep]] = (),
) -> Explanation:
    """Explain the plan of a session's queries.

    If there are measurements, it has the measured rows and times per new tuple.

    `plan` adds which queries share what, and the load of windows and joins. `groups` lists the steps that run over the same windows:
    their shared prefixes are marked.
    """
    metrics, past = measured or Measurements(), history or History()
    description = _describe_steps(declared, steps, config)
    for step in steps:
        entry = description["queries" if step.is_individual else "joins"][step.name]
        step_metrics: Mapping[str, JoinMetrics] = metrics.queries if step.is_individual else metrics.joins
        entry["basis"] = describe_basis(step.plan, declared, is_individual=step.is_individual)
        _add_costs(entry, step.plan, step_metrics.get(step.name), units)
        if step.first_batch:
            entry["since"] = step.first_batch
        if step.backfill:
            times = past.earliest_visible.get(step.name, {})
            entry["backfilled_from"] = {
                s.name: timestamp(times[s.name]) if s.name in times else None for s in step.sources
            }
    mark_dependent_joins([*description["queries"].values(), *description.get("joins", {}).values()])
    for group in groups if can_share_stages(config) else ():
        _add_shared_stages(description, group)
    _add_shedding(description, metrics)
    for name, rate in past.rates.items():
        description["streams"][name]["measured_rate"] = rate
    if plan is not None:
        description["plan"] = _describe_shared(plan, metrics.nodes)
        _mark_assumed(description)
    if past.migrations:
        description["migrations"] = to_json(past.migrations)
    return Explanation(plan_text(description, past.migrations), description, plan_diagram(description))


def explain_shared(plan: SharedPlan, measured: Mapping[str, Any] | None = None) -> Explanation:
    """Explain a shared plan: its windows and joins, their queries, and their expected and measured load.

    `measured` is `metrics()["nodes"]` of a session that runs the plan.
    """
    description = _describe_nodes(plan, PlanMetrics.from_json(measured or {}))
    return Explanation(plan_text(description), description["plan"], plan_diagram(description))


def _mark_assumed(description: dict[str, Any]) -> None:
    """Mark the nodes of the shared plan whose expected load rests on an assumed rate."""
    joins = {**description["queries"], **description.get("joins", {})}
    assumed = {
        entry["inputs"][alias]["stream"]
        for entry in joins.values()
        if "basis" in entry and assumes_rates(entry["basis"])
        for alias, rate in entry["basis"]["rates"].items()
        if rate["basis"] == "assumed"
    }
    streams = {
        name: {source["stream"] for source in query["inputs"].values()}
        for name, query in description["queries"].items()
    }
    plan = description["plan"]
    plan["assumed_rates"] = sorted(assumed)
    for node in plan["windows"].values():
        node["is_assumed"] = any(holds_stream(node["stream"], stream) for stream in assumed)
    for node in [*plan["joins"].values(), *plan["results"].values()]:
        node["is_assumed"] = any(not assumed.isdisjoint(streams[name]) for name in node["queries"])


def _add_shared_stages(description: dict[str, Any], steps: Sequence[JoinStep]) -> None:
    """Add, to each stage that several joins share, the queries of the other joins."""
    queries = {step.name: [consumer.query for consumer in step.consumers] or [step.name] for step in steps}
    individual = {step.name for step in steps if step.is_individual}
    for prefixes in shareable_prefixes(steps).values():
        for (step, driver), others in sharing_steps(prefixes).items():
            stages = description["queries" if step in individual else "joins"][step]["paths"][driver]
            for stage, names in zip(stages[1:], others, strict=False):
                if names:
                    stage["shared_with"] = [query for name in names for query in queries[name]]


def _add_shedding(description: dict[str, Any], metrics: Measurements) -> None:
    """Add the number of shed tuples to streams, and the recall to queries, if shedding is on."""
    for name, stream in metrics.streams.items():
        if stream.shed is not None and name in description["streams"]:
            last = None if stream.last_shed is None else timestamp(stream.last_shed)
            description["streams"][name]["shed"] = {"tuples": stream.shed, "last": last}
    for name, query in metrics.queries.items():
        if query.recall is not None and name in description["queries"]:
            description["queries"][name]["recall"] = to_json(query.recall) | {"text": str(query.recall)}


def _describe_steps(declared: Declarations, steps: Sequence[JoinStep], config: Config) -> dict[str, Any]:
    """Describe what runs: streams, queries, and the joins that several queries share."""
    queries = declared.queries
    individual = {step.name: step for step in steps if step.is_individual}
    answered = {consumer.query: (step, consumer) for step in steps for consumer in step.consumers}
    description = {
        "evaluation": config.evaluation,
        "expiration": config.expiration,
        "streams": {
            name: {
                "event_time": schema.event_time,
                "lateness": exact_duration(schema.lateness),
                "rate": schema.rate,
                "used_by": [f"{q.name}.{ref.alias}" for q in queries.values() for ref in q.refs if ref.stream == name],
            }
            for name, schema in declared.streams.items()
        },
        "queries": {
            name: _describe_join(individual[name], query.sql)
            if name in individual
            else _describe_consumer(query, *answered[name])
            for name, query in queries.items()
        },
    }
    joins = {step.name: _describe_join(step, step.plan.query.sql) for step in steps if not step.is_individual}
    return description | ({"joins": joins} if joins else {})


def _describe_consumer(query: JoinQuery, step: JoinStep, consumer: Consumer) -> dict[str, Any]:
    """Describe a query that reads the results of a join under `joins`."""
    return {
        "sql": query.sql,
        "inputs": {alias: {**entry, "source": consumer.sources[alias]} for alias, entry in _inputs(query).items()},
        "join": step.name,
        "output": query.schema.names,
    }


def _describe_join(step: JoinStep, sql: str) -> dict[str, Any]:
    plan, query = step.plan, step.plan.query
    return {
        "sql": sql,
        "inputs": _inputs(query),
        "equal": [
            [f"{key.alias}: {_over_sources(key.expression, step)}" for key in group.keys] for group in query.classes
        ],
        "conditions": [condition.text for condition in query.conditions],
        "filters": [condition.text for condition in query.filters],
        "output": query.schema.names,
        "ordering": plan.ordering,
        **({"forced": list(plan.stats.forced)} if plan.stats.forced else {}),
        "waits_for_watermark": [ref.stream for ref in query.refs if isinstance(ref.window, CountWindow)],
        "paths": {path.driver: [_describe_stage(stage, step) for stage in path.stages] for path in plan.paths},
    }


def _inputs(query: JoinQuery) -> dict[str, dict[str, Any]]:
    """Describe each alias's stream and window.

    An inferred window has the conditions that it follows from.
    """
    inferred = dict(query.inferred)
    return {
        ref.alias: {"stream": ref.stream, "window": _window_text(ref.window)}
        | ({"follows_from": list(inferred[ref.alias])} if ref.alias in inferred else {})
        for ref in query.refs
    }


def _add_costs(entry: dict[str, Any], plan: QueryPlan, metrics: JoinMetrics | None, units: StageCosts | None) -> None:
    """Add the expected and measured costs of each stage to the description of a join."""
    entry["changes"] = to_json(metrics.changes) if metrics else []
    entry["costs"] = {}
    for path in plan.paths:
        expected = plan.estimate.paths.get(path.driver)
        measured = metrics.paths[path.driver] if metrics else ()
        if tuple(stage.alias for stage in measured) != path.order or not measured[0].matches:
            measured = ()
        if expected is not None:
            other = list(expected.other) or None
            entry["costs"][path.driver] = {"cost": expected.cost, "next": other, "next_cost": expected.other_cost}
        for index, stage in enumerate(entry["paths"][path.driver]):
            if index and expected is not None:
                stage["expected"] = {"rows": expected.rows[index]}
            if index and measured:
                new, timed, probe = measured[0].matches, measured[0].timed, measured[index]
                stage["measured"] = {"rows": probe.matches / new}
                if timed:
                    stage["measured"]["us"] = 1000 * probe.ms / timed
                if timed and units is not None and expected is not None and probe.access == "hash":
                    calls = measured[0].probes / new
                    stage["expected"]["us"] = units.stage(calls, expected.rows[index - 1], expected.rows[index])


def _over_sources(expression: Expression, step: JoinStep) -> Expression:
    """Rewrite columns of materialized inputs as columns of their sources."""
    return map_columns(expression, lambda column: step.columns.get(column.name, column))


def _describe_stage(stage: ProbeStage, step: JoinStep) -> dict[str, Any]:
    equalities = [(_over_sources(part.target, step), _over_sources(part.source.expression, step)) for part in stage.key]
    return {
        "alias": stage.alias,
        "access": stage.access,
        "on": [f"{left} = {right}" for left, right in equalities],
        "conditions": [condition.text for condition in stage.conditions],
    }


def _window_text(window: Window) -> str:
    if isinstance(window, CountWindow):
        return f"last {window.rows} rows" + (f" per {window.partition_by}" if window.partition_by else "")
    if isinstance(window, MaterializedWindow):
        spans = (f"{source} range {exact_duration(micros)}" for source, micros in window.spans)
        return f"materialized, {', '.join(spans)}"
    if window.micros % 1000 == 999:  # inferred from a strict condition
        return f"range under {exact_duration(window.micros + 1)}"
    return f"range {exact_duration(window.micros)}"


def _describe_shared(plan: SharedPlan, measured: PlanMetrics) -> dict[str, Any]:
    """Describe the nodes of a shared plan, and their expected and measured load."""
    loads, limits = _MeasuredLoads(plan, measured), _resources(plan.limits)
    return {
        "strategy": plan.strategy,
        "query_order": list(plan.query_order),
        "fits_budget": plan.fits_budget,
        **{name: {"used": used, "limit": limits[name]} for name, used in _resources(plan.load).items()},
        "windows": {
            node.id: loads.describe(node, "stream", "window_seconds", "rate", "tuples") for node in plan.windows
        },
        "joins": {
            node.id: {
                **loads.describe(node, "kind", "window_seconds", "output", "produced"),
                "inputs": [{"node": edge.node, "sources": list(edge.sources)} for edge in node.inputs],
                "orders": _orders(node),
                "predicates": list(node.predicates),
            }
            for node in plan.joins
        },
        "results": {
            node.id: loads.describe(node, "join", "window_seconds", "rate", "tuples") | {"stored": node.is_materialized}
            for node in plan.results
        },
        "queries": {
            answer.query: {
                "result": answer.result,
                "aliases": dict(answer.aliases),
                "seconds": dict(answer.window_seconds),
                "narrower_windows": dict(plan.narrower_windows(answer.query)),
            }
            for answer in plan.answers
        },
    }


def _resources(load: Load) -> dict[str, float | None]:
    """Name the amounts of a load; None if there is no limit."""
    amounts = {"cpu_ms_per_second": load.cpu, "memory_bytes": load.memory}
    return {name: None if isinf(amount) else amount for name, amount in amounts.items()}


@dataclass(frozen=True)
class _MeasuredLoads:
    """The measured loads of the nodes of a plan, per second of event time."""

    plan: SharedPlan
    measured: PlanMetrics

    def describe(self, node: Node, *fields: str) -> dict[str, Any]:
        """Describe some fields of a node, its queries and its load."""
        values = {"seconds" if name == "window_seconds" else name: to_json(getattr(node, name)) for name in fields}
        measured = self._load(node)
        return {
            **values,
            "queries": list(node.queries),
            **_resources(node.load),
            **({"measured": _resources(measured)} if measured is not None else {}),
        }

    def _load(self, node: Node) -> Load | None:
        """Return the CPU and memory of a node; None if nothing was measured."""
        measured, seconds = self.measured, self.measured.span.seconds
        if isinstance(node, WindowNode):
            metrics = [measured.windows.get(node.stream)]
        elif isinstance(node, JoinNode):
            # A join that runs an individual plan has its query's name.
            metrics = [measured.joins.get(name) for name in dict.fromkeys((node.id, *self._answered(node.output)))]
        else:
            metrics = [measured.materialized.get(node.id), *map(measured.results.get, self._answered(node.id))]
        present = [entry for entry in metrics if entry is not None]
        if not present or not seconds:
            return None
        return Load(sum(entry.ms for entry in present) / seconds, sum(entry.bytes or 0 for entry in present))

    def _answered(self, result: str) -> list[str]:
        """Return the queries that a result answers."""
        return [answer.query for answer in self.plan.answers if answer.result == result]


def _orders(node: JoinNode) -> dict[str, list[str]]:
    labels = [_label(edge.sources) for edge in node.inputs]
    return {labels[index]: [labels[other] for other in order] for index, order in enumerate(node.orders)}


def _label(sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({', '.join(sources)})"


def _describe_nodes(plan: SharedPlan, measured: PlanMetrics) -> dict[str, Any]:
    """Describe a shared plan by its nodes alone: one made from join graphs has no expressions."""
    materialized = {result.id for result in plan.materialized}

    def window(source: str, seconds: Mapping[str, float]) -> dict[str, str]:
        return {"stream": plan.sources[source].stream, "window": f"range {seconds[source]:g} s"}

    def query(answer: QueryAnswer) -> dict[str, Any]:
        aliases = answer.aliases.items()
        inputs = {alias: {**window(source, answer.window_seconds), "source": source} for source, alias in aliases}
        return {"inputs": inputs, "join": plan.top(answer.query).id}

    def join(node: JoinNode) -> dict[str, Any]:
        return {
            "inputs": {
                _label(edge.sources): {"stream": edge.node, "window": "materialized"}
                if edge.node in materialized
                else window(edge.sources[0], node.window_seconds)
                for edge in node.inputs
            },
            "conditions": node.predicates,
            "paths": {
                driver: [{"alias": label, "access": "hash" if label != driver else "new"} for label in (driver, *order)]
                for driver, order in _orders(node).items()
            },
        }

    return {
        "streams": {node.stream: {} for node in plan.windows},
        "queries": {answer.query: query(answer) for answer in plan.answers},
        "joins": {node.id: join(node) for node in plan.joins},
        "plan": _describe_shared(plan, measured),
    }
