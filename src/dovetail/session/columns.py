"""Columns as text, as Spark's `schema` takes them: `ts timestamp, ad_id bigint`."""

from __future__ import annotations

import re

import pyarrow as pa

from dovetail.errors import SchemaError, listed, suggestion
from dovetail.schema import LARGEST_DECIMAL, TIMESTAMP, TIMESTAMP_NTZ, sql_type, type_name

_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_OTHER_NAMES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "varchar": "string",
    "text": "string",
    "bool": "boolean",
}
_COLUMN = re.compile(r"(`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(\w+)\s*(\(.*\))?", re.DOTALL)
_SIZES = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_COMMA = re.compile(r",(?![^(]*\))(?=(?:[^`]*`[^`]*`)*[^`]*$)")
"""A comma outside parentheses and quoted names."""
_EXAMPLE = "write 'ts timestamp, user_id bigint, amount decimal(10,2)'"


def parse_columns(text: str, stream: str = "") -> pa.Schema:
    """Return the schema that a text means; errors name `stream`, if it is given.

    >>> parse_columns("ts timestamp, ad_id bigint, `the price` decimal(10,2)").types
    [TimestampType(timestamp[us, tz=UTC]), DataType(int64), Decimal128Type(decimal128(10, 2))]
    """
    where = f"stream {stream!r}: " if stream else ""
    return pa.schema([_field(where, part.strip()) for part in _COMMA.split(text)])


def columns_text(schema: pa.Schema) -> str:
    """Return columns as a text that `parse_columns` and Spark read.

    >>> columns_text(pa.schema({"ts": pa.timestamp("us"), "the price": pa.float64()}))
    'ts timestamp_ntz, `the price` double'
    """
    for field in schema:
        if sql_type(field.type) is None:
            raise SchemaError(
                f"column {field.name!r} has type {field.type}, which columns written as text cannot have",
                "leave the column out, or give the stream a pyarrow.Schema",
            )
    return ", ".join(f"{_name_text(field.name)} {type_name(field.type)}" for field in schema)


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"


def _field(where: str, text: str) -> pa.Field:
    parts = _COLUMN.fullmatch(text)
    if parts is None:
        raise SchemaError(f"{where}the columns have {text!r}; each is a name and a type", _EXAMPLE)
    name, kind = parts[1], parts[2].lower()
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    where = f"{where}column {name!r}"
    if kind in ("decimal", "numeric", "dec"):
        return pa.field(name, _decimal(where, parts[3] or "(10,0)"))
    dtype = _TYPES.get(_OTHER_NAMES.get(kind, kind))
    if dtype is None or (parts[3] and kind != "varchar"):
        allowed = [*_TYPES, "decimal(p,s)"]
        hint = suggestion(kind, [*_TYPES, *_OTHER_NAMES, "decimal"], _EXAMPLE)
        raise SchemaError(f"{where} has type {parts[2] + (parts[3] or '')!r}; allowed: {listed(allowed)}", hint)
    return pa.field(name, dtype)


def _decimal(where: str, sizes: str) -> pa.DataType:
    numbers = _SIZES.fullmatch(sizes)
    precision, scale = (int(numbers[1]), int(numbers[2] or 0)) if numbers else (0, 0)
    if not 1 <= precision <= LARGEST_DECIMAL or scale > precision:
        raise SchemaError(f"{where} has type 'decimal{sizes}'", f"decimal(p,s) needs s <= p <= {LARGEST_DECIMAL}")
    return pa.decimal128(precision, scale)
