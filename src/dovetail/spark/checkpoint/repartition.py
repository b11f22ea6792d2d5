"""Repartition the tuples of a checkpoint for other shards: the workers' part of a resharding.

Spark's state reader provides the log of each shard, which is checked against its manifest. Of the copies of a tuple, only the one in
the first cell is read, so each tuple is read once, and equal tuples as often as they arrived. It is then sent to all its cells in the
new grid, whose shards replace their state with the tuples that they receive. The driver does not load the engine, so nothing here
imports it before a worker needs it.
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
    RESTORE_HINT,
    ZERO_COUNTERS,
    Log,
    SegmentMap,
    ShardManifest,
    add_counters,
    decode_segment,
)
from dovetail.spark.wire import from_ipc, to_ipc
from dovetail.spark.worker.callbacks import segment_map

if TYPE_CHECKING:
    import pandas as pd

MOVED = pa.schema({"shard": pa.int32(), "stream": pa.string(), "batch": pa.int64(), "content": pa.binary()})
"""Tuples of a stream for a shard.

A row without a stream has either a token, which confirms that the shard's whole log was read, or no content, to call the shard.
"""
COUNTS = pa.schema({"shard": pa.int32(), "tuples": pa.int64()})


@dataclass(frozen=True)
class Move:
    """A move of tuples from the shards of one plan to those of another with the same groups, in order."""

    before: str
    """The old `WorkerPlan` as JSON."""
    after: str
    """The new `WorkerPlan` as JSON."""
    ids: tuple[int, ...]
    """By number of an old shard, the id by which Spark groups its rows; the mappings below are by id."""
    ids_after: tuple[int, ...]
    """By number of a new shard, its id."""
    tokens: Mapping[int, str | None]
    """Tokens of the manifests that the driver has read."""
    shards_to_read: frozenset[int]
    """The shards whose logs are repartitioned; the others have retired."""
    manifests: Mapping[int, str]
    """Initial manifest of each new shard, as JSON."""

    @classmethod
    def between(
        cls,
        before: WorkerPlan,
        after: WorkerPlan,
        ids: tuple[int, ...],
        ids_after: tuple[int, ...],
        manifests: Mapping[int, ShardManifest],
    ) -> Move:
        """Return the move of all shards in `manifests`; the first new shard inherits their counters."""
        active = {number: manifests[number] for number in before.shards if number in manifests}
        if any(manifest.shedding is not None for manifest in active.values()):
            raise StateError(
                "tuples of this checkpoint may have been shed, and shedder state cannot be repartitioned",
                "start the session once without Config(shedding=...), stop it after a batch, then reshard",
            )
        counted = total_progress(manifests.values())
        uncounted = {name: {**progress, **ZERO_COUNTERS} for name, progress in counted.items()}
        batches = max((manifest.batches for manifest in active.values()), default=0)
        new_manifests = {}
        for old_group, new_group in zip(before.groups, after.groups, strict=True):
            old_manifests = [active[number] for number in old_group.numbers if number in active]
            kept_from = _latest(manifest.kept_from for manifest in old_manifests)
            kept_from = {stream: time for stream, time in kept_from.items() if stream in new_group.ways}
            starts = dict.fromkeys(start for manifest in old_manifests for start in manifest.reach)
            reach = {start: _latest(manifest.reach.get(start, {}) for manifest in old_manifests) for start in starts}
            for number in new_group.numbers:
                progress = counted if number == after.shards[0] else uncounted
                new = ShardManifest(after.digest, uuid.uuid4().hex, 0, progress, [], batches, None, kept_from, reach)
                new_manifests[ids_after[number]] = new.to_json()
        tokens = {ids[number]: manifest.token for number, manifest in manifests.items()}
        to_read = frozenset(ids[number] for number in active)
        return cls(before.to_json(), after.to_json(), ids, ids_after, tokens, to_read, new_manifests)

    def repartition(self, rows: pa.Table) -> pa.Table:
        """Return the tuples of one shard by new shard, as rows of `MOVED`; `rows` is the shard's stored state."""
        shard, plan = rows["shard"][0].as_py(), read_worker_plan(self.before)
        contents = dict(zip(rows["number"].to_pylist(), rows["content"], strict=True))
        if MANIFEST not in contents:
            raise StateError(
                f"the manifest of shard {self.ids.index(shard)} is missing from the checkpoint", RESTORE_HINT
            )
        manifest = ShardManifest.from_json(contents[MANIFEST].as_py(), plan.digest)
        parts = [_moved(shard, None, 0, (manifest.token or "").encode())]
        for segment in manifest.segments:
            content = contents.get(segment.number)
            table = decode_segment(segment, None if content is None else content.as_py())
            for number, part in self._route(self.ids.index(shard), segment.stream, table):
                parts.append(_moved(self.ids_after[number], segment.stream, segment.batch, to_ipc(part)))
        return pa.Table.from_batches(parts)

    def _route(self, shard: int, stream: str, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the numbers of the new shards with their part of the tuples of an old shard."""
        from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

        groups = zip(read_worker_plan(self.before).groups, read_worker_plan(self.after).groups, strict=True)
        before, after = next(pair for pair in groups if shard in pair[0].numbers)
        if stream not in before.ways:
            return  # no query reads it any more
        originals = table.filter(pa.array(first_copies(before, shard - before.first, stream, table)))
        cells, rows = cells_of(after, stream, originals)
        for cell in np.unique(cells):
            yield after.first + int(cell), originals.take(pa.array(rows[cells == cell]))

    def replace_state(self, shard: int, frames: Iterable[pd.DataFrame], segments: SegmentMap) -> int:
        """Replace the state of a shard with the tuples moved to it; return their number."""
        plan, old = read_worker_plan(self.after), Log(segments, read_worker_plan(self.before).digest)
        token = old.manifest.token
        if token != self.tokens.get(shard):
            raise StateError(
                f"the manifest of shard id {shard} differs from the one the state reader returned", RESTORE_HINT
            )
        old.clear()
        log, tokens = Log(segments, plan.digest), set[str]()
        for frame in frames:
            for stream, batch, content in zip(frame["stream"], frame["batch"], frame["content"], strict=True):
                if isinstance(stream, str):
                    log.append(plan.catalog[stream], from_ipc(content), int(batch))
                elif content is not None:
                    tokens.add(bytes(content).decode())
        if shard in self.shards_to_read and tokens != {token}:
            raise StateError(f"the log of shard id {shard} was not read completely", "reshard again")
        if shard in self.manifests:
            manifest = ShardManifest.from_json(self.manifests[shard].encode(), plan.digest)
            manifest.segments, manifest.next = log.manifest.segments, log.manifest.next
            log.manifest = manifest
            log.save()
        return sum(segment.rows for segment in log.manifest.segments)


def _moved(shard: int, stream: str | None, batch: int, content: bytes) -> pa.RecordBatch:
    return pa.record_batch([[shard], [stream], [batch], [content]], schema=MOVED)


def first_copies(group: ShardGroupPlan, cell: int, stream: str, table: pa.Table) -> np.ndarray:
    """Return a mask of the tuples of a cell that have no copy in an earlier cell."""
    from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

    if any(None in route for route in group.ways[stream]):
        # Rows that are spread by content may have more columns by now, so their cells cannot be computed again.
        return np.ones(table.num_rows, np.bool_)
    cells, rows = cells_of(group, stream, table)
    if np.count_nonzero(cells == cell) != table.num_rows:
        raise StateError(f"tuples of stream {stream!r} are stored in the wrong shard {group.first + cell}")
    first = np.zeros(table.num_rows, np.int64)
    # Copies of a row are in the order of their cells, and the last assignment wins.
    first[rows[::-1]] = cells[::-1]
    return np.equal(first, cell)


def total_progress(manifests: Iterable[ShardManifest]) -> dict[str, dict[str, Any]]:
    """Return the latest progress of each stream, with the counters of all shards added up."""
    total: dict[str, dict[str, Any]] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest.batches):
        for stream, progress in manifest.progress.items():
            total[stream] = {**progress, **add_counters(total.get(stream, ZERO_COUNTERS), progress)}
    return total


def _latest(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the latest time of each stream."""
    latest: dict[str, int] = {}
    for times_by_stream in times:
        latest |= {stream: max(time, latest.get(stream, time)) for stream, time in times_by_stream.items()}
    return latest


class MoveProcessor(StatefulProcessor):
    """The processor of the one batch without input that replaces the state of all shards."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = segment_map(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd  # noqa: PLC0415 - workers have it loaded

        yield pd.DataFrame([(key[0], self._move.replace_state(key[0], rows, self._segments))], columns=COUNTS.names)

    def close(self) -> None:
        pass
