"""Lines that convert a column before it is pushed, written for the library that the data is from."""

from __future__ import annotations

import re
from typing import TypeAlias

import pyarrow as pa

from dovetail.errors import with_imports
from dovetail.schema import stored_type

_Lines: TypeAlias = tuple[str, str, str]
"""Expressions for a column in pandas, Polars and Arrow."""
_CONVERTIBLE = {
    "int": ("float", "text", "bool"),
    "float": ("float", "decimal", "text", "bool"),
    "decimal": ("float", "text"),
    "text": ("int", "float", "decimal", "bool", "date", "binary"),
    "bool": ("int", "float", "text"),
    "binary": ("text",),
    "date": ("text", "timestamp"),
    "timestamp": ("date",),
}
"""By the kind of the declared type, the kinds that one expression converts in all three libraries."""

_OFFSET = re.compile(r":\d.*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$")


def conversion_line(field: pa.Field, actual: pa.DataType, origin: str, values: pa.ChunkedArray | None = None) -> str:
    """Return the hint with the line that converts a column of type `actual` to its declared type.

    Where no single line does, the hint is to declare the other type. Text is converted to times by the form of its `values`.
    """
    hint = _conversion_line(field, actual, origin, values)
    return with_imports(hint) if "write " in hint else hint


def _conversion_line(field: pa.Field, actual: pa.DataType, origin: str, values: pa.ChunkedArray | None) -> str:
    name, declared, given = field.name, field.type, stored_type(actual)
    if pa.types.is_integer(declared) and pa.types.is_integer(given):
        return f"declare the column {name!r} as {_arrow_type(given)}, which holds these values"
    if pa.types.is_timestamp(declared):
        return _time_line(field, given, origin, values)
    lines = _casts(name, declared, given)
    if lines is None:
        return f"declare the column {name!r} as {_arrow_type(given)}, or convert it before it is pushed"
    line = _write(name, origin, *lines)
    if _kind(declared) == "text" and _kind(given) in {"int", "float"}:
        return f"{line}; if it was text in a file, read it as text instead, because numbers lose '+' and leading zeros"
    return line


def _time_line(field: pa.Field, given: pa.DataType, origin: str, values: pa.ChunkedArray | None) -> str:
    """Return the hint with the line that makes times of a column of type `given`."""
    name, declared = field.name, field.type
    if pa.types.is_timestamp(given):
        same_kind = (given.tz is None) == (declared.tz is None)
        return _write(name, origin, *(_rounded(name, declared) if same_kind else _other_zone(name, given)))
    match _kind(given):
        case "int":
            line = _write(name, origin, *_from_epoch(name, declared))
            return f"for milliseconds since 1970 {line}; for other units replace 'ms' by 's', 'us' or 'ns'"
        case "float" if declared.tz is not None:
            return f"for seconds since 1970 {_write(name, origin, *_from_seconds(name))}"
        case "text":
            has_offset = _has_offset(values)
            line = _write(name, origin, *_parsed(name, declared, has_offset=has_offset))
            return f"{line}; {_null_for_damaged(name, declared, origin, has_offset=has_offset)}"
        case "date":
            return _write(name, origin, *_from_date(name, declared))
    return f"convert the column {name!r} to {_arrow_type(declared)} before it is pushed"


def _kind(dtype: pa.DataType) -> str:
    """Return the kind of a type in `_CONVERTIBLE`; empty if it has none."""
    types = pa.types
    kinds = {
        "int": (types.is_integer,),
        "float": (types.is_float32, types.is_float64),
        "decimal": (types.is_decimal128,),
        "text": (types.is_string, types.is_large_string),
        "bool": (types.is_boolean,),
        "binary": (types.is_binary, types.is_large_binary),
        "date": (types.is_date32,),
        "timestamp": (types.is_timestamp,),
    }
    return next((kind for kind, tests in kinds.items() if any(is_type(dtype) for is_type in tests)), "")


def event_time_hint(name: str, actual: pa.DataType, origin: str, values: pa.ChunkedArray | None = None) -> str:
    """Return the hint that makes an event time of a column that is no timestamp."""
    return conversion_line(pa.field(name, pa.timestamp("us", tz="UTC")), actual, origin, values)


