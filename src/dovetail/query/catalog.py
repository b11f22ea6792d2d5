"""Names and options of declared streams."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from dovetail.errors import ConfigError
from dovetail.query.durations import parse_duration
from dovetail.schema import StreamSchema, stored_schema


def check_name(kind: str, name: object) -> None:
    """Reject anything but a non-empty string that can be encoded as UTF-8."""
    if not isinstance(name, str) or not name or name.encode(errors="replace").decode() != name:
        raise ConfigError(f"the name of a {kind} is {name!r}; it must be text")


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
