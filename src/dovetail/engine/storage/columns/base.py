"""What every column of a window can do, and how NULLs are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail._typing import BoolArray, Int64Array
from dovetail.engine.storage.buffers import valid_mask
from dovetail.engine.storage.rows import Rows
from dovetail.errors import StateError


class StoredColumn(ABC):
    """Values of one column for every living row. Rows are appended together with the window's other arrays."""

    width = 0
    """Bytes of a value, or of an offset if `is_text`; 0 where values do not lie in plain arrays."""
    is_text = False
    """Whether values are bytes of any length."""
    is_odd = False
    """Whether gathered values have to be `finished`."""
    is_kept = True
    """Whether values that come have to be written."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        self.rows = rows
        self._name = name
        self._values = f"value:{name}"
        self.type = dtype

    @abstractmethod
    def append(self, values: pa.Array, first: int, stop: int) -> None:
        """Write the values of the newest rows, places `first` to `stop`."""

    @abstractmethod
    def take(self, places: Int64Array) -> pa.Array:
        """Gather values by place (row number minus base)."""

    @property
    def extent(self) -> tuple[int, ...]:
        """Where values lie, as `kernels.gather` wants it: from `VALUES` on; nothing where they do not lie in plain arrays."""
        return ()

    def finished(self, buffers: Sequence[Any], places: Int64Array) -> list[Any]:  # noqa: ARG002
        """The buffers of an Arrow array whose values, of rows at `places`, were gathered; the first, for NULLs, is None so far."""
        return list(buffers)

    def check_length(self, total: int) -> None:  # noqa: B027
        """Raise an `OverflowError` if one array cannot hold so many bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes held outside the window's per-row arrays."""
        return 0

    @property
    def allocated(self) -> int:
        """The same, room for more included."""
        return self.nbytes

    @property
    def position(self) -> list[int]:
        """What another column needs, beside the arrays, to go on."""
        return []

    def resume(self, position: Sequence[int]) -> None:
        """Go on where another column was that had the same arrays."""
        if list(position) != self.position:
            self._refuse(position)

    def _refuse(self, position: Sequence[int]) -> None:
        raise StateError(f"column {self._name!r} of window {self.rows.prefix!r} cannot be at {position}")

    @property
    def living(self) -> dict[str, tuple[int, int]]:
        """The bytes in use of arrays that have room for more, by name in the arena; per-row arrays are known to the rows."""
        return {}

    def before_keep(self, alive: BoolArray) -> None:  # noqa: B027
        """Prepare for `Rows.keep`."""

    @abstractmethod
    def remove(self) -> None:
        """Give the column's arrays back."""


class NullableColumn(StoredColumn):
    """A column whose validity is an array of its own, made when the first NULL arrives."""

    def __init__(self, rows: Rows, name: str, dtype: pa.DataType) -> None:
        super().__init__(rows, name, dtype)
        self._validity = f"valid:{name}"
        self._nulls = False

    def _resume_validity(self, nulls: int) -> None:
        if nulls:
            self.rows.add(self._validity, np.uint8)
            self._nulls = self.is_odd = True

    def _append_validity(self, values: pa.Array, first: int, stop: int) -> None:
        if not self._nulls:
            self.rows.add(self._validity, np.uint8, 1)
            self._nulls = self.is_odd = True
        valid = valid_mask(values)
        self.rows.arrays[self._validity][first:stop] = 1 if valid is None else valid

    def _take_validity(self, places: Int64Array) -> pa.Buffer | None:
        valid = self.rows.arrays[self._validity].take(places)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def finished(self, buffers: Sequence[Any], places: Int64Array) -> list[Any]:
        return [self._take_validity(places) if self._nulls else None, *buffers[1:]]

    def remove(self) -> None:
        if self._nulls:
            self.rows.remove(self._validity)
