"""A shard's state as Arrow and JSON under a format version: snapshots, and the manifest that goes with mapped arrays.

A snapshot holds the tuples that windows still need, which of them each query may see (that depends on when the query was added), and
how far each stream has come. Indexes, composite codes and the ends of count windows are made again from these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from dovetail.codec import from_json, to_json
from dovetail.engine.join.step import JoinRun
from dovetail.engine.join.watch import Replan
from dovetail.engine.persist.schemas import EngineManifest, LeftInArena, Snapshot, StoredRun, check_runs, check_streams
from dovetail.engine.persist.tables import arrivals_of, written
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding import stored as shedding
from dovetail.engine.storage.arena import Arena, MappedArena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.errors import StateError, listed, reading
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.paths import AccessRule, PathMaker
from dovetail.plan.query_plan import Access
from dovetail.stats.probes import PlanEstimate

MAGIC = b"DOVETAIL"
VERSION = 4
ARRAYS = 4
"""The format of arrays that another process attaches to. In 1, which is not said, chains had no tags and would lead nowhere now; in 2
and 3 what was shed was known in other formats."""
_HEADER = struct.Struct("<8sI16sQ")
"""Magic, format version, digest of all that follows it, length of the JSON."""
_LENGTH = struct.Struct("<Q")


@dataclass(slots=True)
class StoredShard:
    """A snapshot that has been read, not yet filled into an engine."""

    content: Snapshot
    tables: list[pa.Buffer]

    def fill(self, engine: ShardEngine, expected: ExecutionPlan) -> None:
        """Bring an engine that knows the streams, and nothing else, to the stored state.

        `expected` is the plan as queries and declarations have it: the stored one may differ in its orders, and in its bits.
        """
        check_runs(self.content, self.content["plan"])
        plan = ExecutionPlan.of(as_they_ran(expected, self.content["runs"]).steps, self.content["plan"])
        if plan != self.content["plan"]:
            raise StateError("the snapshot's plan is not that of its queries")
        engine.adopt(plan)
        _go_on(engine, self.content)
        if self.content["windows"] != [store.name for store in _windows(engine)]:
            raise StateError(f"the stored windows are not those of the plan: {listed(self.content['windows'])}")
        for store, table in zip(_windows(engine), self.tables, strict=False):
            for arrivals in arrivals_of(store, table):
                store.append(arrivals)
        if not engine.batches and any(len(store.rows) for store in _windows(engine)):
            raise StateError("the snapshot has tuples though no batch was pushed")
        if engine.joined.shedder is not None:
            shedding.restore(engine.joined.shedder, self.tables[-1])
        engine.joined.store_again()
        engine.joined.expire(engine.progress)


def write_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> bytes:
    """The whole state of an engine, and whatever JSON its session adds."""
    windows = [store.name for store in _windows(engine)]
    content = _manifest(engine) | {"windows": windows, "plan": engine.plan, "extra": extra}
    header = json.dumps(to_json(content)).encode()
    parts = [header]
    for store in _windows(engine):
        table = written(store)
        parts += [_LENGTH.pack(len(table)), table.to_pybytes()]
    if engine.joined.shedder is not None:
        known = shedding.written(engine.joined.shedder)
        parts += [_LENGTH.pack(len(known)), known]
    whole = b"".join(parts)
    return _HEADER.pack(MAGIC, VERSION, _digest(len(header), whole), len(header)) + whole


def _digest(length: int, content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=16, key=_LENGTH.pack(length)).digest()


def read_snapshot(blob: object) -> StoredShard:
    """Check a snapshot and read its declarations and tables."""
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size or blob[: len(MAGIC)] != MAGIC:
        raise StateError("this is not a Dovetail snapshot", "pass the bytes that snapshot() returned")
    _, version, digest, length = _HEADER.unpack_from(blob)
    if version != VERSION:
        raise StateError(f"the snapshot has format version {version}; this release reads version {VERSION}")
    if digest != _digest(length, memoryview(blob)[_HEADER.size :]):
        raise StateError("the snapshot is damaged: its digest does not match", "take it again, or use an earlier one")
    end = _HEADER.size + length
    with reading("the snapshot"):
        content = from_json(Snapshot, json.loads(blob[_HEADER.size : end]), "the snapshot")
        check_streams(content["streams"])
        tables = []
        while end < len(blob):
            (size,) = _LENGTH.unpack_from(blob, end)
            end += _LENGTH.size + size
            tables.append(pa.py_buffer(blob)[end - size : end])
        windows = len(tables) - (content["config"].shedding is not None)
        if end != len(blob) or windows != len(content["windows"]):
            raise StateError(f"the snapshot is cut short: it holds {windows} of {len(content['windows'])} windows")
    return StoredShard(content, tables)


def _manifest(engine: ShardEngine) -> dict[str, Any]:
    """The content of a `EngineManifest`."""
    return {
        "config": engine.config,
        "batches": engine.batches,
        "streams": [
            {"schema": progress.schema, "progress": progress.to_json()}
            for progress in map(engine.progress.__getitem__, engine.streams)
        ],
        "groups": {group.name: group.batches for group in engine.groups},
        "kept_from": engine.joined.expiry.kept_from,
        "runs": {run.name: _run_json(run) for run in engine.runs},
    }


def attach(arena: Arena, stored: Mapping[str, Any], plan: ExecutionPlan, replan: Replan | None = None) -> ShardEngine:
    """An engine over the arrays that another one, whose `left_in_arena` this is, left in `arena`.

    It must have run `plan`, in whatever orders.
    """
    if not isinstance(arena, MappedArena):
        raise StateError("the arrays lived in another process's memory", "use a MappedArena to share arrays")
    if (found := stored.get("arrays")) != ARRAYS:
        raise StateError(f"the arrays have format {found or 1}; this release attaches to format {ARRAYS}")
    differ = [
        step[0] for step in (*stored["outline"], *plan.outline) if (step in stored["outline"]) != (step in plan.outline)
    ]
    if differ:
        raise StateError(f"the arrays are not those of the plan: it differs in {listed(sorted(set(differ)))}")
    left = from_json(LeftInArena, stored, "the arrays")
    engine = ShardEngine(left["config"], arena, replan)
    for stream in left["streams"]:
        engine.add_stream(stream["schema"])
    arena.opening = True
    engine.adopt(as_they_ran(plan, left["runs"]), stored["stores"])
    if stored["stores"].keys() != {store.name for store in engine.stores()}:
        raise StateError(f"the stored windows are not those of the plan: {listed(stored['stores'])}")
    for store in engine.stores():
        store.resume(stored["stores"][store.name])
    arena.opening = False
    _go_on(engine, left)
    return engine


def left_in_arena(engine: ShardEngine) -> dict[str, Any]:
    """What another engine needs, beside the plan, to attach to the arrays of this one."""
    stores = {store.name: store.position for store in engine.stores()}
    left: dict[str, Any] = to_json(
        _manifest(engine) | {"arrays": ARRAYS, "outline": engine.plan.outline, "stores": stores}
    )
    return left


def as_they_ran(plan: ExecutionPlan, runs: Mapping[str, StoredRun]) -> ExecutionPlan:
    """The plan with the orders that an engine had come to: the arrays hold what those need."""
    changed = []
    for step in plan.steps:
        runners, maker, paths = runs[step.name]["runners"], PathMaker(step.plan.query), []
        for path in step.plan.paths:
            order, access = runners[path.driver]["order"], runners[path.driver]["access"]
            same = order == list(path.order) and access == [stage.access for stage in path.stages]
            paths.append(path if same else maker.path(path.driver, order, _as_it_was(order, access)))
        if tuple(paths) != step.plan.paths:
            changed.append(replace(step, plan=replace(step.plan, paths=tuple(paths), estimate=PlanEstimate())))
    return plan.with_steps(changed) if changed else plan


def _as_it_was(order: list[str], access: list[Access]) -> AccessRule:
    chosen = dict(zip(order, access, strict=True))
    return lambda alias, _: chosen[alias]


def _run_json(run: JoinRun) -> dict[str, Any]:
    return {
        "results": {name: collector.results for name, collector in run.collectors.items()},
        "runners": {driver: runner.to_json() for driver, runner in run.runners.items()},
        "watch": run.watch,
        "retired": run.retired,
    }


def _go_on(engine: ShardEngine, stored: EngineManifest) -> None:
    """Take over progress and counters."""
    engine.batches = stored["batches"]
    engine.joined.expiry.kept_from = dict(stored["kept_from"])
    for stream in stored["streams"]:
        engine.progress[stream["schema"].name].restore(stream["progress"])
    for group in engine.groups:
        group.batches = stored["groups"][group.name]
    for run in engine.runs:
        known = stored["runs"][run.name]
        run.retired, run.watch = list(known["retired"]), known["watch"]
        for name, collector in run.collectors.items():
            collector.results = known["results"][name]
        for driver, runner in run.runners.items():
            runner.restore(known["runners"][driver])


def _windows(engine: ShardEngine) -> Iterator[WindowStore]:
    """Every store of tuples, always in the same order. Stored matches are found again from these."""
    return (store for store in engine.stores() if not isinstance(store, MaterializedJoin))
