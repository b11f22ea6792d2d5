"""Stages travel to the workers, where shards write the results of a query as Parquet files.

Such results never pass through Spark. Each shard writes its part of a batch as one file that no reader sees yet, and reports it to
the driver, where a `Committer` makes the reported files visible. So whatever attempt of a task was killed or repeated, the files of
exactly one become results.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dovetail.errors import StateError
from dovetail.spark.sinks.statistics import ColumnBounds, bounds_of

BATCH_COLUMN = "batch_id"
"""Column that tells the batches of a table apart."""
REPLAY_HINT = "start again with the same checkpoint, which replays the batch"


def has_plain_types(schema: pa.Schema) -> bool:
    """Whether Spark reads each column from Arrow's Parquet with the type that it would have written."""
    return not other_columns(schema)


def other_columns(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of which Spark would write another type than Arrow does."""
    types = pa.types
    checks = (
        types.is_signed_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_binary,
        types.is_large_binary, types.is_date32, types.is_decimal128, types.is_float32, types.is_float64,
    )  # fmt: skip

    def is_plain(kind: pa.DataType) -> bool:
        return any(check(kind) for check in checks) or (types.is_timestamp(kind) and kind.unit == "us")

    return [column for column in schema if not is_plain(column.type)]


def writer_options(schema: pa.Schema, *, for_table: bool) -> dict[str, Any]:
    """Return the cheapest Parquet options that Spark and other readers support.

    Results are not ordered by any key, so in a directory the minimum and maximum of a row group help a reader only for timestamps;
    tables keep those of all columns.
    """
    timestamps = [column.name for column in schema if pa.types.is_timestamp(column.type)]
    return {
        "compression": "snappy", "use_dictionary": [BATCH_COLUMN] if for_table else False, "store_schema": False,
        "write_statistics": True if for_table else timestamps, "data_page_version": "2.0", "write_batch_size": 1 << 16,
    }  # fmt: skip


@dataclass(frozen=True)
class WrittenFile:
    """A complete file with a shard's part of a batch, as the shard reports it to the driver."""

    shard: int
    rows: int
    name: str = ""
    """Relative to the directory of its stage."""
    size: int = 0
    bounds: Mapping[str, ColumnBounds] = field(default_factory=dict)
    """Of the columns of a table's file."""

    def to_json(self) -> str:
        return json.dumps([self.shard, self.rows, self.name, self.size, self.bounds])

    @classmethod
    def from_json(cls, text: str | bytes) -> WrittenFile:
        shard, rows, name, size, bounds = json.loads(text)
        return cls(shard, rows, name, size, {column: ColumnBounds(*values) for column, values in bounds.items()})


class StagedFile:
    """A shard's unfinished part of a batch."""

    def __init__(
        self, parquet: pq.ParquetWriter, shard: int, guard: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Write with `parquet`, inside `guard`, which adds query, sink and batch to errors."""
        self.parquet = parquet
        self.shard = shard
        self.rows = 0
        self.columns_with_nan: set[str] = set()
        self.written: WrittenFile | None = None
        """The report of the file once it is complete."""
        self._guard = guard

    def write_table(self, table: pa.Table) -> None:
        """Append rows."""
        with self._guard():
            self.parquet.write_table(self.prepared(table))
        self.rows += table.num_rows

    def prepared(self, table: pa.Table) -> pa.Table:
        """Return the rows as the file holds them."""
        return table


class Stage(ABC):
    """Writes the files of one query in one run; picklable."""

    @abstractmethod
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> AbstractContextManager[StagedFile]:
        """Open the file of a shard's part of a batch; no reader sees it before it is committed."""


# -- files on any file system ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileStage(Stage):
    """Stage on any file system that Arrow can write.

    Each attempt writes a file of its own, under its final name. Files of attempts that do not become results stay unreferenced; a
    table's maintenance removes them.
    """

    files: pafs.FileSystem
    directory: str
    """Path of the directory on that file system."""
    prefix: str
    """Beginning of all file names."""
    sink: str = ""
    """The query and its sink, for errors."""
    schema: pa.Schema | None = None
    """Columns of a table's files, the last of them the batch; None if files have the columns of the results only."""

    @contextmanager
    def writer(self, batch_id: int, shard: int, schema: pa.Schema) -> Iterator[StagedFile]:
        name = f"{self.prefix}-{batch_id}-shard-{shard:05}-{uuid.uuid4().hex[:12]}.parquet"

        def guard() -> AbstractContextManager[None]:
            return self._translate_errors(batch_id)

        with guard():
            stream = self.files.open_output_stream(f"{self.directory}/{name}")
        footers: list[pq.FileMetaData] = []
        options = writer_options(schema, for_table=self.schema is not None)
        parquet = pq.ParquetWriter(stream, self.schema or schema, metadata_collector=footers, **options)
        file = _TableFile(parquet, shard, guard)
        file.schema, file.batch_id = self.schema, batch_id
        try:
            yield file
            with guard():
                parquet.close()
                size = stream.tell()
                stream.close()
        except BaseException:
            for opened in (parquet, stream):
                with suppress(Exception):  # the first error matters more
                    opened.close()
            with suppress(Exception):
                self.files.delete_file(f"{self.directory}/{name}")
            raise
        bounds = bounds_of(footers[0], file.columns_with_nan) if self.schema is not None else {}
        file.written = WrittenFile(shard, file.rows, name, size, bounds)

    @contextmanager
    def _translate_errors(self, batch_id: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"{self.sink} failed with batch {batch_id}: {self.directory} cannot be written: {error}",
                f"make it writable, then {REPLAY_HINT}",
            ) from error

    def path(self, file: WrittenFile) -> str:
        return f"{self.directory}/{file.name}"

    def check(self, batch_id: int, files: list[WrittenFile]) -> None:
        """Raise unless all reported files are there, whole."""
        for file, info in zip(files, self.files.get_file_info(list(map(self.path, files))), strict=True):
            if info.type != pafs.FileType.File or info.size != file.size:
                there = f"holds {info.size:,} bytes" if info.type == pafs.FileType.File else "is not there"
                raise StateError(
                    f"batch {batch_id}: shard {file.shard} reported {file.rows:,} results in {info.path}, {file.size:,} bytes; "
                    f"the file {there}. The batch has not been committed",
                    f"{REPLAY_HINT}. If it happens again: driver and workers must reach the same files, and nothing else may remove "
                    "files there",
                )


class _TableFile(StagedFile):
    """A file with a column for the batch, if it belongs to a table."""

    schema: pa.Schema | None = None
    batch_id = -1

    def prepared(self, table: pa.Table) -> pa.Table:
        if self.schema is None:
            return table
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                self.columns_with_nan.add(name)
        batches = pa.repeat(pa.scalar(self.batch_id, pa.int64()), table.num_rows)
        return table.append_column(BATCH_COLUMN, batches).cast(self.schema)
