"""The view of a running job that its live page shows; see `dovetail.live`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from dovetail.errors import listed
from dovetail.plan.explain.explanation import Explanation
from dovetail.session.metrics import RunningMetrics
from dovetail.spark.checkpoint.plan_log import PlanLogEntry


def job_view(
    name: str,
    state: str,
    metrics: RunningMetrics,
    plan: Explanation,
    query: StreamingQuery,
    log: Sequence[PlanLogEntry],
) -> dict[str, Any]:
    """Return what a live page shows, as plain data."""
    return {
        "name": name,
        "state": state,
        "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}",
        "metrics": metrics,
        "plan": plan.to_dict(),
        "batches": list(_batches(query)),
        "changes": list(_changes(log)),
    }


def _batches(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """Yield number, rows and seconds of the batches that Spark remembers, except those without rows."""
    with suppress(Exception):  # the JVM may have gone
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seconds = progress["batchDuration"] / 1000
                yield {"batch": progress["batchId"], "rows": progress["numInputRows"], "seconds": seconds}


def _changes(log: Sequence[PlanLogEntry]) -> Iterator[dict[str, Any]]:
    """Yield from which batch on which queries came and went, or the plan changed."""
    before: set[str] | None = None
    for entry in log:
        queries = set(json.loads(entry.layout_json)["numbers"])
        added, dropped = sorted(queries - (before or set())), sorted((before or set()) - queries)
        parts = [f"{verb} {listed(names)}" for verb, names in (("added", added), ("dropped", dropped)) if names]
        if before is None:
            parts = [f"started with {listed(sorted(queries))}"]
        elif entry.cause:
            parts = [f"replanned: {entry.cause}"]
        yield {"batch": entry.first_batch, "what": ", ".join(parts) or "started again"}
        before = queries
