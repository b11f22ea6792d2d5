"""Jobs over Spark Connect: a Python process beside Spark's server writes the batches.

The session pickles a `BatchWriter` for that process, which cannot call the session. So it leaves a report of each batch beside the
checkpoint, from which the session reads metrics, the last batch, and what the next change of the job needs. A writer whose plan log
entry is not the last one belongs to a job that was replaced or started again elsewhere, and refuses to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from dovetail.errors import ConfigError, StateError
from dovetail.spark.batch_writer import BatchWriter
from dovetail.spark.checkpoint.checkpoint import Checkpoint
from dovetail.spark.checkpoint.directories import Directory
from dovetail.spark.checkpoint.plan_log import batch_option
from dovetail.spark.driver.failures import lacks_worker, warn_or_log
from dovetail.spark.running import RunningSession
from dovetail.spark.sinks.sinks import MemorySink, Sink

FOLDER = "_reports"
"""Directory in the checkpoint, beside the plan log."""
_KEPT = 2
"""Reports that are kept: a reader may have listed one before it is removed."""
_REPORT = re.compile(r"(\d{8})-(\d{8})\.json")


@dataclass
class ConnectWriter:
    """The function for `foreachBatch`; pickled when the streaming query starts."""

    writer: BatchWriter
    run_id: str
    epoch: int

    def __call__(self, encoded: DataFrame, batch_id: int) -> None:
        encoded.sparkSession.conf.set(batch_option(self.run_id), str(batch_id))
        try:
            self.writer.write(encoded, batch_id, self._check_epoch)
        except Exception:
            if self.writer.failure is None:
                raise
            raise self.writer.failure from None  # the session gets its text, and not the cause
        write_report(self.writer.job.checkpoint.directory, self.epoch, batch_id, self.writer.reports.to_json())

    def _check_epoch(self, batch_id: int) -> None:
        """Raise `StateError` if a later plan log entry is in force; called before results are written."""
        if self.writer.job.checkpoint.refreshed().next_epoch > self.epoch + 1:
            raise StateError(
                f"batch {batch_id}: the job was changed or started again elsewhere; this batch has not been written",
                "use the session that was started last",
            )


def check_connect_sinks(sinks: Mapping[str, Sink]) -> None:
    """Refuse sinks that would stay empty, because another process writes to them."""
    for name, sink in sinks.items():
        if isinstance(sink, MemorySink):
            raise ConfigError(
                f"sinks[{name!r}] is dt.sinks.memory(), which over Spark Connect would stay empty: batches are written beside the "
                "server, in another process",
                "use dt.sinks.parquet(path), or dataframe(name) with writeStream.format('memory')",
            )


class ConnectSession(RunningSession):
    """A session that has been started over Spark Connect."""

    def add_query(self, name: str, sql: str, sink: Sink, *, backfill: bool = False) -> float:
        check_connect_sinks({name: sink})
        return super().add_query(name, sql, sink, backfill=backfill)

    def _begin(self) -> None:
        try:
            super()._begin()
        except PySparkException as error:
            if not lacks_worker(error):
                raise
            super()._begin()  # the machine is busy: Spark waits ten seconds for the process that writes batches

    def _batch_function(self) -> Callable[[DataFrame, int], None]:
        checkpoint = replace(self._job.checkpoint, lock=None)
        job = replace(self._job, checkpoint=checkpoint, locks={})
        return ConnectWriter(replace(self._writer, job=job), self._run_id, checkpoint.next_epoch - 1)

    def _clear(self) -> None:
        super()._clear()
        self._read_reports()  # with the warnings of the last batches

    def _read_reports(self) -> None:
        """Take over the report of the last batch, if this job has written one."""
        checkpoint = self._job.checkpoint
        report = newest_report(checkpoint, checkpoint.next_epoch - 1)
        if report is None or report[0] == self._writer.last_batch:
            return
        self._writer.last_batch, content = report
        self._reports.update(content)
        for text in self._reports.new_warnings():
            warn_or_log(text)
        self._view_file.save()


def write_report(directory: Directory, epoch: int, batch_id: int, content: Mapping[str, Any]) -> None:
    """Write the report of a batch and remove older ones."""
    folder = directory.within("dovetail", FOLDER)
    name = f"{epoch:08}-{batch_id:08}.json"
    folder.remove(name)
    folder.create(name, json.dumps(content))
    names = sorted(filter(_REPORT.fullmatch, folder.names()))
    for old in names[:-_KEPT]:
        folder.remove(old)


def newest_report(checkpoint: Checkpoint, epoch: int) -> tuple[int, dict[str, Any]] | None:
    """Return the last batch that a plan log entry has written, and its report; None if there is none."""
    folder = checkpoint.directory.within("dovetail", FOLDER)
    for name in sorted(filter(_REPORT.fullmatch, folder.names()), reverse=True):
        if int(name[:8]) == epoch and (text := folder.read(name)):
            return int(name[9:17]), json.loads(text)
    return None
