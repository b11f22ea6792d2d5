"""What runs and for whom: plans, sinks and what others cannot have meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.errors import ConfigError
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Lock
from dovetail.spark.driver.layout import Layout
from dovetail.spark.sinks.owners import SinkUse
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import Staging

CHECKPOINT = ""
"""The name under which a job holds its checkpoint."""


class Held(Protocol):
    """Something that others cannot have before it is released."""

    def release(self) -> None: ...


@dataclass(frozen=True)
class RunningQuery:
    """A query whose results come from the shards."""

    name: str
    schema: pa.Schema
    sink: Sink


@dataclass(frozen=True)
class Job:
    """What runs, and for whom."""

    layout: Layout
    plans: tuple[str, ...]
    """What workers are given: each a `WorkerPlan` as JSON, those that a replay may need and the last."""
    sinks: Mapping[str, Sink]
    checkpoint: Checkpoint
    staged: Mapping[int, Staging]
    held: Mapping[str, Held]
    """The checkpoint, and the sinks of queries."""

    def answers(self) -> dict[int, RunningQuery]:
        """Its queries by number."""
        return {
            self.layout.number_of(name): RunningQuery(name, query.schema, self.sinks[name])
            for name, query in self.layout.bound.items()
            if name in self.sinks
        }


def claim_sinks(
    spark: SparkSession, layout: Layout, sinks: Mapping[str, Sink], checkpoint: Checkpoint, late: str | None = None
) -> tuple[dict[str, SinkUse], dict[str, Lock]]:
    """Make sinks the checkpoint's own, all of them or none, or only that of a query that comes `late`."""
    uses = {
        name: SinkUse(spark, name, query.schema, checkpoint, name == late)
        for name, query in layout.bound.items()
        if name in sinks
    }
    _check_apart(uses, sinks)
    claimed = {name: use for name, use in uses.items() if late in (None, name)}
    for name, use in claimed.items():
        sinks[name].check(use)
    checkpoint.save(layout)
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
    """Refuse directories that are, or contain, one another or the checkpoint."""
    given = {f"query {name!r}": sinks[name].directory(use) for name, use in uses.items()}
    used = {whose: directory for whose, directory in given.items() if directory is not None}
    used["the checkpoint"] = next(iter(uses.values())).checkpoint.directory
    for (first, outer), (second, inner) in permutations(used.items(), 2):
        if outer.holds(inner):
            how = "is also" if inner.holds(outer) else "is inside"
            raise ConfigError(
                f"the directory of {second}, {inner.uri}, {how} that of {first}, {outer.uri}",
                "give each query, and the checkpoint, a directory beside the others",
            )
