"""The two Python stages as the driver hands them to Spark: what their rows look like, and shells that load the engine where they run.

The driver joins nothing, so it does without the engine, its compiler and their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from dovetail.spark.staging import Staging

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CUT_SCHEMA = "shard int, stream int, firsts bigint, segment binary, report string"
"""A row holds tuples (`segment`), the first so many of which no other shard counts, or what a task observed (`report`), or, with the
report `UNPLACED`, the event times of tuples that no shard gets. One that holds neither is there to be counted by Spark."""
UNPLACED = "unplaced"
CLOCK = "__dovetail_clock"
"""The column that carries the batch's own time, in microseconds, to streams that need it."""
FRAME_ROWS, FRAME_BYTES = 10_000, 64 << 20
"""How much Spark hands to Python at a time; see `Cut._fillers`."""
_NUMBER = StructType([StructField("number", LongType())])
_CONTENT = StructType([StructField("content", BinaryType())])
"""As types, not as text, which each task would ask Spark to parse."""
RESULT_SCHEMA = "query int, rows bigint, segment binary"
METRICS = -1
"""The query number of a row that holds a shard's metrics as JSON."""


def cutter(
    layout: str, stream: int, shard_ids: list[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; `shard_ids` are the values that Spark's partitioner spreads evenly."""

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from dovetail.spark.cut import Cut  # noqa: PLC0415
        from dovetail.spark.layout import read_layout  # noqa: PLC0415

        yield from Cut(read_layout(layout), stream, shard_ids).run(batches)

    return cut


class ShardProcessor(StatefulProcessor):
    """Joins the tuples of one shard."""

    def __init__(
        self, layout: str, shard_ids: list[int], run: str, staged: Mapping[int, Staging] | None = None
    ) -> None:
        self._layout = layout
        self._shard_ids = shard_ids
        self._run = run
        self._staged = dict(staged or {})

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = handle.getMapState("segments", _NUMBER, _CONTENT)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        from dovetail.spark.processor import join_rows  # noqa: PLC0415

        shard = self._shard_ids.index(key[0])
        yield join_rows(self._layout, shard, rows, self._segments, self._run, self._staged)

    def close(self) -> None:
        pass
