"""What shards report, collected on the driver and shown to Spark's listeners.

A shard that takes part in a batch adds one row to its results: its counters so far, as JSON. That report replaces the shard's earlier
one, so counters are summed over shards, never over batches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail.codec import from_json, to_json
from dovetail.errors import StateError
from dovetail.plan.names import in_scope
from dovetail.plan.shared_plan import Load
from dovetail.plan.steps import JoinStep
from dovetail.session.monitor import caught_up
from dovetail.spark.driver.layout import Layout
from dovetail.spark.state.log import RESTORE, add_counters
from dovetail.spark.wire import ResultKind, collected, is_kind
from dovetail.stats.counters import Measurements, StreamFigures, merged
from dovetail.stats.recall import Recall

_KINDS = ("windows", "joins", "states", "results")
"""Of the parts of a plan."""
_SUMMED = ("arrivals", "late", "ahead", "refused", "state_tuples", "state_bytes")
"""What listeners are shown of a stream: its figures that are summed over shards."""


@dataclass(frozen=True)
class BatchProgress:
    """How far streams have come by the end of a batch, and what each shard has counted until then."""

    progress: Mapping[str, Any] = field(default_factory=dict)
    """By stream, as `StreamProgress.to_json` gives it."""
    counters: Mapping[int, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By shard and stream."""

    def total(self, shards: Collection[int]) -> dict[str, dict[str, int]]:
        """Return the counters of some shards together, by stream."""
        total: dict[str, dict[str, int]] = {}
        for shard in shards:
            for stream, counted in self.counters.get(shard, {}).items():
                total[stream] = add_counters(total.get(stream, {}), counted)
        return total


@dataclass(frozen=True)
class Collected:
    """How many results a batch has."""

    rows: Counter[int] = field(default_factory=Counter)
    """By query."""
    by_shard: dict[int, Counter[int]] = field(default_factory=dict)
    """By query and shard, of queries whose shards write results themselves."""


