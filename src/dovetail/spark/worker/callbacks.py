"""The two callbacks that Spark pickles on the driver and runs on its workers: routing and joining.

They import plans and engine when they run. So pickling them does not load the engine and its compiler on the driver, and the
process in which Spark initializes a processor whenever a streaming query starts loads neither these nor the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dovetail.spark.sinks.stage import Stage

SEGMENTS = "segments"
"""Name of the map state."""
_NUMBER = StructType([StructField("number", LongType())])
_CONTENT = StructType([StructField("content", BinaryType())])
"""Types instead of DDL text: every task would ask Spark to parse the text."""


def router_function(
    plans: bytes, stream: int, shard_ids: list[int], run_id: str, *, sends_dropped: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that routes one stream.

    `plans` come from `plan_log.pack`; the last one that applies to the batch is used. `shard_ids` are those of `Layout.shard_ids`.
    `sends_dropped`: tuples that are dropped here, or may be dropped by a shard, go to a shard whole.
    """

    def route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from dovetail.spark.checkpoint.plan_log import current_batch, plan_for, unpack  # noqa: PLC0415
        from dovetail.spark.worker.router import Router  # noqa: PLC0415

        batch = current_batch(run_id)
        plan = plan_for(unpack(plans), batch)
        yield from Router(plan, stream, shard_ids, batch, sends_dropped=sends_dropped).rows(batches)

    return route


def segment_map(handle: StatefulProcessorHandle) -> Any:
    """Return the map state that holds a shard's log."""
    return handle.getMapState(SEGMENTS, _NUMBER, _CONTENT)


class ShardProcessor(StatefulProcessor):
    """Processor for `transformWithStateInPandas`: joins a shard's new tuples with those in its state."""

    def __init__(
        self,
        plans: bytes,
        shard_ids: list[int],
        run_id: str,
        stages: Mapping[int, Stage] | None = None,
        *,
        returns_dropped: bool = False,
    ) -> None:
        """Prepare to join; `returns_dropped`: the results contain the tuples that are dropped."""
        self._plans = plans
        self._shard_ids = shard_ids
        self._run_id = run_id
        self._stages = dict(stages or {})
        self._returns_dropped = returns_dropped

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._segments = segment_map(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        from dovetail.spark.checkpoint.plan_log import unpack  # noqa: PLC0415
        from dovetail.spark.worker.processor import join_rows  # noqa: PLC0415

        shard = self._shard_ids.index(key[0])
        plans, stages = unpack(self._plans), self._stages
        yield join_rows(plans, shard, rows, self._segments, self._run_id, stages, returns_dropped=self._returns_dropped)

    def close(self) -> None:
        pass
