"""Whether JSON that came from elsewhere is what a type says; anything else is a `StateError` that names the place.

Types are written as Python's own: `str`, `int`, `float`, `bool`, `None`, unions, `Literal`, `list[x]`, `tuple[x, y]` and
`tuple[x, ...]` (lists in JSON), `dict[str, x]`, `TypedDict`, dataclasses (objects with just these keys), named tuples (lists), `Any`,
and `Annotated[int, (low, high)]` for a range. A number may be infinite, but never NaN; a text can be written as UTF-8.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from dataclasses import fields, is_dataclass
from functools import cache
from math import isnan
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from dovetail.errors import StateError

LARGEST = 1 << 62
Count = Annotated[int, (0, LARGEST >> 2)]
Time = Annotated[int, (-LARGEST, LARGEST)]
Size = Annotated[float, (0, float("inf"))]
Positive = Annotated[float, (5e-324, float("inf"))]


class reading(ContextDecorator):  # noqa: N801 - reads as a verb: `with reading("the snapshot")`
    """Whatever goes wrong inside, short of an interrupt, means that `what` is damaged or was never written by us."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StateError):
            message = f"{self._what} does not hold together: {type(error).__name__}: {error}"
            raise StateError(message, "take it again, or use an earlier one") from error


def check(value: Any, hint: Any, place: str) -> None:
    """Raise `StateError` unless `value` is what `hint` says; `place` says where it stands."""
    _checker(hint)(value, place)


_Checker = Callable[[Any, str], None]


def _fail(value: Any, place: str, expected: str) -> None:
    shown = repr(value)
    raise StateError(f"{place} is {shown if len(shown) < 80 else shown[:80] + '...'}; expected {expected}")


@cache
def _checker(hint: Any) -> _Checker:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return _anything
    if origin is Annotated:
        return _ranged(_checker(args[0]), *args[1])
    if origin is Literal:
        return lambda value, place: None if value in args else _fail(value, place, f"one of {args}")
    if origin in (Union, types.UnionType):
        return _either([_checker(arg) for arg in args])
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        return _items(_checker(args[0]))
    if origin is tuple:
        return _fixed([_checker(arg) for arg in args])
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _values(_checker(args[1]))
    if is_typeddict(hint) or is_dataclass(hint):
        return _record(hint)
    if hasattr(hint, "_fields"):
        return _fixed([_checker(inner) for inner in get_type_hints(hint).values()])
    return _scalar(hint)


def _anything(value: Any, place: str) -> None:
    """Whatever it is, somebody else looks at it."""


def _scalar(hint: type) -> _Checker:
    allowed = (int, float) if hint is float else (type(None) if hint is None else hint)

    def look(value: Any, place: str) -> None:
        if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
            _fail(value, place, getattr(hint, "__name__", "nothing"))
        if isinstance(value, float) and isnan(value):
            _fail(value, place, "a number")
        if isinstance(value, int) and hint is not float and abs(value) >> 64:
            _fail(value, place, "a number of at most 64 bits")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            _fail(value, place, "text that can be written as UTF-8")

    return look


def _ranged(inner: _Checker, low: float, high: float) -> _Checker:
    def look(value: Any, place: str) -> None:
        inner(value, place)
        if not low <= value <= high:
            _fail(value, place, f"{low} to {high}")

    return look


def _either(choices: list[_Checker]) -> _Checker:
    def look(value: Any, place: str) -> None:
        for choice in choices[:-1]:
            try:
                return choice(value, place)
            except StateError:
                continue
        return choices[-1](value, place)

    return look


def _items(inner: _Checker) -> _Checker:
    def look(value: Any, place: str) -> None:
        if not isinstance(value, list):
            _fail(value, place, "a list")
        for number, item in enumerate(value):
            inner(item, f"{place}[{number}]")

    return look


def _fixed(inner: list[_Checker]) -> _Checker:
    def look(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) != len(inner):
            _fail(value, place, f"a list of {len(inner)}")
        for number, (each, item) in enumerate(zip(inner, value, strict=True)):
            each(item, f"{place}[{number}]")

    return look


def _values(inner: _Checker) -> _Checker:
    def look(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _fail(value, place, "an object")
        for name, item in value.items():
            _TEXT(name, f"{place}: a key")
            inner(item, f"{place}.{name}")

    return look


def _record(hint: Any) -> _Checker:
    hints = get_type_hints(hint, include_extras=True)
    names = [field.name for field in fields(hint)] if is_dataclass(hint) else list(hints)
    inner = {name: _checker(hints[name]) for name in names}

    def look(value: Any, place: str) -> None:
        if not isinstance(value, dict) or value.keys() != inner.keys():
            _fail(value, place, f"an object with {', '.join(inner)}")
        for name, each in inner.items():
            each(value[name], f"{place}.{name}")

    return look


_TEXT = _scalar(str)
