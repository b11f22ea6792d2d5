"""Stream schemas, and the conversions between declared, stored and SQL types.

A column is *declared* with any Arrow type. It is *stored* with encodings removed (dictionaries, views, run ends). In an expression
it has a *SQL type*, one of Spark's; types without one (nested values, times of day) can be selected but not compared. Coercion
between SQL types follows Spark 4 in ANSI mode, as observed with PySpark 4.3.0, except that a string is never silently converted to a
number or a date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from dovetail.config import is_number
from dovetail.errors import ConfigError, SchemaError, listed, suggestion

MICROSECOND = pa.duration("us")
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
LARGEST_DECIMAL = 38
NUMBER_COLUMN = "dovetail:number"
"""Column that numbers tuples outside an engine when they may be shed. No stream declares it."""
_EXACT_DECIMAL_DIGITS = 18

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_SQL_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    MICROSECOND: "interval",
}
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


@dataclass(frozen=True)
class StreamSchema:
    """A declared stream: its columns, its event time and its progress options."""

    name: str
    columns: pa.Schema
    """Stored types, in declared order."""
    event_time: str
    lateness: int = 0
    """Microseconds that a tuple may lag behind the largest event time of earlier batches."""
    rate: float | None = None
    """Expected tuples per second of event time; None when unknown."""
    progress_by: str | None = None
    """Column that names the partition of a tuple; progress is the minimum over partitions."""
    idle_after: int | None = None
    """Microseconds without progress after which the stream stops delaying expiry in the others."""
    max_ahead: int | None = None
    """Microseconds ahead of the clock beyond which a tuple is dropped."""

    def __post_init__(self) -> None:
        if self.rate is not None and not (is_number(self.rate) and self.rate > 0):
            raise ConfigError(
                f"stream {self.name!r}: rate is {self.rate!r}; allowed are numbers above zero, or None when unknown"
            )
        names = self.columns.names
        if len(set(names)) != len(names):
            repeated = sorted({name for name in names if names.count(name) > 1})
            raise SchemaError(f"stream {self.name!r} declares a column twice: {listed(repeated)}")
        for field in self.columns:
            if _contains(field.type, pa.types.is_union):
                raise SchemaError(
                    f"stream {self.name!r}: column {field.name!r} has type {field.type}; windows cannot hold unions",
                    "leave the column out, or store it as one type",
                )
            if _contains(field.type, _is_extension) and not _can_store_extension(field.type):
                raise SchemaError(
                    f"stream {self.name!r}: column {field.name!r} has type {field.type}, an extension that windows cannot hold",
                    f"declare it as {getattr(field.type, 'storage_type', 'its storage type')}, and push its storage",
                )
        for option, column in (("event_time", self.event_time), ("progress_by", self.progress_by)):
            if column not in names and (column is not None or option == "event_time"):
                raise SchemaError(
                    f"stream {self.name!r}: {option}={column!r} is not a column; columns: {listed(names)}",
                    suggestion(column, names, self._column_hint(option)),
                )
        if self.progress_by == self.event_time:
            raise SchemaError(
                f"stream {self.name!r}: progress_by={self.progress_by!r} is the event time",
                "use a column that names the file or partition that a tuple is from, or leave progress_by out",
            )
        if self.progress_by is not None and sql_type(self.columns.field(self.progress_by).type) is None:
            raise SchemaError(
                f"stream {self.name!r}: progress_by={self.progress_by!r} has type "
                f"{self.columns.field(self.progress_by).type}, whose values cannot be compared",
                "use a column that names the file or partition, such as a string or a number",
            )
        time_type = self.columns.field(self.event_time).type
        if not pa.types.is_timestamp(time_type):
            raise SchemaError(
                f"stream {self.name!r}: event time {self.event_time!r} has type {time_type}; it must be a timestamp",
                "convert it first: for milliseconds since 1970 column.cast(pa.timestamp('ms', tz='UTC')); for other units replace "
                "'ms' by 's', 'us' or 'ns'",
            )

    def _column_hint(self, option: str) -> str:
        """Return the columns that an option can name."""
        times = [field.name for field in self.columns if pa.types.is_timestamp(field.type)]
        if option == "event_time" and times:
            return f"timestamp columns: {listed(times)}"
        return "add a timestamp column" if option == "event_time" else "name one of its columns"

    @property
    def time_zone_aware(self) -> bool:
        """Whether the event time is an instant (`timestamp`).

        Otherwise it is a wall-clock reading (`timestamp_ntz`).
        """
        return self.columns.field(self.event_time).type.tz is not None


def _contains(dtype: pa.DataType, kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one nested in it, is of a kind."""
    children = [dtype.field(index) for index in range(dtype.num_fields)] if pa.types.is_nested(dtype) else []
    return bool(kind(dtype)) or any(_contains(field.type, kind) for field in children)


