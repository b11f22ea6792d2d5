"""Unambiguous names of streams, columns and windows in plans and texts."""

from __future__ import annotations

from typing import NamedTuple


class WindowCopies(NamedTuple):
    """A window that one group of shards holds."""

    unscoped_name: str
    """Its name without the scope."""
    copies: float
    """The number of shards that keep each of its tuples."""


def quote_name(name: str) -> str:
    """Return the name of a stream or column for texts.

    It is in backticks unless it is an identifier, so names stay distinct.
    """
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


def window_name(stream: str, *, settled: bool = False, scope: str = "") -> str:
    """Return the name of a stream's window in a plan.

    `settled`: its tuples wait for the watermark, as in queries with count windows. `scope`: the group of shards that holds it, if
    there are several.

    >>> window_name("clicks"), window_name("clicks", settled=True, scope="shards 0 to 3")
    ('clicks', 'clicks settled @shards 0 to 3')
    """
    return with_scope(quote_name(stream) + " settled" * settled, scope)


def with_scope(window: str, scope: str) -> str:
    """Return the name of the window of one group of shards."""
    return f"{window} @{scope}" if scope else window


def holds_stream(window: str, stream: str) -> bool:
    """Whether a window of the plan is of a stream; its name may end with the shards that hold it."""
    return window == stream or f"{window} ".startswith(f"{quote_name(stream)} ")


def mermaid_text(text: str) -> str:
    """Escape a text for use between quotes in a mermaid graph."""
    return text.replace('"', "#quot;")
