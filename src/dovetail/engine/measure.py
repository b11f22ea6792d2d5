"""Collect the counters and timings of an engine."""

from __future__ import annotations

from dovetail.engine.group import JoinGroup
from dovetail.engine.join.path import PathRunner
from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.hot_keys import find_hot_keys
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.names import window_name
from dovetail.stats.counters import (
    JoinMetrics,
    MeasuredSpan,
    Measurements,
    NodeMetrics,
    PathMetrics,
    PlanMetrics,
    QueryMetrics,
    StageMetrics,
    StreamMetrics,
    merge,
)
from dovetail.stats.probes import ProbeOrderChange


def measure(engine: ShardEngine, *, hot_values: bool = True) -> Measurements:
    """Return the metrics of a shard's streams, queries, joins and plan nodes; `hot_values`: also hot keys."""
    runs, shedder = list(engine.runs), engine.joined.shedder
    nodes = (_nodes(group, settled=group is not engine.joined) for group in engine.groups)
    return Measurements(
        {stream: _stream(engine, stream, hot_values=hot_values) for stream in engine.streams},
        {
            name: QueryMetrics(*_work(run), collector.results, shedder.recall(name) if shedder is not None else None)
            for run in runs
            for name, collector in run.collectors.items()
        },
        {run.name: JoinMetrics(*_work(run)) for run in runs if not run.step.is_individual},
        sum(nodes, PlanMetrics(span=MeasuredSpan(engine.seconds))),
    )


def count_last_batch(engine: ShardEngine) -> dict[str, dict[str, dict[str, int]]]:
    """Return the tuples of each stream and the results of each query in the last batch alone.

    It is empty before the first batch.
    """
    before, shedder = engine.before_batch, engine.joined.shedder
    if before is None:
        return {"streams": {}, "queries": {}}
    shed = {} if shedder is None else {stream: count for stream, (count, _) in shedder.counts.items()}
    return {
        "streams": {
            stream: {
                **engine.progress[stream].added_since(saved),
                "shed": shed.get(stream, 0) - before.shed.get(stream, (0, 0))[0],
            }
            for stream, saved in before.progress.items()
        },
        "queries": {
            name: {"results": collector.results - before.results.get(name, 0)}
            for name, collector in engine.collectors.items()
        },
    }


def _stream(engine: ShardEngine, stream: str, *, hot_values: bool) -> StreamMetrics:
    progress = engine.progress[stream]
    stores = [store for group in engine.groups for store in group.stores(stream)]
    shedder, held, shed = engine.joined.shedder, None, dict[str, int | None]()
    if shedder is not None:
        held, (count, last) = shedder.held(stream), shedder.counts.get(stream, (0, None))
        shed = {"shed": count, "last_shed": last, "shedding_bytes": shedder.bytes_of(stream)}
    return StreamMetrics(
        progress.arrived,
        progress.late,
        progress.ahead,
        progress.refused,
        lateness_needed=progress.late_by / 1e6,
        event_time=progress.max_event_time if progress.max_event_time > LONG_AGO else None,
        state_tuples=sum(len(store.rows) for store in stores) if held is None else held,
        state_bytes=sum(store.allocated for store in stores),
        hottest=(_hot_keys(engine, stream) or None) if hot_values else None,
        **shed,
    )


def _hot_keys(engine: ShardEngine, stream: str) -> dict[str, dict[str, int]]:
    hot_keys: dict[str, dict[str, int]] = {}
    for group in engine.groups:
        if stream in group.windows:
            hot_keys = merge(hot_keys, find_hot_keys(group.windows[stream], group.plans[stream]))
    return hot_keys


def _work(run: JoinRun) -> tuple[int, int, int, dict[str, PathMetrics], tuple[ProbeOrderChange, ...]]:
    """Return the first fields of `JoinMetrics` and `QueryMetrics`."""
    probes, rows_read, matches = run.totals
    paths = {driver: _path(runner) for driver, runner in run.runners.items()}
    return probes, rows_read, matches, paths, tuple(run.watch.changes)


def _path(runner: PathRunner) -> PathMetrics:
    stages = zip(runner.path.stages, runner.counts, runner.seconds, strict=True)
    return tuple(
        StageMetrics(
            stage.alias, stage.access, probes, read, matches, 1000 * seconds, None if depth else runner.timed_tuples
        )
        for depth, (stage, (probes, read, matches, _), seconds) in enumerate(stages)
    )


def _nodes(group: JoinGroup, *, settled: bool) -> PlanMetrics:
    def store(window: WindowStore) -> NodeMetrics:
        return NodeMetrics(1000 * window.seconds, tuples=len(window.rows), bytes=window.allocated)

    def join(run: JoinRun) -> NodeMetrics:
        probes, _, matches = run.totals
        seconds = sum(sum(runner.seconds) for runner in run.runners.values())
        return NodeMetrics(1000 * seconds, probes=probes, matches=matches)

    collectors = {name: collector for run in group.runs.values() for name, collector in run.collectors.items()}
    return PlanMetrics(
        {window_name(stream, settled=settled): store(window) for stream, window in group.windows.items()},
        {name: join(run) for name, run in group.runs.items()},
        {name: store(state) for name, state in group.materialized.items()},
        {name: NodeMetrics(1000 * query.seconds, results=query.results) for name, query in collectors.items()},
    )
