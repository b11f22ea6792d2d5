"""A checkpoint's tuples, cut again for other shards: what workers do of a resharding.

The log of each shard is read as the state reader gives it and checked against its manifest. A tuple that lies in several cells is
taken from the first of them only: so each is taken once, and equal ones as often as they came. Then it goes to all cells of the new
grid that it belongs to, whose shards put it in the place of what was in the state. The driver does without the engine, so nothing
here loads it before a worker needs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from dovetail.errors import StateError
from dovetail.spark.driver.layout import ShardGroupPlan, WorkerPlan, read_worker_plan
from dovetail.spark.state.log import (
    MANIFEST,
    RESTORE,
    UNCOUNTED,
    Log,
    SegmentMap,
    ShardManifest,
    add_counters,
    tuples_of,
)
from dovetail.spark.wire import from_ipc, to_ipc
from dovetail.spark.worker.callbacks import segments_of

if TYPE_CHECKING:
    import pandas as pd

MOVED = pa.schema({"shard": pa.int32(), "stream": pa.string(), "batch": pa.int64(), "content": pa.binary()})
"""Tuples of a stream for a shard. Without a stream: a token says that all of a shard's log was read, nothing calls the shard."""
TAKEN = pa.schema({"shard": pa.int32(), "tuples": pa.int64()})


