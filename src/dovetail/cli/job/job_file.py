"""A job file, read and checked without Spark."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import dovetail as dt
from dovetail.cli.job.sinks import check_sink
from dovetail.cli.job.stream_source import StreamSource
from dovetail.cli.job.toml_table import (
    FLAG,
    NUMBER,
    SIZE,
    TABLE,
    TEXT,
    WHOLE,
    JobFileError,
    Kind,
    TomlFile,
    TomlTable,
)
from dovetail.errors import QueryError, suggestion

_JOB: dict[str, Kind] = {
    "checkpoint": TEXT,
    "trigger": TEXT,
    "shards": WHOLE,
    "streams": TABLE,
    "queries": TABLE,
    "budget": TABLE,
    "shedding": TABLE,
    "config": TABLE,
    "spark": TABLE,
}
_SPARK: dict[str, Kind] = {"cores": SIZE, "memory": TEXT, "name": TEXT, "conf": TABLE}
_QUERY: dict[str, Kind] = {"sql": TEXT, "file": TEXT, "sink": TABLE}
_OPTION_KINDS: dict[str, Kind] = {"bool": FLAG, "int": WHOLE, "int | None": WHOLE, "float | None": NUMBER}
AVAILABLE_NOW = "available now"
_INTERVAL = re.compile(r"\d+\s*(milliseconds?|seconds?|minutes?|hours?|days?)")
_STREAM_EXAMPLE = "[streams.clicks] with path = 'data/clicks' and event_time = 'ts'"
_QUERY_EXAMPLE = "[queries.funnel] with sql = 'SELECT ...' and sink = { type = 'parquet', path = 'out/funnel' }"


@dataclass(frozen=True)
class JobQuery:
    """A query of a job file."""

    name: str
    sql: str
    table: TomlTable
    sql_file: TomlFile | None
    """The file that has the query, if it is not the job file."""

    @property
    def sink(self) -> TomlTable:
        return self.table.table("sink")

    def register(self, session: Any) -> None:
        """Register the query in a session; report its mistakes where they are written."""
        with self.table.located("sql" if self.sql_file is None else "file"):
            try:
                session.query(self.name, self.sql)
            except QueryError as error:
                if not error.sql:
                    raise
                raise self._error_at(error) from error

    def _error_at(self, error: QueryError) -> JobFileError:
        """Return the error with the line of the file that has the text at fault."""
        file, first = self.sql_file, 0
        if file is None:
            file = self.table.file
            first = file.line((*self.table.path, "sql"))
            # A newline after the quotes that open the text is not part of it.
            first -= not file.text.splitlines()[first - 1].rstrip().endswith(('"""', "'''"))
        line = first + error.line
        start = file.text.splitlines()[line - 1].find(error.sql.splitlines()[error.line - 1]) + error.column - 1
        width = min(error.end, (error.sql + "\n").find("\n", error.start)) - error.start
        return file.error(line, f"query {self.name!r}: {error.message}", error.hint, (start, start + width))


@dataclass(frozen=True)
class JobFile:
    """A job file."""

    table: TomlTable
    streams: Mapping[str, StreamSource]
    queries: Mapping[str, JobQuery]
    budget: dt.Budget | None
    config: dt.Config
    trigger: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path, *, is_run: bool = True, has_queries: bool = True) -> JobFile:
        """Read and check a job file.

        What only running needs may be missing if it is not run, and without `has_queries` the queries may be.
        """
        table = TomlTable.read(path)
        table.check(_JOB, ("checkpoint",) if is_run else ())
        table.table("spark").check(_SPARK)
        streams = {
            name: StreamSource.of(name, content) for name, content in table.tables("streams", _STREAM_EXAMPLE).items()
        }
        queries = {
            name: _query(name, content, needs_sink=is_run)
            for name, content in (table.tables("queries", _QUERY_EXAMPLE).items() if has_queries else ())
        }
        budget = _options(dt.Budget, table.table("budget"))
        shedding = _options(dt.Shedding, table.table("shedding"))
        config = _options(dt.Config, table.table("config"), {"shedding": shedding}) or dt.Config(shedding=shedding)
        return cls(table, streams, queries, budget, config, _trigger(table))

    @property
    def checkpoint(self) -> str:
        return self.table.location("checkpoint")

    @property
    def shards(self) -> int | None:
        return self.table.content.get("shards")

    def local_session(self, queries: Mapping[str, str] | None = None) -> dt.LocalSession:
        """Return a session in this process with the streams, and the job's queries or those given."""
        session = dt.LocalSession(self.budget, self.config)
        for stream in self.streams.values():
            stream.declare_local(session)
        for query in self.queries.values() if queries is None else ():
            query.register(session)
        for name, sql in (queries or {}).items():
            session.query(name, sql)
        return session

    def check_locally(self) -> None:
        """Find mistakes in streams and queries before Spark is started, as far as that is possible."""
        if all(stream.is_known_locally for stream in self.streams.values()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the session on Spark gives them
                self.local_session()


def _query(name: str, table: TomlTable, *, needs_sink: bool) -> JobQuery:
    table.check(_QUERY, ("sink",) if needs_sink else ())
    given = [key for key in ("sql", "file") if key in table.content]
    if len(given) != 1:
        count = "both 'sql' and 'file'" if given else "neither 'sql' nor 'file'"
        raise table.error(given[-1] if given else None, f"{table.name}there is {count}; give one of the two")
    if "sink" in table.content:
        check_sink(table.table("sink"))
    if given == ["sql"]:
        return JobQuery(name, table.content["sql"], table, None)
    path = table.file.path.parent / table.content["file"]
    if not path.is_file():
        near = [str(other.relative_to(table.file.path.parent)) for other in path.parent.glob("*.sql")]
        hint = suggestion(table.content["file"], near, "the path begins at the directory of the job file")
        raise table.error(
            "file", f"{table.name}file is {table.content['file']!r}, and there is no file {str(path)!r}", hint
        )
    file = TomlFile(path, path.read_text(encoding="utf-8"))
    return JobQuery(name, file.text.rstrip().removesuffix(";"), table, file)


def _options(kind: Any, table: TomlTable, others: Mapping[str, Any] | None = None) -> Any:
    """Return options such as `dt.Budget` from a table; None if there is no such table."""
    if not table.content:
        return None
    given = others or {}
    kinds = {field.name: _OPTION_KINDS.get(str(field.type), TEXT) for field in fields(kind) if field.name not in given}
    table.check(kinds)
    with table.located():
        return kind(**table.content, **given)


def _trigger(table: TomlTable) -> Mapping[str, Any] | None:
    text = table.content.get("trigger")
    if text is None:
        return None
    if text == AVAILABLE_NOW:
        return {"availableNow": True}
    if not _INTERVAL.fullmatch(text):
        allowed = f"an interval such as '10 seconds', or {AVAILABLE_NOW!r} to read what is there and end"
        raise table.error("trigger", f"trigger is {text!r}; allowed: {allowed}")
    return {"processingTime": text}
