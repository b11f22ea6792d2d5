"""Reports of shards: collected on the driver, added up, and shown to Spark's listeners.

A shard that takes part in a batch adds one row to its results: its counters so far, as JSON. That report replaces the shard's earlier
one, so counters are summed over shards, never over batches. What the last batch added is an entry of its own, `batch`.

Listeners see a part of what `metrics()` returns; the name of each figure is its path there: `streams.clicks.late` is the number of all
late tuples so far, `last_batch.streams.clicks.late` of those in the batch.
"""

from __future__ import annotations

import json
import time as clock
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail._display import count_of
from dovetail.errors import StateError
from dovetail.optimizer.adapt.runtime_stats import ShardGroupReport
from dovetail.plan.names import with_scope
from dovetail.plan.shared_plan import Load
from dovetail.session.metrics import STREAM_COUNTS, LastBatch, RunningMetrics, last_batch, session_metrics
from dovetail.session.monitor import Monitor
from dovetail.session.stream_warnings import StreamWarnings
from dovetail.spark.driver.layout import Layout
from dovetail.spark.sinks.stage import WrittenFile
from dovetail.spark.state.log import RESTORE_HINT, add_counters
from dovetail.spark.wire import DROPPED, ResultKind, collect_results, has_kind
from dovetail.stats.counters import Measurements, StreamMetrics, merge

_KINDS = ("windows", "joins", "states", "results")
"""Kinds of plan nodes."""
_SUMMED = (*STREAM_COUNTS, "state_tuples", "state_bytes")
"""Metrics of a stream that are summed over shards; listeners see them."""
_TIMES = ("max_event_time", "watermark")


