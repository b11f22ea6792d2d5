"""Shows the progress of a running job.

In a terminal or notebook one line changes; elsewhere there is a line for each batch.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from time import monotonic
from typing import Any, Protocol

from dovetail._display import format_lag, html_text, short_time
from dovetail.plan.explain.text import format_bytes
from dovetail.spark.driver.waiting import collect_interrupts

_POLL_SECONDS = 0.5
_STARTING = "starting: the first batch loads Spark's and Dovetail's libraries, which can take half a minute"
_REPLAY_SECONDS = 86_400.0
"""If streams lag further behind the clock, old data is read: the event time is shown instead of the lag."""
_MAX_QUERIES = 3
"""Maximum number of queries whose results are shown one by one."""


class Watched(Protocol):
    """A job that runs."""

    @property
    def query(self) -> Any: ...

    def metrics(self) -> Mapping[str, Any]: ...

    def await_termination(self, timeout: float | None = None) -> bool: ...


def watch(job: Watched) -> bool:
    """Show the progress of a job until it ends; return whether it has ended.

    Ctrl-C ends only the display, not the job.
    """
    began, line, last_batch, ended = monotonic(), "", -1, False
    with collect_interrupts() as interrupted, _display() as display:
        display.update(_STARTING)
        while not ended and not interrupted:
            ended = job.await_termination(_POLL_SECONDS)  # raises the error of the job
            progress = _last_progress(job)
            if progress is not None and progress["batchId"] > last_batch:
                last_batch, line = progress["batchId"], batch_line(job.metrics(), progress)
                display.update(line)
            elif not line and not ended:
                display.tick(f"{_STARTING}; {monotonic() - began:.0f} s so far")
        display.close(f"{line or 'no batch'}{_SEPARATOR}{_end_text(ended=ended)}")
    return ended


def batch_line(metrics: Mapping[str, Any], progress: Mapping[str, Any]) -> str:
    """Return a line about the last batch; `progress` is Spark's report of it."""
    tuples, seconds = progress["numInputRows"], progress["batchDuration"] / 1000
    streams: Sequence[Mapping[str, Any]] = list(metrics["streams"].values())
    parts = [f"batch {progress['batchId']}: {_large(tuples)} tuples in {seconds:.1f} s"]
    if seconds:
        parts[0] += f" ({_large(tuples / seconds)}/s)"
    lags = [stream["lag_seconds"] for stream in streams if stream["lag_seconds"] is not None]
    if lags and max(lags) < _REPLAY_SECONDS:
        parts.append(f"lag {format_lag(max(lags))}")
    elif lags:
        parts.append(f"event time {short_time(min(s['max_event_time'] for s in streams if s['max_event_time']))}")
    parts.append(f"state {format_bytes(sum(stream['state_bytes'] for stream in streams))}")
    parts += [f"{kind} {sum(stream[kind] for stream in streams):,}" for kind in ("late", "shed")]
    return _SEPARATOR.join(
        [*parts, _results_text({name: query["results"] for name, query in metrics["queries"].items()})]
    )


_SEPARATOR = " | "


def _results_text(results: Mapping[str, int]) -> str:
    if len(results) > _MAX_QUERIES:
        return f"results {sum(results.values()):,} of {len(results)} queries"
    return f"results {', '.join(f'{name} {count:,}' for name, count in results.items())}"


def _end_text(*, ended: bool) -> str:
    return "the job has ended" if ended else "the job goes on: stop() ends it, watch() shows it again"


def _large(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= 10 * size:
            return f"{number / size:.0f} {unit}"
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def _last_progress(job: Watched) -> Mapping[str, Any] | None:
    """Return Spark's report of the last batch with input; None if there was none yet, or the JVM is gone."""
    with suppress(Exception):  # whatever it is, the job itself is not affected
        for progress in reversed(job.query.recentProgress):
            if progress["numInputRows"]:
                report: Mapping[str, Any] = progress
                return report
    return None


class _Display(ABC):
    """Display of the progress."""

    @abstractmethod
    def update(self, line: str) -> None:
        """Show a line; in a file it is written below the last one."""

    @abstractmethod
    def tick(self, line: str) -> None:
        """Show a line if it can replace the last one."""

    @abstractmethod
    def close(self, line: str) -> None:
        """Show the last line."""


class _Lines(_Display):
    """Writes each line to standard output."""

    def update(self, line: str) -> None:
        print(line, flush=True)  # noqa: T201

    def tick(self, line: str) -> None:
        """Write nothing: each line stays."""

    def close(self, line: str) -> None:
        self.update(line.rpartition(_SEPARATOR)[2])  # the rest has been written


class _Terminal(_Display):
    """Replaces one line of a terminal, after a spinner."""

    def __init__(self, console: Any, status: Any) -> None:
        self._console = console
        self._status = status

    def update(self, line: str) -> None:
        self._status.update(self._text(line))

    def tick(self, line: str) -> None:
        self.update(line)

    def close(self, line: str) -> None:
        self._status.stop()
        self._console.print(self._text(line, overflow="fold"))

    def _text(self, line: str, overflow: Any = "ellipsis") -> Any:
        from rich.text import Text  # noqa: PLC0415

        return Text(line, overflow=overflow, no_wrap=overflow == "ellipsis")


class _Notebook(_Display):
    """Replaces the output of a notebook's cell."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def update(self, line: str) -> None:
        now = f"{datetime.now(UTC):%H:%M:%S}"
        self._handle.update({"text/plain": line, "text/html": html_text(f"{now} {line}")}, raw=True)

    def tick(self, line: str) -> None:
        self.update(line)

    def close(self, line: str) -> None:
        self.update(line)


@contextmanager
def _display() -> Iterator[_Display]:
    if (handle := _notebook_handle()) is not None:
        yield _Notebook(handle)
    elif sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it

        console = Console()
        with console.status("") as status:
            yield _Terminal(console, status)
    else:
        yield _Lines()


def _notebook_handle() -> Any:
    """Return a handle to an output of the notebook's cell; None outside notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display({"text/plain": _STARTING}, raw=True, display_id=True)
