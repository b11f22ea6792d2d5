"""Registered streams and queries, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

import pyarrow as pa

from dovetail.errors import ConfigError, listed
from dovetail.query.durations import parse_duration
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema, stored_schema


def check_name(kind: str, name: object) -> None:
    """Refuse what is no name: it must be text, and text that can be written down."""
    if not isinstance(name, str) or not name or name.encode(errors="replace").decode() != name:
        raise ConfigError(f"the name of a {kind} is {name!r}; it must be text")


class Catalog:
    """The streams and queries of a session. Names are unique within their kind."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamSchema] = {}
        self._queries: dict[str, JoinQuery] = {}

    def copy(self) -> Catalog:
        """Another one with the same content."""
        other = Catalog()
        other._streams, other._queries = dict(self._streams), dict(self._queries)
        return other

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self._streams

    @property
    def queries(self) -> Mapping[str, JoinQuery]:
        return self._queries

    def declare_stream(
        self,
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
        """Add a stream from the options of a session's `stream`."""
        declared = StreamSchema(
            name,
            stored_schema(schema),
            event_time,
            parse_duration(lateness),
            rate,
            progress_by,
            None if idle_after is None else parse_duration(idle_after),
            None if max_ahead is None else parse_duration(max_ahead),
        )
        self.add_stream(declared)
        return declared

    def add_stream(self, schema: StreamSchema) -> None:
        if schema.name in self._streams:
            raise ConfigError(f"stream {schema.name!r} is already declared", "give the second one another name")
        self._streams[schema.name] = schema

    def check_new_query(self, name: str) -> None:
        if name in self._queries:
            raise ConfigError(
                f"query {name!r} is already registered",
                "give it another name, or drop_query() the first where it runs",
            )

    def add_query(self, query: JoinQuery) -> None:
        self.check_new_query(query.name)
        self._queries[query.name] = query

    def check_query(self, name: str) -> None:
        if name not in self._queries:
            raise ConfigError(f"there is no query {name!r}; registered: {listed(self._queries)}")

    def keep(self, streams: Iterable[str], queries: Iterable[str]) -> None:
        """Forget all streams and queries but these."""
        streams, queries = set(streams), set(queries)
        self._streams = {name: schema for name, schema in self._streams.items() if name in streams}
        self._queries = {name: query for name, query in self._queries.items() if name in queries}

    def drop_query(self, name: str) -> JoinQuery:
        self.check_query(name)
        return self._queries.pop(name)
