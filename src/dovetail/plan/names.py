"""What texts and plans call streams, columns and windows: no two look alike."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A stream's or column's name as it stands in texts: in backticks unless it is a plain identifier, so that no two look alike."""
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


def window_name(stream: str, *, settled: bool = False, scope: str = "") -> str:
    """What a plan calls a stream's window.

    `settled`: its tuples wait until their time is settled, as those of queries with count windows do. `scope`: the group of shards
    that keeps it, if there are several.

    >>> window_name("clicks"), window_name("clicks", settled=True, scope="shards 0 to 3")
    ('clicks', 'clicks settled @shards 0 to 3')
    """
    return in_scope(quoted(stream) + " settled" * settled, scope)


def in_scope(window: str, scope: str) -> str:
    """What a plan calls the window of one group of shards."""
    return f"{window} @{scope}" if scope else window


def mermaid_text(text: str) -> str:
    """A text as it stands between quotes in a mermaid graph."""
    return text.replace('"', "#quot;")
