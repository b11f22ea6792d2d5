"""A job whose last batch is replayed: its queries and their changes, its input, and the results that it must give.

The rule: a job holds from the first batch that is not completed. With n the largest number in Spark's log of offsets, that is batch n
if `commits/n` is missing, else n + 1. `JobRecord` records the changes of a job. From them, and from the input that each batch had by
Spark's logs, `JobOracle` computes the results of every query in every batch. It starts from scratch at every comparison, so that a
replayed batch needs no special treatment.

As a program, `python replay_job.py FOLDER JOB [BATCH]` runs a job until all its input is read. JOB is a file with the arguments of
`declare` as JSON. With BATCH it kills itself and its JVM as soon as all sinks hold that batch, before Spark writes the batch's commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dovetail as dt
from dovetail.query.sql import parse_query
from dovetail.schema import TIMESTAMP, StreamSchema
from dovetail.spark.compat import from_arrow_schema
from dovetail.testing import Oracle, assert_same_rows

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("j", pa.string()), ("v", pa.int64()), ("w", pa.int64())])
LATENESS = {"a": 2_000_000, "b": 3_000_000, "c": 1_000_000}
"""Microseconds, as first declared."""
AVAILABLE_NOW = {"availableNow": True}
NEVER = 1 << 61

Push = dict[str, pa.Table]


@dataclass(frozen=True)
class QuerySpec:
    """An equality join of two or three streams, each with a time window."""

    windows: Mapping[str, int]
    """Seconds by stream. Each stream is joined with the one before it."""
    keys: tuple[str, ...]
    """For each stream but the first, the column in which it equals the one before it."""
    selected: tuple[str, ...] = ()
    """Columns of the select list beside the event times, such as `a.v`."""
    filters: tuple[str, ...] = ()
    """Conditions on one column, such as `a.v > 1`."""

    @property
    def sql(self) -> str:
        columns = [*(f"{stream}.ts" for stream in self.windows), *self.selected]
        outputs = ", ".join(f"{column} AS {column.replace('.', '_')}" for column in columns)
        inputs = ", ".join(f"{stream} [RANGE {seconds} s]" for stream, seconds in self.windows.items())
        pairs = zip(pairwise(self.windows), self.keys, strict=True)
        where = [f"{one}.{key} = {other}.{key}" for (one, other), key in pairs]
        return f"SELECT {outputs} FROM {inputs} WHERE {' AND '.join([*where, *self.filters])}"

    @property
    def placement(self) -> tuple[object, ...]:
        """The key that decides in which shards tuples lie; queries with an equal one share shards."""
        return tuple(dict.fromkeys(self.keys))

    @property
    def all_columns(self) -> set[str]:
        """The columns that the query reads, with their streams."""
        return {f"{stream}.{column}" for stream in self.windows for column in self.columns(stream)}

    def columns(self, stream: str) -> set[str]:
        """The columns of a stream that the query reads."""
        pairs = zip(pairwise(self.windows), self.keys, strict=True)
        keys = {key for pair, key in pairs if stream in pair}
        named = [text.split()[0].split(".") for text in (*self.selected, *self.filters)]
        return {"ts"} | keys | {column for alias, column in named if alias == stream}


@dataclass(frozen=True)
class JobChange:
    """What begins, changes and ends with batch `first`."""

    first: int
    added: Mapping[str, QuerySpec] = field(default_factory=dict)
    changed: Mapping[str, QuerySpec] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    lateness: Mapping[str, int] = field(default_factory=dict)
    """Microseconds, of the streams whose lateness is changed."""
    backfill: bool = False
    """Whether the added queries also see the tuples that the windows hold."""

    def __str__(self) -> str:
        parts = [f"add {name}{' with backfill' * self.backfill}: {spec.sql}" for name, spec in self.added.items()]
        parts += [f"change {name}: {spec.sql}" for name, spec in self.changed.items()]
        parts += [f"drop {name}" for name in self.dropped]
        parts += [f"lateness of {stream} = {micros / 1e6:g} s" for stream, micros in self.lateness.items()]
        return f"from batch {self.first} on: {'; '.join(parts) or 'no change'}"


# -- the results that a job must give -----------------------------------------------------------------------------------------


@dataclass
class GroupLog:
    """The tuples that the shards of some queries hold."""

    placement: tuple[object, ...]
    queries: dict[str, QuerySpec] = field(default_factory=dict)
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By stream: the event time and the batch from which on every tuple is held."""


