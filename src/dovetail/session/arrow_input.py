"""Tables and schemas from anything that offers Arrow data: pandas, Polars, DuckDB relations.

A table is converted to the types of its stream where no value changes: a wider number, another unit of time that holds all digits,
another encoding of text, another time zone. Everything else is refused with the line to write. So is a reader, which can be read only
once: if its batch were refused or interrupted, its tuples would be missing when the batch is pushed again.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, TypeAlias

import pyarrow as pa

from dovetail.errors import ConfigError, SchemaError, listed, warn
from dovetail.schema import StreamSchema, stored_type, type_name
from dovetail.session.columns import parse_columns
from dovetail.session.conversion_lines import conversion_line, event_time_hint

SchemaLike: TypeAlias = Any
"""A `pyarrow.Schema`, columns as text, or anything that offers Arrow data."""
TableLike: TypeAlias = Any
"""Anything that offers Arrow data as a table."""
_INDEX = re.compile(r"__index_level_\d+__")
"""Columns that pandas makes of an index without a name."""
_UTC = {"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "UCT", "Zulu"}
_READERS = {
    ".csv": "pyarrow.csv.read_csv(path)",
    ".tsv": "pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter='\\t'))",
    ".json": "pyarrow.json.read_json(path)",
    ".jsonl": "pyarrow.json.read_json(path)",
    ".ndjson": "pyarrow.json.read_json(path)",
    ".parquet": "pyarrow.parquet.read_table(path)",
    ".feather": "pyarrow.feather.read_table(path)",
    ".arrow": "pyarrow.feather.read_table(path)",
}
"""By suffix, what reads a file; files of lines are JSON too."""
_EXAMPLE = "pa.schema({'ts': pa.timestamp('us', tz='UTC'), 'k': pa.int64()})"


class ArrowInput:
    """Converts what is pushed into a session; warns once per column that is read as UTC."""

    def __init__(self) -> None:
        self._read_as_utc: set[tuple[str, str]] = set()

    def table(self, stream: StreamSchema, data: object) -> object:
        """Return a table with the types of the stream; raise `SchemaError` if that is impossible."""
        if isinstance(data, pa.Table | pa.RecordBatch) and data.schema.equals(stream.columns):
            return data
        table = _as_table(stream, data)
        names = stream.columns.names
        index = [name for name in table.column_names if _INDEX.fullmatch(name) and name not in names]
        table = table.drop_columns(index) if index else table
        if sorted(table.column_names) != sorted(names):
            return table  # the engine says which columns are missing
        columns = [self._column(stream, field, table.column(field.name), _origin(data)) for field in stream.columns]
        return pa.table(columns, names=names)

    def _column(self, stream: StreamSchema, field: pa.Field, values: pa.ChunkedArray, origin: str) -> pa.ChunkedArray:
        """Return a column with the declared type, or one that differs in its encoding only."""
        actual, declared = values.type, field.type
        if actual == declared or stored_type(actual) == declared:
            return values
        where = f"stream {stream.name!r}: column {field.name!r}"
        if not _is_lossless(actual, declared):
            raise SchemaError(
                f"{where} has type {actual}; declared {declared} ({type_name(declared)})",
                conversion_line(field, actual, origin, values),
            )
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise SchemaError(f"{where} is damaged: {error}") from None
        self._warn_of_zone(stream.name, field, actual, origin)
        try:
            if pa.types.is_dictionary(actual) or pa.types.is_run_end_encoded(actual):
                values = values.cast(stored_type(actual))
            return values.cast(declared)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            message = f"{where} has type {actual}, and not every value fits {declared} ({type_name(declared)}): {error}"
            raise SchemaError(message, conversion_line(field, actual, origin)) from None

    def _warn_of_zone(self, stream: str, field: pa.Field, actual: pa.DataType, origin: str) -> None:
        """Warn once if times without a zone are read as UTC, or the other way round."""
        if not pa.types.is_timestamp(actual) or (actual.tz is None) == (field.type.tz is None):
            return
        if (stream, field.name) not in self._read_as_utc:
            self._read_as_utc.add((stream, field.name))
            has, needs = ("no time zone", "one") if actual.tz is None else (f"the zone {actual.tz}", "none")
            warn(
                f"stream {stream!r}: column {field.name!r} has {has} and is declared with {needs}: its times are read as UTC\n"
                f"Hint: {conversion_line(field, actual, origin)}"
            )


def as_schema(stream: str, given: object) -> pa.Schema:
    """Return the schema of columns as text, or of anything that offers Arrow data; refuse anything else."""
    is_path = _reader_of(given) is not None
    schema = parse_columns(given, stream) if isinstance(given, str) and not is_path else _read_schema(given)
    if schema is None:
        raise ConfigError(
            f"stream {stream!r}: got a {type(given).__name__} as schema; expected a pyarrow.Schema, columns as text, or data that has "
            "columns",
            _schema_hint(given),
        )
    if schema.metadata and b"pandas" in schema.metadata:  # of a frame, or a table of one
        schema = pa.schema([field for field in schema if not _INDEX.fullmatch(field.name)])
    return schema


def _read_schema(given: Any) -> pa.Schema | None:
    if isinstance(given, pa.Schema):
        return given
    if _origin(given) == "pandas" and hasattr(given, "columns"):
        return pa.Schema.from_pandas(given, preserve_index=_keeps_index(given, ()))
    if isinstance(given, pa.Table | pa.RecordBatch | pa.RecordBatchReader):  # a reader must not be read
        return given.schema
    if hasattr(given, "__arrow_c_schema__"):
        return pa.schema(given)
    if _offers_arrow(given) and not isinstance(given, pa.Array | pa.ChunkedArray):
        return (
            pa.RecordBatchReader.from_stream(given).schema
            if hasattr(given, "__arrow_c_stream__")
            else pa.table(given).schema
        )
    return None


def _offers_arrow(data: object) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _origin(data: object) -> str:
    """Return the library that data is from: `pandas`, `polars`, ..."""
    return type(data).__module__.lstrip("_").partition(".")[0]


def _keeps_index(frame: Any, declared: Any) -> bool:
    """Whether an index of a pandas frame has the name of a column of the stream."""
    return any(name is not None and (not declared or name in declared) for name in frame.index.names)


def _as_table(stream: StreamSchema, data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatchReader):
        raise SchemaError(
            f"stream {stream.name!r}: got a RecordBatchReader, which can be read only once; expected a table, which can be pushed "
            "again after an error",
            "push reader.read_all()",
        )
    is_table = not isinstance(data, pa.Array | pa.ChunkedArray)
    try:
        if _origin(data) == "pandas" and hasattr(data, "columns"):
            _check_pandas(stream, data)
            return pa.Table.from_pandas(data, preserve_index=_keeps_index(data, stream.columns.names))
        if is_table and _offers_arrow(data):
            return pa.table(data)
    except pa.ArrowException as error:
        message = f"stream {stream.name!r}: the {type(data).__name__} cannot be converted to Arrow: {error}"
        raise SchemaError(message, "give each column one type before pushing it") from error
    raise SchemaError(
        f"stream {stream.name!r}: got {_described(data)}; expected a pyarrow.Table, a DataFrame of pandas or Polars, or anything "
        "else with __arrow_c_stream__ or __arrow_c_array__",
        _data_hint(data),
    )


def _check_pandas(stream: StreamSchema, frame: Any) -> None:
    """Refuse a frame with a column twice, or with the event time in an index without a name."""
    columns = list(frame.columns)
    if len(set(columns)) < len(columns):
        raise SchemaError(
            f"stream {stream.name!r}: a column occurs twice in {listed(columns)}",
            "keep the first of each: df = df.loc[:, ~df.columns.duplicated()]",
        )
    if stream.event_time not in columns and frame.index.name is None and type(frame.index).__name__ == "DatetimeIndex":
        raise SchemaError(
            f"stream {stream.name!r}: missing {stream.event_time!r}; the frame has an index of times without a name",
            f"write df = df.reset_index(names={stream.event_time!r})",
        )


def _described(data: object) -> str:
    text = repr(data)
    return f"{text} ({type(data).__name__})" if isinstance(data, str) and len(text) < 60 else type(data).__name__


def _data_hint(data: object) -> str:
    """Return the line that makes a table of what was pushed."""
    origin = _origin(data)
    if origin == "polars":
        return "push frame.collect()" if hasattr(data, "collect") else "push a polars.DataFrame, e.g. series.to_frame()"
    if origin == "pyspark":
        return "push frame.toArrow(), or use dt.Session(spark) for streams on Spark"
    if isinstance(data, list | tuple) and data and isinstance(data[0], pa.RecordBatch | pa.Table):
        return (
            "push pa.Table.from_batches(batches)"
            if isinstance(data[0], pa.RecordBatch)
            else "push pa.concat_tables(tables)"
        )
    if isinstance(data, dict):
        is_row = not any(hasattr(values, "__len__") and not isinstance(values, str | bytes) for values in data.values())
        return "push pa.Table.from_pylist([row], schema=schema)" if is_row else "push pa.table(columns, schema=schema)"
    if isinstance(data, str | PurePath):
        return f"read the file first: push {_reader_of(data) or _reader_of('a.parquet')}"
    if data is None:
        return "leave a stream without new tuples out of the batch"
    if origin == "pandas":
        return "push a DataFrame, e.g. series.to_frame()"
    if origin == "numpy" or (isinstance(data, list | tuple) and data and isinstance(data[0], list | tuple)):
        return "push pa.Table.from_pylist([dict(zip(schema.names, row)) for row in rows], schema=schema)"
    return "push pa.Table.from_pylist(rows, schema=schema), for rows as dicts"


def _reader_of(data: object) -> str | None:
    """Return what reads a file, by its suffix; None for anything but a path with a known one."""
    reader = _READERS.get(PurePath(data).suffix.lower()) if isinstance(data, str | PurePath) else None
    return None if reader is None else f"{reader}; first: import {'.'.join(reader.split('.')[:2])}"


def _schema_hint(given: object) -> str:
    """Return how to make a schema of what was passed instead of one."""
    if _origin(given) == "pyspark":
        return "write dt.Session(spark).stream(name, frame, ...) for streams on Spark"
    if _origin(given) == "polars" and hasattr(given, "collect"):
        return "write frame.collect()"
    if (reader := _reader_of(given)) is not None:
        return f"read the file first: write {reader}"
    return f"write {_EXAMPLE}, a type for each column"


def check_event_time(stream: str, columns: pa.Schema, event_time: str, given: object) -> None:
    """Refuse an event time that is no timestamp with the line that converts it.

    `given` is what had the columns.
    """
    index = columns.get_field_index(event_time) if isinstance(event_time, str) else -1
    if index < 0 or pa.types.is_timestamp(actual := columns.field(index).type):
        return
    values = given.column(event_time) if isinstance(given, pa.Table) else None
    hint = event_time_hint(event_time, actual, _origin(given), values)
    if isinstance(given, pa.Schema):
        hint = f"declare it as pa.timestamp('us', tz='UTC') and convert what you push: {hint}"
    raise SchemaError(f"stream {stream!r}: event time {event_time!r} has type {actual}; it must be a timestamp", hint)


def _is_lossless(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values may be cast without loss; where that depends on the values, Arrow checks them."""
    types = pa.types
    actual, declared = stored_type(actual), stored_type(declared)
    if actual == declared or types.is_null(actual):
        return True
    if types.is_nested(actual) or types.is_nested(declared):
        return _is_lossless_nested(actual, declared)
    if types.is_timestamp(actual) and types.is_timestamp(declared):
        if (actual.tz is None) == (declared.tz is None):
            return True
        return (actual.tz or declared.tz) in _UTC
    if types.is_floating(declared):
        return bool(types.is_integer(actual) or (types.is_floating(actual) and actual.bit_width <= declared.bit_width))
    if types.is_integer(declared):
        return bool(types.is_integer(actual))
    if types.is_decimal(declared):
        return bool(types.is_integer(actual) or types.is_decimal(actual))
    kinds = (
        (types.is_string, types.is_large_string),
        (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        (types.is_duration,),
        (types.is_date,),
        (types.is_time,),
    )
    return any(
        any(is_kind(actual) for is_kind in kind) and any(is_kind(declared) for is_kind in kind) for kind in kinds
    )


def _is_lossless_nested(actual: pa.DataType, declared: pa.DataType) -> bool:
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_list(actual) for is_list in lists) and any(is_list(declared) for is_list in lists):
        return _is_lossless(actual.value_type, declared.value_type)
    if types.is_struct(actual) and types.is_struct(declared):
        names = [field.name for field in declared]
        has_same_names = [field.name for field in actual] == names
        return has_same_names and all(
            _is_lossless(actual.field(name).type, declared.field(name).type) for name in names
        )
    return False
