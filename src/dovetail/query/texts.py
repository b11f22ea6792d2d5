"""String functions: their argument types, and the typed calls they become. Rules as in `functions`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dovetail.errors import QueryError
from dovetail.query.expressions import Call, Expression, Literal
from dovetail.query.functions import casts_to_text, coerce
from dovetail.schema import is_integer, type_name

_STRING = pa.string()
_INT = pa.int32()
_TO_THE_END = 2**31 - 1


def text_call(operation: str, arguments: Sequence[Expression]) -> Call:
    """Return a call of `lower`, `upper`, `trim`, `concat` or `like`, whose arguments must be strings."""
    dtype = pa.bool_() if operation == "like" else _STRING
    return Call(operation, tuple(_text(argument, operation) for argument in arguments), dtype)


def length(argument: Expression) -> Call:
    if argument.type != pa.binary():
        argument = _text(argument, "length")
    return Call("length", (argument,), _INT)


def substring(text: Expression, start: Expression, size: Expression | None) -> Call:
    size = size if size is not None else Literal(_TO_THE_END, _INT)
    for position in (start, size):
        if not is_integer(position.type):
            raise QueryError(f"SUBSTRING needs whole numbers, not {type_name(position.type)}", "count from 1")
    return Call("substring", (_text(text, "substring"), coerce(start, _INT), coerce(size, _INT)), _STRING)


def _text(argument: Expression, operation: str) -> Expression:
    if argument.type != _STRING and not pa.types.is_null(argument.type):
        hint = "write CAST(x AS STRING)" if casts_to_text(argument.type) else "use a string column"
        raise QueryError(f"{operation.upper()} needs a string, not {type_name(argument.type)}", hint)
    return coerce(argument, _STRING)
