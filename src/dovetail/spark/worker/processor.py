"""Join one batch of one shard: what the second callback does.

It stands between Spark's state store and the engine.

An attempt reads the manifest, acquires the shared-memory arrays of its token or rebuilds them from the log, joins the batch, appends
its tuples to the log, publishes the arrays under a new token, and writes that token into the manifest. Spark commits the state only if
the task succeeds; until then no committed state names the new token, so a failed or repeated attempt changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dovetail._display import iso_time
from dovetail._typing import Int64Array
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.measure import count_last_batch, measure
from dovetail.engine.persist.mapped import read_mapped, write_mapped
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding.serialize import numbers_kept
from dovetail.engine.storage.arena import MappedArena
from dovetail.engine.time.progress import LATEST
from dovetail.errors import StateError
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.plan.execution import ExecutionPlan
from dovetail.schema import NUMBER_COLUMN, StreamSchema
from dovetail.spark.checkpoint.plan_log import current_batch, plan_for
from dovetail.spark.driver.layout import WorkerPlan
from dovetail.spark.sinks.stage import Stage
from dovetail.spark.state.log import (
    RESTORE_HINT,
    ZERO_COUNTERS,
    SegmentMap,
    ShardLog,
    add_counters,
    drop_older,
    event_times,
    select_numbers,
)
from dovetail.spark.state.shared_memory import SharedMemoryShard, shared_memory_root, translate_disk_full
from dovetail.spark.wire import DROPPED, DROPPED_ID, ResultKind, ResultRow
from dovetail.spark.worker.drop_log import DropLog
from dovetail.spark.worker.memory import release_memory
from dovetail.spark.worker.output import ShardOutput
from dovetail.spark.worker.shard_input import ShardInput, drop_late

SLICE_ROWS = 1 << 15
"""Tuples that are joined at a time: a micro-batch may span many windows, and early slices expire while it runs."""
SAMPLE_STEP = 16
"""One event time in this many is sampled to choose the bounds of slices."""


def join_rows(
    plans: Sequence[WorkerPlan],
    shard: int,
    rows: Iterable[pd.DataFrame],
    segments: SegmentMap,
    run_id: str,
    stages: Mapping[int, Stage],
    *,
    returns_dropped: bool = False,
) -> pd.DataFrame:
    """Join a micro-batch of a shard by the plan that applies to it.

    Results of queries in `stages` go to files. `returns_dropped`: dropped tuples are among the results.
    """
    batch_id = current_batch(run_id)
    plan = plan_for(plans, batch_id)
    log = ShardLog(segments, plan.digest, plan.catalog)
    memory = SharedMemoryShard(shared_memory_root(run_id), shard)
    shard_input = ShardInput.read(rows)
    result_rows: list[ResultRow] = []
    if shard not in plan.shard_list:
        retire(log, memory)
        metrics: dict[str, Any] = {"shard": shard, "rebuilt": False, "retired": True}
    else:
        attempt = ShardAttempt(plan, shard, log, memory, batch_id, plans)
        release_memory()
        attempt.drops = DropLog(shard) if returns_dropped else None
        query_ids = {**plan.queries, DROPPED: DROPPED_ID}
        with translate_disk_full(), ShardOutput(query_ids, stages, shard, batch_id) as output:
            metrics = attempt.join(shard_input, output.add)
            for table in attempt.drops.pieces() if attempt.drops is not None else ():
                output.add({DROPPED: table})
        attempt.log.save()
        release_memory()
        result_rows = output.rows
    return pd.DataFrame([*result_rows, ResultRow(shard, 0, ResultKind.METRICS, 0, json.dumps(metrics).encode())])


def retire(log: ShardLog, memory: SharedMemoryShard) -> None:
    """Remove all state of a shard that no query uses any more."""
    log.clear()
    if (work := memory.acquire(log.manifest.token)) is not None:
        memory.discard(work)


class ShardAttempt:
    """One attempt at one batch of one shard."""

    def __init__(
        self,
        plan: WorkerPlan,
        shard: int,
        log: ShardLog,
        memory: SharedMemoryShard,
        batch_id: int | None = None,
        earlier_plans: Sequence[WorkerPlan] = (),
    ) -> None:
        """Prepare to run `plan` for a batch, after `earlier_plans`; `batch_id` is None outside Spark."""
        self._plan = plan
        self._shard = shard
        self.log = log
        self._memory = memory
        self._batch_id = log.manifest.next_batch if batch_id is None else batch_id
        self._plans_by_epoch: dict[int | None, WorkerPlan] = {other.epoch: other for other in (*earlier_plans, plan)}
        self._last_batch = log.manifest.next_batch - 1 if log.manifest.token is not None else None
        """The last batch in the shard's state; None if the state is empty."""
        self.drops: DropLog | None = None
        """Collects dropped tuples, if they are wanted."""
        self._check_epoch()
        log.is_numbered = plan.config.shedding is not None
        if not log.is_numbered and (content := log.read_shedder()) is not None:
            log.stop_shedding(plan.catalog, numbers_kept(content))
        if log.manifest.token is None and not log.manifest.progress:
            log.manifest.progress = {name: {**progress, **ZERO_COUNTERS} for name, progress in plan.progress.items()}

    def _check_epoch(self) -> None:
        """Raise `StateError` unless the attempt that completed the last batch wrote the state."""
        last, epoch = self._last_batch, self.log.manifest.epoch
        if last is None:
            return
        if last >= self._batch_id:
            raise StateError(
                f"shard {self._shard} cannot run batch {self._batch_id}: its state already contains batch {last}",
                RESTORE_HINT,
            )
        committed = self._plan.epoch_of(last)
        if None not in (epoch, committed) and epoch != committed:
            raise StateError(
                f"shard {self._shard}: epoch {epoch} wrote its state of batch {last}, but epoch {committed} completed that batch; "
                "the state store kept an earlier attempt",
                RESTORE_HINT,
            )

    def _inherit_counters(self, engine: ShardEngine) -> None:
        """Add the counters of retired shards to the first shard, once: in the first batch of the plan."""
        if self._shard == self._plan.shard_list[0] and self._batch_id == self._plan.first_batch:
            for stream, counted in self._plan.inherited.items():
                progress = engine.progress[stream]
                progress.restore({**progress.to_json(), **add_counters(progress.to_json(), counted)})

    def join(self, shard_input: ShardInput, emit: Callable[[dict[str, pa.Table]], None]) -> dict[str, Any]:
        """Join a batch, pass its results to `emit`, and return the shard's metrics."""
        old_token = self.log.manifest.token
        token = uuid.uuid4().hex
        work, engine = self._attach()
        is_attached = engine is not None
        work = work or self._memory.create()
        try:
            engine = engine or self._rebuild(work)
            engine.relate_streams(set(join) for join in self._plan.joins)
            engine.batches = self.log.manifest.next_batch = self._batch_id
            self._inherit_counters(engine)
            self._push(engine, shard_input, emit)
            shedder_state = write_mapped(engine, token)
        except BaseException:
            self._memory.discard(work)
            raise
        if shedder_state is not None:
            self.log.save_shedder(shedder_state)
        manifest = self.log.manifest
        manifest.token, manifest.epoch = token, self._plan.epoch
        self._memory.publish(work, token)
        metrics: dict[str, Any] = {
            "shard": self._shard,
            "rebuilt": old_token is not None and not is_attached,
            "log_bytes": sum(segment.size for segment in manifest.segments)
            + (manifest.shedding.packed if manifest.shedding else 0),
            **measure(engine).to_json(),
            "last_batch": self._last_batch,
            "batch": count_last_batch(engine),
            "times": {
                name: {"max_event_time": iso_time(progress.max_event_time), "watermark": iso_time(progress.watermark)}
                for name, progress in engine.progress.streams.items()
                if progress.max_event_time > LONG_AGO
            },
        }
        if manifest.backfill_from:
            metrics["backfill_from"] = manifest.backfill_from
        if self._shard == self._plan.shard_list[0]:
            metrics["progress"] = manifest.progress
        return metrics

    def _attach(self) -> tuple[Path | None, ShardEngine | None]:
        """Open the arrays of the state's token, unless they are elsewhere or damaged: the log has all tuples."""
        token, plan = self.log.manifest.token, self._plan.plan_of(self._shard)
        work = self._memory.acquire(token)
        if work is None or token is None:
            return None, None
        previous_plan = self._plans_by_epoch.get(self.log.manifest.epoch)
        try:
            if previous_plan is None or previous_plan.streams != self._plan.streams or self._pending_backfills(plan):
                raise StateError("the arrays lack tuples or columns that the plan needs")  # noqa: TRY301
            engine = read_mapped(work, token, previous_plan.plan_of(self._shard), Replanner(self._plan.config))
            self._watch_drops(engine)
            self._check_matches_log(engine)
            if previous_plan is not self._plan:
                engine.adopt(plan.with_orders_of(engine.plan))
        except StateError:
            self._memory.discard(work)
            return None, None
        return work, engine

    def _watch_drops(self, engine: ShardEngine) -> None:
        if self.drops is not None:
            self.drops.watch(engine)

    def _check_matches_log(self, engine: ShardEngine) -> None:
        """Raise `StateError` if the arrays have another configuration or another batch's state than the log."""
        if engine.config != self._plan.config:
            raise StateError(f"the arrays have the configuration {engine.config}")
        progress = {name: engine.progress[name].to_json() for name in engine.streams}
        if json.dumps(progress, sort_keys=True) != json.dumps(self.log.manifest.progress, sort_keys=True):
            raise StateError("the arrays have other event times than the log")
        if engine.joined.expiry.kept_from != self.log.manifest.kept_from:
            raise StateError("the arrays have dropped other tuples than the log")
        if engine.batches != self.log.manifest.next_batch:
            raise StateError(f"the arrays hold {engine.batches} batches, the log {self.log.manifest.next_batch}")

    def _rebuild(self, work: Path) -> ShardEngine:
        engine = ShardEngine(self._plan.config, MappedArena(work), Replanner(self._plan.config))
        for stream in self._plan.streams:
            engine.add_stream(stream)
        plan, shedder_state = self._plan.plan_of(self._shard), self.log.read_shedder() if self.log.is_numbered else None
        # The shedder's state is valid under the plan that it was gathered under: restore it there, then adopt the new plan.
        can_restore = shedder_state is not None and not self._pending_backfills(plan)
        first_plan = self._plan_of_state if can_restore else self._plan
        engine.adopt(first_plan.plan_of(self._shard))
        self._load(engine, shedder_state)
        self._watch_drops(engine)
        if first_plan is not self._plan:
            engine.adopt(plan.with_orders_of(engine.plan))
        return engine

    @property
    def _plan_of_state(self) -> WorkerPlan:
        """The plan that wrote the state, if it is available and reads the same tuples; else the plan to run."""
        previous_plan = self._plans_by_epoch.get(self.log.manifest.epoch, self._plan)
        is_alike = previous_plan.streams == self._plan.streams and previous_plan.config == self._plan.config
        return previous_plan if is_alike and self._shard in previous_plan.shard_list else self._plan

    def _load(self, engine: ShardEngine, shedder_state: pa.Buffer | None) -> None:
        """Load the log into an engine; if tuples have been shed, only those that were held."""
        manifest = self.log.manifest
        for start in self._pending_backfills(engine.plan):
            manifest.backfill_from[str(start)] = dict(manifest.kept_from)
        engine.joined.expiry.kept_from.update(manifest.kept_from)
        backfill_from = {int(start): times for start, times in manifest.backfill_from.items()}
        held: Iterable[tuple[int, dict[str, pa.Table]]] = self.log.read_all(self._boundaries(engine))
        if self.log.is_numbered:
            numbers = None if shedder_state is None else numbers_kept(shedder_state)
            held = ((batch, self._in_windows(tables, numbers)) for batch, tables in held)
        engine.load(held, manifest.progress, manifest.next_batch, backfill_from, shedder_state)

    def _in_windows(
        self, tables: Mapping[str, pa.Table], numbers: Mapping[str, Int64Array] | None
    ) -> dict[str, pa.Table]:
        """Return the tuples that windows hold, in order of arrival; others might exceed the memory cap.

        Once tuples have been shed, these are exactly those with `numbers`. Some may have expired: out of order, a tuple stays
        until those that arrived before it have expired, too. It counts towards the cap, so that decisions depend on it.
        """
        held = {}
        for stream, table in tables.items():
            if numbers is not None and stream in numbers:
                tuples = select_numbers(table, numbers[stream])
            else:
                oldest = self.log.manifest.kept_from.get(stream, LONG_AGO)
                tuples = drop_older(table, self._plan.catalog[stream].event_time, oldest)
            held[stream] = tuples.sort_by(NUMBER_COLUMN)
        return held

    def _boundaries(self, engine: ShardEngine) -> list[int]:
        """Return the batches that a segment must not span: query starts and first batches of added columns."""
        return sorted({*engine.plan.start_batches, *self._plan.segment_boundaries})

    def _pending_backfills(self, plan: ExecutionPlan) -> list[int]:
        """Return the start batches of backfilled queries for which the manifest has no event times yet."""
        starts = {step.first_batch for step in plan.steps if step.backfill}
        return sorted(batch for batch in starts if str(batch) not in self.log.manifest.backfill_from)

    def _push(self, engine: ShardEngine, shard_input: ShardInput, emit: Callable[[dict[str, pa.Table]], None]) -> None:
        """Join a batch, and add to the log the tuples that windows need afterwards."""
        tables, on_late = {}, None if self.drops is None else self.drops.add_late
        for stream_index, schema in enumerate(self._plan.streams):
            progress = engine.progress[schema.name]
            if stream_index in shard_input.tuples:
                pieces = shard_input.tuples[stream_index]
                tables[schema.name] = drop_late(pieces, progress, shard_input.arrivals[stream_index], on_late)
            for encoded in shard_input.unplaced.get(stream_index, ()):
                drop_late([(encoded, None)], progress, shard_input.arrivals[stream_index], on_late)
        shard_input.tuples.clear()
        if self.drops is not None:
            self.drops.add_unusable(self._plan.streams, shard_input.dropped)
        if self.log.is_numbered:
            for name, table in tables.items():
                tables[name] = self.log.number_tuples(name, _in_time_order(table, self._plan.catalog[name]))
        arrivals = {self._plan.streams[index].name: stats for index, stats in shard_input.arrivals.items()}
        max_times = {name: engine.progress[name].max_event_time_after(stats) for name, stats in arrivals.items()}

        def emit_table(query: str, table: pa.Table) -> None:
            emit({query: table})

        *early_slices, (_, last_slice) = split_by_time(tables, self._plan.catalog)
        for end, part in early_slices:
            emit(engine.push(part, None, {}, more_follows=True, results_to=emit_table))
            # The rest of this batch is later than `end`; later batches may be as early as the progress of this whole batch allows.
            reached = {name: min(newest, end + self._plan.catalog[name].lateness) for name, newest in max_times.items()}
            emit(engine.advance(reached, shard_input.now, more_follows=True))
        emit(engine.push(last_slice, shard_input.now, arrivals, results_to=emit_table))
        for schema in self._plan.streams:
            self._update_log(schema, tables.get(schema.name), engine)
            self.log.manifest.progress[schema.name] = engine.progress[schema.name].to_json()
        self.log.manifest.next_batch = engine.batches
        self.log.manifest.kept_from = dict(engine.joined.expiry.kept_from)

    def _update_log(self, schema: StreamSchema, table: pa.Table | None, engine: ShardEngine) -> None:
        """Bring the log in step with a stream's windows; it keeps all recent tuples, for later queries."""
        oldest = engine.oldest_event_time(schema.name)
        if schema.name in engine.joined.windows:
            kept_from = engine.joined.expiry.kept_from.get(schema.name, LONG_AGO)
            oldest = kept_from if oldest is None else min(oldest, kept_from)
        self.log.remove_older(schema.name, oldest)
        if oldest is None:
            return
        shedder, numbers = engine.joined.shedder, None
        if shedder is not None and schema.name in engine.joined.windows:
            numbers = shedder.numbers_kept(schema.name)
        if table is not None:
            recent = drop_older(table, schema.event_time, oldest)
            recent = recent if numbers is None else select_numbers(recent, numbers)
            if recent.num_rows:
                self.log.append(schema, recent, self.log.manifest.next_batch)
        if numbers is not None:
            self.log.rewrite_sparse(schema, numbers)
        self.log.compact(schema, oldest, self._boundaries(engine), numbers)


