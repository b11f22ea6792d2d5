"""Parallel arrays of one window, indexed by row number.

Row numbers only grow. `base` is the row number at index 0 of every array; rows `tail` to `head` are live.

Memory is reused in two ways:

- when the arrays are full, the live rows move to the front, or into longer arrays if they would fill more than half of them (if
  `is_tight`, four fifths). They keep their numbers, and each is copied about once in its life (twice);
- `compact` drops rows anywhere between `tail` and `head`, and renumbers the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dovetail._typing import Array, BoolArray
from dovetail.engine.storage.arena import Arena
from dovetail.errors import StateError

SMALLEST_CAPACITY = 1024
OVERSIZED, _FIT = 16, 4
"""Capacity per live row above which arrays are oversized, and the capacity per live row that compaction shrinks them to."""


def shrunk_capacity(capacity: int, entries: int, smallest: int) -> int:
    """Halve `capacity` until it fits `entries`, but not below `smallest`."""
    while capacity > smallest and capacity > _FIT * entries:
        capacity //= 2
    return capacity


def tight_capacity(capacity: int, needed: int, smallest: int) -> int:
    """Return one and a half times `needed`, or `capacity` if it is 1.25 to 2 times as much."""
    if 5 * needed <= 4 * capacity and (capacity <= 2 * needed or capacity <= smallest):
        return capacity
    return max(smallest, -(-(needed + needed // 2) // smallest) * smallest)


class Rows:
    """The live rows of a window and every array that has one entry per row."""

    def __init__(self, arena: Arena, prefix: str, capacity: int | None = None) -> None:
        """Start empty, with room for `capacity` rows."""
        self.arena = arena
        self.prefix = prefix
        self.base = self.tail = self.head = 0
        self.capacity = capacity or SMALLEST_CAPACITY
        self.arrays: dict[str, Array] = {}
        self.version = 0
        """Incremented whenever an array or `base` changes."""
        self.is_moving = False
        """True while live rows or their heaps are being moved; an interrupt then leaves them in an inconsistent state."""
        self.limit: int | None = None
        """Capacity up to which arrays stay half empty; from there on they grow only if rows do not fit."""
        self.is_tight = False
        """Whether arrays grow in small steps, because memory is scarce: see `tight_capacity`."""
        self.renumber_count = 0
        """Number of compactions, each of which renumbers the rows."""

    @property
    def position(self) -> list[int]:
        return [self.base, self.tail, self.head, self.capacity]

    def resume(self, position: Sequence[int]) -> None:
        """Take over the arrays of another `Rows` whose position was `position`."""
        self.base, self.tail, self.head, capacity = position
        are_integers = all(isinstance(entry, int) for entry in position)
        ordered = 0 <= self.base <= self.tail <= self.head <= self.base + self.capacity
        if not are_integers or not ordered or capacity != self.capacity:
            raise StateError(
                f"window {self.prefix!r}: invalid row position {position}; expected base <= tail <= head <= base + "
                f"capacity, capacity {self.capacity}"
            )
        self.version += 1

    def __len__(self) -> int:
        return self.head - self.tail

    @property
    def width(self) -> int:
        """Bytes per row."""
        return sum(array.itemsize for array in self.arrays.values())

    @property
    def live_bytes(self) -> dict[str, tuple[int, int]]:
        """Byte range of the live rows in each array, by the array's name in the arena."""
        first, stop = self.tail - self.base, self.head - self.base
        return {
            f"{self.prefix}.{name}": (first * array.itemsize, stop * array.itemsize)
            for name, array in self.arrays.items()
        }

    def add(self, name: str, dtype: DTypeLike, fill: object = 0) -> None:
        """Add an array; existing rows get the value `fill`."""
        self.version += 1
        array = self.arena.allocate(f"{self.prefix}.{name}", dtype, self.capacity)
        if len(array) != self.capacity:
            raise StateError(f"array {name!r} of window {self.prefix!r} has {len(array)} entries, not {self.capacity}")
        array[: self.head - self.base] = fill
        self.arrays[name] = array

    def remove(self, name: str) -> None:
        self.version += 1
        del self.arrays[name]
        self.arena.free(f"{self.prefix}.{name}")

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def has_room(self, count: int) -> bool:
        """Whether `count` more rows fit without moving the existing ones."""
        return self.head - self.base + count <= self.capacity

    def extend(self, count: int) -> int:
        """Append `count` uninitialized rows and return the first one's row number."""
        if not self.has_room(count):
            self._make_room(count)
        first = self.head
        self.head = first + count
        return first

    def _make_room(self, count: int) -> None:
        live = slice(self.tail - self.base, self.head - self.base)
        live_rows, needed = len(self), len(self) + count
        grown, limit = self.capacity, self.limit
        if self.is_tight:
            grown = tight_capacity(grown, needed, SMALLEST_CAPACITY)
        while not self.is_tight and needed > grown // 2 and (limit is None or grown < limit or needed > limit):
            grown *= 2
        self.is_moving = True
        for name, array in self.arrays.items():
            target = (
                array if grown == self.capacity else self.arena.allocate(f"{self.prefix}.{name}", array.dtype, grown)
            )
            target[:live_rows] = array[live]
            self.arrays[name] = target
        self.base, self.capacity = self.tail, grown
        self.version += 1
        self.is_moving = False

    @property
    def is_oversized(self) -> bool:
        """Whether the arrays are far longer than the live rows need."""
        return self.capacity > SMALLEST_CAPACITY and self.capacity > OVERSIZED * len(self)

    def compact(self, alive: BoolArray) -> None:
        """Remove the rows between tail and head that are not `alive` and renumber the rest in the same order.

        New numbers begin at the old `head`, so that no old number is that of a live row.
        """
        self.renumber_count += 1
        span = slice(self.tail - self.base, self.head - self.base)
        indices = np.flatnonzero(alive)
        live_rows = len(indices)
        shrink = tight_capacity if self.is_tight else shrunk_capacity
        smaller = min(self.capacity, shrink(self.capacity, live_rows, SMALLEST_CAPACITY))
        for name, array in self.arrays.items():
            target = array
            if smaller < self.capacity:
                target = self.arrays[name] = self.arena.allocate(f"{self.prefix}.{name}", array.dtype, smaller)
            target[:live_rows] = array[span][indices]
        self.capacity = smaller
        self.base = self.tail = self.head
        self.head += live_rows
        self.version += 1
