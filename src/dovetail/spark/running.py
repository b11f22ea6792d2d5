"""A session that runs: each batch's results reach every sink, or the query ends with an error that says what failed.

Results come encoded, a row or more per shard and query; `foreachBatch` keeps that frame, so that the stateful operator runs once
however many sinks there are and whatever they do, and gives each sink its own decoded part. What shards have written themselves is
counted before any sink is touched.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import permutations
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail import errors
from dovetail.errors import ConfigError, DovetailError, DovetailWarning, StateError
from dovetail.plan.explain_global import Explanation
from dovetail.plan.measurements import Measurements
from dovetail.query.losses import Losses
from dovetail.spark.checkpoint import Checkpoint
from dovetail.spark.directories import JVM_ERRORS, Lock
from dovetail.spark.layout import Layout
from dovetail.spark.live import release
from dovetail.spark.metrics import ShardReports
from dovetail.spark.owners import Use
from dovetail.spark.sinks import Sink
from dovetail.spark.staging import Staging
from dovetail.spark.wire import decoded

_SPARK_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_OURS = re.compile(r"dovetail\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)", re.DOTALL)
_RUNNING: set[RunningSession] = set()
"""What this process has started and not cleared."""


class Held(Protocol):
    """Something that others cannot have before it is released."""

    def release(self) -> None: ...


class RunningSession:
    """A session that has been started."""

    query: StreamingQuery

    def __init__(
        self,
        explain: Callable[[str, Layout, Measurements], Explanation],
        layout: Layout,
        sinks: Mapping[str, Sink],
        run_id: str,
        staged: Mapping[int, Staging] | None = None,
        held: Sequence[Held] = (),
    ) -> None:
        self._explain = explain
        self._layout = layout
        self._sinks = sinks
        self._run_id = run_id
        self._staged = dict(staged or {})
        self._held = held
        self._reports = ShardReports(layout)
        self._losses = Losses()
        self._failure: DovetailError | None = None
        self._writing = threading.RLock()
        """Held while a batch is written: what shards have staged must not be cleared under it."""
        self._is_cleared = False

    def begin(self, writer: DataStreamWriter) -> None:
        """Start the streaming query."""
        self.query = writer.start()
        _RUNNING.add(self)

    @property
    def has_ended(self) -> bool:
        try:
            return not self.query.isActive
        except (*JVM_ERRORS, OSError):  # with its JVM
            return True

    def write_batch(self, encoded: DataFrame, batch_id: int) -> None:
        """Give each sink its part of a batch. The encoded frame is computed once, whole, before any sink sees it."""
        with self._writing:
            if self._is_cleared:
                raise StateError(f"batch {batch_id} came after the session was stopped; it has not been written")
            read_again = len(self._staged) < len(self._layout.queries)
            if read_again:
                encoded = encoded.persist()
            try:
                self._write(encoded, batch_id)
            finally:
                if read_again:
                    encoded.unpersist()

    def _write(self, encoded: DataFrame, batch_id: int) -> None:
        found = self._reports.collect(encoded)
        self._tell_losses()
        names = [name for name, _ in self._layout.queries]
        for number, staging in self._staged.items():
            with self._blamed(names[number], batch_id):
                staging.check(batch_id, found.by_shard.get(number, {}))
        for number, name in enumerate(names):
            rows = found.rows[number]
            if not rows:
                continue
            with self._blamed(name, batch_id):
                if number in self._staged:
                    self._staged[number].commit(batch_id)
                else:
                    self._sinks[name].write(decoded(encoded, number, self._layout.bound[name].schema), batch_id)
                    self._sinks[name].verify(batch_id, rows)
            self._reports.add_results(name, rows)

    def _tell_losses(self) -> None:
        """Warn of dropped tuples. A job must not end over that, so where warnings are errors they are logged."""
        for name, counted in self._reports.streams().items():
            late_by = round(1e6 * counted.lateness_needed)
            for text in self._losses.unsaid(self._layout.catalog[name], counted.late, late_by, counted.refused):
                try:
                    warnings.warn(text, DovetailWarning, stacklevel=2)
                except DovetailWarning:
                    logging.getLogger("dovetail").warning("%s", text)

    @contextmanager
    def _blamed(self, name: str, batch_id: int) -> Iterator[None]:
        """Keep the error of a sink: Spark passes on no more than its text, between traces of its own."""
        try:
            yield
        except Exception as error:
            what = (
                error.message if isinstance(error, DovetailError) else f"{type(error).__name__}: {_first_lines(error)}"
            )
            hint = error.hint if isinstance(error, DovetailError) else None
            self._failure = DovetailError(
                f"query {name!r}: its sink {self._sinks[name]} failed with batch {batch_id}: {what}",
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

            def restore() -> None:
                with suppress(*JVM_ERRORS, OSError):
                    self.query._jsq.awaitTermination(30_000)  # noqa: SLF001
                with suppress(*JVM_ERRORS, OSError):
                    log4j.core.config.Configurator.setLevel(_SPARK_LOGGER, before)

            threading.Thread(target=restore, daemon=True).start()

    def metrics(self) -> dict[str, Any]:
        """Counters so far, by stream and by query, and what each shard last reported."""
        return self._reports.metrics()

    def explain(self, form: str = "text") -> Explanation:
        """The plan, and what the shards have measured; see `Session.explain`."""
        return self._explain(form, self._layout, self._reports.measured())

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the query ends, or for so many seconds; True if it has ended. Its error, if any, is raised."""
        ended = True
        try:
            if timeout is None:
                self.query.awaitTermination()
            else:
                ended = bool(self.query.awaitTermination(timeout))
        except Exception as error:
            self.clear()
            failure = self._failure or _raised_in_a_worker(error)
            if failure is not None and isinstance(error, StreamingQueryException):
                raise failure from failure.__cause__
            raise
        if ended:
            self.clear()
        return ended

    def stop(self) -> None:
        """Stop after the batch at hand."""
        self.query.stop()
        self.clear()

    def clear(self) -> None:
        """Give back what a run holds, once it has ended."""
        with self._writing:
            self._is_cleared = True
            release(self._run_id)
            for staging in self._staged.values():
                staging.clear()
            for held in self._held:
                held.release()
            _RUNNING.discard(self)


