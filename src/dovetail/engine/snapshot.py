"""A shard's state as Arrow and JSON under a format version: snapshots, and the manifest that goes with mapped arrays.

A snapshot holds the tuples that windows still need, which of them each query may see (that depends on when the query was added), and
how far each stream has come. Indexes, composite codes and the ends of count windows are made again from these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.arena import Arena
from dovetail.engine.group import JoinGroup
from dovetail.engine.progress import StreamProgress
from dovetail.engine.runs import JoinRun
from dovetail.engine.settle import SettledGroup
from dovetail.engine.shapes import reading
from dovetail.engine.shard import ShardEngine
from dovetail.engine.stored import check_filled, check_run, check_snapshot, check_stream, check_watch
from dovetail.engine.stored_tables import arrivals_of, written
from dovetail.engine.watch import Replan, Watch
from dovetail.engine.window_store import WindowStore
from dovetail.errors import StateError, listed
from dovetail.plan.nodes import ProbePath, QueryPlan
from dovetail.plan.steps import Cell, JoinStep
from dovetail.schema import StreamSchema

MAGIC = b"DOVETAIL"
VERSION = 3
_HEADER = struct.Struct("<8sI16sQ")
"""Magic, format version, digest of all that follows it, length of the JSON."""
_LENGTH = struct.Struct("<Q")
_FLAGS = "flags:"


@dataclass(slots=True)
class StoredShard:
    """A snapshot that has been read, not yet filled into an engine."""

    config: Config
    streams: list[StreamSchema]
    queries: list[tuple[str, str]]
    extra: dict[str, Any]
    manifest: dict[str, Any]
    tables: list[pa.Buffer] = field(default_factory=list)
    ours: bool = False
    """Whether it was taken by this process just now, and not read."""

    def fill(self, engine: ShardEngine, steps: Mapping[str, JoinStep]) -> None:
        """Bring an engine that knows the streams, and nothing else, to the stored state."""
        words = max((_words(table) for table in self.tables), default=0)
        for group in self.manifest["groups"]:
            for run in group["runs"]:
                check_run(run, steps[run["name"]], group, words)
                check_watch(run["watch"], steps[run["name"]].plan)
        _restore_runs(engine, self.manifest, steps)
        check_filled(engine)
        for store, table in zip(_windows(engine), self.tables, strict=True):
            for arrivals in arrivals_of(store, table, ours=self.ours):
                store.append(arrivals)
        if not engine.batches and any(len(store.rows) for store in _windows(engine)):
            raise StateError("the snapshot has tuples though no batch was pushed")
        engine.joined.store_again()
        engine.joined.expire(engine.progress)


def _words(table: pa.Buffer) -> int:
    """How many words of flags the rows of a stored window have."""
    return sum(name.startswith(_FLAGS) for name in pa.ipc.open_stream(table).schema.names)


def take_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> StoredShard:
    """The same as writing and reading a snapshot, without the copies."""
    content = json.loads(json.dumps(manifest(engine) | {"extra": extra}))
    stored = _stored(content, [written(store) for store in _windows(engine)])
    stored.ours = True
    return stored


def write_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> bytes:
    """The whole state of an engine, and whatever JSON its session adds."""
    header = json.dumps(manifest(engine) | {"extra": extra}).encode()
    parts = [header]
    for store in _windows(engine):
        table = written(store)
        parts += [_LENGTH.pack(len(table)), table.to_pybytes()]
    content = b"".join(parts)
    return _HEADER.pack(MAGIC, VERSION, _digest(len(header), content), len(header)) + content


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
        content = json.loads(blob[_HEADER.size : end])
        check_snapshot(content)
        tables = []
        while end < len(blob):
            (size,) = _LENGTH.unpack_from(blob, end)
            end += _LENGTH.size + size
            tables.append(pa.py_buffer(blob)[end - size : end])
        if end != len(blob) or len(tables) != len(content["windows"]):
            raise StateError(f"the snapshot is cut short: it holds {len(tables)} of {len(content['windows'])} windows")
        stored = _stored(content, tables)
        for schema, stream in zip(stored.streams, content["streams"], strict=True):
            check_stream(schema, stream["progress"])
    return stored


def manifest(engine: ShardEngine) -> dict[str, Any]:
    """What an engine knows beside its arrays, as JSON: enough to attach another engine to the same mapped arrays."""
    return {
        "config": asdict(engine.config),
        "batches": engine.batches,
        "streams": [_stream_json(engine.progress[name]) for name in engine.streams],
        "groups": [_group_json(group) for group in engine.groups],
        "windows": [store.name for store in _windows(engine)],
        "stores": {store.name: store.position for store in stores(engine)},
    }


def attach(
    arena: Arena,
    stored: Mapping[str, Any],
    steps: Mapping[str, JoinStep],
    cells: Mapping[str, Cell] | None = None,
    replan: Replan | None = None,
) -> ShardEngine:
    """An engine over the arrays that another one, whose `manifest` this is, left in `arena`; all `steps` must have run in it."""
    described = _stored(dict(stored), [])
    ran = {run["name"] for group in stored["groups"] for run in group["runs"]}
    if ran != set(steps):
        raise StateError(f"the arrays are those of joins {listed(sorted(ran))}; expected {listed(sorted(steps))}")
    engine = ShardEngine(described.config, arena, replan)
    for schema in described.streams:
        engine.add_stream(schema)
    _restore_runs(engine, described.manifest, steps, cells, attaching=True)
    return engine


def _stored(content: dict[str, Any], tables: list[pa.Buffer]) -> StoredShard:
    streams = [StreamSchema.from_json(stream["schema"]) for stream in content["streams"]]
    runs = [run for group in content["groups"] for run in group["runs"]]
    queries = [(taker["name"], taker["sql"]) for run in runs for taker in run["takers"]]
    return StoredShard(Config(**content["config"]), streams, queries, content.get("extra", {}), content, tables)


def _stream_json(progress: StreamProgress) -> dict[str, Any]:
    return {"schema": progress.schema.to_json(), "progress": progress.to_json()}


def _group_json(group: JoinGroup) -> dict[str, Any]:
    frontier = sorted(group.frontier) if isinstance(group, SettledGroup) else None
    runs = [_run_json(group, run) for run in group.runs.values()]
    return {"name": group.name, "frontier": frontier, "batches": group.batches, "runs": runs}


def _run_json(group: JoinGroup, run: JoinRun) -> dict[str, Any]:
    sources = {ref.alias: group.windows[ref.stream].usages[run.name, ref.alias] for ref in run.step.flat.refs}
    inputs = {alias: group.states[alias].readers[run.name] for alias in run.step.stored_inputs}
    return {
        "name": run.name,
        "sources": {source: [usage.word, int(usage.bit)] for source, usage in sources.items()},
        "inputs": {alias: [reader.word, int(reader.bit)] for alias, reader in inputs.items()},
        "takers": [
            {"name": name, "sql": collector.query.sql, "results": collector.results}
            for name, collector in run.collectors.items()
        ],
        "runners": {driver: runner.to_json() for driver, runner in run.runners.items()},
        "watch": run.watch.to_json(),
        "retired": run.retired,
        "state": run.step.state,
        "windows": run.windows,
    }


def _restore_runs(
    engine: ShardEngine,
    stored: Mapping[str, Any],
    steps: Mapping[str, JoinStep],
    cells: Mapping[str, Cell] | None = None,
    *,
    attaching: bool = False,
) -> None:
    engine.batches = stored["batches"]
    for stream in stored["streams"]:
        engine.progress[stream["schema"]["name"]].restore(stream["progress"])
    for entry in stored["groups"]:
        frontier = entry["frontier"]
        group = engine.joined if frontier is None else engine.settled_group(entry["name"], frozenset(frontier))
        group.batches = entry["batches"]
        group.positions = stored["stores"] if attaching else None
        for run in entry["runs"]:
            _restore_run(engine, group, run, steps[run["name"]], cells)
        group.positions = None
    engine.relate()
    if stored["windows"] != [store.name for store in _windows(engine)]:
        raise StateError(f"the stored windows are not those of the joins: {listed(stored['windows'])}")
    for store in stores(engine):
        store.attached()


def _restore_run(
    engine: ShardEngine,
    group: JoinGroup,
    stored: Mapping[str, Any],
    step: JoinStep,
    cells: Mapping[str, Cell] | None,
) -> None:
    results = {taker["name"]: taker["results"] for taker in stored["takers"]}
    takers = tuple(taker for taker in step.takers if taker.query.name in results)
    step = step.narrowed(stored["windows"])
    step = replace(step, plan=_as_it_ran(engine, step.plan, stored["runners"]), takers=takers, state=stored["state"])
    places = {kind: {name: (word, bit) for name, (word, bit) in stored[kind].items()} for kind in ("sources", "inputs")}
    group.add_step(step, cells, places)
    run = group.runs[step.name]
    run.retired, run.watch = stored["retired"], Watch.from_json(stored["watch"])
    for name, collector in run.collectors.items():
        collector.results = results[name]
    for driver, runner in run.runners.items():
        runner.restore(stored["runners"][driver])


def _as_it_ran(engine: ShardEngine, plan: QueryPlan, runners: Mapping[str, Any]) -> QueryPlan:
    """The plan with the orders that had been reached: the arrays hold what those need."""
    orders = {driver: tuple(runner["order"]) for driver, runner in runners.items()}
    access = {driver: dict(zip(runner["order"], runner["access"], strict=True)) for driver, runner in runners.items()}
    same = (path.order == orders[path.driver] and _access(path) == access[path.driver] for path in plan.paths)
    if engine.replan is None or all(same):
        return plan
    return engine.replan.with_orders(plan, orders, access=access)


def _access(path: ProbePath) -> dict[str, str]:
    return {stage.alias: stage.access for stage in path.stages}


def stores(engine: ShardEngine) -> Iterator[WindowStore]:
    """Every store of an engine."""
    yield from _windows(engine)
    yield from engine.joined.states.values()


def _windows(engine: ShardEngine) -> Iterator[WindowStore]:
    """Every store of tuples, always in the same order. Stored matches are found again from these."""
    for group in engine.groups:
        for stream in sorted(group.windows):
            yield group.windows[stream].store
            if isinstance(group, SettledGroup):
                yield group.pending[stream]