class JobOracle:
    """Computes the results of a job that changes, by query and batch."""

    def __init__(self, streams: str) -> None:
        self._oracle = Oracle(StreamSchema(stream, COLUMNS, "ts", LATENESS[stream]) for stream in streams)
        self._catalog = {name: state.schema for name, state in self._oracle._streams.items()}
        self._running: dict[str, str] = {}
        """By query, its name in the oracle, where a changed query gets a new one."""
        self._groups: list[GroupLog] = []
        self._carried: dict[str, dict[str, int]] = {stream: {} for stream in streams}
        """By stream and column, the batch from which on tuples have the column."""
        self._accepted = {stream: [0] for stream in streams}
        """By stream and batch, the number of tuples accepted before the batch."""
        self.results: dict[str, dict[int, pa.Table]] = {}
        """By query, the results of each batch that has any."""
        self.arrivals = dict.fromkeys(streams, 0)

    @classmethod
    def run(cls, streams: str, changes: Sequence[JobChange], inputs: Sequence[Push]) -> JobOracle:
        """Push the input of all batches, each after the changes that begin with it."""
        oracle = cls(streams)
        for batch, tables in enumerate(inputs):
            for change in changes:
                if change.first == batch:
                    oracle._apply(change)
            oracle._push(batch, tables)
        for name in list(oracle._running):
            oracle._collect(name)
        return oracle

    @property
    def late(self) -> dict[str, int]:
        return self._oracle.late

    def _apply(self, change: JobChange) -> None:
        for stream, lateness in change.lateness.items():
            known = self._oracle._streams[stream]
            known.schema = replace(known.schema, lateness=lateness)
        for name in change.dropped:
            self._end(name)
        for name, spec in change.changed.items():
            before = self._end(name)
            stays = before.placement == spec.placement
            self._begin(name, spec, before if stays else None, change.first, backfill=stays)
        for name, spec in change.added.items():
            self._begin(name, spec, None, change.first, backfill=change.backfill)
        self._groups = [group for group in self._groups if group.queries]

    def _end(self, name: str) -> GroupLog:
        """End a query; give the group of shards that it used."""
        self._collect(name)
        self._oracle.drop_query(self._running.pop(name))
        group = next(group for group in self._groups if name in group.queries)
        del group.queries[name]
        return group

    def _begin(self, name: str, spec: QuerySpec, group: GroupLog | None, first: int, *, backfill: bool) -> None:
        """Begin a query, in `group` or else with the queries whose tuples lie in the same shards."""
        for stream in spec.windows:
            self._carried[stream] = dict.fromkeys(spec.columns(stream), first) | self._carried[stream]
        if group is None:
            sharing = [known for known in self._groups if known.queries and known.placement == spec.placement]
            group = sharing[0] if sharing else GroupLog(spec.placement)
            self._groups += [] if sharing else [group]
        group.queries[name] = spec
        self._running[name] = f"{name}_{first}"
        query = parse_query(self._running[name], spec.sql, self._catalog)
        self._oracle.add_query(query, self._visible(spec, group) if backfill else None)
        self.results.setdefault(name, {})

    def _visible(self, spec: QuerySpec, group: GroupLog) -> dict[str, int | tuple[int, int]]:
        """By stream: the event time, and the tuple, from which on a query sees what its shards hold."""
        visible: dict[str, int | tuple[int, int]] = {}
        for stream, (time, batch) in group.held.items():
            if stream in spec.windows:
                complete = max(batch, *(self._carried[stream][column] for column in spec.columns(stream)))
                visible[stream] = (time, self._accepted[stream][complete])
        return visible

    def _push(self, batch: int, tables: Push) -> None:
        self._oracle.push(tables)
        for stream, accepted in self._accepted.items():
            accepted.append(len(self._oracle._stream(stream).tuples))
            self.arrivals[stream] += tables[stream].num_rows if stream in tables else 0
        for group in self._groups:
            bounds = self._bounds(group)
            held = {stream: group.held.get(stream, (time, batch)) for stream, time in bounds.items()}
            group.held = {stream: (max(bounds[stream], time), since) for stream, (time, since) in held.items()}

    def _bounds(self, group: GroupLog) -> dict[str, int]:
        """By stream: the event time below which no query of a group needs a tuple; what is older may have been forgotten."""
        bounds: dict[str, int] = {}
        for spec in group.queries.values():
            for stream, seconds in spec.windows.items():
                marks = [self._oracle._stream(other).watermark for other in spec.windows if other != stream]
                least = min(-NEVER if mark is None else mark for mark in marks)
                bounds[stream] = min(least - 1_000_000 * seconds, bounds.get(stream, NEVER))
        return bounds

    def _collect(self, name: str) -> None:
        """Take a query's results; each belongs to the batch of its last tuple."""
        oracle, oracle_name = self._oracle, self._running[name]
        query, _ = oracle._query(oracle_name)
        matches: dict[int, list[Any]] = {}
        for match in oracle._combinations(oracle_name):
            batches = [self._batch_of(query.ref(alias).stream, member.number) for alias, member in match.items()]
            matches.setdefault(max(batches), []).append(match)
        for batch, rows in matches.items():
            columns = [oracle._output(query, output.expression, rows) for output in query.outputs]
            self.results[name][batch] = pa.Table.from_arrays(columns, schema=query.schema)

    def _batch_of(self, stream: str, number: int) -> int:
        return bisect_right(self._accepted[stream], number) - 1


