"""Parallel arrays of one window, indexed by row number.

Row numbers only grow. `base` is the row number of place 0 of every array, rows `tail` to `head` are alive. When the arrays are full
the living rows are moved to the front or into arrays twice as long, so each row is copied about once in its life.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dovetail._typing import Array, BoolArray, Int64Array
from dovetail.engine.arena import Arena

_BASE, _TAIL, _HEAD, _CAPACITY = range(4)
SMALLEST_CAPACITY = 1024


class Rows:
    """The living rows of a window and every array that has one entry per row."""

    def __init__(self, arena: Arena, prefix: str, *, attach: bool = False) -> None:
        self._arena = arena
        self._prefix = prefix
        self._arrays: dict[str, Array] = {}
        self._state: Int64Array
        if attach:
            self._state = arena.open(f"{prefix}.rows", np.int64)
        else:
            self._state = arena.allocate(f"{prefix}.rows", np.int64, 4)
            self._state[:] = (0, 0, 0, SMALLEST_CAPACITY)
        self._attach = attach

    @property
    def base(self) -> int:
        return int(self._state[_BASE])

    @property
    def tail(self) -> int:
        return int(self._state[_TAIL])

    @tail.setter
    def tail(self, row: int) -> None:
        self._state[_TAIL] = row

    @property
    def head(self) -> int:
        return int(self._state[_HEAD])

    @property
    def capacity(self) -> int:
        return int(self._state[_CAPACITY])

    def __len__(self) -> int:
        return self.head - self.tail

    @property
    def nbytes(self) -> int:
        """Bytes of the living rows."""
        return len(self) * sum(array.itemsize for array in self._arrays.values())

    def add(self, name: str, dtype: DTypeLike, fill: object = 0, *, fresh: bool = False) -> Array:
        """Add an array, `fill` for rows already there; when attaching, open it unless it is `fresh`."""
        if self._attach and not fresh:
            self._arrays[name] = self._arena.open(f"{self._prefix}.{name}", dtype)[: self.capacity]
        else:
            array = self._arena.allocate(f"{self._prefix}.{name}", dtype, self.capacity)
            array[: self.head - self.base] = fill
            self._arrays[name] = array
        return self._arrays[name]

    def attached(self) -> None:
        """End of attaching: arrays added from now on are new."""
        self._attach = False

    def remove(self, name: str) -> None:
        del self._arrays[name]
        self._arena.free(f"{self._prefix}.{name}")

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def new(self, name: str, count: int) -> Array:
        """The places of the `count` newest rows in one array, for writing."""
        stop = self.head - self.base
        return self._arrays[name][stop - count : stop]

    def extend(self, count: int) -> int:
        """Make room for `count` rows, move `head` past them, and return the first."""
        if self.head - self.base + count > self.capacity:
            self._make_room(count)
        first = self.head
        self._state[_HEAD] = first + count
        return first

    def _make_room(self, count: int) -> None:
        alive = slice(self.tail - self.base, self.head - self.base)
        kept = len(self)
        grown = self.capacity
        while kept + count > grown // 2:
            grown *= 2
        for name, array in self._arrays.items():
            target = array if grown == self.capacity else self._arena.allocate(f"{self._prefix}.{name}", array.dtype, grown)
            target[:kept] = array[alive]
            self._arrays[name] = target
        self._state[:] = (self.tail, self.tail, self.head, grown)

    def keep(self, alive: BoolArray) -> None:
        """Forget the rows between tail and head that are not `alive`; the others are numbered anew, in the same order."""
        span = slice(self.tail - self.base, self.head - self.base)
        kept = int(np.count_nonzero(alive))
        for array in self._arrays.values():
            array[:kept] = array[span][alive]
        self._state[:3] = (self.head, self.head, self.head + kept)