@dataclass(frozen=True)
class Move:
    """From the shards of one plan to those of another. Both have the same groups, in the same order."""

    before: str
    after: str
    """Each a `WorkerPlan` as JSON."""
    ids: tuple[int, ...]
    """By number of a shard before, the value by which Spark groups its rows; all else here goes by these values."""
    ids_after: tuple[int, ...]
    tokens: Mapping[int, str | None]
    """Of the manifests that the driver has read."""
    read: frozenset[int]
    """The shards whose logs are cut again; the others have no more to do."""
    manifests: Mapping[int, str]
    """What each new shard begins with, as JSON."""

    @classmethod
    def between(
        cls,
        before: WorkerPlan,
        after: WorkerPlan,
        ids: tuple[int, ...],
        ids_after: tuple[int, ...],
        manifests: Mapping[int, ShardManifest],
    ) -> Move:
        """The move of what shards hold by their `manifests`; what was counted is counted by the first of the new shards."""
        active = {number: manifests[number] for number in before.shards if number in manifests}
        if any(manifest.shedding is not None for manifest in active.values()):
            raise StateError(
                "tuples of this checkpoint may have been shed, and what its shards know of the others cannot be cut again",
                "start the session once without Config(shedding=...), stop it after a batch, then reshard",
            )
        counted = progress_of(manifests.values())
        others = {name: {**progress, **UNCOUNTED} for name, progress in counted.items()}
        batches = max((manifest.batches for manifest in active.values()), default=0)
        begun = {}
        for old, new in zip(before.groups, after.groups, strict=True):
            own = [active[number] for number in old.numbers if number in active]
            kept_from = _latest(manifest.kept_from for manifest in own)
            kept_from = {stream: time for stream, time in kept_from.items() if stream in new.ways}
            came = dict.fromkeys(batch for manifest in own for batch in manifest.reach)
            reach = {batch: _latest(manifest.reach.get(batch, {}) for manifest in own) for batch in came}
            for number in new.numbers:
                progress = counted if number == after.shards[0] else others
                made = ShardManifest(after.digest, uuid.uuid4().hex, 0, progress, [], batches, None, kept_from, reach)
                begun[ids_after[number]] = made.to_json()
        tokens = {ids[number]: manifest.token for number, manifest in manifests.items()}
        read = frozenset(ids[number] for number in active)
        return cls(before.to_json(), after.to_json(), ids, ids_after, tokens, read, begun)

    def recut(self, rows: pa.Table) -> pa.Table:
        """The tuples of one shard, by new shard."""
        shard, plan = rows["shard"][0].as_py(), read_worker_plan(self.before)
        found = dict(zip(rows["number"].to_pylist(), rows["content"], strict=True))
        if MANIFEST not in found:
            raise StateError(f"the manifest of shard {self.ids.index(shard)} is missing from the checkpoint", RESTORE)
        manifest = ShardManifest.from_json(found[MANIFEST].as_py(), plan.digest)
        parts = [_moved(shard, None, 0, (manifest.token or "").encode())]
        for segment in manifest.segments:
            content = found.get(segment.number)
            table = tuples_of(segment, None if content is None else content.as_py())
            for number, part in self._placed(self.ids.index(shard), segment.stream, table):
                parts.append(_moved(self.ids_after[number], segment.stream, segment.batch, to_ipc(part)))
        return pa.Table.from_batches(parts)

    def _placed(self, shard: int, stream: str, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

        groups = zip(read_worker_plan(self.before).groups, read_worker_plan(self.after).groups, strict=True)
        before, after = next(pair for pair in groups if shard in pair[0].numbers)
        if stream not in before.ways:
            return  # nobody reads it any more
        own = table.filter(pa.array(first_copies(before, shard - before.first, stream, table)))
        cells, rows = cells_of(after, stream, own)
        for cell in np.unique(cells):
            yield after.first + int(cell), own.take(pa.array(rows[cells == cell]))

    def take(self, shard: int, frames: Iterable[pd.DataFrame], segments: SegmentMap) -> int:
        """Put what has been moved to a shard in the place of all that it held; give the number of tuples."""
        plan, old = read_worker_plan(self.after), Log(segments, read_worker_plan(self.before).digest)
        token = old.manifest.token
        if token != self.tokens.get(shard):
            raise StateError(f"the manifest of shard id {shard} is another than the state reader gave", RESTORE)
        old.clear()
        log, read = Log(segments, plan.digest), set[str]()
        for frame in frames:
            for stream, batch, content in zip(frame["stream"], frame["batch"], frame["content"], strict=True):
                if isinstance(stream, str):
                    log.append(plan.catalog[stream], from_ipc(content), int(batch))
                elif content is not None:
                    read.add(bytes(content).decode())
        if shard in self.read and read != {token}:
            raise StateError(f"the log of shard id {shard} was not read, or not all of it", "reshard again")
        if shard in self.manifests:
            begun = ShardManifest.from_json(self.manifests[shard].encode(), plan.digest)
            begun.segments, begun.next = log.manifest.segments, log.manifest.next
            log.manifest = begun
            log.save()
        return sum(segment.rows for segment in log.manifest.segments)


def _moved(shard: int, stream: str | None, batch: int, content: bytes) -> pa.RecordBatch:
    return pa.record_batch([[shard], [stream], [batch], [content]], schema=MOVED)


def first_copies(group: ShardGroupPlan, cell: int, stream: str, table: pa.Table) -> np.ndarray:
    """Which tuples of a cell are not in an earlier one as well."""
    from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

    if any(None in way for way in group.ways[stream]):
        return np.ones(table.num_rows, np.bool_)  # spread by whole rows, which may have got more columns since
    cells, rows = cells_of(group, stream, table)
    if np.count_nonzero(cells == cell) != table.num_rows:
        raise StateError(f"tuples of stream {stream!r} lie in shard {group.first + cell}, where they do not belong")
    first = np.zeros(table.num_rows, np.int64)
    # The copies of a row are in the order of their cells, and the last assignment holds.
    first[rows[::-1]] = cells[::-1]
    return np.equal(first, cell)


def progress_of(manifests: Iterable[ShardManifest]) -> dict[str, dict[str, Any]]:
    """How far streams have come, which all shards know, with the counters of all of them."""
    total: dict[str, dict[str, Any]] = {}
    for manifest in sorted(manifests, key=lambda each: each.batches):
        for stream, progress in manifest.progress.items():
            total[stream] = {**progress, **add_counters(total.get(stream, UNCOUNTED), progress)}
    return total


def _latest(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By stream, the latest of some times."""
    found: dict[str, int] = {}
    for each in times:
        found |= {stream: max(time, found.get(stream, time)) for stream, time in each.items()}
    return found


class Mover(StatefulProcessor):
    """The class for `transformWithStateInPandas`, for one batch without input."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = segments_of(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd  # noqa: PLC0415 - workers have it loaded

        yield pd.DataFrame([(key[0], self._move.take(key[0], rows, self._segments))], columns=TAKEN.names)

    def close(self) -> None:
        pass
