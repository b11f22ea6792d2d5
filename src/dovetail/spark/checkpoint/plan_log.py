"""The plan log of a checkpoint: which plan runs from which batch on.

It also brings plans to workers.

Every start of a streaming query appends a `PlanLogEntry` before its first batch runs, unless it resumes after a change that failed
before its entry was written; the entry's number is the *epoch*. Shards store the epoch that wrote their state, and refuse state
whose epoch is not the one that the log names for its batch: an attempt that was never committed wrote it.

Workers do not read the log. The driver packs the plan of the new entry, and the previous one, into the callbacks that Spark
pickles; each task takes the last plan that applies to its batch. The previous plan lets a worker read the arrays written under it.
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
from dovetail.spark.state.log import RESTORE_HINT

if TYPE_CHECKING:
    from dovetail.spark.checkpoint.directories import Directory

FOLDER = "_plans"
"""The underscore keeps earlier releases from reading the folder as a layout."""
_ENTRY = re.compile(r"\d{8}\.json")
MAX_LOG_ENTRIES = 32
"""Entries in force that are kept; a checkpoint cannot be restored to a batch before the oldest one."""
MAX_PACKED_BYTES = 700_000
"""Spark broadcasts closures of more than a megabyte, and a stateful operator cannot read broadcasts."""
_PACKING = {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 26}
"""Fast, with a dictionary large enough to compress one plan against another."""


@dataclass(frozen=True, eq=False)
class PlanLogEntry:
    """The plan of a job from a batch on, until a later entry replaces it."""

    first_batch: int = field(metadata={"name": "first"})
    layout_json: str = field(metadata={"name": "contract"})
    """The current layout, see `compatibility.current_json`."""
    plan: str
    """The `WorkerPlan` as JSON."""
    cause: str = ""
    """Why queries were replanned, if none was added or dropped."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Directory in which shards stage results, by query."""
    epoch: int = 0
    """Its number in the log."""


def batch_option(run_id: str) -> str:
    """Return the option with the batch of a run over Spark Connect, where tasks lack Spark's own."""
    return f"spark.dovetail.batch.{run_id}"


def current_batch(run_id: str) -> int | None:
    """Return the batch of a run that the current task belongs to; None if Spark does not say."""
    context = TaskContext.get()
    if context is None:
        return None
    batch = context.getLocalProperty("streaming.sql.batchId") or context.getLocalProperty(batch_option(run_id))
    return None if batch is None else int(batch)


def pack(plans: Sequence[str]) -> bytes:
    """Compress plans, each a `WorkerPlan` as JSON, for the closure of a stateful operator."""
    packed = lzma.compress(json.dumps(plans).encode(), filters=[_PACKING])
    if len(packed) > MAX_PACKED_BYTES:
        raise ConfigError(
            f"the plan for workers takes {len(packed):,} bytes; Spark's stateful operators take at most {MAX_PACKED_BYTES:,}",
            "divide the queries among several sessions",
        )
    return packed


@lru_cache(maxsize=4)
def unpack(packed: bytes) -> tuple[WorkerPlan, ...]:
    """Return the plans that `pack` compressed; cached per process."""
    return tuple(map(read_worker_plan, json.loads(lzma.decompress(packed))))


def plan_for(plans: Sequence[WorkerPlan], batch: int | None) -> WorkerPlan:
    """Return the last plan that applies to `batch`; only one plan applies to a batch of unknown number."""
    if batch is None and len(plans) > 1:
        raise StateError(
            "a task does not know its batch, so it cannot choose a plan", "use start() instead of dataframe()"
        )
    candidates = [plan for plan in plans if batch is None or plan.first_batch <= batch]
    if not candidates:
        raise StateError(f"batch {batch} is older than the plans of this start, which begin at {plans[0].first_batch}")
    return candidates[-1]


def read_entries(subdirectory: Directory) -> list[PlanLogEntry]:
    """Read the plan log of a checkpoint, in order of epochs; `subdirectory` is Dovetail's own in it."""
    folder = subdirectory.within(FOLDER)
    names = sorted(filter(_ENTRY.fullmatch, folder.names()))
    return [_read_entry(folder, name, is_last=name == names[-1]) for name in names]


def _read_entry(folder: Directory, name: str, *, is_last: bool) -> PlanLogEntry:
    try:
        content = json.loads(folder.read(name) or "")
    except ValueError:
        raise StateError(
            f"the plan log entry {folder.uri}/{name} is damaged or was not written completely",
            "remove that file and start again: that start ran no batch" if is_last else RESTORE_HINT,
        ) from None
    return replace(from_json(PlanLogEntry, content, f"{folder.uri}/{name}"), epoch=int(name.removesuffix(".json")))


def write_entry(subdirectory: Directory, entry: PlanLogEntry) -> None:
    """Append an entry to the log, under its epoch."""
    folder = subdirectory.within(FOLDER)
    if not folder.create(entry_name(entry.epoch), json.dumps(to_json(entry))):
        raise StateError(f"{folder.uri} is being changed by another session", "stop one of the two")


def in_force(log: Iterable[PlanLogEntry], next_batch: int) -> tuple[PlanLogEntry, ...]:
    """Return the entries that still determine which plan runs which batch, by first batch.

    An entry replaces all earlier ones from its first batch on. One whose first batch is after `next_batch` has never run: the
    checkpoint was restored to an earlier state.
    """
    entries: list[PlanLogEntry] = []
    for entry in log:
        if entry.first_batch <= next_batch:
            while entries and entries[-1].first_batch >= entry.first_batch:
                entries.pop()
            entries.append(entry)
    return tuple(entries)


def entry_name(epoch: int) -> str:
    """Return the file name of an entry."""
    return f"{epoch:08}.json"
