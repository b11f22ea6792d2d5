"""Tables, HTML, times and durations, for `repr` and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import escape

_EPOCH = datetime.fromtimestamp(0, UTC)
_LEFT = ' style="text-align:left"'
_SECONDS = (("day", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_MAX_NAMES = 4


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
    """Return a table as HTML: text left-aligned, numbers as notebooks align them.

    >>> html_table(["late"], [[1200]])
    '<table><tr><th>late</th></tr><tr><td>1,200</td></tr></table>'
    """
    is_text = [any(isinstance(row[index], str) for row in rows) for index in range(len(headings))]
    lines = [("th", headings), *(("td", row) for row in rows)]
    cells = (
        "".join(
            f"<{tag}{_LEFT * left}>{escape(_cell(value))}</{tag}>" for value, left in zip(line, is_text, strict=True)
        )
        for tag, line in lines
    )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def html_text(text: str) -> str:
    """Return text as HTML, with its line breaks."""
    return f"<pre>{escape(text)}</pre>"


def html_paragraphs(text: str) -> str:
    r"""Return text as HTML, with the first line of each paragraph but the first in bold.

    >>> html_paragraphs("a\n\nquery <q>\n  b")
    '<pre>a\n\n<b>query &lt;q&gt;</b>\n  b</pre>'
    """
    first, *others = escape(text).split("\n\n")
    titles = [paragraph.partition("\n") for paragraph in others]
    paragraphs = [first, *(f"<b>{title}</b>{line_break}{rest}" for title, line_break, rest in titles)]
    return "<pre>" + "\n\n".join(paragraphs) + "</pre>"


def count_of(number: int, noun: str, plural: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "batch", "batches"), count_of(2000, "batch", "batches")
    ('1 batch', '2,000 batches')
    """
    return f"{number:,} {noun if number == 1 else plural}"


def name_some(names: Sequence[str]) -> str:
    """Return names for a line of text: the first ones, and how many more there are.

    >>> name_some(["a", "b"]), name_some(list("abcdefg")), name_some([])
    ('a, b', 'a, b, c, d and 3 more', 'none')
    """
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more or "none"


def iso_time(micros: int) -> str:
    """Return an event time as ISO 8601 in UTC.

    The form is that of Spark's progress reports, but with microseconds.

    >>> iso_time(1_700_000_000_000_000), iso_time(1 << 60)
    ('2023-11-14T22:13:20.000000Z', '38504-08-17T21:30:06.846976Z')
    """
    try:
        return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%f}Z".zfill(27)
    except OverflowError:  # years that Python's datetime lacks
        import numpy as np  # noqa: PLC0415 - this module must stay cheap to import

        return f"{np.datetime64(micros, 'us')}Z"


def short_time(iso: str | None) -> str | None:
    """Return a time from `iso_time` to the second, for tables.

    >>> short_time("2023-11-14T22:13:20.000000Z")
    '2023-11-14 22:13:20'
    """
    return None if iso is None else iso.partition(".")[0].replace("T", " ")


def format_lag(seconds: float | None) -> str | None:
    """Format a lag, in at most two units; one of a stream ahead of the clock is negative.

    >>> format_lag(2.14), format_lag(185), format_lag(90_061), format_lag(-0.5), format_lag(None)
    ('2.1 s', '3 min 5 s', '1 day 1 h', '-0.5 s', None)
    """
    if seconds is None:
        return None
    if abs(seconds) < 59.95:
        return f"{seconds:.1f} s"
    sign, rest = "-" * (seconds < 0), round(abs(seconds))
    parts: list[tuple[int, str]] = []
    for unit, size in _SECONDS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, unit + "s" * (unit == "day" and count > 1)))
    return sign + " ".join(f"{count:,} {unit}" for count, unit in parts[:2] if count)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
