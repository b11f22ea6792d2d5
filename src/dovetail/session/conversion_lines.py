"""Lines that convert a column before it is pushed, written for the library that the data is from."""

from __future__ import annotations

import pyarrow as pa

from dovetail.schema import stored_type

_PANDAS_TYPES = {pa.float64(): "float64", pa.float32(): "float32", pa.string(): "str", pa.bool_(): "bool"}
_POLARS_TYPES = {
    pa.float64(): "pl.Float64",
    pa.float32(): "pl.Float32",
    pa.string(): "pl.String",
    pa.bool_(): "pl.Boolean",
    pa.date32(): "pl.Date",
}


def conversion_line(field: pa.Field, actual: pa.DataType, origin: str) -> str:
    """Return the hint with the line that converts a column of type `actual` to its declared type."""
    name, declared, given = field.name, field.type, stored_type(actual)
    if pa.types.is_integer(declared) and pa.types.is_integer(given):
        return f"declare the column {name!r} as {_arrow_type(given)}, which holds these values"
    if not pa.types.is_timestamp(declared):
        return _write(name, origin, *_casts(name, declared))
    if pa.types.is_timestamp(given):
        same_kind = (given.tz is None) == (declared.tz is None)
        return _write(name, origin, *(_rounded(name, declared) if same_kind else _other_zone(name, given)))
    if pa.types.is_integer(given):
        line = _write(name, origin, *_from_epoch(name, declared))
        return f"for milliseconds since 1970 {line}; for other units replace 'ms' by 's', 'us' or 'ns'"
    if pa.types.is_string(given) or pa.types.is_large_string(given):
        return f"{_write(name, origin, *_parsed(name, declared))}; {_null_for_damaged(name, declared, origin)}"
    return _write(name, origin, *_casts(name, declared))


def event_time_hint(name: str, actual: pa.DataType, origin: str) -> str:
    """Return the hint that makes an event time of a column that is no timestamp."""
    if pa.types.is_floating(actual):
        return f"for seconds since 1970 {_write(name, origin, *_from_seconds(name))}"
    return conversion_line(pa.field(name, pa.timestamp("us", tz="UTC")), actual, origin)


def _write(name: str, origin: str, pandas: str, polars: str, arrow: str) -> str:
    """Return the line for a library that replaces a column by an expression in it."""
    if origin == "pandas":
        return f"write df[{name!r}] = {pandas}"
    if origin == "polars":
        return f"write df = df.with_columns({polars})"
    return f"write table = table.set_column(table.column_names.index({name!r}), {name!r}, {arrow})"


def _casts(name: str, declared: pa.DataType) -> tuple[str, str, str]:
    is_integer = pa.types.is_integer(declared)
    # With a capital letter the type holds NULLs, because of which pandas reads integers as floats.
    pandas = _PANDAS_TYPES.get(declared, str(declared).replace("i", "I").replace("uI", "UI"))
    number = f"pl.{'UI' if pa.types.is_unsigned_integer(declared) else 'I'}nt{declared.bit_width}" if is_integer else ""
    polars = _POLARS_TYPES.get(declared, number or "pl.String")
    return (
        f"df[{name!r}]{'.astype(float).round()' if is_integer else ''}.astype({pandas!r})",
        f"pl.col({name!r}).cast({polars})",
        f"table[{name!r}].cast({_arrow_type(declared)}{', safe=False' if is_integer else ''})",
    )


def _rounded(name: str, declared: pa.DataType) -> tuple[str, str, str]:
    unit = declared.unit
    return (
        f"df[{name!r}].dt.floor({unit!r})",
        f"pl.col({name!r}).dt.truncate({'1' + unit!r})",
        f"table[{name!r}].cast({_arrow_type(declared)}, safe=False)",
    )


def _other_zone(name: str, given: pa.DataType) -> tuple[str, str, str]:
    """Return expressions that add the zone UTC, or remove a zone and keep the wall-clock reading."""
    zone = "'UTC'" if given.tz is None else "None"
    arrow = (
        f"pc.assume_timezone(table[{name!r}], 'UTC')" if given.tz is None else f"pc.local_timestamp(table[{name!r}])"
    )
    return f"df[{name!r}].dt.tz_localize({zone})", f"pl.col({name!r}).dt.replace_time_zone({zone})", arrow


def _from_epoch(name: str, declared: pa.DataType) -> tuple[str, str, str]:
    is_zoned = declared.tz is not None
    return (
        f"pd.to_datetime(df[{name!r}], unit='ms'{', utc=True' if is_zoned else ''})",
        f"pl.from_epoch({name!r}, 'ms'){'.dt.replace_time_zone(' + repr('UTC') + ')' if is_zoned else ''}",
        f"table[{name!r}].cast({_arrow_type(pa.timestamp('ms', declared.tz))})",
    )


def _parsed(name: str, declared: pa.DataType) -> tuple[str, str, str]:
    is_zoned = declared.tz is not None
    zone = "time_zone='UTC'" if is_zoned else ""
    return (
        f"pd.to_datetime(df[{name!r}]{', utc=True' if is_zoned else ''})",
        f"pl.col({name!r}).str.to_datetime({zone})",
        f"table[{name!r}].cast({_arrow_type(declared)})",
    )


def _null_for_damaged(name: str, declared: pa.DataType, origin: str) -> str:
    """Return how to read texts that are no times as NULL."""
    if origin in ("pandas", "polars"):
        return f"to read damaged values as NULL, add {'errors=' + repr('coerce') if origin == 'pandas' else 'strict=False'}"
    text = f"pc.strptime(table[{name!r}], format='%Y-%m-%dT%H:%M:%SZ', unit='us', error_is_null=True)"
    expression = text if declared.tz is None else f"pc.assume_timezone({text}, 'UTC')"
    return f"to read damaged values as NULL, use {expression} with the format of your texts"


def _from_seconds(name: str) -> tuple[str, str, str]:
    """Return expressions for seconds since 1970 with a fraction."""
    return (
        f"pd.to_datetime(df[{name!r}], unit='s', utc=True).dt.round('us')",
        f"pl.from_epoch((pl.col({name!r}) * 1e6).round().cast(pl.Int64), 'us').dt.replace_time_zone('UTC')",
        f"pc.round(pc.multiply(table[{name!r}], 1e6)).cast(pa.int64()).cast(pa.timestamp('us', tz='UTC'))",
    )


def _arrow_type(dtype: pa.DataType) -> str:
    """Return the expression that makes a type."""
    if pa.types.is_timestamp(dtype):
        return f"pa.timestamp({dtype.unit!r})" if dtype.tz is None else f"pa.timestamp({dtype.unit!r}, tz={dtype.tz!r})"
    if pa.types.is_decimal(dtype):
        return f"pa.{dtype}"
    if pa.types.is_nested(dtype) or pa.types.is_duration(dtype) or pa.types.is_time(dtype):
        return "declared_schema.field(name).type"
    return {
        pa.float64(): "pa.float64()",
        pa.float32(): "pa.float32()",
        pa.bool_(): "pa.bool_()",
        pa.date32(): "pa.date32()",
    }.get(dtype, f"pa.{dtype}()")
