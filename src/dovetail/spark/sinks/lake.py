"""Tables with a log of their own, such as Delta and Iceberg: what their sinks and committers share.

The log stores the owner of the table, the run that may commit, its last batch, and the content id of that batch. A commit adds the
files of a batch and moves these numbers in one step, and only if the table has not changed since the committer has read it. Starting
a run stores its id, so an earlier one that still lives cannot commit: not even if its checkpoint is a copy.

A batch that is committed already is a replay. With the same content id and the same files' rows and bounds its results are the same,
and nothing is committed. Otherwise the job has changed, and the new files replace the rows of the earlier attempt.

Files of attempts that became no results are never deleted here, because an older version of the table may refer to them: the usual
maintenance of the table removes them.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.errors import ConfigError, StateError
from dovetail.spark.checkpoint.directories import Directory, Lock
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import Owner, SinkUse, check_still_owner, lock_sink
from dovetail.spark.sinks.sink import Sink, check_columns, check_types
from dovetail.spark.sinks.stage import BATCH_COLUMN, FileStage, WrittenFile

_MAX_ATTEMPTS = 12
_PAUSE_SECONDS = 0.05
_NEW_TABLE_HINT = "give the query another table: it is made for you if it does not exist"


class ConflictError(Exception):
    """Somebody else has changed the table since it was read."""


@dataclass(frozen=True)
class TableState:
    """The numbers that the log of a table stores about its query."""

    run: int | None = None
    """Number of the run that may commit; None if none has started."""
    batch: int | None = None
    """The last batch that has been committed; None if there is none."""
    content: int | None = None
    """Identifies the results of that batch."""


class LakeTable(ABC):
    """A table in one format; the implementations know its log."""

    title: str
    """Names the table in errors."""
    local: Path | None
    """Its directory, if that is on the driver's own disk."""
    _opened: Any = None
    """The table as it was last read."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}

    @abstractmethod
    def open(self) -> bool:
        """Read the current log; return False if there is no table."""

    @abstractmethod
    def create(self, schema: pa.Schema, owner: str) -> None:
        """Create the table; do nothing if another start was first."""

    @abstractmethod
    def set_owner(self, owner: str) -> None:
        """Store the owner of an empty table that somebody else has created."""

    @property
    @abstractmethod
    def owner(self) -> str | None:
        """The stored owner."""

    @abstractmethod
    def columns(self) -> list[tuple[str, str]]:
        """Return the names and types of the columns."""

    @abstractmethod
    def columns_of(self, schema: pa.Schema) -> list[tuple[str, str]]:
        """Return the columns that a table of these results has."""

    @abstractmethod
    def obstacle(self) -> str | None:
        """Return why files cannot be added to this table, if so."""

    @abstractmethod
    def last_batch(self) -> int | None:
        """Return the last batch of which the table holds rows; None if it is empty."""

    @abstractmethod
    def state(self, owner: Owner) -> TableState:
        """Return what the log stores about a query."""

    @abstractmethod
    def commit(self, owner: Owner, state: TableState, files: Sequence[WrittenFile], replaced: int | None) -> None:
        """Add files, remove the rows of batch `replaced`, and store the state, in one step.

        Raise `ConflictError` if the table has changed since it was opened.
        """

    @abstractmethod
    def stage(self, use: SinkUse, prefix: str) -> FileStage:
        """Return the stage that writes the table's files."""


class LakeSink(Sink):
    """Base class of sinks that add files to a table with a log of its own, exactly once."""

    format: str

    @abstractmethod
    def table(self, use: SinkUse) -> LakeTable:
        """Return the table, which need not exist."""

    def directory(self, use: SinkUse) -> Directory | None:
        local = self.table(use).local
        return None if local is None else Directory(local.as_uri().replace("///", "/"), local)

    def check(self, use: SinkUse) -> None:
        check_columns(use)
        check_types(use, repr(self))
        self._check(self.table(use), use)

    def _check(self, table: LakeTable, use: SinkUse) -> bool:
        """Refuse a table of other columns or another owner; return whether it exists."""
        if not table.open():
            return False
        expected, actual = table.columns_of(use.schema), table.columns()
        if expected != actual:
            raise ConfigError(
                f"query {use.query!r}: {table.title} has the columns ({_text(actual)}); results have ({_text(expected)})",
                _NEW_TABLE_HINT,
            )
        if obstacle := table.obstacle():
            raise ConfigError(f"query {use.query!r}: {table.title} {obstacle}", _NEW_TABLE_HINT)
        _check_owner(table, use)
        return True

    def claim(self, use: SinkUse) -> Lock | None:
        table = self.table(use)
        if not self._check(table, use):
            table.create(use.schema, use.owner.to_json())
            use.warn_of_earlier_results(table.title)
        elif table.owner is None:
            table.set_owner(use.owner.to_json())
        self._check(table, use)  # if two claimed it at once, one of them is the owner
        return None if table.local is None else lock_sink(table.local / "_dovetail.lock", table.title, use)

    def write(self, results: DataFrame, batch_id: int) -> None:  # noqa: ARG002
        raise StateError(
            f"{self} takes files from shards only", "use dt.sinks.table(name) for a table that Spark writes"
        )

    def committer(self, use: SinkUse, run_id: str) -> Committer:
        return LakeCommitter(self.table(use), use, run_id)


