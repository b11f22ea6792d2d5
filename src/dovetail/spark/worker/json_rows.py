"""Rows as JSON texts, column by column.

Values are as Spark's `from_json` reads them. Only nested values and a few rare types are converted one by one.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = "[\\x00-\\x1f]"
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds; other times are numbers."""


def json_rows(table: pa.Table) -> pa.Array:
    """Return each row of a table as the text of a JSON object."""
    pieces: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        before = ", " if pieces else "{"
        pieces += [f"{before}{json.dumps(name, ensure_ascii=False)}: ", _json_values(column.combine_chunks())]
    texts: pa.Array = pc.binary_join_element_wise(*pieces, "}", "")
    return texts


def _json_values(values: pa.Array) -> pa.Array:
    """Return each value as JSON text; NULL is `null`."""
    return pc.fill_null(_texts(values), "null")


def _texts(values: pa.Array) -> pa.Array:
    types, dtype = pa.types, values.type
    if types.is_integer(dtype) or types.is_boolean(dtype) or types.is_decimal(dtype):
        return values.cast(pa.string())
    if types.is_float32(dtype) or types.is_float64(dtype):
        text = values.cast(pa.string())
        for number, name in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
            text = pc.if_else(pc.equal(text, number), name, text)
        return text
    if types.is_date32(dtype):
        return _quoted(values.cast(pa.string()))
    if types.is_timestamp(dtype):
        return _times(values)
    if types.is_string(dtype) or types.is_large_string(dtype):
        return _escaped(values.cast(pa.string()))
    return pa.array(
        [None if value is None else json.dumps(value, default=_plain) for value in values.to_pylist()], pa.string()
    )


def _times(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    in_years = pc.and_(pc.greater_equal(micros, _FIRST), pc.less_equal(micros, _LAST))
    local = pc.if_else(in_years, micros, 0).cast(pa.timestamp("us"))
    text = pc.strftime(local, format="%Y-%m-%dT%H:%M:%S" + ("Z" if values.type.tz is not None else ""))
    return pc.if_else(in_years, _quoted(text), micros.cast(pa.string()))


def _escaped(values: pa.Array) -> pa.Array:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8
        readable = [
            None if v is None else v.decode(errors="backslashreplace") for v in values.cast(pa.binary()).to_pylist()
        ]
        values = pa.array(readable, pa.string())
    for text, escape in _ESCAPES.items():
        values = pc.replace_substring(values, text, escape)
    if pc.any(pc.match_substring_regex(values, _CONTROL)).as_py():
        for code in range(32):
            values = pc.replace_substring(values, chr(code), f"\\u{code:04x}")
    return _quoted(values)


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _plain(value: object) -> object:
    """Return a value that JSON has in place of one that it lacks."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
