"""Results that shards write themselves: Parquet files on a disk that driver and workers share.

Results then never travel through Spark. Each shard writes its part of a batch under a name of its own in a directory of the run,
which readers do not see; when all shards are done, and the files hold as many rows as each shard reported, the driver moves the
batch's directory into its place in one step. An attempt that is repeated overwrites its own file, a batch that is replayed takes the
place of its own directory, and what a run left behind whose driver is dead is swept by the next one: no row is lost and none is there
twice, wherever a process is killed. (When the machine loses power it depends on the disk: nothing here is forced out to it.)
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.errors import StateError
from dovetail.spark.live import is_abandoned, sign

_PREFIX = "_dovetail-"
"""Spark and Arrow skip names that start with an underscore."""
_REPLACED = "replaced-"
_FILE = re.compile(r"shard-(\d+)\.parquet")
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

    @property
    def _home(self) -> Path:
        return Path(self.target) / f"{_PREFIX}{self.run_id}"

    def prepare(self) -> None:
        """Make room, and sweep what runs have left whose driver is dead; those of others, alive, are left alone."""
        target = Path(self.target)
        target.mkdir(parents=True, exist_ok=True)
        for left in target.glob(f"{_PREFIX}*"):
            if is_abandoned(left):
                _sweep(left)
        self._home.mkdir()
        sign(self._home)

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """Write a shard's part of a batch; it is there when all of it is."""
        folder = self._home / str(batch_id)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{uuid.uuid4().hex}"
        try:
            with pq.ParquetWriter(unfinished, schema, **_format(schema)) as file:
                yield file
            unfinished.rename(folder / f"shard-{shard:05}.parquet")
        finally:  # on a full disk, each attempt would leave it fuller
            unfinished.unlink(missing_ok=True)

    def check(self, batch_id: int, reported: Mapping[int, int]) -> None:
        """Raise unless the files hold the rows that each shard reported; nothing that readers see has changed by then."""
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