class LakeCommitter(Committer):
    """Adds the files of shards to a table."""

    needs_content_id = True

    def __init__(self, table: LakeTable, use: SinkUse, run_id: str) -> None:
        self.stage: FileStage = table.stage(use, f"dovetail-{re.sub(r'[^0-9a-z]', '', use.owner.checkpoint)[:8]}")
        self._table = table
        self._use, self._owner = use, use.owner
        self._run = int(run_id[:15], 16)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_use"}  # only `prepare` reads it

    def prepare(self) -> None:
        """Make this run the one that may commit."""

        def start() -> None:
            state = self._table.state(self._owner)
            if state.batch is not None and state.batch > self._use.checkpoint.last_batch:
                _check_owner(self._table, self._use)  # another run may have written them since `check`
                state = TableState(batch=self._use.checkpoint.last_batch)  # their rows were removed by hand
            self._table.commit(self._owner, replace(state, run=self._run), [], None)

        self._retry(start)

    def check(self, batch_id: int, files: Sequence[WrittenFile]) -> None:
        self.stage.check(batch_id, list(files))

    def commit(self, batch_id: int, files: Sequence[WrittenFile], content_id: int = 0) -> None:
        content = _fingerprint(files, content_id)

        def add() -> None:
            state = self._own_state(batch_id)
            if (state.batch, state.content) != (batch_id, content):
                replaced = batch_id if state.batch == batch_id else None
                self._table.commit(self._owner, TableState(self._run, batch_id, content), files, replaced)

        self._retry(add)

    def discard(self, batch_id: int) -> None:
        def remove() -> None:
            if self._own_state(batch_id).batch == batch_id:
                self._table.commit(self._owner, TableState(self._run, batch_id - 1, 0), [], batch_id)

        self._retry(remove)

    def _own_state(self, batch_id: int) -> TableState:
        """Return the state of the table; refuse to go on if another run or another owner has it."""
        table = self._table
        check_still_owner(table.owner, self._owner, table.title)
        state = table.state(self._owner)
        if state.run != self._run or (state.batch is not None and state.batch > batch_id):
            raise StateError(
                f"another session has started to write to {table.title}; this one is stale and has not written batch {batch_id}",
                "stop one of the two: a checkpoint and its copies may run once at a time",
            )
        return state

    def _retry(self, action: Callable[[], None]) -> None:
        """Open the table and run `action`; repeat both if others change the table meanwhile."""
        for attempt in range(_MAX_ATTEMPTS):
            if not self._table.open():
                raise StateError(
                    f"{self._table.title} was removed while the job was running; results of earlier batches are gone",
                    "restore it, or give the query a new table; only a new checkpoint computes earlier results again",
                )
            try:
                return action()
            except ConflictError:
                time.sleep(random.uniform(0.5, 1) * _PAUSE_SECONDS * min(attempt, 10))  # noqa: S311
        raise StateError(
            f"{self._table.title} was changed by others during each of {_MAX_ATTEMPTS} attempts to commit",
            "start again with the same checkpoint, which replays the batch, when they are done",
        )


def _check_owner(table: LakeTable, use: SinkUse) -> None:
    """Refuse a table with rows of another owner, or with later batches than the checkpoint."""
    last = table.last_batch()
    if table.owner is None and last is not None:
        raise ConfigError(
            f"query {use.query!r}: {table.title} holds rows that no query of Dovetail wrote", _NEW_TABLE_HINT
        )
    use.check_owner(table.owner, [] if last is None else [last], table.title)


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table of results: all may be NULL, the last one is the batch."""
    columns = [pa.field(column.name, column.type) for column in schema]
    return pa.schema([*columns, pa.field(BATCH_COLUMN, pa.int64())])


def _fingerprint(files: Sequence[WrittenFile], content_id: int) -> int:
    """Return a number that is equal for attempts with the same input, job and, by their files, rows."""
    parts = sorted((file.shard, file.rows, sorted(file.bounds.items())) for file in files)
    return int.from_bytes(hashlib.sha256(repr((content_id, parts)).encode()).digest()[:8]) >> 2


def _text(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
