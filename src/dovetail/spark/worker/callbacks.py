"""The two Python functions that Spark calls on its workers, as the driver hands them over.

They load the engine where they run: the driver joins nothing, and does without the engine, its compiler and their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from dovetail.spark.checkpoint.plan_log import current_batch, plan_for, unpack
from dovetail.spark.sinks.staging import Staging

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SEGMENTS = "segments"
"""The name of the map in the state."""
_NUMBER = StructType([StructField("number", LongType())])
_CONTENT = StructType([StructField("content", BinaryType())])
"""As types, not as text, which each task would ask Spark to parse."""


def router_function(
    plans: bytes, stream: int, shard_ids: list[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`.

    `plans`: packed, the last that holds for a batch is run. `shard_ids`: what Spark's partitioner spreads evenly.
    """

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from dovetail.spark.worker.router import Router  # noqa: PLC0415 - it loads the engine

        batch = current_batch()
        yield from Router(plan_for(unpack(plans), batch), stream, shard_ids, batch).rows(batches)

    return cut


def segments_of(handle: StatefulProcessorHandle) -> Any:
    """The map in which shards keep their logs."""
    return handle.getMapState(SEGMENTS, _NUMBER, _CONTENT)


class ShardProcessor(StatefulProcessor):
    """The class for `transformWithStateInPandas`: joins the tuples of a shard, with what its state holds."""

    def __init__(
        self, plans: bytes, shard_ids: list[int], run_id: str, staged: Mapping[int, Staging] | None = None
    ) -> None:
        self._plans = plans
        self._shard_ids = shard_ids
        self._run_id = run_id
        self._staged = dict(staged or {})

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = segments_of(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        from dovetail.spark.worker.processor import join_rows  # noqa: PLC0415 - it loads the engine

        shard = self._shard_ids.index(key[0])
        yield join_rows(unpack(self._plans), shard, rows, self._segments, self._run_id, self._staged)

    def close(self) -> None:
        pass