@dataclass(frozen=True)
class BatchEndState:
    """Progress of the streams and counters of the shards at the end of a batch."""

    streams: Mapping[str, Any] = field(default_factory=dict)
    """Progress by stream, as `StreamProgress.to_json` writes it."""
    counters: Mapping[int, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By shard and stream."""

    def total(self, shards: Collection[int]) -> dict[str, dict[str, int]]:
        """Return the sums of some shards' counters, by stream."""
        total: dict[str, dict[str, int]] = {}
        for shard in shards:
            for stream, counters in self.counters.get(shard, {}).items():
                total[stream] = add_counters(total.get(stream, {}), counters)
        return total


@dataclass(frozen=True)
class ResultCounts:
    """The numbers of results of a batch."""

    rows: Counter[int] = field(default_factory=Counter)
    """By query."""
    files: dict[int, list[WrittenFile]] = field(default_factory=dict)
    """By query, of those whose shards write results themselves."""


@dataclass(frozen=True)
class BatchCounts:
    """Counts up to the last batch, replaced as a whole: another thread may read them at any time."""

    earlier_results: Mapping[str, int]
    """Results by query, except those of the last batch."""
    results: Counter[str] = field(default_factory=Counter)
    """Results of the last batch by query; grows while the batch is written, so readers copy it."""
    streams: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Tuples of the last batch, by stream and kind."""
    batch: int | None = None
    batches: int = 0
    rebuilt: int = 0
    """Shards that were rebuilt in the last batch."""
    all_rebuilt: int = 0
    time: int | None = None
    """The clock when the last batch was joined, in microseconds since 1970."""

    def total(self, query: str) -> int:
        return self.earlier_results[query] + self.results[query]


class ShardReports:
    """The last report of each shard, and counts of results and batches since the session was started."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._shards: dict[int, dict[str, Any]] = {}
        self._counts = BatchCounts(dict.fromkeys(layout.job.queries, 0))
        self._cpu_ms = 0.0
        """Milliseconds that shards have reported since the last `take_load`."""
        self.recent_batches: dict[int, BatchEndState] = {}
        """The state after each of the last two batches."""
        self._stream_warnings = StreamWarnings()

    def collect(self, encoded: DataFrame, batch_id: int) -> ResultCounts:
        """Record the reports of the shards in a batch; return the numbers of results."""
        counts, last_batches, progress = ResultCounts(), dict[int, int | None](), dict[str, Any]()
        streams, rebuilt = dict[str, dict[str, int]](), 0
        for row in collect_results(encoded):
            counts.rows[row.query] += row.rows
            if row.kind is ResultKind.STAGED:
                counts.files.setdefault(row.query, []).append(WrittenFile.from_json(row.content))
            elif row.kind is ResultKind.METRICS:
                report = json.loads(row.content)
                if "retired" in report:
                    self._shards.pop(row.shard, None)
                    continue
                progress = report.pop("progress", progress)
                last_batches[row.shard] = report["last_batch"]
                self._shards[row.shard] = report
                self._cpu_ms += sum(node["ms"] for kind in _KINDS for node in report["nodes"][kind].values())
                streams = merge(streams, report["batch"]["streams"])
                rebuilt += report["rebuilt"]
        self._check_same_last_batch(batch_id, last_batches)
        self._count_batch(batch_id, streams, rebuilt)
        self._remember_end(batch_id, progress)
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return everything that metrics, plans and changes of the job are derived from, for another process."""
        recent = {batch: vars(end) for batch, end in self.recent_batches.items()}
        return {"shards": self._shards, "counts": vars(self._counts), "recent": recent}

    def update(self, content: Mapping[str, Any]) -> None:
        """Take over what `to_json` returned in another process, read back from JSON."""
        counts = content["counts"]
        self._shards = {int(shard): report for shard, report in content["shards"].items()}
        self._counts = BatchCounts(**{**counts, "results": Counter(counts["results"])})
        self.recent_batches = {
            int(batch): BatchEndState(end["streams"], {int(shard): c for shard, c in end["counters"].items()})
            for batch, end in content["recent"].items()
        }

    def _check_same_last_batch(self, batch_id: int, last_batches: Mapping[int, int | None]) -> None:
        """Raise `StateError` unless all shards continue from the same batch.

        `last_batches` holds the last one by shard.

        Spark calls all shards in a batch, or none if it has no tuples. So all of them must have taken part in the same last batch.
        """
        last = max((batch for batch in last_batches.values() if batch is not None), default=-1)
        placement = self._layout.placement
        first_batches = {
            group.first_shard: min(self._layout.first_batch(query.name) for query in group.queries)
            for group in placement.groups
        }
        behind = [
            shard
            for shard, batch in sorted(last_batches.items())
            if batch != last and first_batches[placement.group_of(shard).first_shard] <= last
        ]
        if behind:
            raise StateError(
                f"batch {batch_id}: the checkpoint lacks the state of batch {last} for shards {', '.join(map(str, behind))}",
                RESTORE_HINT,
            )

    def _count_batch(self, batch_id: int, streams: Mapping[str, Mapping[str, int]], rebuilt: int) -> None:
        """Count a batch; a replay replaces its earlier attempt."""
        counts = self._counts
        is_replay = batch_id == counts.batch
        self._counts = BatchCounts(
            counts.earlier_results if is_replay else {name: counts.total(name) for name in counts.earlier_results},
            streams=streams,
            batch=batch_id,
            batches=counts.batches + (not is_replay),
            rebuilt=rebuilt,
            all_rebuilt=counts.all_rebuilt + rebuilt,
            time=clock.time_ns() // 1000,
        )

    def _remember_end(self, batch_id: int, progress: Mapping[str, Any]) -> None:
        """Keep the state after a batch and the one before it."""
        counters = {shard: _counters(report) for shard, report in self._shards.items()}
        previous = self.recent_batches.get(batch_id - 1, BatchEndState())
        current = BatchEndState(progress or previous.streams, counters)
        self.recent_batches = {batch_id - 1: previous, batch_id: current}

    def replace_layout(self, layout: Layout) -> None:
        """Switch to a changed job; counts of dropped queries stay."""
        self._layout = layout
        earlier = self._counts.earlier_results
        added = {name: 0 for name in layout.job.queries if name not in earlier}
        self._counts = replace(self._counts, earlier_results={**earlier, **added})

    def earliest_visible(self) -> dict[str, dict[str, int]]:
        """Return the earliest event time that queries with backfill see on every shard, by query and alias."""
        times_by_start: dict[str, dict[str, int]] = {}
        for report in list(self._shards.values()):
            for start, backfill_from in report.get("backfill_from", {}).items():
                times = times_by_start.setdefault(start, {})
                for stream, time in backfill_from.items():
                    times[stream] = max(time, times.get(stream, time))
        visible = {}
        for name, query in self._layout.job.registered.items():
            times = times_by_start.get(str(query.start.first_batch), {}) if query.start.first_batch else {}
            refs = query.plan.query.refs
            visible[name] = {ref.alias: times[ref.stream] for ref in refs if ref.stream in times}
        return visible

    @property
    def summary(self) -> str:
        """Shards, batches and results in a few words."""
        counts = self._counts
        results = sum(counts.total(name) for name in counts.earlier_results)
        done = [count_of(counts.batches, "batch", "batches"), count_of(results, "result", "results")]
        shards = count_of(self._layout.requested_shards, "shard", "shards")
        return ", ".join([shards, *(done if counts.batches else ["no batch yet"])])

    def new_warnings(self) -> Iterator[str]:
        """Yield the warnings that the tuples of each stream have not had yet."""
        for name, metrics in self.streams().items():
            yield from self._stream_warnings.new_warnings(
                self._layout.job.streams[name],
                arrived=metrics.arrivals,
                late=metrics.late,
                late_by=round(1e6 * metrics.lateness_needed),
                ahead=metrics.ahead,
                refused=metrics.refused,
                max_event_time=metrics.event_time,
            )

    def add_results(self, query: str, count: int) -> None:
        """Count results that a sink has written."""
        if query != DROPPED:
            self._counts.results[query] += count

    def metrics(self, monitor: Monitor) -> RunningMetrics:
        """Return the metrics of all shards; queries that were dropped keep their number of results."""
        parts, counts = self.parts(), self._counts
        counts = replace(counts, results=counts.results.copy())
        measured = replace(self._total(parts), streams=self.streams())
        shards, streams = dict(self._shards), self._layout.job.streams
        content = session_metrics(
            measured,
            streams,
            counts.earlier_results,
            monitor,
            counts.time,
            batches=counts.batches,
            last_batch=self._last_batch(counts),
            rebuilt_shards=counts.all_rebuilt,
            log_bytes=sum(report["log_bytes"] for report in shards.values()),
            shards=shards,
        )
        for name, stream in content["streams"].items():
            stream["skew"] = _skew(name, parts)
        for name, query in content["queries"].items():
            query["results"] = counts.total(name)
        return cast("RunningMetrics", content)

    def _last_batch(self, counts: BatchCounts) -> LastBatch:
        """Return the counts of the last batch, as `metrics()` has them."""
        job, results = self._layout.job, {name: {"results": count} for name, count in counts.results.items()}
        return last_batch(
            counts.batch,
            {"streams": counts.streams, "queries": results},
            job.streams,
            job.queries,
            rebuilt_shards=counts.rebuilt,
        )

    def last_rates(self, measured: Measurements) -> dict[str, float]:
        """Return the tuples per second of each stream in the last batch; none if event time did not advance."""
        seconds = measured.nodes.span.seconds
        arrivals = {name: counts["arrivals"] for name, counts in self._counts.streams.items()}
        return {name: count / seconds for name, count in arrivals.items() if count} if seconds else {}

    def streams(self) -> dict[str, StreamMetrics]:
        """Return the metrics of each stream, over all shards."""
        total: dict[str, StreamMetrics] = {}
        for report in list(self._shards.values()):
            streams = {name: StreamMetrics.from_json(metrics) for name, metrics in report["streams"].items()}
            total = merge(total, streams)
        return total

    @property
    def extent(self) -> tuple[int, int | None]:
        """The number of tuples that have arrived, and their largest event time."""
        streams = [metrics for report in self._shards.values() for metrics in report["streams"].values()]
        times = [metrics["event_time"] for metrics in streams if metrics.get("event_time") is not None]
        return sum(metrics["arrivals"] for metrics in streams), max(times, default=None)

    def parts(self) -> list[ShardGroupReport]:
        """Return the last reports of each group's shards, and the joins that they run."""
        reports = dict(self._shards)
        return [
            ShardGroupReport(
                {shard: Measurements.from_json(reports[shard]) for shard in shard_range if shard in reports}, steps
            )
            for shard_range, steps in self._layout.group_steps
        ]

    def take_load(self) -> Load:
        """Return the milliseconds that shards have reported since the last call, and the bytes that they use."""
        stores = [report["nodes"][kind].values() for report in self._shards.values() for kind in ("windows", "states")]
        cpu_ms, self._cpu_ms = self._cpu_ms, 0.0
        return Load(cpu_ms, sum(node.get("bytes") or 0 for nodes in stores for node in nodes))

    def caught_up(self, batch_id: int) -> list[str]:
        """Return the queries that were added later, have caught up and can be planned with the others.

        Batch `batch_id` has been joined, and may be replayed under the new plan, so the progress before it counts.
        """
        previous, job = self.recent_batches.get(batch_id - 1, BatchEndState()), self._layout.job
        watermarks = {
            name: progress["head"] - job.streams[name].lateness
            for name, progress in previous.streams.items()
            if name in job.streams
        }
        return job.caught_up(watermarks) if watermarks.keys() == job.streams.keys() else []

    def total_measurements(self) -> Measurements:
        """Return the measurements of all shards together; windows have the names that the plan gives them."""
        return self._total(self.parts())

    def _total(self, parts: Iterable[ShardGroupReport]) -> Measurements:
        total, placement = Measurements(), self._layout.placement
        for shard, measurements in [item for shards, _ in parts for item in shards.items()]:
            scope = placement.scopes.get(placement.group_of(shard).queries[0].name, "")
            windows = {with_scope(name, scope): metrics for name, metrics in measurements.nodes.windows.items()}
            total += replace(measurements, nodes=replace(measurements.nodes, windows=windows))
        return total


def _skew(stream: str, parts: Iterable[ShardGroupReport]) -> float:
    """Return the largest ratio, over groups, of the most tuples of a stream on a shard to the average."""
    skew = 1.0
    for shards, _ in parts:
        tuples = [shard.streams[stream].state_tuples for shard in shards.values() if stream in shard.streams]
        skew = max(skew, max(tuples) * len(tuples) / sum(tuples) if any(tuples) else 1.0)
    return skew


def _counters(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counters of a shard by stream, in the form of its manifest."""
    return {
        name: {
            "arrived": metrics["arrivals"],
            "late_by": round(1e6 * metrics["lateness_needed"]),
            **{kind: metrics[kind] for kind in ("late", "ahead", "refused")},
        }
        for name, metrics in report["streams"].items()
    }


def observed_columns(layout: Layout) -> Iterator[Column]:
    """Yield the columns that a `StreamingQueryListener` sees, named by their paths in `metrics()`.

    Those of a batch alone are zero if no shard took part in it, because it had no tuples; the others are NULL.
    """
    sheds = layout.job.config.shedding is not None
    report = F.from_json(F.when(has_kind(ResultKind.METRICS), F.col("content").cast("string")), _report_type(sheds))
    for stream in layout.streams:
        counters, times = report["streams"][stream.name], report["times"][stream.name]
        added = report["batch"]["streams"][stream.name]
        for name in _summed(sheds):
            yield F.sum(counters[name]).alias(f"streams.{stream.name}.{name}")
        for name in _TIMES:
            yield F.max(times[name]).alias(f"streams.{stream.name}.{name}")
        for name in _counts(sheds):
            yield F.coalesce(F.sum(added[name]), F.lit(0)).alias(f"last_batch.streams.{stream.name}.{name}")
    for name, _ in layout.queries if sheds else ():
        yield from _recall(name, report["queries"][name]["recall"])
    for name in layout.job.queries:
        rows = F.when(F.col("query") == layout.query_id(name), F.col("rows"))
        yield F.coalesce(F.sum(rows), F.lit(0)).alias(f"last_batch.queries.{name}.results")
    yield F.count_if(report["rebuilt"]).alias("last_batch.rebuilt_shards")
    yield F.sum(report["log_bytes"]).alias("log_bytes")


def _counts(sheds: bool) -> list[str]:  # noqa: FBT001
    return [name for name in STREAM_COUNTS if sheds or name != "shed"]


def _summed(sheds: bool) -> list[str]:  # noqa: FBT001
    return [name for name in _SUMMED if sheds or name != "shed"]


def _report_type(sheds: bool) -> str:  # noqa: FBT001
    """Return the type of the part of a report that listeners see, as Spark writes types."""
    kinds = {"bigint": _summed(sheds), "string": _TIMES}
    counters, times = (f"struct<{', '.join(f'{name}: {kind}' for name in names)}>" for kind, names in kinds.items())
    added = f"struct<{', '.join(f'{name}: bigint' for name in _counts(sheds))}>"
    lost = "struct<middle: double, below: double, above: double>"
    queries = f"queries: map<string, struct<recall: struct<estimate: double, given: bigint, lost: {lost}>>>, " * sheds
    return (
        f"struct<streams: map<string, {counters}>, times: map<string, {times}>, "
        f"batch: struct<streams: map<string, {added}>>, {queries}log_bytes: bigint, rebuilt: boolean>"
    )


def _recall(query: str, recall: Column) -> Iterator[Column]:
    """Yield the recall of a query, added up as in `stats.recall.Recall`; NULL if a shard has no estimate.

    The errors of shards are independent.
    """
    given, lost = F.sum(recall["given"]), recall["lost"]
    middle = F.sum(lost["middle"])
    is_complete = F.count_if(recall.isNotNull()) == F.count(recall["estimate"])
    for kind, missing in (
        ("estimate", middle),
        ("low", middle + F.sqrt(F.sum(lost["above"] * lost["above"]))),
        ("high", F.greatest(F.lit(0.0), middle - F.sqrt(F.sum(lost["below"] * lost["below"])))),
    ):
        fraction = F.when(given + missing > 0, given / (given + missing)).otherwise(F.lit(1.0))
        yield F.when(is_complete, fraction).alias(f"queries.{query}.recall.{kind}")
