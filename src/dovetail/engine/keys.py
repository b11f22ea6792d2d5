"""Compute codes: 64-bit representations of the values that equalities compare.

Equal values have equal codes. For types that fit into 64 bits the code is the value, after normalizing floats that Spark considers
equal (-0.0 and 0.0, all NaNs). For other types it is a hash, `is_exact` is false, and matches must be verified.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail._typing import Int64Array, UInt64Array
from dovetail.engine.kernels.index import hash_bytes, mix
from dovetail.engine.storage.buffers import byte_values, fixed_values, storage_dtype, valid_mask
from dovetail.schema import is_exact

NULL_CODE = np.uint64(0xA5C3_96E1_7B4D_2F08)
"""The code of NULL. Every reader checks validity, since NULL equals nothing; the code only keeps NULLs out of other chains."""
_UINT64 = np.dtype(np.uint64)


def codes_of(values: pa.Array) -> UInt64Array:
    """Return the code of each value of an array of a SQL type."""
    codes = _codes(values)
    valid = valid_mask(values)
    return codes if valid is None else np.where(valid, codes, NULL_CODE)


def _codes(values: pa.Array) -> UInt64Array:
    dtype = values.type
    if dtype == pa.int64():
        return fixed_values(values, _UINT64)
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        offsets, data = byte_values(values, large=False)
        out = np.empty(len(values), np.uint64)
        hash_bytes(offsets, data, out)
        return out
    if pa.types.is_decimal(dtype):
        halves = fixed_values(values, storage_dtype(dtype)).view(np.uint64)
        low, high = np.ascontiguousarray(halves[0::2]), np.ascontiguousarray(halves[1::2])
        if is_exact(dtype):
            return low
        out = np.empty(len(values), np.uint64)
        mix(low, high, out)
        return out
    bits = fixed_values(values, storage_dtype(dtype))
    if pa.types.is_floating(dtype):
        doubles = bits.astype(np.float64) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return doubles.view(np.uint64)
    return bits.astype(np.int64).view(np.uint64)


def values_of(codes: UInt64Array, dtype: pa.DataType) -> pa.Array:
    """Return the values that have these codes; `dtype` is a SQL type whose codes are exact."""
    bits, valid = np.ascontiguousarray(codes).view(np.int64), codes != NULL_CODE
    if pa.types.is_decimal(dtype):
        halves = np.stack([bits, bits >> 63], axis=1)
        values = pa.Array.from_buffers(dtype, len(bits), [None, pa.py_buffer(halves)])
    elif pa.types.is_floating(dtype):
        values = pa.array(bits.view(np.float64)).cast(dtype, safe=False)
    elif pa.types.is_boolean(dtype):
        values = pa.array(bits != 0)
    else:
        values = pa.array(bits.astype(storage_dtype(dtype))).view(dtype)
    return values if valid.all() else pc.if_else(pa.array(valid), values, pa.scalar(None, dtype))


def coordinates(codes: UInt64Array, splits: int) -> Int64Array:
    """Return the coordinate of each code on a dimension with `splits` cells; indexes use another hash."""
    mixed = codes ^ (codes >> np.uint64(33))
    mixed = mixed * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(splits)).astype(np.int64)


def combine(codes: list[UInt64Array]) -> UInt64Array:
    """Return one code for each key of several parts, given the codes of the parts."""
    combined = codes[0]
    for part in codes[1:]:
        out = np.empty(len(combined), np.uint64)
        mix(combined, part, out)
        combined = out
    return combined
