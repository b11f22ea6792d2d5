"""Results one file per point: written whole or not at all, and used again only if they were made with the same settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Points:
    """A directory of results by name."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self._directory = directory
        self._settings = json.loads(json.dumps(settings))  # as they come back: tuples are lists there
        directory.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """The result of a point, or None if it is still to be computed."""
        try:
            stored = json.loads((self._directory / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return stored["result"] if stored.get("settings") == self._settings else None

    def write(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a point."""
        text = json.dumps({"settings": self._settings, "result": result})
        unfinished = self._directory / f"{name}.json.part"
        unfinished.write_text(text + "\n", encoding="utf-8")
        os.replace(unfinished, self._directory / f"{name}.json")  # noqa: PTH105 - atomic, and says so
