"""Results that shards write themselves: Parquet files on a disk that driver and workers share.

Results then never travel through Spark. Each shard writes its part of a batch under a name of its own in a directory of the run,
which readers do not see; when all shards are done, and the files hold as many rows as each shard reported, the driver moves the
batch's directory into its place in one step. An attempt that is repeated overwrites its own file, a batch that is replayed takes the
place of its own directory, and what a run left behind whose driver is dead is swept by the next one: no row is lost and none is there
twice, wherever a process is killed. (When the machine loses power it depends on the disk: nothing here is forced out to it.)

A sink directory also holds a record of its batches, so that the next start can report batches that somebody removed. A job never makes
a sink directory again that was removed while it runs: the directory would have no owner, and the next start would refuse it.
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
from dovetail.spark.state.shared_memory import free_space, is_abandoned, sign

OWNER = "_dovetail.json"
"""Names the query and the checkpoint that own a sink directory. Spark and Arrow skip names that start with an underscore."""
RECORD = "_dovetail.batches"
"""Lists the batches of a sink directory: `<batch> written` or `<batch> removed` in a line, of which the last for a batch counts."""
_PREFIX = "_dovetail-"
_DISCARDED = "_dovetail.discarded"
_REPLACED = "replaced-"
_FILE = re.compile(r"shard-(\d+)\.parquet")
_BATCH = re.compile(r"batch_id=(\d+)")
_LINE = re.compile(r"(\d+) (written|removed)")
_REPLAY = "start again with the same checkpoint, which replays the batch"
_AT_WORKING_DIRECTORY, _EXCHANGE = -100, 2
"""Of Linux's `renameat2`."""
_MOST_NAMED = 5


def plain_types(schema: pa.Schema) -> bool:
    """Whether Spark reads every column of such a Parquet file as it would have written it itself."""
    types = pa.types
    checks = (
        types.is_signed_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_binary,
        types.is_large_binary, types.is_date32, types.is_decimal128, types.is_float32, types.is_float64,
    )  # fmt: skip
    return all(
        any(check(field.type) for check in checks) or (types.is_timestamp(field.type) and field.type.unit == "us")
        for field in schema
    )


def _format(schema: pa.Schema) -> dict[str, Any]:
    """How files are written: what costs a shard least, of what Spark and others read.

    Results come as they are found, from keys of all values: the least and the greatest of a row group tell a reader something of
    times only.
    """
    compared = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    return {
        "compression": "snappy", "use_dictionary": False, "store_schema": False, "write_statistics": compared,
        "data_page_version": "2.0", "write_batch_size": 1 << 16,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Staging:
    """Where one query's results wait until their batch is complete."""

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
        with self._explaining_errors(f"query {self.query!r}: "):
            sweep_abandoned(Path(self.target))
            self._home.mkdir()
            sign(self._home)

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[StagedFile]:
        """Write a shard's part of a batch; it is there when all of it is."""
        folder = self._home / str(batch_id)
        unfinished = folder / f".{uuid.uuid4().hex}"
        try:
            with self.naming_batch(batch_id):
                folder.mkdir(exist_ok=True)  # not its parents: they have no owner if they were removed
                file = StagedFile(self, batch_id, pq.ParquetWriter(unfinished, schema, **_format(schema)))
            try:
                yield file
            except BaseException:
                with suppress(Exception):  # the first error says more
                    file.parquet.close()
                raise
            with self.naming_batch(batch_id):
                file.parquet.close()
                unfinished.rename(folder / f"shard-{shard:05}.parquet")
        finally:  # on a full disk, each attempt would leave it fuller
            unfinished.unlink(missing_ok=True)

    def naming_batch(self, batch_id: int) -> AbstractContextManager[None]:
        """Let errors of the disk name query, sink and batch, in workers; on the driver `RunningSession` does that."""
        return self._explaining_errors(
            f"query {self.query!r}: its sink parquet({self.target!r}) failed with batch {batch_id}: "
        )

    @contextmanager
    def _explaining_errors(self, place: str = "") -> Iterator[None]:
        """Turn an error of the disk into one that says what became of the sink directory."""
        try:
            yield
        except OSError as error:
            explained = self._explained(error)
            raise StateError(f"{place}{explained.message}", explained.hint) from error

    def _explained(self, error: OSError) -> StateError:
        if isinstance(error, FileNotFoundError):
            gone = f"files in {self._home} were removed while the job was running"
            return loss_of(self._directory) or StateError(gone, _REPLAY)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = f"no space is left for results: {free_space(Path(self.target))}"
            return StateError(full, f"free space there, then {_REPLAY}")
        return StateError(f"{self.target} cannot be written: {reason(error)}", f"make it writable, then {_REPLAY}")

    def check(self, batch_id: int, reported: Mapping[int, int]) -> None:
        """Raise unless the files hold the rows that each shard reported; nothing that readers see has changed by then."""
        check_owned(self._directory)
        done = self._home / str(batch_id)
        named = {int(found[1]): file for file in done.glob("shard-*") if (found := _FILE.fullmatch(file.name))}
        held = {shard: rows_in(file) for shard, file in named.items()}
        wrong = {shard for shard in held.keys() | reported.keys() if held.get(shard, 0) != reported.get(shard, 0)}
        if wrong:
            each = [
                f"shard {shard} reported {reported.get(shard, 0):,}, its file holds "
                f"{f'{held[shard]:,}' if shard in held else 'none: it is not there'}"
                for shard in sorted(wrong)[:_MOST_NAMED]
            ]
            more = f" and {len(wrong) - _MOST_NAMED} more shards" if len(wrong) > _MOST_NAMED else ""
            raise StateError(
                f"batch {batch_id} has {sum(reported.values()):,} results, of which {done} holds {sum(held.values()):,}: "
                f"{'; '.join(each)}{more}. The batch has not been committed",
                "start again with the same checkpoint, which replays the batch. If it happens again: driver and workers must share "
                "this disk, and nothing else may remove files there",
            )

    def commit(self, batch_id: int) -> None:
        """Show a batch to readers, in place of an earlier attempt at it."""
        check_owned(self._directory)
        with self._explaining_errors():
            self._show(batch_id)
            record_batch(Path(self.target), batch_id, "written")

    def _show(self, batch_id: int) -> None:
        """Move a batch to its place; an earlier attempt leaves it in the same step, where the system can do that."""
        shown, done = Path(self.target) / f"batch_id={batch_id}", self._home / str(batch_id)
        for unfinished in done.glob(".*"):  # of attempts that were killed
            unfinished.unlink(missing_ok=True)
        if not shown.exists():
            done.rename(shown)
        elif exchange(done, shown):
            shutil.rmtree(done)
        else:  # killed between the two steps, the earlier attempt is put back by whoever sweeps
            replaced = self._home / f"{_REPLACED}{batch_id}"
            shown.rename(replaced)
            done.rename(shown)
            shutil.rmtree(replaced)

    def clear(self) -> None:
        _sweep(self._home)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A shard's part of a batch while it is written."""

    staging: Staging
    batch_id: int
    parquet: pq.ParquetWriter

    def write_table(self, table: pa.Table) -> None:
        """Append rows; an error names query, sink and batch."""
        with self.staging.naming_batch(self.batch_id):
            self.parquet.write_table(table)


def sweep_abandoned(target: Path) -> None:
    """Remove the staging directories of dead runs from a sink directory, if there is one; those of running jobs stay."""
    for home in target.glob(f"{_PREFIX}*"):
        if is_abandoned(home):
            _sweep(home)


def _sweep(home: Path) -> None:
    """Remove what a run left, except for a batch that it was about to replace: that goes back to its place."""
    for replaced in home.glob(f"{_REPLACED}*"):
        shown = home.parent / f"batch_id={replaced.name.removeprefix(_REPLACED)}"
        if not shown.exists():
            replaced.rename(shown)
    for batch in [
        entry for entry in home.glob("*") if entry.is_dir()
    ]:  # before the owner: killed here, it can be swept again
        shutil.rmtree(batch, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Let two directories change places in one step, so that a reader sees the one or the other; False where that cannot be done."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here = _AT_WORKING_DIRECTORY
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), _EXCHANGE) == 0)


