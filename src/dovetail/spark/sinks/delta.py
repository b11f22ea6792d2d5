"""Delta tables, through the package deltalake: no jars, on any file system.

The log of a table stores three transactions of each query: its last batch, the run that may commit, and the content of the last batch.
They outlive checkpoints of the log. deltalake accepts any version of them, also an older one, so `LakeCommitter` checks first, and
`max_commit_retries=0` makes a commit fail if the table has changed in between.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from dovetail._extras import requires_extra
from dovetail.errors import ConfigError
from dovetail.spark.sinks.lake import ConflictError, LakeSink, LakeTable, TableState, table_schema
from dovetail.spark.sinks.owners import OWNER_PROPERTY, Owner, SinkUse
from dovetail.spark.sinks.sink import shares_disk
from dovetail.spark.sinks.stage import BATCH_COLUMN, FileStage, WrittenFile
from dovetail.spark.sinks.stores import check_options, local_path, open_store

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


class DeltaSink(LakeSink):
    """Write to a Delta table, exactly once; `start` creates the table if it does not exist.

    Parameters
    ----------
    path_or_uri
        Directory of the table: a path, or a URI such as `s3://bucket/table`.
    storage_options
        Options of deltalake for object stores, such as `{"AWS_REGION": "eu-central-1"}`.
    """

    format = "Delta"

    def __init__(self, path_or_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        if not isinstance(path_or_uri, str | os.PathLike) or not os.fspath(path_or_uri):
            raise ConfigError(
                f"dt.sinks.delta got {path_or_uri!r}; expected a path or a URI, as text",
                'write, for example, dt.sinks.delta("out/funnel")',
            )
        self._options = check_options("delta", storage_options)
        with requires_extra("delta", "dt.sinks.delta()"):
            import deltalake  # noqa: F401, PLC0415 - an optional package, used from `start` on
        self._path = os.fspath(path_or_uri)

    def __repr__(self) -> str:
        return f"delta({self._path!r})"

    def table(self, use: SinkUse) -> LakeTable:  # noqa: ARG002
        return DeltaLakeTable(self._path, self._options)

    def check(self, use: SinkUse) -> None:
        if local_path(self._path) is not None and not self._shares_disk(use):
            raise ConfigError(
                f"query {use.query!r}: {self} is a path of the driver's disk, which the workers may not share",
                "use the URI of an object store; or a `file:` URI, if it is mounted on all machines",
            )
        super().check(use)

    def _shares_disk(self, use: SinkUse) -> bool:
        return shares_disk(self._path, use)


class DeltaLakeTable(LakeTable):
    """A Delta table and its log."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self.title = f"the Delta table {path}"
        self.local = local_path(path)
        self._uri = path.rstrip("/") if self.local is None else str(self.local)
        self._options = dict(options)
        self._opened: DeltaTable | None = None

    @property
    def _delta(self) -> DeltaTable:
        assert self._opened is not None  # noqa: S101 - callers have opened it
        return self._opened

    def open(self) -> bool:
        from deltalake import DeltaTable  # noqa: PLC0415 - an optional package
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415

        try:
            if self._opened is None or (self.local is not None and not (self.local / "_delta_log").is_dir()):
                self._opened = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._opened.update_incremental()
        except TableNotFoundError:
            self._opened = None
        except (DeltaError, OSError, ValueError) as error:
            raise ConfigError(
                f"{self.title} cannot be read: {_reason(error)}", "check the path and its options"
            ) from error
        return self._opened is not None

    def create(self, schema: pa.Schema, owner: str) -> None:
        from deltalake import DeltaTable, Schema  # noqa: PLC0415
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        try:
            if self.local is not None:
                self.local.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                self._uri,
                Schema.from_arrow(table_schema(schema)),
                configuration={OWNER_PROPERTY: owner},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError, ValueError) as error:
            if not self.open():
                raise ConfigError(
                    f"{self.title} cannot be created: {_reason(error)}", "check the path and its options"
                ) from error

    def set_owner(self, owner: str) -> None:
        self._delta.alter.set_table_properties({OWNER_PROPERTY: owner}, raise_if_not_exists=False)

    @property
    def owner(self) -> str | None:
        return self._delta.metadata().configuration.get(OWNER_PROPERTY)

    def columns(self) -> list[tuple[str, str]]:
        return _columns(self._delta.schema())

    def columns_of(self, schema: pa.Schema) -> list[tuple[str, str]]:
        from deltalake import Schema  # noqa: PLC0415

        return _columns(Schema.from_arrow(table_schema(schema)))

    def obstacle(self) -> str | None:
        metadata = self._delta.metadata()
        if metadata.partition_columns:
            return f"is partitioned by {', '.join(metadata.partition_columns)}"
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            return "maps the names of its columns"
        return None

    def last_batch(self) -> int | None:
        actions = self._actions()
        if not actions:
            return None
        lasts: list[Any] = [action.get(f"max.{BATCH_COLUMN}") for action in actions if action["num_records"] != 0]
        if None in lasts:
            dataset = self._delta.to_pyarrow_dataset()
            lasts = [part.as_py() for part in dataset.to_table([BATCH_COLUMN])[BATCH_COLUMN].unique()]
        return max(lasts, default=None)

    def state(self, owner: Owner) -> TableState:
        return TableState(*map(self._delta.transaction_version, _transactions(owner)))

    def commit(self, owner: Owner, state: TableState, files: Sequence[WrittenFile], replaced: int | None) -> None:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        now = round(1000 * time.time())
        try:
            removed = [] if replaced is None else self._removals(owner, state, replaced, now)
            self._delta.create_write_transaction(
                [*removed, *(_added(file, now) for file in files)],
                "append",
                self._delta.schema(),
                commit_properties=_properties(owner, state),
            )
        except CommitFailedError as error:
            raise ConflictError from error

    def _removals(self, owner: Owner, state: TableState, batch: int, now: int) -> list[Any]:
        """Return the removals of the files of a batch.

        If maintenance has merged them with those of others, delete the rows at once and raise `ConflictError`. The batch before is
        the last one then, so the next attempt, or the next replay, has nothing to remove.
        """
        from deltalake.transaction import RemoveAction  # noqa: PLC0415

        removals, is_mixed = [], False
        for action in self._actions():
            low, high = (action.get(f"{bound}.{BATCH_COLUMN}") for bound in ("min", "max"))
            if low == high == batch:
                removals.append(RemoveAction(quote(action["path"]), True, now, action["size_bytes"], {}))
            is_mixed |= low is None or high is None or (low <= batch <= high and low < high)
        if not is_mixed:
            return removals
        before = TableState(state.run, batch - 1, 0)
        self._delta.delete(f"{BATCH_COLUMN} = {batch}", commit_properties=_properties(owner, before))
        raise ConflictError

    def _actions(self) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        return actions

    def stage(self, use: SinkUse, prefix: str) -> FileStage:
        files, directory = open_store(self._uri, self._options)
        sink = f"query {use.query!r}: its sink delta({self._uri!r})"
        return FileStage(files, directory, prefix, sink, table_schema(use.schema))


def _transactions(owner: Owner) -> list[str]:
    """Return the ids of the transactions that store the fields of a `TableState`."""
    name = f"dovetail/{owner.checkpoint}/{owner.query}"
    return [f"{name}/run", name, f"{name}/content"]


def _properties(owner: Owner, state: TableState) -> CommitProperties:
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415

    numbers = zip(_transactions(owner), (state.run, state.batch, state.content), strict=True)
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(name, number) for name, number in numbers if number is not None],
    )


def _added(file: WrittenFile, now: int) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415

    statistics = {
        "numRecords": file.rows,
        "minValues": {name: bounds.low for name, bounds in file.bounds.items() if bounds.low is not None},
        "maxValues": {name: bounds.high for name, bounds in file.bounds.items() if bounds.high is not None},
        "nullCount": {name: bounds.nulls for name, bounds in file.bounds.items() if bounds.nulls is not None},
    }
    return AddAction(quote(file.name), file.size, {}, now, data_change=True, stats=json.dumps(statistics))


def _columns(schema: Any) -> list[tuple[str, str]]:
    return [(column.name, str(getattr(column.type, "type", column.type))) for column in schema.fields]


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]
