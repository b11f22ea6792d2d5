"""Reshard a stopped checkpoint: repartition its state for other shards, into a new checkpoint.

The new directory gets a copy of Spark's own logs and state, and one batch more, without input. In that batch the log of every shard
is repartitioned and written to the shards of the new layout. Sources continue where they were, batches keep their numbers, and
Spark itself commits the new state, on any file system. The old checkpoint gets a note, at the very end, that it was resharded, and
is not changed otherwise.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dovetail.config import Config
from dovetail.errors import ConfigError, StateError, listed
from dovetail.spark.checkpoint.checkpoint import IDENTITY, LAYOUT, LOCK, RESHARDED, UNFINISHED, Checkpoint, take_lock
from dovetail.spark.checkpoint.compatibility import check_version, current_json, digest
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.locate import directory_at
from dovetail.spark.checkpoint.repartition import (
    COUNTS,
    REPARTITIONED_SCHEMA,
    RepartitionPlan,
    RepartitionProcessor,
    total_progress,
)
from dovetail.spark.compat import from_arrow_schema, is_connect
from dovetail.spark.driver.arguments import check_checkpoint, check_shards, check_spark
from dovetail.spark.driver.builder import check_session
from dovetail.spark.driver.failures import worker_error
from dovetail.spark.driver.job_diff import read_layout
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.pipeline import read_manifests, read_state, with_shard_ids
from dovetail.spark.driver.placement import Placement, ShardAssignment
from dovetail.spark.running import clear_ended
from dovetail.spark.state.log import RESTORE_HINT, ShardManifest
from dovetail.spark.wire import FRAME_BYTES, SHARD_ID

_REPARTITIONED_TYPE = from_arrow_schema(REPARTITIONED_SCHEMA)
_BATCH_OPTIONS = {
    "spark.sql.streaming.unsupportedOperationCheck": "false",  # the batch reads a union of tables and streams
    "spark.sql.execution.arrow.maxBytesPerBatch": str(FRAME_BYTES),
}


def reshard(
    spark: SparkSession,
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    shards: int,
    rates: Mapping[str, float] | None = None,
) -> str:
    """Repartition a stopped checkpoint for another number of shards, into a new directory.

    Windows, queries, counters and sinks stay as they are: start the session with `shards` and the new directory, and it continues
    where it ended. The old checkpoint refuses to start from then on, and can be removed. If the call is interrupted, the old one can
    be used as before, and the call can be made again.

    Parameters
    ----------
    spark
        A session as for `Session`.
    old
        The checkpoint; no session may be running with it, and its last batch must be completed.
    new
        A directory that is empty or does not exist.
    shards
        The number of parts of each join.
    rates
        Tuples per second by stream, which determine how joins are split. By default, the arrivals that the
        checkpoint has counted stand for the rates.

    Returns
    -------
    The shards of each query from now on, as `explain` shows them.
    """
    check_spark(spark, "reshard")
    check_session(spark)
    if is_connect(spark):
        raise ConfigError(
            "reshard() does not run over Spark Connect",
            "call it with dt.spark.session() on a machine that reads both directories",
        )
    check_shards("reshard", shards)
    paths = [check_checkpoint(path, f"reshard({name}=...)") for name, path in (("old", old), ("new", new))]
    source, target = (directory_at(spark, path) for path in paths)
    if "dovetail" not in source.names():
        raise ConfigError(
            f"there is no checkpoint at {source.uri}", "give the directory that a session was started with"
        )
    if source.contains(target) or target.contains(source):
        raise ConfigError(
            f"the new directory {target.uri} and the checkpoint {source.uri} overlap",
            "give a directory beside it",
        )
    clear_ended()
    with ExitStack() as held:
        checkpoint = Checkpoint.open(source)
        held.callback(checkpoint.release)
        resharding = Resharding.of(spark, checkpoint, shards, rates or {})
        _check_free(target, source)
        lock = take_lock(target.within("dovetail"))
        if lock is not None:
            held.callback(lock.release)
        _check_free(target, source)  # another process may have held the lock until now
        resharding.run(target)
    return resharding.new_layout.placement.describe()


def _check_free(target: Directory, source: Directory) -> None:
    """Refuse a directory that is not empty, unless an interrupted resharding of `source` wrote it."""
    subdirectory = target.within("dovetail")
    note = subdirectory.read(UNFINISHED)
    names = [name for name in (*target.names(), *subdirectory.names()) if name not in {"dovetail", LOCK}]
    if note is None and names:
        raise ConfigError(f"the new directory {target.uri} holds {listed(names[:3])}", "give one that is empty")
    if note is not None and json.loads(note)["from"] != source.uri:
        raise ConfigError(
            f"the new directory {target.uri} holds an unfinished resharding of {json.loads(note)['from']}",
            "give one that is empty, or remove it",
        )


@dataclass(frozen=True)
class Resharding:
    """A checkpoint that can be resharded: all checks have passed."""

    spark: SparkSession
    checkpoint: Checkpoint
    new_layout: Layout
    repartition_plan: RepartitionPlan

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: Checkpoint, shards: int, rates: Mapping[str, float]) -> Resharding:
        """Check that a checkpoint can be resharded, and compute its new layout and where its tuples go."""
        where, current = checkpoint.directory.uri, checkpoint.current_json
        if checkpoint.next_batch == 0 or current is None or checkpoint.pinned_json is None:
            raise StateError(
                f"the checkpoint {where} has no completed batch: there is nothing to reshard",
                f"start the session with shards={shards} and a new checkpoint directory",
            )
        _check_offsets_and_state(checkpoint)
        check_version({}, current)
        old_layout = with_shard_ids(spark, read_layout(current, checkpoint.pinned_json, Config()))
        check_version(old_layout.job.queries, current)
        manifests = _manifests(spark, where, old_layout)
        if unknown := [name for name in rates if name not in old_layout.job.streams]:
            raise ConfigError(
                f"reshard(rates=...) has {listed(unknown)}; streams of the checkpoint: {listed(old_layout.job.streams)}"
            )
        counted = {name: max(1, progress["arrived"]) for name, progress in total_progress(manifests.values()).items()}
        new_layout = resharded(old_layout, shards, rates or counted)
        if shards == old_layout.requested_shards and new_layout.placement.splits == old_layout.placement.splits:
            raise ConfigError(
                f"the checkpoint {where} has {shards} shards already, and these rates give the same splits",
                "start the session with it as it is, or give another number of shards or other rates",
            )
        new_layout = with_shard_ids(spark, new_layout)
        new_layout = replace(new_layout, pinned_json=current_json(new_layout))
        old_plan, new_plan = (layout.for_workers(digest(layout)) for layout in (old_layout, new_layout))
        repartition_plan = RepartitionPlan.between(
            old_plan, new_plan, old_layout.shard_ids, new_layout.shard_ids, manifests
        )
        return cls(spark, checkpoint, new_layout, repartition_plan)

    def run(self, target: Directory) -> None:
        """Create the new checkpoint. It can be started as soon as the old one has its note."""
        source, subdirectory = self.checkpoint.directory, target.within("dovetail")
        subdirectory.create(UNFINISHED, json.dumps({"version": 1, "from": source.uri, "token": uuid.uuid4().hex}))
        token = json.loads(subdirectory.read(UNFINISHED) or "")["token"]  # that of an earlier attempt, if there was one
        _clear(target)
        for name in source.names():
            if not name.startswith(".") and name not in {"dovetail", "sources"}:
                source.copy(name, target)
        _relocate(target)
        self._run_batch(target)
        target.remove("sources")  # written by the batch without input
        if "sources" in source.names():
            source.copy("sources", target)
        if (identity := source.within("dovetail").read(IDENTITY)) is not None:
            subdirectory.create(IDENTITY, identity)
        subdirectory.create(LAYOUT, self.new_layout.pinned_json or "")
        if not source.within("dovetail").create(
            RESHARDED, json.dumps({"version": 1, "to": target.uri, "token": token})
        ):
            raise StateError(
                f"the checkpoint {source.uri} has been resharded by another call", "use the checkpoint it wrote"
            )
        subdirectory.remove(UNFINISHED)

    def _run_batch(self, target: Directory) -> None:
        """Run one more batch, without input, in which shards replace their state by repartitioned tuples."""
        last, offsets = self.checkpoint.last_batch, target.within("offsets")
        text = offsets.read(str(last)) or ""
        # The batch ends at the offsets where it begins, so Spark reads no source, and any source will do.
        offsets.create(str(last + 1), text)
        sources = [_empty_source(self.spark) for _ in text.splitlines()[2:]]
        plan = self.repartition_plan
        shard_ids = sorted({*plan.old_shard_ids, *plan.new_shard_ids})
        calls = self.spark.createDataFrame([(shard_id, None, 0, None) for shard_id in shard_ids], _REPARTITIONED_TYPE)
        state = read_state(self.spark, self.checkpoint.directory.uri).where(
            F.col(SHARD_ID).isin(list(plan.shards_to_read))
        )
        repartitioned = state.groupBy(SHARD_ID).applyInArrow(lambda rows: plan.repartition(rows), _REPARTITIONED_TYPE)  # noqa: PLW0108 - Spark counts arguments
        rows = reduce(DataFrame.unionAll, [*sources, calls, repartitioned])
        counts = rows.groupBy(SHARD_ID).transformWithStateInPandas(
            RepartitionProcessor(plan), outputStructType=from_arrow_schema(COUNTS), outputMode="append", timeMode="none"
        )
        writer = counts.writeStream.format("noop").outputMode("append").trigger(once=True)
        with _options_set(self.spark, _BATCH_OPTIONS):
            query = writer.option("checkpointLocation", target.uri).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise worker_error(error) or error from None
        finally:
            query.stop()
        if str(last + 1) not in target.within("commits").names():
            raise StateError(f"Spark ended without completing batch {last + 1} in {target.uri}", "reshard again")


def resharded(layout: Layout, shards: int, rates: Mapping[str, float]) -> Layout:
    """Return a layout with the same groups on another number of shards, renumbered, without a chosen plan."""
    streams = {stream.name: replace(stream, rate=rates.get(stream.name)) for stream in layout.streams}
    assignments, first_shard = dict[str, ShardAssignment](), 0
    for group in layout.placement.groups:
        grid = Placement(shards).with_query(group.queries[0], streams).groups[0].grid
        assignments |= {query.name: ShardAssignment(grid.splits, first_shard) for query in group.queries}
        first_shard += grid.shards
    new_layout = Layout.of(replace(layout.job, adopted_plan=None), Placement(shards, assignments))
    return replace(layout, job=new_layout.job, shard_ids=(), pinned_json="")


def _check_offsets_and_state(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint with an uncompleted batch, or with offsets or state of an unsupported format."""
    where, last = checkpoint.directory.uri, checkpoint.last_batch
    if not checkpoint.has_completed(last):
        raise StateError(
            f"batch {last} of the checkpoint {where} was begun and is not completed",
            "start the session with it once, with trigger={'availableNow': True}, wait until it has ended, then reshard",
        )
    version = (checkpoint.directory.within("offsets").read(str(last)) or "").partition("\n")[0]
    operators = [name for name in checkpoint.directory.within("state").names() if not name.startswith(".")]
    if version != "v1" or operators != ["0"]:
        raise StateError(
            f"the checkpoint {where} has offsets of format {version!r} and stateful operators {listed(operators)}; "
            "one can be resharded with format 'v1' and operator '0' alone",
            "streams whose own frames keep state, as by dropDuplicates, need a new checkpoint and new sinks for other shards",
        )


