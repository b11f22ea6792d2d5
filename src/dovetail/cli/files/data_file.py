"""Files as streams: CSV, Parquet, JSON lines and Arrow, read in pieces with inferred types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

import dovetail as dt
from dovetail.errors import listed, suggestion

PIECE_ROWS = 1 << 16
"""Maximum number of rows that are read and pushed at once."""
_BLOCK_BYTES = 1 << 22
_FIRST_PIECES = 8
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_HEADS = {b"PAR1": "parquet", b"ARRO": "arrow"}


@dataclass(frozen=True)
class DataFile:
    """One or more files of the same format and columns, as a stream in the order of their names."""

    name: str
    paths: tuple[Path, ...]
    format: str
    schema: pa.Schema

    @classmethod
    def of(cls, name: str, path: Path, columns: str | None = None) -> DataFile:
        """Return the stream in a file, or in the files of a directory; `columns` override the inferred types."""
        paths = _files_of(path)
        kind = _format_of(paths[0])
        types = None if columns is None else dt.parse_columns(columns, name)
        with _reading(paths[0]):
            types = _json_types(paths[0], types) if kind == "json" else types
            return cls(name, paths, kind, _OPENERS[kind](paths[0], types).schema)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def pieces(self) -> Iterator[tuple[pa.Table, int]]:
        """Yield the rows in pieces, each with the number of bytes read so far."""
        before = 0
        for path in self.paths:
            with _reading(path):
                opened, size = _OPENERS[self.format](path, self.schema), path.stat().st_size
                for table in opened.tables:
                    rows = self._as_declared(path, table)
                    for first in range(0, rows.num_rows, PIECE_ROWS):
                        yield rows.slice(first, PIECE_ROWS), before + min(size, opened.position())
            before += size

    def first_rows(self) -> pa.Table:
        """Return the first pieces."""
        return pa.concat_tables(
            [self.schema.empty_table(), *(table for table, _ in islice(self.pieces(), _FIRST_PIECES))]
        )

    def _as_declared(self, path: Path, table: pa.Table) -> pa.Table:
        if missing := [name for name in self.schema.names if name not in table.column_names]:
            raise dt.SchemaError(f"{path} lacks the columns {listed(missing)}, which {self.paths[0]} has")
        return table.select(self.schema.names).cast(self.schema)

    def event_time(self, given: str | None) -> str:
        """Return the event time: the one that is given, or else the only timestamp column."""
        if given is not None:
            if given not in self.schema.names:
                raise dt.SchemaError(
                    f"stream {self.name!r}: --event-time names {given!r}, which is not a column; columns: "
                    f"{listed(self.schema.names)}",
                    suggestion(given, self.schema.names, f"timestamp columns: {listed(self._times)}"),
                )
            return given
        if len(self._times) == 1:
            return self._times[0]
        if self._times:
            message = f"has the timestamp columns {listed(self._times)}"
            hint = f"say which one is the event time: --event-time {self.name}={self._times[0]}"
        else:
            types = ", ".join(f"{field.name} {field.type}" for field in self.schema)
            message = f"has no timestamp column; columns: {types}"
            hint = (
                f"declare the column of its times: --columns {self.name}='COLUMN timestamp', or timestamp_ntz without a time zone; "
                "repair damaged times first"
            )
        raise dt.SchemaError(f"stream {self.name!r} ({self.paths[0]}) {message}", hint)

    @property
    def _times(self) -> list[str]:
        return [field.name for field in self.schema if pa.types.is_timestamp(field.type)]


@dataclass(frozen=True)
class _Opened:
    """An open file: its columns, its rows, and how far it has been read."""

    schema: pa.Schema
    tables: Iterator[pa.Table]
    position: Callable[[], int]


def _files_of(path: Path) -> tuple[Path, ...]:
    if not path.exists():
        near = [str(other) for other in sorted(path.parent.glob("*"))] if path.parent.is_dir() else []
        hint = suggestion(str(path), near, "name a file, or a directory of files, as NAME=PATH or PATH")
        raise dt.ConfigError(f"there is no file {str(path)!r}", hint)
    if not path.is_dir():
        return (path,)
    files = tuple(sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(("_", "."))))
    suffixes = {file.suffix for file in files}
    if not files or len(suffixes) > 1:
        holds = f"files of several kinds: {listed(sorted(suffixes))}" if files else "no files"
        raise dt.ConfigError(f"the directory {str(path)!r} holds {holds}", "name files of one kind")
    return files


def _format_of(path: Path) -> str:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        with path.open("rb") as file:
            kind = _HEADS.get(file.read(4))
    if kind is None:
        raise dt.ConfigError(
            f"{str(path)!r} has the suffix {path.suffix!r}; files are read by suffix: {listed(_SUFFIXES)}",
            "give the file one of these suffixes",
        )
    return kind


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report errors of PyArrow as of a file."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        hint = (
            "repair the value, or declare the type of its column, which is else inferred from the first rows: "
            "--columns STREAM='COLUMN TYPE'"
        )
        raise dt.SchemaError(f"{path} cannot be read: {error}", hint) from None


def _open_csv(path: Path, types: pa.Schema | None, delimiter: str = ",") -> _Opened:
    file = pa.OSFile(str(path))
    reader = csv.open_csv(
        file,
        csv.ReadOptions(block_size=_BLOCK_BYTES),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # An empty text is NULL, which matches nothing; `NA` and `null` remain texts.
        csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""]),
    )
    return _Opened(reader.schema, map(_table, reader), file.tell)


def _open_tsv(path: Path, types: pa.Schema | None) -> _Opened:
    return _open_csv(path, types, "\t")


def _open_json(path: Path, types: pa.Schema | None) -> _Opened:
    file = pa.OSFile(str(path))
    options = json.ParseOptions(explicit_schema=types, newlines_in_values=False)
    reader = json.open_json(file, json.ReadOptions(block_size=_BLOCK_BYTES), options)
    return _Opened(reader.schema, map(_table, reader), file.tell)


def _json_types(path: Path, types: pa.Schema | None) -> pa.Schema:
    """Return the types of a JSON file: those declared, times for texts that are times, else as inferred.

    PyArrow alone infers times of whole seconds only, and loses their offset.
    """
    declared = types or pa.schema([])
    inferred = [field for field in _open_json(path, None).schema if field.name not in declared.names]
    texts = [field.name for field in inferred if pa.types.is_string(field.type) or pa.types.is_timestamp(field.type)]
    as_text = pa.schema([pa.field(name, pa.string()) for name in texts])
    first = next(_open_json(path, as_text).tables, as_text.empty_table())
    times = {name: _time_type(first.column(name)) for name in texts}
    return pa.schema([*declared, *(field.with_type(times.get(field.name, field.type)) for field in inferred)])


def _time_type(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the type of texts: times if all of them are times."""
    for dtype in (pa.timestamp("us", "UTC"), pa.timestamp("us")) if texts.null_count < len(texts) else ():
        with suppress(pa.ArrowInvalid):
            return texts.cast(dtype).type
    return pa.string()


