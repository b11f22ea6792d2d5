"""Read off an engine what it has counted and timed so far."""

from __future__ import annotations

from dovetail.engine.group import JoinGroup
from dovetail.engine.join.path import PathRunner
from dovetail.engine.join.step import JoinRun
from dovetail.engine.kernels.times import LONG_AGO
from dovetail.engine.shard import ShardEngine
from dovetail.engine.storage.hot_keys import hottest
from dovetail.engine.storage.window import WindowStore
from dovetail.plan.names import window_name
from dovetail.stats.counters import (
    JoinFigures,
    Measurements,
    PartFigures,
    PathFigures,
    PlanFigures,
    QueryFigures,
    Span,
    StageFigures,
    StreamFigures,
    merged,
)
from dovetail.stats.probes import ProbeOrderChange


def measure(engine: ShardEngine, *, hot_values: bool = True) -> Measurements:
    """What the streams, queries, joins and parts of the plan of a shard have come to, and which `hot_values` its windows have."""
    runs, shedder = list(engine.runs), engine.joined.shedder
    parts = (_parts(group, settled=group is not engine.joined) for group in engine.groups)
    return Measurements(
        {stream: _stream(engine, stream, hot_values=hot_values) for stream in engine.streams},
        {
            name: QueryFigures(*_work(run), it.results, shedder.recall(name) if shedder is not None else None)
            for run in runs
            for name, it in run.collectors.items()
        },
        {run.name: JoinFigures(*_work(run)) for run in runs if not run.step.is_own},
        sum(parts, PlanFigures(span=Span(engine.seconds))),
    )


def _stream(engine: ShardEngine, stream: str, *, hot_values: bool) -> StreamFigures:
    progress = engine.progress[stream]
    stores = [store for group in engine.groups for store in group.stores(stream)]
    shedder, held, shed = engine.joined.shedder, None, dict[str, int | None]()
    if shedder is not None:
        held, (count, last) = shedder.held(stream), shedder.counts.get(stream, (0, None))
        shed = {"shed": count, "last_shed": last}
    return StreamFigures(
        progress.arrived,
        progress.late,
        progress.ahead,
        progress.refused,
        lateness_needed=progress.late_by / 1e6,
        event_time=progress.head if progress.head > LONG_AGO else None,
        state_tuples=sum(len(store.rows) for store in stores) if held is None else held,
        state_bytes=sum(store.allocated for store in stores),
        hottest=(_hottest(engine, stream) or None) if hot_values else None,
        **shed,
    )


def _hottest(engine: ShardEngine, stream: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for group in engine.groups:
        if stream in group.windows:
            found = merged(found, hottest(group.windows[stream], group.plans[stream]))
    return found


def _work(run: JoinRun) -> tuple[int, int, int, dict[str, PathFigures], tuple[ProbeOrderChange, ...]]:
    """What figures of joins, and of the queries that they answer, begin with."""
    probes, looked, matches = run.totals
    return probes, looked, matches, {path: _path(it) for path, it in run.runners.items()}, tuple(run.watch.changes)


def _path(runner: PathRunner) -> PathFigures:
    counted = zip(runner.path.stages, runner.counts, runner.seconds, strict=True)
    return tuple(
        StageFigures(
            stage.alias, stage.access, probes, looked, matches, 1000 * seconds, None if place else runner.timed
        )
        for place, (stage, (probes, looked, matches, _), seconds) in enumerate(counted)
    )


def _parts(group: JoinGroup, *, settled: bool) -> PlanFigures:
    def store(it: WindowStore) -> PartFigures:
        return PartFigures(1000 * it.seconds, tuples=len(it.rows), bytes=it.allocated)

    def join(run: JoinRun) -> PartFigures:
        probes, _, matches = run.totals
        seconds = sum(sum(runner.seconds) for runner in run.runners.values())
        return PartFigures(1000 * seconds, probes=probes, matches=matches)

    collectors = {name: it for run in group.runs.values() for name, it in run.collectors.items()}
    return PlanFigures(
        {window_name(stream, settled=settled): store(window) for stream, window in group.windows.items()},
        {name: join(run) for name, run in group.runs.items()},
        {name: store(state) for name, state in group.states.items()},
        {name: PartFigures(1000 * it.seconds, results=it.results) for name, it in collectors.items()},
    )
