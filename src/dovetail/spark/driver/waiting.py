"""Waiting for a streaming query, and for Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.5


def wait_until(condition: Callable[[], bool], query: StreamingQuery, deadline: float) -> None:
    """Poll `condition` until it holds, the streaming query ends, or the deadline passes."""
    pause = _POLL_SECONDS
    while query.isActive and not condition() and monotonic() < deadline:
        sleep(pause)
        pause = min(_MAX_POLL_SECONDS, 1.1 * pause)


def is_idle(query: StreamingQuery) -> bool:
    """Whether a streaming query waits for data or for its next trigger."""
    return str(query.status["message"]).startswith("Waiting")


@contextmanager
def collect_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list instead of raising `KeyboardInterrupt`.

    Raised inside a call to the JVM it would break the connection, and Spark's own handler would cancel the batch that runs. The list
    stays empty in threads other than the main one, which get no signals.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    handler = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, handler)
