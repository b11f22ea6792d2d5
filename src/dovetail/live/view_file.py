"""The view of a job as a file in its checkpoint, for pages in other processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from dovetail.errors import ConfigError, StateError
from dovetail.live.server import LivePage

_NAME = "_view.json"
"""File in the checkpoint's `dovetail` directory; with an underscore, it is not taken for a layout."""
_SECONDS = 2.0
"""Shortest time between two writes."""


class ViewFile:
    """Writes the view of a job now and then; does nothing if the checkpoint is not on this disk."""

    def __init__(self, locate: Callable[[], Path | None], read_view: Callable[[], Mapping[str, Any]]) -> None:
        """Write what `read_view` returns to the checkpoint that `locate` returns."""
        self._locate, self._read_view = locate, read_view
        self._written = -_SECONDS

    def save(self, *, is_last: bool = False) -> None:
        """Write the view, unless it was written a moment ago and more will come. Errors do not harm the job."""
        if not is_last and monotonic() - self._written < _SECONDS:
            return
        with suppress(Exception):
            if (checkpoint := self._locate()) is not None:
                path = checkpoint / "dovetail" / _NAME
                unfinished = path.with_suffix(".new")
                unfinished.write_text(json.dumps(self._read_view()), encoding="utf-8")
                unfinished.replace(path)
        self._written = monotonic()


def monitor(checkpoint: str | os.PathLike[str], port: int = 0) -> LivePage:
    """Serve the live page of a job in another process, or of one that has ended.

    Print it for its address. The checkpoint must be on this disk. `RunningSession.monitor` is for jobs of this process.
    """
    path = Path(checkpoint)
    with suppress(StateError):  # it may not have written a batch yet
        read_view(path)
    return LivePage(lambda: read_view(path), port)


def read_view(checkpoint: Path) -> dict[str, Any]:
    """Return the last view that the job of a checkpoint has written."""
    if not (checkpoint / "dovetail").is_dir():
        raise ConfigError(
            f"there is no checkpoint at {checkpoint}", "give the directory that a session was started with"
        )
    try:
        view: dict[str, Any] = json.loads((checkpoint / "dovetail" / _NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StateError(
            f"the job of {checkpoint} has written no batch since it was started", "wait for its first batch"
        ) from None
    return view