def clear_ended() -> None:
    """Give back what runs of this process hold that ended while nobody waited for them."""
    for running in [running for running in _RUNNING if running.has_ended]:
        running.clear()


def claim_sinks(
    spark: SparkSession, layout: Layout, sinks: Mapping[str, Sink], checkpoint: Checkpoint, run_id: str
) -> tuple[dict[int, Staging], list[Lock]]:
    """Make sinks the checkpoint's own, all of them or none; give where shards write results themselves, by query."""
    uses = {name: Use(spark, name, query.schema, checkpoint) for name, query in layout.bound.items()}
    _check_apart(uses, sinks)
    for name, use in uses.items():
        sinks[name].check(use)
    checkpoint.save(layout)
    locks: list[Lock] = []
    try:
        for name, use in uses.items():
            lock = sinks[name].claim(use)
            if lock is not None:
                locks.append(lock)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    checkpoint.save_name()
    found = {number: sinks[name].staging(uses[name], run_id) for number, (name, _) in enumerate(layout.queries)}
    return {number: staging for number, staging in found.items() if staging is not None}, locks


def _check_apart(uses: Mapping[str, Use], sinks: Mapping[str, Sink]) -> None:
    """Refuse directories that are, or contain, one another or the checkpoint."""
    given = {f"query {name!r}": sinks[name].directory(use) for name, use in uses.items()}
    used = {whose: directory for whose, directory in given.items() if directory is not None}
    used["the checkpoint"] = next(iter(uses.values())).checkpoint.directory
    for (first, outer), (second, inner) in permutations(used.items(), 2):
        if outer.holds(inner):
            how = "is also" if inner.holds(outer) else "is inside"
            raise ConfigError(
                f"the directory of {second}, {inner.uri}, {how} that of {first}, {outer.uri}",
                "give each query, and the checkpoint, a directory beside the others",
            )


def _raised_in_a_worker(error: BaseException) -> DovetailError | None:
    """An error of ours that a shard raised, taken out of the traces of Python, Java and Spark around its text."""
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, DovetailError):
        return None
    message, _, hint = found[2].strip().partition("\nHint: ")
    failure: DovetailError = kind(message, hint or None)
    failure.__cause__ = error
    return failure


def _first_lines(error: BaseException) -> str:
    """What an error says, without the Java trace that Spark appends."""
    return str(error).partition("\n\tat ")[0].partition("\nJVM stacktrace")[0].strip()