class ShardReports:
    """The last report of each shard, and what has been counted beside them since the session was started."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._shards: dict[int, dict[str, Any]] = {}
        self._counts = dict.fromkeys(layout.bound, 0)
        """Results by query, without those of the last batch."""
        self._last_batch, self._last_counts = -1, Counter[str]()
        self._batches = self._rebuilt = 0
        self._spent = 0.0
        """Milliseconds that shards have reported and nobody has asked for."""
        self.progress: dict[int, BatchProgress] = {}
        """After each of the last two batches, as shards say."""

    def collect(self, encoded: DataFrame, batch_id: int) -> Collected:
        """Take note of what the shards report with a batch; give the numbers of results."""
        found, continued, progress = Collected(), dict[int, int | None](), dict[str, Any]()
        for row in collected(encoded):
            found.rows[row.query] += row.rows
            if row.kind is ResultKind.STAGED:
                found.by_shard.setdefault(row.query, Counter())[row.shard] += row.rows
            elif row.kind is ResultKind.METRICS:
                report = json.loads(row.content)
                if "retired" in report:
                    self._shards.pop(row.shard, None)
                    continue
                progress = report.pop("progress", progress)
                continued[row.shard] = report["continues"]
                self._shards[row.shard] = report
                nodes = report["nodes"]
                self._spent += sum(part["ms"] for kind in _KINDS for part in nodes[kind].values())
                self._rebuilt += report["rebuilt"]
        self._check_continued(batch_id, continued)
        self._note_batch(batch_id, progress)
        return found

    def _check_continued(self, batch_id: int, continued: Mapping[int, int | None]) -> None:
        """Raise `StateError` unless all shards continue from the same batch.

        A batch calls all shards, or none if it has no tuples. So shards that took part in a batch have all taken part in it.
        """
        last = max((batch for batch in continued.values() if batch is not None), default=-1)
        groups = self._layout.placement.groups
        began = {group.first: min(self._layout.began(query.name) for query in group.queries) for group in groups}
        behind = [
            shard
            for shard, batch in sorted(continued.items())
            if batch != last and began[self._layout.placement.group_of(shard).first] <= last
        ]
        if behind:
            raise StateError(
                f"batch {batch_id}: the checkpoint lacks the state of batch {last} for shards {', '.join(map(str, behind))}",
                RESTORE,
            )

    def _note_batch(self, batch_id: int, progress: Mapping[str, Any]) -> None:
        """Count a batch; one that is replayed takes the place of its earlier attempt."""
        if batch_id != self._last_batch:
            for name, count in self._last_counts.items():
                self._counts[name] += count
            self._batches += 1
        self._last_batch, self._last_counts = batch_id, Counter()
        counters = {shard: _counters(report) for shard, report in self._shards.items()}
        before = self.progress.get(batch_id - 1, BatchProgress())
        self.progress = {batch_id - 1: before, batch_id: BatchProgress(progress or before.progress, counters)}

    def replace_layout(self, layout: Layout) -> None:
        """Switch to a changed job; counts of dropped queries stay."""
        self._layout = layout
        self._counts |= {name: 0 for name in layout.bound if name not in self._counts}

    def reached(self) -> dict[str, dict[str, int]]:
        """For queries that also see what was there before them, by alias: from which event time on every shard has it."""
        latest: dict[str, dict[str, int]] = {}
        for report in list(self._shards.values()):
            for came, seen in report.get("reached", {}).items():
                known = latest.setdefault(came, {})
                for stream, time in seen.items():
                    known[stream] = max(time, known.get(stream, time))
        found = {}
        for name, came in self._layout.came.items():
            seen = latest.get(str(came.since), {})
            refs = self._layout.bound[name].refs
            found[name] = {ref.alias: seen[ref.stream] for ref in refs if ref.stream in seen}
        return found

    def add_results(self, query: str, count: int) -> None:
        """Count results that a sink has written."""
        self._last_counts[query] += count

    def metrics(self) -> dict[str, Any]:
        """Counters so far, by stream and by query, and what each shard last reported."""
        shed = ("shed", "last_shed") if self._layout.config.shedding is not None else ()
        recall = {name: {"recall": to_json(found)} for name, found in self.recall().items()}
        return {
            "streams": {
                name: {kind: getattr(figures, kind) for kind in (*_SUMMED, "lateness_needed", *shed)}
                | {"hottest": to_json(figures.hottest or {}), "skew": self._skew(name)}
                for name, figures in self.streams().items()
            },
            "queries": {
                name: {"results": count + self._last_counts[name], **recall.get(name, {})}
                for name, count in self._counts.items()
            },
            "batches": self._batches,
            "rebuilt_shards": self._rebuilt,
            "shards": dict(self._shards),
        }

    def _skew(self, stream: str) -> float:
        """How many times more the shard with most of a stream's tuples holds than those of its group do on average."""
        skew = 1.0
        for shards, _ in self.parts():
            held = [it.streams[stream].state_tuples for it in shards.values() if stream in it.streams]
            skew = max(skew, max(held) * len(held) / sum(held) if any(held) else 1.0)
        return skew

    def streams(self) -> dict[str, StreamFigures]:
        """Counters by stream."""
        found: dict[str, StreamFigures] = {}
        for report in list(self._shards.values()):
            found = merged(found, {name: StreamFigures.from_json(it) for name, it in report["streams"].items()})
        return found

    def recall(self) -> dict[str, Recall]:
        """The share of each query's results that was not lost, where tuples may be shed."""
        found: dict[str, Recall] = {}
        for report in list(self._shards.values()):
            own = {name: it.get("recall") for name, it in report["queries"].items()}
            found = merged(found, {name: from_json(Recall, it) for name, it in own.items() if it is not None})
        return found

    @property
    def arrived(self) -> int:
        """Tuples that have come."""
        return sum(figures["arrivals"] for report in self._shards.values() for figures in report["streams"].values())

    def parts(self) -> list[tuple[dict[int, Measurements], list[JoinStep]]]:
        """The last reports of each group's shards, and the joins that they run."""
        found = []
        for numbers, steps in self._layout.parts:
            own = {shard: self._shards[shard] for shard in numbers if shard in self._shards}
            found.append(({shard: Measurements.from_json(report) for shard, report in own.items()}, steps))
        return found

    def spent(self) -> Load:
        """Milliseconds that shards have taken since the last call, and the bytes that they keep."""
        kept = [report["nodes"][kind].values() for report in self._shards.values() for kind in ("windows", "states")]
        spent, self._spent = self._spent, 0.0
        return Load(spent, sum(part.get("bytes") or 0 for parts in kept for part in parts))

    def caught_up(self, batch_id: int) -> list[str]:
        """Return the late queries that caught up and can be planned with the first ones; see `monitor.caught_up`.

        Batch `batch_id` has been joined, and may be joined again under the new plan: it counts how far streams were before it.
        """
        layout = self._layout
        before = self.progress.get(batch_id - 1, BatchProgress())
        heads = {name: found["head"] for name, found in before.progress.items()}
        marks = {name: head - layout.catalog[name].lateness for name, head in heads.items() if name in layout.catalog}
        if marks.keys() != layout.catalog.keys():
            return []
        waiting = {name: came for name, came in layout.came.items() if not came.merged}
        return [
            name for name, came in waiting.items() if caught_up(layout.bound[name], came.heads, marks, layout.catalog)
        ]

    def measured(self) -> Measurements:
        """What all shards together have counted, for explanations; windows by the names that they have in the plan."""
        total = Measurements()
        placement = self._layout.placement
        numbers = {number for shards, _ in self._layout.parts for number in shards}
        for report in [report for shard, report in self._shards.items() if shard in numbers]:
            found = Measurements.from_json(report)
            scope = placement.scopes.get(placement.group_of(report["shard"]).queries[0].name, "")
            windows = {in_scope(name, scope): figures for name, figures in found.nodes.windows.items()}
            total += replace(found, nodes=replace(found.nodes, windows=windows))
        return total


