"""A shard's output: rows with results for Spark, or staged files and rows that report them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

import pyarrow as pa

from dovetail.errors import StateError
from dovetail.spark.sinks.stage import Stage, StagedFile
from dovetail.spark.wire import ResultKind, ResultRow, result_rows


class ShardOutput:
    """Collector of a shard's results; a context manager that completes or removes the staged files."""

    def __init__(
        self, query_ids: Mapping[str, int], stages: Mapping[int, Stage], shard: int, batch_id: int | None = None
    ) -> None:
        self._query_ids = query_ids
        self._stages = stages
        self._shard = shard
        self._batch_id = batch_id
        self._files: dict[int, StagedFile] = {}
        self._open = ExitStack()
        self.rows: list[ResultRow] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> bool | None:
        suppressed = self._open.__exit__(*failure)  # type: ignore[arg-type]
        for query, file in self._files.items():
            if file.written is not None:
                report = file.written.to_json().encode()
                self.rows.append(ResultRow(self._shard, query, ResultKind.STAGED, file.rows, report))
        return suppressed

    def add(self, results: Mapping[str, pa.Table]) -> None:
        """Add results of some queries, by query name."""
        for name, table in results.items():
            query = self._query_ids[name]
            if not table.num_rows:
                continue
            if query in self._stages:
                self._file(query, table.schema).write_table(table)
            else:
                self.rows += result_rows(self._shard, query, table)

    def _file(self, query: int, schema: pa.Schema) -> StagedFile:
        if query not in self._files:
            if self._batch_id is None:
                hint = "use dt.sinks.format('parquet', path=...) instead"
                raise StateError("the task has no batch id (streaming.sql.batchId is not set)", hint)
            writer = self._stages[query].writer(self._batch_id, self._shard, schema)
            self._files[query] = self._open.enter_context(writer)
        return self._files[query]
