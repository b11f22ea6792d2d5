"""Data as JSON and back, by types: those of a class's fields, or any that says what JSON from elsewhere must be.

Dataclasses are objects; tuples, named tuples and sets are lists; mappings by anything but text are lists of pairs. Where a field
may hold one of several classes, the object says which (`is`). Fields that do not count in comparisons are left out, and so is None
where a field is `optional`; a field that is missing has its default. What is read is made by the classes' own constructors, which
check it.

Types are written as Python's own: `str`, `int`, `float`, `bool`, unions, `Literal`, collections, `TypedDict` (a dict with just these
keys), `Any`, `object` for a constant of SQL, and `Annotated[int, (low, high)]` for a range. A number may be infinite, but never NaN;
a text can be written as UTF-8. Anything else is a `StateError` that names the place.
"""

from __future__ import annotations

import base64
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from datetime import date
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from dovetail.errors import StateError

_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
"""Reads a value; told where it stands."""

LARGEST = 1 << 62
Count = Annotated[int, (0, LARGEST >> 2)]
Time = Annotated[int, (-LARGEST, LARGEST)]
Size = Annotated[float, (0, LARGEST)]
Positive = Annotated[float, (5e-324, LARGEST)]

_PLAIN = {str, int, float, bool, type(None)}
_TAGGED = {"Column", "Literal", "Call", "TimeWindow", "CountWindow", "StoredWindow"}
"""Classes that stand where others may."""
_CONSTANTS: tuple[tuple[type, Callable[[Any], str], Callable[[str], Any]], ...] = (
    (Decimal, str, Decimal),
    (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    (date, date.isoformat, date.fromisoformat),
)
"""Values of constants that JSON does not know."""


def optional() -> Any:
    """A field that is None unless it is given, and then left out."""
    return field(default=None, metadata={"optional": True})


# -- writing ------------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Write a value as JSON can hold it."""
    if hasattr(value, "__dataclass_fields__"):
        pairs = [(name, to_json(getattr(value, name)), skip) for name, skip in _written(value.__class__)]
        written = {name: each for name, each, skip in pairs if not skip or each is not None}
        return {"is": type(value).__name__, **written} if type(value).__name__ in _TAGGED else written
    if isinstance(value, tuple | list):
        return value if all(type(each) in _PLAIN for each in value) else [to_json(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return [[to_json(key), to_json(each)] for key, each in value.items()]
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, pa.DataType):
        return _type_text(value)
    if isinstance(value, pa.Schema):
        return base64.b64encode(value.serialize()).decode()
    for kind, write, _ in _CONSTANTS:
        if type(value) is kind:
            return {"is": kind.__name__, "value": write(value)}
    return value


@cache
def _written(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The names of a class's fields, and whether None is left out."""
    return tuple((each.name, "optional" in each.metadata) for each in fields(kind) if each.compare)


@cache
def _type_text(dtype: pa.DataType) -> str:
    try:
        if pa.type_for_alias(str(dtype)) == dtype:
            return str(dtype)
    except ValueError:
        pass
    return base64.b64encode(pa.schema([("", dtype)]).serialize()).decode()


# -- reading ------------------------------------------------------------------------------------------------------------------


def from_json(kind: type[_T], stored: Any, place: str | None = None) -> _T:
    """Read what `to_json` wrote of a value of class `kind`; `place` says where it stands."""
    known: Any = kind
    read: _T = _reader(known)(stored, place or kind.__name__)
    return read


def _refuse(stored: Any, place: str, expected: str) -> NoReturn:
    shown = repr(stored)
    raise StateError(f"{place} is {shown if len(shown) < 80 else shown[:80] + '...'}; expected {expected}")


@cache
def _reader(hint: Any) -> _Reader:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda stored, _: stored
    if hint is object:
        return _constant
    if hint is pa.Schema:
        return lambda stored, _: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
    if hint is pa.DataType:
        return lambda stored, place: _type_of(_TEXT(stored, place))
    if is_typeddict(hint) or hasattr(hint, "__dataclass_fields__"):
        return _record(hint)
    if hasattr(hint, "_fields"):
        return _fixed(hint._make, get_type_hints(hint, include_extras=True).values())
    if origin is Annotated:
        return _ranged(_reader(args[0]), *args[1])
    if origin is Literal:
        return lambda stored, place: stored if stored in args else _refuse(stored, place, f"one of {args}")
    if origin in (Union, types.UnionType):
        return _either(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _fixed(tuple, args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*args)
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset):
        return _items(tuple if origin is Sequence else origin, args[0])
    return _scalar(hint)


@cache
def _type_of(text: str) -> pa.DataType:
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type


def _constant(stored: Any, place: str) -> object:
    if isinstance(stored, dict):
        return next(read for kind, _, read in _CONSTANTS if kind.__name__ == stored["is"])(stored["value"])
    return stored if type(stored) in _PLAIN else _refuse(stored, place, "a constant")


def _scalar(hint: type) -> _Reader:
    allowed = (int, float) if hint is float else (hint,)

    def read(stored: Any, place: str) -> Any:
        if type(stored) not in allowed:
            _refuse(stored, place, hint.__name__)
        if hint is float and stored != stored:  # noqa: PLR0124 - NaN
            _refuse(stored, place, "a number")
        if hint is int and abs(stored) >> 64:
            _refuse(stored, place, "a number of at most 64 bits")
        if hint is str and not stored.isascii():
            stored.encode()  # raises an error unless it can be written as UTF-8
        return stored

    return read


_TEXT = _scalar(str)


def _ranged(inner: _Reader, low: float, high: float) -> _Reader:
    def read(stored: Any, place: str) -> Any:
        value = inner(stored, place)
        return value if low <= value <= high else _refuse(stored, place, f"{low} to {high}")

    return read


def _either(choices: tuple[Any, ...]) -> _Reader:
    """One of several classes by its tag, or the first of the others that fits, or None."""
    tagged = {each.__name__: each for each in choices if isinstance(each, type) and each.__name__ in _TAGGED}
    others = [each for each in choices if each not in tagged.values() and each is not type(None)]

    def read(stored: Any, place: str) -> Any:
        if stored is None and type(None) in choices:
            return None
        if isinstance(stored, dict) and stored.get("is") in tagged:
            return _reader(tagged[stored["is"]])(stored, place)
        for choice in others[:-1]:
            try:
                return _reader(choice)(stored, place)
            except StateError:
                continue
        return _reader(others[-1])(stored, place) if others else _refuse(stored, place, f"one of {', '.join(tagged)}")

    return read


def _items(make: Callable[[Iterable[Any]], Any], hint: Any) -> _Reader:
    inner = _reader(hint)

    def read(stored: Any, place: str) -> Any:
        return make(inner(each, f"{place}[{number}]") for number, each in enumerate(_listed(stored, place)))

    return read


def _fixed(make: Callable[[Iterable[Any]], Any], hints: Iterable[Any]) -> _Reader:
    inner = [_reader(hint) for hint in hints]

    def read(stored: Any, place: str) -> Any:
        if len(_listed(stored, place)) != len(inner):
            _refuse(stored, place, f"a list of {len(inner)}")
        return make(
            each(item, f"{place}[{number}]") for number, (each, item) in enumerate(zip(inner, stored, strict=True))
        )

    return read


def _listed(stored: Any, place: str) -> Sequence[Any]:
    return stored if isinstance(stored, list | tuple) else _refuse(stored, place, "a list")


def _mapping(key: Any, value: Any) -> _Reader:
    if key is not str:
        pairs = _items(dict, tuple[key, value])
        return lambda stored, place: pairs(stored or [], place)  # an empty one has no keys to tell by
    inner = _reader(value)

    def read(stored: Any, place: str) -> Any:
        if not isinstance(stored, dict):
            _refuse(stored, place, "an object")
        return {_TEXT(name, place): inner(each, f"{place}.{name}") for name, each in stored.items()}

    return read


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        names, needed, make = set(hints), set(hints), dict
    else:
        names, make = {name for name, _ in _written(kind)}, kind
        needed = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING} & names

    def read(stored: Any, place: str) -> Any:
        if not isinstance(stored, dict) or not needed <= stored.keys() or stored.keys() - names - {"is"}:
            _refuse(stored, place, f"an object with {', '.join(sorted(names))}")
        return make(**{name: _reader(hints[name])(stored[name], f"{place}.{name}") for name in stored if name != "is"})

    return read
