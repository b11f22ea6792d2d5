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

import numpy as np
import pyarrow as pa

from dovetail.config import Config
from dovetail.engine.arena import Arena
from dovetail.engine.group import JoinGroup
from dovetail.engine.keys import combine
from dovetail.engine.progress import StreamProgress
from dovetail.engine.runs import JoinRun
from dovetail.engine.settle import SettledGroup
from dovetail.engine.shard import ShardEngine
from dovetail.engine.watch import Replan, Watch
from dovetail.engine.window_store import Arrivals, WindowStore
from dovetail.errors import StateError
from dovetail.plan.nodes import ProbePath, QueryPlan
from dovetail.plan.steps import Cell, JoinStep
from dovetail.schema import StreamSchema

MAGIC = b"DOVETAIL"
VERSION = 2
_HEADER = struct.Struct("<8sI16sQ")
"""Magic, format version, digest of all that follows it, length of the JSON."""
_LENGTH = struct.Struct("<Q")


@dataclass(slots=True)
class StoredShard:
    """A snapshot that has been read, not yet filled into an engine."""

    config: Config
    streams: list[StreamSchema]
    queries: list[tuple[str, str]]
    extra: dict[str, Any]
    manifest: dict[str, Any]
    tables: list[pa.Table] = field(default_factory=list)

    def fill(self, engine: ShardEngine, steps: Mapping[str, JoinStep]) -> None:
        """Bring an engine that knows the streams, and nothing else, to the stored state."""
        _restore_runs(engine, self.manifest, steps)
        for store, table in zip(_windows(engine), self.tables, strict=True):
            store.append(_arrivals(store, table))
        engine.joined.store_again()
        engine.joined.expire(engine.progress)


def take_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> StoredShard:
    """The same as writing and reading a snapshot, without the bytes."""
    content = json.loads(json.dumps(manifest(engine) | {"extra": extra}))
    return _stored(content, [_table(store) for store in _windows(engine)])


def write_snapshot(engine: ShardEngine, extra: Mapping[str, Any]) -> bytes:
    """The whole state of an engine, and whatever JSON its session adds."""
    header = json.dumps(manifest(engine) | {"extra": extra}).encode()
    parts = [header]
    for store in _windows(engine):
        sink = pa.BufferOutputStream()
        table = _table(store)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue()
        parts += [_LENGTH.pack(len(content)), content.to_pybytes()]
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
    try:
        content = json.loads(blob[_HEADER.size : end])
        tables = []
        while end < len(blob):
            (size,) = _LENGTH.unpack_from(blob, end)
            end += _LENGTH.size + size
            if end > len(blob):
                raise StateError("the snapshot is cut short")
            tables.append(pa.ipc.open_stream(pa.py_buffer(blob)[end - size : end]).read_all())
    except (ValueError, struct.error, pa.ArrowInvalid, OSError) as error:
        raise StateError(f"the snapshot is damaged: {error}") from None
    if len(tables) != len(content["windows"]):
        raise StateError(f"the snapshot is cut short: it holds {len(tables)} of {len(content['windows'])} windows")
    return _stored(content, tables)


def manifest(engine: ShardEngine) -> dict[str, Any]:
    """What an engine knows beside its arrays, as JSON: enough to attach another engine to the same mapped arrays."""
    return {
        "config": asdict(engine.config),
        "batches": engine.batches,
        "streams": [_stream_json(engine.progress[name]) for name in engine.streams],
        "groups": [_group_json(group) for group in engine.groups],
        "windows": [store.name for store in _windows(engine)],
        "stores": {store.name: store.position for store in _stores(engine)},
    }


def attach(
    arena: Arena,
    stored: Mapping[str, Any],
    steps: Mapping[str, JoinStep],
    cells: Mapping[str, Cell] | None = None,
    replan: Replan | None = None,
) -> ShardEngine:
    """An engine over the arrays that another one, whose `manifest` this is, left in `arena`."""
    described = _stored(dict(stored), [])
    engine = ShardEngine(described.config, arena, replan)
    for schema in described.streams:
        engine.add_stream(schema)
    _restore_runs(engine, described.manifest, steps, cells, attaching=True)
    return engine


def _stored(content: dict[str, Any], tables: list[pa.Table]) -> StoredShard:
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
        group.positions = stored["stores"] if attaching else {}
        for run in entry["runs"]:
            _restore_run(engine, group, run, steps[run["name"]], cells)
        group.positions = {}
    engine.relate()
    for store in _stores(engine):
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


def _stores(engine: ShardEngine) -> Iterator[WindowStore]:
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


def _table(store: WindowStore) -> pa.Table:
    """The living rows: event times, flags, columns, and the codes of single key parts."""
    rows = np.arange(store.rows.tail, store.rows.head)
    columns: dict[str, Any] = {"ts": store.living("ts")}
    for word in range(store.flag_words):
        columns[store.flag_name(word)] = store.living(store.flag_name(word))
    for name in store.columns:
        columns[f"column:{name}"] = store.take(name, rows)
    for key, name in store.codes.items():
        if len(key) == 1:
            columns[name] = store.living(name)
    return pa.table(columns)


def _arrivals(store: WindowStore, table: pa.Table) -> Arrivals:
    def numbers(name: str) -> Any:
        return table.column(name).to_numpy()

    try:
        parts = {key[0]: numbers(name) for key, name in store.codes.items() if len(key) == 1}
        columns = {name: _whole(table.column(f"column:{name}")) for name in store.columns}
        flags = [numbers(store.flag_name(word)) for word in range(store.flag_words)]
        codes = {key: combine([parts[part] for part in key]) for key in store.codes}
    except KeyError as error:
        raise StateError(f"the snapshot lacks {error} of window {store.name!r}") from None
    return Arrivals(numbers("ts"), {}, columns, codes, flags)


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
