"""What a shard gives to Spark: rows that hold results, or only say how many of them it has written itself."""

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
    """Takes a shard's results as they come; used as a context, so that files are closed and none is left half-written."""

    def __init__(self, numbers: Mapping[str, int], staged: Mapping[int, Staging], shard: int) -> None:
        self._numbers = numbers
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
        """Take results of some queries."""
        for name, table in results.items():
            number = self._numbers[name]
            if not table.num_rows:
                continue
            if number in self._staged:
                self._file(number, table.schema).write_table(table)
                self.rows.append(ResultRow(self._shard, number, ResultKind.STAGED, table.num_rows))
            else:
                self.rows += result_rows(self._shard, number, table)

    def _file(self, number: int, schema: pa.Schema) -> StagedFile:
        if number not in self._files:
            batch = current_batch()
            if batch is None:
                hint = "use dt.sinks.format('parquet', path=...) instead"
                raise StateError("Spark does not say which batch this is", hint)
            writer = self._staged[number].writer(batch, self._shard, schema)
            self._files[number] = self._open.enter_context(writer)
        return self._files[number]
