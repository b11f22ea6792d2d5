"""The reason why a job on Spark lacks a result, from its checkpoint and its sinks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from dovetail.engine.contents import empty_window
from dovetail.plan.names import window_name
from dovetail.schema import StreamSchema
from dovetail.session.evidence import Drops, Evidence, Rows, Why, dropped_counts, known_query
from dovetail.session.why import explain_missing
from dovetail.spark.checkpoint.stored_state import StoredState
from dovetail.spark.sinks.sink import Sink
from dovetail.spark.sinks.stage import BATCH_COLUMN
from dovetail.spark.wire import DROPPED
from dovetail.spark.worker.json_rows import json_rows


def explain_missing_on_spark(
    spark: SparkSession, checkpoint: str, query: str, rows: Rows, sinks: Mapping[str, Sink]
) -> Why:
    """Return why a query has no result with some rows, as of the last completed batch of a checkpoint."""
    state, sink, dropped = StoredState.read(spark, checkpoint), sinks.get(query), sinks.get(DROPPED)
    registered = state.layout.job.registered[known_query(state.layout.job.registered, query)]
    bound, contents = registered.plan.query, state.windows()
    scope = state.layout.placement.scopes.get(query, "")
    windows = {}
    for stream in {ref.stream for ref in bound.refs}:
        name = window_name(stream, settled=bound.has_count_window, scope=scope)
        windows[stream] = contents[name] if name in contents else empty_window(state.plan.catalog[stream])
    sheds = any(log.manifest.shedding is not None for log in state.logs.values())
    counts = {
        name: dropped_counts(progress["late"], progress["ahead"], progress["refused"], 0) + ["perhaps shed"] * sheds
        for name, progress in state.progress.items()
    }
    evidence = Evidence(
        bound,
        registered.start,
        state.plan.catalog,
        windows,
        state.watermarks,
        counts,
        partial(_find_drops, dropped) if dropped is not None and dropped.find(pc.scalar(False)) is not None else None,
        partial(_find_result, sink) if sink is not None and sink.find(pc.scalar(False)) is not None else None,
    )
    return explain_missing(evidence, rows)


def _find_result(sink: Sink, row: pa.Table) -> int | None:
    """Return the first batch in which a sink got a row, or None."""
    condition = pc.scalar(True)
    for column in row.schema:
        if not pa.types.is_nested(column.type):
            value, stored = row.column(column.name)[0], pc.field(column.name)
            is_nan = pa.types.is_floating(column.type) and value.as_py() != value.as_py()
            same = stored.is_nan() if is_nan else stored == value
            condition &= same if value.is_valid else stored.is_null()
    found = sink.find(condition)
    return min(found.column(BATCH_COLUMN).to_pylist(), default=None) if found is not None else None


def _find_drops(sink: Sink, schema: StreamSchema, row: pa.Table) -> Drops:
    """Return reason and batch of the dropped tuples of a stream with some values."""
    found = sink.find(pc.field("stream") == schema.name)
    if found is None:
        return ()
    values = json.loads(json_rows(row)[0].as_py())
    dropped = zip(*(found.column(name).to_pylist() for name in ("row", "reason", BATCH_COLUMN)), strict=True)
    return [(reason, batch) for text, reason, batch in dropped if values.items() <= json.loads(text).items()]
