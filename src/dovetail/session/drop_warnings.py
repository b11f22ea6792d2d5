"""Warnings about dropped tuples: one for each stream and reason, with what would have kept them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.query.durations import LONGEST, UNITS, format_duration
from dovetail.schema import StreamSchema

_FAR = 365 * UNITS["days"]
"""A tuple that is later than this was probably not late: another one was in the future."""
_COUNTED = "metrics() counts them; this warning appears once."


class DropWarnings:
    """Gives the warnings about dropped tuples of one session, each once."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def new_warnings(self, stream: StreamSchema, late: int, late_by: int, refused: int) -> Iterator[str]:
        """Yield the warnings that a stream has not had yet; `late_by` is the largest delay in microseconds."""
        if late and self._is_new(stream, "late"):
            hint = f"lateness={format_duration(late_by)!r} would have kept {'them' if late > 1 else 'it'}"
            if late_by > _FAR:
                distance = format_duration(late_by) if late_by <= LONGEST else "millennia"
                hint = (
                    f"an earlier tuple was {distance} ahead of {'them' if late > 1 else 'it'}: drop such tuples with "
                    "stream(..., max_ahead='1 hour'), and mind the unit of epoch numbers"
                )
            yield (
                f"stream {stream.name!r}: {_tuples(late)} came too late and {_were(late)} dropped, up to "
                f"{format_duration(late_by)} behind its largest event time; its lateness is {format_duration(stream.lateness)}\n"
                f"Hint: {hint}. {_COUNTED}"
            )
        if refused and self._is_new(stream, "refused"):
            yield (
                f"stream {stream.name!r}: {_tuples(refused)} {_were(refused)} dropped, because column {stream.event_time!r} is NULL "
                "or out of range; a tuple without an event time belongs to no window\nHint: repair or drop such tuples first; event "
                f"times must lie within 70,000 years of 1970, so mind the unit of epoch numbers. {_COUNTED}"
            )

    def all_ahead(self, stream: StreamSchema, ahead: int) -> Iterator[str]:
        """Yield the warning, once, that `max_ahead` has dropped all tuples of a batch or a stream."""
        if self._is_new(stream, "ahead"):
            yield (
                f"stream {stream.name!r}: all {ahead:,} tuples were dropped, because they are further ahead of the clock than "
                f"max_ahead={format_duration(stream.max_ahead or 0)!r}\nHint: mind the clock, which is push(now=...) or the time of "
                f"the machine, and the unit and time zone of the event times. {_COUNTED}"
            )

    def _is_new(self, stream: StreamSchema, reason: str) -> bool:
        new = (stream.name, reason) not in self._warned
        self._warned.add((stream.name, reason))
        return new


def _tuples(count: int) -> str:
    return f"{count:,} tuples" if count > 1 else "1 tuple"


def _were(count: int) -> str:
    return "were" if count > 1 else "was"
