"""Columns of values that all have the same width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import Int64Array
from dovetail.engine.kernels.gather import ColumnAddresses
from dovetail.engine.storage.buffers import address_of, fixed_values, storage_dtype
from dovetail.engine.storage.columns.base import NullableColumn, StoredColumn
from dovetail.engine.storage.rows import Rows


class FixedColumn(NullableColumn):
    """Values of fixed width. `position`: 1 if there are NULLs, else 0."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._dtype = storage_dtype(dtype)
        self.width = self._dtype.itemsize
        self._packed = self.needs_finish = pa.types.is_boolean(dtype)
        rows.add(self._values, self._dtype, np.zeros((), self._dtype))

    @property
    def position(self) -> list[int]:
        return [int(self.has_nulls)]

    def resume(self, position: Sequence[int]) -> None:
        self._resume_validity(*position)
        super().resume(position)

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        self.rows.arrays[self._values][first:stop] = fixed_values(values, self._dtype)
        if self.has_nulls or values.null_count:
            self._append_validity(values, first, stop)

    def source_address(self, values: pa.Array) -> int:
        """Return the address of values that can be copied unchanged, or 0 if `append` must write them."""
        if self.needs_finish or values.null_count:
            return 0
        address: int = values.buffers()[1].address
        return address + int(values.offset) * self.width

    def take(self, indices: Int64Array) -> pa.Array:
        values = self.rows.arrays[self._values].take(indices)
        return pa.Array.from_buffers(
            self.type, len(indices), self.finish_buffers([None, pa.py_buffer(values)], indices)
        )

    @property
    def addresses(self) -> ColumnAddresses:
        return ColumnAddresses(address_of(self.rows.arrays[self._values]))

    def finish_buffers(self, buffers: Sequence[Any], indices: Int64Array) -> list[Any]:
        if self._packed:
            buffers = [None, pa.py_buffer(np.packbits(np.frombuffer(buffers[1], np.uint8), bitorder="little"))]
        return super().finish_buffers(buffers, indices)

    def remove(self) -> None:
        super().remove()
        self.rows.remove(self._values)


class TimeColumn(StoredColumn):
    """The event time in microseconds, read from the window's `ts` array instead of stored again."""

    width = 8
    is_stored = False

    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Nothing to do: the window writes `ts`."""

    def take(self, indices: Int64Array) -> pa.Array:
        values = self.rows.arrays["ts"].take(indices)
        return pa.Array.from_buffers(self.type, len(indices), [None, pa.py_buffer(values)])

    @property
    def addresses(self) -> ColumnAddresses:
        return ColumnAddresses(address_of(self.rows.arrays["ts"]))

    def remove(self) -> None:
        """Nothing to do: `ts` stays."""
