"""ShardEngine: the driver of one shard. Arrow batches and progress in, result batches out; no Spark, no wall clock.

A push does everything that can fail before it changes anything: tables are checked, judged by time, and every stored expression is
computed. Then time moves, tuples join, results are gathered, and last of all tuples expire, so that nothing a result needs is gone.

An interrupt or a lack of memory can come at any moment, so a change is announced in `unfinished` before it begins; whoever has the
results takes the announcement back. Until tuples expire a push only adds rows, and the announcement says where they began: the way
back is to forget them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.change.adopt import Positions
from dovetail.engine.group import JoinGroup
from dovetail.engine.join.gather import Collector
from dovetail.engine.join.step import JoinRun, due_together
from dovetail.engine.join.watch import Replan
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.shedding.shedder import ShedderMark
from dovetail.engine.storage.arena import Arena, HeapArena, MappedArena
from dovetail.engine.storage.window import WindowStore
from dovetail.engine.time.count_windows import SettledGroup
from dovetail.engine.time.intake import Batch, Reach, TableReader, in_time_order, judge
from dovetail.engine.time.progress import Observed, Progress
from dovetail.errors import ConfigError, listed
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.steps import JOINED, JoinStep
from dovetail.schema import StreamSchema


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Where an engine stood before a change, if there is a way back to it."""

    plan: ExecutionPlan
    batches: int
    begun: int | None
    progress: Mapping[str, tuple[Any, ...]]
    stores: Mapping[str, tuple[int, int]]
    """By name: the row number that came next, and how often rows had been numbered anew."""
    results: Mapping[str, int]
    """By query: results so far."""
    shedding: ShedderMark | None = None


IRREVERSIBLE = Savepoint(ExecutionPlan(), -1, None, {}, {}, {})


