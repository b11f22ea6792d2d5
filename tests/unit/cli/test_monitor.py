"""`dovetail monitor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.live.server import LivePage


def test_the_address_is_printed_and_the_page_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[LivePage] = []
    monkeypatch.setattr(LivePage, "wait", lambda page: waited.append(page))  # noqa: PLW0108 - a bound method
    (tmp_path / "dovetail").mkdir()
    result = CliRunner().invoke(app, ["monitor", str(tmp_path)])
    assert result.exit_code == 0
    assert f"live page at {waited[0].url}\nFor Prometheus: {waited[0].url}metrics" in result.output
    waited[0].stop()


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["monitor", str(tmp_path)])
    assert result.exit_code == 2
    assert f"there is no checkpoint at {tmp_path}" in result.output
