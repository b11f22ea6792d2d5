"""Row formats between the stages on Spark: router to shards, and shards to driver and sinks.

A `kind` column says what each row holds. Tuples and results are Arrow IPC bytes; all other content is small. Rows are never
stored, so both schemas may change from release to release; the stored format is in `spark.state.log` and has only the encoding of
tuples in common with this one. The driver imports this module without the engine, so nothing here may import the engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dovetail.codec import to_json
from dovetail.spark.compat import from_arrow_schema

if TYPE_CHECKING:
    import pandas as pd

SHARD_ID = "shard"
"""Column with the id by which Spark groups rows, see `Layout.shard_ids`. The key of the state store has its name, so it stays."""
ROUTED_SCHEMA = pa.schema(
    {SHARD_ID: pa.int32(), "stream": pa.int32(), "kind": pa.int8(), "first_copies": pa.int64(), "content": pa.binary()}
)
"""`first_copies` is the number of leading tuples that are first copies. A tuple may go to several shards; one counts it."""
RESULT_SCHEMA = "shard int, query int, kind tinyint, rows bigint, content binary"
"""`shard` and `query` are the numbers in the layout; `rows` is the number of results that the row stands for."""
DROPPED, DROPPED_ID = "(dropped)", -1
"""Name and id of the sink of dropped tuples, among those of queries."""
DROPPED_SCHEMA = pa.schema(
    {
        "stream": pa.string(),
        "reason": pa.string(),
        "event_time": pa.timestamp("us", "UTC"),
        "shard": pa.int32(),
        "row": pa.string(),
    }
)
"""Rows of the table of dropped tuples. `shard` is NULL unless the tuple was shed; `row` is a JSON object of its columns."""
CLOCK = "__dovetail_clock"
"""Column with the batch's processing time in microseconds, for streams that need it."""
FRAME_ROWS, FRAME_BYTES = 10_000, 64 << 20
"""Rows and bytes that Spark passes to Python at a time; see `padding_rows`."""
MAX_RESULT_BYTES = 32 << 20
"""Bytes of results in one row."""


class RoutedKind(IntEnum):
    """Content of a row from the router."""

    TUPLES = 0
    UNPLACED = 1
    """Event times of tuples that go to no shard but may still be late."""
    REPORT = 2
    PADDING = 3
    """No content: the row only adds to Spark's row count."""
    AHEAD = 4
    """Tuples that are too far ahead of the clock, if dropped tuples are wanted."""
    NO_EVENT_TIME = 5
    """Tuples without a usable event time, if dropped tuples are wanted."""


class ResultKind(IntEnum):
    """Content of a row from a shard."""

    RESULTS = 0
    STAGED = 1
    """No content: the shard has written the results to a file."""
    METRICS = 2
    """The shard's metrics as JSON; the row belongs to no query."""


# -- from the router to the shards --------------------------------------------------------------------------------------------


Header = tuple[int, RoutedKind, int]
"""Shard id, kind and `first_copies` of a row from the router."""


@dataclass(frozen=True, slots=True)
class Report:
    """Event times and counters of one routing task."""

    max_event_time: int
    partition_max_times: Sequence[tuple[str | int | None, int]]
    now: int | None
    arrived: int = 0
    ahead: int = 0
    refused: int = 0


def tuple_rows(stream: int, parts: Iterable[tuple[Header, pa.Table]]) -> pa.RecordBatch:
    """Encode one row per part, each before the next part is drawn, all into one buffer."""
    headers: list[Header] = []
    sink, offsets = pa.BufferOutputStream(), [0]
    for header, table in parts:
        _write_ipc(table, sink)
        headers.append(header)
        offsets.append(sink.tell())
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), sink.getvalue()]
    return _routed_rows(stream, headers, pa.BinaryArray.from_buffers(pa.binary(), len(headers), buffers))


