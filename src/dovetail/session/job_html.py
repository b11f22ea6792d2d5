"""Jobs in notebooks: tables of their streams and queries."""

from __future__ import annotations

from dovetail._display import html_table, html_text
from dovetail.query.durations import exact_duration
from dovetail.session.job import Job


def job_html(title: str, job: Job) -> str:
    """Return a title and a job's streams and queries as HTML."""
    streams = [
        [stream.name, stream.event_time, exact_duration(stream.lateness), ", ".join(stream.columns.names)]
        for stream in job.streams.values()
    ]
    queries = [[name, query.sql] for name, query in job.queries.items()]
    return (
        html_text(title)
        + html_table(("stream", "event time", "lateness", "columns"), streams)
        + html_table(("query", "SQL"), queries)
    )
