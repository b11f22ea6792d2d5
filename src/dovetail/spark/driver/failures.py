"""Report failures of a job: errors extracted from Spark's traces, named sinks, a silenced log."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dovetail import errors
from dovetail.errors import DovetailError, DovetailWarning
from dovetail.spark.checkpoint.directories import JVM_ERRORS
from dovetail.spark.compat import BATCH_LOGGER
from dovetail.spark.driver.job import RunningQuery

_OURS = re.compile(r"dovetail\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)", re.DOTALL)

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)(\S.*)")
"""A Python traceback: its frames, and the first line of the error."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_MAX_FAILURE = 200
"""Characters of an error that `repr` shows."""

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)


_NOT_CONNECTED = "Python worker failed to connect back"
"""Spark's text when a Python process that it has started does not connect to it."""


def lacks_worker(error: BaseException) -> bool:
    """Whether a query ended because a Python process of Spark did not connect in time."""
    return _NOT_CONNECTED in str(error)


def worker_error(error: BaseException) -> DovetailError | None:
    """Return the error that Dovetail, or the user's code, raised in a worker, from Spark's text, if any."""
    match = _OURS.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    if match is not None and isinstance(kind, type) and issubclass(kind, DovetailError):
        message, _, hint = match[2].strip().partition("\nHint: ")
        failure: DovetailError = kind(message, hint or None)
    elif lacks_worker(error):
        failure = DovetailError(
            "Spark started a Python process for the job, and it did not connect to Spark in time",
            "the machine is busy; start again with the same checkpoint",
        )
    else:
        return _user_error(error)
    failure.__cause__ = error
    return failure


def _user_error(error: BaseException) -> DovetailError | None:
    """Return the error that a function or source of the user raised; None if it was raised elsewhere."""
    trace = list(_TRACEBACK.finditer(str(error)))
    if not trace:
        return None
    frames = _FRAME.findall(trace[-1][1])
    if not frames or any(f"/{package}/" in frames[-1][0] for package in ("dovetail", "pyspark", "pyarrow")):
        return None
    path, line, function = frames[-1]
    failure = DovetailError(
        f"{trace[-1][2].strip()}\nraised by {function}() in {path}, line {line}, which a source or a frame of a stream calls",
        "correct it and start again with the same checkpoint: the batch is replayed",
    )
    failure.__cause__ = error
    return failure


def first_lines(error: BaseException) -> str:
    """Return the message of an error and its root cause, without the Java trace that Spark appends."""
    text = str(error)
    message = text.partition("\n\tat ")[0].partition("\nJVM stacktrace")[0].strip()
    causes = _CAUSE.findall(text)
    return message if not causes or causes[-1] in message else f"{message}\ncaused by {causes[-1]}"


def sink_failure(query: RunningQuery, batch_id: int, error: Exception) -> DovetailError:
    """Return a sink's error as one that names query, sink and batch, and log it for users who do not wait."""
    what = error.message if isinstance(error, DovetailError) else f"{type(error).__name__}: {first_lines(error)}"
    hint = error.hint if isinstance(error, DovetailError) else None
    failure = DovetailError(
        f"query {query.name!r}: its sink {query.sink} failed with batch {batch_id}: {what}",
        hint or "fix it and start again with the same checkpoint: the batch is replayed",
    )
    failure.__cause__ = error
    logging.getLogger("dovetail").error("%s", failure)
    return failure


def state_text(query: StreamingQuery, failure: BaseException | None, *, has_ended: bool) -> str:
    """Return the state of a job in a few words; `failure` is its error, if it is known."""
    with suppress(Exception):  # the JVM may have gone
        if failure is None and (error := query.exception()) is not None:
            failure = worker_error(error) or error
    if failure is not None:
        what = failure.message if isinstance(failure, DovetailError) else first_lines(failure)
        return f"has failed: {what.splitlines()[0][:_MAX_FAILURE]}" if what else f"has failed: {type(failure).__name__}"
    return "has ended" if has_ended else "runs"


def silence_spark_log(ending: StreamingQuery) -> None:
    """Turn off Spark's log of a query's failure until it has ended: the error has been reported."""
    with suppress(Exception):  # must never hide the error itself
        jvm: Any = SparkSession.active()._jvm  # noqa: SLF001
        log4j = jvm.org.apache.logging.log4j
        before = log4j.LogManager.getLogger(BATCH_LOGGER).getLevel()
        log4j.core.config.Configurator.setLevel(BATCH_LOGGER, log4j.Level.OFF)

        def restore() -> None:
            with suppress(*JVM_ERRORS, OSError):
                ending._jsq.awaitTermination(30_000)  # noqa: SLF001
            with suppress(*JVM_ERRORS, OSError):
                log4j.core.config.Configurator.setLevel(BATCH_LOGGER, before)

        threading.Thread(target=restore, daemon=True).start()


def warn_or_log(text: str) -> None:
    """Issue a warning of a job that runs; log it where warnings are errors, which would end the job.

    Spark's thread for batches has no line of the user's, so the warning names Dovetail in place of one.
    """
    try:
        warnings.warn_explicit(text, DovetailWarning, "dovetail", 0)
    except DovetailWarning:
        logging.getLogger("dovetail").warning("%s", text)
