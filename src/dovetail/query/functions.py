"""Operators and functions: their argument types, and the typed calls they become.

Every function here takes bound expressions and returns one with explicit casts (see `expressions`). Constants are cast
here rather than in every batch, where that loses nothing. Rules are Spark's in ANSI mode, with exceptions: strings are
never converted silently; a decimal result that does not fit 38 digits is rejected instead of losing scale; `/` always
gives a double; `%` of decimals keeps their common type; and casts that Spark allows but joins hardly need are rejected.
Errors carry no position; the caller adds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal, localcontext

import pyarrow as pa

from dovetail.errors import QueryError
from dovetail.query.conversion_hints import cast_hint, comparison_hint
from dovetail.query.expressions import Call, Column, Expression, Literal, cast, depth
from dovetail.query.zones import moment_literal, session_zone
from dovetail.schema import (
    LARGEST_DECIMAL,
    MICROSECOND,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    as_decimal,
    common_type,
    is_integer,
    is_numeric,
    sql_type,
    type_name,
)

FUNCTION_NAMES = (
    "ABS",
    "COALESCE",
    "CONCAT",
    "GREATEST",
    "IF",
    "IFNULL",
    "LEAST",
    "LENGTH",
    "LOWER",
    "NULLIF",
    "NVL",
    "SUBSTR",
    "SUBSTRING",
    "TRIM",
    "UPPER",
)
MAX_DEPTH = 100
"""Maximum nesting depth of operations. AND, OR, IN and || with many operands stay shallow."""
DEPTH_HINT = "compute a part of it in a column before the stream enters the join"
_BOOLEAN = pa.bool_()
_STRING = pa.string()
_DAY = 86_400_000_000


def check_depth(expression: Expression) -> Expression:
    """Return the expression; raise if it is nested too deeply for the stack of a process that runs it."""
    levels = depth(expression)
    if levels > MAX_DEPTH:
        raise QueryError(f"this nests {levels} operations; at most {MAX_DEPTH} are allowed", DEPTH_HINT)
    return expression


def with_sql_type(expression: Expression) -> Expression:
    """Return a bound expression that can be computed with: a column is cast to its SQL type."""
    if not isinstance(expression, Column):
        return expression
    dtype = sql_type(expression.type)
    if dtype is None:
        raise QueryError(
            f"column {expression} has type {expression.type}: it can be selected but not compared or computed with",
            "select it as it is, or add a simpler column to the stream",
        )
    return cast(expression, dtype)


def integer_literal(value: int) -> Literal:
    """Return an integer constant in the smallest of int, bigint and decimal that holds it."""
    for dtype in (pa.int32(), pa.int64()):
        if _fits(value, dtype):
            return Literal(value, dtype)
    return decimal_literal(Decimal(value))


def decimal_literal(value: Decimal) -> Literal:
    digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
    scale = max(0, -int(exponent))
    precision = max(len(digits), scale)
    if precision > LARGEST_DECIMAL:
        raise QueryError(f"number {value} has more than {LARGEST_DECIMAL} digits", "write it as a double, e.g. 1.5e40")
    return Literal(value, pa.decimal128(precision, scale))


def coerce(expression: Expression, dtype: pa.DataType) -> Expression:
    """Convert an expression to another type: constants at once, the rest by a cast."""
    if expression.type == dtype:
        return expression
    if pa.types.is_null(expression.type):
        return Literal(None, dtype)
    folded = _folded(expression, dtype) if isinstance(expression, Literal) else None
    if folded is not None:
        return folded
    if {expression.type, dtype} == {pa.date32(), TIMESTAMP}:
        session_zone().reject_for_columns(f"converting {type_name(expression.type)} to {type_name(dtype)}")
    return cast(expression, dtype)


def _folded(literal: Literal, dtype: pa.DataType) -> Literal | None:
    value = literal.value
    if value is None:
        return Literal(None, dtype)
    if pa.types.is_timestamp(dtype) and isinstance(value, date):
        return Literal(
            session_zone().start_of(value) if dtype.tz is not None else (value - date(1970, 1, 1)).days * _DAY, dtype
        )
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or not is_numeric(literal.type):
        return None
    if is_integer(dtype) and isinstance(value, int) and _fits(value, dtype):
        return Literal(value, dtype)
    if dtype == pa.float64():
        return Literal(float(value), dtype)
    return _folded_decimal(Decimal(value), dtype) if pa.types.is_decimal(dtype) else None


def _fits(value: int, dtype: pa.DataType) -> bool:
    return bool(-(2 ** (dtype.bit_width - 1)) <= value < 2 ** (dtype.bit_width - 1))


def _folded_decimal(value: Decimal, dtype: pa.DataType) -> Literal | None:
    with localcontext() as context:
        context.prec = 2 * LARGEST_DECIMAL
        scaled = value.quantize(Decimal(1).scaleb(-dtype.scale))
        fits = scaled == value and abs(scaled) < Decimal(10) ** (dtype.precision - dtype.scale)
    return Literal(scaled, dtype) if fits else None


def compare(operation: str, left: Expression, right: Expression) -> Call:
    dtype = comparison_type(left, right)
    return Call(operation, (coerce(left, dtype), coerce(right, dtype)), _BOOLEAN)


def membership(subject: Expression, choices: Sequence[Expression]) -> Expression:
    """Return an IN expression over one common type, as in Spark; constants are looked up together."""
    for choice in choices:
        comparison_type(subject, choice)
    dtype = shared_type((subject, *choices), "IN")
    tested = coerce(subject, dtype)
    coerced = [coerce(choice, dtype) for choice in choices]
    constants = [choice for choice in coerced if isinstance(choice, Literal)]
    if len(constants) == 1:
        constants = []
    tests: list[Expression] = [Call("in", (tested, *constants), _BOOLEAN)] if constants else []
    rest = [choice for choice in coerced if not constants or not isinstance(choice, Literal)]
    return logical("or", [*tests, *(Call("eq", (tested, choice), _BOOLEAN) for choice in rest)])


def comparison_type(left: Expression, right: Expression) -> pa.DataType:
    """Return the type in which two expressions are compared, or raise."""
    dtype = common_type(left.type, right.type)
    if dtype is None:
        raise QueryError(
            f"cannot compare {type_name(left.type)} with {type_name(right.type)}",
            comparison_hint(left, right),
        )
    return dtype


def shared_type(expressions: Sequence[Expression], construct: str) -> pa.DataType:
    """Return the common type of all arguments or branches, or raise."""
    dtype, widest = pa.null(), expressions[0]
    for expression in expressions:
        wider = common_type(dtype, expression.type)
        if wider is None:
            raise QueryError(
                f"{construct} mixes {type_name(dtype)} and {type_name(expression.type)}",
                comparison_hint(widest, expression),
            )
        widest = expression if wider != dtype else widest
        dtype = wider
    return dtype


def unify(operation: str, arguments: Sequence[Expression]) -> Call:
    """Return a call of `coalesce`, `least` or `greatest` with all arguments in one type."""
    dtype = shared_type(arguments, operation.upper())
    return Call(operation, tuple(coerce(argument, dtype) for argument in arguments), dtype)


def case_when(branches: Sequence[tuple[Expression, Expression]], otherwise: Expression) -> Expression:
    """Return a CASE expression as nested `if` calls."""
    dtype = shared_type([*(result for _, result in branches), otherwise], "CASE or IF")
    nested = coerce(otherwise, dtype)
    for condition, result in reversed(branches):
        nested = Call("if", (as_boolean(condition, "a condition"), coerce(result, dtype), nested), dtype)
    return nested


def null_if(value: Expression, unwanted: Expression) -> Call:
    return Call("if", (compare("eq", value, unwanted), Literal(None, value.type), value), value.type)


def as_boolean(expression: Expression, role: str) -> Expression:
    """Return the expression, or raise if it is not boolean."""
    if expression.type == _BOOLEAN or pa.types.is_null(expression.type):
        return coerce(expression, _BOOLEAN)
    hint = "write a comparison, e.g. x <> 0" if is_numeric(expression.type) else "write a comparison"
    raise QueryError(f"{role} must be boolean, not {type_name(expression.type)}", hint)


def logical(operation: str, arguments: Sequence[Expression]) -> Expression:
    """Return the AND or OR of any number of arguments, as a balanced tree so that long lists stay shallow."""
    if len(arguments) == 1:
        return as_boolean(arguments[0], f"an operand of {operation.upper()}")
    middle = len(arguments) // 2
    halves = (logical(operation, arguments[:middle]), logical(operation, arguments[middle:]))
    return Call(operation, halves, _BOOLEAN)


def negation(expression: Expression) -> Call:
    return Call("not", (as_boolean(expression, "the operand of NOT"),), _BOOLEAN)


def arithmetic(operation: str, left: Expression, right: Expression) -> Expression:
    types = (left.type, right.type)
    if any(map(pa.types.is_temporal, types)):
        return _time_arithmetic(operation, left, right)
    if not all(is_numeric(dtype) or pa.types.is_null(dtype) for dtype in types):
        raise _not_arithmetic(operation, left, right)
    if operation == "divide" or any(map(pa.types.is_floating, types)):
        dtype = pa.float64() if operation == "divide" else shared_type((left, right), operation)
    elif operation != "modulo" and any(map(pa.types.is_decimal, types)):
        return _decimal_arithmetic(operation, left, right)
    else:
        dtype = shared_type((left, right), operation)
    return Call(operation, (coerce(left, dtype), coerce(right, dtype)), dtype)


def _decimal_arithmetic(operation: str, left: Expression, right: Expression) -> Call:
    left, right = (_in_decimal(side, other) for side, other in ((left, right), (right, left)))
    digits = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
    scale = max(left.type.scale, right.type.scale)
    precision = digits + scale + 1
    if operation == "multiply":
        precision, scale = left.type.precision + right.type.precision + 1, left.type.scale + right.type.scale
    if precision > LARGEST_DECIMAL:
        raise QueryError(
            f"the result of {type_name(left.type)} and {type_name(right.type)} needs {precision} digits; "
            f"a decimal holds {LARGEST_DECIMAL}",
            "cast one side: CAST(x AS DOUBLE), or to a smaller decimal",
        )
    dtype = pa.decimal128(precision, scale)
    sides = (left, right) if operation == "multiply" else (coerce(left, dtype), coerce(right, dtype))
    return Call(operation, sides, dtype)


def _in_decimal(side: Expression, other: Expression) -> Expression:
    """Return a side as a decimal, as in Spark: a constant with its own digits, a column with its type's."""
    if isinstance(side, Literal) and isinstance(side.value, int):
        return decimal_literal(Decimal(side.value))
    return coerce(side, as_decimal(other.type if pa.types.is_null(side.type) else side.type))


