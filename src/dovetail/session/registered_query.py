"""A query of a job: the plan that it has alone, what its user asked of the plan, and when it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from dovetail.optimizer.planner import PlanChoices
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.schema import StreamSchema


@dataclass(frozen=True)
class QueryStart:
    """When a query began, and what it may see from before."""

    since: int = 0
    """The first batch whose tuples it sees."""
    backfill: bool = False
    """Whether it also sees the tuples that windows held then."""
    carried: Mapping[str, int] = field(default_factory=dict)
    """By stream, the first batch whose tuples have all columns that it needs; absent if every batch has them."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """By stream, the largest event time before that batch; a query never catches up in a stream without one."""
    merged: bool = False
    """Whether it is planned with the first queries: it has caught up."""

    @property
    def is_planned_alone(self) -> bool:
        """Whether the query is planned alone."""
        return self.since > 0 and not self.merged

    def has_caught_up(
        self, query: JoinQuery, watermarks: Mapping[str, int], streams: Mapping[str, StreamSchema]
    ) -> bool:
        """Whether no tuple from before the start can still match: every watermark is more than a window past it."""
        for ref in query.refs:
            if not isinstance(ref.window, TimeWindow) or streams[ref.stream].progress_by is not None:
                return (
                    False  # count windows are not bounded by times; `heads` is not the largest time of each partition
                )
            others = [watermarks[other.stream] for other in query.refs if other is not ref]
            if self.heads.get(ref.stream, inf) >= min(others) - ref.window.micros:
                return False
        return True


@dataclass(frozen=True)
class RegisteredQuery:
    """A query of a job."""

    plan: QueryPlan
    """The plan that it has alone."""
    choices: PlanChoices = field(default_factory=PlanChoices)
    start: QueryStart = field(default_factory=QueryStart)
