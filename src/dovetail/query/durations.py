"""Durations: parsed to whole microseconds, and formatted for messages.

Every option and window that takes a duration is parsed here, so "90 sec", "1.5 min" and `timedelta(seconds=90)` mean
the same everywhere. Parsing is exact: nothing is rounded, no floating point is used, and other input is rejected.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from dovetail.errors import ConfigError

LONGEST = 2**60
"""Microseconds; about 36,500 years. Longer windows would overflow sums of times."""

_SPELLINGS = {
    ("us", "microsecond", "microseconds"): 1,
    ("ms", "msec", "msecs", "millisecond", "milliseconds"): 1_000,
    ("s", "sec", "secs", "second", "seconds"): 1_000_000,
    ("m", "min", "mins", "minute", "minutes"): 60_000_000,
    ("h", "hr", "hrs", "hour", "hours"): 3_600_000_000,
    ("d", "day", "days"): 86_400_000_000,
    ("w", "week", "weeks"): 604_800_000_000,
}
UNITS = {spelling: micros for spellings, micros in _SPELLINGS.items() for spelling in spellings}
"""Microseconds per unit, by every spelling in lower case."""
_FORMATTED = {
    "day": ("DAY", UNITS["day"]),
    "h": ("HOUR", UNITS["h"]),
    "min": ("MINUTE", UNITS["min"]),
    "s": ("SECOND", UNITS["s"]),
    "ms": ("MILLISECOND", UNITS["ms"]),
    "us": ("MICROSECOND", UNITS["us"]),
}
"""Units used in messages, the largest first: the SQL name and the microseconds of each."""
UNIT_NAMES = tuple(spellings[-1] for spellings in _SPELLINGS)

_PART = r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([^\W\d_]*)"
_TEXT = re.compile(rf"\s*{_PART}(?:\s+{_PART})*\s*")


def parse_duration(value: str | float | timedelta) -> int:
    """Return the microseconds of a duration: text with a unit, a `timedelta`, or a number of seconds.

    >>> parse_duration("1.5 min"), parse_duration(2), parse_duration("250 ms"), parse_duration("1 minute 30 seconds")
    (90000000, 2000000, 250000, 90000000)
    """
    if isinstance(value, timedelta):
        return _check_micros(Decimal(value // timedelta(microseconds=1)), value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _check_micros(Decimal(str(value)) * UNITS["s"], value)
    if not isinstance(value, str):
        raise ConfigError(f"duration {value!r} is not text, a number of seconds or a timedelta")
    if _TEXT.fullmatch(value) is None:
        raise ConfigError(f"{value!r} is not a duration", "write a number and a unit, e.g. '5 seconds'")
    return _check_micros(Decimal(sum(to_micros(number, unit) for number, unit in re.findall(_PART, value))), value)


def to_micros(number: str, unit: str) -> int:
    """Return the microseconds of a number and a unit, both as text."""
    text = f"{number} {unit}".rstrip()
    if not unit:
        raise ConfigError(f"duration {text!r} has no unit", f"write e.g. '{text} seconds'")
    if unit.lower() not in UNITS:
        raise ConfigError(
            f"duration {text!r} has the unknown unit {unit!r}; allowed: {', '.join(UNIT_NAMES)}",
            "short forms such as ms, sec, min, h and d work too; months and years have no fixed length",
        )
    return _check_micros(Decimal(number) * UNITS[unit.lower()], text)


def _check_micros(micros: Decimal, value: object) -> int:
    if not micros.is_finite():
        raise ConfigError(f"duration {value!r} is not a finite number")
    if micros < 0:
        raise ConfigError(f"duration {value!r} is negative")
    if micros > LONGEST:
        raise ConfigError(f"duration {value!r} is too long; the longest is {LONGEST // UNITS['days']} days")
    if micros != int(micros):
        raise ConfigError(f"duration {value!r} is not a whole number of microseconds")
    return int(micros)


def format_duration(micros: int) -> str:
    """Format a duration in at most two units, rounded up so that a suggested duration is long enough.

    >>> format_duration(5_400_000_000), format_duration(119_355_201), format_duration(172_800_000_001), format_duration(0)
    ('1 h 30 min', '2 min', '2 days 1 us', '0 s')
    """
    parts = _split(micros)
    if len(parts) > 2:
        size = _FORMATTED[parts[1][1]][1]
        parts = _split(-(-micros // size) * size)
    return " ".join(_format(count, unit) for count, unit in parts) or "0 s"


def _split(micros: int) -> list[tuple[int, str]]:
    """Return the count of each unit that is not zero."""
    parts = []
    for unit, (_, size) in _FORMATTED.items():
        count, micros = divmod(micros, size)
        if count:
            parts.append((count, unit))
    return parts


def _format(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"


def _in_one_unit(micros: int) -> tuple[int, str]:
    """Return a duration as a whole number of the largest unit possible."""
    unit = next(unit for unit, (_, size) in _FORMATTED.items() if micros % size == 0) if micros else "s"
    return micros // _FORMATTED[unit][1], unit


def exact_duration(micros: int) -> str:
    """Format a duration exactly, in the largest unit that gives a whole number.

    >>> exact_duration(90_000_000), exact_duration(600_000_000), exact_duration(0)
    ('90 s', '10 min', '0 s')
    """
    return _format(*_in_one_unit(micros))


def sql_duration(micros: int) -> str:
    """Format a duration for SQL, in the largest unit that gives a whole number.

    >>> sql_duration(5_400_000_000), sql_duration(3_600_000_000), sql_duration(0)
    ('90 MINUTES', '1 HOUR', '0 SECONDS')
    """
    count, unit = _in_one_unit(micros)
    return f"{count} {_FORMATTED[unit][0]}{'' if count == 1 else 'S'}"