def _write(name: str, origin: str, pandas: str, polars: str, arrow: str) -> str:
    """Return the line for a library that replaces a column by an expression in it."""
    if origin == "pandas":
        return f"write df[{name!r}] = {pandas}"
    if origin == "polars":
        return f"write df = df.with_columns({polars})"
    return f"write table = table.set_column(table.column_names.index({name!r}), {name!r}, {arrow})"


def _casts(name: str, declared: pa.DataType, given: pa.DataType) -> _Lines | None:
    kind, given_kind = _kind(declared), _kind(given)
    if given_kind not in _CONVERTIBLE.get(kind, ()) or (given_kind == "timestamp" and given.tz not in (None, "UTC")):
        return None
    is_rounded = given_kind == "float" and kind == "int"
    return (
        f"df[{name!r}]{_pandas_cast(declared, kind, given_kind)}",
        f"pl.col({name!r}){_polars_cast(declared, kind, given_kind)}",
        f"table[{name!r}].cast({_arrow_type(declared)}{', safe=False' if is_rounded else ''})",
    )


def _pandas_cast(declared: pa.DataType, kind: str, given: str) -> str:
    """Return the end of the expression in pandas; NULL stays NULL."""
    match given, kind:
        case (
            "float",
            "int",
        ):  # with a capital letter the type holds NULLs, because of which pandas reads integers as floats
            number = str(declared)
            return f".round().astype({number[:2].upper() + number[2:] if number[0] == 'u' else number.capitalize()!r})"
        case "float", "float":
            return f".astype('float{declared.bit_width}')"
        case "int" | "float" | "decimal" | "date", "text":
            return ".astype('string')"
        case "int" | "float", "bool":
            return ".astype('boolean')"
        case "timestamp", "date":
            return ".dt.date"
        case "text", "decimal":  # directly, pandas reads it as floats first
            return f".astype(pd.ArrowDtype(pa.string())).astype(pd.ArrowDtype({_arrow_type(declared)}))"
    return f".astype(pd.ArrowDtype({_arrow_type(declared)}))"


def _polars_cast(declared: pa.DataType, kind: str, given: str) -> str:
    """Return the end of the expression in Polars."""
    match given, kind:
        case "text", "bool":
            return ".str.to_lowercase().replace_strict({'true': True, 'false': False})"
        case "text", "date":
            return ".str.to_date()"
        case "timestamp", "date":
            return ".dt.date()"
        case _, "int":
            sign = "U" if pa.types.is_unsigned_integer(declared) else ""
            return f".cast(pl.{sign}Int{declared.bit_width})"
        case _, "float":
            return f".cast(pl.Float{declared.bit_width})"
        case _, "decimal":
            return f".cast(pl.Decimal({declared.precision}, {declared.scale}))"
    return f".cast(pl.{ {'text': 'String', 'bool': 'Boolean', 'binary': 'Binary'}[kind] })"


def _rounded(name: str, declared: pa.DataType) -> _Lines:
    unit = declared.unit
    return (
        f"df[{name!r}].dt.floor({unit!r})",
        f"pl.col({name!r}).dt.truncate({'1' + unit!r})",
        f"table[{name!r}].cast({_arrow_type(declared)}, safe=False)",
    )


def _other_zone(name: str, given: pa.DataType) -> _Lines:
    """Return expressions that add the zone UTC, or remove a zone and keep the wall-clock reading."""
    zone = "'UTC'" if given.tz is None else "None"
    arrow = (
        f"pc.assume_timezone(table[{name!r}], 'UTC')" if given.tz is None else f"pc.local_timestamp(table[{name!r}])"
    )
    return f"df[{name!r}].dt.tz_localize({zone})", f"pl.col({name!r}).dt.replace_time_zone({zone})", arrow


def _from_epoch(name: str, declared: pa.DataType) -> _Lines:
    is_zoned = declared.tz is not None
    return (
        f"pd.to_datetime(df[{name!r}], unit='ms'{', utc=True' if is_zoned else ''})",
        f"pl.from_epoch({name!r}, 'ms'){'.dt.replace_time_zone(' + repr('UTC') + ')' if is_zoned else ''}",
        f"table[{name!r}].cast({_arrow_type(pa.timestamp('ms', declared.tz))})",
    )


