"""The stateful stage: a thin shell that gives each batch of a shard to its engine and keeps the shard's log.

An attempt reads the manifest, takes over the live arrays that belong to it or rebuilds them from the log, joins the batch, writes log
and manifest under a new token, and gives the arrays back under that token. Spark commits the state only if the task succeeds; until
then the new token is nobody's, so a failed or repeated attempt changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from dovetail.engine.arena import MappedArena
from dovetail.engine.group import Cell
from dovetail.engine.shard import ShardEngine
from dovetail.engine.snapshot import attach, manifest
from dovetail.engine.window_store import LONG_AGO
from dovetail.errors import StateError
from dovetail.plan.nodes import QueryPlan
from dovetail.spark.cut import from_ipc, to_ipc
from dovetail.spark.layout import Layout, ShardGroup, read_layout
from dovetail.spark.live import LiveShard, live_root
from dovetail.spark.log import Log, Manifest

RESULT_SCHEMA = "query int, rows bigint, segment binary"
METRICS = -1
"""The query number of a row that holds a shard's metrics as JSON."""
LARGEST_RESULT = 32 << 20
"""Bytes of results that go into one row."""


class ShardProcessor(StatefulProcessor):
    """Joins the tuples of one shard."""

    def __init__(self, layout: str, shard_ids: list[int], run: str) -> None:
        self._layout_text = layout
        self._shard_ids = shard_ids
        self._run = run

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._manifest = handle.getValueState("manifest", "json string")
        self._segments = handle.getMapState("segments", "number bigint", "content binary")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        layout = read_layout(self._layout_text)
        shard = self._shard_ids.index(key[0])
        stored = self._manifest.get() if self._manifest.exists() else None
        state = Manifest.from_json(stored[0], layout.digest) if stored else Manifest(layout.digest)
        worker = _Worker(layout, shard, Log(state, self._segments), LiveShard(live_root(self._run), shard))
        output = worker.run(_read_rows(rows))
        self._manifest.update((worker.log.manifest.to_json(),))
        yield output

    def close(self) -> None:
        pass


class _Batch:
    """One shard's part of a micro-batch."""

    def __init__(self) -> None:
        self.segments: dict[int, list[bytes]] = {}
        self.highs: dict[int, int] = {}
        self.refused: dict[int, int] = {}


def _read_rows(frames: Iterator[pd.DataFrame]) -> _Batch:
    batch = _Batch()
    for frame in frames:
        for stream, segment, high, refused in zip(
            frame["stream"], frame["segment"], frame["high"], frame["refused"], strict=True
        ):
            if segment is not None:
                batch.segments.setdefault(int(stream), []).append(bytes(segment))
            elif high > LONG_AGO:
                batch.highs[int(stream)] = max(int(high), batch.highs.get(int(stream), LONG_AGO))
            batch.refused[int(stream)] = batch.refused.get(int(stream), 0) + int(refused)
    for segments in batch.segments.values():
        segments.sort()  # tasks finish in any order; a replay must see the same one
    return batch


