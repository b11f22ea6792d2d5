"""The dictionaries that `metrics()` returns, the same for both sessions, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

from dovetail._display import html_table, html_text, text_table
from dovetail.session.monitor import Monitor
from dovetail.stats.counters import Measurements, Metrics, QueryMetrics, StreamMetrics


class StreamCounters(TypedDict):
    """Counters of a stream's tuples; all are zero until the first batch has been joined."""

    arrivals: int
    late: int
    ahead: int
    refused: int
    lateness_needed: float
    """The smallest lateness, in seconds, at which no tuple would have been late."""
    event_time: int | None
    """How far the stream has progressed, in microseconds since 1970: its largest event time, or with `progress_by` the minimum over
    the partitions; an idle stream is advanced with the others."""
    state_tuples: int
    state_bytes: int
    hottest: dict[str, dict[str, int]]
    """Hot keys: by key column and value, about how many tuples have that value."""
    shed: int
    last_shed: int | None
    """Event time of the last shedding."""
    skew: float
    """Tuples in the fullest shard, divided by the mean over the shards; 1 in one process."""


class StageCounters(TypedDict):
    """Counters of one stage of a probe path. On Spark a rebuilt shard counts from zero, and `ms` is of the last batch."""

    alias: str
    access: str
    probes: int
    rows_read: int
    matches: int
    ms: float
    timed: NotRequired[int]
    """In a path's first stage."""


class ChangeRecord(TypedDict):
    """A change of one probe order; costs are tuples produced per new tuple."""

    driver: str
    before: Sequence[str]
    after: Sequence[str]
    predicted_before: float
    predicted_after: float
    measured_before: float | None
    measured_after: float | None
    batch: int


class JoinCounters(TypedDict):
    """Counters of a join. On Spark a rebuilt shard counts from zero."""

    probes: int
    rows_read: int
    matches: int
    paths: dict[str, list[StageCounters]]
    """By driver; empty until the first batch has been joined."""
    changes: list[ChangeRecord]


class RecallCounters(TypedDict):
    """Fraction of a query's results that shedding did not lose, with 95 % confidence bounds; if unknown, `why`."""

    estimate: float | None
    low: float | None
    high: float | None
    given: int
    lost: dict[str, float]
    why: str | None


class QueryCounters(JoinCounters):
    """Results of a query, and counters of its own join."""

    results: int
    """All so far; on Spark those that its sink got since the session was started."""
    recall: RecallCounters | None
    """None if nothing may be shed, and until the query's first batch has been joined."""


class NodeCounters(TypedDict):
    """Counters of a plan node: of a window or materialized join, of a join, or of a query's results.

    On Spark a rebuilt shard counts from zero, and `ms` is of the last batch.
    """

    ms: float
    tuples: NotRequired[int]
    bytes: NotRequired[int]
    probes: NotRequired[int]
    matches: NotRequired[int]
    results: NotRequired[int]


class PlanCounters(TypedDict):
    """Counters of a plan's nodes, by kind and name."""

    windows: dict[str, NodeCounters]
    joins: dict[str, NodeCounters]
    states: dict[str, NodeCounters]
    """Materialized joins."""
    results: dict[str, NodeCounters]
    span: dict[str, float]
    """`seconds` of event time in which the milliseconds were measured."""


class ResourceUse(TypedDict):
    """Use of a resource between the monitor's last two checks (None until it has checked), and its limit."""

    used: float | None
    limit: float | None


class MigrationRecord(TypedDict):
    """A change of the plan; CPU is in milliseconds per second of event time."""

    batch: int
    cause: str
    predicted_before: float
    predicted_after: float
    seconds: float
    measured_before: NotRequired[float]
    measured_after: NotRequired[float]


class BreachRecord(TypedDict):
    """Use of a resource beyond the budget."""

    batch: int
    resource: str
    used: float
    limit: float


class SessionMetrics(TypedDict):
    """What `metrics()` of both sessions returns. Every declared stream and query is there from the start."""

    streams: dict[str, StreamCounters]
    queries: dict[str, QueryCounters]
    joins: dict[str, JoinCounters]
    """Joins that serve several queries or read materialized joins."""
    nodes: PlanCounters
    batches: int
    """Batches joined; on Spark those since the session was started."""
    budget: dict[str, ResourceUse]
    breaches: list[BreachRecord]
    migrations: list[MigrationRecord]


class RunningMetrics(SessionMetrics):
    """What `metrics()` of a session on Spark returns: all shards together, and each shard."""

    rebuilt_shards: int
    """How often a shard did not find its arrays in shared memory and was rebuilt from its log."""
    shards: dict[int, dict[str, Any]]
    """The last report of each shard."""


class MetricsTables(dict[str, Any]):
    """Metrics, shown as tables; at run time both sessions return this."""

    def __repr__(self) -> str:
        return "\n\n".join([*(text_table(*table) for table in self._tables()), self._counts()])

    def _repr_html_(self) -> str:
        return "".join([*(html_table(*table) for table in self._tables()), html_text(self._counts())])

    def _tables(self) -> Iterable[tuple[Sequence[str], Sequence[Sequence[object]]]]:
        for kind, columns in _COLUMNS.items():
            rows = [[name, *(_figure(entry[column]) for column in columns)] for name, entry in self[kind].items()]
            if rows := [row for row in rows if any(figure is not None for figure in row[1:])]:
                yield (kind, *columns), rows

    def _counts(self) -> str:
        counts = {key: self[key] if isinstance(self[key], int) else len(self[key]) for key in _COUNTED if key in self}
        return ", ".join(f"{key} {count:,}" for key, count in counts.items())


_COLUMNS = {
    "streams": ("arrivals", "late", "ahead", "refused", "shed", "state_tuples", "state_bytes"),
    "queries": ("results", "probes", "rows_read", "matches", "recall"),
    "budget": ("used", "limit"),
}
_COUNTED = ("batches", "migrations", "breaches", "rebuilt_shards")


def _figure(value: object) -> object:
    """Return what a table shows of a value: of a recall, its estimate."""
    return value["estimate"] if isinstance(value, dict) else value


def session_metrics(
    measured: Measurements, streams: Iterable[str], queries: Iterable[str], monitor: Monitor, batches: int
) -> MetricsTables:
    """Return the metrics of some streams and queries, with zeros for those that have not been measured yet."""
    no_stream, no_query = StreamMetrics(0, 0, 0, 0, 0.0, None, 0, 0), QueryMetrics(0, 0, 0, {}, (), 0)
    return MetricsTables(
        streams={
            name: _with_defaults(measured.streams.get(name, no_stream), hottest={}, shed=0, last_shed=None, skew=1.0)
            for name in streams
        },
        queries={name: _with_defaults(measured.queries.get(name, no_query), recall=None) for name in queries},
        joins={name: join.to_json() for name, join in measured.joins.items()},
        nodes=measured.nodes.to_json(),
        batches=batches,
        **monitor.to_json(),
    )


def _with_defaults(metrics: Metrics, **defaults: Any) -> dict[str, Any]:
    """Return metrics as a dictionary, with a default for each optional field that they lack."""
    content = metrics.to_json()
    return content | {name: value for name, value in defaults.items() if name not in content}
