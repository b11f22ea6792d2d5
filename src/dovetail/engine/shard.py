"""ShardEngine: the driver of one shard. Arrow batches and progress in, result batches out; no Spark, no wall clock.

A push does everything that can fail before it changes anything: tables are checked, judged by time, and every stored expression is
computed. Then time moves, tuples join, results are gathered, and last of all tuples expire, so that nothing a result needs is gone.

An interrupt or a lack of memory can come at any moment, so a change is announced in `unfinished` before it begins; whoever has the
results takes the announcement back. Until tuples expire a push only adds rows, and the announcement says where they began: the way
back is to forget them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.arena import Arena, HeapArena
from dovetail.engine.group import JoinGroup
from dovetail.engine.intake import Batch, Reader, in_time_order, judge
from dovetail.engine.progress import Observed, Progress
from dovetail.engine.runs import Collector, JoinRun
from dovetail.engine.settle import SettledGroup
from dovetail.engine.watch import Replan
from dovetail.engine.window_store import LONG_AGO, WindowStore
from dovetail.errors import ConfigError, listed
from dovetail.plan.names import window_name
from dovetail.plan.nodes import QueryPlan
from dovetail.plan.steps import Cell, JoinStep
from dovetail.query.model import CountWindow, JoinQuery
from dovetail.schema import StreamSchema


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an engine stood before a change, if there is a way back to it."""

    batches: int
    begun: int | None
    progress: Mapping[str, tuple[Any, ...]]
    heads: Mapping[str, int]
    """By window: the row number that came next."""
    runs: frozenset[str]
    results: Mapping[str, int]
    """By query: results so far."""


NO_WAY_BACK = Mark(-1, None, {}, {}, frozenset(), {})