class _Worker:
    """One attempt at one batch of one shard."""

    def __init__(self, layout: Layout, shard: int, log: Log, live: LiveShard) -> None:
        self._layout = layout
        self._shard = shard
        self._group: ShardGroup = layout.group_of(shard)
        self.log = log
        self._live = live

    def run(self, batch: _Batch) -> pd.DataFrame:
        work, engine = self._attached()
        rebuilt = engine is None
        work = work or self._live.new()
        try:
            engine = engine or self._rebuilt(work)
            results = self._join(engine, batch)
            self._keep_log(engine)
            (work / "engine.json").write_text(json.dumps(manifest(engine)), encoding="utf-8")
        except BaseException:
            self._live.drop(work)
            raise
        token = uuid.uuid4().hex
        self.log.manifest.token = token
        self._live.give(work, token)
        return self._output(engine, results, rebuilt=rebuilt)

    def _plans(self) -> tuple[dict[str, QueryPlan], dict[str, Cell]]:
        queries = self._group.queries
        cells = {query.name: self._group.cell(query, self._shard) for query in queries}
        return {query.name: self._layout.plans[query.name] for query in queries}, cells

    def _attached(self) -> tuple[Path | None, ShardEngine | None]:
        """The live arrays of the state's token; nothing when they are not here or damaged, for the log has it all."""
        work = self._live.take(self.log.manifest.token)
        if work is None:
            return None, None
        try:
            stored = json.loads((work / "engine.json").read_text(encoding="utf-8"))
            return work, attach(MappedArena(work), stored, *self._plans())
        except (StateError, OSError, ValueError, KeyError):
            self._live.drop(work)
            return None, None

    def _rebuilt(self, work: Path) -> ShardEngine:
        plans, cells = self._plans()
        engine = ShardEngine(self._layout.config, MappedArena(work))
        for stream in self._layout.streams:
            engine.add_stream(stream)
        for name, plan in plans.items():
            engine.add_query(plan, cells[name])
        tables = {}
        for stream in self._layout.streams:
            held = list(self.log.tables(stream.name))
            if held:
                tables[stream.name] = pa.concat_tables(held)
        engine.load(tables, self.log.manifest.heads)
        return engine

    def _join(self, engine: ShardEngine, batch: _Batch) -> dict[str, list[pa.Table]]:
        tables = {}
        counters = self.log.manifest.counters
        for number, schema in enumerate(self._layout.streams):
            counted = counters.setdefault(schema.name, {"arrivals": 0, "late": 0, "refused": 0})
            counted["refused"] += batch.refused.get(number, 0)
            if number not in batch.segments:
                continue
            table = pa.concat_tables([from_ipc(segment) for segment in batch.segments[number]])
            times = micros(table, schema.event_time)
            on_time = pc.greater_equal(times, engine.progress[schema.name].watermark)
            counted["arrivals"] += table.num_rows
            late = table.num_rows - int(pc.sum(on_time).as_py() or 0)
            if late:
                counted["late"] += late
                table, times = table.filter(on_time), times.filter(on_time)
            if table.num_rows:
                tables[schema.name] = table
                self.log.append(schema.name, table, times)
        found = engine.push(tables)
        highs = {self._layout.streams[number].name: high for number, high in batch.highs.items()}
        settled = engine.advance(highs)
        return {name: [found[name], settled[name]] for name in found}

    def _keep_log(self, engine: ShardEngine) -> None:
        state = self.log.manifest
        for schema in self._layout.streams:
            state.heads[schema.name] = engine.progress[schema.name].head
            self.log.forget(schema.name, engine.oldest(schema.name))
            self.log.compact(schema.name, schema.event_time)

    def _output(self, engine: ShardEngine, results: Mapping[str, list[pa.Table]], *, rebuilt: bool) -> pd.DataFrame:
        names = [name for name, _ in self._layout.queries]
        rows: list[tuple[int, int, bytes]] = []
        for name, tables in results.items():
            table = pa.concat_tables(tables)
            pieces = -(-table.nbytes // LARGEST_RESULT)  # a row of Spark's holds two gigabytes at the most
            step = max(1, -(-table.num_rows // max(1, pieces)))
            for first in range(0, table.num_rows, step):
                piece = table.slice(first, step)
                rows.append((names.index(name), piece.num_rows, to_ipc(piece)))
        own = engine.metrics()
        metrics = {"shard": self._shard, "rebuilt": rebuilt, "counters": self.log.manifest.counters, **own}
        metrics["log_bytes"] = sum(segment.size for segment in self.log.manifest.segments)
        rows.append((METRICS, 0, json.dumps(metrics).encode()))
        return pd.DataFrame(rows, columns=["query", "rows", "segment"])


def micros(table: pa.Table, event_time: str) -> pa.ChunkedArray:
    """Event times in microseconds."""
    times = table.column(event_time)
    if times.type.unit != "us":
        raise StateError(f"event time {event_time!r} came in {times.type.unit}; Spark's timestamps are microseconds")
    return times.cast(pa.int64())
