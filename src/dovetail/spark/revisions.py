"""What workers run from which batch on, and the log of it beside a checkpoint.

A `Revision` is the plan of a job from its first batch, or from a later one at which queries came or went. Each is written before any
batch that it holds for has begun, and workers choose by the number of their batch, so that a replay runs what ran before.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark import TaskContext

from dovetail.errors import ConfigError, StateError
from dovetail.plan.codec import from_json, to_json
from dovetail.spark.layout import WorkerPlan, read_worker_plan

if TYPE_CHECKING:
    from dovetail.spark.directories import Directory

FOLDER = "_plans"
"""Earlier releases take other names for layouts."""
MOST_PACKED = 700_000
"""Bytes. Of what takes more than a megabyte, with all that goes along, Spark makes a broadcast, which a stateful operator that is
being prepared cannot read."""
_PACKING = {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 26}
"""Fast, and with a memory for one plan after another."""


@dataclass(frozen=True)
class Revision:
    """From batch `first` on."""

    first: int
    contract: str
    """What queries and streams were, as JSON."""
    plan: str
    """The `WorkerPlan`, as JSON."""
    cause: str = ""
    """Why queries were planned again, if no query came or went."""


def current_batch() -> int | None:
    """The number of the batch that a task is about; None outside of Spark."""
    context = TaskContext.get()
    found = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if found is None else int(found)


def pack(plans: Sequence[str]) -> bytes:
    """Plans, each a `WorkerPlan` as JSON, for workers: they repeat themselves, and Spark takes no more for a stateful operator."""
    packed = lzma.compress(json.dumps(plans).encode(), filters=[_PACKING])
    if len(packed) > MOST_PACKED:
        raise ConfigError(
            f"what shards are to run takes {len(packed):,} bytes; Spark gives its stateful operators {MOST_PACKED:,} at most",
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


def read_revisions(own: Directory) -> list[Revision]:
    """All revisions of a checkpoint, in order; `own` is Dovetail's directory in it."""
    folder = own.within(FOLDER)
    names = sorted(name for name in folder.names() if name.endswith(".json") and not name.startswith("."))
    return [from_json(Revision, json.loads(folder.read(name) or ""), f"{folder.uri}/{name}") for name in names]


def write_revision(own: Directory, revision: Revision) -> None:
    """Add a revision; of those for one batch the last holds."""
    folder = own.within(FOLDER)
    number = len([name for name in folder.names() if name.endswith(".json") and not name.startswith(".")])
    text = json.dumps(to_json(revision))
    if not folder.create(f"{number:08}.json", text):
        raise StateError(f"{folder.uri} is being changed by another session", "stop one of the two")
