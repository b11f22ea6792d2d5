"""A shard's output: rows with results for Spark, or staged files and rows that only count them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

import pyarrow as pa

from dovetail.errors import StateError
from dovetail.spark.checkpoint.plan_log import current_batch
from dovetail.spark.sinks.staging import StagedFile, Staging
from dovetail.spark.wire import ResultKind, ResultRow, result_rows


class ShardOutput:
    """Collector of a shard's results; a context manager that completes or removes the staged files."""

    def __init__(self, query_ids: Mapping[str, int], staged: Mapping[int, Staging], shard: int) -> None:
        self._query_ids = query_ids
        self._staged = staged
        self._shard = shard
        self._files: dict[int, StagedFile] = {}
        self._open = ExitStack()
        self.rows: list[ResultRow] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> bool | None:
        return self._open.__exit__(*failure)  # type: ignore[arg-type]

    def add(self, results: Mapping[str, pa.Table]) -> None:
        """Add results of some queries, by query name."""
        for name, table in results.items():
            query = self._query_ids[name]
            if not table.num_rows:
                continue
            if query in self._staged:
                self._file(query, table.schema).write_table(table)
                self.rows.append(ResultRow(self._shard, query, ResultKind.STAGED, table.num_rows))
            else:
                self.rows += result_rows(self._shard, query, table)

    def _file(self, query: int, schema: pa.Schema) -> StagedFile:
        if query not in self._files:
            batch_id = current_batch()
            if batch_id is None:
                hint = "use dt.sinks.format('parquet', path=...) instead"
                raise StateError("the task has no batch id (streaming.sql.batchId is not set)", hint)
            writer = self._staged[query].writer(batch_id, self._shard, schema)
            self._files[query] = self._open.enter_context(writer)
        return self._files[query]
