"""JSON serialization driven by type annotations, with validation when reading.

Dataclasses become objects; tuples, named tuples and sets become lists; mappings with keys other than strings become lists of pairs.
Where a field may hold one of several classes, the object has the tag of its class under `is`. Fields with `compare=False` are omitted,
and so is None in an `optional` field; a missing field takes its default. A field is stored under its name, or under the `name` in its
metadata: stored data outlive names. Reading calls the classes' constructors, so their checks run.

Types are Python's own: `str`, `int`, `float`, `bool`, unions, `Literal`, collections, `TypedDict` (a dict with exactly these keys),
`Any`, `object` for a SQL constant, and `Annotated[int, (low, high)]` for a range. Numbers may be infinite but not NaN; strings must be
encodable as UTF-8. Anything else raises a `StateError` that names the path of the value.
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
"""Converts a JSON value; the second argument is its path, for error messages."""

LARGEST = 1 << 62
Count = Annotated[int, (0, LARGEST >> 2)]
Time = Annotated[int, (-LARGEST, LARGEST)]
Size = Annotated[float, (0, LARGEST)]
Positive = Annotated[float, (5e-324, LARGEST)]

_PLAIN = {str, int, float, bool, type(None)}
_TAGS = {name: name for name in ("Column", "Literal", "Call", "TimeWindow", "CountWindow")}
_TAGS["MaterializedWindow"] = "StoredWindow"
"""Tags of the classes that share a field with other classes; stored data outlive names."""
_CONSTANTS: tuple[tuple[type, Callable[[Any], str], Callable[[str], Any]], ...] = (
    (Decimal, str, Decimal),
    (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    (date, date.isoformat, date.fromisoformat),
)
"""SQL constants without a JSON type: class, writer, reader."""


def optional() -> Any:
    """Return a dataclass field with the default None, omitted from JSON while it is None."""
    return field(default=None, metadata={"optional": True})


# -- writing ------------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Convert a value to plain data that `json.dumps` accepts."""
    if hasattr(value, "__dataclass_fields__"):
        items = [(key, to_json(getattr(value, name)), skip) for name, key, skip in _json_fields(value.__class__)]
        record = {key: item for key, item, skip_none in items if not skip_none or item is not None}
        return {"is": _TAGS[type(value).__name__], **record} if type(value).__name__ in _TAGS else record
    if isinstance(value, tuple | list):
        return value if all(type(item) in _PLAIN for item in value) else [to_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return [[to_json(key), to_json(item)] for key, item in value.items()]
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, pa.DataType):
        return _type_text(value)
    if isinstance(value, pa.Schema):
        return base64.b64encode(value.serialize()).decode()
    for kind, write, _ in _CONSTANTS:
        if type(value) is kind:
            return {"is": kind.__name__, "value": write(value)}
    return value


@cache
def _json_fields(kind: Any) -> tuple[tuple[str, str, bool], ...]:
    """Return the names of a class's serialized fields, their names in JSON, and whether None is omitted."""
    return tuple(
        (item.name, item.metadata.get("name", item.name), "optional" in item.metadata)
        for item in fields(kind)
        if item.compare
    )


@cache
def _type_text(dtype: pa.DataType) -> str:
    try:
        if pa.type_for_alias(str(dtype)) == dtype:
            return str(dtype)
    except ValueError:
        pass
    return base64.b64encode(pa.schema([("", dtype)]).serialize()).decode()


# -- reading ------------------------------------------------------------------------------------------------------------------


def from_json(kind: type[_T], data: Any, path: str | None = None) -> _T:
    """Convert data written by `to_json` back to a value of type `kind`; errors name its `path`."""
    hint: Any = kind
    value: _T = _reader(hint)(data, path or kind.__name__)
    return value


def _reject(data: Any, path: str, expected: str) -> NoReturn:
    shown = repr(data)
    raise StateError(f"{path} is {shown if len(shown) < 80 else shown[:80] + '...'}; expected {expected}")


