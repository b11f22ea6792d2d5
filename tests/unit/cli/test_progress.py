"""The demo's progress line changes in place on a terminal, and is printed once per step elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dovetail.cli.demo.progress import ProgressLine, tick
from dovetail.cli.main import app


def console(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=80, highlight=False, color_system=None)


def written(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_a_terminal_shows_what_goes_on_and_for_how_long() -> None:
    where = console(is_terminal=True)
    with ProgressLine(where) as progress:
        progress.show("Starting Spark")
        until = time.monotonic() + 20
        while "Starting Spark ... 1 s" not in written(where) and time.monotonic() < until:
            time.sleep(0.1)
    assert "Starting Spark ... 0 s" in written(where)
    assert "Starting Spark ... 1 s" in written(where)


def test_elsewhere_a_step_is_announced_once_and_its_progress_is_not() -> None:
    where = console(is_terminal=False)
    with ProgressLine(where) as progress, progress.step("Starting Spark", "Spark is running"):
        progress.show("Starting Spark, task 1 of 2", is_new=False)
    lines = written(where).splitlines()
    assert lines[0] == "  Starting Spark ..."
    assert lines[1].endswith("Spark is running (0.0 s)")
    assert len(lines) == 2


def test_a_console_without_unicode_gets_plain_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    where = console(is_terminal=False)
    monkeypatch.setattr(Console, "encoding", property(lambda _: "ascii"))
    assert tick(where).isascii()


def test_the_comparison_needs_spark() -> None:
    answer = CliRunner().invoke(app, ["demo", "--local", "--compare"])
    assert answer.exit_code == 2
    assert "--compare runs Spark's own joins" in answer.output
