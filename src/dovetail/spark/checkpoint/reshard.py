"""Reshard a stopped checkpoint: partition its state again for another number of shards, into a new checkpoint.

The new directory gets a copy of Spark's own logs and state, and one batch more, without input. In that batch the log of every shard
is partitioned again and written to the shards of the new layout. Sources continue where they were, batches keep their numbers, and
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
from pyspark.sql.pandas.types import from_arrow_schema

from dovetail.config import Config
from dovetail.errors import ConfigError, StateError, listed
from dovetail.spark.checkpoint.checkpoint import IDENTITY, LAYOUT, LOCK, MIGRATED, UNFINISHED, Checkpoint, take_lock
from dovetail.spark.checkpoint.compatibility import check_version, digest, revised_json
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.recut import MOVED, TAKEN, Move, Mover, progress_of
from dovetail.spark.driver.arguments import check_checkpoint, check_shards
from dovetail.spark.driver.builder import check
from dovetail.spark.driver.failures import raised_in_a_worker
from dovetail.spark.driver.job_diff import stored_layout
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.pipeline import shard_ids, stored_manifests, stored_state
from dovetail.spark.driver.placement import Placement, ShardAssignment
from dovetail.spark.running import clear_ended
from dovetail.spark.state.log import RESTORE, ShardManifest
from dovetail.spark.wire import FRAME_BYTES

_MOVED = from_arrow_schema(MOVED)
_FOR_ONE_BATCH = {
    "spark.sql.streaming.unsupportedOperationCheck": "false",  # tables and streams in one union
    "spark.sql.execution.arrow.maxBytesPerBatch": str(FRAME_BYTES),
}


def reshard(
    spark: SparkSession,
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    shards: int,
    rates: Mapping[str, float] | None = None,
) -> str:
    """Cut a stopped checkpoint again for another number of shards, into a new directory, which takes its place.

    What windows hold, what queries were promised and what was counted stays as it is, and so do the sinks: start the session with
    `shards` and the new directory, and it goes on where it ended. The old checkpoint refuses to start from then on, and can be
    removed. If the call is interrupted, the old one can be used as before, and the call can be made again.

    Parameters
    ----------
    spark
        A session as for `Session`.
    old
        The checkpoint; no session may be running with it, and its last batch must be completed.
    new
        A directory that is empty or not there.
    shards
        Into how many parts each join is to be cut.
    rates
        By stream, tuples per second, from which shares follow. Without any, they follow from what the checkpoint has counted.

    Returns
    -------
    Which shards the queries use then, as `explain` shows it.
    """
    check(spark)
    check_shards("reshard", shards)
    paths = [check_checkpoint(path, f"reshard({name}=...)") for name, path in (("old", old), ("new", new))]
    source, target = (Directory.of(spark, path) for path in paths)
    if "dovetail" not in source.names():
        raise ConfigError(
            f"there is no checkpoint at {source.uri}", "give the directory that a session was started with"
        )
    if source.holds(target) or target.holds(source):
        raise ConfigError(
            f"the new directory {target.uri} and the checkpoint {source.uri} are, or contain, one another",
            "give a directory beside it",
        )
    clear_ended()
    with ExitStack() as held:
        taken = Checkpoint.open(source)
        held.callback(taken.release)
        resharding = Resharding.of(spark, taken, shards, rates or {})
        _check_free(target, source)
        lock = take_lock(target.within("dovetail"))
        if lock is not None:
            held.callback(lock.release)
        _check_free(target, source)  # somebody may have had it until now
        resharding.run(target)
    return resharding.after.placement.describe()


def _check_free(target: Directory, source: Directory) -> None:
    """Refuse a directory that holds anything but what an interrupted resharding from the same one has left."""
    own = target.within("dovetail")
    note = own.read(UNFINISHED)
    found = [name for name in (*target.names(), *own.names()) if name not in {"dovetail", LOCK}]
    if note is None and found:
        raise ConfigError(f"the new directory {target.uri} holds {listed(found[:3])}", "give one that is empty")
    if note is not None and json.loads(note)["from"] != source.uri:
        raise ConfigError(
            f"the new directory {target.uri} holds an unfinished resharding of {json.loads(note)['from']}",
            "give one that is empty, or remove it",
        )


@dataclass(frozen=True)
class Resharding:
    """A checkpoint that is to be cut again; all that can be refused has been looked at."""

    spark: SparkSession
    checkpoint: Checkpoint
    before: Layout
    after: Layout
    manifests: Mapping[int, ShardManifest]
    """By number of a shard, also of those that have no more to do."""

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: Checkpoint, shards: int, rates: Mapping[str, float]) -> Resharding:
        """Look at a checkpoint and refuse what cannot be resharded."""
        where, stored = checkpoint.directory.uri, checkpoint.contract
        if checkpoint.next_batch == 0 or stored is None or checkpoint.layout is None:
            raise StateError(
                f"the checkpoint {where} has no completed batch: there is nothing to reshard",
                f"start the session with shards={shards} and a new checkpoint directory",
            )
        _check_logs(checkpoint)
        check_version({}, stored)
        before = _placed(spark, stored_layout(stored, checkpoint.layout, Config()))
        check_version(before.bound, stored)
        manifests = _manifests(spark, where, before)
        if unknown := [name for name in rates if name not in before.catalog]:
            raise ConfigError(
                f"reshard(rates=...) has {listed(unknown)}; streams of the checkpoint: {listed(before.catalog)}"
            )
        counted = {name: max(1, progress["arrived"]) for name, progress in progress_of(manifests.values()).items()}
        after = resharded(before, shards, rates or counted)
        if shards == before.shards and after.placement.shares == before.placement.shares:
            raise ConfigError(
                f"the checkpoint {where} has {shards} shards already, and its tuples lie in the same ones by these rates",
                "start the session with it as it is, or give another number of shards or other rates",
            )
        after = _placed(spark, after)
        return cls(spark, checkpoint, before, replace(after, stored=revised_json(after)), manifests)

    def run(self, target: Directory) -> None:
        """Make the new checkpoint. It is the one that can be started as soon as the old one has its note."""
        source, own = self.checkpoint.directory, target.within("dovetail")
        own.create(UNFINISHED, json.dumps({"version": 1, "from": source.uri, "token": uuid.uuid4().hex}))
        token = json.loads(own.read(UNFINISHED) or "")["token"]  # that of an earlier try, if there was one
        _clear(target)
        for name in source.names():
            if not name.startswith(".") and name not in {"dovetail", "sources"}:
                source.copy(name, target)
        _relocate(target)
        self._run_batch(target)
        target.remove("sources")  # those of the batch without input
        if "sources" in source.names():
            source.copy("sources", target)
        if (identity := source.within("dovetail").read(IDENTITY)) is not None:
            own.create(IDENTITY, identity)
        own.create(LAYOUT, self.after.stored or "")
        if not source.within("dovetail").create(MIGRATED, json.dumps({"version": 1, "to": target.uri, "token": token})):
            raise StateError(f"the checkpoint {source.uri} has been resharded by somebody else", "use the other one")
        own.remove(UNFINISHED)

    def _run_batch(self, target: Directory) -> None:
        """Run one batch more, without input, in which shards take what has been cut again."""
        last, offsets = self.checkpoint.last_batch, target.within("offsets")
        text = offsets.read(str(last)) or ""
        # The batch ends where it begins, so that Spark asks no source for anything, and any will do.
        offsets.create(str(last + 1), text)
        parts = [_nothing(self.spark) for _ in text.splitlines()[2:]]
        before, after = (layout.for_workers(digest(layout)) for layout in (self.before, self.after))
        move = Move.between(before, after, self.before.ids, self.after.ids, self.manifests)
        ids = sorted({*move.ids, *move.ids_after})
        called = self.spark.createDataFrame([(shard, None, 0, None) for shard in ids], _MOVED)
        state = stored_state(self.spark, self.checkpoint.directory.uri).where(F.col("shard").isin(list(move.read)))
        recut = state.groupBy("shard").applyInArrow(lambda rows: move.recut(rows), _MOVED)  # noqa: PLW0108 - Spark counts arguments
        rows = reduce(DataFrame.unionAll, [*parts, called, recut])
        taken = rows.groupBy("shard").transformWithStateInPandas(
            Mover(move), outputStructType=from_arrow_schema(TAKEN), outputMode="append", timeMode="none"
        )
        writer = taken.writeStream.format("noop").outputMode("append").trigger(once=True)
        with _set(self.spark, _FOR_ONE_BATCH):
            query = writer.option("checkpointLocation", target.uri).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise raised_in_a_worker(error) or error from None
        finally:
            query.stop()
        if str(last + 1) not in target.within("commits").names():
            raise StateError(f"Spark ended without completing batch {last + 1} in {target.uri}", "reshard again")


def resharded(layout: Layout, shards: int, rates: Mapping[str, float]) -> Layout:
    """A layout with the same groups of queries, each cut for so many shards; shards are numbered, and queries planned, anew."""
    streams = {stream.name: replace(stream, rate=rates.get(stream.name)) for stream in layout.streams}
    seats, first = dict[str, ShardAssignment](), 0
    for group in layout.placement.groups:
        grid = Placement(shards).with_query(group.queries[0], streams).groups[0].grid
        seats |= {query.name: ShardAssignment(grid.shares, first) for query in group.queries}
        first += grid.shards
    return replace(layout, shards=shards, frozen=seats, numbered=0, ids=(), stored="", chosen=None)


def _placed(spark: SparkSession, layout: Layout) -> Layout:
    """A layout whose shards all have ids."""
    missing = layout.placement.total - len(layout.ids)
    return replace(layout, ids=(*layout.ids, *shard_ids(spark, missing, layout.ids)))


def _check_logs(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose last batch is not completed, and what Spark has written otherwise than it is read here."""
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
    """The manifests of a checkpoint, by number of a shard; all of them or an error."""
    bound = digest(layout)
    manifests = stored_manifests(spark, checkpoint, layout.ids)
    found = {shard: ShardManifest.from_json(content, bound) for shard, content in manifests.items()}
    groups = [(group, range(group.first, group.first + group.grid.shards)) for group in layout.placement.groups]
    last = max((found[number].batches for _, numbers in groups for number in numbers if number in found), default=-1)
    for group, numbers in groups:
        begun = min(layout.came[query.name].since if query.name in layout.came else 0 for query in group.queries)
        behind = [number for number in numbers if number not in found or found[number].batches != last]
        if behind and (begun <= last or any(number in found for number in numbers)):
            raise StateError(f"shards {listed(behind)} of {checkpoint} lack the state of batch {last}", RESTORE)
    return found


def _nothing(spark: SparkSession) -> DataFrame:
    """A source that will not be asked for anything."""
    return (
        spark.readStream.format("rate")
        .load()
        .select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in _MOVED))
    )


def _clear(target: Directory) -> None:
    """Remove what an interrupted resharding has left, but for its note."""
    own = target.within("dovetail")
    for directory, kept in ((target, {"dovetail"}), (own, {LOCK, UNFINISHED})):
        for name in set(directory.names()) - kept:
            directory.remove(name)


def _relocate(target: Directory) -> None:
    """Spark keeps the whole paths of the state's schemas: let those of a copy be in the copy."""
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
def _set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Options of a session, for a moment."""
    before = {name: spark.conf.get(name, None) for name in options}
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)
