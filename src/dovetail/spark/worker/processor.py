"""The second of the two callbacks: a thin shell that gives each batch of a shard to its engine and keeps the shard's log.

An attempt reads the manifest, takes over the live arrays that belong to it or rebuilds them from the log, joins the batch, writes log
and manifest under a new token, and gives the arrays back under that token. Spark commits the state only if the task succeeds; until
then the new token is nobody's, so a failed or repeated attempt changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.codec import from_json
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.measure import measure
from dovetail.engine.persist.mapped import read_mapped, write_mapped
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding.stored import numbers_kept, restore
from dovetail.engine.storage.arena import MappedArena
from dovetail.engine.time.progress import LATEST, Observed, StreamProgress
from dovetail.errors import StateError
from dovetail.optimizer.adapt.reorder import Replanner
from dovetail.plan.execution import ExecutionPlan
from dovetail.schema import NUMBER, StreamSchema
from dovetail.spark.checkpoint.plan_log import current_batch, plan_for
from dovetail.spark.driver.layout import WorkerPlan
from dovetail.spark.sinks.staging import Staging
from dovetail.spark.state.log import RESTORE, UNCOUNTED, Log, SegmentMap, add_counters, micros, only, since
from dovetail.spark.state.shared_memory import SharedMemoryShard, explaining_full_disk, shared_memory_root
from dovetail.spark.wire import Report, ResultKind, ResultRow, RoutedKind, from_ipc, received
from dovetail.spark.worker.memory import give_back
from dovetail.spark.worker.output import ShardOutput

SLICE_ROWS = 1 << 15
"""Tuples that are joined at a time: a micro-batch may span many windows, of which only the last are needed in the end."""
SAMPLED = 16
"""One tuple in so many says where a batch is cut into slices."""


def join_rows(
    plans: Sequence[WorkerPlan],
    shard: int,
    rows: Iterable[pd.DataFrame],
    segments: SegmentMap,
    run_id: str,
    staged: Mapping[int, Staging],
) -> pd.DataFrame:
    """Join a micro-batch of a shard by the last of some plans that holds for it; results of the queries in `staged` go to files."""
    number = current_batch()
    plan = plan_for(plans, number)
    log = Log(segments, plan.digest, plan.catalog)
    live = SharedMemoryShard(shared_memory_root(run_id), shard)
    batch = ShardInput.read(rows)
    if shard not in plan.shards:
        retire(log, live)
        gone = {"shard": shard, "rebuilt": False, "retired": True}
        return pd.DataFrame([ResultRow(shard, 0, ResultKind.METRICS, 0, json.dumps(gone).encode())])
    worker = Worker(plan, shard, log, live, number, plans)
    give_back()
    with explaining_full_disk(), ShardOutput(plan.queries, staged, shard) as output:
        metrics = worker.join(batch, output.add)
    worker.log.save()
    give_back()
    reported = ResultRow(shard, 0, ResultKind.METRICS, 0, json.dumps(metrics).encode())
    return pd.DataFrame([*output.rows, reported])


def retire(log: Log, live: SharedMemoryShard) -> None:
    """Give back all that a shard holds that has no more to do."""
    log.clear()
    if (left := live.take(log.manifest.token)) is not None:
        live.drop(left)


@dataclass
class ShardInput:
    """One shard's part of a micro-batch."""

    segments: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)
    """By stream: tuples as bytes, and how many leading ones only this shard counts."""
    unplaced: dict[int, list[bytes]] = field(default_factory=dict)
    """By stream: event times of tuples that are in no window."""
    observed: dict[int, Observed] = field(default_factory=dict)
    now: int | None = None

    @classmethod
    def read(cls, frames: Iterable[pd.DataFrame]) -> ShardInput:
        """Take in the rows of the cut."""
        found = cls()
        for stream, kind, firsts, content in received(frames):
            match kind:
                case RoutedKind.TUPLES:
                    found.segments.setdefault(stream, []).append((content, firsts))
                case RoutedKind.UNPLACED:
                    found.unplaced.setdefault(stream, []).append(content)
                case RoutedKind.REPORT:
                    found._observe(stream, from_json(Report, json.loads(content)))
        for segments in found.segments.values():
            segments.sort()  # tasks finish in any order; a replay must see the same one
        return found

    def _observe(self, stream: int, report: Report) -> None:
        seen = Observed(report.arrived, ahead=report.ahead, refused=report.refused, largest=report.largest)
        seen.heads = dict(report.heads)
        self.observed.setdefault(stream, Observed()).add(seen)
        if report.now is not None:
            self.now = max(report.now, self.now or report.now)