def _manifests(spark: SparkSession, checkpoint: str, layout: Layout) -> dict[int, ShardManifest]:
    """Read the manifests of a checkpoint, by shard number; raise `StateError` if one is missing or behind."""
    contents, pinned_digest = read_manifests(spark, checkpoint, layout.shard_ids), digest(layout)
    manifests = {shard: ShardManifest.from_json(content, pinned_digest) for shard, content in contents.items()}
    groups = layout.placement.groups
    active = [shard for group in groups for shard in group.shard_range if shard in manifests]
    next_batch = max((manifests[shard].next_batch for shard in active), default=0)
    for group in groups:
        first_batch = min(layout.first_batch(query.name) for query in group.queries)
        behind = [
            shard for shard in group.shard_range if shard not in manifests or manifests[shard].next_batch != next_batch
        ]
        if behind and (first_batch < next_batch or any(shard in manifests for shard in group.shard_range)):
            raise StateError(
                f"shards {listed(behind)} of {checkpoint} lack the state of batch {next_batch - 1}", RESTORE_HINT
            )
    return manifests


def _empty_source(spark: SparkSession) -> DataFrame:
    """Return a streaming source that Spark never reads."""
    return (
        spark.readStream.format("rate")
        .load()
        .select(*(F.lit(None).cast(column.dataType).alias(column.name) for column in _REPARTITIONED_TYPE))
    )


def _clear(target: Directory) -> None:
    """Remove the files of an interrupted resharding, except its note."""
    for directory, excepted in ((target, {"dovetail"}), (target.within("dovetail"), {LOCK, UNFINISHED})):
        for name in set(directory.names()) - excepted:
            directory.remove(name)


def _relocate(target: Directory) -> None:
    """Rewrite the absolute paths of state schemas that Spark has stored, so that they point into the copy."""
    folder = target.within("state", "0", "_metadata", "v2")
    for name in folder.names():
        if not name.startswith("."):
            version, _, text = (folder.read(name) or "").partition("\n")
            content = json.loads(text)
            for store in content["stateStoreInfo"]:
                paths = store["stateSchemaFilePaths"]
                store["stateSchemaFilePaths"] = [target.uri + path[path.rindex("/state/0/") :] for path in paths]
            folder.remove(name)
            folder.create(name, f"{version}\n{json.dumps(content)}")


@contextmanager
def _options_set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set options of a Spark session within a block."""
    old_values = {name: spark.conf.get(name, None) for name in options}
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old_value in old_values.items():
            if old_value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old_value)
