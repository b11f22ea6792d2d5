"""Snapshots of an engine as Arrow and JSON, and the manifest of an engine whose arrays are mapped.

A snapshot holds the tuples that windows still need, which of them each query may see (that depends on when the query was added), and
the progress of each stream. Indexes, composite codes and the ends of count windows are rebuilt from these.
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
from dovetail.engine.persist.schemas import (
    ArenaManifest,
    EngineManifest,
    SerializedRun,
    SnapshotManifest,
    check_runs,
    check_streams,
)
from dovetail.engine.persist.tables import read_window, write_window
from dovetail.engine.shard import ShardEngine
from dovetail.engine.shedding import serialize as shedding
from dovetail.engine.storage.arena import Arena, MappedArena
from dovetail.engine.storage.materialized import MaterializedJoin
from dovetail.engine.storage.window import WindowStore
from dovetail.errors import StateError, listed, reading
from dovetail.plan.execution import ExecutionPlan
from dovetail.plan.paths import AccessRule, PathBuilder
from dovetail.plan.query_plan import Access
from dovetail.stats.probes import PlanEstimate

MAGIC = b"DOVETAIL"
VERSION = 4
ARRAYS = 4
"""Format version of arrays that another process attaches to. Version 1, which is not written, has hash chains without tags;
versions 2 and 3 serialize shedding differently."""
_HEADER = struct.Struct("<8sI16sQ")
"""Magic, format version, digest of what follows, length of the JSON."""
_LENGTH = struct.Struct("<Q")


@dataclass(slots=True)
class Snapshot:
    """A snapshot that has been read and checked, but not loaded into an engine."""

    content: SnapshotManifest
    tables: list[pa.Buffer]

    def load_into(self, engine: ShardEngine, expected: ExecutionPlan) -> None:
        """Load the snapshot into an engine that has its streams and nothing else.

        `expected`: the plan that follows from queries and declarations; the one in the snapshot may have other orders and bits.
        """
        check_runs(self.content, self.content["plan"])
        plan = ExecutionPlan.of(_with_orders(expected, self.content["runs"]).steps, self.content["plan"])
        if plan != self.content["plan"]:
            raise StateError("the plan in the snapshot does not follow from its queries")
        engine.adopt(plan)
        _restore_counters(engine, self.content)
        if self.content["windows"] != [store.name for store in _windows(engine)]:
            raise StateError(
                f"the snapshot holds windows {listed(self.content['windows'])}, which are not those of its plan"
            )
        for store, table in zip(_windows(engine), self.tables, strict=False):
            for rows in read_window(store, table):
                store.append(rows)
        if not engine.batches and any(len(store.rows) for store in _windows(engine)):
            raise StateError("the snapshot has tuples though no batch was pushed")
        if engine.joined.shedder is not None:
            shedding.restore(engine.joined.shedder, self.tables[-1])
        engine.joined.materialize_all()
        engine.joined.expire(engine.progress)


def write_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> bytes:
    """Return the whole state of an engine and `extra`, JSON of its session."""
    windows = [store.name for store in _windows(engine)]
    content = _manifest(engine) | {"windows": windows, "plan": engine.plan, "extra": extra}
    header = json.dumps(to_json(content)).encode()
    parts = [header]
    for store in _windows(engine):
        table = write_window(store)
        parts += [_LENGTH.pack(len(table)), table.to_pybytes()]
    if engine.joined.shedder is not None:
        shedder_state = shedding.serialize_shedder(engine.joined.shedder)
        parts += [_LENGTH.pack(len(shedder_state)), shedder_state]
    whole = b"".join(parts)
    return _HEADER.pack(MAGIC, VERSION, _digest(len(header), whole), len(header)) + whole


def _digest(length: int, content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=16, key=_LENGTH.pack(length)).digest()


def read_snapshot(blob: object) -> Snapshot:
    """Check a snapshot; return its declarations and tables."""
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size or blob[: len(MAGIC)] != MAGIC:
        raise StateError("this is not a Dovetail snapshot", "pass the bytes that snapshot() returned")
    _, version, digest, length = _HEADER.unpack_from(blob)
    if version != VERSION:
        raise StateError(f"the snapshot has format version {version}; this release reads version {VERSION}")
    if digest != _digest(length, memoryview(blob)[_HEADER.size :]):
        raise StateError("the snapshot is damaged: its digest does not match", "take it again, or use an earlier one")
    end = _HEADER.size + length
    with reading("the snapshot"):
        content = from_json(SnapshotManifest, json.loads(blob[_HEADER.size : end]), "the snapshot")
        check_streams(content["streams"])
        tables = []
        while end < len(blob):
            (size,) = _LENGTH.unpack_from(blob, end)
            end += _LENGTH.size + size
            tables.append(pa.py_buffer(blob)[end - size : end])
        windows = len(tables) - (content["config"].shedding is not None)
        if end != len(blob) or windows != len(content["windows"]):
            raise StateError(f"the snapshot is cut short: it holds {windows} of {len(content['windows'])} windows")
    return Snapshot(content, tables)


def _manifest(engine: ShardEngine) -> dict[str, Any]:
    """Return the content of an `EngineManifest`."""
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


def attach(
    arena: Arena, serialized: Mapping[str, Any], plan: ExecutionPlan, replan: Replan | None = None
) -> ShardEngine:
    """Return an engine over the arrays that another one left in `arena`.

    `serialized` is its `arena_manifest`.

    That engine must have run `plan`, in any probe orders.
    """
    if not isinstance(arena, MappedArena):
        raise StateError("the arrays are in another process's memory", "use a MappedArena to share arrays")
    if (version := serialized.get("arrays")) != ARRAYS:
        raise StateError(f"the arrays have format {version or 1}; this release attaches to format {ARRAYS}")
    differ = [
        step[0]
        for step in (*serialized["outline"], *plan.structure)
        if (step in serialized["outline"]) != (step in plan.structure)
    ]
    if differ:
        raise StateError(f"the arrays were written under another plan, which differs in {listed(sorted(set(differ)))}")
    manifest = from_json(ArenaManifest, serialized, "the arrays")
    engine = ShardEngine(manifest["config"], arena, replan)
    for stream in manifest["streams"]:
        engine.add_stream(stream["schema"])
    arena.is_attaching = True
    engine.adopt(_with_orders(plan, manifest["runs"]), serialized["stores"])
    if serialized["stores"].keys() != {store.name for store in engine.stores()}:
        raise StateError(
            f"the arrays belong to windows {listed(serialized['stores'])}, which are not those of the plan"
        )
    for store in engine.stores():
        store.resume(serialized["stores"][store.name])
    arena.is_attaching = False
    _restore_counters(engine, manifest)
    return engine


def arena_manifest(engine: ShardEngine) -> dict[str, Any]:
    """Return what another engine needs, besides the plan, to attach to the arrays of this one."""
    stores = {store.name: store.position for store in engine.stores()}
    manifest: dict[str, Any] = to_json(
        _manifest(engine) | {"arrays": ARRAYS, "outline": engine.plan.structure, "stores": stores}
    )
    return manifest


def _with_orders(plan: ExecutionPlan, runs: Mapping[str, SerializedRun]) -> ExecutionPlan:
    """Return the plan with the probe orders that an engine used last: its arrays hold what those need."""
    changed = []
    for step in plan.steps:
        runners, builder, paths = runs[step.name]["runners"], PathBuilder(step.plan.query), []
        for path in step.plan.paths:
            order, access = runners[path.driver]["order"], runners[path.driver]["access"]
            same = order == list(path.order) and access == [stage.access for stage in path.stages]
            paths.append(path if same else builder.path(path.driver, order, _access_rule(order, access)))
        if tuple(paths) != step.plan.paths:
            changed.append(replace(step, plan=replace(step.plan, paths=tuple(paths), estimate=PlanEstimate())))
    return plan.with_steps(changed) if changed else plan


def _access_rule(order: list[str], access: list[Access]) -> AccessRule:
    access_by_alias = dict(zip(order, access, strict=True))
    return lambda alias, _: access_by_alias[alias]


def _run_json(run: JoinRun) -> dict[str, Any]:
    return {
        "results": {name: collector.results for name, collector in run.collectors.items()},
        "runners": {driver: runner.to_json() for driver, runner in run.runners.items()},
        "watch": run.watch,
        "retired": run.replaced_path_counts,
    }


def _restore_counters(engine: ShardEngine, manifest: EngineManifest) -> None:
    """Set the progress and the counters of an engine from its manifest."""
    engine.batches = manifest["batches"]
    engine.joined.expiry.kept_from = dict(manifest["kept_from"])
    for stream in manifest["streams"]:
        engine.progress[stream["schema"].name].restore(stream["progress"])
    for group in engine.groups:
        group.batches = manifest["groups"][group.name]
    for run in engine.runs:
        saved = manifest["runs"][run.name]
        run.replaced_path_counts, run.watch = list(saved["retired"]), saved["watch"]
        for name, collector in run.collectors.items():
            collector.results = saved["results"][name]
        for driver, runner in run.runners.items():
            runner.restore(saved["runners"][driver])


def _windows(engine: ShardEngine) -> Iterator[WindowStore]:
    """Yield every store of tuples, always in the same order. Materialized joins are rebuilt from them."""
    return (store for store in engine.stores() if not isinstance(store, MaterializedJoin))
