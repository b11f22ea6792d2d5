"""View the buffers of Arrow arrays as NumPy arrays; only packed booleans are copied."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail._typing import Array, BoolArray, ByteArray

_SMALL_OFFSET, _LARGE_OFFSET = np.dtype(np.int32), np.dtype(np.int64)
_NO_BYTES = np.zeros(0, np.uint8)
_WIDEST_NUMBER = 8


def is_fixed_width(dtype: pa.DataType) -> bool:
    types = pa.types
    if types.is_fixed_size_binary(dtype):
        return bool(dtype.byte_width > 0)
    return bool(
        types.is_primitive(dtype) or types.is_decimal(dtype) or types.is_boolean(dtype) or types.is_interval(dtype)
    )


def storage_dtype(dtype: pa.DataType) -> np.dtype[np.generic]:
    """Return the NumPy type that holds the bits of a fixed-width Arrow type."""
    if pa.types.is_boolean(dtype):
        return np.dtype(np.uint8)
    width = dtype.bit_width // 8
    if pa.types.is_decimal(dtype) or pa.types.is_fixed_size_binary(dtype) or width > _WIDEST_NUMBER:
        return np.dtype(f"V{width}")
    return np.dtype(f"f{width}" if pa.types.is_floating(dtype) else f"i{width}")


def fixed_values(values: pa.Array, dtype: np.dtype[np.generic]) -> Array:
    """Return the values of a fixed-width array; only packed booleans are copied."""
    if values.type == pa.bool_():
        values = values.cast(pa.uint8())
    buffer = values.buffers()[1]
    if buffer is None:
        return np.zeros(len(values), dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def address_of(array: Array) -> int:
    """Return the address of the first value of an array."""
    address: int = pa.py_buffer(array).address  # `array.ctypes` takes five times as long
    return address


def is_large(dtype: pa.DataType) -> bool:
    """Whether a string or binary type has 64-bit offsets."""
    return bool(pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype))


def byte_values(values: pa.Array, *, large: bool) -> tuple[Array, ByteArray]:
    """Return the offsets of a string or binary array, and its bytes from the first offset on."""
    dtype = _LARGE_OFFSET if large else _SMALL_OFFSET
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return np.zeros(len(values) + 1, dtype), _NO_BYTES
    offsets = np.frombuffer(offset_buffer, dtype, len(values) + 1, values.offset * dtype.itemsize)
    first, end = int(offsets[0]), int(offsets[-1])
    return offsets, np.frombuffer(data_buffer, np.uint8, end - first, first) if end > first else _NO_BYTES


def valid_mask(values: pa.Array) -> BoolArray | None:
    """Return a mask of the values that are not NULL, or None if there are no NULLs."""
    if values.null_count == 0:
        return None
    mask: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return mask
