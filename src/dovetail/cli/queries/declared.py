"""Queries that a command line names: those of a job file, or over data files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import dovetail as dt
from dovetail.cli.files.sources import FileSources, sources_of
from dovetail.cli.job.job_file import JobFile
from dovetail.cli.options import read_queries


class DeclaredQueries(ABC):
    """Streams with their first rows, and queries over them."""

    @abstractmethod
    def session(self) -> dt.LocalSession:
        """Return a session with the streams and queries."""

    @abstractmethod
    def first_rows(self) -> Mapping[str, pa.Table]:
        """Return the first rows of each stream; without those of streams that only Spark can read."""


@dataclass(frozen=True)
class _OfFiles(DeclaredQueries):
    sources: FileSources

    def session(self) -> dt.LocalSession:
        return self.sources.session()

    def first_rows(self) -> Mapping[str, pa.Table]:
        return {file.name: file.first_rows() for file in self.sources.files}


@dataclass(frozen=True)
class _OfJob(DeclaredQueries):
    job: JobFile
    queries: Mapping[str, str] | None
    """Queries instead of those of the job."""

    def session(self) -> dt.LocalSession:
        return self.job.local_session(self.queries)

    def first_rows(self) -> Mapping[str, pa.Table]:
        rows = {name: stream.first_rows() for name, stream in self.job.streams.items()}
        return {name: table for name, table in rows.items() if table is not None}


def declared_queries(
    arguments: Sequence[str],
    sql: Sequence[Path] | None,
    query: Sequence[str] | None,
    event_time: Sequence[str] | None = None,
    lateness: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> DeclaredQueries:
    """Return the queries of a job file, if that is the only argument, or over data files."""
    jobs = [argument for argument in arguments if argument.endswith(".toml")]
    if not jobs:
        return _OfFiles(sources_of(arguments, sql, query, event_time, lateness, columns))
    if len(arguments) > 1:
        raise dt.ConfigError(f"got the job file {jobs[0]!r} and other files", "name either a job file or data files")
    options = {"--event-time": event_time, "--lateness": lateness, "--columns": columns}
    for option, given in options.items():
        if given:
            raise dt.ConfigError(f"{option} {given[0]}: a job file has these itself", f"write it into {jobs[0]}")
    queries = read_queries(sql, query) if sql or query else None
    return _OfJob(JobFile.read(Path(jobs[0]), is_run=False, has_queries=queries is None), queries)
