"""Staged results: Parquet files that shards write themselves, on a disk that driver and workers share.

Such results never pass through Spark. Each shard writes its part of a batch as one file in a hidden directory of the run. When all
shards are done and each file holds as many rows as its shard reported, the driver moves the batch's directory into place in one step.
A repeated attempt overwrites its own file, a replayed batch replaces its own directory, and the next run sweeps the staging
directories of dead runs: no row is lost or duplicated, wherever a process is killed. (After a power failure this depends on the disk,
because nothing here calls fsync.)

A sink directory also holds a record of its batches, so that the next start can report batches that somebody removed. A running job
never recreates a sink directory that was removed: it would have no owner, and the next start would refuse it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.errors import StateError
from dovetail.spark.checkpoint.directories import Directory, reason
from dovetail.spark.sinks.committer import Committer
from dovetail.spark.sinks.stage import REPLAY_HINT, Stage, StagedFile, WrittenFile, writer_options
from dovetail.spark.state.shared_memory import free_space, is_abandoned, write_owner

OWNER_FILE = "_dovetail.json"
"""File with the query and the checkpoint that own a sink directory. Spark and Arrow skip names that start with an underscore."""
RECORD = "_dovetail.batches"
"""File that lists the batches of a sink directory: a line `<batch> written` or `<batch> removed` each; a batch's last line counts."""
BATCH_NAME = re.compile(r"batch_id=(\d+)")
MAX_LISTED = 5
"""Batches or shards that a message names."""
PREFIX = "_dovetail-"
_DISCARDED = "_dovetail.discarded"
_REPLACED = "replaced-"
_FILE = re.compile(r"shard-(\d+)\.parquet")
_LINE = re.compile(r"(\d+) (written|removed)")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's `renameat2`."""


@dataclass(frozen=True, slots=True)
class LocalStage(Stage):
    """The staging directory of one query in one run, on a disk that driver and workers share."""

    target: str
    """The sink directory."""
    run_id: str
    query: str = ""

    @property
    def home(self) -> Path:
        return Path(self.target) / f"{PREFIX}{self.run_id}"

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[StagedFile]:
        """Open the file of a shard's part of a batch; it gets its final name when it is complete."""
        folder = self.home / str(batch_id)
        unfinished, complete = folder / f".{uuid.uuid4().hex}", folder / f"shard-{shard:05}.parquet"

        def guard() -> AbstractContextManager[None]:
            return self.add_batch_context(batch_id)

        try:
            with guard():
                folder.mkdir(exist_ok=True)  # without parents: if they were removed, they would have no owner
                parquet = pq.ParquetWriter(unfinished, schema, **writer_options(schema, for_table=False))
                file = StagedFile(parquet, shard, guard)
            try:
                yield file
            except BaseException:
                with suppress(Exception):  # the first error matters more
                    parquet.close()
                raise
            with guard():
                parquet.close()
                unfinished.rename(complete)
            file.written = WrittenFile(shard, file.rows, complete.name)
        finally:  # otherwise each attempt would fill a full disk further
            unfinished.unlink(missing_ok=True)

    def add_batch_context(self, batch_id: int) -> AbstractContextManager[None]:
        """Add query, sink and batch to errors of the disk in workers."""
        return self.translate_os_errors(
            f"query {self.query!r}: its sink parquet({self.target!r}) failed with batch {batch_id}: "
        )

    @contextmanager
    def translate_os_errors(self, prefix: str = "") -> Iterator[None]:
        """Turn an error of the disk into one that names its cause."""
        try:
            yield
        except OSError as error:
            explained = self._explain(error)
            raise StateError(f"{prefix}{explained.message}", explained.hint) from error

    def _explain(self, error: OSError) -> StateError:
        if isinstance(error, FileNotFoundError):
            message = f"files in {self.home} were removed while the job was running"
            return removal_error(local_directory(self.target)) or StateError(message, REPLAY_HINT)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space is left for results: {free_space(Path(self.target))}"
            return StateError(message, f"free space there, then {REPLAY_HINT}")
        return StateError(f"{self.target} cannot be written: {reason(error)}", f"make it writable, then {REPLAY_HINT}")