class ShardEngine:
    """Joins batches of streams for any number of queries over shared windows."""

    def __init__(self, config: Config | None = None, arena: Arena | None = None, replan: Replan | None = None) -> None:
        self.config = config or Config()
        self.arena = arena or HeapArena()
        self.replan = replan if self.config.adaptive else None
        self.streams: dict[str, StreamSchema] = {}
        self.progress = Progress({})
        self._readers: dict[str, Reader] = {}
        self._related: dict[str, set[str]] = {}
        self.batches = 0
        self._begun: int | None = None
        """Event time when this engine was made, or of its first tuple."""
        self.needs_clock = False
        self.notice: Callable[[StreamSchema, Observed], None] | None = None
        """Told what was seen of each stream's part of a batch, before anything changes."""
        self.unfinished: Mark | None = None
        """Set when the engine begins to change: if it still is when the next call begins, the last one was not completed."""
        self.joined = JoinGroup("joined", self.streams, self.config, self.arena)
        self.joined.replan = self.replan
        self.settled: dict[str, SettledGroup] = {}

    def add_stream(self, schema: StreamSchema) -> None:
        self.streams[schema.name] = schema
        self._readers[schema.name] = Reader(schema)
        self.needs_clock |= schema.idle_after is not None or schema.max_ahead is not None
        self.progress.streams.update(Progress({schema.name: schema}).streams)

    # -- queries ------------------------------------------------------------------------------------------------------------

    def add_query(self, plan: QueryPlan) -> None:
        """Start a query that is planned alone. It sees the tuples of later batches only."""
        self.add_steps([JoinStep.single(plan)])

    def add_steps(self, steps: Iterable[JoinStep], cells: Mapping[str, Cell] | None = None) -> None:
        """Start joins, each after those that it reads; `cells` are, by query, the shard's own part of the results."""
        for step in steps:
            self._group_for(step.flat).add_step(step, cells)
        self.relate()

    def relate(self, queries: Iterable[JoinQuery] | None = None) -> None:
        """Note which streams are joined with which: by this engine's queries, or by those of all shards."""
        if queries is None:
            queries = [collector.query for collector in self.collectors.values()]
        joins = [{ref.stream for ref in query.refs} for query in queries]
        self._related = {stream: set().union(*(join for join in joins if stream in join)) for stream in self.streams}

    def drop_query(self, name: str) -> None:
        group = self.group_of(name)
        group.drop_query(name)
        if group is not self.joined and not group.runs:
            del self.settled[group.name]
        self.relate()

    def group_of(self, name: str) -> JoinGroup:
        return next(group for group in self.groups if name in group.queries)

    @property
    def groups(self) -> list[JoinGroup]:
        return [self.joined, *self.settled.values()]

    def run_of(self, name: str) -> JoinRun:
        """The join that answers a query."""
        return self.group_of(name).queries[name]

    @property
    def collectors(self) -> dict[str, Collector]:
        """By query."""
        runs = (run for group in self.groups for run in group.runs.values())
        return {name: collector for run in runs for name, collector in run.collectors.items()}

    def _group_for(self, query: JoinQuery) -> JoinGroup:
        if not query.has_count_window:
            return self.joined
        frontier = frozenset(ref.stream for ref in query.refs if isinstance(ref.window, CountWindow))
        # Tuples that wait in a group would be seen by a query added later, so a group takes queries of one instant only.
        name = f"settled:{self.batches}:{','.join(sorted(frontier))}"
        return self.settled_group(name, frontier)

    def settled_group(self, name: str, frontier: frozenset[str]) -> SettledGroup:
        if name not in self.settled:
            self.settled[name] = SettledGroup(name, self.streams, self.config, self.arena, frontier)
            self.settled[name].replan = self.replan
        return self.settled[name]

    # -- data ---------------------------------------------------------------------------------------------------------------

    def push(
        self, tables: Mapping[str, object], now: int | None = None, observed: Mapping[str, Observed] | None = None
    ) -> dict[str, pa.Table]:
        """Join one batch; return the results it completes, one table per query.

        A shard is given what all shards together `observed` of each stream; alone, an engine observes its own tuples.
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
        prepared = self.joined.prepare(accepted)
        if self.notice is not None:
            for stream, judged in batches.items():
                self.notice(self.streams[stream], judged.seen)
        if self._begun is None:
            self._begin(accepted.values())

        if observed is None:
            observed = {stream: judged.seen for stream, judged in batches.items()}
        self.unfinished = self.mark()
        for stream, seen in observed.items():
            self.progress[stream].observe(seen, now)
        self.progress.lift_idle(now, self._related)
        results = self.joined.join(prepared, self.progress, together=self.config.evaluation == "eager")
        for group in self.settled.values():
            group.wait(accepted)
        return self._finish(results)

    def mark(self) -> Mark:
        """Where the engine stands."""
        return Mark(
            self.batches,
            self._begun,
            {name: progress.figures() for name, progress in self.progress.streams.items()},
            {store.name: store.rows.head for store in self._stores()},
            frozenset(name for group in self.groups for name in group.runs),
            {name: collector.results for name, collector in self.collectors.items()},
        )

    def go_back(self, mark: Mark) -> bool:
        """Forget what came after a mark; False if that is not possible. Then only a snapshot of the engine is sound: indexes are not.

        Counters of work done (probes, matches) keep what the unfinished change has added.
        """
        if mark is NO_WAY_BACK or any(store.rows.moving for store in self._stores()):
            return False
        for group in self.groups:
            group.forget_others(mark.runs)
        self.settled = {name: group for name, group in self.settled.items() if group.runs}
        for store in self._stores():
            store.rows.head = mark.heads[store.name]
        for name, collector in self.collectors.items():
            collector.results = mark.results[name]
        for name in [name for name in self.streams if name not in mark.progress]:
            del self.streams[name]
        for name, figures in mark.progress.items():
            self.progress[name].go_back(figures)
        self.batches, self._begun = mark.batches, mark.begun
        return True

    def _stores(self) -> Iterable[WindowStore]:
        return (store for group in self.groups for stream in group.windows for store in group.stores(stream))

    def _begin(self, batches: Iterable[Batch]) -> None:
        reached = self._head
        first = [int(batch.ts[0]) for batch in batches if len(batch)]
        if reached > LONG_AGO or first:
            self._begun = reached if reached > LONG_AGO else min(first)

    @property
    def _head(self) -> int:
        return max((progress.head for progress in self.progress.streams.values()), default=LONG_AGO)

    def load(self, tables: Mapping[str, pa.Table], progress: Mapping[str, Mapping[str, Any]]) -> None:
        """Fill an empty engine with tuples that were accepted, and joined, before; `progress` is how far streams had come.

        What is loaded at once need not have arrived at once: only later batches produce results.
        """
        batches = {stream: self._readers[stream].read(table) for stream, table in tables.items()}
        for batch in batches.values():
            batch.in_order = False
        accepted = {stream: in_time_order(batch) for stream, batch in batches.items() if len(batch)}
        self.joined.load(self.joined.prepare(accepted))
        for stream, stored in progress.items():
            self.progress[stream].restore(stored)
        for group in self.settled.values():
            group.wait(accepted)
            group.settle_loaded(self.progress)
        for joined in self.groups:
            joined.expire(self.progress)

    def oldest(self, stream: str) -> int | None:
        """The smallest event time of a tuple of `stream` that is still held; None when there is none."""
        held = [store.living("ts") for group in self.groups for store in group.stores(stream) if len(store.rows)]
        return min(int(ts.min()) for ts in held) if held else None

    def advance(self, times: Mapping[str, int], now: int | None = None) -> dict[str, pa.Table]:
        """Move streams' progress without tuples; return the results that this settles."""
        self.unfinished = self.mark()
        for stream, time in times.items():
            self.progress[stream].move(time, now)
        return self._finish({})

    def _finish(self, found: dict[str, list[pa.Table]]) -> dict[str, pa.Table]:
        """Settle, put the results together, and only then forget what no later batch needs."""
        for settled in self.settled.values():
            found.update(settled.settle(self.progress))
        results = {name: _whole(collector, found.get(name, [])) for name, collector in self.collectors.items()}
        self.unfinished = NO_WAY_BACK
        for group in self.groups:
            group.expire(self.progress)
        self.batches += 1
        return results

    # -- numbers ------------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, dict[str, dict[str, object]]]:
        """Counters so far: per stream (arrivals, drops, state), per query (probes, matches, results), per part of the plan."""
        streams: dict[str, dict[str, object]] = {}
        for stream in self.streams:
            tuples, nbytes = 0, 0
            for group in self.groups:
                stores = group.stores(stream)
                tuples += sum(len(store.rows) for store in stores)
                nbytes += sum(store.nbytes for store in stores)
            streams[stream] = {**self.progress.metrics(stream), "state_tuples": tuples, "state_bytes": nbytes}
        return {
            "streams": streams,
            "queries": {
                name: {"results": collector.results, **_run_metrics(self.run_of(name))}
                for name, collector in self.collectors.items()
            },
            "joins": {
                name: _run_metrics(run)
                for group in self.groups
                for name, run in group.runs.items()
                if not run.step.is_alone
            },
            "nodes": self._node_metrics(),
        }

    def _node_metrics(self) -> dict[str, dict[str, Any]]:
        """What the parts of the plan have taken, and the seconds of event time that their milliseconds are about."""
        found: dict[str, dict[str, Any]] = {kind: {} for kind in ("windows", "joins", "states", "results")}
        for group in self.groups:
            for kind, name, figures in group.nodes():
                label = window_name(name, settled=group is not self.joined) if kind == "windows" else name
                known = found[kind].get(label, {})
                found[kind][label] = {key: value + known.get(key, 0) for key, value in figures.items()}
        found["span"] = {"seconds": (self._head - self._begun) / 1e6 if self._begun is not None else 0.0}
        return found


def _run_metrics(run: JoinRun) -> dict[str, object]:
    kinds = ("probes", "looked", "matches")
    paths: dict[str, list[dict[str, object]]] = {}
    for driver, runner in run.runners.items():
        paths[driver] = [
            {
                "alias": stage.alias,
                "access": stage.access,
                **dict(zip(kinds, counts, strict=False)),
                "ms": 1000 * seconds,
            }
            for stage, counts, seconds in zip(runner.path.stages, runner.counts, runner.seconds, strict=True)
        ]
        paths[driver][0]["timed"] = runner.timed
    return {
        **dict(zip(kinds, run.totals, strict=True)),
        "paths": paths,
        "changes": [change.to_json() for change in run.watch.changes],
    }


def _whole(collector: Collector, tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables) if tables else collector.nothing
