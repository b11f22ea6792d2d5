"""Evaluate expressions over Arrow columns, with the semantics of `dovetail.query.expressions`.

Arrow's compute functions do the work; this module adapts them where Spark differs: NaN equals NaN and is larger than any number, and
where Arrow would raise (overflow, division by zero, a value out of a cast's range, invalid UTF-8) the result is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from operator import add, mul, neg, sub
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import BoolArray
from dovetail.engine.storage.buffers import fixed_values, storage_dtype
from dovetail.query.expressions import Call, Column, Expression, Literal

_FIRST_DATE, _LAST_DATE = pa.scalar(date.min, pa.date32()), pa.scalar(date.max, pa.date32())
Resolve: TypeAlias = Callable[[Column], pa.Array]
Operation: TypeAlias = Callable[[Call, list[pa.Array]], pa.Array]


def evaluate(expression: Expression, resolve: Resolve, length: int) -> pa.Array:
    """Return `length` values of the expression's type; `resolve` returns the values of a column."""
    if isinstance(expression, Column):
        return resolve(expression)
    if isinstance(expression, Literal):
        return _repeat(expression, length)
    if expression.operation == "in":
        return _is_in(evaluate(expression.arguments[0], resolve, length), expression.arguments[1:])
    arguments = [evaluate(argument, resolve, length) for argument in expression.arguments]
    return _flat(_OPERATIONS[expression.operation](expression, arguments))


def is_true(values: pa.Array) -> BoolArray:
    """Convert booleans to a NumPy mask; NULL becomes False."""
    mask: BoolArray = (values.fill_null(False) if values.null_count else values).to_numpy(zero_copy_only=False)
    return mask


def _flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _repeat(literal: Literal, length: int) -> pa.Array:
    if literal.value is None:
        return pa.nulls(length, literal.type)
    return pa.repeat(_array([literal.value], literal.type)[0], length)


def _array(values: list[object], dtype: pa.DataType) -> pa.Array:
    """Build an array of the values of `Literal`s, in which times are integer microseconds."""
    temporal = pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype)
    return pa.array(values, pa.int64()).cast(dtype) if temporal else pa.array(values, dtype)


# -- comparisons ----------------------------------------------------------------------------------------------------------------


def _nan(values: pa.Array) -> pa.Array | None:
    """Return the mask of NaNs of a floating-point array; None if there are none."""
    if not pa.types.is_floating(values.type):
        return None
    mask = pc.is_nan(values)
    return mask if pc.any(mask).as_py() else None


def _equal(_: Call, arguments: list[pa.Array]) -> pa.Array:
    left, right = arguments
    same = pc.equal(left, right)
    left_nan, right_nan = _nan(left), _nan(right)
    return same if left_nan is None or right_nan is None else pc.or_(same, pc.and_(left_nan, right_nan))


def _less(left: pa.Array, right: pa.Array) -> pa.Array:
    right_nan = _nan(right)
    below = pc.less(left, right)
    return below if right_nan is None else pc.or_(below, pc.and_(pc.invert(pc.is_nan(left)), right_nan))


