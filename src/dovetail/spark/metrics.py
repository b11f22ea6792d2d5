"""What shards report, collected on the driver and shown to Spark's listeners.

A shard that takes part in a batch adds one row to its results: its counters so far, as JSON. That report replaces the shard's earlier
one, so counters are summed over shards, never over batches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail.plan.names import in_scope
from dovetail.spark.layout import Layout
from dovetail.spark.stages import METRICS

_ADDED = ("probes", "matches", "ms", "timed")
_SUMMED = ("arrivals", "late", "ahead", "refused", "state_tuples", "state_bytes")
_LARGEST = "lateness_needed"
"""The only figure of a stream that is not summed over shards."""


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
        self._batches = self._rebuilt = 0

    def collect(self, encoded: DataFrame, staged: Collection[int] = ()) -> Collected:
        """Take note of what the shards report with a batch; give the numbers of results."""
        small = F.col("query").isin(METRICS, *staged)
        collected = encoded.select("query", "rows", F.when(small, F.col("segment")).alias("report")).collect()
        self._batches += 1
        found = Collected()
        for row in collected:
            if row["query"] == METRICS:
                metrics = json.loads(bytes(row["report"]))
                self._rebuilt += metrics["rebuilt"]
                self._shards[metrics["shard"]] = metrics
                continue
            found.rows[row["query"]] += row["rows"]
            if row["query"] in staged:
                found.by_shard.setdefault(row["query"], Counter())[int(bytes(row["report"]))] += row["rows"]
        return found

    def add_results(self, query: str, count: int) -> None:
        """Count results that a sink has written."""
        self._counts[query] += count

    def metrics(self) -> dict[str, Any]:
        """Counters so far, by stream and by query, and what each shard last reported."""
        return {
            "streams": self.streams(),
            "queries": {name: {"results": count} for name, count in self._counts.items()},
            "batches": self._batches,
            "rebuilt_shards": self._rebuilt,
            "shards": dict(self._shards),
        }

    def streams(self) -> dict[str, dict[str, float]]:
        """Counters by stream."""
        found: dict[str, dict[str, float]] = {}
        for metrics in list(self._shards.values()):
            for stream, counted in metrics["streams"].items():
                known = found.setdefault(stream, {**dict.fromkeys(_SUMMED, 0), _LARGEST: 0.0})
                known.update({name: known[name] + counted[name] for name in _SUMMED})
                known[_LARGEST] = max(known[_LARGEST], counted[_LARGEST])
        return found

    def measured(self) -> dict[str, Any]:
        """What all shards together have counted, for explanations."""
        reports = list(self._shards.values())
        return {
            **{kind: _paths(report[kind] for report in reports) for kind in ("queries", "joins")},
            "nodes": self._nodes(reports),
        }

    def _nodes(self, reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parts of the plan took of each shard's last batch, by the names that they have in the plan."""
        found: dict[str, Any] = {kind: {} for kind in ("windows", "joins", "states", "results")}
        span = 0.0
        for report in reports:
            group = self._layout.group_of(report["shard"])
            scope = self._layout.scopes.get(group.queries[0].name)
            span = max(span, report["nodes"]["span"]["seconds"])
            for kind, sums in found.items():
                for name, figures in report["nodes"][kind].items():
                    label = in_scope(name, scope) if kind == "windows" and scope else name
                    sums.setdefault(label, Counter()).update(figures)
        return {**found, "span": {"seconds": span}}


def _paths(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counters of paths that all shards still run in the same order, and all changes of orders."""
    found: dict[str, Any] = {}
    for report in reports:
        for name, query in report.items():
            total = found.setdefault(name, {"paths": {}, "changes": []})
            total["changes"] += query["changes"]
            for driver, stages in query["paths"].items():
                sums = total["paths"].get(driver)
                if sums is None:
                    total["paths"][driver] = [dict(stage) for stage in stages]
                elif [summed["alias"] for summed in sums] != [stage["alias"] for stage in stages]:
                    total["paths"][driver] = []
                else:
                    for summed, stage in zip(sums, stages, strict=True):
                        summed.update({kind: summed[kind] + stage[kind] for kind in _ADDED if kind in stage})
    return found


def observed(layout: Layout) -> Iterator[Column]:
    """What a `StreamingQueryListener` sees of each batch: results by query, counters by stream."""
    for number, (name, _) in enumerate(layout.queries):
        rows = F.when(F.col("query") == number, F.col("rows"))
        yield F.coalesce(F.sum(rows), F.lit(0)).alias(f"{name}.results")
    counters = f"struct<{', '.join(f'{name}: bigint' for name in _SUMMED)}>"
    report = F.when(F.col("query") == METRICS, F.col("segment").cast("string"))
    streams = F.from_json(report, f"struct<streams: map<string, {counters}>, log_bytes: bigint, rebuilt: boolean>")
    for stream in layout.streams:
        for name in _SUMMED:
            counted = streams["streams"][stream.name][name]
            yield F.coalesce(F.sum(counted), F.lit(0)).alias(f"{stream.name}.{name}")
    yield F.coalesce(F.sum(streams["log_bytes"]), F.lit(0)).alias("log_bytes")
    yield F.count_if(streams["rebuilt"]).alias("rebuilt_shards")
