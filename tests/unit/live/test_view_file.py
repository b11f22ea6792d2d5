"""The view of a job in its checkpoint."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import dovetail as dt
from dovetail.errors import ConfigError, StateError
from dovetail.live.view_file import ViewFile, read_view


def test_the_last_view_is_read_back(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no checkpoint at"):
        read_view(tmp_path)
    (tmp_path / "dovetail").mkdir()
    with pytest.raises(StateError, match="has written no batch since it was started"):
        read_view(tmp_path)
    views = iter([{"batch": 1}, {"batch": 2}])
    file = ViewFile(lambda: tmp_path, lambda: next(views))
    file.save()
    file.save()  # too soon
    assert read_view(tmp_path) == {"batch": 1}
    file.save(is_last=True)
    assert read_view(tmp_path) == {"batch": 2}
    page = dt.monitor(tmp_path)
    with urllib.request.urlopen(f"{page.url}data") as answer:  # noqa: S310 - our own page
        assert json.loads(answer.read()) == {"batch": 2}
    page.stop()


def test_errors_do_not_harm_the_job(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise OSError

    ViewFile(lambda: None, fail).save()
    ViewFile(lambda: tmp_path / "removed", fail).save()
