"""The dictionaries that `metrics()` returns, the same for both sessions; `json.dumps` accepts them.

Counts are cumulative, except those under `last_batch`, which are of the last batch alone. Event times are texts in UTC, in the form
of Spark's own progress reports: `2026-11-19T20:13:49.000000Z`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from dovetail._display import iso_time
from dovetail.schema import StreamSchema
from dovetail.session.metrics_tables import MetricsTables
from dovetail.session.monitor import Monitor
from dovetail.stats.counters import Measurements, Metrics, QueryMetrics, StreamMetrics


class StreamCounters(TypedDict):
    """Counters of a stream's tuples, and its times.

    Counters are zero, and times None, until the first batch has been joined.
    """

    arrivals: int
    late: int
    ahead: int
    refused: int
    lateness_needed: float
    """The smallest lateness, in seconds, at which no tuple would have been late."""
    max_event_time: str | None
    """Progress of the stream: its largest event time.

    With `progress_by` it is the minimum over the partitions; an idle stream is advanced with the others.
    """
    watermark: str | None
    """`max_event_time` minus the lateness: older tuples are late."""
    lag_seconds: float | None
    """Seconds from `max_event_time` to the clock at the last batch: the one given to `push`, or its time."""
    state_tuples: int
    state_bytes: int
    hottest: dict[str, dict[str, int]]
    """Hot keys: by key column and value, about how many tuples have that value."""
    shed: int
    last_shed: str | None
    """Event time of the last shedding."""
    shedding_bytes: int
    """Bytes that shedding takes in addition to `state_bytes`."""
    skew: float
    """Tuples in the fullest shard, divided by the mean over the shards; 1 in one process."""


class StageCounters(TypedDict):
    """Counters of one stage of a probe path.

    On Spark a rebuilt shard counts from zero, and `ms` is of the last batch.
    """

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
    """Fraction of a query's results that shedding did not lose, with 95 % confidence bounds.

    If it is unknown, `why` says so.
    """

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


class StreamBatch(TypedDict):
    """Tuples of one stream in the last batch."""

    arrivals: int
    late: int
    ahead: int
    refused: int
    shed: int


class QueryBatch(TypedDict):
    """Results of one query in the last batch."""

    results: int


class LastBatch(TypedDict):
    """Counts of the last batch alone."""

    batch: int | None
    """Its number, from zero; None before the first one."""
    streams: dict[str, StreamBatch]
    queries: dict[str, QueryBatch]
    rebuilt_shards: NotRequired[int]
    """On Spark."""


class SessionMetrics(TypedDict):
    """Result of `metrics()` of either session.

    Every declared stream and query is there from the start.
    """

    streams: dict[str, StreamCounters]
    queries: dict[str, QueryCounters]
    joins: dict[str, JoinCounters]
    """Joins that serve several queries or read materialized joins."""
    nodes: PlanCounters
    batches: int
    """Batches joined; on Spark those since the session was started."""
    last_batch: LastBatch
    budget: dict[str, ResourceUse]
    breaches: list[BreachRecord]
    migrations: list[MigrationRecord]


class RunningMetrics(SessionMetrics):
    """Result of `metrics()` of a session on Spark: all shards together, and each shard."""

    rebuilt_shards: int
    """Number of times that a shard was rebuilt from its log, since its arrays were not in shared memory."""
    log_bytes: int
    """Bytes of the shards' logs in the state store."""
    shards: dict[int, dict[str, Any]]
    """The last report of each shard; event times are in microseconds since 1970."""


STREAM_COUNTS = ("arrivals", "late", "ahead", "refused", "shed")
"""The counts of a stream that `last_batch` has too."""


def session_metrics(
    measured: Measurements,
    streams: Mapping[str, StreamSchema],
    queries: Iterable[str],
    monitor: Monitor,
    batch_time: int | None,
    **others: Any,
) -> MetricsTables:
    """Return the metrics of some streams and queries.

    Those that have not been measured yet have zeros. `batch_time` is the clock at the last batch, in microseconds since 1970;
    `others` are further entries.
    """
    no_query = QueryMetrics(0, 0, 0, {}, (), 0)
    return MetricsTables(
        streams={
            name: _stream(measured.streams.get(name, _NO_STREAM), schema, batch_time)
            for name, schema in streams.items()
        },
        queries={name: _with_defaults(measured.queries.get(name, no_query), recall=None) for name in queries},
        joins={name: join.to_json() for name, join in measured.joins.items()},
        nodes=measured.nodes.to_json(),
        **others,
        **monitor.to_json(),
    )


def last_batch(
    batch: int | None,
    counts: Mapping[str, Mapping[str, Mapping[str, int]]],
    streams: Iterable[str],
    queries: Iterable[str],
    **others: int,
) -> LastBatch:
    """Return the counts of a batch, with zeros for streams and queries without any."""
    content = {
        "batch": batch,
        "streams": {name: _counts(counts["streams"].get(name, {}), STREAM_COUNTS) for name in streams},
        "queries": {name: _counts(counts["queries"].get(name, {}), ("results",)) for name in queries},
        **others,
    }
    return cast("LastBatch", content)


def _counts(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in names}


_NO_STREAM = StreamMetrics(0, 0, 0, 0, 0.0, None, 0, 0)


def _stream(metrics: StreamMetrics, schema: StreamSchema, batch_time: int | None) -> dict[str, Any]:
    content = _with_defaults(metrics, hottest={}, shed=0, last_shed=None, shedding_bytes=0, skew=1.0)
    time = content.pop("event_time")
    content["last_shed"] = None if metrics.last_shed is None else iso_time(metrics.last_shed)
    return {
        **{name: content[name] for name in (*STREAM_COUNTS, "lateness_needed")},
        "max_event_time": None if time is None else iso_time(time),
        "watermark": None if time is None else iso_time(time - schema.lateness),
        "lag_seconds": None if time is None or batch_time is None else (batch_time - time) / 1e6,
        **content,
    }


def _with_defaults(metrics: Metrics, **defaults: Any) -> dict[str, Any]:
    """Return metrics as a dictionary, with a default for each optional field that they lack."""
    content = metrics.to_json()
    return content | {name: value for name, value in defaults.items() if name not in content}