class LocalCommitter(Committer):
    """Moves the staged directory of a batch into its place, in one step where the system can."""

    def __init__(self, stage: LocalStage) -> None:
        self.stage: LocalStage = stage

    @property
    def staging_directory(self) -> str:
        return self.stage.target

    @property
    def _target(self) -> Path:
        return Path(self.stage.target)

    def prepare(self) -> None:
        """Remove the staging directories of dead runs and make one for this run."""
        with self.stage.translate_os_errors(f"query {self.stage.query!r}: "):
            sweep_abandoned(self._target)
            self.stage.home.mkdir()
            write_owner(self.stage.home)

    def check(self, batch_id: int, files: Sequence[WrittenFile]) -> None:
        """Raise unless each shard's file holds the rows that the shard reported."""
        check_owner_file(local_directory(self.stage.target))
        staged = self.stage.home / str(batch_id)
        there = {int(name[1]): file for file in staged.glob("shard-*") if (name := _FILE.fullmatch(file.name))}
        rows, reported = {shard: count_rows(file) for shard, file in there.items()}, {f.shard: f.rows for f in files}
        wrong = {shard for shard in rows.keys() | reported.keys() if rows.get(shard, 0) != reported.get(shard, 0)}
        if wrong:
            differences = [
                f"shard {shard} reported {reported.get(shard, 0):,}, its file holds "
                f"{f'{rows[shard]:,}' if shard in rows else 'none: it is not there'}"
                for shard in sorted(wrong)[:MAX_LISTED]
            ]
            rest = f" and {len(wrong) - MAX_LISTED} more shards" if len(wrong) > MAX_LISTED else ""
            raise StateError(
                f"batch {batch_id} has {sum(reported.values()):,} results, of which {staged} holds {sum(rows.values()):,}: "
                f"{'; '.join(differences)}{rest}. The batch has not been committed",
                f"{REPLAY_HINT}. If it happens again: driver and workers must share this disk, and nothing else may remove "
                "files there",
            )

    def commit(self, batch_id: int, files: Sequence[WrittenFile], content_id: int = 0) -> None:  # noqa: ARG002
        """Make a batch visible to readers, in place of an earlier attempt at it."""
        check_owner_file(local_directory(self.stage.target))
        with self.stage.translate_os_errors():
            self._publish(batch_id)
            record_batch(self._target, batch_id, "written")

    def _publish(self, batch_id: int) -> None:
        """Move a batch into place and an earlier attempt away, in one step if the system can."""
        visible, staged = self._target / f"batch_id={batch_id}", self.stage.home / str(batch_id)
        for unfinished in staged.glob(".*"):  # left by attempts that were killed
            unfinished.unlink(missing_ok=True)
        if not visible.exists():
            staged.rename(visible)
        elif exchange(staged, visible):
            shutil.rmtree(staged)
        else:  # if the process is killed between the two steps, the next sweep restores the earlier attempt
            replaced = self.stage.home / f"{_REPLACED}{batch_id}"
            visible.rename(replaced)
            staged.rename(visible)
            shutil.rmtree(replaced)

    def discard(self, batch_id: int) -> None:
        discard_batch(self._target, batch_id)

    def clear(self) -> None:
        _sweep(self.stage.home)


def local_directory(path: str) -> Directory:
    """Return a directory on this disk that needs no JVM."""
    return Directory(path, Path(path))


def sweep_abandoned(target: Path) -> None:
    """Remove the staging directories of dead runs from a sink directory, if it exists."""
    for home in target.glob(f"{PREFIX}*"):
        if is_abandoned(home):
            _sweep(home)


def _sweep(home: Path) -> None:
    """Remove a run's staging directory, and restore a batch that the run was about to replace."""
    for replaced in home.glob(f"{_REPLACED}*"):
        visible = home.parent / f"batch_id={replaced.name.removeprefix(_REPLACED)}"
        if not visible.exists():
            replaced.rename(visible)
    # The owner file goes last: if this process is killed, the rest can still be swept.
    for batch in [entry for entry in home.glob("*") if entry.is_dir()]:
        shutil.rmtree(batch, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two directories atomically; return False where the system does not support it."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)


def count_rows(file: Path) -> int:
    """Return the number of rows in a Parquet file, from its footer."""
    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise StateError(
            f"{file} is not a whole Parquet file: {error}", "start again with the same checkpoint"
        ) from error


# -- sink directories --------------------------------------------------------------------------------------------------------------


def removal_error(directory: Directory) -> StateError | None:
    """Return the error to raise if a sink directory or its owner file was removed under a running job."""
    if directory.read(OWNER_FILE) is not None:
        return None
    if any(map(BATCH_NAME.fullmatch, directory.names())):
        return StateError(
            f"{directory.uri}/{OWNER_FILE}, which says whose results these are, was removed while the job was running",
            "put the file back, or give the query a new path",
        )
    return StateError(
        f"the directory {directory.uri} was removed while the job was running; results of earlier batches are gone",
        f"{REPLAY_HINT} into a new directory of that name; only a new checkpoint, with a new path, computes earlier results again",
    )


def check_owner_file(directory: Directory) -> None:
    """Raise if a sink directory, or the file that names its owner, was removed."""
    error = removal_error(directory)
    if error is not None:
        raise error


def record_batch(target: Path, batch_id: int, event: str) -> None:
    """Append an event of a batch, `written` or `removed`, to the record of a sink directory."""
    with (target / RECORD).open("a", encoding="ascii") as file:
        file.write(f"{batch_id} {event}\n")


def _recorded_batches(target: Path) -> set[int]:
    """Return the batches that the record lists; damaged lines count as absent."""
    events: dict[int, str] = {}
    with suppress(OSError):
        text = (target / RECORD).read_text(encoding="ascii", errors="replace")
        events = {int(line[1]): line[2] for line in map(_LINE.fullmatch, text.splitlines()) if line}
    return {batch for batch, event in events.items() if event == "written"}


def update_record(target: Path) -> set[int]:
    """Set the record to the batches in a sink directory; return the recorded batches that were removed."""
    recorded = _recorded_batches(target)
    present = {int(batch[1]) for entry in target.iterdir() if (batch := BATCH_NAME.fullmatch(entry.name))}
    if recorded != present:
        unfinished = target / f"{RECORD}.new"
        with suppress(OSError):  # at worst, the next start reports the same batches again
            unfinished.write_text("".join(f"{batch} written\n" for batch in sorted(present)), encoding="ascii")
            unfinished.replace(target / RECORD)
    return recorded - present


def discard_batch(target: Path, batch_id: int) -> None:
    """Remove a batch atomically for readers: rename it to a name that they skip, then delete it."""
    hidden = target / _DISCARDED
    shutil.rmtree(hidden, ignore_errors=True)  # left by a process that was killed here
    with suppress(FileNotFoundError):
        (target / f"batch_id={batch_id}").rename(hidden)
        record_batch(target, batch_id, "removed")
        shutil.rmtree(hidden)