def _open_parquet(path: Path, types: pa.Schema | None) -> _Opened:
    file = parquet.ParquetFile(path)
    size, rows, done = path.stat().st_size, max(1, file.metadata.num_rows), [0]

    def tables() -> Iterator[pa.Table]:
        for batch in file.iter_batches(PIECE_ROWS):
            done[0] += batch.num_rows
            yield _table(batch)

    return _Opened(_with_types(file.schema_arrow, types), tables(), lambda: size * done[0] // rows)


def _open_arrow(path: Path, types: pa.Schema | None) -> _Opened:
    mapped, size, done = pa.memory_map(str(path)), path.stat().st_size, [0]
    try:
        file = ipc.open_file(mapped)
    except pa.ArrowInvalid:  # a stream of batches instead of a file
        mapped.seek(0)
        reader = ipc.open_stream(mapped)
        return _Opened(_with_types(reader.schema, types), map(_table, reader), mapped.tell)

    def tables() -> Iterator[pa.Table]:
        for number in range(file.num_record_batches):
            done[0] = size * (number + 1) // file.num_record_batches
            yield _table(file.get_batch(number))

    return _Opened(_with_types(file.schema, types), tables(), lambda: done[0])


def _with_types(schema: pa.Schema, types: pa.Schema | None) -> pa.Schema:
    declared = {field.name: field for field in types or ()}
    return pa.schema([declared.get(field.name, field) for field in schema])


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


_OPENERS: dict[str, Callable[[Path, pa.Schema | None], _Opened]] = {
    "csv": _open_csv,
    "tsv": _open_tsv,
    "json": _open_json,
    "parquet": _open_parquet,
    "arrow": _open_arrow,
}
