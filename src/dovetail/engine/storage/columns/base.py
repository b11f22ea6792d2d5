"""Base classes of window columns; `NullableColumn` stores NULLs in a validity array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.kernels.gather import ColumnAddresses
from dovetail.engine.storage.buffers import valid_mask
from dovetail.engine.storage.rows import Rows
from dovetail.errors import StateError


class StoredColumn(ABC):
    """Values of one column for every live row. Rows are appended together with the window's other arrays."""

    width = 0
    """Bytes per value, or per Arrow offset if `is_text`; 0 if the values are not in plain arrays."""
    is_text = False
    """Whether values have variable length."""
    needs_finish = False
    """Whether gathered buffers must go through `finish_buffers`."""
    is_stored = True
    """Whether the column has its own storage to which new values are written."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        self.rows = rows
        self._name = name
        self._values = f"value:{name}"
        self.type = dtype

    @abstractmethod
    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Write the values of the newest rows, at array indices `first` to `stop`."""

    def rewrite(self, values: pa.Array) -> None:
        """Write the values of all live rows anew; those that were there before must be equal."""
        self.append(values, self.rows.tail - self.rows.base, self.rows.head - self.rows.base)

    @abstractmethod
    def take(self, indices: Int64Array) -> pa.Array:
        """Gather values by array index (row number minus base)."""

    @property
    def addresses(self) -> ColumnAddresses:
        """Addresses of the values; zeros if they are not in plain arrays."""
        return ColumnAddresses(0)

    def finish_buffers(self, buffers: Sequence[Any], indices: Int64Array) -> list[Any]:  # noqa: ARG002
        """Complete the Arrow buffers gathered for rows at `indices`: add the validity buffer, pack booleans."""
        return list(buffers)

    @property
    def allocated(self) -> int:
        """Bytes allocated outside the window's per-row arrays, spare capacity included."""
        return 0

    @property
    def position(self) -> list[int]:
        """Integers that, together with the arrays, restore the column."""
        return []

    def resume(self, position: Sequence[int]) -> None:
        """Take over the arrays of another column whose position was `position`."""
        if list(position) != self.position:
            self._reject(position)

    def _reject(self, position: Sequence[int]) -> None:
        raise StateError(f"column {self._name!r} of window {self.rows.prefix!r}: invalid position {list(position)}")

    @property
    def live_bytes(self) -> dict[str, tuple[int, int]]:
        """Byte range in use of each array that is not per row and has spare capacity, by name in the arena."""
        return {}

    def before_compact(self, alive: BoolArray) -> None:  # noqa: B027
        """Prepare for `Rows.compact`: move values that are not in per-row arrays."""

    @abstractmethod
    def remove(self) -> None:
        """Free the column's arrays."""


class NullableColumn(StoredColumn):
    """A column with a separate validity array, allocated when the first NULL arrives."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._validity = f"valid:{name}"
        self.has_nulls = False
        """Whether there is a validity array."""

    def _resume_validity(self, nulls: int) -> None:
        if nulls:
            self.rows.add(self._validity, np.uint8)
            self.has_nulls = self.needs_finish = True

    def _append_validity(self, values: pa.Array, first: int, stop: int) -> None:
        if not self.has_nulls:
            self.rows.add(self._validity, np.uint8, 1)
            self.has_nulls = self.needs_finish = True
        valid = valid_mask(values)
        self.rows.arrays[self._validity][first:stop] = 1 if valid is None else valid

    def _take_validity(self, indices: Int64Array) -> pa.Buffer | None:
        valid = self.rows.arrays[self._validity].take(indices)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def finish_buffers(self, buffers: Sequence[Any], indices: Int64Array) -> list[Any]:
        return [self._take_validity(indices) if self.has_nulls else None, *buffers[1:]]

    def remove(self) -> None:
        if self.has_nulls:
            self.rows.remove(self._validity)
