"""A line that says what the demo is doing and for how long.

It is rewritten in place on a terminal, and printed once per step elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_FRAMES_PER_SECOND = 8


class ProgressLine:
    """A context in which `show` sets the line, and lines that are printed on the console appear above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._text: str | Callable[[], str] = ""
        self._started = time.perf_counter()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=console, get_renderable=self._line, refresh_per_second=_FRAMES_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, text: str, *, is_new: bool = True) -> None:
        """Show a text; a new one starts the clock, and is printed where lines cannot change in place."""
        self._text = text
        if is_new:
            self._started = time.perf_counter()
            if not self.console.is_terminal:
                self.console.print(f"  {text} ...", style="dim", soft_wrap=True)

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Show `doing` while something runs, then print `done` and the seconds that it took."""
        self.show(doing)
        started = time.perf_counter()
        yield
        self.done(done, time.perf_counter() - started)

    def done(self, text: str, seconds: float) -> None:
        """Print a step that is complete."""
        self.console.print(f"{tick(self.console)} {text} [dim]({took(seconds)})[/dim]", soft_wrap=True)

    def _line(self) -> Table:
        elapsed = time.perf_counter() - self._started
        line = Table.grid(padding=(0, 1))
        line.add_row(self._spinner, Text(f"{self._text} ... {elapsed:.0f} s", no_wrap=True, overflow="ellipsis"))
        return line


def tick(console: Console) -> str:
    """Return the mark of a step that succeeded, as the console can print it."""
    return "[green]✓[/green]" if console.encoding.lower().startswith("utf") else "[green]ok[/green]"


def took(seconds: float) -> str:
    """Return a duration as a person would write it.

    >>> took(0.24), took(8.2), took(72), took(60), took(720)
    ('0.2 s', '8 s', '1 min 12 s', '1 minute', '12 minutes')
    """
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if seconds < 2 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if rest:
        return f"{minutes} min {rest} s"
    return f"{minutes} minutes" if minutes > 1 else "1 minute"
