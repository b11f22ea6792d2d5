"""What settings of generators have to be, checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from dovetail.config import is_number
from dovetail.errors import ConfigError


def above(place: str, value: float, least: float = 0.0) -> None:
    """Refuse what is no finite number above `least`."""
    if not (is_number(value) and value > least):
        raise ConfigError(f"{place} is {value!r}; it must be a number above {least:g}")


def within(place: str, value: float, least: float, most: float = inf) -> None:
    """Refuse what is no finite number from `least` to `most`."""
    if not (is_number(value) and least <= value <= most):
        bounds = f"from {least:g} on" if most == inf else f"from {least:g} to {most:g}"
        raise ConfigError(f"{place} is {value!r}; it must be a number {bounds}")


def whole(place: str, value: int, least: int, most: float = inf) -> None:
    """Refuse what is no whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bounds = f"from {least} on" if most == inf else f"from {least} to {most:g}"
        raise ConfigError(f"{place} is {value!r}; it must be a whole number {bounds}")


def one_of(place: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse what is none of the values that are allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError.choice(place, value, allowed)
