"""The content of the windows of a checkpoint, read while its job runs or after it has stopped.

Spark's state reader provides the log of each shard; it is decoded on the driver. Flags are computed from the
filters, keys and starts of the plan that wrote the state, as they are when a shard is rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail._typing import Int64Array
from dovetail.config import Config
from dovetail.errors import ConfigError, StateError, listed
from dovetail.plan.names import window_name
from dovetail.query.model import CountWindow
from dovetail.schema import StreamSchema
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.compatibility import digest
from dovetail.spark.checkpoint.directories import JVM_ERRORS, reason
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.checkpoint.plan_log import in_force
from dovetail.spark.checkpoint.repartition import first_copies, total_progress
from dovetail.spark.driver.arguments import check_checkpoint, check_spark
from dovetail.spark.driver.job_diff import read_layout
from dovetail.spark.driver.layout import Layout, ShardGroupPlan, WorkerPlan, read_worker_plan
from dovetail.spark.driver.pipeline import read_state as read_entries
from dovetail.spark.driver.pipeline import with_shard_ids
from dovetail.spark.state.log import RESTORE_HINT, ShardLog, drop_older, select_numbers

BATCH = "_batch"
"""Column with the batch that a tuple came with."""
_ROW = "dovetail:row"
"""Column with the position of a tuple."""


def read_state(checkpoint: str | os.PathLike[str], spark: SparkSession | None = None) -> dict[str, pa.Table]:
    """Return the tuples that later results can contain, as one table per window of a checkpoint.

    The job may be running or stopped; the tables are as of the last completed batch. They hold all tuples of the windows, so they must
    fit into the driver's memory.

    Parameters
    ----------
    checkpoint
        The directory that `start` was given.
    spark
        The session to read with; by default the active one.

    Returns
    -------
    Tables by the names of windows in `explain()`: the stream, with the range of shards after an `@` if queries are on several groups
    of shards. A table has the columns that queries read; `_batch`, the batch that a tuple came with, or a later one once segments of
    the log were merged; and `_queries`, the queries that can still give a result with it.
    """
    path = check_checkpoint(checkpoint, "read_state(checkpoint=...)")
    return StoredState.read(_session(spark), path).windows()


def _session(spark: SparkSession | None) -> SparkSession:
    spark = SparkSession.getActiveSession() if spark is None else spark
    if spark is None:
        raise ConfigError("there is no active Spark session to read the state with", "spark = dt.spark.session()")
    check_spark(spark)
    return spark


class _Entries(dict[int, bytes]):
    """The stored entries of a shard, as its log reads them."""

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802 - Spark's name
        return (self[key[0]],) if key[0] in self else None

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        raise NotImplementedError

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        raise NotImplementedError


@dataclass(frozen=True)
class StoredState:
    """The state of all shards after a batch, and the plan that wrote it."""

    layout: Layout
    plan: WorkerPlan
    batch: int
    """The last completed batch."""
    logs: Mapping[int, ShardLog]
    """By shard."""

    @classmethod
    def read(cls, spark: SparkSession, path: str) -> StoredState:
        """Read the state of a checkpoint as of its last completed batch."""
        directory = directory_at(spark, path)
        if "dovetail" not in directory.names():
            raise StateError(
                f"there is no checkpoint at {directory.uri}", "give the directory that a session was started with"
            )
        checkpoint = Checkpoint.peek(directory)
        batch = checkpoint.next_batch - 1
        entries = in_force(checkpoint.plan_log, batch)
        if batch < 0 or checkpoint.pinned_json is None or (checkpoint.plan_log and not entries):
            raise StateError(
                f"the checkpoint {directory.uri} has completed no batch yet: its windows hold nothing",
                "read it again after a batch",
            )
        layout_json = entries[-1].layout_json if entries else checkpoint.pinned_json
        layout = with_shard_ids(spark, read_layout(layout_json, checkpoint.pinned_json, Config()))
        plan = read_worker_plan(entries[-1].plan) if entries else layout.for_workers(digest(layout))
        return cls(layout, plan, batch, _read_logs(spark, directory.uri, batch, layout.shard_ids, plan))

    @cached_property
    def progress(self) -> dict[str, dict[str, Any]]:
        """Progress of the streams, with the counters of all shards added up."""
        return total_progress(log.manifest for log in self.logs.values())

    @cached_property
    def watermarks(self) -> dict[str, int]:
        """Watermark of each stream."""
        from dovetail.engine.time.progress import Progress  # noqa: PLC0415 - it loads the engine

        progress = Progress(self.plan.catalog)
        for stream, serialized in self.progress.items():
            if stream in self.plan.catalog:
                progress[stream].restore(serialized)
        return progress.watermarks

    def windows(self) -> dict[str, pa.Table]:
        """Return the content of each window, by its name."""
        from dovetail.engine.contents import QUERIES, check_added_column  # noqa: PLC0415 - it loads the engine

        for schema in self.plan.streams:
            check_added_column(schema, QUERIES)
            check_added_column(schema, BATCH)
        contents: dict[str, list[pa.Table]] = {}
        for group in self.plan.groups:
            scope = "" if len(self.plan.groups) == 1 else f"shards {group.first_shard} to {group.shard_range[-1]}"
            for shard in group.shard_range:
                for stream, table in self._shard_contents(group, shard):
                    name = window_name(stream, settled=group.has_count_windows, scope=scope)
                    contents.setdefault(name, []).append(table)
        return {name: pa.concat_tables(tables) for name, tables in sorted(contents.items())}

    def _shard_contents(self, group: ShardGroupPlan, shard: int) -> Iterator[tuple[str, pa.Table]]:
        """Yield the content of a shard's windows, each tuple in the first of the shards that it is copied to.

        Shards shed tuples independently, so if they may, each yields all that it holds.
        """
        from dovetail.engine.contents import WindowTuples, flag_words  # noqa: PLC0415 - it loads the engine
        from dovetail.engine.time.intake import TableReader  # noqa: PLC0415

        manifest = self.logs[shard].manifest
        backfill_from = {int(start): times for start, times in manifest.backfill_from.items()}
        first_batch = min(step.first_batch for step in group.plan.steps) if group.has_count_windows else 0
        for window in group.plan.windows:
            schema = self.plan.catalog[window.stream]
            reader, tables, flags = TableReader(schema), [schema.columns.empty_table()], []
            batches = [np.zeros(0, np.int64)]
            for batch_number, table in self._held(shard, schema):
                if batch_number >= first_batch:
                    tables.append(table)
                    batches.append(np.full(len(table), batch_number))
                    flags.append(flag_words(reader.read(table), window, batch_number, backfill_from))
            table = pa.concat_tables(tables)
            ts = reader.read(table).ts
            words = [np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in zip(*flags, strict=True)]
            words = words or [np.zeros(0, np.uint64)] * window.words
            ends = LastInstants(schema, table, ts, self._frontier(group))
            tuples = WindowTuples(window, ts, words, ends.of)
            has_copies = manifest.shedding is None and len(table) > 0
            is_first = first_copies(group, shard - group.first_shard, schema.name, table) if has_copies else None
            held = table.append_column(BATCH, pa.array(np.concatenate(batches)))
            yield schema.name, tuples.content(group.plan, self.watermarks, held.take, is_first)

    def _held(self, shard: int, schema: StreamSchema) -> Iterator[tuple[int, pa.Table]]:
        """Yield the tuples of a stream that a shard holds, by batch."""
        from dovetail.engine.shedding.serialize import numbers_kept  # noqa: PLC0415 - it loads the engine

        log = self.logs[shard]
        shedder = log.read_shedder()
        numbers = (numbers_kept(shedder) or {}).get(schema.name) if shedder is not None else None
        kept_from = log.manifest.kept_from.get(schema.name)
        for batch, tables in log.read_all(sorted({segment.batch for segment in log.manifest.segments})):
            if schema.name in tables:
                table = tables[schema.name]
                if numbers is not None:
                    table = select_numbers(table, numbers)
                elif kept_from is not None:
                    table = drop_older(table, schema.event_time, kept_from)
                yield batch, table.select(schema.columns.names)

    def _frontier(self, group: ShardGroupPlan) -> int:
        """Return the event time below which the tuples of a group are settled."""
        streams = {stream for step in group.plan.steps for stream in step.count_window_streams}
        return min((self.watermarks[stream] for stream in streams), default=0)


@dataclass(frozen=True)
class LastInstants:
    """Computes when tuples leave count windows; tuples from `frontier` on push none out yet."""

    schema: StreamSchema
    table: pa.Table
    ts: Int64Array
    frontier: int

    def of(self, window: CountWindow) -> Int64Array:
        """Return the last instant of each tuple in a count window."""
        from dovetail.engine.kernels.times import FOREVER  # noqa: PLC0415 - it loads the engine
        from dovetail.engine.time.intake import Batch, in_content_order  # noqa: PLC0415

        columns = {field.name: self.table.column(field.name).combine_chunks() for field in self.schema.columns}
        columns[_ROW] = pa.array(np.arange(len(self.ts)))
        order = in_content_order(Batch(columns, self.ts, in_order=False)).columns[_ROW].to_numpy()
        order = order[self.ts[order] < self.frontier]
        parts = np.zeros(len(self.ts), np.int64)
        if window.partition_by is not None:
            parts = columns[window.partition_by].dictionary_encode("encode").indices.to_numpy()
        order = order[np.argsort(parts[order], kind="stable")]
        ends = np.full(len(self.ts), FOREVER)
        pushed, pushing = order[: -window.rows], order[window.rows :]
        is_same = parts[pushed] == parts[pushing]
        ends[pushed[is_same]] = self.ts[pushing[is_same]] - 1
        return ends


def _read_logs(
    spark: SparkSession, checkpoint: str, batch: int, shard_ids: tuple[int, ...], plan: WorkerPlan
) -> dict[int, ShardLog]:
    """Read the logs of a plan's shards as of a batch; raise `StateError` if one lacks it."""
    try:
        rows = read_entries(spark, checkpoint, batch).toArrow()
    except JVM_ERRORS as error:
        raise StateError(
            f"Spark cannot read the state of {checkpoint}: {reason(error)}",
            "read it with a session like the one that the job runs with, at the path that it was started with",
        ) from error
    entries: dict[int, _Entries] = {}
    for shard_id, number, content in zip(*(rows.column(name) for name in rows.column_names), strict=True):
        entries.setdefault(shard_id.as_py(), _Entries())[number.as_py()] = content.as_py()
    logs = {}
    for shard in plan.shard_list:
        logs[shard] = log = ShardLog(entries.get(shard_ids[shard], _Entries()), plan.digest, plan.catalog)
        log.is_numbered = plan.config.shedding is not None
    behind = [shard for shard, log in logs.items() if log.manifest.next_batch != batch + 1]
    if behind:
        raise StateError(f"shards {listed(behind)} of {checkpoint} lack the state of batch {batch}", RESTORE_HINT)
    return logs