class Worker:
    """One attempt at one batch of one shard."""

    def __init__(
        self,
        plan: WorkerPlan,
        shard: int,
        log: Log,
        live: SharedMemoryShard,
        batch: int | None = None,
        known: Sequence[WorkerPlan] = (),
    ) -> None:
        """Run a batch by `plan`; `batch` is its number, if Spark says it, and `known` are plans that ran before."""
        self._plan = plan
        self._shard = shard
        self.log = log
        self._live = live
        self._batch = log.manifest.batches if batch is None else batch
        self._known: dict[int | None, WorkerPlan] = {each.epoch: each for each in (*known, plan)}
        self._continues = log.manifest.batches - 1 if log.manifest.token is not None else None
        """The last batch that the shard's state has seen; None if it has seen none."""
        self._check_epoch()
        log.numbered = plan.config.shedding is not None
        if not log.numbered and (content := log.shedding()) is not None:
            log.end_shedding(plan.catalog, numbers_kept(content))
        if log.manifest.token is None and not log.manifest.progress:
            log.manifest.progress = {name: {**found, **UNCOUNTED} for name, found in plan.progress.items()}

    def _check_epoch(self) -> None:
        """Raise `StateError` unless the attempt that completed its last batch wrote the state."""
        last, epoch = self._continues, self.log.manifest.epoch
        if last is None:
            return
        if last >= self._batch:
            raise StateError(
                f"shard {self._shard} cannot run batch {self._batch}: its state already contains batch {last}", RESTORE
            )
        committed = self._plan.epoch_of(last)
        if None not in (epoch, committed) and epoch != committed:
            raise StateError(
                f"shard {self._shard}: epoch {epoch} wrote its state of batch {last}, but epoch {committed} completed that batch; "
                "the state store kept an earlier attempt",
                RESTORE,
            )

    def _inherit_counters(self, engine: ShardEngine) -> None:
        """Add the counters of the shards that retire in this batch."""
        if self._shard == self._plan.shards[0] and self._batch == self._plan.since:
            for stream, counted in self._plan.inherited.items():
                progress = engine.progress[stream]
                progress.restore({**progress.to_json(), **add_counters(progress.to_json(), counted)})

    def join(self, batch: ShardInput, take: Callable[[dict[str, pa.Table]], None]) -> dict[str, Any]:
        """Join a batch; results go to `take`, what the shard reports is returned."""
        before = self.log.manifest.token
        token = uuid.uuid4().hex
        work, engine = self._attached()
        found = engine is not None
        work = work or self._live.new()
        try:
            engine = engine or self._rebuilt(work)
            engine.relate(set(join) for join in self._plan.joins)
            engine.batches = self.log.manifest.batches = self._batch
            self._inherit_counters(engine)
            self._push(engine, batch, take)
            known = write_mapped(engine, token)
        except BaseException:
            self._live.drop(work)
            raise
        if known is not None:
            self.log.keep_shedding(known)
        self.log.manifest.token, self.log.manifest.epoch = token, self._plan.epoch
        self._live.give(work, token)
        stored = self.log.manifest.shedding
        log_bytes = sum(segment.size for segment in self.log.manifest.segments) + (stored.packed if stored else 0)
        rebuilt = before is not None and not found
        more: dict[str, Any] = {"reached": self.log.manifest.reach} if self.log.manifest.reach else {}
        more["continues"] = self._continues
        if self._shard == self._plan.shards[0]:
            more["progress"] = self.log.manifest.progress
        return {"shard": self._shard, "rebuilt": rebuilt, "log_bytes": log_bytes, **measure(engine).to_json(), **more}

    def _attached(self) -> tuple[Path | None, ShardEngine | None]:
        """The live arrays of the state's token; nothing when they are not here or damaged, for the log has it all."""
        token, plan = self.log.manifest.token, self._plan.plan_of(self._shard)
        work = self._live.take(token)
        if work is None or token is None:
            return None, None
        before = self._known.get(self.log.manifest.epoch)
        try:
            if before is None or before.streams != self._plan.streams or self._unreached(plan):
                raise StateError("the live arrays lack what the plan needs, and the log has it")  # noqa: TRY301
            engine = read_mapped(work, token, before.plan_of(self._shard), Replanner(self._plan.config))
            self._compare(engine)
            if before is not self._plan:
                engine.adopt(plan.in_orders_of(engine.plan))
        except StateError:
            self._live.drop(work)
            return None, None
        return work, engine

    def _compare(self, engine: ShardEngine) -> None:
        """Raise `StateError` if arrays are run otherwise than they are to be, or are not of the same moment as the log."""
        if engine.config != self._plan.config:
            raise StateError(f"the live arrays are those of {engine.config}")
        progress = {name: engine.progress[name].to_json() for name in engine.streams}
        if json.dumps(progress, sort_keys=True) != json.dumps(self.log.manifest.progress, sort_keys=True):
            raise StateError("the live arrays have come to other event times than the log")
        if engine.joined.expiry.kept_from != self.log.manifest.kept_from:
            raise StateError("the live arrays have let go of other tuples than the log")
        if engine.batches != self.log.manifest.batches:
            raise StateError(
                f"the live arrays are of {engine.batches} batches, the log is of {self.log.manifest.batches}"
            )

    def _rebuilt(self, work: Path) -> ShardEngine:
        engine = ShardEngine(self._plan.config, MappedArena(work), Replanner(self._plan.config))
        for stream in self._plan.streams:
            engine.add_stream(stream)
        own, known = self._plan.plan_of(self._shard), self.log.shedding() if self.log.numbered else None
        # What is known for shedding goes on under the plan that it was found under, as live arrays do, and then under another.
        before = self._before if known is not None and not self._unreached(own) else self._plan
        engine.adopt(before.plan_of(self._shard))
        self._load(engine, None if known is None else numbers_kept(known))
        if known is not None and engine.joined.shedder is not None:
            restore(engine.joined.shedder, known, strict=False)
        if before is not self._plan:
            engine.adopt(own.in_orders_of(engine.plan))
        return engine

    @property
    def _before(self) -> WorkerPlan:
        """The plan that the shard has run last, if it is known and tuples have been the same; else the one to run."""
        before = self._known.get(self.log.manifest.epoch, self._plan)
        same = before.streams == self._plan.streams and before.config == self._plan.config
        return before if same and self._shard in before.shards else self._plan

    def _load(self, engine: ShardEngine, kept: Mapping[str, Int64Array] | None) -> None:
        """Fill an engine with what the log holds; if tuples have been shed, of those that are `kept`, by number."""
        manifest = self.log.manifest
        for came in self._unreached(engine.plan):
            manifest.reach[str(came)] = dict(manifest.kept_from)
        engine.joined.expiry.kept_from.update(manifest.kept_from)
        reach = {int(batch): times for batch, times in manifest.reach.items()}
        held: Iterable[tuple[int, dict[str, pa.Table]]] = self.log.held(self._eras(engine))
        if self.log.numbered:
            held = ((came, self._in_windows(tables, kept)) for came, tables in held)
        engine.load(held, manifest.progress, manifest.batches, reach)

    def _in_windows(self, tables: Mapping[str, pa.Table], kept: Mapping[str, Int64Array] | None) -> dict[str, pa.Table]:
        """Tuples in the order in which they came; not those that windows have let go of, for which there may be no room."""
        found = {}
        for stream, table in tables.items():
            oldest = self.log.manifest.kept_from.get(stream, LONG_AGO)
            left = since(table, self._plan.catalog[stream].event_time, oldest)
            found[stream] = (left if kept is None or stream not in kept else only(left, kept[stream])).sort_by(NUMBER)
        return found

    def _eras(self, engine: ShardEngine) -> list[int]:
        """The batches at which something began: tuples from before stay apart from those that came then."""
        return sorted({*engine.plan.begins, *self._plan.widened})

    def _unreached(self, plan: ExecutionPlan) -> list[int]:
        """The batches that queries came with of which it is not settled yet what they see from before."""
        came = {step.since for step in plan.steps if step.backfill}
        return sorted(batch for batch in came if str(batch) not in self.log.manifest.reach)

    def _push(self, engine: ShardEngine, batch: ShardInput, take: Callable[[dict[str, pa.Table]], None]) -> None:
        """Join a batch, and keep in the log those of its tuples that windows need afterwards."""
        tables = {}
        for number, schema in enumerate(self._plan.streams):
            progress = engine.progress[schema.name]
            if number in batch.segments:
                tables[schema.name] = _on_time(batch.segments[number], progress, batch.observed[number])
            for times in batch.unplaced.get(number, ()):
                _count_late(micros(from_ipc(times), schema.event_time).to_numpy(), progress, batch.observed[number])
        batch.segments.clear()
        if self.log.numbered:
            for name, table in tables.items():
                tables[name] = self.log.number(name, _in_time_order(table, self._plan.catalog[name]))
        observed = {self._plan.streams[number].name: seen for number, seen in batch.observed.items()}
        heads = {name: engine.progress[name].head_after(seen) for name, seen in observed.items()}

        def take_many(query: str, table: pa.Table) -> None:
            take({query: table})

        *early, last = slices(tables, self._plan.catalog)
        for end, part in early:
            take(engine.push(part, None, {}, more=True, results_to=take_many))
            # The rest of this batch is later than `end`, later batches can be as early as the whole of this one allows.
            reached = {name: min(head, end + self._plan.catalog[name].lateness) for name, head in heads.items()}
            take(engine.advance(reached, batch.now, more=True))
        take(engine.push(last[1], batch.now, observed, results_to=take_many))
        for schema in self._plan.streams:
            self._keep(schema, tables.get(schema.name), engine)
            self.log.manifest.progress[schema.name] = engine.progress[schema.name].to_json()
        self.log.manifest.batches = engine.batches
        self.log.manifest.kept_from = dict(engine.joined.expiry.kept_from)

    def _keep(self, schema: StreamSchema, table: pa.Table | None, engine: ShardEngine) -> None:
        """Let the log follow a stream's windows: all that came from then on, seen or not, for queries that come later."""
        oldest = engine.oldest(schema.name)
        if schema.name in engine.joined.windows:
            kept_from = engine.joined.expiry.kept_from.get(schema.name, LONG_AGO)
            oldest = kept_from if oldest is None else min(oldest, kept_from)
        self.log.forget(schema.name, oldest)
        if oldest is None:
            return
        shedder, numbers = engine.joined.shedder, None
        if shedder is not None and schema.name in engine.joined.windows:
            numbers = shedder.numbers_kept(schema.name)
        found = None if table is None else since(table, schema.event_time, oldest)
        if found is not None and numbers is not None:
            found = only(found, numbers)
        if found is not None and found.num_rows:
            self.log.append(schema, found, self.log.manifest.batches)
        if numbers is not None:
            self.log.thin_out(schema, numbers)
        self.log.compact(schema, oldest, self._eras(engine), numbers)


