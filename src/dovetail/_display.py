"""Tables and HTML, for `repr` and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def text_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text: the first column left-aligned, the others right-aligned.

    >>> print(text_table(["stream", "late"], [["clicks", 1200], ["ads", None]]))
    stream   late
    clicks  1,200
    ads
    """
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML.

    >>> html_table(["stream"], [["<a>"]])
    '<table><tr><th>stream</th></tr><tr><td>&lt;a&gt;</td></tr></table>'
    """
    lines = [("th", headings), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(_cell(value))}</{tag}>" for value in line) for tag, line in lines)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def html_text(text: str) -> str:
    """Return text as HTML, with its line breaks."""
    return f"<pre>{escape(text)}</pre>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
