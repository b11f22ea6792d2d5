"""The rows that travel: from the cut to the shards, and from the shards to the driver and the sinks.

Every row has a kind that says what it holds; nobody guesses it from what is missing. Tuples and results are Arrow IPC bytes, all else
is small. No row is stored, so both schemas may change from release to release; what a shard stores is in `log`, and shares only the
bytes of tuples with what is here. The driver reads this module and does without the engine, so nothing here imports it.
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
from pyspark.sql.pandas.types import from_arrow_schema

from dovetail.codec import to_json

if TYPE_CHECKING:
    import pandas as pd

ROUTED_SCHEMA = pa.schema(
    {"shard": pa.int32(), "stream": pa.int32(), "kind": pa.int8(), "firsts": pa.int64(), "content": pa.binary()}
)
"""`shard` is the value that Spark groups by. `firsts`: how many leading tuples of the row only this shard counts."""
RESULT_SCHEMA = "shard int, query int, kind tinyint, rows bigint, content binary"
"""`query` is its number in the layout. `rows`: how many results the row stands for."""
CLOCK = "__dovetail_clock"
"""The column that carries the batch's own time, in microseconds, to streams that need it."""
FRAME_ROWS, FRAME_BYTES = 10_000, 64 << 20
"""How much Spark hands to Python at a time; see `fillers`."""
LARGEST_RESULT = 32 << 20
"""Bytes of results that go into one row."""


class RoutedKind(IntEnum):
    """What a row of the cut has as its content."""

    TUPLES = 0
    UNPLACED = 1
    """Event times of tuples that no shard gets: they may be late like any other."""
    REPORT = 2
    FILLER = 3
    """Nothing: Spark counts the row."""


class ResultKind(IntEnum):
    """What a row of a shard has as its content."""

    RESULTS = 0
    STAGED = 1
    """Nothing: the shard has written the results to a file."""
    METRICS = 2
    """The shard's metrics as JSON; the row is of no query."""


# -- from the cut to the shards -----------------------------------------------------------------------------------------------


Header = tuple[int, RoutedKind, int]
"""Shard, kind and `firsts` of a row of the cut."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a task of the cut saw of its stream."""

    largest: int
    heads: Sequence[tuple[str | int | None, int]]
    now: int | None
    arrived: int = 0
    ahead: int = 0
    refused: int = 0


def tuple_rows(stream: int, parts: Iterable[tuple[Header, pa.Table]]) -> pa.RecordBatch:
    """A row for each part; each is written before the next is asked for, all into one buffer."""
    headers: list[Header] = []
    sink, offsets = pa.BufferOutputStream(), [0]
    for header, table in parts:
        _write_ipc(table, sink)
        headers.append(header)
        offsets.append(sink.tell())
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), sink.getvalue()]
    return _cut_rows(stream, headers, pa.BinaryArray.from_buffers(pa.binary(), len(headers), buffers))


def report_rows(stream: int, shards: Sequence[int], report: Report) -> pa.RecordBatch:
    """A report to every shard; only the first is given what must be counted once."""
    other = replace(report, arrived=0, ahead=0, refused=0)
    texts = [json.dumps(to_json(each)).encode() for each in (report, other)]
    content = pa.array([texts[0]] + texts[1:] * (len(shards) - 1), pa.binary())
    return _cut_rows(stream, [(shard, RoutedKind.REPORT, 0) for shard in shards], content)


def fillers(stream: int, shard: int, sent: int) -> pa.RecordBatch:
    """Rows that end a shard's frame in time, after `sent` bytes.

    Spark's limit of a frame's bytes makes it add up what it has written after every tuple that the cut reads, which takes as long
    as all else; so `session` lifts it and leaves the limit of rows, which knows nothing of their size.
    """
    count = FRAME_ROWS * sent // FRAME_BYTES
    return _cut_rows(stream, [(shard, RoutedKind.FILLER, 0)] * count, pa.nulls(count, pa.binary()))


def _cut_rows(stream: int, headers: Sequence[Header], content: pa.Array) -> pa.RecordBatch:
    shards, kinds, firsts = zip(*headers, strict=True) if headers else ((), (), ())
    return pa.record_batch([shards, [stream] * len(headers), kinds, firsts, content], schema=ROUTED_SCHEMA)


def received(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, RoutedKind, int, bytes]]:
    """What Spark hands to a shard, without fillers: stream, kind, `firsts` and content of each row."""
    for frame in frames:
        columns = (frame[name] for name in ROUTED_SCHEMA.names[1:])
        for stream, kind, firsts, content in zip(*columns, strict=True):
            if kind != RoutedKind.FILLER:
                yield int(stream), RoutedKind(kind), int(firsts), bytes(content)


# -- from the shards to the driver and the sinks ------------------------------------------------------------------------------


class ResultRow(NamedTuple):
    """What a shard gives, in the order of `RESULT_SCHEMA`."""

    shard: int
    query: int
    kind: ResultKind
    rows: int
    content: bytes = b""


def result_rows(shard: int, query: int, table: pa.Table) -> Iterator[ResultRow]:
    """Results of a query, in as many rows as they need: one of Spark's holds two gigabytes at the most."""
    count = max(1, -(-table.nbytes // LARGEST_RESULT))
    step = max(1, -(-table.num_rows // count))
    for first in range(0, table.num_rows, step):
        piece = table.slice(first, step)
        yield ResultRow(shard, query, ResultKind.RESULTS, piece.num_rows, to_ipc(piece))


def is_kind(kind: ResultKind) -> Column:
    """Whether a row is of a kind."""
    return F.col("kind") == int(kind)


def collected(encoded: DataFrame) -> Iterator[ResultRow]:
    """All rows of a batch, on the driver; of results not their bytes."""
    small = F.when(~is_kind(ResultKind.RESULTS), F.col("content"))
    for shard, query, kind, rows, content in encoded.withColumn("content", small).collect():
        yield ResultRow(shard, query, ResultKind(kind), rows, bytes(content or b""))


def decoded(encoded: DataFrame, query: int, schema: pa.Schema) -> DataFrame:
    """One query's results as typed rows."""
    rows = encoded.where(is_kind(ResultKind.RESULTS) & (F.col("query") == query)).select("content")
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
