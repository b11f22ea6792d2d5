"""ShardEngine: runs a plan in one shard.

Arrow batches and progress come in, result batches go out; there is no Spark and no wall clock.

A push first checks tables, drops late tuples and evaluates the expressions that windows keep, so an error in the data leaves the
engine unchanged. (Windows of count-window queries evaluate theirs when tuples settle.) Then event time advances, tuples join, and
results are gathered. Tuples expire last, when no result needs them any more. `dovetail.engine.change.savepoint` describes how an
interrupted change is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.change.adopt import Positions
from dovetail.engine.change.savepoint import IRREVERSIBLE, CountsBefore, Savepoint, rollback, savepoint
from dovetail.engine.group import JoinGroup
from dovetail.engine.join.gather import Collector
from dovetail.engine.join.step import JoinRun, due_for_joint_replan
from dovetail.engine.join.watch import Replan
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.shedding.serialize import restore
from dovetail.engine.storage.append import NewRows
from dovetail.engine.storage.arena import Arena, HeapArena, MappedArena
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.count_windows import CountWindowGroup
from dovetail.engine.time.intake import BackfillStarts, Batch, TableReader, accept, in_time_order
from dovetail.engine.time.progress import ArrivalStats, Progress
from dovetail.errors import ConfigError, listed, suggestion
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.steps import JOINED, JoinStep
from dovetail.schema import StreamSchema


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that has passed every check, ready to join."""

    accepted: Mapping[str, Batch]
    """Tuples by stream, in event-time order, without late ones."""
    rows: Mapping[str, NewRows]
    """Rows that the windows of the joined group append, by stream."""
    arrivals: Mapping[str, ArrivalStats]
    now: int | None


