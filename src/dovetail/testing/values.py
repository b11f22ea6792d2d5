"""Evaluate expressions on plain Python values, independently of the engine.

This module implements every operation of `dovetail.query.expressions.OPERATIONS` a second time, without Arrow, NumPy or
Numba, so that the oracle can contradict the engine. Values are int, float, Decimal, str, bytes, bool, `datetime.date`; a
timestamp or a duration of any unit is an int of microseconds (nanoseconds are floored); nested payload is lists and
dicts; NULL is None. Data never raises: a value that does not fit its type becomes None.

Python's own operators would be wrong here: `%` takes the sign of the divisor, `==` makes NaN differ from itself, and
Decimal arithmetic silently rounds to 28 digits.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any, TypeAlias

import pyarrow as pa

from dovetail.errors import QueryError
from dovetail.query.expressions import Column, Expression, Literal
from dovetail.schema import stored_type, type_name

Row: TypeAlias = Mapping[str, Any]
"""One tuple: its value in each column."""

_EPOCH = date(1970, 1, 1)
_MICROS_PER_DAY = 86_400_000_000
_MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


def evaluate(expression: Expression, rows: Mapping[str, Row]) -> Any:
    """Evaluate an expression where each alias stands for one row.

    >>> from dovetail.query.expressions import Call
    >>> half = Call("divide", (Column("a", "x", pa.float64()), Literal(2.0, pa.float64())), pa.float64())
    >>> evaluate(half, {"a": {"x": 3.0}})
    1.5
    """
    if isinstance(expression, Column):
        return rows[expression.alias][expression.name]
    if isinstance(expression, Literal):
        return expression.value
    operation = expression.operation
    arguments = [evaluate(argument, rows) for argument in expression.arguments]
    if operation in _NULL_AWARE:
        return _NULL_AWARE[operation](*arguments)
    if any(argument is None for argument in arguments):
        return None
    if operation == "cast":
        return cast_value(arguments[0], expression.arguments[0].type, expression.type)
    if operation in _ARITHMETIC:
        with localcontext(_EXACT):
            return fit(_ARITHMETIC[operation](*arguments), expression.type)
    return _ON_VALUES[operation](*arguments)


def fit(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value to `dtype`: rounded where the type rounds, None where it is out of range."""
    if value is None:
        return None
    types = pa.types
    if types.is_integer(dtype) or types.is_timestamp(dtype) or types.is_duration(dtype):
        bits, signed = dtype.bit_width, not types.is_unsigned_integer(dtype)
        low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
        return value if low <= value < high else None
    if types.is_float32(dtype):
        return _single(value)
    if types.is_decimal(dtype):
        return _decimal(value, dtype)
    return value


def _decimal(value: Decimal, dtype: pa.DataType) -> Decimal | None:
    limit = Decimal(10) ** (dtype.precision - dtype.scale)
    if value.copy_abs() >= limit:
        return None
    rounded = value.quantize(Decimal(1).scaleb(-dtype.scale), context=_EXACT)
    if rounded.copy_abs() >= limit:
        return None
    return rounded or rounded.copy_abs()  # a decimal has no minus zero


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def cast_value(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """Cast a value that is not NULL between SQL types (or from a stored type to its SQL type)."""
    types = pa.types
    numeric = isinstance(value, (bool, int, float, Decimal)) and not _is_time(source)
    if types.is_null(source) or source == target or (_is_time(source) and source.id == target.id):
        return value
    if types.is_string(target) or types.is_large_string(target):
        return _text(value, source, target)
    if (types.is_binary(target) or types.is_large_binary(target)) and isinstance(value, (str, bytes)):
        return value.encode() if isinstance(value, str) else value
    if types.is_date(target) and (types.is_timestamp(source) or types.is_date(source)):
        return value if isinstance(value, date) else _EPOCH + timedelta(days=value // _MICROS_PER_DAY)
    if types.is_timestamp(target) and isinstance(value, date):
        return (value - _EPOCH).days * _MICROS_PER_DAY
    if types.is_boolean(target) and numeric:
        return value != 0
    if types.is_integer(target) and numeric:
        return fit(int(value), target) if _finite(value) else None
    if types.is_floating(target) and numeric:
        return fit(float(value), target)
    if types.is_decimal(target) and numeric:
        # Spark converts a double by its shortest text, so that 1.005 rounds as written.
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return fit(exact, target) if _finite(value) else None
    raise _no_cast(source, target)


def _no_cast(source: pa.DataType, target: pa.DataType) -> QueryError:
    return QueryError(f"the oracle knows no cast from {type_name(source)} to {type_name(target)}")


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype))


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _text(value: Any, source: pa.DataType, target: pa.DataType) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(fit(value, source), "f")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int) and pa.types.is_integer(source):
        return str(value)
    raise _no_cast(source, target)