def rows_in(file: Path) -> int:
    """Rows of a Parquet file, by its footer."""
    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise StateError(
            f"{file} is not a whole Parquet file: {error}", "start again with the same checkpoint"
        ) from error


# -- sink directories --------------------------------------------------------------------------------------------------------------


def loss_of(directory: Directory) -> StateError | None:
    """Return the error to raise if a sink directory, or the file that names its owner, was removed under a running job."""
    if directory.read(OWNER) is not None:
        return None
    if any(map(_BATCH.fullmatch, directory.names())):
        return StateError(
            f"{directory.uri}/{OWNER}, which says whose results these are, was removed while the job was running",
            "put the file back, or give the query a new path",
        )
    return StateError(
        f"the directory {directory.uri} was removed while the job was running; results of earlier batches are gone",
        f"{_REPLAY} into a new directory of that name; only a new checkpoint, with a new path, computes the earlier results again",
    )


def check_owned(directory: Directory) -> None:
    """Raise if a sink directory is no longer there, or lost the file that names its owner."""
    error = loss_of(directory)
    if error is not None:
        raise error


def record_batch(target: Path, batch_id: int, event: str) -> None:
    """Append to the record of a sink directory that a batch was `written` or `removed`."""
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
    """Let the record list the batches that a sink directory holds; return those that it listed and that were removed since."""
    recorded = _recorded_batches(target)
    present = {int(batch[1]) for entry in target.iterdir() if (batch := _BATCH.fullmatch(entry.name))}
    if recorded != present:
        unfinished = target / f"{RECORD}.new"
        with suppress(OSError):  # at worst, the next start reports the same batches again
            unfinished.write_text("".join(f"{batch} written\n" for batch in sorted(present)), encoding="ascii")
            unfinished.replace(target / RECORD)
    return recorded - present


def discard_batch(target: Path, batch_id: int) -> None:
    """Remove a batch, in one step as readers see it: it gets a name that they skip and is deleted then."""
    hidden = target / _DISCARDED
    shutil.rmtree(hidden, ignore_errors=True)  # of a process that was killed in here
    with suppress(FileNotFoundError):
        (target / f"batch_id={batch_id}").rename(hidden)
        record_batch(target, batch_id, "removed")
        shutil.rmtree(hidden)
