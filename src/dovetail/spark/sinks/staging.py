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
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.errors import StateError
from dovetail.spark.checkpoint.directories import Directory, reason
from dovetail.spark.state.shared_memory import free_space, is_abandoned, write_owner

OWNER_FILE = "_dovetail.json"
"""File with the query and the checkpoint that own a sink directory. Spark and Arrow skip names that start with an underscore."""
RECORD = "_dovetail.batches"
"""File that lists the batches of a sink directory: a line `<batch> written` or `<batch> removed` each; a batch's last line counts."""
BATCH_NAME = re.compile(r"batch_id=(\d+)")
MAX_LISTED = 5
"""Batches or shards that a message names."""
_PREFIX = "_dovetail-"
_DISCARDED = "_dovetail.discarded"
_REPLACED = "replaced-"
_FILE = re.compile(r"shard-(\d+)\.parquet")
_LINE = re.compile(r"(\d+) (written|removed)")
_REPLAY_HINT = "start again with the same checkpoint, which replays the batch"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's `renameat2`."""


def has_plain_types(schema: pa.Schema) -> bool:
    """Whether Spark reads each column from Arrow's Parquet with the type that it would have written."""
    types = pa.types
    checks = (
        types.is_signed_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_binary,
        types.is_large_binary, types.is_date32, types.is_decimal128, types.is_float32, types.is_float64,
    )  # fmt: skip
    return all(
        any(check(field.type) for check in checks) or (types.is_timestamp(field.type) and field.type.unit == "us")
        for field in schema
    )


def _writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the cheapest Parquet options that Spark and other readers support.

    Results are not ordered by any key, so the minimum and maximum of a row group help a reader only for timestamps.
    """
    timestamps = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    return {
        "compression": "snappy", "use_dictionary": False, "store_schema": False, "write_statistics": timestamps,
        "data_page_version": "2.0", "write_batch_size": 1 << 16,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging directory of one query in one run: it holds results until their batch is complete."""

    target: str
    run_id: str
    query: str = ""

    @property
    def _home(self) -> Path:
        return Path(self.target) / f"{_PREFIX}{self.run_id}"

    @property
    def _directory(self) -> Directory:
        return Directory(self.target, Path(self.target))

    def prepare(self) -> None:
        """Remove the staging directories of dead runs from the sink directory and make one for this run."""
        with self._translate_os_errors(f"query {self.query!r}: "):
            sweep_abandoned(Path(self.target))
            self._home.mkdir()
            write_owner(self._home)

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[StagedFile]:
        """Open the file of a shard's part of a batch; it gets its final name only when it is complete."""
        folder = self._home / str(batch_id)
        unfinished = folder / f".{uuid.uuid4().hex}"
        try:
            with self.add_batch_context(batch_id):
                folder.mkdir(exist_ok=True)  # without parents: if they were removed, they would have no owner
                file = StagedFile(self, batch_id, pq.ParquetWriter(unfinished, schema, **_writer_options(schema)))
            try:
                yield file
            except BaseException:
                with suppress(Exception):  # the first error matters more
                    file.parquet.close()
                raise
            with self.add_batch_context(batch_id):
                file.parquet.close()
                unfinished.rename(folder / f"shard-{shard:05}.parquet")
        finally:  # otherwise each attempt would fill a full disk further
            unfinished.unlink(missing_ok=True)

    def add_batch_context(self, batch_id: int) -> AbstractContextManager[None]:
        """Add query, sink and batch to errors of the disk in workers; on the driver `RunningSession` does so."""
        return self._translate_os_errors(
            f"query {self.query!r}: its sink parquet({self.target!r}) failed with batch {batch_id}: "
        )

    @contextmanager
    def _translate_os_errors(self, prefix: str = "") -> Iterator[None]:
        """Turn an error of the disk into one that names its cause."""
        try:
            yield
        except OSError as error:
            explained = self._explain(error)
            raise StateError(f"{prefix}{explained.message}", explained.hint) from error

    def _explain(self, error: OSError) -> StateError:
        if isinstance(error, FileNotFoundError):
            message = f"files in {self._home} were removed while the job was running"
            return removal_error(self._directory) or StateError(message, _REPLAY_HINT)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space is left for results: {free_space(Path(self.target))}"
            return StateError(message, f"free space there, then {_REPLAY_HINT}")
        return StateError(f"{self.target} cannot be written: {reason(error)}", f"make it writable, then {_REPLAY_HINT}")

    def check(self, batch_id: int, reported: Mapping[int, int]) -> None:
        """Raise unless each shard's file holds the rows that the shard reported; readers see no change before."""
        check_owner_file(self._directory)
        staged = self._home / str(batch_id)
        files = {int(name[1]): file for file in staged.glob("shard-*") if (name := _FILE.fullmatch(file.name))}
        rows = {shard: count_rows(file) for shard, file in files.items()}
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
                f"{_REPLAY_HINT}. If it happens again: driver and workers must share this disk, and nothing else may remove "
                "files there",
            )

    def commit(self, batch_id: int) -> None:
        """Make a batch visible to readers, in place of an earlier attempt at it."""
        check_owner_file(self._directory)
        with self._translate_os_errors():
            self._publish(batch_id)
            record_batch(Path(self.target), batch_id, "written")

    def _publish(self, batch_id: int) -> None:
        """Move a batch into place and an earlier attempt away, in one step where the system supports it."""
        visible, staged = Path(self.target) / f"batch_id={batch_id}", self._home / str(batch_id)
        for unfinished in staged.glob(".*"):  # left by attempts that were killed
            unfinished.unlink(missing_ok=True)
        if not visible.exists():
            staged.rename(visible)
        elif exchange(staged, visible):
            shutil.rmtree(staged)
        else:  # if the process is killed between the two steps, the next sweep restores the earlier attempt
            replaced = self._home / f"{_REPLACED}{batch_id}"
            visible.rename(replaced)
            staged.rename(visible)
            shutil.rmtree(replaced)

    def clear(self) -> None:
        _sweep(self._home)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A shard's unfinished part of a batch."""

    staging: Staging
    batch_id: int
    parquet: pq.ParquetWriter

    def write_table(self, table: pa.Table) -> None:
        """Append rows; an error names query, sink and batch."""
        with self.staging.add_batch_context(self.batch_id):
            self.parquet.write_table(table)


def sweep_abandoned(target: Path) -> None:
    """Remove the staging directories of dead runs from a sink directory, if it exists."""
    for home in target.glob(f"{_PREFIX}*"):
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
        f"{_REPLAY_HINT} into a new directory of that name; only a new checkpoint, with a new path, computes earlier results again",
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