def _is_moment(expression: Expression) -> bool:
    return bool(pa.types.is_timestamp(expression.type) or pa.types.is_date(expression.type))


def _time_arithmetic(operation: str, left: Expression, right: Expression) -> Expression:
    if operation == "add" and left.type == MICROSECOND and _is_moment(right):
        left, right = right, left
    if operation in ("add", "subtract") and right.type == MICROSECOND:
        if left.type == MICROSECOND:
            return _interval_arithmetic(operation, left, right)
        if _is_moment(left):
            moment = coerce(left, TIMESTAMP) if pa.types.is_date(left.type) else left
            _reject_calendar_days(moment, right)
            return Call(operation, (moment, right), moment.type)
    if operation == "subtract" and _is_moment(left) and _is_moment(right):
        dtype = comparison_type(left, right)
        dtype = TIMESTAMP_NTZ if pa.types.is_date(dtype) else dtype  # the difference of dates is the same in any zone
        if dtype == TIMESTAMP:
            hint = "compare the times, e.g. a.ts <= b.ts + INTERVAL 1 HOUR"
            session_zone().reject_if_not_fixed("a difference of timestamps is not the time elapsed", hint)
        return Call(operation, (coerce(left, dtype), coerce(right, dtype)), MICROSECOND)
    raise _not_arithmetic(operation, left, right)