def report_rows(stream: int, shard_ids: Sequence[int], report: Report) -> pa.RecordBatch:
    """Encode a report for every shard; only the first shard gets the counters, which must be added once."""
    without_counters = replace(report, arrived=0, ahead=0, refused=0)
    first, rest = (json.dumps(to_json(content)).encode() for content in (report, without_counters))
    content = pa.array([first] + [rest] * (len(shard_ids) - 1), pa.binary())
    return _routed_rows(stream, [(shard_id, RoutedKind.REPORT, 0) for shard_id in shard_ids], content)


def padding_rows(stream: int, shard_id: int, sent: int) -> pa.RecordBatch:
    """Return padding rows that trip Spark's row limit.

    So an Arrow batch ends after about `sent` bytes.

    With a byte limit Spark would sum the size of its output for every input tuple, which doubles the router's cost. So
    `dovetail.spark.session` lifts that limit and keeps the row limit, which ignores the size of rows.
    """
    count = FRAME_ROWS * sent // FRAME_BYTES
    return _routed_rows(stream, [(shard_id, RoutedKind.PADDING, 0)] * count, pa.nulls(count, pa.binary()))


def _routed_rows(stream: int, headers: Sequence[Header], content: pa.Array) -> pa.RecordBatch:
    shard_ids, kinds, first_copies = zip(*headers, strict=True) if headers else ((), (), ())
    return pa.record_batch([shard_ids, [stream] * len(headers), kinds, first_copies, content], schema=ROUTED_SCHEMA)


def read_routed_rows(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, RoutedKind, int, bytes]]:
    """Yield stream, kind, `first_copies` and content of each row that Spark passes to a shard.

    Padding is omitted.
    """
    for frame in frames:
        columns = (frame[name] for name in ROUTED_SCHEMA.names[1:])
        for stream, kind, first_copies, content in zip(*columns, strict=True):
            if kind != RoutedKind.PADDING:
                yield int(stream), RoutedKind(kind), int(first_copies), bytes(content)


# -- from the shards to the driver and the sinks ------------------------------------------------------------------------------


class ResultRow(NamedTuple):
    """One row from a shard, with the columns of `RESULT_SCHEMA`."""

    shard: int
    query: int
    kind: ResultKind
    rows: int
    content: bytes = b""


def result_rows(shard: int, query: int, table: pa.Table) -> Iterator[ResultRow]:
    """Split a query's results into rows of about `MAX_RESULT_BYTES`; Spark limits a row to two gigabytes."""
    count = max(1, -(-table.nbytes // MAX_RESULT_BYTES))
    step = max(1, -(-table.num_rows // count))
    for first in range(0, table.num_rows, step):
        piece = table.slice(first, step)
        yield ResultRow(shard, query, ResultKind.RESULTS, piece.num_rows, to_ipc(piece))


def has_kind(kind: ResultKind) -> Column:
    """Return the condition that a row is of this kind."""
    return F.col("kind") == int(kind)


def collect_results(encoded: DataFrame) -> Iterator[ResultRow]:
    """Collect all rows of a batch on the driver, results without their bytes."""
    small_content = F.when(~has_kind(ResultKind.RESULTS), F.col("content"))
    for shard, query, kind, rows, content in encoded.withColumn("content", small_content).collect():
        yield ResultRow(shard, query, ResultKind(kind), rows, bytes(content or b""))


def decode_results(encoded: DataFrame, query: int, schema: pa.Schema) -> DataFrame:
    """Return one query's results as typed rows."""
    rows = encoded.where(has_kind(ResultKind.RESULTS) & (F.col("query") == query)).select("content")
    return rows.mapInArrow(_decode, from_arrow_schema(schema))


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column(0):
            yield from from_ipc(value.as_buffer()).to_batches()


# -- tuples and results as bytes ----------------------------------------------------------------------------------------------


def to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    _write_ipc(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _write_ipc(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def from_ipc(content: bytes | pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
