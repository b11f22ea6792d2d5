"""`watch()` shows a line for each batch until the job ends, fails or Ctrl-C is pressed, which does not stop the job."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.spark.watch import batch_line, watch


def metrics(lag: float = 2.0, queries: int = 1) -> dict[str, Any]:
    stream = {"lag_seconds": lag, "max_event_time": "2026-11-19T20:13:49.000000Z", "state_bytes": 3 << 20}
    return {
        "streams": {"a": stream | {"late": 1200, "shed": 0}, "b": stream | {"late": 1, "shed": 7, "lag_seconds": None}},
        "queries": {f"q{number}": {"results": 1000 * number + 5} for number in range(queries)},
    }


class Job:
    """Ends, or fails, after some polls; each poll is a batch, after one without any."""

    def __init__(self, polls: int = 3, error: Exception | None = None, *, interrupt: bool = False) -> None:
        self.polls, self.error, self.interrupt = polls, error, interrupt
        self.query = SimpleNamespace(recentProgress=[])
        self.timeouts: list[float | None] = []

    def metrics(self) -> dict[str, Any]:
        return metrics()

    def await_termination(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        if len(self.timeouts) > 1:
            number = len(self.query.recentProgress)
            self.query.recentProgress.append({"batchId": number, "numInputRows": 15_000, "batchDuration": 500})
        if self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        if len(self.timeouts) == self.polls and self.error is not None:
            raise self.error
        return len(self.timeouts) == self.polls


def test_a_line_about_a_batch() -> None:
    progress = {"batchId": 7, "numInputRows": 305_900, "batchDuration": 1700}
    assert batch_line(metrics(), progress) == (
        "batch 7: 306 k tuples in 1.7 s (180 k/s) | lag 2.0 s | state 6 MiB | late 1,201 | shed 7 | results q0 5"
    )
    assert " | lag 3 min 5 s | " in batch_line(metrics(185.0), progress)
    assert " | event time 2026-11-19 20:13:49 | " in batch_line(metrics(90_000.0), progress)
    assert batch_line(metrics(queries=3), progress).endswith(" | results q0 5, q1 1,005, q2 2,005")
    assert batch_line(metrics(queries=4), progress).endswith(" | results 6,020 of 4 queries")


def test_where_output_is_no_terminal_each_batch_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(Job(3)) is True
    first, *batches, last = capsys.readouterr().out.splitlines()
    assert first.startswith("starting: the first batch loads")
    assert [line.partition(":")[0] for line in batches] == ["batch 0", "batch 1"]
    assert last == "the job has ended"


def test_a_terminal_has_one_line_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    assert watch(Job(3)) is True
    last = terminal.getvalue().splitlines()[-1]
    assert "batch 1: 15 k tuples in 0.5 s (30 k/s) | lag 2.0 s" in last.replace("\x1b[0m", "")
    assert "the job has ended" in last


def test_ctrl_c_ends_the_display_only(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    job = Job(100, interrupt=True)
    assert watch(job) is False
    assert len(job.timeouts) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the job goes on: stop() ends it, watch() shows it again"
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_error_of_the_job_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="the sink failed"):
        watch(Job(3, ValueError("the sink failed")))
    assert "batch 0" in capsys.readouterr().out


def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    def display(data: dict[str, str], **_: object) -> Any:
        shown.append(data)
        return SimpleNamespace(update=lambda data, **_: shown.append(data))

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    assert watch(Job(3)) is True
    assert shown[0]["text/plain"].startswith("starting")
    assert shown[-1]["text/plain"].endswith("results q0 5 | the job has ended")
    assert shown[-1]["text/html"].startswith("<pre>")


def test_a_job_without_batches_ends() -> None:
    job = Job(1)
    job.query = SimpleNamespace()  # Spark has gone
    assert watch(job) is True