def _in_time_order(table: pa.Table, schema: StreamSchema) -> pa.Table:
    times = event_times(table, schema.event_time).to_numpy()
    is_sorted = bool((times[1:] >= times[:-1]).all())
    return table if is_sorted else table.take(pa.array(np.argsort(times, kind="stable")))


def split_by_time(
    tables: dict[str, pa.Table], streams: Mapping[str, StreamSchema]
) -> list[tuple[int, dict[str, pa.Table]]]:
    """Split a batch into slices of event time, each with its end; sort `tables` if there are several."""
    rows = sum(table.num_rows for table in tables.values())
    count = -(-rows // SLICE_ROWS)
    if count <= 1:
        return [(LATEST, dict(tables))]
    for name, table in tables.items():
        tables[name] = _in_time_order(table, streams[name])
    times = {name: event_times(table, streams[name].event_time).to_numpy() for name, table in tables.items()}
    sample = np.sort(np.concatenate([stream_times[::SAMPLE_STEP] for stream_times in times.values()]))
    ends = np.unique(sample[len(sample) * np.arange(1, count) // count])
    parts: list[tuple[int, dict[str, pa.Table]]] = [(int(end), {}) for end in (*ends, LATEST)]
    for name, stream_times in times.items():
        bounds = [0, *np.searchsorted(stream_times, ends, side="right"), len(stream_times)]
        for (_, part), (first, stop) in zip(parts, pairwise(bounds), strict=True):
            if stop > first:
                part[name] = tables[name].slice(first, stop - first)
    return parts
