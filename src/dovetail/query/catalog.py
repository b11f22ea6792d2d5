"""Registered streams and queries, by name."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import ConfigError, listed
from dovetail.query.model import JoinQuery
from dovetail.schema import StreamSchema


class Catalog:
    """The streams and queries of a session. Names are unique within their kind."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamSchema] = {}
        self._queries: dict[str, JoinQuery] = {}

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self._streams

    @property
    def queries(self) -> Mapping[str, JoinQuery]:
        return self._queries

    def add_stream(self, schema: StreamSchema) -> None:
        if schema.name in self._streams:
            raise ConfigError(f"stream {schema.name!r} is already declared", "give the second one another name")
        self._streams[schema.name] = schema

    def check_new_query(self, name: str) -> None:
        if name in self._queries:
            raise ConfigError(f"query {name!r} is already registered", "drop it first, or give it another name")

    def add_query(self, query: JoinQuery) -> None:
        self.check_new_query(query.name)
        self._queries[query.name] = query

    def drop_query(self, name: str) -> JoinQuery:
        if name not in self._queries:
            raise ConfigError(f"there is no query {name!r}; registered: {listed(self._queries)}")
        return self._queries.pop(name)
