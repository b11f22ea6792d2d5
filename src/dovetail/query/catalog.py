"""Names and options of declared streams."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pyarrow as pa

from dovetail.errors import ConfigError, SchemaError
from dovetail.query.durations import parse_duration
from dovetail.schema import StreamSchema, stored_schema


def check_name(kind: str, name: object) -> None:
    """Reject anything but a non-empty string that can be encoded as UTF-8."""
    if not isinstance(name, str) or not name or name.encode(errors="replace").decode() != name:
        raise ConfigError(f"the name of a {kind} is {name!r}; it must be text")


def check_names(stream: object, event_time: object, progress_by: object) -> None:
    """Reject a stream whose name, or the name of one of its columns, is no text."""
    check_name("stream", stream)
    for option, column in (("event_time", event_time), ("progress_by", progress_by)):
        if not isinstance(column, str) and (column is not None or option == "event_time"):
            raise SchemaError(
                f"stream {stream!r}: {option} is a {type(column).__name__}; expected the name of a column",
                f"write {option}={_column_name(column) or 'ts'!r}",
            )


def _column_name(column: Any) -> str | None:
    """Return the name of a column of Spark, pandas, Polars or Arrow."""
    name = getattr(column, "name", None)
    if isinstance(name, str):
        return name
    column_of_spark = re.fullmatch(r"Column<'(\w+)'>", repr(column))
    return column_of_spark and column_of_spark[1]


def stream_schema(
    name: str,
    schema: pa.Schema,
    event_time: str,
    lateness: str | float | timedelta,
    rate: float | None,
    progress_by: str | None,
    *,
    idle_after: str | float | timedelta | None,
    max_ahead: str | float | timedelta | None,
) -> StreamSchema:
    """Return a stream from the options of a session's `stream`."""
    return StreamSchema(
        name,
        stored_schema(schema),
        event_time,
        parse_duration(lateness),
        rate,
        progress_by,
        None if idle_after is None else parse_duration(idle_after),
        None if max_ahead is None else parse_duration(max_ahead),
    )