def sort_key(value: Any) -> tuple[Any, ...]:
    """Return a key that orders values of one type as Spark does: NULL first, NaN last, -0.0 equal to 0.0."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    if isinstance(value, list):
        return (1, tuple(map(sort_key, value)))
    if isinstance(value, dict):
        return (1, tuple(map(sort_key, value.values())))
    return (1, value)


def _and(*values: bool | None) -> bool | None:
    return False if False in values else None if None in values else True


def _or(*values: bool | None) -> bool | None:
    return True if True in values else None if None in values else False


def _in(value: Any, *constants: Any) -> bool | None:
    if value is None:
        return None
    return _or(*(None if constant is None else sort_key(constant) == sort_key(value) for constant in constants))


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), key=sort_key, default=None)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), key=sort_key, default=None)


def _divide(left: Any, right: Any) -> float | None:
    return None if right == 0 else float(left) / float(right)


def _modulo(left: Any, right: Any) -> Any:
    if right == 0:
        return None
    if isinstance(left, float) or isinstance(right, float):
        return math.nan if math.isinf(left) else math.fmod(left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return left % right  # Decimal's % has the sign of the dividend, unlike int's
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _substring(text: Any, start: int, length: int) -> Any:
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = first + length
    return text[max(first, 0) : max(end, 0)] if length > 0 else text[:0]


def _like(text: str, pattern: str) -> bool:
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append(re.escape(next(characters, "\\")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _concat(*texts: Any) -> Any:
    return texts[0][:0].join(texts)


_NULL_AWARE: dict[str, Callable[..., Any]] = {
    "null_safe_eq": lambda left, right: sort_key(left) == sort_key(right),
    "in": _in,
    "and": _and,
    "or": _or,
    "is_null": lambda value: value is None,
    "coalesce": _coalesce,
    "if": lambda condition, then, otherwise: then if condition else otherwise,
    "least": _least,
    "greatest": _greatest,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "divide": _divide,
    "modulo": _modulo,
    "negate": lambda value: -value,
    "abs": abs,
}
_ON_VALUES: dict[str, Callable[..., Any]] = {
    "eq": lambda left, right: sort_key(left) == sort_key(right),
    "ne": lambda left, right: sort_key(left) != sort_key(right),
    "lt": lambda left, right: sort_key(left) < sort_key(right),
    "le": lambda left, right: sort_key(left) <= sort_key(right),
    "gt": lambda left, right: sort_key(left) > sort_key(right),
    "ge": lambda left, right: sort_key(left) >= sort_key(right),
    "not": lambda value: not value,
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "length": len,
    "concat": _concat,
    "substring": _substring,
    "like": _like,
}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as Python values, times in microseconds.

    >>> rows_of(pa.table({"t": pa.array([1], pa.timestamp("s")), "k": pa.array([None], pa.int32())}))
    [{'t': 1000000, 'k': None}]
    """
    names = table.schema.names
    columns = [_in_micros(stored_values(table.column(name)), table.schema.field(name).type) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def stored_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values without loss: as in `rows_of`, but times in the unit of their type."""
    dtype = stored_type(column.type)
    column = column if column.type == dtype else column.cast(dtype)
    if pa.types.is_nested(dtype):
        return [_plain(scalar) for scalar in column]
    if pa.types.is_time32(dtype):
        return list(column.cast(pa.int32()).to_pylist())
    if _is_time(dtype) or pa.types.is_time64(dtype):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_float16(dtype):
        return [None if value is None else float(value) for value in column.to_pylist()]
    return list(column.to_pylist())


def _plain(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar, pa.MapScalar)):
        return [_plain(item) for item in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _plain(item) for name, item in scalar.items()}
    if isinstance(scalar, (pa.TimestampScalar, pa.DurationScalar, pa.Time32Scalar, pa.Time64Scalar)):
        return scalar.value
    return scalar.as_py()


def _in_micros(values: list[Any], dtype: pa.DataType) -> list[Any]:
    if not _is_time(dtype) or dtype.unit == "us":
        return values
    if dtype.unit == "ns":
        return [None if value is None else value // 1000 for value in values]
    return [None if value is None else value * _MICROS_PER_UNIT[dtype.unit] for value in values]


def arrow_column(values: list[Any], dtype: pa.DataType) -> pa.Array:
    """Return computed values as an Arrow array; times are int microseconds, as in `rows_of`."""
    if not _is_time(dtype):
        return pa.array(values, dtype)
    micros = pa.array(values, pa.int64()).cast(
        pa.timestamp("us") if pa.types.is_timestamp(dtype) else pa.duration("us")
    )
    return micros.cast(dtype)
