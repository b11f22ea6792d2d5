"""The plan log beside a checkpoint: which plan runs from which batch on.

Every start of the streaming query appends a `PlanLogEntry` before its first batch runs. The number of the entry is the *epoch* of
that start. Workers choose their plan by the number of their batch. Shards store the epoch that wrote their state: if an earlier
attempt at a batch left state behind, the log names another epoch for that batch.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark import TaskContext

from dovetail.codec import from_json, to_json
from dovetail.errors import ConfigError, StateError
from dovetail.spark.driver.layout import WorkerPlan, read_worker_plan

if TYPE_CHECKING:
    from dovetail.spark.checkpoint.directories import Directory

FOLDER = "_plans"
_ENTRY = re.compile(r"\d{8}\.json")
"""Earlier releases take other names for layouts."""
MAX_LOG_ENTRIES = 32
"""Revisions in force that the log keeps: a checkpoint is not put back further than that."""
MAX_PACKED_BYTES = 700_000
"""Bytes. Of what takes more than a megabyte, with all that goes along, Spark makes a broadcast, which a stateful operator that is
being prepared cannot read."""
_PACKING = {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 26}
"""Fast, and with a memory for one plan after another."""


@dataclass(frozen=True, eq=False)
class PlanLogEntry:
    """The plan of a job from batch `first` on, until a later entry replaces it."""

    first: int
    contract: str
    """What queries and streams were, as JSON."""
    plan: str
    """The `WorkerPlan`, as JSON."""
    cause: str = ""
    """Why queries were planned again, if no query came or went."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """By query, the directory in which shards stage its results."""
    epoch: int = 0
    """Its number in the log."""


def current_batch() -> int | None:
    """The number of the batch that a task is about; None outside of Spark."""
    context = TaskContext.get()
    found = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if found is None else int(found)


def pack(plans: Sequence[str]) -> bytes:
    """Plans, each a `WorkerPlan` as JSON, for workers: they repeat themselves, and Spark takes no more for a stateful operator."""
    packed = lzma.compress(json.dumps(plans).encode(), filters=[_PACKING])
    if len(packed) > MAX_PACKED_BYTES:
        raise ConfigError(
            f"what shards are to run takes {len(packed):,} bytes; Spark gives its stateful operators {MAX_PACKED_BYTES:,} at most",
            "divide the queries among several sessions",
        )
    return packed


@lru_cache(maxsize=4)
def unpack(packed: bytes) -> tuple[WorkerPlan, ...]:
    """What was packed; read once per process."""
    return tuple(map(read_worker_plan, json.loads(lzma.decompress(packed))))


def plan_for(plans: Sequence[WorkerPlan], batch: int | None) -> WorkerPlan:
    """The last of some plans that holds for a batch; of all, if it is not known."""
    found = [plan for plan in plans if batch is None or plan.since <= batch]
    if not found:
        raise StateError(f"batch {batch} is older than all plans that are known")
    return found[-1]


def read_revisions(own: Directory) -> list[PlanLogEntry]:
    """Read the plan log of a checkpoint, in order; `own` is Dovetail's directory in it."""
    folder = own.within(FOLDER)
    revisions = []
    for name in sorted(filter(_ENTRY.fullmatch, folder.names())):
        stored = from_json(PlanLogEntry, json.loads(folder.read(name) or "null"), f"{folder.uri}/{name}")
        revisions.append(replace(stored, epoch=int(name.removesuffix(".json"))))
    return revisions


def write_revision(own: Directory, revision: PlanLogEntry) -> None:
    """Append a revision to the log, under its epoch."""
    folder = own.within(FOLDER)
    if not folder.create(entry_name(revision.epoch), json.dumps(to_json(revision))):
        raise StateError(f"{folder.uri} is being changed by another session", "stop one of the two")


def in_force(revisions: Iterable[PlanLogEntry], next_batch: int) -> tuple[PlanLogEntry, ...]:
    """Return the entries that still determine which plan runs which batch, by first batch.

    A revision replaces all earlier ones from its first batch on. One whose first batch is after `next_batch` has never run: the
    checkpoint was put back to an earlier state.
    """
    kept: list[PlanLogEntry] = []
    for revision in revisions:
        if revision.first <= next_batch:
            while kept and kept[-1].first >= revision.first:
                kept.pop()
            kept.append(revision)
    return tuple(kept)


def entry_name(epoch: int) -> str:
    """Return the file name of a revision."""
    return f"{epoch:08}.json"
