"""The job of a running session: its layout, its plans for workers, its sinks and its locks; and how it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.errors import ConfigError
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.plan.explain.explanation import Explanation
from dovetail.session.job import Job
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Lock
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.reports import BatchProgress
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import Staging
from dovetail.stats.counters import Measurements
from dovetail.stats.history import History

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

    declared: Job
    """The job with all columns of its streams; the layout has the columns that queries read."""
    layout: Layout
    plans: tuple[str, ...]
    """Each a `WorkerPlan` as JSON: the current one, preceded by the one that wrote the shards' arrays."""
    sinks: Mapping[str, Sink]
    checkpoint: Checkpoint
    staged: Mapping[int, Staging]
    locks: Mapping[str, HeldLock]
    """Locks of the checkpoint and the sinks."""

    def answers(self) -> dict[int, RunningQuery]:
        """Return its queries with their sinks, by query number."""
        return {
            self.layout.number_of(name): RunningQuery(name, query.schema, self.sinks[name])
            for name, query in self.layout.job.queries.items()
            if name in self.sinks
        }


class PendingChange(Protocol):
    """A change of the job that is committed once the streaming query has stopped."""

    def commit(self, progress: Mapping[int, BatchProgress]) -> RunningJob:
        """Return the changed job, to start with the first uncompleted batch; `progress` is that of recent batches."""
        ...

    def undo(self) -> None:
        """Release what was claimed for the change."""
        ...


class JobPipeline(Protocol):
    """Builds streaming queries from jobs, and changes jobs."""

    def writer(
        self, job: RunningJob, run_id: str, staged: Mapping[int, Staging], write: Callable[[DataFrame, int], None]
    ) -> DataStreamWriter: ...

    def with_query(self, job: RunningJob, name: str, sql: str, sink: Sink, *, backfill: bool) -> PendingChange: ...

    def without_query(self, job: RunningJob, name: str) -> PendingChange: ...

    def replanned(self, job: RunningJob, proposal: Proposal) -> PendingChange: ...

    def unchanged(self, job: RunningJob) -> PendingChange: ...

    def explain(
        self,
        layout: Layout,
        measured: Measurements | None,
        history: History | None = None,
    ) -> Explanation: ...


def claim_sinks(
    spark: SparkSession, layout: Layout, sinks: Mapping[str, Sink], checkpoint: Checkpoint, late: str | None = None
) -> tuple[dict[str, SinkUse], dict[str, Lock]]:
    """Claim all sinks for the checkpoint, or none; if `late` is given, only the sink of that query."""
    uses = {
        name: SinkUse(spark, name, query.schema, checkpoint, name == late)
        for name, query in layout.job.queries.items()
        if name in sinks
    }
    _check_apart(uses, sinks)
    claimed = {name: use for name, use in uses.items() if late in (None, name)}
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


def _check_apart(uses: Mapping[str, SinkUse], sinks: Mapping[str, Sink]) -> None:
    """Refuse sinks whose directories overlap with one another or with the checkpoint."""
    directories = {}
    for name, use in uses.items():
        if (directory := sinks[name].directory(use)) is not None:
            directories[f"query {name!r}"] = directory
    directories["the checkpoint"] = next(iter(uses.values())).checkpoint.directory
    for (first, outer), (second, inner) in permutations(directories.items(), 2):
        if outer.holds(inner):
            how = "is also" if inner.holds(outer) else "is inside"
            raise ConfigError(
                f"the directory of {second}, {inner.uri}, {how} that of {first}, {outer.uri}",
                "give each query, and the checkpoint, a directory beside the others",
            )