class ShardEngine:
    """Joins batches of streams as a plan says."""

    def __init__(self, config: Config | None = None, arena: Arena | None = None, replan: Replan | None = None) -> None:
        self.config = config or Config()
        self.arena = arena or HeapArena()
        self._numbered = self.config.shedding is not None and isinstance(self.arena, MappedArena)
        """Whether tuples carry their numbers in the shard's log: where tuples are shed and arrays outlive the process."""
        self.replan = replan if self.config.adaptive else None
        """Chooses new probe orders while queries run; None keeps the planned ones."""
        self.plan = ExecutionPlan()
        self.streams: dict[str, StreamSchema] = {}
        self.progress = Progress({})
        self._readers: dict[str, TableReader] = {}
        self._related: dict[str, set[str]] = {}
        """Streams that each stream is joined with."""
        self.batches = 0
        self.before_batch: CountsBefore | None = None
        """Counters before the last complete batch; None before the first one."""
        self._before_parts: CountsBefore | None = None
        """The same of a batch that is pushed in parts, until the last one is complete."""
        self.start_time: int | None = None
        """Event time when the engine was created, or of its first tuple."""
        self._arrived_at_start: dict[str, int] = {}
        """Tuples of each stream that had arrived at `start_time`: an engine can continue the counters of another one."""
        self._previous_event_time = LONG_AGO
        """Largest event time before the latest batch."""
        self.earliest_visible: dict[str, dict[str, int]] = {}
        """Earliest event time that a backfilled join sees, by join and source; sources without tuples then are omitted."""
        self.needs_clock = False
        """Whether a stream has `idle_after` or `max_ahead`."""
        self.plan_without_materialized: Callable[[], ExecutionPlan] | None = None
        """Returns a plan for the same queries without materialized joins."""
        self.on_arrivals: Callable[[StreamSchema, ArrivalStats], None] | None = None
        """Receives the arrival counts of each stream in a batch, before the batch changes the engine."""
        self.open_savepoint: Savepoint | None = None
        """Set while a change is under way; if it is set when a call begins, the previous call was interrupted."""
        self.joined = JoinGroup(JOINED, self.streams, self.config, self.arena, numbered=self._numbered)
        self.count_window_groups: dict[str, CountWindowGroup] = {}
        """Groups of queries with count windows, by name."""
        self._collectors: dict[str, Collector] | None = None
        """Cache of `collectors`."""

    def add_stream(self, schema: StreamSchema) -> None:
        self.streams[schema.name] = schema
        self._readers[schema.name] = TableReader(schema, numbered=self._numbered)
        self.needs_clock |= schema.idle_after is not None or schema.max_ahead is not None
        self.progress.streams.update(Progress({schema.name: schema}).streams)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def adopt(self, plan: ExecutionPlan, positions: Positions | None = None) -> None:
        """Replace the plan by any other: other queries, probe orders or materialized joins.

        Queries in both plans continue as if they had always run under the new one; a new query sees the tuples of later
        batches and, with backfill, those that windows hold.
        With `positions` an empty engine attaches to the arrays that another engine left in the arena.
        """
        count_window_groups: dict[str, CountWindowGroup] = {}
        for step in plan.steps:
            if step.group != JOINED and step.group not in count_window_groups:
                count_window_groups[step.group] = self.count_window_groups.get(step.group) or CountWindowGroup(
                    step, self.streams, self.config, self.arena
                )
        dropped = [group for name, group in self.count_window_groups.items() if name not in count_window_groups]
        built = []  # dropped groups get an empty plan, which frees their arrays
        for group in (self.joined, *count_window_groups.values(), *dropped):
            windows = [window for window in plan.windows if window.group == group.name]
            steps = [step for step in plan.steps if step.group == group.name]
            materialized = plan.materialized if group is self.joined else ()
            built.append((group, group.build(windows, materialized, steps, self.batches, positions)))
        if self.open_savepoint is not None and self.open_savepoint is not IRREVERSIBLE:
            # Everything the new plan needs exists: from here on a rollback completes the adoption.
            self.open_savepoint = replace(self.open_savepoint, plan=plan)
        self._collectors = None
        unneeded = [store for group, new in built for store in group.install(new)]
        self.plan, self.count_window_groups, self._collectors = plan, count_window_groups, None
        for group, _ in built:
            group.trim()
        for store in unneeded:
            store.remove()
        backfilled = [step for step in plan.steps if step.backfill]
        self.earliest_visible = {
            step.name: self.earliest_visible.get(step.name)
            or self.group_of(step.consumers[0].query).earliest_visible(step)
            for step in backfilled
        }
        self.relate_streams([{source.stream for source in step.sources} for step in plan.steps if step.consumers])

    def relate_streams(self, joins: Iterable[set[str]]) -> None:
        """Set which streams are joined: by the queries of this engine, or by those of all shards."""
        joins = list(joins)
        self._related = {stream: set().union(*(join for join in joins if stream in join)) for stream in self.streams}

    def group_of(self, name: str) -> JoinGroup:
        return next(group for group in self.groups if name in group.installed.queries)

    @property
    def groups(self) -> list[JoinGroup]:
        return [self.joined, *self.count_window_groups.values()]

    @property
    def runs(self) -> Iterator[JoinRun]:
        return (run for group in self.groups for run in group.runs.values())

    def run_of(self, name: str) -> JoinRun:
        """Return the join that answers a query."""
        return self.group_of(name).installed.queries[name]

    @property
    def collectors(self) -> dict[str, Collector]:
        """Collectors of results, by query."""
        if self._collectors is None:
            self._collectors = {name: collector for run in self.runs for name, collector in run.collectors.items()}
        return self._collectors

    def adapt(self) -> None:
        """Replace probe orders that have become bad, by the counters of joins with enough new tuples."""
        if self.replan is None:
            return
        changed, time = list[JoinStep](), self.max_event_time
        previous = self._previous_event_time
        tau = (time - previous) / 1e6 if LONG_AGO < previous < time else None  # seconds of event time in the batch
        for group in self.groups:
            arrived, group.arrived = group.arrived, 0
            has_waiting, count = False, len(group.runs)
            for run in group.runs.values():
                run.watch.new_tuples += arrived
                if run.watch.is_ready(run.runners, time, run.span, count) and run.watch.read_counters(
                    run.runners, time
                ):
                    if self.replan.can_share_orders and run.sharing:
                        run.watch.skipped_joint_replans += 1
                        has_waiting = True
                    elif (revised := self.replan(run.plan, replace(run.watch.measured, tau=tau))) is not None:
                        changed += run.revise(*revised, group.batches)
            if has_waiting and (joins := due_for_joint_replan(group.runs.values())):
                revisions = self.replan.replan_sharing({run.name: run.sharing_join for run in joins})
                for name, revised in revisions.items():
                    changed += group.runs[name].revise(*revised, group.batches)
        if changed:
            self.adopt(self.plan.with_steps(changed))

    # -- data ---------------------------------------------------------------------------------------------------------------

    def push(
        self,
        tables: Mapping[str, object],
        now: int | None = None,
        observed: Mapping[str, ArrivalStats] | None = None,
        *,
        more_follows: bool = False,
        results_to: Callable[[str, pa.Table], None] | None = None,
    ) -> dict[str, pa.Table]:
        """Join one batch; return the results it completes, one table per query.

        The savepoint stays open: the caller clears it once it holds the results. If the call is interrupted, the caller rolls back
        before it uses the engine again. `dovetail.engine.change.savepoint` has the protocol.

        `observed`: arrivals of each stream over all shards; an engine that runs alone counts its own. `more_follows`: this is a
        part of a batch, and not the last one. `results_to` receives large results during the join; the others are returned.
        """
        for group in self.groups:
            group.results_to = results_to
        batch = self._prepare(tables, now, observed)
        with self.savepoint(until_delivered=True):
            parts = list(self._join(batch))
            results = self._concat_parts(parts)
            self._complete(more_follows=more_follows)
        return results

    def push_pieces(
        self, tables: Mapping[str, object], now: int | None, piece_rows: int
    ) -> Iterator[dict[str, list[pa.Table]]]:
        """Join one batch; yield the results of about `piece_rows` tuples at a time.

        Everything that can fail happens before the first piece. The batch is complete when the iterator is exhausted.
        """
        batch = self._prepare(tables, now)
        with self.savepoint(until_delivered=True):
            yield from self._join(batch, piece_rows)
            self._complete()

    def advance(
        self, times: Mapping[str, int], now: int | None = None, *, more_follows: bool = False
    ) -> dict[str, pa.Table]:
        """Advance the event time of streams without tuples; return the results that this completes.

        `more_follows`: see `push`.
        """
        with self.savepoint(until_delivered=True):
            for stream, time in times.items():
                self.progress[stream].advance(time, now)
            results = self._concat_parts(
                [group.join_settled(self.progress) for group in self.count_window_groups.values()]
            )
            self._complete(more_follows=more_follows)
        return results

    def _prepare(
        self, tables: Mapping[str, object], now: int | None, observed: Mapping[str, ArrivalStats] | None = None
    ) -> PreparedBatch:
        """Read and check a batch, and evaluate what windows keep of it: everything that can fail.

        The engine changes only if the batch needs room that materialized joins take up.
        """
        unknown = [stream for stream in tables if stream not in self.streams]
        if unknown:
            raise ConfigError(
                f"push got tuples for {listed(unknown)}; declared streams: {listed(self.streams)}",
                suggestion(unknown[0], self.streams, "declare a stream before pushing to it"),
            )
        batches = {
            stream: accept(reader.read(tables[stream]), self.progress[stream], now)
            for stream, reader in self._readers.items()
            if stream in tables
        }
        accepted = {stream: arrived.batch for stream, arrived in batches.items()}
        arrivals = {stream: arrived.stats for stream, arrived in batches.items()}
        self._make_room(accepted)
        rows = self.joined.prepare(accepted)
        if self.on_arrivals is not None:
            for stream, stats in arrivals.items():
                self.on_arrivals(self.streams[stream], stats)
        return PreparedBatch(accepted, rows, arrivals if observed is None else observed, now)

    def _make_room(self, batches: Mapping[str, Batch]) -> None:
        """Adopt a plan without materialized joins if windows may be full; no match outlives a shed tuple."""
        shedder = self.joined.shedder
        if shedder is None or not self.plan.materialized or self.plan_without_materialized is None:
            return
        if shedder.may_reach_cap({stream: len(batch) for stream, batch in batches.items()}):
            with self.savepoint():
                self.adopt(self.plan_without_materialized())

    def _join(self, batch: PreparedBatch, piece_rows: int | None = None) -> Iterator[dict[str, list[pa.Table]]]:
        """Advance event time by a batch and join its tuples; yield results in parts.

        A part has the results of about `piece_rows` tuples, if that is given.
        """
        self._previous_event_time = self.max_event_time
        if self.start_time is None:
            first_times = [int(arrived.ts[0]) for arrived in batch.accepted.values() if len(arrived)]
            self.start_time = self.max_event_time if self.max_event_time > LONG_AGO else min(first_times, default=None)
            self._arrived_at_start = {name: progress.arrived for name, progress in self.progress.streams.items()}
        for stream, stats in batch.arrivals.items():
            self.progress[stream].observe(stats, batch.now)
        self.progress.advance_idle_streams(batch.now, self._related)
        yield from self.joined.join(batch.rows, self.progress, piece_rows)
        for group in self.count_window_groups.values():
            group.add_pending(batch.accepted)
            yield group.join_settled(self.progress)

    def _concat_parts(self, parts: Iterable[dict[str, list[pa.Table]]]) -> dict[str, pa.Table]:
        """Concatenate partial results into one table per query."""
        tables_by_query: dict[str, list[pa.Table]] = {name: [] for name in self.collectors}
        for part in parts:
            for name, tables in part.items():
                tables_by_query[name] += tables
        return {name: self.collectors[name].concat(tables) for name, tables in tables_by_query.items()}

    def _complete(self, *, more_follows: bool = False) -> None:
        """End a batch whose results are gathered: revise probe orders, then expire unneeded tuples."""
        self.adapt()
        if self._before_parts is None and self.open_savepoint is not None:
            self._before_parts = self.open_savepoint.counts
        self.open_savepoint = IRREVERSIBLE
        for group in self.groups:
            group.expire(self.progress)
        if not more_follows:
            self.before_batch, self._before_parts = self._before_parts, None
        self.batches += not more_follows

    def savepoint(self, *, until_delivered: bool = False) -> AbstractContextManager[None]:
        """Return a context manager for a change that `rollback` undoes if an interrupt cuts it short.

        `until_delivered`: the savepoint stays open after the block, until the caller that holds the results clears it.
        """
        return savepoint(self, until_delivered=until_delivered)

    def rollback(self) -> bool:
        """Undo the changes since the open savepoint; return False if that is not possible."""
        return rollback(self)

    def stores(self) -> Iterator[WindowStore]:
        """Yield every store, always in the same order."""
        return (store for group in self.groups for store in group.all_stores())

    @property
    def max_event_time(self) -> int:
        """Largest event time of all streams."""
        return max([progress.max_event_time for progress in self.progress.streams.values()], default=LONG_AGO)

    def load(
        self,
        tables_by_batch: Iterable[tuple[int, Mapping[str, pa.Table]]],
        progress: Mapping[str, Mapping[str, Any]],
        batches: int = 0,
        backfill_starts: BackfillStarts | None = None,
        shedder_state: pa.Buffer | None = None,
    ) -> None:
        """Fill an empty engine with tuples whose results were returned before.

        Only later batches produce results.

        `tables_by_batch`: tuples by batch number, ascending; the tuples of several batches may be under the number of the first one if
        no query started in between. `progress`: the progress of each stream. `batches`: the number of batches so far.
        `shedder_state`: the serialized state of the shedder; parts that do not fit the configuration and the plan are ignored.
        """
        for batch_number, tables in tables_by_batch:
            batches_by_stream = {stream: self._readers[stream].read(table) for stream, table in tables.items()}
            for batch in batches_by_stream.values():
                batch.in_order = self._numbered  # numbered tuples keep their order of arrival
            accepted = {stream: in_time_order(batch) for stream, batch in batches_by_stream.items() if len(batch)}
            self.joined.load(self.joined.prepare(accepted, batch_number=batch_number, backfill_starts=backfill_starts))
            for group in self.count_window_groups.values():
                if group.first_batch <= batch_number:
                    group.add_pending(accepted)
        if shedder_state is not None and self.joined.shedder is not None:
            restore(self.joined.shedder, shedder_state, strict=False)  # before windows expire: it may hold expired rows
        self.joined.materialize_all()
        self.batches = batches
        for stream, serialized in progress.items():
            self.progress[stream].restore(serialized)
        for group in self.count_window_groups.values():
            group.load_settled(self.progress)
        for join_group in self.groups:
            join_group.expire(self.progress)

    def oldest_event_time(self, stream: str) -> int | None:
        """Return the smallest event time of the tuples of `stream` in stores; None if there are none."""
        times = [store.live_values("ts") for group in self.groups for store in group.stores(stream) if len(store.rows)]
        return min(int(ts.min()) for ts in times) if times else None

    @property
    def seconds(self) -> float:
        """Seconds of event time since the engine was created, or since its first tuple."""
        return (self.max_event_time - self.start_time) / 1e6 if self.start_time is not None else 0.0

    @property
    def rates(self) -> dict[str, float]:
        """Tuples per second of event time of each stream, in `seconds`; only of streams that have had some."""
        arrived = {
            name: progress.arrived - self._arrived_at_start.get(name, 0)
            for name, progress in self.progress.streams.items()
        }
        return {name: count / self.seconds for name, count in arrived.items() if count} if self.seconds else {}
