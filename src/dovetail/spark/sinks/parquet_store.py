"""Directories of Parquet files in object stores, which have no atomic renames.

Shards write their files into a hidden directory of the run. When all of them are there, the driver copies them inside the store, to
names that hold the batch and the shard; so a replay overwrites its own files and removes those that it has no more. Each file appears
whole, but a reader may see some files of a batch before the others: a Delta or an Iceberg table shows whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.errors import StateError
from dovetail.spark.checkpoint.store_directory import StoreDirectory, make_parents
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.owners import SinkUse, check_owned_directory
from dovetail.spark.sinks.stage import FileStage, WrittenFile
from dovetail.spark.sinks.staging import PREFIX

_RUN_FILE = "_dovetail.run"
"""File that names the run that may commit."""


class StoreCommitter(Committer):
    """Copies the files of a batch to their places."""

    def __init__(self, directory: StoreDirectory, use: SinkUse, run_id: str) -> None:
        self._directory, self._owner, self._run_id = directory, use.owner, run_id
        self._home = directory.within(f"{PREFIX}{run_id}")
        self.stage: FileStage = FileStage(
            directory.files, self._home.path, "part", f"query {use.query!r}: its sink parquet({directory.uri!r})"
        )

    def prepare(self) -> None:
        """Make this run the one that may commit, and remove what earlier runs have staged."""
        check_owned_directory(self._directory, self._owner)
        self._directory.replace(_RUN_FILE, self._run_id)
        for name in self._directory.names():
            if name.startswith(PREFIX):
                self._directory.remove(name)
        make_parents(self._directory.files, self._home.path)

    def check(self, batch_id: int, files: Sequence[WrittenFile]) -> None:
        self._check_owner(batch_id)
        self.stage.check(batch_id, list(files))

    def _check_owner(self, batch_id: int) -> None:
        """Raise if the directory has another owner, or another run may commit."""
        check_owned_directory(self._directory, self._owner)
        if self._directory.read(_RUN_FILE) != self._run_id:
            raise StateError(
                f"another session has started to write to {self._directory.uri}; this one is stale and has not written "
                f"batch {batch_id}",
                "stop one of the two: a checkpoint and its copies may run once at a time",
            )

    def commit(self, batch_id: int, files: Sequence[WrittenFile], content_id: int = 0) -> None:  # noqa: ARG002
        batch, names = self._directory.within(f"batch_id={batch_id}"), set()
        make_parents(batch.files, batch.path)
        for file in files:
            name = f"shard-{file.shard:05}.parquet"
            batch.files.copy_file(self.stage.path(file), f"{batch.path}/{name}")
            names.add(name)
        for name in batch.names():
            if name not in names:
                batch.remove(name)
        for file in files:
            self._home.remove(file.name)

    def discard(self, batch_id: int) -> None:
        self._check_owner(batch_id)
        self._directory.remove(f"batch_id={batch_id}")

    def clear(self) -> None:
        self._directory.remove(self._home.uri.rpartition("/")[2])
