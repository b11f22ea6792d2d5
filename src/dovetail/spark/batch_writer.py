"""Writes the batches of a streaming query to the sinks of its job.

Shards return encoded results, one or more rows per shard and query. If Spark has to write some of them, the frame is persisted, so
that the stateful operator runs once for any number of sinks, and each of these sinks gets its decoded part. Rows in files that shards
staged themselves are counted before any sink is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from dovetail.errors import DovetailError
from dovetail.spark.driver.failures import sink_failure
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.driver.reports import ResultCounts, ShardReports
from dovetail.spark.wire import decode_results


@dataclass
class BatchWriter:
    """Writes batches since one start of the streaming query."""

    job: RunningJob
    reports: ShardReports
    last_batch: int | None = None
    """The last batch that was written."""
    failure: DovetailError | None = None
    """The error of a sink, with query, sink and batch; Spark passes on only its text."""

    def write(self, encoded: DataFrame, batch_id: int, on_reports: Callable[[int], None]) -> None:
        """Write a batch to all sinks; `on_reports` is called when the shards' reports are there.

        The encoded frame is computed once, completely, before any sink sees it.
        """
        is_read_again = len(self.job.committers) < len(self.job.queries)
        if is_read_again:
            encoded = encoded.persist()
        try:
            counts = self.reports.collect(encoded, batch_id)
            on_reports(batch_id)
            self._write_results(encoded, batch_id, counts)
        finally:
            if is_read_again:
                encoded.unpersist()
        self.last_batch = batch_id

    def _write_results(self, encoded: DataFrame, batch_id: int, counts: ResultCounts) -> None:
        committers, content_id = self.job.committers, self.job.content_id(batch_id, counts.files)
        for query_id, committer in committers.items():
            with self._record_failure(query_id, batch_id):
                committer.check(batch_id, counts.files.get(query_id, []))
        for query_id, query in self.job.queries.items():
            rows = counts.rows[query_id]
            with self._record_failure(query_id, batch_id):
                if not rows:
                    if self.last_batch is None:  # only the first batch of a start can be a replay
                        committers.get(query_id, query.sink).discard(batch_id)
                elif query_id in committers:
                    committers[query_id].commit(batch_id, counts.files[query_id], content_id)
                else:
                    query.sink.write(decode_results(encoded, query_id, query.schema), batch_id)
                    query.sink.verify(batch_id, rows)
            self.reports.add_results(query.name, rows)

    @contextmanager
    def _record_failure(self, query_id: int, batch_id: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = sink_failure(self.job.queries[query_id], batch_id, error)
            raise
