"""A started session: runs its job as one streaming query after another, or says what failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from dovetail.errors import DovetailError, StateError
from dovetail.live.server import LivePage
from dovetail.live.view_file import ViewFile
from dovetail.plan.explain.explanation import Explanation
from dovetail.query.durations import format_duration
from dovetail.session.job_html import job_html, job_text
from dovetail.session.metrics import RunningMetrics
from dovetail.session.monitor import Monitor
from dovetail.session.unknown_names import missing_attribute, reject_unknown_arguments
from dovetail.spark.batch_writer import BatchWriter
from dovetail.spark.checkpoint.directories import JVM_ERRORS
from dovetail.spark.driver.arguments import RUNNING_ELSEWHERE, check_timeout
from dovetail.spark.driver.failures import (
    first_lines,
    lacks_worker,
    silence_spark_log,
    state_text,
    warn_or_log,
    worker_error,
)
from dovetail.spark.driver.job import RunningJob
from dovetail.spark.driver.job_diff import Comparison
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.pipeline import JobChange, SparkPipeline
from dovetail.spark.driver.reports import ShardReports
from dovetail.spark.driver.waiting import is_idle, wait_until
from dovetail.spark.job_view import job_view
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.state.shared_memory import remove_run_directory
from dovetail.spark.watch import watch
from dovetail.stats.history import History

if TYPE_CHECKING:
    from dovetail.session.evidence import Why

_MAX_WAIT_SECONDS = 600
"""Longest time in seconds that a change of queries waits for the current batch."""
_COMMIT_SECONDS = 60.0
"""Longest time in seconds between a batch's last write and Spark's commit."""
_AFTER_STOP = "batch {} came after the session was stopped; it has not been written"
_RUNNING: set[RunningSession] = set()
"""Sessions that this process has started and not cleared."""


@reject_unknown_arguments
class RunningSession:
    """A session that has been started."""

    query: StreamingQuery

    def __init__(
        self, pipeline: SparkPipeline, job: RunningJob, run_id: str, changes: Comparison | None = None
    ) -> None:
        """Prepare to run `job`; `changes` are those that this start made to the checkpoint's job."""
        self.changes = changes
        self._pipeline = pipeline
        self._job = job
        self._run_id = run_id
        self._reports = ShardReports(job.layout)
        self._writer = BatchWriter(job, self._reports)
        """Writes the batches of the current streaming query."""
        self._failure: DovetailError | None = None
        """The error of a change after which the job could not be started again."""
        self._writing = threading.RLock()
        """Held while a batch is written: its staged files must not be cleared meanwhile."""
        self._is_cleared = False
        self._change = threading.RLock()
        """Held while the job changes: one streaming query ends and another replaces it."""
        self._view_file = ViewFile(lambda: self._job.checkpoint.directory.local, self._view)
        self._start_id = 0
        """Counts the streaming queries of this run; batches of an earlier one are refused."""
        self._has_been_retried = False
        self._monitor = Monitor(job.layout.job.budget)
        self._planning: threading.Thread | None = None
        """Replans queries while batches run."""

    def __repr__(self) -> str:
        state = state_text(self.query, self._error, has_ended=self.has_ended)
        return f"<RunningSession: {job_text(self._layout.job)}; {self._reports.summary}; {state}>"

    def _repr_html_(self) -> str:
        return job_html(repr(self), self._layout.job, self.metrics())

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_attribute(RunningSession, name, RUNNING_ELSEWHERE)

    def _begin(self) -> None:
        """Start the streaming query."""
        self._start_id += 1
        self._writer = BatchWriter(self._job, self._reports)
        self.query = self._pipeline.writer(self._job, self._batch_function()).start()
        _RUNNING.add(self)

    def _batch_function(self) -> Callable[[DataFrame, int], None]:
        """Return the function that Spark calls with each batch."""
        start_id, reference = self._start_id, ref(self)

        def write(encoded: DataFrame, batch_id: int) -> None:
            # Py4J keeps this function until the JVM drops the query, and the JVM keeps the query while the session refers to it.
            session = reference()
            if session is None:
                raise StateError(_AFTER_STOP.format(batch_id))
            session._write_batch(encoded, batch_id, start_id)  # noqa: SLF001 - it is `self`

        return write

    @property
    def _layout(self) -> Layout:
        return self._job.layout

    @property
    def _error(self) -> DovetailError | None:
        return self._failure or self._writer.failure

    @property
    def has_ended(self) -> bool:
        if not self._change.acquire(blocking=False):
            return False
        try:
            return not self.query.isActive
        except (*JVM_ERRORS, OSError):  # with its JVM
            return True
        finally:
            self._change.release()

    def _write_batch(self, encoded: DataFrame, batch_id: int, start_id: int = 1) -> None:
        with self._writing:
            if self._is_cleared or start_id != self._start_id:
                raise StateError(_AFTER_STOP.format(batch_id))
            try:
                self._writer.write(encoded, batch_id, self._check_reports)
                self._view_file.save()
            except Exception:
                if self._writer.failure is not None:
                    silence_spark_log(self.query)
                raise

    def _check_reports(self, batch_id: int) -> None:
        """Warn of what shards have reported; replan if there is a cause."""
        for text in self._reports.new_warnings():
            warn_or_log(text)
        self._monitor_batch(batch_id)

    # -- the monitor --------------------------------------------------------------------------------------------------------

    def _monitor_batch(self, batch_id: int) -> None:
        """Compare reports with budget and plan now and then; replan in a thread if there is a cause."""
        monitor, config = self._monitor, self._layout.job.config
        if self._planning is not None or not self._layout.job.can_replan or not monitor.is_due(*self._reports.extent):
            return
        caught_up = self._reports.caught_up(batch_id) if config.adaptive else []
        parts, load = self._reports.parts(), self._reports.take_load()
        cause, breaches = monitor.check(batch_id, parts, load, self._layout.copies, caught_up)
        for breach in breaches:
            warn_or_log(f"{breach}\nHint: drop a query, shorten a window, or give the session a larger Budget")
        if cause is not None and config.adaptive:
            self._planning = threading.Thread(target=self._replan, args=(cause, caught_up), daemon=True)
            self._planning.start()

    def _replan(self, cause: str, caught_up: Collection[str]) -> None:
        """Switch to another plan if one is enough better. Errors are logged and leave the job as it is."""
        helped = False
        try:
            with self._changing("queries cannot be replanned"):
                began = perf_counter()
                job, monitor = self._layout.job, self._monitor
                proposal = job.propose(monitor.stats, cause, caught_up, monitor.batch_rate, monitor.load_near_limit)
                if proposal is not None:
                    self._switch_to(self._pipeline.prepare_replan(self._job, proposal))
                    helped, batch = True, self._job.checkpoint.plan_log[-1].first_batch
                    migration = proposal.migration(batch, perf_counter() - began)
                    self._monitor.record_migration(migration)
                    logging.getLogger("dovetail").info("%s", migration)
        except StateError as error:  # the job has ended meanwhile
            logging.getLogger("dovetail").info("%s", error)
        except Exception:
            logging.getLogger("dovetail").exception("queries could not be replanned; the job continues unchanged")
        finally:
            self._monitor.record_replan(helped=helped)
            self._planning = None

    def metrics(self) -> RunningMetrics:
        """Return counters by stream, query and plan node, use of the budget, plan changes, shards' reports."""
        self._read_reports()
        return self._reports.metrics(self._monitor)

    def _read_reports(self) -> None:
        """Read what the last batch reported, if another process has written it."""

    def watch(self) -> bool:
        """Show rate, lag, state, losses and results after each batch until the job ends.

        Return whether it has ended, or raise its error. Ctrl-C, or a notebook's interrupt, ends the display and not the job.
        """
        return watch(self)

    def explain(self) -> Explanation:
        """Return the plan with the shards' measurements; see `Session.explain`."""
        self._read_reports()
        return self._explain()

    def _explain(self, *, with_times: bool = True) -> Explanation:
        reports, measured = self._reports, self._reports.total_measurements()
        history = History(reports.earliest_visible(), self._monitor.migrations, reports.last_rates(measured))
        return self._pipeline.explain(self._layout, measured, history, with_times=with_times)

    def monitor(self, port: int = 0) -> LivePage:
        """Serve a page that shows the job, on this machine only; print the result for its address."""
        return LivePage(self._view, port)

    def _view(self) -> dict[str, Any]:
        state = state_text(self.query, self._error, has_ended=self.has_ended)
        name = f"{', '.join(self._layout.job.queries)} over {', '.join(self._layout.job.streams)}"
        plan, log = self._explain(with_times=False), self._job.checkpoint.plan_log
        return job_view(name, state, self.metrics(), plan, self.query, log)

    def why(self, query: str, rows: Mapping[str, Mapping[str, Any]]) -> Why:
        """Return why a query has no result with some rows, or in which batch it was given.

        See `LocalSession.why`. The answer is as of the last completed batch, while the job runs or after it has ended. Memory sinks
        and Parquet sinks on the driver's disk tell what they hold; give `start` such a sink as `dropped`, too.
        """
        from dovetail.spark.checkpoint.stored_why import explain_missing_on_spark  # noqa: PLC0415 - it loads the engine

        return explain_missing_on_spark(
            self._pipeline.spark, self._job.checkpoint.directory.uri, query, rows, self._job.sinks
        )

    # -- changes of the job -------------------------------------------------------------------------------------------

    def add_query(self, name: str, sql: str, sink: Sink, *, backfill: bool = False) -> float:
        """Add a query while data flows; it sees the tuples of batches that are completed from now on.

        The streaming query stops after the current batch, and another continues from there.

        Parameters
        ----------
        name, sql
            As for `Session.query`.
        sink
            Where its results go, as for `Session.start`.
        backfill
            Join new tuples also with those already in the windows, as far back as these reach; `explain` says how far. Results
            among old tuples alone are not produced.

        Returns
        -------
        The seconds that the change took, without the checks and the planning before.
        """
        with self._changing(f"query {name!r} cannot be added"):
            prepare, stats = self._pipeline.prepare_add_query, self._monitor.stats
            return self._switch_to(prepare(self._job, name, sql, sink, stats, backfill=backfill))

    def drop_query(self, name: str) -> float:
        """Stop a query after the current batch and free what only it used; return the seconds taken."""
        with self._changing(f"query {name!r} cannot be dropped"):
            return self._switch_to(self._pipeline.prepare_drop_query(self._job, name))

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        with self._change:
            if self._is_cleared or not self.query.isActive:
                raise StateError(f"{what}: the job has ended", "start the session with its checkpoint, then change it")
            yield

    def _switch_to(self, change: JobChange) -> float:
        """Stop the streaming query after this batch, start one for the changed job; return the seconds taken."""
        began = perf_counter()
        try:
            written = self._block_next_batch()
        except BaseException:
            change.undo()
            raise
        try:
            try:
                self._stop_after(written)
            except BaseException:
                change.undo()
                raise
            self._read_reports()
            self._replace_job(change.commit(self._reports.recent_batches))
        except BaseException:
            self._begin_again(unchanged=True)
            raise
        self._begin_again()
        return perf_counter() - began

    def _begin_again(self, *, unchanged: bool = False) -> None:
        """Start the streaming query again; if that fails, keep the error for `await_termination`.

        After a change that failed, the `unchanged` job starts under a new epoch if the log has an entry of the change.
        """
        try:
            checkpoint = self._job.checkpoint
            if unchanged and checkpoint.refreshed().next_epoch > checkpoint.next_epoch:
                self._replace_job(self._pipeline.prepare_restart(self._job).commit(self._reports.recent_batches))
            self._begin()
        except Exception as error:
            self._failure = DovetailError(
                f"the job could not be started again after a change: {type(error).__name__}: {first_lines(error)}",
                "start the session again with its checkpoint: nothing is lost",
            )
            self._failure.__cause__ = error
            raise

    def _block_next_batch(self) -> int | None:
        """Wait until the current batch is written and block the next; return the last batch written.

        Each change waits for one batch unless the job is idle, so frequent changes cannot starve it.
        """
        deadline = monotonic() + _MAX_WAIT_SECONDS
        wait_until(lambda: self._last_batch is not None or is_idle(self.query), self.query, deadline)
        if not self._writing.acquire(timeout=max(0.0, deadline - monotonic())):
            raise StateError(
                f"the current batch has not ended within {format_duration(_MAX_WAIT_SECONDS * 1_000_000)}; the job is unchanged",
                "retry when there is less input, or make batches smaller, for example with maxFilesPerTrigger",
            )
        try:
            if not self.query.isActive:
                raise StateError(
                    "the job has ended; its queries are unchanged", "await_termination() raises its error, if any"
                )
            silence_spark_log(self.query)
            self._start_id += 1
            return self._last_batch
        finally:
            self._writing.release()

    @property
    def _last_batch(self) -> int | None:
        """The last batch that was written since the streaming query was started."""
        self._read_reports()
        return self._writer.last_batch

    def _stop_after(self, written: int | None) -> None:
        """Stop the streaming query once Spark has committed the batch that was written."""
        checkpoint = self._job.checkpoint
        if written is not None:
            wait_until(lambda: checkpoint.has_completed(written), self.query, monotonic() + _COMMIT_SECONDS)
        self.query.stop()

    def _replace_job(self, job: RunningJob) -> None:
        """Switch to `job` and release what only dropped queries used."""
        previous, self._job = self._job, job
        self._reports.replace_layout(job.layout)
        for name in previous.layout.job.queries.keys() - job.layout.job.queries.keys():
            self._monitor.stats.drop_query(name)
        for query_id in previous.committers.keys() - job.committers.keys():
            previous.committers[query_id].clear()
        for name in previous.locks.keys() - job.locks.keys():
            previous.locks[name].release()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends or `timeout` seconds pass; return whether it has ended, or raise its error."""
        seconds = check_timeout(timeout)
        until = None if seconds is None else monotonic() + seconds
        while True:
            query, ended = self.query, True
            try:
                if until is None:
                    query.awaitTermination()
                else:
                    ended = bool(query.awaitTermination(max(0.001, until - monotonic())))  # type: ignore[arg-type]
            except Exception as error:
                if self._was_replaced(query) or (lacks_worker(error) and self._started_again(query)):
                    continue
                self._clear()
                failure = self._error or worker_error(error)
                if failure is not None and isinstance(error, StreamingQueryException):
                    raise failure from failure.__cause__
                raise
            if ended and self._was_replaced(query):
                continue
            if ended:
                self._clear()
                if self._error is not None:
                    raise self._error from self._error.__cause__
            return ended

    def _was_replaced(self, query: StreamingQuery) -> bool:
        """Whether another streaming query has replaced one that ended."""
        with self._change:
            return self.query is not query

    def _started_again(self, query: StreamingQuery) -> bool:
        """Start a streaming query again, once, if it has ended before it wrote a batch."""
        with self._change:
            if self.query is not query:
                return True
            if self._is_cleared or self._last_batch is not None or self._has_been_retried:
                return False
            self._has_been_retried = True
            logging.getLogger("dovetail").warning("a Python process of Spark did not start in time; trying once more")
            with suppress(Exception):
                self._begin()
            return self.query is not query

    def stop(self, *, finish_batch: bool = False) -> None:
        """Stop the job. An uncompleted batch is replayed at the next start.

        Parameters
        ----------
        finish_batch
            Wait until the current batch is complete, for at most 10 minutes, and stop then.
        """
        with self._change:
            if finish_batch:
                with suppress(StateError):  # the job has ended, or the batch takes too long
                    self._stop_after(self._block_next_batch())
            self.query.stop()
            self._clear()

    def _clear(self) -> None:
        """Release everything that an ended run holds."""
        with self._writing:
            self._is_cleared = True
            self._view_file.save(is_last=True)
            remove_run_directory(self._run_id)
            for committer in self._job.committers.values():
                committer.clear()
            for lock in self._job.locks.values():
                lock.release()
            _RUNNING.discard(self)


def clear_ended() -> None:
    """Release everything held by runs of this process that ended while nobody waited for them."""
    for running in [running for running in _RUNNING if running.has_ended]:
        running._clear()  # noqa: SLF001
