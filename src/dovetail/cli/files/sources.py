"""Files and queries of a command line, declared in a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dovetail as dt
from dovetail.cli.files.data_file import DataFile
from dovetail.cli.options import per_stream, read_queries
from dovetail.errors import listed


@dataclass(frozen=True)
class FileSources:
    """Streams in files, and the queries over them."""

    files: Sequence[DataFile]
    event_times: Mapping[str, str]
    lateness: Mapping[str, str]
    queries: Mapping[str, str]

    def session(self) -> dt.LocalSession:
        """Return a session with these streams and queries."""
        session = dt.LocalSession()
        for file in self.files:
            session.stream(
                file.name,
                file.schema,
                event_time=self.event_times[file.name],
                lateness=self.lateness.get(file.name, "0 seconds"),
            )
        for name, sql in self.queries.items():
            session.query(name, sql)
        return session


def sources_of(
    arguments: Sequence[str],
    sql: Sequence[Path] | None,
    query: Sequence[str] | None,
    event_time: Sequence[str] | None = None,
    lateness: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> FileSources:
    """Return the streams and queries that a command line names; see `options` for its arguments."""
    paths = dict[str, Path]()
    for argument in arguments:
        name, separator, text = argument.rpartition("=")
        path = Path(text)
        name = name if separator else path.name.partition(".")[0]
        if name in paths:
            raise dt.ConfigError(
                f"two streams are named {name!r}: {paths[name]} and {path}", f"give one another name: other={path}"
            )
        paths[name] = path
    queries, types = read_queries(sql, query), per_stream("--columns", columns, [*paths])
    files = [DataFile.of(name, path, types.get(name)) for name, path in paths.items()]
    times = per_stream("--event-time", event_time, [*paths])
    return FileSources(
        files,
        {file.name: file.event_time(times.get(file.name)) for file in files},
        per_stream("--lateness", lateness, [*paths]),
        queries,
    )


def check_one_query(queries: Mapping[str, str]) -> None:
    """Refuse several queries."""
    if len(queries) > 1:
        raise dt.ConfigError(f"got the queries {listed(queries)}; one is joined at a time", "name one of them")