# -- Spark's logs -------------------------------------------------------------------------------------------------------------


def entry_numbers(folder: Path) -> list[int]:
    """The numbers of a log's entries, in order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []


def next_batch(checkpoint: Path) -> int:
    """The first batch that is not completed, which Spark runs next."""
    last = max(entry_numbers(checkpoint / "offsets"), default=-1)
    return last if last >= 0 and last not in entry_numbers(checkpoint / "commits") else last + 1


class BatchLog:
    """The input of each batch by Spark's logs: after an offset was removed, a batch has the files of two."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, ...]] = {}
        """By batch, for each source, the last entry of its log that belongs to the batch."""
        self._files: dict[int, dict[int, list[Path]]] = {}
        """By source and entry of its log."""

    def read(self, checkpoint: Path) -> list[Push]:
        """Read the logs and give the input of all batches. Spark removes old entries: those read before are remembered."""
        batches = entry_numbers(checkpoint / "offsets")
        self._ends = {batch: ends for batch, ends in self._ends.items() if batch < min(batches, default=0)}
        self._ends |= {batch: _ends_of(checkpoint / "offsets" / str(batch)) for batch in batches}
        for source in entry_numbers(checkpoint / "sources"):
            self._files.setdefault(source, {}).update(_files_of(checkpoint / "sources" / str(source)))
        ends = [(-1,) * len(next(iter(self._ends.values()), ())), *(self._ends[batch] for batch in sorted(self._ends))]
        assert sorted(self._ends) == list(range(len(self._ends))), f"offsets of some batches are lost: {self._ends}"
        return [self._input(before, after) for before, after in pairwise(ends)]

    def _input(self, before: Sequence[int], after: Sequence[int]) -> Push:
        tables: dict[str, list[pa.Table]] = {}
        for source, (first, last) in enumerate(zip(before, after, strict=True)):
            for entry in range(first + 1, last + 1):
                for path in self._files[source][entry]:
                    tables.setdefault(path.parent.name, []).append(pq.ParquetFile(path).read())
        return {stream: pa.concat_tables(parts).cast(COLUMNS) for stream, parts in tables.items()}


