"""Results that shards write themselves: Parquet files on a disk that driver and workers share.

Results then never travel through Spark. Each shard writes its part of a batch under a name of its own in a directory of the run,
which readers do not see; when all shards are done the driver moves the batch's directory into its place in one step. An attempt that
is repeated overwrites its own file, a batch that is replayed replaces its own directory, and what a killed run left behind is
swept by the next one: no row is lost and none is there twice.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

_PREFIX = "_dovetail-"
"""Spark and Arrow skip names that start with an underscore."""


def local_path(path: str, *, embedded: bool) -> Path | None:
    """The place on this machine's disk that Spark would write `path` to; None where that is elsewhere or cannot be known.

    A path without a scheme belongs to the cluster's default file system, which is the local one in an `embedded` Spark.
    """
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path)).absolute()
    return Path(path).absolute() if embedded and not parts.scheme else None


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
    run: str

    @property
    def _home(self) -> Path:
        return Path(self.target) / f"{_PREFIX}{self.run}"

    def prepare(self) -> None:
        """Make room, and sweep what earlier runs have left."""
        target = Path(self.target)
        target.mkdir(parents=True, exist_ok=True)
        for left in target.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """Write a shard's part of a batch; it is there when all of it is."""
        folder = self._home / str(batch_id)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{uuid.uuid4().hex}"
        with pq.ParquetWriter(unfinished, schema, **_format(schema)) as file:
            yield file
        unfinished.rename(folder / f"shard-{shard:05}.parquet")

    def commit(self, batch_id: int) -> None:
        """Show a batch to readers, in place of an earlier attempt at it."""
        place, done = Path(self.target) / f"batch_id={batch_id}", self._home / str(batch_id)
        for unfinished in done.glob(".*"):  # of attempts that were killed
            unfinished.unlink(missing_ok=True)
        if place.exists():
            replaced = self._home / f"replaced-{uuid.uuid4().hex}"
            place.rename(replaced)
        done.rename(place)

    def clear(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
