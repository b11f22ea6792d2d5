"""A session that runs: each batch's results reach every sink, or the query ends with an error that says what failed.

Results come encoded, a row or more per shard and query; `foreachBatch` keeps that frame, so that the stateful operator runs once
however many sinks there are and whatever they do, and gives each sink its own decoded part. What shards have written themselves is
counted before any sink is touched.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, perf_counter, sleep
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.errors import DovetailError, DovetailWarning, StateError
from dovetail.optimizer.adapt.proposal import Proposal
from dovetail.optimizer.joint import JointPlanning
from dovetail.plan.explain.shared import Explanation
from dovetail.query.durations import in_words
from dovetail.session.losses import Losses
from dovetail.session.monitor import Monitor
from dovetail.spark.checkpoint.directories import JVM_ERRORS
from dovetail.spark.driver.failures import first_lines, raised_in_a_worker
from dovetail.spark.driver.job import Job, RunningQuery
from dovetail.spark.driver.job_diff import Comparison
from dovetail.spark.driver.layout import Layout
from dovetail.spark.driver.reports import BatchProgress, ShardReports
from dovetail.spark.sinks.sinks import Sink
from dovetail.spark.sinks.staging import Staging
from dovetail.spark.state.shared_memory import release
from dovetail.spark.wire import decoded
from dovetail.stats.counters import Measurements
from dovetail.stats.history import History, Migration

_SPARK_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_MAX_WAIT_SECONDS = 600
"""Seconds that a change of queries waits for the batch at hand."""
_COMMIT_SECONDS = 60.0
"""Seconds in which Spark notes a batch that has been written."""
_POLL_SECONDS = 0.02
_RUNNING: set[RunningSession] = set()
"""What this process has started and not cleared."""


class PendingChange(Protocol):
    """A job that is to take the place of another, once that has ended."""

    def settle(self, progress: Mapping[int, BatchProgress]) -> Job:
        """Give it, for the first batch that is not completed; `progress`: how far streams had come, by batch, where it is known."""
        ...

    def undo(self) -> None:
        """Give back what was taken for it."""
        ...


class JobPipeline(Protocol):
    """Makes what Spark runs of a job, and other jobs of it."""

    def writer(
        self, job: Job, run_id: str, staged: Mapping[int, Staging], write: Callable[[DataFrame, int], None]
    ) -> DataStreamWriter: ...

    def with_query(self, job: Job, name: str, sql: str, sink: Sink, *, backfill: bool) -> PendingChange: ...

    def without_query(self, job: Job, name: str) -> PendingChange: ...

    def proposal(self, job: Job, monitor: Monitor, cause: str, late: Collection[str]) -> Proposal | None: ...

    def replanned(self, job: Job, proposal: Proposal) -> PendingChange: ...

    def explained(
        self,
        form: str,
        layout: Layout,
        measured: Measurements | None,
        history: History | None = None,
    ) -> Explanation: ...


class RunningSession:
    """A session that has been started."""

    query: StreamingQuery

    def __init__(self, pipeline: JobPipeline, job: Job, run_id: str, changes: Comparison | None = None) -> None:
        """Run `job`; `pipeline` makes what Spark runs of it, `changes` is what its start changed of a checkpoint."""
        self.changes = changes
        self._pipeline = pipeline
        self._job = job
        self._run_id = run_id
        self._answers = job.answers()
        """By number."""
        self._staged = dict(job.staged)
        self._reports = ShardReports(job.layout)
        self._losses = Losses()
        self._failure: DovetailError | None = None
        self._writing = threading.RLock()
        """Held while a batch is written: what shards have staged must not be cleared under it."""
        self._is_cleared = False
        self._change = threading.RLock()
        """Held while queries come or go: the streaming query ends then, and another takes its place."""
        self._starts = 0
        """How often a streaming query was started."""
        self._written: int | None = None
        """The last batch that the streaming query has written since it was started."""
        self._monitor = Monitor(job.layout.budget)
        self._planning: threading.Thread | None = None
        """Plans queries again while batches go on."""

    def begin(self) -> None:
        """Start the streaming query."""
        self._starts += 1
        self._written = None
        self.query = self._pipeline.writer(
            self._job, self._run_id, self._staged, self._writing_of(self._starts)
        ).start()
        _RUNNING.add(self)

    def _writing_of(self, start: int) -> Callable[[DataFrame, int], None]:
        """What is done with the batches of one start; those of an earlier one have been taken over."""

        def write(encoded: DataFrame, batch_id: int) -> None:
            self.write_batch(encoded, batch_id, start)

        return write

    @property
    def _layout(self) -> Layout:
        return self._job.layout

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

    def write_batch(self, encoded: DataFrame, batch_id: int, start: int = 1) -> None:
        """Give each sink its part of a batch. The encoded frame is computed once, whole, before any sink sees it."""
        with self._writing:
            if self._is_cleared or start != self._starts:
                raise StateError(f"batch {batch_id} came after the session was stopped; it has not been written")
            read_again = len(self._staged) < len(self._answers)
            if read_again:
                encoded = encoded.persist()
            try:
                self._write(encoded, batch_id)
            finally:
                if read_again:
                    encoded.unpersist()
            self._written = batch_id

    def _write(self, encoded: DataFrame, batch_id: int) -> None:
        found = self._reports.collect(encoded, batch_id)
        self._tell_losses()
        self._watch(batch_id)
        for number, staging in self._staged.items():
            with self._blamed(number, batch_id):
                staging.check(batch_id, found.by_shard.get(number, {}))
        for number, answer in self._answers.items():
            rows = found.rows[number]
            with self._blamed(number, batch_id):
                if not rows:
                    self._discard_earlier_attempt(answer, batch_id)
                elif number in self._staged:
                    self._staged[number].commit(batch_id)
                else:
                    answer.sink.write(decoded(encoded, number, answer.schema), batch_id)
                    answer.sink.verify(batch_id, rows)
            self._reports.add_results(answer.name, rows)

    def _discard_earlier_attempt(self, answer: RunningQuery, batch_id: int) -> None:
        """Remove an earlier attempt's results if this one has none; only the first batch of a start can be a replay."""
        if self._written is None:
            answer.sink.discard(batch_id)

    def _tell_losses(self) -> None:
        """Warn of dropped tuples."""
        for name, counted in self._reports.streams().items():
            late_by = round(1e6 * counted.lateness_needed)
            for text in self._losses.unsaid(self._layout.catalog[name], counted.late, late_by, counted.refused):
                _tell(text)

    # -- the monitor --------------------------------------------------------------------------------------------------------

    def _watch(self, batch_id: int) -> None:
        """Look now and then at what shards report, and plan queries again beside the batches if there is a cause."""
        monitor, config = self._monitor, self._layout.config
        if self._planning is not None or not self._has_choice or not monitor.is_due(self._reports.arrived):
            return
        late = self._reports.caught_up(batch_id) if config.adaptive else []
        parts, spent = self._reports.parts(), self._reports.spent()
        cause, breaches = monitor.look(batch_id, parts, spent, self._layout.copies, late)
        for breach in breaches:
            _tell(f"{breach}\nHint: drop a query, shorten a window, or give the session a larger Budget")
        if cause is not None and config.adaptive:
            self._planning = threading.Thread(target=self._plan_again, args=(cause, late), daemon=True)
            self._planning.start()

    @property
    def _has_choice(self) -> bool:
        """Whether there is a budget to watch, or more than one way to run the queries together."""
        layout = self._layout
        stores = JointPlanning({}, layout.config, layout.budget).stores
        return layout.budget is not None or stores or not all(came.merged for came in layout.came.values())

    def _plan_again(self, cause: str, late: Collection[str]) -> None:
        """Go on with another plan, if there is one that is worth it; whatever goes wrong here, the job goes on as it is."""
        helped = False
        try:
            with self._changing("queries cannot be planned again"):
                began = perf_counter()
                proposal = self._pipeline.proposal(self._job, self._monitor, cause, late)
                if proposal is not None:
                    self._go_on_with(self._pipeline.replanned(self._job, proposal))
                    helped, batch = True, self._job.checkpoint.revisions[-1].first
                    before, after = proposal.before.cpu, proposal.after.cpu
                    made = Migration(batch, cause, before, after, perf_counter() - began)
                    self._monitor.migrated(made)
                    logging.getLogger("dovetail").info("%s", made)
        except StateError as error:  # the job has ended meanwhile
            logging.getLogger("dovetail").info("%s", error)
        except Exception:
            logging.getLogger("dovetail").exception("queries could not be planned again; the job goes on as it was")
        finally:
            self._monitor.considered(helped=helped)
            self._planning = None

    @contextmanager
    def _blamed(self, number: int, batch_id: int) -> Iterator[None]:
        """Keep the error of a sink: Spark passes on no more than its text, between traces of its own."""
        try:
            yield
        except Exception as error:
            what = (
                error.message if isinstance(error, DovetailError) else f"{type(error).__name__}: {first_lines(error)}"
            )
            hint = error.hint if isinstance(error, DovetailError) else None
            answer = self._answers[number]
            self._failure = DovetailError(
                f"query {answer.name!r}: its sink {answer.sink} failed with batch {batch_id}: {what}",
                hint or "mend it and start again with the same checkpoint: the batch is replayed",
            )
            self._failure.__cause__ = error
            logging.getLogger("dovetail").error("%s", self._failure)  # noqa: TRY400 - without a trace; for those who do not wait
            self._quiet()
            raise

    def _quiet(self) -> None:
        """Keep Spark from logging pages of traces about what has been said already, until the query has ended."""
        with suppress(Exception):  # a matter of looks: on no account may it hide the error itself
            jvm: Any = SparkSession.active()._jvm  # noqa: SLF001
            log4j = jvm.org.apache.logging.log4j
            before = log4j.LogManager.getLogger(_SPARK_LOGGER).getLevel()
            log4j.core.config.Configurator.setLevel(_SPARK_LOGGER, log4j.Level.OFF)

            ending = self.query

            def restore() -> None:
                with suppress(*JVM_ERRORS, OSError):
                    ending._jsq.awaitTermination(30_000)  # noqa: SLF001
                with suppress(*JVM_ERRORS, OSError):
                    log4j.core.config.Configurator.setLevel(_SPARK_LOGGER, before)

            threading.Thread(target=restore, daemon=True).start()

    def metrics(self) -> dict[str, Any]:
        """Counters so far, by stream and by query; what is used of the budget; changes of the plan; and what shards last reported."""
        return {**self._reports.metrics(), **self._monitor.to_json()}

    def explain(self, form: str = "text") -> Explanation:
        """The plan, and what the shards have measured; see `Session.explain`."""
        history = History(self._reports.reached(), self._monitor.migrations)
        return self._pipeline.explained(form, self._layout, self._reports.measured(), history)

    # -- queries that come and go -------------------------------------------------------------------------------------------

    def add_query(self, name: str, sql: str, sink: Sink, *, backfill: bool = False) -> float:
        """Add a query while data flows; it sees the tuples of the batches that begin from now on.

        The streaming query ends for it after the batch at hand, and another goes on where it was.

        Parameters
        ----------
        name, sql
            As for `Session.query`.
        sink
            Where its results go, as for `Session.start`.
        backfill
            Let new tuples also meet those that the windows hold, as far back as they do; `explain` says how far. Results whose tuples
            were all there before are not given.

        Returns
        -------
        How many seconds the change has taken.
        """
        with self._changing(f"query {name!r} cannot be added"):
            job = self._pipeline.with_query(self._job, name, sql, sink, backfill=backfill)
            return self._go_on_with(job)

    def drop_query(self, name: str) -> float:
        """Stop a query, after the batch at hand, and free what only it used; give the seconds that it has taken."""
        with self._changing(f"query {name!r} cannot be dropped"):
            return self._go_on_with(self._pipeline.without_query(self._job, name))

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        with self._change:
            if self._is_cleared or not self.query.isActive:
                raise StateError(
                    f"{what}: the job has ended", "start the session again with its checkpoint, then change it"
                )
            yield

    def _go_on_with(self, job: PendingChange) -> float:
        """End the streaming query after the batch at hand, and go on with another that runs `job` from the next batch on."""
        began = perf_counter()
        try:
            written = self._block_next_batch()
        except BaseException:
            job.undo()
            raise
        try:
            self._stop_after(written, job)
            self._take_over(job.settle(self._reports.progress))
        finally:  # whatever happened, those that ran go on
            self._starts -= 1
            self.begin()
        return perf_counter() - began

    def _block_next_batch(self) -> int | None:
        """Wait until the current batch is written and block the next one; return the last batch that was written.

        Each change waits for one batch unless the job is idle, so frequent changes cannot starve it.
        """
        deadline = monotonic() + _MAX_WAIT_SECONDS
        self._wait_until(lambda: self._written is not None or self._is_idle, deadline)
        if not self._writing.acquire(timeout=max(0.0, deadline - monotonic())):
            raise StateError(
                f"the current batch has not ended within {in_words(_MAX_WAIT_SECONDS * 1_000_000)}; the job is unchanged",
                "retry when there is less input, or make batches smaller, for example with maxFilesPerTrigger",
            )
        try:
            if self.query.exception() is not None:
                raise StateError("the job has ended", "await_termination() raises its error")
            self._quiet()
            self._starts += 1
            return self._written
        finally:
            self._writing.release()

    def _stop_after(self, written: int | None, job: PendingChange) -> None:
        """Stop the streaming query once Spark has committed the batch that was written."""
        checkpoint = self._job.checkpoint
        try:
            if written is not None:
                self._wait_until(lambda: checkpoint.has_completed(written), monotonic() + _COMMIT_SECONDS)
            self.query.stop()
        except BaseException:
            job.undo()
            raise

    def _wait_until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Poll `condition` until it holds, the streaming query ends, or the deadline passes."""
        while self.query.isActive and not condition() and monotonic() < deadline:
            sleep(_POLL_SECONDS)

    @property
    def _is_idle(self) -> bool:
        """Whether the streaming query waits for tuples, or for the time of its next batch."""
        return str(self.query.status["message"]).startswith("Waiting")

    def _take_over(self, job: Job) -> None:
        """Let another job be what runs; queries that are gone give back what they held."""
        before, self._job, self._answers = self._job, job, job.answers()
        self._reports.revise(job.layout)
        for name in before.layout.bound.keys() - job.layout.bound.keys():
            self._monitor.picture.forget(name)
        for number, staging in job.staged.items():
            if number not in self._staged:
                staging.prepare()
        for number in self._staged.keys() - job.staged.keys():
            self._staged[number].clear()
        self._staged = dict(job.staged)
        for name in before.held.keys() - job.held.keys():
            before.held[name].release()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, or for so many seconds; True if it has ended. Its error, if any, is raised."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            query, ended = self.query, True
            try:
                if until is None:
                    query.awaitTermination()
                else:
                    ended = bool(query.awaitTermination(max(0.001, until - monotonic())))  # type: ignore[arg-type]
            except Exception as error:
                if self._was_replaced(query):
                    continue
                self.clear()
                failure = self._failure or raised_in_a_worker(error)
                if failure is not None and isinstance(error, StreamingQueryException):
                    raise failure from failure.__cause__
                raise
            if ended and self._was_replaced(query):
                continue
            if ended:
                self.clear()
            return ended

    def _was_replaced(self, query: StreamingQuery) -> bool:
        """Whether another streaming query has taken the place of one that ended."""
        with self._change:
            return self.query is not query

    def stop(self) -> None:
        """Stop after the batch at hand."""
        with self._change:
            self.query.stop()
            self.clear()

    def clear(self) -> None:
        """Give back what a run holds, once it has ended."""
        with self._writing:
            self._is_cleared = True
            release(self._run_id)
            for staging in self._staged.values():
                staging.clear()
            for held in self._job.held.values():
                held.release()
            _RUNNING.discard(self)


def _tell(text: str) -> None:
    """Warn. A job must not end over that, so where warnings are errors they are logged."""
    try:
        warnings.warn(text, DovetailWarning, stacklevel=3)
    except DovetailWarning:
        logging.getLogger("dovetail").warning("%s", text)


def clear_ended() -> None:
    """Give back what runs of this process hold that ended while nobody waited for them."""
    for running in [running for running in _RUNNING if running.has_ended]:
        running.clear()