def _ends_of(entry: Path) -> tuple[int, ...]:
    lines = entry.read_text(encoding="utf-8").splitlines()[2:]
    return tuple(json.loads(line)["logOffset"] if line.startswith("{") else -1 for line in lines)


def _files_of(source: Path) -> dict[int, list[Path]]:
    """The files of each entry of a source's log; every tenth entry repeats all before it."""
    files: dict[int, set[Path]] = {}
    for log in source.iterdir():
        if not log.name.startswith("."):
            for line in log.read_text(encoding="utf-8").splitlines()[1:]:
                entry = json.loads(line)
                files.setdefault(entry["batchId"], set()).add(Path(unquote(urlparse(entry["path"]).path)))
    return {entry: sorted(paths) for entry, paths in files.items()}


class InputFolder:
    """Parquet files in FOLDER/in/<stream>; Spark reads one file of each stream per batch, the oldest first."""

    def __init__(self, folder: Path, streams: str) -> None:
        self._folder, self._files = folder / "in", 0
        for stream in streams:
            (self._folder / stream).mkdir(parents=True)

    def add(self, tables: Push) -> None:
        """Add a file to each stream; they appear at nearly the same moment, to be read in one batch."""
        waiting = []
        for stream, table in tables.items():
            path = self._folder / stream / f".{self._files:05}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_600_000_000 + self._files,) * 2)
            waiting.append(path)
        for path in waiting:
            path.rename(path.with_name(path.name[1:]))
        self._files += 1


# -- a job --------------------------------------------------------------------------------------------------------------------


class JobRecord:
    """The changes that a job has gone through, and where its input, its checkpoint and its results are."""

    def __init__(self, folder: Path, queries: Mapping[str, QuerySpec], streams: str = "ab") -> None:
        self.folder, self.streams = folder, streams
        self.input, self.checkpoint = InputFolder(folder, streams), folder / "checkpoint"
        self.queries, self.lateness = dict(queries), {stream: LATENESS[stream] for stream in streams}
        self.changes = [JobChange(0, added=queries)]
        self.lines = [f"streams {streams}; {self.changes[0]}"]
        """The history, for people."""
        self._batches = BatchLog()
        self._batches_at_drop: dict[str, set[int]] = {}
        """By dropped query, the batches that its sink held then."""

    @property
    def next_batch(self) -> int:
        return next_batch(self.checkpoint)

    @property
    def texts(self) -> dict[str, str]:
        """The SQL of each query."""
        return {name: spec.sql for name, spec in self.queries.items()}

    def change(self, **parts: Any) -> None:
        """Start with another job next time; `parts` are those of `JobChange`."""
        self.record(JobChange(self.next_batch, **parts))

    def record(self, change: JobChange) -> None:
        """Take note of a change that was made."""
        self.changes.append(change)
        self.lines.append(str(change))
        for name in change.dropped:
            del self.queries[name]
            self._batches_at_drop[name] = set(self.written(name))
        self.queries |= {**change.changed, **change.added}
        self.lateness |= change.lateness

    def written(self, name: str) -> dict[int, Path]:
        """The directories of a query's sink, by batch."""
        folders = (self.folder / "out" / name).glob("batch_id=*")
        return {int(folder.name.partition("=")[2]): folder for folder in folders}

    def expected(self) -> JobOracle:
        return JobOracle.run(self.streams, self.changes, self._batches.read(self.checkpoint))

    def check(self) -> dict[str, dict[int, int]]:
        """Compare what the sinks hold with the oracle, batch by batch; give the numbers of results by query and batch."""
        results = self.expected().results
        for name, wanted in results.items():
            if name in self._batches_at_drop:
                self._check_dropped(name, wanted)
            else:
                self._check_batches(name, wanted, self.written(name))
        return {name: {batch: table.num_rows for batch, table in wanted.items()} for name, wanted in results.items()}

    def _check_dropped(self, name: str, wanted: Mapping[int, pa.Table]) -> None:
        """Check that a dropped query has kept its completed batches and has written no more.

        The batch with which it ended may have been run before: what its sink holds of that batch is not compared.
        """
        folders = self.written(name)
        assert set(folders) <= self._batches_at_drop[name], (
            f"query {name} wrote after it was dropped: {sorted(folders)}"
        )
        end = next(change.first for change in self.changes if name in change.dropped)
        self._check_batches(name, wanted, {batch: folder for batch, folder in folders.items() if batch < end})

    def _check_batches(self, name: str, wanted: Mapping[int, pa.Table], folders: Mapping[int, Path]) -> None:
        for batch in sorted(wanted.keys() | folders.keys()):
            assert batch in wanted, f"query {name}: {folders[batch].name} is there, and the batch has no results"
            assert batch in folders, f"query {name}: batch {batch} is missing, with {wanted[batch].num_rows} results"
            files = sorted(folders[batch].glob("*.parquet"))
            table = pa.concat_tables(pq.ParquetFile(file).read() for file in files)
            schema = wanted[batch].schema
            assert_same_rows(table.cast(schema), wanted[batch], f"query {name}, batch {batch}")


