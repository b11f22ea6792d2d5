"""Event times whose unit was probably mistaken, such as milliseconds since 1970 read as microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR = 365 * 86_400_000_000
_DECADES = 20 * _YEAR
_FAR = 530 * _YEAR
"""From the year 2500 on, a time is taken for the mistaken one of two."""
_UNITS = {1_000: ("milliseconds", "ms"), 1_000_000: ("seconds", "s")}


class TimeUnits:
    """Compares the first event times of streams: units are mistaken if one is 1,000 times another.

    A million, for seconds, counts too. Streams of different times are no mistake, so the factor must be met within 20 years.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def new_warnings(self, stream: str, event_time: int) -> Iterator[str]:
        """Yield a warning if the first tuples of a stream have another unit than those of an earlier one."""
        if stream in self._times or not abs(event_time) < 1 << 61:
            return
        earlier = dict(self._times)
        self._times[stream] = event_time  # first: where warnings are errors, the batch is pushed again
        for other, time in earlier.items():
            small, large = sorted(((event_time, stream), (time, other)))
            factor = next((factor for factor in _UNITS if abs(small[0] * factor - large[0]) < _DECADES), None)
            if factor is not None and small[0] > 0 and large[0] - small[0] > _DECADES:
                yield _warning(small, large, factor)
                return


def _warning(small: tuple[int, str], large: tuple[int, str], factor: int) -> str:
    name, unit = _UNITS[factor]
    if large[0] > _FAR:
        wrong, other, mistake = (
            large,
            small,
            f"microseconds were probably read as {name}, or nanoseconds as microseconds",
        )
        hint = "convert them by their unit, e.g. table['ts'].cast(pa.int64()).cast(pa.timestamp('ns', tz='UTC'))"
    else:
        wrong, other, mistake = small, large, f"{name} were probably read as microseconds"
        hint = f"convert them by their unit, e.g. table['ts'].cast(pa.int64()).cast(pa.timestamp({unit!r}, tz='UTC'))"
    spark = {"ms": "F.timestamp_millis", "s": "F.timestamp_seconds"}[unit] if wrong is small else "F.timestamp_micros"
    return (
        f"stream {wrong[1]!r} is at {_date(wrong[0])} and stream {other[1]!r} at {_date(other[0])}: "
        f"{mistake}, and the streams never meet\nHint: {hint}, or {spark} on Spark"
    )


def _date(micros: int) -> str:
    """Return a date; a year beyond Python's as a number."""
    try:
        return f"{(_EPOCH + timedelta(microseconds=micros)):%Y-%m-%d}"
    except OverflowError:
        return f"the year {1970 + micros // _YEAR}"