def _in_time_order(table: pa.Table, schema: StreamSchema) -> pa.Table:
    times = micros(table, schema.event_time).to_numpy()
    in_order = bool((times[1:] >= times[:-1]).all())
    return table if in_order else table.take(pa.array(np.argsort(times, kind="stable")))


def _on_time(segments: list[tuple[bytes, int]], progress: StreamProgress, seen: Observed) -> pa.Table:
    """The tuples that are not late; the others are counted in `seen`, if this shard is the one that counts them.

    Segments follow each other in event time, so that those of a stream in order need no sorting.
    """
    kept = []
    for content, firsts in segments:
        table = from_ipc(content)
        times = micros(table, progress.schema.event_time).to_numpy()
        first = int(times.min(initial=LATEST))
        if first < progress.watermark:
            _count_late(times[:firsts], progress, seen)
            table = table.filter(pa.array(times >= progress.watermark))
        kept.append((first, table))
    kept.sort(key=itemgetter(0))
    return pa.concat_tables([table for _, table in kept])


def _count_late(times: Int64Array, progress: StreamProgress, seen: Observed) -> None:
    late = times[times < progress.watermark]
    if len(late):
        seen.late += len(late)
        seen.late_by = max(seen.late_by, progress.head - int(late.min()))


def slices(tables: dict[str, pa.Table], streams: Mapping[str, StreamSchema]) -> list[tuple[int, dict[str, pa.Table]]]:
    """A batch in parts that follow each other in event time, each with the time at which it ends; puts `tables` in that order."""
    rows = sum(table.num_rows for table in tables.values())
    count = -(-rows // SLICE_ROWS)
    if count <= 1:
        return [(LATEST, dict(tables))]
    for name, table in tables.items():
        tables[name] = _in_time_order(table, streams[name])
    times = {name: micros(table, streams[name].event_time).to_numpy() for name, table in tables.items()}
    sample = np.sort(np.concatenate([own[::SAMPLED] for own in times.values()]))
    ends = np.unique(sample[len(sample) * np.arange(1, count) // count])
    parts: list[tuple[int, dict[str, pa.Table]]] = [(int(end), {}) for end in (*ends, LATEST)]
    for name, own in times.items():
        cuts = [0, *np.searchsorted(own, ends, side="right"), len(own)]
        for (_, part), (first, stop) in zip(parts, pairwise(cuts), strict=True):
            if stop > first:
                part[name] = tables[name].slice(first, stop - first)
    return parts
