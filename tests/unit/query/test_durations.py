"""Durations: every spelling, exact values, refused texts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dovetail.errors import ConfigError
from dovetail.query.durations import LONGEST, UNITS, parse_duration

SPELLINGS = {
    1: "us microsecond microseconds",
    1_000: "ms msec millisecond milliseconds",
    1_000_000: "s sec secs second seconds",
    60_000_000: "m min mins minute minutes",
    3_600_000_000: "h hr hrs hour hours",
    86_400_000_000: "d day days",
    604_800_000_000: "w week weeks",
}
CASES = [(unit, micros) for micros, units in SPELLINGS.items() for unit in units.split()]


@pytest.mark.parametrize(("unit", "micros"), CASES)
def test_unit_in_any_case_and_spacing(unit: str, micros: int) -> None:
    texts = [f"3 {unit}", f"3{unit}", f" 3  {unit.upper()} ", f"3.0 {unit.title()}", f"+3 {unit}"]
    assert [parse_duration(text) for text in texts] == [3 * micros] * 5


def test_table_has_no_spelling_beyond_the_documented() -> None:
    assert set(UNITS) - {unit for unit, _ in CASES} == {"msecs"}


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ("0 seconds", 0),
        ("0.5 seconds", 500_000),
        (".5 s", 500_000),
        ("1.5 min", 90_000_000),
        ("5 s 3 ms", 5_003_000),
        ("0.000001 s", 1),
        (2, 2_000_000),
        (0, 0),
        (0.1, 100_000),
        (1e-6, 1),
        (timedelta(minutes=1, microseconds=7), 60_000_007),
        (f"{LONGEST} us", LONGEST),
    ],
)
def test_value(value: str | float | timedelta, micros: int) -> None:
    assert parse_duration(value) == micros


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5", "duration '5' has no unit"),
        (
            "5 parsecs",
            (
                "duration '5 parsecs' has the unknown unit 'parsecs'; "
                "allowed: microseconds, milliseconds, seconds, minutes, hours, days, weeks"
            ),
        ),
        ("", "'' is not a duration"),
        ("five seconds", "'five seconds' is not a duration"),
        ("5 s and 3 ms", "'5 s and 3 ms' is not a duration"),
        ("5 s -3 ms", "duration '-3 ms' is negative"),
        ("1e3 s", "'1e3 s' is not a duration"),
        ("-1 s", "duration '-1 s' is negative"),
        (-1, "duration -1 is negative"),
        (
            timedelta(microseconds=-1),
            "duration datetime.timedelta(days=-1, seconds=86399, microseconds=999999) is negative",
        ),
        ("0.5 us", "duration '0.5 us' is not a whole number of microseconds"),
        (1e-7, "duration 1e-07 is not a whole number of microseconds"),
        (f"{LONGEST + 1} us", f"duration '{LONGEST + 1} us' is too long; the longest is 13343998 days"),
        (float("nan"), "duration nan is not a finite number"),
        (float("inf"), "duration inf is not a finite number"),
        (True, "duration True is not text, a number of seconds or a timedelta"),
        (None, "duration None is not text, a number of seconds or a timedelta"),
    ],
)
def test_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(value)
    assert caught.value.message == message


def test_hint_for_a_missing_unit_repeats_the_number() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration("5")
    assert str(caught.value) == "duration '5' has no unit\nHint: write e.g. '5 seconds'"