class ShardEngine:
    """Joins batches of streams as a plan says."""

    def __init__(self, config: Config | None = None, arena: Arena | None = None, replan: Replan | None = None) -> None:
        self.config = config or Config()
        self.arena = arena or HeapArena()
        self._numbered = self.config.shedding is not None and isinstance(self.arena, MappedArena)
        """Whether tuples have numbers, by which a log follows what is kept of them: where arrays outlive the process."""
        self.replan = replan if self.config.adaptive else None
        """Chooses new orders while the queries run; without it they stay."""
        self.plan = ExecutionPlan()
        self.streams: dict[str, StreamSchema] = {}
        self.progress = Progress({})
        self._readers: dict[str, TableReader] = {}
        self._related: dict[str, set[str]] = {}
        self.batches = 0
        self._begun: int | None = None
        """Event time when this engine was made, or of its first tuple."""
        self._came = LONG_AGO
        """Event time that was reached before the latest batch."""
        self.reached: dict[str, dict[str, int]] = {}
        """By join that also sees what was there before it, and by source: the earliest event time of that, if there was any."""
        self.needs_clock = False
        self.without_stored: Callable[[], ExecutionPlan] | None = None
        """Gives a plan for the same queries that stores no sub-joins."""
        self.notice: Callable[[StreamSchema, Observed], None] | None = None
        """Told what was seen of each stream's part of a batch, before anything changes."""
        self.unfinished: Savepoint | None = None
        """Set when the engine begins to change: if it still is when the next call begins, the last one was not completed."""
        self.joined = JoinGroup(JOINED, self.streams, self.config, self.arena, numbered=self._numbered)
        self.settled: dict[str, SettledGroup] = {}
        self._collectors: dict[str, Collector] | None = None
        """Those of what is installed, once they were asked for."""

    def add_stream(self, schema: StreamSchema) -> None:
        self.streams[schema.name] = schema
        self._readers[schema.name] = TableReader(schema, numbered=self._numbered)
        self.needs_clock |= schema.idle_after is not None or schema.max_ahead is not None
        self.progress.streams.update(Progress({schema.name: schema}).streams)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def adopt(self, plan: ExecutionPlan, positions: Positions | None = None) -> None:
        """Go on with another plan, whatever was there before: queries come and go, orders change, sub-joins are stored or not.

        Queries of both plans go on as if they had always run by the new one; a new query sees the tuples of later batches. With
        `positions` the arrays are there already: an empty engine attaches to what another one left in the arena.
        """
        settled: dict[str, SettledGroup] = {}
        for step in plan.steps:
            if step.group != JOINED and step.group not in settled:
                settled[step.group] = self.settled.get(step.group) or SettledGroup(
                    step, self.streams, self.config, self.arena
                )
        gone = [group for name, group in self.settled.items() if name not in settled]
        made = []
        for group in (self.joined, *settled.values(), *gone):
            windows = [window for window in plan.windows if window.group == group.name]
            steps = [step for step in plan.steps if step.group == group.name]
            stored = plan.stored if group is self.joined else ()
            made.append((group, group.extended(windows, stored, steps, self.batches, positions)))
        if self.unfinished is not None and self.unfinished is not IRREVERSIBLE:
            # All that was missing is there: from here on the way back is to be done with it.
            self.unfinished = replace(self.unfinished, plan=plan)
        self._collectors = None
        unneeded = [store for group, new in made for store in group.install(new)]
        self.plan, self.settled, self._collectors = plan, settled, None
        for group, _ in made:
            group.trim()
        for store in unneeded:
            store.remove()
        backfilled = [step for step in plan.steps if step.backfill]
        self.reached = {
            step.name: self.reached.get(step.name) or self.group_of(step.consumers[0].query).earliest(step)
            for step in backfilled
        }
        self.relate([{source.stream for source in step.sources} for step in plan.steps if step.consumers])

    def relate(self, joins: Iterable[set[str]]) -> None:
        """Note which streams are joined with which: by this engine's queries, or by those of all shards."""
        known = list(joins)
        self._related = {stream: set().union(*(join for join in known if stream in join)) for stream in self.streams}

    def group_of(self, name: str) -> JoinGroup:
        return next(group for group in self.groups if name in group.installed.queries)

    @property
    def groups(self) -> list[JoinGroup]:
        return [self.joined, *self.settled.values()]

    @property
    def runs(self) -> Iterator[JoinRun]:
        return (run for group in self.groups for run in group.runs.values())

    def run_of(self, name: str) -> JoinRun:
        """The join that answers a query."""
        return self.group_of(name).installed.queries[name]

    @property
    def collectors(self) -> dict[str, Collector]:
        """By query."""
        if self._collectors is None:
            self._collectors = {name: it for run in self.runs for name, it in run.collectors.items()}
        return self._collectors

    def adapt(self) -> None:
        """After a batch: look at the counters of joins that have seen enough, and replace orders that have become bad."""
        if self.replan is None:
            return
        changed, time = list[JoinStep](), self._head
        tau = (time - self._came) / 1e6 if LONG_AGO < self._came < time else None
        for group in self.groups:
            arrived, group.arrived = group.arrived, 0
            waiting, count = False, len(group.runs)
            for run in group.runs.values():
                run.watch.fresh += arrived
                if run.watch.is_ready(run.runners, time, run.span, count) and run.watch.look(run.runners, time):
                    if self.replan.chooses_together and run.sharing:
                        run.watch.waits += 1
                        waiting = True
                    elif (revised := self.replan(run.plan, replace(run.watch.measured, tau=tau))) is not None:
                        changed += run.revise(*revised, group.batches)
            if waiting and (joins := due_together(group.runs.values())):
                revisions = self.replan.together({run.name: run.as_sharing for run in joins})
                for name, revised in revisions.items():
                    changed += group.runs[name].revise(*revised, group.batches)
        if changed:
            self.adopt(self.plan.with_steps(changed))

    # -- data ---------------------------------------------------------------------------------------------------------------

    def push(
        self,
        tables: Mapping[str, object],
        now: int | None = None,
        observed: Mapping[str, Observed] | None = None,
        *,
        more: bool = False,
        results_to: Callable[[str, pa.Table], None] | None = None,
    ) -> dict[str, pa.Table]:
        """Join one batch; return the results it completes, one table per query.

        A shard is given what all shards together `observed` of each stream; alone, an engine observes its own tuples. `more` says
        that this is a part of a batch, and others follow. `results_to` takes results while others are found, if there are many; what
        is returned are the others.
        """
        for group in self.groups:
            group.results_to = results_to
        return self._completed(self.pieces(tables, now, observed), more=more)

    def pieces(
        self,
        tables: Mapping[str, object],
        now: int | None = None,
        observed: Mapping[str, Observed] | None = None,
        piece_rows: int | None = None,
    ) -> Iterator[dict[str, list[pa.Table]]]:
        """Join one batch; give results as they are found, each time after about `piece_rows` tuples, or all at once.

        All that can fail is done before the first piece. When the last was taken, `complete` has to be called.
        """
        unknown = [stream for stream in tables if stream not in self.streams]
        if unknown:
            raise ConfigError(
                f"push got tuples for {listed(unknown)}; declared streams: {listed(self.streams)}",
                "declare a stream before pushing to it",
            )
        batches = {
            stream: judge(reader.read(tables[stream]), self.progress[stream], now)
            for stream, reader in self._readers.items()
            if stream in tables
        }
        accepted = {stream: judged.accepted for stream, judged in batches.items()}
        self._give_up_stored(accepted)
        prepared = self.joined.prepare(accepted)
        if self.notice is not None:
            for stream, judged in batches.items():
                self.notice(self.streams[stream], judged.seen)
        if self._begun is None:
            self._begin(accepted.values())

        if observed is None:
            observed = {stream: judged.seen for stream, judged in batches.items()}
        self.unfinished, self._came = self.mark(), self._head
        for stream, seen in observed.items():
            self.progress[stream].observe(seen, now)
        self.progress.lift_idle(now, self._related)
        yield from self.joined.join(prepared, self.progress, piece_rows)
        for group in self.settled.values():
            group.wait(accepted)
        yield from self._settle()

    def _give_up_stored(self, batches: Mapping[str, Batch]) -> None:
        """If windows may become too large: store no sub-joins, so that there is room, and no match outlives a tuple that is shed."""
        shedder = self.joined.shedder
        if shedder is None or not self.plan.stored or self.without_stored is None:
            return
        if shedder.may_reach({stream: len(batch) for stream, batch in batches.items()}):
            self.unfinished = self.mark()
            self.adopt(self.without_stored())

    def mark(self) -> Savepoint:
        """Where the engine stands."""
        return Savepoint(
            self.plan,
            self.batches,
            self._begun,
            {name: progress.figures() for name, progress in self.progress.streams.items()},
            {store.name: (store.rows.head, store.rows.renumbered) for store in self.stores()},
            {name: collector.results for name, collector in self.collectors.items()},
            self.joined.shedder.mark() if self.joined.shedder is not None else None,
        )

    def rollback(self, mark: Savepoint) -> bool:
        """Forget what came after a mark; False if that is not possible.

        Counters of work done (probes, matches) keep what the unfinished change has added.
        """
        if mark is IRREVERSIBLE or any(store.rows.moving for store in self.stores()):
            return False
        known = [
            (store, mark.stores.get(store.name, (store.rows.tail, store.rows.renumbered))) for store in self.stores()
        ]
        if any(renumbered != store.rows.renumbered for store, (_, renumbered) in known):
            return False  # rows were shed and overwritten
        if self.joined.shedder is not None and mark.shedding is not None:
            self.joined.shedder.rollback(mark.shedding)
        for name in [name for name in self.streams if name not in mark.progress]:
            del self.streams[name]
        for store, (head, _) in known:
            store.rows.head = head
            store.rebuild_chains()
        self.adopt(mark.plan)
        for name, collector in self.collectors.items():
            collector.results = mark.results.get(name, 0)
        for name, figures in mark.progress.items():
            self.progress[name].rollback(figures)
        self.batches, self._begun = mark.batches, mark.begun
        return True

    def stores(self) -> Iterator[WindowStore]:
        """Every store, always in the same order."""
        return (store for group in self.groups for store in group.all_stores())

    def _begin(self, batches: Iterable[Batch]) -> None:
        reached = self._head
        first = [int(batch.ts[0]) for batch in batches if len(batch)]
        if reached > LONG_AGO or first:
            self._begun = reached if reached > LONG_AGO else min(first)

    @property
    def _head(self) -> int:
        return max((progress.head for progress in self.progress.streams.values()), default=LONG_AGO)

    def load(
        self,
        held: Iterable[tuple[int, Mapping[str, pa.Table]]],
        progress: Mapping[str, Mapping[str, Any]],
        batches: int = 0,
        reach: Reach | None = None,
    ) -> None:
        """Fill an empty engine with tuples that were accepted, and joined, before; only later batches produce results.

        `held`: the number of a batch, and tuples that came with it, or after it and before the next query did; earliest first.
        `progress`: how far streams had come. `batches`: how many there were. `reach`: for queries that came later and also see what
        the windows held then, from which event times on.
        """
        for came, tables in held:
            read = {stream: self._readers[stream].read(table) for stream, table in tables.items()}
            for batch in read.values():
                batch.in_order = self._numbered  # these come in the order in which they came
            accepted = {stream: in_time_order(batch) for stream, batch in read.items() if len(batch)}
            self.joined.load(self.joined.prepare(accepted, came=came, reach=reach))
            for group in self.settled.values():
                if group.since <= came:
                    group.wait(accepted)
        self.joined.store_again()
        self.batches = batches
        for stream, stored in progress.items():
            self.progress[stream].restore(stored)
        for group in self.settled.values():
            group.settle_loaded(self.progress)
        for joined in self.groups:
            joined.expire(self.progress)

    def oldest(self, stream: str) -> int | None:
        """The smallest event time of a tuple of `stream` that is still held; None when there is none."""
        held = [store.living("ts") for group in self.groups for store in group.stores(stream) if len(store.rows)]
        return min(int(ts.min()) for ts in held) if held else None

    def advance(self, times: Mapping[str, int], now: int | None = None, *, more: bool = False) -> dict[str, pa.Table]:
        """Move streams' progress without tuples; return the results that this settles. `more` parts of the batch may follow."""
        self.unfinished = self.mark()
        for stream, time in times.items():
            self.progress[stream].move(time, now)
        return self._completed(self._settle(), more=more)

    def _settle(self) -> Iterator[dict[str, list[pa.Table]]]:
        for settled in self.settled.values():
            yield settled.settle(self.progress)

    def _completed(self, parts: Iterable[dict[str, list[pa.Table]]], *, more: bool) -> dict[str, pa.Table]:
        """Put results together, and only then forget what no later batch needs."""
        found: dict[str, list[pa.Table]] = {}
        for part in parts:
            for name, tables in part.items():
                found.setdefault(name, []).extend(tables)
        results = {name: _whole(collector, found.get(name, [])) for name, collector in self.collectors.items()}
        self.complete(more=more)
        return results

    def complete(self, *, more: bool = False) -> None:
        """End a batch whose results have been taken: look whether orders are still good, and forget what no later batch needs."""
        self.adapt()
        self.unfinished = IRREVERSIBLE
        for group in self.groups:
            group.expire(self.progress)
        self.batches += not more

    @property
    def seconds(self) -> float:
        """Of event time, since the engine was made or its first tuple came."""
        return (self._head - self._begun) / 1e6 if self._begun is not None else 0.0


def _whole(collector: Collector, tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables) if tables else collector.nothing
