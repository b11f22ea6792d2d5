"""What is said of tuples that are dropped: once for each stream and reason, with what would have kept them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.query.durations import LONGEST, in_words
from dovetail.schema import StreamSchema

_COUNTED = "metrics() counts them; this is said once."


class Losses:
    """Remembers what has been said."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def unsaid(self, stream: StreamSchema, late: int, late_by: int, refused: int) -> Iterator[str]:
        """What there is to say of a stream with so many dropped tuples, the last of them `late_by` microseconds behind."""
        if late and self._is_new(stream, "late"):
            hint = f"lateness={in_words(late_by)!r} would have kept {'them' if late > 1 else 'it'}"
            if late_by > LONGEST:
                hint = "an earlier tuple was from the far future: mind the unit of epoch numbers, and see max_ahead"
            yield (
                f"stream {stream.name!r}: {_tuples(late)} came too late and {_were(late)} dropped, up to {in_words(late_by)} behind "
                f"its largest event time; its lateness is {in_words(stream.lateness)}\nHint: {hint}. {_COUNTED}"
            )
        if refused and self._is_new(stream, "refused"):
            yield (
                f"stream {stream.name!r}: {_tuples(refused)} {_were(refused)} dropped, because column {stream.event_time!r} is NULL "
                "or out of range; a tuple without an event time belongs to no window\nHint: repair or drop such tuples first; event "
                f"times must lie within 70,000 years of 1970, so mind the unit of epoch numbers. {_COUNTED}"
            )

    def _is_new(self, stream: StreamSchema, reason: str) -> bool:
        new = (stream.name, reason) not in self._said
        self._said.add((stream.name, reason))
        return new


def _tuples(count: int) -> str:
    return f"{count:,} tuples" if count > 1 else "1 tuple"


def _were(count: int) -> str:
    return "were" if count > 1 else "was"
