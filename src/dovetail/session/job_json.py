"""Jobs of a `LocalSession` as JSON, for snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dovetail.codec import Count, Time, from_json, to_json
from dovetail.config import Budget, Config
from dovetail.errors import StateError, listed
from dovetail.optimizer.graph.hints import Selectivity
from dovetail.optimizer.planner import PlanChoices, plan_query
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
    choices: PlanChoices
    known: PlannerStats | None = None
    """The statistics that it was last planned by; snapshots of earlier releases lack them."""


@dataclass(frozen=True)
class _SerializedJob:
    """A job without its streams and configuration."""

    hints: Mapping[frozenset[str], Selectivity]
    budget: Budget | None
    queries: Mapping[str, _SerializedQuery]
    cohorts: tuple[tuple[Count, bool, SharedPlan], ...]
    """Queries that were planned together: their first batch, whether they see earlier tuples, and their plan."""
    heads: tuple[Mapping[str, Time], ...] = ()
    """Largest event times before each of their first batches; snapshots of earlier releases lack them."""


def job_to_json(job: Job) -> dict[str, Any]:
    """Return everything that was declared, except the streams, and the plans of the queries that run."""
    queries = {
        name: _SerializedQuery(query.plan.query.sql, query.plan.query.time_zone, query.choices, query.plan.known)
        for name, query in job.registered.items()
    }
    starts = [QueryStart()] if job.chosen is not None else []
    starts += [query.start for query in job.planned_alone.values()]
    plans = [*([job.chosen] if job.chosen is not None else []), *job.separate_plans.values()]
    cohorts = tuple((start.since, start.backfill, plan) for start, plan in zip(starts, plans, strict=True))
    serialized = _SerializedJob(job.hints, job.budget, queries, cohorts, tuple(start.heads for start in starts))
    content: dict[str, Any] = to_json(serialized)
    return content


def job_from_json(content: Mapping[str, Any], config: Config, schemas: Iterable[StreamSchema]) -> Job:
    """Return the job that `job_to_json` wrote; its queries are planned again by the same statistics."""
    serialized = from_json(_SerializedJob, content, "the session")
    streams = {schema.name: schema for schema in schemas}
    starts, chosen = dict[str, QueryStart](), None
    for number, (since, backfill, plan) in enumerate(serialized.cohorts):
        _check_plan(plan)
        heads = serialized.heads[number] if len(serialized.heads) == len(serialized.cohorts) else {}
        if since == 0:
            chosen = plan
        else:
            starts |= {answer.query: QueryStart(since, backfill, heads=heads) for answer in plan.answers}
    registered = {}
    for name, stored in serialized.queries.items():
        query = parse_query(name, stored.sql, streams, stored.time_zone)
        known = stored.known or PlannerStats(hints=stored.choices.hints)
        plan_choices = replace(stored.choices, hints=known.hints)
        own_plan = plan_query(query, streams, config, plan_choices, known.rates)
        registered[name] = RegisteredQuery(own_plan, stored.choices, starts.get(name, QueryStart()))
    return Job(
        config,
        serialized.budget,
        streams=streams,
        hints=dict(serialized.hints),
        registered=registered,
        chosen=chosen,
        upper_bound=None if registered else Job(config).upper_bound,
    )


def _check_plan(plan: SharedPlan) -> None:
    """Raise `StateError` unless every node of a serialized plan names the queries that need it."""
    queries = {answer.query for answer in plan.answers}
    below = {name: {node.id for node in plan.below(name)} for name in queries}
    if set(plan.query_order) != queries or not all(limit > 0 for limit in plan.limits):
        raise StateError("the stored plan is not one of its queries, within limits")
    for node in plan.nodes.values():
        if set(node.queries) != {name for name in queries if node.id in below[name]}:
            raise StateError(f"the stored plan has {node.id!r} for {listed(node.queries)}, who do not need it")
