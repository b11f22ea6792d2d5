"""Jobs of a `LocalSession` as JSON, for snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.codec import Count, Time, from_json, to_json
from dovetail.config import Budget, Config
from dovetail.errors import StateError, listed
from dovetail.optimizer.graph.hints import Selectivity
from dovetail.optimizer.planner import PlanningOptions, plan_query
from dovetail.plan.query_plan import PlannerStats
from dovetail.plan.shared_plan import SharedPlan
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.session.registered_query import QueryStart, RegisteredQuery


@dataclass(frozen=True)
class _SerializedQuery:
    """A query as it was registered."""

    sql: str
    time_zone: str
    options: PlanningOptions = field(metadata={"name": "choices"})
    stats: PlannerStats | None = field(default=None, metadata={"name": "known"})
    """The statistics that it was last planned by; snapshots of earlier releases lack them."""


@dataclass(frozen=True)
class _SerializedJob:
    """A job without its streams and configuration."""

    hints: Mapping[frozenset[str], Selectivity]
    budget: Budget | None
    queries: Mapping[str, _SerializedQuery]
    plans: tuple[tuple[Count, bool, SharedPlan], ...] = field(metadata={"name": "cohorts"})
    """Each plan with the first batch of its queries, and whether these see earlier tuples."""
    max_event_times: tuple[Mapping[str, Time], ...] = field(default=(), metadata={"name": "heads"})
    """By plan, the largest event times before that batch; snapshots of earlier releases lack them."""


def job_to_json(job: Job) -> dict[str, Any]:
    """Return everything that was declared, except the streams, and the plans of the queries that run."""
    queries = {
        name: _SerializedQuery(query.plan.query.sql, query.plan.query.time_zone, query.options, query.plan.stats)
        for name, query in job.registered.items()
    }
    started = [] if job.adopted_plan is None else [(QueryStart(), job.adopted_plan)]
    started += [(query.start, job.standalone_plans[name]) for name, query in job.standalone_queries.items()]
    plans = tuple((start.first_batch, start.backfill, plan) for start, plan in started)
    times = tuple(start.max_event_times for start, _ in started)
    content: dict[str, Any] = to_json(_SerializedJob(job.hints, job.budget, queries, plans, times))
    return content


def job_from_json(content: Mapping[str, Any], config: Config, schemas: Iterable[StreamSchema]) -> Job:
    """Return the job that `job_to_json` wrote; its queries are planned again by the same statistics."""
    serialized = from_json(_SerializedJob, content, "the session")
    streams = {schema.name: schema for schema in schemas}
    starts, chosen = dict[str, QueryStart](), None
    for index, (first_batch, backfill, plan) in enumerate(serialized.plans):
        _check_plan(plan)
        has_times = len(serialized.max_event_times) == len(serialized.plans)
        times = serialized.max_event_times[index] if has_times else {}
        if first_batch == 0:
            chosen = plan
        else:
            starts |= {
                answer.query: QueryStart(first_batch, backfill, max_event_times=times) for answer in plan.answers
            }
    registered = {}
    for name, entry in serialized.queries.items():
        query = parse_query(name, entry.sql, streams, entry.time_zone)
        individual_plan = plan_query(query, streams, config, entry.options, entry.stats)
        registered[name] = RegisteredQuery(individual_plan, entry.options, starts.get(name, QueryStart()))
    return Job(
        config,
        serialized.budget,
        streams=streams,
        hints=dict(serialized.hints),
        registered=registered,
        adopted_plan=chosen,
        upper_bound=None if registered else Job(config).upper_bound,
    )


def _check_plan(plan: SharedPlan) -> None:
    """Raise `StateError` unless every node of a serialized plan names the queries that need it."""
    queries = {answer.query for answer in plan.answers}
    below = {name: {node.id for node in plan.below(name)} for name in queries}
    if set(plan.query_order) != queries or not all(limit > 0 for limit in plan.limits):
        raise StateError(
            "the serialized plan is inconsistent: its queries and its answers differ, or a limit is not above 0"
        )
    for node in plan.nodes.values():
        if set(node.queries) != {name for name in queries if node.id in below[name]}:
            raise StateError(
                f"the serialized plan lists the wrong queries for node {node.id!r}: {listed(node.queries)}"
            )
