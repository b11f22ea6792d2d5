"""A check that a value has the type that a `TypedDict` promises, keys included."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict


def assert_typed(value: Any, hint: Any, path: str = "metrics") -> None:
    """Fail unless a value is of a type: a `TypedDict`, dict, list, union or plain class, or nested ones."""
    origin, args = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        assert (
            {name for name, of in hints.items() if get_origin(of) is not NotRequired} <= value.keys() <= hints.keys()
        ), path
        for name, item in value.items():
            assert_typed(item, hints[name], f"{path}.{name}")
    elif origin is NotRequired:
        assert_typed(value, args[0], path)
    elif origin is UnionType:
        assert_typed(value, next(of for of in args if (of is type(None)) == (value is None)), path)
    elif origin is dict:
        for name, item in value.items():
            assert_typed(name, args[0], path)
            assert_typed(item, args[1], f"{path}[{name!r}]")
    elif origin in (list, Sequence):
        assert isinstance(value, list | tuple), path
        for number, item in enumerate(value):
            assert_typed(item, args[0], f"{path}[{number}]")
    elif hint is not Any:
        assert isinstance(value, int | float if hint is float else hint), (path, value, hint)
