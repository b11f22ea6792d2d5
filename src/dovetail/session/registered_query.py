"""A query of a job: its individual plan, the user's planning options, and when it began."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TypeAlias

from dovetail.config import Config
from dovetail.errors import ConfigError
from dovetail.optimizer.planner import PlanningOptions
from dovetail.plan.query_plan import QueryPlan
from dovetail.query.model import JoinQuery, TimeWindow
from dovetail.schema import StreamSchema

BackfillReach: TypeAlias = dict[str, datetime | None]
"""By alias, the earliest event time from before its registration that a query sees; None if there is none.

Times outside the years 1 to 9999 appear as `datetime.min` or `datetime.max` in UTC.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class QueryStart:
    """The start of a query, and what it may see from before."""

    first_batch: int = field(default=0, metadata={"name": "since"})
    """The first batch whose tuples it sees."""
    backfill: bool = False
    """Whether it also sees the tuples that windows held then."""
    complete_from: Mapping[str, int] = field(default_factory=dict, metadata={"name": "carried"})
    """By stream, the first batch whose tuples have all columns that it needs; absent if every batch has them."""
    max_event_times: Mapping[str, int] = field(default_factory=dict, metadata={"name": "heads"})
    """By stream, the largest event time before `first_batch`; a query never catches up with a stream that has none."""
    is_planned_jointly: bool = field(default=False, metadata={"name": "merged"})
    """Whether it is planned jointly with the first queries, after it had caught up."""

    @property
    def is_standalone(self) -> bool:
        """Whether it is a late query with a standalone join, not planned with the others yet."""
        return self.first_batch > 0 and not self.is_planned_jointly

    def has_caught_up(
        self,
        query: JoinQuery,
        watermarks: Mapping[str, int],
        streams: Mapping[str, StreamSchema],
        running: Iterable[JoinQuery] = (),
    ) -> bool:
        """Whether no tuple from before the start can still match, or is held for `running` queries.

        Planned jointly, the query shares views with them: tuples that lack its columns would seem to have them.
        """
        for ref in query.refs:
            if not isinstance(ref.window, TimeWindow) or streams[ref.stream].progress_by is not None:
                # A count window has no end in time. With `progress_by`, tuples may be later than the stream's progress.
                return False
        read = {ref.stream for ref in query.refs}
        return all(self._has_left(joined, read, watermarks) for joined in (query, *running))

    def _has_left(self, query: JoinQuery, read: Collection[str], watermarks: Mapping[str, int]) -> bool:
        """Whether tuples of the streams `read` from before the start have left the windows of a query."""
        if not all(isinstance(ref.window, TimeWindow) for ref in query.refs):
            return True  # count windows have rows of their own
        return all(
            self.max_event_times.get(ref.stream, inf) + ref.window.micros
            < min(watermarks[other.stream] for other in query.refs if other is not ref)
            for ref in query.refs
            if ref.stream in read and isinstance(ref.window, TimeWindow)
        )


@dataclass(frozen=True)
class RegisteredQuery:
    """A query of a job."""

    plan: QueryPlan
    """Its individual plan: its probe orders and access paths if it shared nothing."""
    options: PlanningOptions = field(default_factory=PlanningOptions)
    start: QueryStart = field(default_factory=QueryStart)


def check_backfill(query: JoinQuery, config: Config, *, backfill: bool) -> None:
    """Refuse `backfill` where the tuples from before the query are not known."""
    if backfill and config.shedding is not None:
        raise ConfigError(
            f"query {query.name!r} cannot see tuples from before it: some may have been shed, or not been kept because no query "
            "needed them",
            "leave backfill out, and its windows fill from now on",
        )
    if backfill and query.has_count_window:
        raise ConfigError(
            f"query {query.name!r} has count windows: the latest tuples from before it are no longer known",
            "leave backfill out, and its windows fill from now on",
        )


def backfill_reach(query: JoinQuery, earliest_visible: Mapping[str, Mapping[str, int]]) -> BackfillReach:
    """Return how far back a query sees each alias, given the earliest visible times by query."""
    times = earliest_visible.get(query.name, {})
    return {alias: _nearest_datetime(times[alias]) if alias in times else None for alias in query.aliases}


def _nearest_datetime(micros: int) -> datetime:
    """Return an event time; outside the years 1 to 9999 the nearest time that Python's datetime holds."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if micros < 0 else datetime.max.replace(tzinfo=UTC)