def _has_offset(values: pa.ChunkedArray | None) -> bool:
    """Whether the first text ends with a zone offset, such as Z; assumed where no values are known."""
    if values is None:
        return True
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    texts = values.drop_null()
    return len(texts) > 0 and _OFFSET.search(texts[0].as_py()) is not None


def _parsed(name: str, declared: pa.DataType, *, has_offset: bool) -> _Lines:
    """Return expressions that read text as times; text without an offset is in UTC."""
    column, is_zoned = f"table[{name!r}]", declared.tz is not None
    text = f"{column}.cast({_arrow_type(pa.timestamp(declared.unit, 'UTC' if has_offset else None))})"
    if not has_offset:
        arrow = f"pc.assume_timezone({text}, 'UTC')" if is_zoned else text
    else:
        arrow = text if is_zoned else f"{text}.cast({_arrow_type(declared)})"
    utc, polars_utc = (", utc=True", "time_zone='UTC'") if is_zoned or has_offset else ("", "")
    pandas_end = polars_end = ""
    if has_offset and not is_zoned:
        pandas_end, polars_end = ".dt.tz_localize(None)", ".dt.replace_time_zone(None)"
    return (
        f"pd.to_datetime(df[{name!r}]{utc}){pandas_end}",
        f"pl.col({name!r}).str.to_datetime({polars_utc}){polars_end}",
        arrow,
    )


def _from_date(name: str, declared: pa.DataType) -> _Lines:
    """Return expressions that make dates the times of their midnight."""
    is_zoned = declared.tz is not None
    return (
        f"pd.to_datetime(df[{name!r}]{', utc=True' if is_zoned else ''})",
        f"pl.col({name!r}).cast(pl.Datetime('us')){'.dt.replace_time_zone(' + repr('UTC') + ')' if is_zoned else ''}",
        f"table[{name!r}].cast({_arrow_type(declared)})",
    )


def _null_for_damaged(name: str, declared: pa.DataType, origin: str, *, has_offset: bool) -> str:
    """Return how to read texts that are no times as NULL."""
    if origin in ("pandas", "polars"):
        return f"to read damaged values as NULL, add {'errors=' + repr('coerce') if origin == 'pandas' else 'strict=False'}"
    form = "%Y-%m-%dT%H:%M:%S" + "Z" * has_offset
    text = f"pc.strptime(table[{name!r}], format={form!r}, unit='us', error_is_null=True)"
    expression = text if declared.tz is None else f"pc.assume_timezone({text}, 'UTC')"
    return f"to read damaged values as NULL, use {expression} with the format of your texts"


def _from_seconds(name: str) -> _Lines:
    """Return expressions for seconds since 1970 with a fraction."""
    return (
        f"pd.to_datetime(df[{name!r}], unit='s', utc=True).dt.round('us')",
        f"pl.from_epoch((pl.col({name!r}) * 1e6).round().cast(pl.Int64), 'us').dt.replace_time_zone('UTC')",
        f"pc.round(pc.multiply(table[{name!r}], 1e6)).cast(pa.int64()).cast(pa.timestamp('us', tz='UTC'))",
    )


def _arrow_type(dtype: pa.DataType) -> str:
    """Return the expression that makes a type; the text of one with other types inside."""
    types = pa.types
    if types.is_timestamp(dtype) and dtype.tz is not None:
        return f"pa.timestamp({dtype.unit!r}, tz={dtype.tz!r})"
    if types.is_timestamp(dtype) or types.is_duration(dtype) or types.is_time(dtype):
        return f"pa.{str(dtype).partition('[')[0]}({dtype.unit!r})"
    if types.is_fixed_size_binary(dtype) and not types.is_decimal(dtype):
        return f"pa.binary({dtype.byte_width})"
    if types.is_nested(dtype):
        return str(dtype)
    names = {pa.float64(): "float64()", pa.float32(): "float32()", pa.float16(): "float16()", pa.bool_(): "bool_()"}
    text = str(dtype).partition("[")[0]
    return f"pa.{names.get(dtype) or (text if types.is_decimal(dtype) else f'{text}()')}"