def _interval_arithmetic(operation: str, left: Expression, right: Expression) -> Expression:
    if isinstance(left, Literal) and isinstance(right, Literal):
        first, second = left.value, right.value
        if isinstance(first, int) and isinstance(second, int):
            total = first + second if operation == "add" else first - second
            if _fits(total, pa.int64()):
                return Literal(total, MICROSECOND)
    return Call(operation, (left, right), MICROSECOND)


def _reject_calendar_days(moment: Expression, interval: Expression) -> None:
    """Reject adding a day or more: Spark adds calendar days, which are not 24 hours at offset changes."""
    is_short = isinstance(interval, Literal) and isinstance(interval.value, int) and abs(interval.value) < _DAY
    if moment.type == TIMESTAMP and not is_short:
        hint = "add less than a day at a time, ts + INTERVAL 12 HOURS + INTERVAL 12 HOURS"
        session_zone().reject_if_not_fixed("an interval of a day or more is not a fixed length", hint)


def _not_arithmetic(operation: str, left: Expression, right: Expression) -> QueryError:
    types = (left.type, right.type)
    hint = "arithmetic needs numbers"
    if any(map(pa.types.is_temporal, types)):
        hint = "times take intervals: ts + INTERVAL 5 MINUTES, ts1 - ts2"
    elif operation == "add" and _STRING in types:
        hint = "concatenate strings with ||"
    verb = "take the modulo of" if operation == "modulo" else operation
    return QueryError(f"cannot {verb} {type_name(types[0])} and {type_name(types[1])}", hint)