def _less_equal(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.invert(_less(right, left))


def _null_safe_equal(call: Call, arguments: list[pa.Array]) -> pa.Array:
    left, right = arguments
    both = pc.and_(left.is_null(), right.is_null())
    return pc.or_(pc.fill_null(_equal(call, arguments), False), both)


def _is_in(values: pa.Array, constants: Sequence[Expression]) -> pa.Array:
    listed = [constant.value for constant in constants if isinstance(constant, Literal) and constant.value is not None]
    if pa.types.is_floating(values.type) and 0.0 in listed:
        listed += [0.0, -0.0]  # Arrow's hash table distinguishes them
    contained = pc.is_in(values, value_set=_array(listed, values.type), skip_nulls=True)
    unknown = pa.scalar(None, pa.bool_())
    if any(isinstance(constant, Literal) and constant.value is None for constant in constants):
        contained = pc.if_else(contained, contained, unknown)
    return pc.if_else(values.is_valid(), contained, unknown) if values.null_count else contained


def _extreme(call: Call, arguments: list[pa.Array], better: Callable[[pa.Array, pa.Array], pa.Array]) -> pa.Array:
    chosen = arguments[0]
    for candidate in arguments[1:]:
        is_better = pc.or_(pc.fill_null(better(candidate, chosen), False), chosen.is_null())
        chosen = _flat(pc.if_else(is_better, candidate, chosen))
    return chosen.cast(call.type)


# -- arithmetic -----------------------------------------------------------------------------------------------------------------


def _checked(function: Callable[..., pa.Array], exact: Callable[..., int | Decimal | None]) -> Operation:
    """Return an operation that uses Arrow's checked function, and NULL where that overflows.

    A batch with an overflow is computed again with `exact`, value by value, which is slow.
    """

    def operate(call: Call, arguments: list[pa.Array]) -> pa.Array:
        try:
            result = function(*arguments)
            return result if result.type == call.type else _cast_to(result, call.type)
        except pa.ArrowInvalid:
            return _exactly(call, arguments, exact)

    return operate


def _exactly(call: Call, arguments: list[pa.Array], exact: Callable[..., int | Decimal | None]) -> pa.Array:
    rows = zip(*(_python_values(argument) for argument in arguments), strict=True)
    with localcontext() as context:
        context.prec = 100
        return _array([None if None in row else _fitting(exact(*row), call.type) for row in rows], call.type)


def _python_values(values: pa.Array) -> list[object]:
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        values = values.cast(pa.int64())
    listed: list[object] = values.to_pylist()
    return listed


def _fitting(value: int | Decimal | None, dtype: pa.DataType) -> int | Decimal | None:
    if value is None:
        return None
    if pa.types.is_decimal(dtype):
        try:
            value = Decimal(value).quantize(Decimal(1).scaleb(-dtype.scale), ROUND_HALF_UP)
        except InvalidOperation:
            return None
        return value if abs(value) < Decimal(10) ** (dtype.precision - dtype.scale) else None
    limit = 1 << (dtype.bit_width - 1)
    return value if -limit <= value < limit else None


def _divide(_: Call, arguments: list[pa.Array]) -> pa.Array:
    left, right = arguments
    return pc.divide(left, pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), right))


def _modulo(call: Call, arguments: list[pa.Array]) -> pa.Array:
    left, right = arguments
    if pa.types.is_decimal(call.type):
        return _exactly(call, arguments, lambda a, b: None if b == 0 else a - b * int(a / b))
    valid = pc.and_(left.is_valid(), right.is_valid()).to_numpy(zero_copy_only=False)
    zero = pa.scalar(0, call.type)
    a = pc.fill_null(left, zero).to_numpy(zero_copy_only=False)
    b = pc.fill_null(right, zero).to_numpy(zero_copy_only=False)
    nonzero = b != 0
    with np.errstate(invalid="ignore"):
        remainder = np.fmod(a, np.where(nonzero, b, b.dtype.type(1)))
    # fmod of NaN is NaN; a divisor of -1 gives 0 without the overflow of a division.
    return pa.array(remainder, call.type, mask=~(valid & nonzero))


# -- casts ----------------------------------------------------------------------------------------------------------------------


