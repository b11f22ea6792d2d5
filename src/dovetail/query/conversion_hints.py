"""Hints for types that are not converted: the constant or cast to write instead."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from dovetail.errors import QueryError
from dovetail.query.expressions import Expression, Literal
from dovetail.query.zones import moment_literal, session_zone
from dovetail.schema import MICROSECOND, TIMESTAMP, TIMESTAMP_NTZ, is_integer, is_numeric, type_name

CASTS = "supported casts: between numbers, between dates and timestamps, and from integers, decimals, booleans and dates to string"
_STRING = pa.string()
_KINDS = "timestamp is an instant, timestamp_ntz a wall-clock reading: declare both columns as one kind"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def comparison_hint(left: Expression, right: Expression) -> str:
    """Return the hint for two expressions that have no common type."""
    pair = (left.type, right.type)
    if MICROSECOND in pair:
        other = right if left.type == MICROSECOND else left
        return _interval_hint(other)
    if _STRING in pair:
        text, other = (left, right) if left.type == _STRING else (right, left)
        if pa.types.is_temporal(other.type):
            return _moment_hint(text, other.type)
        if is_numeric(other.type) and isinstance(text, Literal) and re.fullmatch(r"-?\d+(\.\d+)?", str(text.value)):
            return f"write a number without quotes: {text.value}"
        if is_integer(other.type) or pa.types.is_decimal(other.type) or pa.types.is_boolean(other.type):
            return f"to compare as text, CAST the {type_name(other.type)} AS STRING"
    if {TIMESTAMP, TIMESTAMP_NTZ} == set(pair):
        constant, other = (left, right) if isinstance(left, Literal) else (right, left)
        return _other_kind(constant, other.type) if isinstance(constant, Literal) else _KINDS
    if any(map(pa.types.is_timestamp, pair)) and any(map(is_numeric, pair)):
        return "numbers are no times: write a constant as TIMESTAMP '2026-01-31 12:30:00', and make times of a column first"
    return "convert one of them before it enters the stream"


def cast_hint(expression: Expression) -> str:
    """Return the hint for a CAST that is not supported."""
    is_text = isinstance(expression, Literal) and isinstance(expression.value, str)
    return "write a constant of that type, e.g. 5, 1.5 or TRUE" if is_text else CASTS


def interval_cast_hint(value: object) -> str:
    """Return the hint for a CAST to interval; `value` is the text of a constant, or None."""
    return f"write INTERVAL '{value}'" if value else "write INTERVAL 5 MINUTES, or subtract two timestamps"


def _interval_hint(other: Expression) -> str:
    if isinstance(other, Literal) and isinstance(other.value, str):
        return f"write INTERVAL {other.value!r}"
    if isinstance(other, Literal) and is_numeric(other.type):
        return f"a length of time needs a unit: write INTERVAL {other.value} SECONDS"
    return "a difference of times is compared with an interval: b.ts - a.ts < INTERVAL 5 MINUTES"


def _moment_hint(text: Expression, dtype: pa.DataType) -> str:
    """Return the constant of a type, with the user's own text where it is one."""
    name, value = type_name(dtype).upper(), "2024-01-31"
    if isinstance(text, Literal):
        try:
            moment_literal(str(text.value), dtype)
            value = str(text.value)
        except QueryError:
            pass
    return f"write a constant as {name} '{value}'; strings are not converted implicitly"


def _other_kind(constant: Literal, dtype: pa.DataType) -> str:
    """Return a timestamp constant of the other kind, with or without a time zone."""
    name, value = type_name(dtype).upper(), "2026-01-31 12:30:00"
    if isinstance(constant.value, int) and not isinstance(constant.value, bool):
        zone = session_zone().zone if constant.type.tz is not None else UTC
        try:
            moment = (_EPOCH + timedelta(microseconds=constant.value)).astimezone(zone)
            value = str(moment.replace(tzinfo=None))
        except (OverflowError, ValueError):
            pass
    elif isinstance(constant.value, date):
        value = str(constant.value)
    return f"write {name} '{value}': the other side has {'no time zone' if dtype.tz is None else 'a time zone'}"
