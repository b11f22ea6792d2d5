"""The pipeline without Spark: cut, shards with a map for a state store, decode. Everything Python, nothing of the JVM."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dovetail.config import Config
from dovetail.optimizer.planner import plan_query
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.spark.contract import digest
from dovetail.spark.cut import Cut
from dovetail.spark.layout import Layout, WorkerPlan
from dovetail.spark.live import LiveShard
from dovetail.spark.log import MANIFEST, Log
from dovetail.spark.output import ShardOutput
from dovetail.spark.processor import ShardInput, Worker, retire
from dovetail.spark.wire import CLOCK, ResultRow, from_ipc


class Segments:
    """Map state in memory."""

    def __init__(self) -> None:
        self.content: dict[int, bytes] = {}

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802
        return (self.content[key[0]],) if key[0] in self.content else None

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        self.content[key[0]] = value[0]

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        del self.content[key[0]]

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content[MANIFEST])
        return found


def layout_of(
    streams: tuple[StreamSchema, ...], sql: Mapping[str, str], shards: int, config: Config | None = None
) -> Layout:
    catalog, config = {stream.name: stream for stream in streams}, config or Config()
    queries = [parse_query(name, text, catalog) for name, text in sql.items()]
    return Layout(streams, tuple(plan_query(query, catalog, config) for query in queries), config, shards)


class Pipeline:
    """Runs micro-batches through cut and shards; `fail` gives attempts that die after they have joined."""

    def __init__(self, layout: Layout, live: Path, rng: random.Random) -> None:
        self.layout = layout
        self.plan = layout.for_workers(digest(layout))
        self.known: list[WorkerPlan] = []
        """Plans that ran before."""
        self.live = live
        self.rng = rng
        self.states = {shard: Segments() for shard in range(layout.placement.total)}
        self.rebuilt = self.calls = 0
        self.metrics: dict[int, Any] = {}

    def run(
        self,
        tables: Mapping[str, pa.Table],
        *,
        tasks: int = 2,
        fail: float = 0.0,
        now: int | None = None,
        names: Mapping[int, str] | None = None,
        batch: int | None = None,
    ) -> dict[str, list[pa.Table]]:
        if self.layout.needs_clock:
            tables = {name: t.append_column(CLOCK, pa.array([now] * len(t), pa.int64())) for name, t in tables.items()}
        rows = self._cut(tables, tasks, batch)
        results: dict[str, list[pa.Table]] = {name: [] for name, _ in self.layout.queries}
        names = names or dict(enumerate(results))
        for shard in sorted(rows["shard"].unique()):
            frames = [frame for _, frame in rows[rows["shard"] == shard].groupby("order", sort=False)]
            self.rng.shuffle(frames)  # tasks finish in any order
            while self.rng.random() < fail:
                self._attempt(int(shard), frames, batch, commit=False)
            rows_, self.metrics[int(shard)] = self._attempt(int(shard), frames, batch, commit=True)
            self.rebuilt += self.metrics[int(shard)]["rebuilt"]
            self.calls += 1
            for row in rows_:
                results[names[row.query]].append(from_ipc(row.content))
        return results

    def _cut(self, tables: Mapping[str, pa.Table], tasks: int, number_of_batch: int | None) -> pd.DataFrame:
        parts = []
        for number, stream in enumerate(self.layout.streams):
            if stream.name not in tables:
                continue
            table = tables[stream.name]
            ids = list(range(self.layout.placement.total))
            for task in range(tasks):
                first, stop = (number_ * table.num_rows // tasks for number_ in (task, task + 1))
                batches = table.slice(first, stop - first).combine_chunks().to_batches(max_chunksize=7)
                cut = Cut(self.plan, number, ids, number_of_batch)
                for order, batch in enumerate(cut.rows(iter(batches))):
                    frame = batch.to_pandas()
                    frame["order"] = f"{number}/{task}/{order}"
                    parts.append(frame)
        columns = ["shard", "stream", "kind", "firsts", "content", "order"]
        return pd.concat(parts) if parts else pd.DataFrame(columns=columns)

    def _attempt(
        self, shard: int, frames: list[pd.DataFrame], batch: int | None, *, commit: bool
    ) -> tuple[list[ResultRow], dict[str, Any]]:
        trial = copy.deepcopy(self.states[shard])
        log, live = Log(trial, self.plan.digest, self.plan.catalog), LiveShard(self.live, shard)
        if shard not in self.plan.shards:
            retire(log, live)
            if commit:
                self.states[shard] = trial
            return [], {"rebuilt": False}
        worker = Worker(self.plan, shard, log, live, batch, self.known)
        with ShardOutput(self.plan.queries, {}, shard) as output:
            metrics = worker.join(ShardInput.read(frames), output.add)
        if commit:
            worker.log.save()
            self.states[shard] = trial
        return output.rows, metrics
