"""Result files: CSV, Parquet and JSON lines, complete or not there at all."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

import dovetail as dt
from dovetail.errors import listed

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_FORMATS = ("csv", "parquet", "jsonl")


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class ResultFile:
    """A file of results, which appears under its name once it is complete; `-` is standard output."""

    def __init__(self, out: str, chosen: str | None = None, *, replace: bool = False) -> None:
        """Check the name and the format; nothing is written yet."""
        self.rows = 0
        self._path = None if out == "-" else Path(out)
        self._format = chosen or _SUFFIXES.get(Path(out).suffix.lower(), "")
        if self._format not in _FORMATS:
            where = f"--format is {chosen!r}" if chosen else f"--out is {out!r}, whose suffix names no format"
            raise dt.ConfigError(
                f"{where}; allowed: {listed(_FORMATS)}", "add --format csv, or a suffix such as .parquet"
            )
        if self._path is not None and self._path.exists() and not replace:
            raise dt.ConfigError(f"--out {out}: the file exists", "give another name, or add --replace")
        if self._path is not None and not self._path.parent.is_dir():
            raise dt.ConfigError(f"--out {out}: there is no directory {str(self._path.parent)!r}", "create it first")
        self._writer: _Writer | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Do nothing: the first table says which columns there are."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        self._open.close()
        if self._path is not None and kind is None and self._writer is not None:
            self._unfinished.replace(self._path)
        elif self._path is not None:
            self._unfinished.unlink(missing_ok=True)

    @property
    def _unfinished(self) -> Path:
        assert self._path is not None  # noqa: S101 - callers have checked
        return self._path.with_name(f".{self._path.name}.{os.getpid()}")

    def write(self, table: pa.Table) -> None:
        """Append results; the first table, which may be empty, determines the columns."""
        table = table.cast(pa.schema([_written_as(field, self._format) for field in table.schema]))
        if self._writer is None:
            file = sys.stdout.buffer if self._path is None else self._open.enter_context(self._unfinished.open("wb"))
            self._writer = _writer(self._format, file, table.schema)
        self._writer.write_table(table)
        self.rows += table.num_rows


def _written_as(field: pa.Field, kind: str) -> pa.Field:
    """Return how a column is written: intervals as microseconds, which CSV and JSON lack."""
    return field.with_type(pa.int64()) if pa.types.is_duration(field.type) and kind != "parquet" else field


def _writer(kind: str, file: Any, schema: pa.Schema) -> _Writer:
    if kind == "parquet":
        return parquet.ParquetWriter(file, schema)  # type: ignore[no-any-return]
    if kind == "csv":
        try:
            return csv.CSVWriter(file, schema)  # type: ignore[no-any-return]
        except pa.ArrowInvalid as error:
            raise dt.SchemaError(f"the results do not fit CSV: {error}", "write --format parquet") from None
    return _JsonLines(file)


class _JsonLines:
    """Writes one JSON object per row, column by column."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        parts: list[Any] = ["{"]
        for number, name in enumerate(table.column_names):
            parts += [f"{', ' if number else ''}{json.dumps(name)}: ", _json_texts(table.column(name))]
        lines = pc.binary_join_element_wise(*parts, "}", "")
        if lines.num_rows if isinstance(lines, pa.Table) else len(lines):
            self._file.write(("\n".join(lines.to_pylist()) + "\n").encode())

    def close(self) -> None:
        """Do nothing: each line is complete."""


def _json_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return each value as JSON; each distinct one is written once where only Python can."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = values.cast(pa.string())
    elif pa.types.is_floating(kind):
        texts = pc.if_else(pc.is_finite(values), values.cast(pa.string()), None)
    elif pa.types.is_temporal(kind):
        texts = pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
    elif pa.types.is_nested(kind):
        texts = pa.chunked_array([[json.dumps(value, default=str) for value in values.to_pylist()]], pa.string())
    else:
        encoded = values.combine_chunks().dictionary_encode()
        written = pa.array([json.dumps(value, default=str) for value in encoded.dictionary.to_pylist()], pa.string())
        texts = written.take(encoded.indices)
    return pc.fill_null(texts, "null")
