"""The pipeline without Spark: cut, shards with a map for a state store, decode. Everything Python, nothing of the JVM."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dovetail.config import Config
from dovetail.optimizer.planner import plan_query
from dovetail.query.sql import parse_query
from dovetail.schema import StreamSchema
from dovetail.session.job import Job
from dovetail.session.registered_query import RegisteredQuery
from dovetail.spark.checkpoint.compatibility import current_json, digest
from dovetail.spark.checkpoint.repartition import RepartitionPlan
from dovetail.spark.checkpoint.reshard import resharded
from dovetail.spark.driver.layout import Layout, WorkerPlan, read_worker_plan
from dovetail.spark.driver.placement import Placement
from dovetail.spark.state.log import MANIFEST, ShardLog, ShardManifest
from dovetail.spark.state.shared_memory import SharedMemoryShard
from dovetail.spark.wire import CLOCK, ResultRow, from_ipc
from dovetail.spark.worker.drop_log import DropLog
from dovetail.spark.worker.output import ShardOutput
from dovetail.spark.worker.processor import ShardAttempt, retire
from dovetail.spark.worker.router import Router
from dovetail.spark.worker.shard_input import ShardInput


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
    queries = {name: parse_query(name, text, catalog) for name, text in sql.items()}
    registered = {name: RegisteredQuery(plan_query(query, catalog, config)) for name, query in queries.items()}
    return Layout.of(Job(config, streams=catalog, registered=registered), Placement(shards))


class Pipeline:
    """Runs micro-batches through cut and shards; `fail` gives attempts that die after they have joined."""

    def __init__(self, layout: Layout, live: Path, rng: random.Random) -> None:
        self.layout = layout
        self.chunk_rows = 7
        """Rows of an Arrow batch in which a stream arrives; few, so that small inputs have several."""
        self.plan = layout.for_workers(digest(layout))
        self.known: list[WorkerPlan] = []
        """Plans that ran before."""
        self.live = live
        self.rng = rng
        self.states = {shard: Segments() for shard in range(layout.placement.total)}
        self.rebuilt = self.calls = 0
        self.metrics: dict[int, Any] = {}
        self.records_dropped = False
        self.dropped: list[pa.Table] = []

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

    def reshard(self, shards: int, rates: Mapping[str, float] | None = None) -> None:
        """Partition again what the shards hold, as workers do it; the live arrays of before are of no use then."""
        layout = self.resharded(shards, rates)
        plan = self.repartition_plan(layout)
        self.take(plan, self.repartition(plan))
        self.layout, self.plan = layout, layout.for_workers(digest(layout))
        self.known = [self.plan]
        self.states = {shard: self.states.get(shard, Segments()) for shard in self.plan.shard_list}

    def resharded(self, shards: int, rates: Mapping[str, float] | None = None) -> Layout:
        layout = resharded(self.layout, shards, rates or {})
        return replace(layout, pinned_json=current_json(layout))

    def repartition_plan(self, layout: Layout) -> RepartitionPlan:
        plan, ids = layout.for_workers(digest(layout)), tuple(range(100))
        manifests = {
            shard: ShardManifest.from_json(state.content[MANIFEST], self.plan.digest)
            for shard, state in self.states.items()
            if state.content
        }
        return RepartitionPlan.between(self.plan, plan, ids, ids, manifests)

    def repartition(self, plan: RepartitionPlan) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for shard in plan.shards_to_read:
            content = self.states[shard].content
            held = {"shard": [shard] * len(content), "number": list(content), "content": list(content.values())}
            rows += plan.repartition(pa.table(held)).to_pylist()
        return rows

    def take(self, plan: RepartitionPlan, rows: list[dict[str, Any]]) -> None:
        called = {*self.states, *read_worker_plan(plan.new_plan).shard_list}
        rows = rows + [{"shard": shard, "stream": None, "batch": 0, "content": None} for shard in called]
        self.rng.shuffle(rows)
        for shard in called:
            own = pd.DataFrame([row for row in rows if row["shard"] == shard])
            plan.replace_state(shard, [own], self.states.setdefault(shard, Segments()))

    def _cut(self, tables: Mapping[str, pa.Table], tasks: int, number_of_batch: int | None) -> pd.DataFrame:
        parts = []
        for number, stream in enumerate(self.layout.streams):
            if stream.name not in tables:
                continue
            table = tables[stream.name]
            ids = list(range(self.layout.placement.total))
            for task in range(tasks):
                first, stop = (number_ * table.num_rows // tasks for number_ in (task, task + 1))
                batches = table.slice(first, stop - first).combine_chunks().to_batches(max_chunksize=self.chunk_rows)
                cut = Router(self.plan, number, ids, number_of_batch, sends_dropped=self.records_dropped)
                for order, batch in enumerate(cut.rows(iter(batches))):
                    frame = batch.to_pandas()
                    frame["order"] = f"{number}/{task}/{order}"
                    parts.append(frame)
        columns = ["shard", "stream", "kind", "first_copies", "content", "order"]
        return pd.concat(parts) if parts else pd.DataFrame(columns=columns)

    def _attempt(
        self, shard: int, frames: list[pd.DataFrame], batch: int | None, *, commit: bool
    ) -> tuple[list[ResultRow], dict[str, Any]]:
        trial = copy.deepcopy(self.states[shard])
        log, live = ShardLog(trial, self.plan.digest, self.plan.catalog), SharedMemoryShard(self.live, shard)
        if shard not in self.plan.shard_list:
            retire(log, live)
            if commit:
                self.states[shard] = trial
            return [], {"rebuilt": False}
        attempt = ShardAttempt(self.plan, shard, log, live, batch, self.known)
        attempt.drops = DropLog(shard) if self.records_dropped else None
        with ShardOutput(self.plan.queries, {}, shard) as output:
            metrics = attempt.join(ShardInput.read(frames), output.add)
        if commit:
            self.dropped += attempt.drops.pieces() if attempt.drops is not None else ()
            attempt.log.save()
            self.states[shard] = trial
        return output.rows, metrics
