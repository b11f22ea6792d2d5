"""Results one file per point: written whole or not at all, and used again only if they were made with the same settings."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


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

    def fill(
        self,
        console: Console,
        planned: Iterable[Any],
        compute: Callable[[Any], dict[str, Any]],
        weight: Callable[[Any], int] = lambda _: 1,
    ) -> dict[Any, dict[str, Any]]:
        """The results of all `planned` points, the missing ones computed; `weight` says what the time of one grows with."""
        weights, results = {point: weight(point) for point in planned}, {}
        columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=sum(weights.values()))
            for point, share in weights.items():
                progress.update(task, description=point.name)
                found, started = self.read(point.name), time.perf_counter()
                if found is None:
                    found = compute(point)
                    self.write(point.name, found)
                    if not console.is_terminal:
                        console.print(f"{point.name}: {time.perf_counter() - started:.1f} s", soft_wrap=True)
                results[point] = found
                progress.advance(task, share)
        return results

    def write(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a point."""
        text = json.dumps({"settings": self._settings, "result": result})
        unfinished = self._directory / f"{name}.json.part"
        unfinished.write_text(text + "\n", encoding="utf-8")
        os.replace(unfinished, self._directory / f"{name}.json")  # noqa: PTH105 - atomic, and says so