def _is_extension(dtype: pa.DataType) -> bool:
    return isinstance(dtype, pa.BaseExtensionType)


def _can_store_extension(dtype: pa.DataType) -> bool:
    """Whether an extension type is hashable and can make empty tables.

    Those defined in Python are not hashable.
    """
    try:
        hash(dtype)
        pa.schema([("", dtype)]).empty_table()
    except (TypeError, NotImplementedError):
        return False
    return True


def stored_type(declared: pa.DataType) -> pa.DataType:
    """Return the type a declared column is stored and returned with: encodings removed, values unchanged."""
    if pa.types.is_dictionary(declared) or pa.types.is_run_end_encoded(declared):
        return stored_type(declared.value_type)
    return _without_views(declared)


def _without_views(declared: pa.DataType) -> pa.DataType:
    """Replace views by plain strings and binaries, in nested types too: Arrow cannot gather nested views."""
    types = pa.types
    if types.is_string_view(declared):
        return pa.string()
    if types.is_binary_view(declared):
        return pa.binary()
    if types.is_struct(declared):
        return pa.struct([_stored_field(field) for field in declared])
    if types.is_map(declared):
        return pa.map_(_without_views(declared.key_type), _stored_field(declared.item_field), declared.keys_sorted)
    if types.is_fixed_size_list(declared):
        return pa.list_(_stored_field(declared.value_field), declared.list_size)
    if types.is_large_list(declared):
        return pa.large_list(_stored_field(declared.value_field))
    if types.is_list(declared):
        return pa.list_(_stored_field(declared.value_field))
    return declared


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_without_views(field.type))


def stored_schema(declared: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, stored_type(field.type)) for field in declared])


def sql_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type a stored column has inside an expression; None if it can only be selected."""
    types = pa.types
    if arrow_type in _SIGNED:
        return _SIGNED[arrow_type]
    if types.is_float16(arrow_type):
        return pa.float32()
    if types.is_large_string(arrow_type):
        return pa.string()
    if types.is_large_binary(arrow_type) or types.is_fixed_size_binary(arrow_type):
        return pa.binary()
    if types.is_date64(arrow_type):
        return pa.date32()
    if types.is_timestamp(arrow_type):
        return TIMESTAMP_NTZ if arrow_type.tz is None else TIMESTAMP
    if types.is_duration(arrow_type):
        return MICROSECOND
    if types.is_decimal(arrow_type):
        return (
            pa.decimal128(arrow_type.precision, arrow_type.scale) if arrow_type.precision <= LARGEST_DECIMAL else None
        )
    return arrow_type if arrow_type in _SQL_NAMES else None


def is_exact(dtype: pa.DataType) -> bool:
    """Whether a value of a SQL type fits a 64-bit code, so that equal codes mean equal values."""
    if pa.types.is_decimal(dtype):
        return bool(dtype.precision <= _EXACT_DECIMAL_DIGITS)
    return not (pa.types.is_string(dtype) or pa.types.is_binary(dtype))


def type_name(dtype: pa.DataType) -> str:
    """Return Spark's name of a type, for messages: `bigint`, `decimal(10,2)`.

    Where Spark has none, it is Arrow's.
    """
    if pa.types.is_decimal(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    return _SQL_NAMES.get(sql_type(dtype), str(dtype))


def is_integer(dtype: pa.DataType) -> bool:
    return dtype in _INTEGER_DIGITS


def is_numeric(dtype: pa.DataType) -> bool:
    return is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def as_decimal(dtype: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds every value of an integer or decimal SQL type."""
    return pa.decimal128(_INTEGER_DIGITS[dtype], 0) if is_integer(dtype) else dtype


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which two SQL types are compared; None if they cannot be.

    >>> type_name(common_type(pa.int64(), pa.float32()))
    'double'
    >>> type_name(common_type(pa.int32(), pa.decimal128(10, 2)))
    'decimal(12,2)'
    """
    types = pa.types
    if left == right:
        return left
    if types.is_null(left) or types.is_null(right):
        return right if types.is_null(left) else left
    if is_numeric(left) and is_numeric(right):
        if types.is_floating(left) or types.is_floating(right):
            return pa.float64()
        if is_integer(left) and is_integer(right):
            return left if left.bit_width > right.bit_width else right
        return _wider_decimal(as_decimal(left), as_decimal(right))
    if types.is_date(left) and types.is_timestamp(right):
        return right
    if types.is_timestamp(left) and types.is_date(right):
        return left
    return None


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    # Spark keeps the integer digits and gives up scale when both do not fit.
    digits = max(left.precision - left.scale, right.precision - right.scale)
    scale = min(max(left.scale, right.scale), LARGEST_DECIMAL - digits)
    return pa.decimal128(digits + scale, scale)
