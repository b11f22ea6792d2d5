"""Warnings about the tuples of streams, each once: dropped tuples and mistaken units of event times."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.schema import StreamSchema
from dovetail.session.drop_warnings import DropWarnings
from dovetail.session.time_units import TimeUnits


class StreamWarnings:
    """Gives the warnings about the tuples that a session's streams have had, each once."""

    def __init__(self) -> None:
        self._drop_warnings, self._time_units = DropWarnings(), TimeUnits()

    def new_warnings(
        self,
        stream: StreamSchema,
        *,
        arrived: int,
        late: int,
        late_by: int,
        ahead: int,
        refused: int,
        max_event_time: int | None,
    ) -> Iterator[str]:
        """Yield the warnings that a stream has not had yet; `late_by` is the largest delay in microseconds."""
        yield from self._drop_warnings.new_warnings(stream, late, late_by, refused)
        if 1 < arrived == ahead:
            yield from self._drop_warnings.all_ahead(stream, ahead)
        if max_event_time is not None:
            yield from self._time_units.new_warnings(stream, max_event_time)

    def warnings_of_advance(self, stream: StreamSchema, time: int) -> Iterator[str]:
        """Yield a warning if `advance` got a time in another unit than those of tuples."""
        yield from self._time_units.warnings_of_advance(stream, time)