def negate_or_abs(operation: str, argument: Expression) -> Expression:
    """Return a call of `negate` or `abs`, whose argument must be a number or an interval."""
    if not is_numeric(argument.type) and argument.type != MICROSECOND:
        name = "negate" if operation == "negate" else "take ABS of"
        raise QueryError(f"cannot {name} {type_name(argument.type)}", "this needs a number or an interval")
    if operation == "negate" and isinstance(argument, Literal):
        return _negated(argument)
    return Call(operation, (argument,), argument.type)


def _negated(literal: Literal) -> Expression:
    value = literal.value
    if isinstance(value, int) and literal.type in (pa.int32(), pa.int64()):
        return integer_literal(-value)
    if isinstance(value, (int, float)):
        return Literal(-value, literal.type)
    if isinstance(value, Decimal):
        is_whole = value == value.to_integral_value() and literal.type.scale == 0
        return integer_literal(-int(value)) if is_whole else Literal(value.copy_negate(), literal.type)
    return Call("negate", (literal,), literal.type)


def convert(expression: Expression, dtype: pa.DataType) -> Expression:
    """Return an explicit CAST, or raise if it is not supported."""
    source = expression.type
    numeric = is_numeric(source) and is_numeric(dtype)
    to_text = dtype == _STRING and casts_to_text(source)
    to_moment = pa.types.is_date(source) and pa.types.is_timestamp(dtype)
    to_date = pa.types.is_timestamp(source) and pa.types.is_date(dtype)
    if source == dtype or pa.types.is_null(source) or numeric or to_text or to_moment or to_date:
        return coerce(expression, dtype)
    if source == _STRING and isinstance(expression, Literal) and _is_moment(Literal(None, dtype)):
        return moment_literal(str(expression.value), dtype)
    raise QueryError(
        f"cannot cast {type_name(source)} to {type_name(dtype)}",
        cast_hint(expression),
    )


def casts_to_text(dtype: pa.DataType) -> bool:
    """Whether values of a type can be cast to string."""
    kinds = pa.types
    return is_integer(dtype) or kinds.is_decimal(dtype) or kinds.is_boolean(dtype) or kinds.is_date(dtype)


def always_true(expression: Expression) -> bool:
    """Whether an expression without columns is a constant TRUE, e.g. `1 = 1`."""
    if isinstance(expression, Literal):
        return expression.value is True
    if not isinstance(expression, Call):
        return False
    if expression.operation in ("and", "or"):
        combine = all if expression.operation == "and" else any
        return combine(always_true(argument) for argument in expression.arguments)
    values = [argument.value for argument in expression.arguments if isinstance(argument, Literal)]
    return expression.operation == "eq" and len(values) == 2 and values[0] is not None and values[0] == values[1]
