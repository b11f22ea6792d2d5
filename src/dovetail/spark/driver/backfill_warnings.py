"""Warnings about queries that are added with `backfill=True` and see little of the tuples before them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.errors import listed
from dovetail.query.model import JoinQuery
from dovetail.spark.driver.job_diff import projected
from dovetail.spark.driver.layout import Layout


def invisible_to_backfill(before: Layout, after: Layout, query: JoinQuery) -> Iterator[str]:
    """Yield a warning if shards lack tuples or columns that a query with backfill needs.

    `after` is the layout `before` with the query added.
    """
    first_shard = after.placement.assignments[query.name].first_shard
    group = next((group for group in before.placement.groups if group.first_shard == first_shard), None)
    if group is None:
        yield (
            f"query {query.name!r}: backfill=True shows nothing, because the query is partitioned unlike those that run: it gets "
            "shards of its own, whose windows are empty\nHint: leave backfill out, or join on columns that a running query joins on"
        )
        return
    reasons = []
    for stream in dict.fromkeys(ref.stream for ref in query.refs):
        if stream not in group.routes:
            reasons.append(f"no query on its shards read stream {stream!r} before")
            continue
        needed = projected(after.job.streams[stream], [query]).columns.names
        held = before.job.streams[stream].columns.names
        missing = sorted(name for name in needed if name not in held)
        if missing:
            reasons.append(f"windows of {stream!r} did not keep {listed(missing)}")
    if reasons:
        yield (
            f"query {query.name!r}: backfill=True shows less than you may expect, because {'; '.join(reasons)}\n"
            "Hint: declare it, or a query that reads these columns, before start(); explain() shows how far backfill reaches"
        )
