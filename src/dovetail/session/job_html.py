"""Jobs in a line of text, and in notebooks as tables of their streams, queries and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Protocol, cast

from dovetail._display import html_table, name_some
from dovetail.query.durations import exact_duration
from dovetail.session.job import Job


class _InNotebooks(Protocol):
    """An object that notebooks show as HTML."""

    def _repr_html_(self) -> str: ...


def job_text(job: Job) -> str:
    """Return a job's streams and queries as a short line.

    >>> from dovetail.config import Config
    >>> job_text(Job(Config()))
    'no streams, no queries'
    """
    parts = [
        f"{kind if len(names) == 1 else plural} {name_some(list(names))}" if names else f"no {plural}"
        for kind, plural, names in (("stream", "streams", job.streams), ("query", "queries", job.registered))
    ]
    return ", ".join(parts) if not job.registered else "; ".join(parts)


def job_html(title: str, job: Job, metrics: Mapping[str, Any] | None = None) -> str:
    """Return a title, a job's streams and queries and, if there are any, its metrics as HTML."""
    streams = [
        [
            stream.name,
            stream.event_time,
            exact_duration(stream.lateness),
            "" if stream.rate is None else f"{stream.rate:g}/s",
            ", ".join(f"{column.name} {column.type}" for column in stream.columns),
        ]
        for stream in job.streams.values()
    ]
    queries = [[name, " ".join(query.sql.split())] for name, query in job.queries.items()]
    tables = [
        (("stream", "event time", "lateness", "declared rate", "columns"), streams),
        (("query", "SQL"), queries),
    ]
    shown = [html_table(headings, rows) for headings, rows in tables if rows]
    if metrics is not None:
        shown.append(cast("_InNotebooks", metrics)._repr_html_())
    return f"<p>{escape(title)}</p>" + "".join(shown)
