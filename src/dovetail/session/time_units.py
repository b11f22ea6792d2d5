"""Event times whose unit was probably mistaken, such as milliseconds since 1970 read as microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dovetail.errors import with_imports
from dovetail.schema import StreamSchema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR = 365 * 86_400_000_000
_DECADES = 20 * _YEAR
_FAR = 530 * _YEAR
"""From the year 2500 on, a time is taken for the mistaken one of two."""
_UNITS = {1_000: ("milliseconds", "ms"), 1_000_000: ("seconds", "s")}


class _First(NamedTuple):
    """The first event time of a stream."""

    micros: int
    stream: str
    column: str


class TimeUnits:
    """Compares the first event times of streams: units are mistaken if one is 1,000 times another.

    A million, for seconds, counts too. Streams of different times are no mistake, so the factor must be met within 20 years.
    """

    def __init__(self) -> None:
        self._first: dict[str, _First] = {}

    def new_warnings(self, stream: StreamSchema, event_time: int) -> Iterator[str]:
        """Yield a warning if the first tuples of a stream have another unit than those of an earlier one."""
        if stream.name in self._first or not abs(event_time) < 1 << 61:
            return
        first, earlier = _First(event_time, stream.name, stream.event_time), [*self._first.values()]
        self._first[stream.name] = first  # first: where warnings are errors, the batch is pushed again
        for other in earlier:
            small, large = sorted((first, other))
            if (factor := _unit_factor(small, large)) is not None:
                yield _warning(small, large, factor)
                return

    def warnings_of_advance(self, stream: StreamSchema, time: int) -> Iterator[str]:
        """Yield a warning if a stream is advanced to a time of another unit than those of tuples."""
        given = _First(time, stream.name, stream.event_time)
        for other in self._first.values():
            small, large = sorted((given, other))
            if _unit_factor(small, large) is not None:
                yield (
                    f"advance got {_date(time)} for stream {stream.name!r}, and tuples of stream {other.stream!r} are at "
                    f"{_date(other.micros)}\nHint: advance takes microseconds since 1970, or a datetime"
                )
                return


def _unit_factor(small: _First, large: _First) -> int | None:
    """Return the factor between the units of two times, if one was probably mistaken; None if not."""
    if small.micros <= 0 or large.micros - small.micros <= _DECADES:
        return None
    return next((factor for factor in _UNITS if abs(small.micros * factor - large.micros) < _DECADES), None)


def _warning(small: _First, large: _First, factor: int) -> str:
    name, unit = _UNITS[factor]
    if large.micros > _FAR:
        wrong, other, unit, spark = large, small, "ns", "timestamp_micros"
        mistake = f"microseconds were probably read as {name}, or nanoseconds as microseconds"
    else:
        wrong, other, spark = small, large, {"ms": "timestamp_millis", "s": "timestamp_seconds"}[unit]
        mistake = f"{name} were probably read as microseconds"
    hint = with_imports(
        f"convert them by their unit: table[{wrong.column!r}].cast(pa.int64()).cast(pa.timestamp({unit!r}, tz='UTC')) in Arrow, "
        f"F.{spark}(number) on Spark"
    )
    return (
        f"stream {wrong.stream!r} is at {_date(wrong.micros)} and stream {other.stream!r} at {_date(other.micros)}: "
        f"{mistake}, and the streams never meet\nHint: {hint}"
    )


def _date(micros: int) -> str:
    """Return a date; a year beyond Python's as a number."""
    try:
        return f"{(_EPOCH + timedelta(microseconds=micros)):%Y-%m-%d}"
    except OverflowError:
        return f"the year {1970 + micros // _YEAR}"
