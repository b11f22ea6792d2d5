"""Lengths of time as whole microseconds.

Every option and window that takes a duration reads it here, so "90 sec", "1.5 min" and `timedelta(seconds=90)` mean
the same everywhere. A length is exact or refused: nothing is rounded, and floating point never takes part.
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
_SHOWN = [(spellings, size) for spellings, size in reversed(_SPELLINGS.items()) if "week" not in spellings]
"""The units that lengths are shown in, the largest first."""
UNIT_NAMES = tuple(spellings[-1] for spellings in _SPELLINGS)

_PART = r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([^\W\d_]*)"
_TEXT = re.compile(rf"\s*{_PART}(?:\s+{_PART})*\s*")


def parse_duration(value: str | float | timedelta) -> int:
    """Give the microseconds of a duration: text with a unit, a `timedelta`, or a number of seconds.

    >>> parse_duration("1.5 min"), parse_duration(2), parse_duration("250 ms"), parse_duration("1 minute 30 seconds")
    (90000000, 2000000, 250000, 90000000)
    """
    if isinstance(value, timedelta):
        return _checked(Decimal(value // timedelta(microseconds=1)), value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _checked(Decimal(str(value)) * UNITS["s"], value)
    if not isinstance(value, str):
        raise ConfigError(f"a duration is text, a number of seconds or a timedelta, not {type(value).__name__}")
    if _TEXT.fullmatch(value) is None:
        raise ConfigError(f"{value!r} is not a duration", "write a number and a unit, e.g. '5 seconds'")
    return _checked(Decimal(sum(measure(number, unit) for number, unit in re.findall(_PART, value))), value)


def measure(number: str, unit: str) -> int:
    """Give the microseconds of a number and a unit, both as written."""
    text = f"{number} {unit}".rstrip()
    if not unit:
        raise ConfigError(f"duration {text!r} has no unit", f"write e.g. '{text} seconds'")
    if unit.lower() not in UNITS:
        raise ConfigError(
            f"duration {text!r} has the unknown unit {unit!r}; allowed: {', '.join(UNIT_NAMES)}",
            "short forms such as ms, sec, min, h and d work too; months and years have no fixed length",
        )
    return _checked(Decimal(number) * UNITS[unit.lower()], text)


def _checked(micros: Decimal, given: object) -> int:
    if not micros.is_finite():
        raise ConfigError(f"duration {given!r} is not a finite number")
    if micros < 0:
        raise ConfigError(f"duration {given!r} is negative")
    if micros > LONGEST:
        raise ConfigError(f"duration {given!r} is too long; the longest is {LONGEST // UNITS['days']} days")
    if micros != int(micros):
        raise ConfigError(f"duration {given!r} is not a whole number of microseconds")
    return int(micros)


def in_words(micros: int) -> str:
    """A length of time for people, exactly: `1 hour 30 minutes`.

    >>> in_words(5_400_000_000), in_words(86_400_000_001), in_words(0)
    ('1 hour 30 minutes', '1 day 1 microsecond', '0 seconds')
    """
    parts, rest = [], abs(micros)
    for spellings, size in _SHOWN:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {spellings[-1] if count > 1 else spellings[-2]}")
    return ("minus " if micros < 0 else "") + (" ".join(parts) or "0 seconds")


def as_written(micros: int) -> str:
    """A length of time as SQL takes it: a whole number of the largest unit that gives one, `90 MINUTES`.

    >>> as_written(5_400_000_000), as_written(3_600_000_000), as_written(0)
    ('90 MINUTES', '1 HOUR', '0 SECONDS')
    """
    spellings, size = next(
        (spellings, size) for spellings, size in _SHOWN if micros % size == 0 and (micros or size == UNITS["s"])
    )
    count = micros // size
    return f"{count} {spellings[-2 if count == 1 else -1].upper()}"
