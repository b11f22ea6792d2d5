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
    SegmentMap,
    ShardLog,
    ShardManifest,
    add_counters,
    decode_segment,
)
from dovetail.spark.wire import SHARD_ID, from_ipc, to_ipc
from dovetail.spark.worker.callbacks import segment_map

if TYPE_CHECKING:
    import pandas as pd

REPARTITIONED_SCHEMA = pa.schema(
    {SHARD_ID: pa.int32(), "stream": pa.string(), "batch": pa.int64(), "content": pa.binary()}
)
"""Tuples of a stream for a shard.

A row without a stream has either a token, which confirms that the shard's whole log was read, or no content, to call the shard.
"""
COUNTS = pa.schema({SHARD_ID: pa.int32(), "tuples": pa.int64()})


@dataclass(frozen=True)
class RepartitionPlan:
    """New shards of the tuples of one plan's shards, in another plan with the same groups, in order."""

    old_plan: str
    """The old `WorkerPlan` as JSON."""
    new_plan: str
    """The new `WorkerPlan` as JSON."""
    old_shard_ids: tuple[int, ...]
    """By old shard, the id by which Spark groups its rows; the mappings below are by id."""
    new_shard_ids: tuple[int, ...]
    """By new shard, its id."""
    tokens: Mapping[int, str | None]
    """Tokens of the manifests that the driver has read."""
    shards_to_read: frozenset[int]
    """Ids of the shards whose logs are repartitioned; the others have retired."""
    manifests: Mapping[int, str]
    """Initial manifest of each new shard, as JSON."""

    @classmethod
    def between(
        cls,
        old_plan: WorkerPlan,
        new_plan: WorkerPlan,
        old_shard_ids: tuple[int, ...],
        new_shard_ids: tuple[int, ...],
        manifests: Mapping[int, ShardManifest],
    ) -> RepartitionPlan:
        """Return the plan for all shards in `manifests`; the first new shard inherits their counters."""
        active = {shard: manifests[shard] for shard in old_plan.shard_list if shard in manifests}
        if any(manifest.shedding is not None for manifest in active.values()):
            raise StateError(
                "tuples of this checkpoint may have been shed, and shedder state cannot be repartitioned",
                "start the session once without Config(shedding=...), stop it after a batch, then reshard",
            )
        counted = total_progress(manifests.values())
        uncounted = {name: {**progress, **ZERO_COUNTERS} for name, progress in counted.items()}
        next_batch = max((manifest.next_batch for manifest in active.values()), default=0)
        new_manifests = {}
        for old_group, new_group in zip(old_plan.groups, new_plan.groups, strict=True):
            old_manifests = [active[shard] for shard in old_group.shard_range if shard in active]
            kept_from = _latest(manifest.kept_from for manifest in old_manifests)
            kept_from = {stream: time for stream, time in kept_from.items() if stream in new_group.routes}
            starts = dict.fromkeys(start for manifest in old_manifests for start in manifest.backfill_from)
            backfill_from = {
                start: _latest(manifest.backfill_from.get(start, {}) for manifest in old_manifests) for start in starts
            }
            for shard in new_group.shard_range:
                progress = counted if shard == new_plan.shard_list[0] else uncounted
                new_manifest = ShardManifest(
                    new_plan.digest,
                    uuid.uuid4().hex,
                    progress=progress,
                    next_batch=next_batch,
                    kept_from=kept_from,
                    backfill_from=backfill_from,
                )
                new_manifests[new_shard_ids[shard]] = new_manifest.to_json()
        tokens = {old_shard_ids[shard]: manifest.token for shard, manifest in manifests.items()}
        to_read = frozenset(old_shard_ids[shard] for shard in active)
        return cls(old_plan.to_json(), new_plan.to_json(), old_shard_ids, new_shard_ids, tokens, to_read, new_manifests)

    def repartition(self, rows: pa.Table) -> pa.Table:
        """Return the tuples of an old shard as rows of `REPARTITIONED_SCHEMA`.

        `rows` is the shard's stored state.
        """
        shard_id, old_plan = rows[SHARD_ID][0].as_py(), read_worker_plan(self.old_plan)
        shard = self.old_shard_ids.index(shard_id)
        contents = dict(zip(rows["number"].to_pylist(), rows["content"], strict=True))
        if MANIFEST not in contents:
            raise StateError(f"the manifest of shard {shard} is missing from the checkpoint", RESTORE_HINT)
        manifest = ShardManifest.from_json(contents[MANIFEST].as_py(), old_plan.digest)
        parts = [_repartitioned_rows(shard_id, None, 0, (manifest.token or "").encode())]
        for segment in manifest.segments:
            content = contents.get(segment.number)
            table = decode_segment(segment, None if content is None else content.as_py())
            for new_shard, part in self._route(shard, segment.stream, table):
                new_shard_id = self.new_shard_ids[new_shard]
                parts.append(_repartitioned_rows(new_shard_id, segment.stream, segment.batch, to_ipc(part)))
        return pa.Table.from_batches(parts)

    def _route(self, shard: int, stream: str, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the new shards with their part of the tuples of an old shard."""
        from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

        groups = zip(read_worker_plan(self.old_plan).groups, read_worker_plan(self.new_plan).groups, strict=True)
        old_group, new_group = next(pair for pair in groups if shard in pair[0].shard_range)
        if stream not in old_group.routes:
            return  # no query reads it any more
        originals = table.filter(pa.array(first_copies(old_group, shard - old_group.first_shard, stream, table)))
        cells, rows = cells_of(new_group, stream, originals)
        for cell in np.unique(cells):
            yield new_group.first_shard + int(cell), originals.take(pa.array(rows[cells == cell]))

    def replace_state(self, shard_id: int, frames: Iterable[pd.DataFrame], segments: SegmentMap) -> int:
        """Replace the state of a shard with the tuples sent to it; return their number."""
        new_plan, old_log = read_worker_plan(self.new_plan), ShardLog(segments, read_worker_plan(self.old_plan).digest)
        token = old_log.manifest.token
        if token != self.tokens.get(shard_id):
            raise StateError(
                f"the manifest of shard id {shard_id} differs from the one the state reader returned", RESTORE_HINT
            )
        old_log.clear()
        log, tokens = ShardLog(segments, new_plan.digest), set[str]()
        for frame in frames:
            for stream, batch, content in zip(frame["stream"], frame["batch"], frame["content"], strict=True):
                if isinstance(stream, str):
                    log.append(new_plan.catalog[stream], from_ipc(content), int(batch))
                elif content is not None:
                    tokens.add(bytes(content).decode())
        if shard_id in self.shards_to_read and tokens != {token}:
            raise StateError(f"the log of shard id {shard_id} was not read completely", "reshard again")
        if shard_id in self.manifests:
            manifest = ShardManifest.from_json(self.manifests[shard_id].encode(), new_plan.digest)
            manifest.segments, manifest.next_segment = log.manifest.segments, log.manifest.next_segment
            log.manifest = manifest
            log.save()
        return sum(segment.rows for segment in log.manifest.segments)


def _repartitioned_rows(shard_id: int, stream: str | None, batch: int, content: bytes) -> pa.RecordBatch:
    return pa.record_batch([[shard_id], [stream], [batch], [content]], schema=REPARTITIONED_SCHEMA)


def first_copies(group: ShardGroupPlan, cell: int, stream: str, table: pa.Table) -> np.ndarray:
    """Return a mask of the tuples of a cell that have no copy in an earlier cell."""
    from dovetail.spark.worker.router import cells_of  # noqa: PLC0415 - it loads the engine

    if any(None in route for route in group.routes[stream]):
        # Rows that are spread by content may have more columns by now, so their cells cannot be computed again.
        return np.ones(table.num_rows, np.bool_)
    cells, rows = cells_of(group, stream, table)
    if np.count_nonzero(cells == cell) != table.num_rows:
        raise StateError(f"tuples of stream {stream!r} are stored in the wrong shard {group.first_shard + cell}")
    first = np.zeros(table.num_rows, np.int64)
    # Copies of a row are in the order of their cells, and the last assignment wins.
    first[rows[::-1]] = cells[::-1]
    return np.equal(first, cell)


def total_progress(manifests: Iterable[ShardManifest]) -> dict[str, dict[str, Any]]:
    """Return the latest progress of each stream, with the counters of all shards added up."""
    total: dict[str, dict[str, Any]] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest.next_batch):
        for stream, progress in manifest.progress.items():
            total[stream] = {**progress, **add_counters(total.get(stream, ZERO_COUNTERS), progress)}
    return total


def _latest(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the latest time of each stream."""
    latest: dict[str, int] = {}
    for times_by_stream in times:
        latest |= {stream: max(time, latest.get(stream, time)) for stream, time in times_by_stream.items()}
    return latest


class RepartitionProcessor(StatefulProcessor):
    """The processor of the one batch without input that replaces the state of all shards."""

    def __init__(self, plan: RepartitionPlan) -> None:
        self._plan = plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = segment_map(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd  # noqa: PLC0415 - workers have it loaded

        yield pd.DataFrame([(key[0], self._plan.replace_state(key[0], rows, self._segments))], columns=COUNTS.names)

    def close(self) -> None:
        pass
