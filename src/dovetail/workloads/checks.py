"""Validation of generator settings; `where` names the setting in the error."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from dovetail.config import is_number
from dovetail.errors import ConfigError


def above(where: str, value: float, least: float = 0.0) -> None:
    """Require a finite number above `least`."""
    if not (is_number(value) and value > least):
        raise ConfigError(f"{where} is {value!r}; it must be a number above {least:g}")


def within(where: str, value: float, least: float, most: float = inf) -> None:
    """Require a finite number from `least` to `most`."""
    if not (is_number(value) and least <= value <= most):
        bounds = f"from {least:g} on" if most == inf else f"from {least:g} to {most:g}"
        raise ConfigError(f"{where} is {value!r}; it must be a number {bounds}")


def whole(where: str, value: int, least: int, most: float = inf) -> None:
    """Require a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bounds = f"from {least} on" if most == inf else f"from {least} to {most:g}"
        raise ConfigError(f"{where} is {value!r}; it must be a whole number {bounds}")


def one_of(where: str, value: object, allowed: Iterable[object]) -> None:
    """Require one of the allowed values."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError.choice(where, value, allowed)
