"""Metrics in a terminal and in notebooks: tables of streams and queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail._display import format_lag, html_table, html_text, short_time, text_table
from dovetail.plan.explain.text import format_bytes

Rows = Sequence[Sequence[object]]
_OPTIONAL = ("ahead", "refused", "shed")
"""Counts of streams that are shown if there are any."""
_COUNTED = ("batches", "migrations", "breaches", "rebuilt_shards")


class MetricsTables(dict[str, Any]):
    """Metrics, shown as tables; at run time both sessions return this."""

    def __repr__(self) -> str:
        return "\n\n".join([*(text_table(*table) for table in self._tables()), *self._notes()])

    def _repr_html_(self) -> str:
        return "".join([*(html_table(*table) for table in self._tables()), *map(html_text, self._notes())])

    def _tables(self) -> Iterator[tuple[Sequence[str], Rows]]:
        try:
            yield from (table for table in (self._streams(), self._queries(), self._budget()) if table[1])
        except (KeyError, TypeError, AttributeError):  # changed by its owner: it is an ordinary dictionary
            yield ("entry", "value"), [[name, str(value)] for name, value in self.items()]

    def _streams(self) -> tuple[Sequence[str], Rows]:
        streams = self["streams"]
        shown = [name for name in _OPTIONAL if any(stream[name] for stream in streams.values())]
        rows = [
            [
                name,
                *(stream[count] for count in ("arrivals", "late", *shown)),
                stream["state_tuples"],
                format_bytes(stream["state_bytes"]),
                *(short_time(stream[time]) for time in ("max_event_time", "watermark")),
                format_lag(stream["lag_seconds"]),
            ]
            for name, stream in streams.items()
        ]
        return ("stream", "arrivals", "late", *shown, "in windows", "state", "event time", "watermark", "lag"), rows

    def _queries(self) -> tuple[Sequence[str], Rows]:
        queries, last = self["queries"], self["last_batch"]["queries"]
        has_recall = any(query["recall"] for query in queries.values())
        rows = [
            [name, query["results"], last.get(name, {}).get("results", 0), query["probes"], query["matches"]]
            + [query["recall"] and query["recall"]["estimate"]] * has_recall
            for name, query in queries.items()
        ]
        return ("query", "results", "in last batch", "probes", "matches", *["recall"] * has_recall), rows

    def _budget(self) -> tuple[Sequence[str], Rows]:
        uses: Mapping[str, Mapping[str, float | None]] = self["budget"]
        rows = [[name, use["used"], use["limit"]] for name, use in uses.items() if use["limit"] is not None]
        return ("budget", "used", "limit"), rows

    def _notes(self) -> Iterator[str]:
        yield self._counts()
        if len(self.get("shards", ())) > 1:
            yield "in windows, state: copies included, where several shards hold a tuple"

    def _counts(self) -> str:
        counts = {key: self[key] if isinstance(self[key], int) else len(self[key]) for key in _COUNTED if key in self}
        return ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in counts.items())