@cache
def _reader(hint: Any) -> _Reader:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda data, _: data
    if hint is object:
        return _constant
    if hint is pa.Schema:
        return lambda data, _: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data)))
    if hint is pa.DataType:
        return lambda data, path: _parse_type(_read_text(data, path))
    if is_typeddict(hint) or hasattr(hint, "__dataclass_fields__"):
        return _record(hint)
    if hasattr(hint, "_fields"):
        return _fixed(hint._make, get_type_hints(hint, include_extras=True).values())
    if origin is Annotated:
        return _ranged(_reader(args[0]), *args[1])
    if origin is Literal:
        return lambda data, path: data if data in args else _reject(data, path, f"one of {args}")
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _fixed(tuple, args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*args)
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset):
        return _items(tuple if origin is Sequence else origin, args[0])
    return _scalar(hint)


@cache
def _parse_type(text: str) -> pa.DataType:
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type


def _constant(data: Any, path: str) -> object:
    if isinstance(data, dict):
        return next(read for kind, _, read in _CONSTANTS if kind.__name__ == data["is"])(data["value"])
    return data if type(data) in _PLAIN else _reject(data, path, "a constant")


def _scalar(hint: type) -> _Reader:
    allowed = (int, float) if hint is float else (hint,)

    def read(data: Any, path: str) -> Any:
        if type(data) not in allowed:
            _reject(data, path, hint.__name__)
        if hint is float and data != data:  # noqa: PLR0124 - NaN
            _reject(data, path, "a number")
        if hint is int and abs(data) >> 64:
            _reject(data, path, "a number of at most 64 bits")
        if hint is str and not data.isascii():
            data.encode()  # raises unless it can be encoded as UTF-8
        return data

    return read


_read_text = _scalar(str)


def _ranged(inner: _Reader, low: float, high: float) -> _Reader:
    def read(data: Any, path: str) -> Any:
        value = inner(data, path)
        return value if low <= value <= high else _reject(data, path, f"{low} to {high}")

    return read


def _union(choices: tuple[Any, ...]) -> _Reader:
    """Return a reader of None, of a tagged class by its tag, or of the first untagged choice that fits."""
    tagged = {_TAGS[kind.__name__]: kind for kind in choices if isinstance(kind, type) and kind.__name__ in _TAGS}
    untagged = [kind for kind in choices if kind not in tagged.values() and kind is not type(None)]

    def read(data: Any, path: str) -> Any:
        if data is None and type(None) in choices:
            return None
        if isinstance(data, dict) and data.get("is") in tagged:
            return _reader(tagged[data["is"]])(data, path)
        for choice in untagged[:-1]:
            try:
                return _reader(choice)(data, path)
            except StateError:
                continue
        return _reader(untagged[-1])(data, path) if untagged else _reject(data, path, f"one of {', '.join(tagged)}")

    return read


def _items(make: Callable[[Iterable[Any]], Any], hint: Any) -> _Reader:
    inner = _reader(hint)

    def read(data: Any, path: str) -> Any:
        return make(inner(item, f"{path}[{index}]") for index, item in enumerate(_check_list(data, path)))

    return read


def _fixed(make: Callable[[Iterable[Any]], Any], hints: Iterable[Any]) -> _Reader:
    readers = [_reader(hint) for hint in hints]

    def read(data: Any, path: str) -> Any:
        if len(_check_list(data, path)) != len(readers):
            _reject(data, path, f"a list of {len(readers)}")
        pairs = enumerate(zip(readers, data, strict=True))
        return make(reader(item, f"{path}[{index}]") for index, (reader, item) in pairs)

    return read


def _check_list(data: Any, path: str) -> Sequence[Any]:
    return data if isinstance(data, list | tuple) else _reject(data, path, "a list")


def _mapping(key: Any, value: Any) -> _Reader:
    if key is not str:
        pairs = _items(dict, tuple[key, value])
        return lambda data, path: pairs(data or [], path)  # an empty mapping is written as {}
    inner = _reader(value)

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, dict):
            _reject(data, path, "an object")
        return {_read_text(name, path): inner(item, f"{path}.{name}") for name, item in data.items()}

    return read


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        make, names, required = dict, {name: name for name in hints}, set(hints)
    else:
        make, names = kind, {key: name for name, key, _ in _json_fields(kind)}
        without_default = {item.name for item in fields(kind) if item.default is item.default_factory is MISSING}
        required = {key for key, name in names.items() if name in without_default}

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, dict) or not required <= data.keys() or data.keys() - names.keys() - {"is"}:
            _reject(data, path, f"an object with {', '.join(sorted(names))}")
        values = {names[key]: _reader(hints[names[key]])(data[key], f"{path}.{key}") for key in data if key != "is"}
        return make(**values)

    return read