def _cast_to(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    source = values.type
    types = pa.types
    if source == dtype:
        return values
    if types.is_floating(source) and (types.is_integer(dtype) or types.is_decimal(dtype)):
        return _from_floating(values, dtype)
    if types.is_decimal(source) and types.is_integer(dtype):
        return _decimal_to_integer(values, dtype)
    if types.is_decimal(dtype):
        return _to_decimal(values, dtype)
    if types.is_integer(source) and types.is_integer(dtype):
        return _narrow(values, dtype)
    if types.is_temporal(source) and types.is_temporal(dtype):
        return _cast_time(values, dtype)
    if types.is_decimal(source) and types.is_floating(dtype):
        return _decimal_to_floating(values).cast(dtype, safe=False)
    if types.is_date(source) and types.is_string(dtype):
        values = _cast_to(values, pa.date32())
        printable = pc.and_(pc.greater_equal(values, _FIRST_DATE), pc.less_equal(values, _LAST_DATE))
        values = pc.if_else(printable, values, pa.scalar(None, values.type))  # Arrow would write an error text
    return values.cast(dtype, safe=False)


def _rescaled(values: pa.Array, dtype: pa.DataType, multiplier: int, divisor: int) -> pa.Array:
    """Convert times to another unit, rounding down; times out of range are NULL."""
    ticks = fixed_values(values, storage_dtype(values.type)).astype(np.int64)
    valid = (
        np.ones(len(values), np.bool_) if not values.null_count else values.is_valid().to_numpy(zero_copy_only=False)
    )
    if multiplier > 1:
        limit = np.iinfo(np.int64).max // multiplier
        valid = valid & (ticks <= limit) & (ticks >= -limit)
        ticks = np.where(valid, ticks, 0) * multiplier
    ticks = ticks // divisor
    if pa.types.is_date32(dtype):
        days = np.iinfo(np.int32)
        valid = valid & (ticks >= days.min) & (ticks <= days.max)
        return pa.array(np.where(valid, ticks, 0), pa.int32(), mask=~valid).cast(dtype)
    return pa.array(ticks, pa.int64(), mask=~valid).cast(dtype)


def _unit_size(dtype: pa.DataType) -> tuple[int, int]:
    """Return the unit of a time type in microseconds, as a fraction."""
    if pa.types.is_date32(dtype):
        return 86_400_000_000, 1
    if pa.types.is_date64(dtype):
        return 1_000, 1
    return {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}[dtype.unit]


def _cast_time(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    multiplier, divisor = _unit_size(values.type)
    target, _ = _unit_size(dtype)
    if multiplier >= target:
        return _rescaled(values, dtype, multiplier // target, divisor)
    return _rescaled(values, dtype, 1, target // multiplier)


def _narrow(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    if dtype.bit_width >= values.type.bit_width:
        return values.cast(dtype)
    limit = 1 << (dtype.bit_width - 1)
    fits = pc.and_(pc.greater_equal(values, -limit), pc.less(values, limit))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(dtype)


def _from_floating(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(dtype):
        numbers = (
            None if v is None or not np.isfinite(v) else Decimal(repr(v)) for v in values.cast(pa.float64()).to_pylist()
        )
        return pa.array([_fitting(number, dtype) for number in numbers], dtype)
    limit = float(1 << (dtype.bit_width - 1))
    whole = pc.trunc(values.cast(pa.float64()))
    fits = pc.and_(pc.greater_equal(whole, -limit), pc.less(whole, limit))
    return pc.if_else(fits, whole, pa.scalar(None, pa.float64())).cast(dtype)


def _decimal_to_integer(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    try:
        return pc.trunc(values).cast(pa.decimal128(max(1, values.type.precision - values.type.scale), 0)).cast(dtype)
    except pa.ArrowInvalid:
        return pa.array([None if v is None else _fitting(int(v), dtype) for v in values.to_pylist()], dtype)


def _decimal_to_floating(values: pa.Array) -> pa.Array:
    """Return the nearest double. Arrow's own cast can be off by one bit; parsing the decimal text cannot."""
    return values.cast(pa.string()).cast(pa.float64())


def _to_decimal(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    try:
        return values.cast(dtype)
    except pa.ArrowInvalid:
        with localcontext() as context:
            context.prec = 100
            return pa.array([_fitting(value, dtype) for value in values.to_pylist()], dtype)


# -- text -----------------------------------------------------------------------------------------------------------------------


def _text(operation: Operation) -> Operation:
    """Return an operation on characters that is NULL for invalid UTF-8, which Arrow allows in strings.

    A batch with such strings is computed again after decoding its non-ASCII strings in Python.
    """

    def operate(call: Call, arguments: list[pa.Array]) -> pa.Array:
        try:
            return operation(call, arguments)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            text, *rest = arguments
            return operation(call, [pc.if_else(pa.array(_valid_utf8(text)), text, pa.scalar(None, text.type)), *rest])

    return operate


def _valid_utf8(text: pa.Array) -> BoolArray:
    mask: BoolArray = pc.fill_null(pc.string_is_ascii(text), True).to_numpy(zero_copy_only=False).copy()
    non_ascii = np.flatnonzero(~mask)
    for index, value in zip(non_ascii, text.cast(pa.binary()).take(non_ascii).to_pylist(), strict=True):
        mask[index] = _is_utf8(value)
    return mask


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _length(_: Call, arguments: list[pa.Array]) -> pa.Array:
    (values,) = arguments
    return (pc.binary_length if pa.types.is_binary(values.type) else pc.utf8_length)(values).cast(pa.int32())


def _concat(_: Call, arguments: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*arguments, pa.scalar("", pa.string()), null_handling="emit_null")


def _substring(call: Call, arguments: list[pa.Array]) -> pa.Array:
    text, starts, lengths = arguments
    if _is_constant(call.arguments[1]) and _is_constant(call.arguments[2]) and len(text):
        start, length = starts[0].as_py(), lengths[0].as_py()
        if start is None or length is None:
            return pa.nulls(len(text), call.type)
        if start >= 0:
            begin = max(start - 1, 0)
            return pc.utf8_slice_codeunits(text, begin, begin + max(length, 0))
    rows = zip(text.to_pylist(), starts.to_pylist(), lengths.to_pylist(), strict=True)
    return pa.array([None if None in row else _substring_of(*row) for row in rows], call.type)


def _is_constant(expression: Expression) -> bool:
    return isinstance(expression, Literal) or (
        isinstance(expression, Call) and all(map(_is_constant, expression.arguments))
    )


def _substring_of(text: str, start: int, length: int) -> str:
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(begin, 0) : max(begin + length, 0)]


def _like(call: Call, arguments: list[pa.Array]) -> pa.Array:
    pattern = call.arguments[1]
    if not isinstance(pattern, Literal) or pattern.value is None:
        return pa.nulls(len(arguments[0]), pa.bool_())
    return pc.match_like(arguments[0], pattern.value)


_OPERATIONS: dict[str, Operation] = {
    "add": _checked(pc.add_checked, add),
    "subtract": _checked(pc.subtract_checked, sub),
    "multiply": _checked(pc.multiply_checked, mul),
    "divide": _divide,
    "modulo": _modulo,
    "negate": _checked(pc.negate_checked, neg),
    "abs": _checked(pc.abs_checked, abs),
    "eq": _equal,
    "ne": lambda call, a: pc.invert(_equal(call, a)),
    "lt": lambda _, a: _less(a[0], a[1]),
    "le": lambda _, a: _less_equal(a[0], a[1]),
    "gt": lambda _, a: _less(a[1], a[0]),
    "ge": lambda _, a: _less_equal(a[1], a[0]),
    "null_safe_eq": _null_safe_equal,
    "and": lambda _, a: pc.and_kleene(a[0], a[1]),
    "or": lambda _, a: pc.or_kleene(a[0], a[1]),
    "not": lambda _, a: pc.invert(a[0]),
    "is_null": lambda _, a: a[0].is_null(),
    "coalesce": lambda call, a: pc.coalesce(*a).cast(call.type),
    "if": lambda call, a: pc.if_else(pc.fill_null(a[0], False), a[1], a[2]).cast(call.type),
    "least": lambda call, a: _extreme(call, a, _less),
    "greatest": lambda call, a: _extreme(call, a, lambda candidate, chosen: _less(chosen, candidate)),
    "lower": _text(lambda _, a: pc.utf8_lower(a[0])),
    "upper": _text(lambda _, a: pc.utf8_upper(a[0])),
    "trim": _text(lambda _, a: pc.utf8_trim(a[0], " ")),
    "length": _length,
    "concat": _concat,
    "substring": _text(_substring),
    "like": _like,
    "cast": lambda call, a: _cast_to(a[0], call.type),
}