def _counters(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return what a shard has counted, by stream, as its manifest has it."""
    return {
        name: {
            "arrived": figures["arrivals"],
            "late_by": round(1e6 * figures["lateness_needed"]),
            **{kind: figures[kind] for kind in ("late", "ahead", "refused")},
        }
        for name, figures in report["streams"].items()
    }


def observed(layout: Layout) -> Iterator[Column]:
    """What a `StreamingQueryListener` sees of each batch: results by query, counters by stream."""
    for name in layout.bound:
        rows = F.when(F.col("query") == layout.number_of(name), F.col("rows"))
        yield F.coalesce(F.sum(rows), F.lit(0)).alias(f"{name}.results")
    sheds = layout.config.shedding is not None
    summed = (*_SUMMED, "shed") if sheds else _SUMMED
    counters = f"struct<{', '.join(f'{name}: bigint' for name in summed)}>"
    lost = "struct<middle: double, below: double, above: double>"
    queries = f"queries: map<string, struct<recall: struct<estimate: double, given: bigint, lost: {lost}>>>, " * sheds
    report = F.when(is_kind(ResultKind.METRICS), F.col("content").cast("string"))
    kinds = f"struct<streams: map<string, {counters}>, {queries}log_bytes: bigint, rebuilt: boolean>"
    streams = F.from_json(report, kinds)
    for stream in layout.streams:
        for name in summed:
            counted = streams["streams"][stream.name][name]
            yield F.coalesce(F.sum(counted), F.lit(0)).alias(f"{stream.name}.{name}")
    for name, _ in layout.queries if sheds else ():
        yield from _recall(name, streams["queries"][name]["recall"])
    yield F.coalesce(F.sum(streams["log_bytes"]), F.lit(0)).alias("log_bytes")
    yield F.count_if(streams["rebuilt"]).alias("rebuilt_shards")


def _recall(query: str, recall: Column) -> Iterator[Column]:
    """As `plan.recall.Recall` adds up shards: what each is off by is independent. NULL where a shard does not know it."""
    given, lost = F.sum(recall["given"]), recall["lost"]
    middle = F.sum(lost["middle"])
    known = F.count_if(recall.isNotNull()) == F.count(recall["estimate"])
    for kind, missing in (
        ("recall", middle),
        ("recall_low", middle + F.sqrt(F.sum(lost["above"] * lost["above"]))),
        ("recall_high", F.greatest(F.lit(0.0), middle - F.sqrt(F.sum(lost["below"] * lost["below"])))),
    ):
        share = F.when(given + missing > 0, given / (given + missing)).otherwise(F.lit(1.0))
        yield F.when(known, share).alias(f"{query}.{kind}")
