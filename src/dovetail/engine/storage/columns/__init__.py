"""Columns of a window: append Arrow arrays, gather rows into Arrow arrays of the same type.

Fixed-width values and byte strings are in plain arrays, so that a gather is one pass and the arrays can be mapped from files.
Nested values, which queries can only select, stay in Arrow chunks.
"""

from __future__ import annotations

import pyarrow as pa

from dovetail.engine.storage.buffers import is_fixed_width
from dovetail.engine.storage.columns.base import StoredColumn
from dovetail.engine.storage.columns.fixed import FixedColumn, TimeColumn
from dovetail.engine.storage.columns.nested import NestedColumn
from dovetail.engine.storage.columns.texts import BytesColumn
from dovetail.engine.storage.rows import Rows

__all__ = ["BytesColumn", "FixedColumn", "NestedColumn", "StoredColumn", "TimeColumn", "column_for"]


def column_for(rows: Rows, name: str, dtype: pa.DataType) -> StoredColumn:
    """Create the column for values of `dtype` and add its arrays to `rows`."""
    types = pa.types
    if types.is_string(dtype) or types.is_binary(dtype) or types.is_large_string(dtype) or types.is_large_binary(dtype):
        return BytesColumn(rows, name, dtype)
    if is_fixed_width(dtype):
        return FixedColumn(rows, name, dtype)
    return NestedColumn(rows, name, dtype)
