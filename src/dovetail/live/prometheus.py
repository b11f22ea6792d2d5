"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_STREAM_COUNTERS = {
    "arrivals": "Tuples that have arrived.",
    "late": "Late tuples, which were dropped.",
    "ahead": "Tuples too far ahead of the clock, which were dropped.",
    "refused": "Tuples without an event time, which were dropped.",
    "shed": "Tuples dropped to keep windows under their cap.",
}
_STREAM_GAUGES = {
    "state_tuples": "Tuples in windows.",
    "state_bytes": "Bytes of windows.",
    "lag_seconds": "Seconds from the largest event time to the clock at the last batch.",
    "skew": "Tuples in the fullest shard, divided by the mean over the shards.",
}
_STREAM_TIMES = {"max_event_time": "Largest event time.", "watermark": "Watermark."}


def prometheus_text(metrics: Mapping[str, Any]) -> str:
    """Return the metrics of a session, as `metrics()` returns them, for Prometheus.

    >>> print(prometheus_text({"batches": 3, "streams": {}, "queries": {}, "budget": {}}))
    # HELP dovetail_batches_total Batches joined.
    # TYPE dovetail_batches_total counter
    dovetail_batches_total 3
    <BLANKLINE>
    """
    return "".join(f"{line}\n" for line in _lines(metrics))


def _lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield from _family("batches_total", "counter", "Batches joined.", [("", metrics["batches"])])
    streams, queries = metrics["streams"], metrics["queries"]
    for field, text in _STREAM_COUNTERS.items():
        yield from _family(f"{field}_total", "counter", text, _samples("stream", streams, field))
    for field, text in _STREAM_GAUGES.items():
        yield from _family(field, "gauge", text, _samples("stream", streams, field))
    for field, text in _STREAM_TIMES.items():
        times = [(_label("stream", name), _seconds(stream[field])) for name, stream in streams.items()]
        yield from _family(f"{field}_seconds", "gauge", f"{text[:-1]}, in seconds since 1970.", times)
    yield from _family("results_total", "counter", "Results.", _samples("query", queries, "results"))
    for field in ("estimate", "low", "high"):
        recalls = [(_label("query", name), (query["recall"] or {}).get(field)) for name, query in queries.items()]
        yield from _family(f"recall_{field}", "gauge", "Fraction of results that shedding did not lose.", recalls)
    for kind in ("used", "limit"):
        uses = [(_label("resource", name), use[kind]) for name, use in metrics["budget"].items()]
        yield from _family(f"budget_{kind}", "gauge", f"Budget of a resource: {kind}.", uses)


def _family(name: str, kind: str, text: str, samples: list[tuple[str, Any]]) -> Iterator[str]:
    known = [(label, value) for label, value in samples if value is not None]
    if known:
        yield f"# HELP dovetail_{name} {text}"
        yield f"# TYPE dovetail_{name} {kind}"
        for label, value in known:
            yield f"dovetail_{name}{label} {value}"


def _samples(kind: str, entries: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    return [(_label(kind, name), entry[field]) for name, entry in entries.items()]


def _label(kind: str, name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{kind}="{escaped}"}}'


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()
