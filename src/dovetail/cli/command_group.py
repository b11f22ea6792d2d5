"""The group of all commands: one handler for errors, warnings and Ctrl-C, and the exit codes.

0: done; 1: failed; 2: the command line, a job file, a query or a schema is wrong, and nothing has been run; 130: interrupted.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from dovetail.errors import DovetailError, DovetailWarning

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


class CommandGroup(TyperGroup):
    """Runs a command, and ends with a message and an exit code if it fails."""

    def invoke(self, ctx: Any) -> Any:
        console = Console(stderr=True, highlight=False)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _show_warning(console, message)
            warnings.simplefilter("always", DovetailWarning)
            try:
                return super().invoke(ctx)
            except BrokenPipeError:  # of `dovetail ... | head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(FAILED) from None
            except (DovetailError, OSError) as error:
                show_error(console, error)
                raise typer.Exit(WRONG_USAGE if isinstance(error, ValueError) else FAILED) from None
            except KeyboardInterrupt:
                console.print("Stopped.")
                raise typer.Exit(INTERRUPTED) from None


def show_error(console: Console, error: Exception) -> None:
    """Print an error, its hint apart."""
    message, separator, hint = str(error).rpartition("\nHint: ")
    console.print(Text(message or hint, style="red"), soft_wrap=True)
    if separator:
        console.print(Text(f"Hint: {hint}"), soft_wrap=True)


def _show_warning(console: Console, message: object) -> None:
    console.print(Text(f"Warning: {message}", style="yellow"), soft_wrap=True)