# -- on Spark -----------------------------------------------------------------------------------------------------------------


def declare(
    spark: SparkSession, folder: Path, lateness: Mapping[str, int], queries: Mapping[str, str], shards: int = 2
) -> dt.Session:
    """Declare the streams named in `lateness` (microseconds), which are read from FOLDER/in, and queries (SQL by name)."""
    session = dt.Session(spark, shards=shards)
    for stream, micros in lateness.items():
        reader = spark.readStream.schema(from_arrow_schema(COLUMNS)).option("maxFilesPerTrigger", 1)
        session.stream(stream, reader.parquet(str(folder / "in" / stream)), "ts", lateness=micros / 1e6)
    for name, sql in queries.items():
        session.query(name, sql)
    return session


def parquet_sinks(folder: Path, queries: Iterable[str]) -> dict[str, Any]:
    """Give each query a Parquet sink in FOLDER/out."""
    return {name: dt.sinks.parquet(folder / "out" / name) for name in queries}


def kill_after(batch: int) -> None:
    """Kill this process group once the sinks hold `batch`: Spark writes the commit after `foreachBatch` has returned."""
    if os.getpgrp() != os.getpid():
        raise RuntimeError("this process must lead a group of its own: start it with start_new_session=True")
    unpatched = DataStreamWriter.foreachBatch

    def foreach_batch(writer: DataStreamWriter, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def write_and_die(frame: DataFrame, batch_id: int) -> None:
            write(frame, batch_id)
            if batch_id == batch:
                os.killpg(os.getpgrp(), signal.SIGKILL)

        return unpatched(writer, write_and_die)

    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign, assignment]


def main(folder: Path, job: Path, batch: int | None) -> None:
    declared = json.loads(job.read_text(encoding="utf-8"))
    if batch is not None:
        kill_after(batch)
    # A crash leaves the JVM's scratch files behind: they are removed with the folder.
    # The test reads from Spark's logs which files each batch had, from the first batch on.
    conf = {"spark.local.dir": str(folder / "scratch"), "spark.sql.streaming.minBatchesToRetain": "100"}
    spark = dt.spark.session(2, "1g", "dovetail-replays", conf=conf)
    session = declare(spark, folder, **declared)
    session.start(parquet_sinks(folder, declared["queries"]), folder / "checkpoint", AVAILABLE_NOW).await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
