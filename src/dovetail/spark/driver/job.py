"""The job of a running session: its layout, its plans for workers, its sinks and its locks."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError
from dovetail.session.job import Job
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import current_json
from dovetail.spark.checkpoint.directories import Lock
from dovetail.spark.driver.layout import Layout
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.wire import DROPPED, DROPPED_ID, DROPPED_SCHEMA

CHECKPOINT = ""
"""Key of the checkpoint in `RunningJob.locks`; the other keys are names of queries."""


class HeldLock(Protocol):
    """A lock on a checkpoint or a sink."""

    def release(self) -> None: ...


@dataclass(frozen=True)
class RunningQuery:
    """A query with its sink."""

    name: str
    schema: pa.Schema
    sink: Sink


@dataclass(frozen=True)
class RunningJob:
    """A job with its plans for workers, its sinks, and the locks that it holds until it ends."""

    declared_job: Job
    """The job with all columns of its streams; that of the layout has the columns that queries read."""
    layout: Layout
    plans: tuple[str, ...]
    """Each a `WorkerPlan` as JSON: the current one, preceded by the one that wrote the shards' arrays."""
    sinks: Mapping[str, Sink]
    checkpoint: Checkpoint
    committers: Mapping[int, Committer]
    """By query id, for the queries whose shards write results themselves."""
    locks: Mapping[str, HeldLock]
    """Locks of the checkpoint and the sinks."""

    @cached_property
    def queries(self) -> dict[int, RunningQuery]:
        """Its queries with their sinks, by query id, and the sink of dropped tuples as the last one."""
        ids, schemas = sink_ids(self.layout), _schemas(self.layout)
        return {ids[name]: RunningQuery(name, schemas[name], self.sinks[name]) for name in ids if name in self.sinks}

    @cached_property
    def _layout_json(self) -> str:
        return current_json(self.layout)

    def content_id(self, batch_id: int, query_ids: Collection[int]) -> int:
        """Return a number that identifies the job and a batch's input; 0 if no query with results needs it."""
        if not any(self.committers[query_id].needs_content_id for query_id in query_ids if query_id in self.committers):
            return 0
        offsets = self.checkpoint.directory.within("offsets").read(str(batch_id)) or uuid.uuid4().hex
        content = hashlib.sha256(f"{self._layout_json}\n{offsets}".encode()).digest()
        return int.from_bytes(content[:8]) >> 2


def sink_ids(layout: Layout) -> dict[str, int]:
    """Return the ids of the sinks that a job can have, by query, and that of dropped tuples."""
    return {**{name: layout.query_id(name) for name in layout.job.queries}, DROPPED: DROPPED_ID}


def _schemas(layout: Layout) -> dict[str, pa.Schema]:
    """Return the columns that each sink gets."""
    return {**{name: query.schema for name, query in layout.job.queries.items()}, DROPPED: DROPPED_SCHEMA}


def check_query_name(name: str, sinks: Mapping[str, Sink]) -> None:
    """Refuse a query with the name of the sink of dropped tuples."""
    if name == DROPPED and name in sinks:
        raise ConfigError(
            f"a query is called {name!r}, which is the name of the sink that start(dropped=...) was given",
            "give the query another name",
        )


def claim_sinks(
    spark: SparkSession, layout: Layout, sinks: Mapping[str, Sink], checkpoint: Checkpoint, added: str | None = None
) -> tuple[dict[str, SinkUse], dict[str, Lock]]:
    """Claim all sinks for the checkpoint, or none; if a query is `added` to a running job, only its sink."""
    uses = {
        name: SinkUse(spark, name, schema, checkpoint, name in (added, DROPPED))
        for name, schema in _schemas(layout).items()
        if name in sinks
    }
    _check_overlaps(uses, sinks)
    claimed = {name: use for name, use in uses.items() if added in (None, name)}
    for name, use in claimed.items():
        sinks[name].check(use)
    checkpoint.pin_layout(layout)
    locks: dict[str, Lock] = {}
    try:
        for name, use in claimed.items():
            lock = sinks[name].claim(use)
            if lock is not None:
                locks[name] = lock
    except BaseException:
        for lock in locks.values():
            lock.release()
        raise
    checkpoint.save_identity()
    return claimed, locks


def _check_overlaps(uses: Mapping[str, SinkUse], sinks: Mapping[str, Sink]) -> None:
    """Refuse sinks whose directories overlap with one another or with the checkpoint."""
    directories = {}
    for name, use in uses.items():
        if (directory := sinks[name].directory(use)) is not None:
            directories[f"query {name!r}"] = directory
    directories["the checkpoint"] = next(iter(uses.values())).checkpoint.directory
    for (first, outer), (second, inner) in permutations(directories.items(), 2):
        if outer.contains(inner):
            how = "is also" if inner.contains(outer) else "is inside"
            raise ConfigError(
                f"the directory of {second}, {inner.uri}, {how} that of {first}, {outer.uri}",
                "give each query, and the checkpoint, a directory beside the others",
            )
