"""Parallel arrays of one window, indexed by row number.

Row numbers only grow. `base` is the row number of place 0 of every array, rows `tail` to `head` are alive. When the arrays are full
the living rows are moved to the front or into arrays twice as long, so each row is copied about once in its life.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dovetail._typing import Array, BoolArray
from dovetail.engine.storage.arena import Arena
from dovetail.errors import StateError

SMALLEST_CAPACITY = 1024
ROOMY, _FITTING = 16, 4
"""Arrays so many times as long as their rows are too long, and how long they are made when they are rewritten."""


def fitting(capacity: int, kept: int, smallest: int) -> int:
    """The capacity that an array is rewritten with for `kept` entries: it may become smaller."""
    while capacity > smallest and capacity > _FITTING * kept:
        capacity //= 2
    return capacity


class Rows:
    """The living rows of a window and every array that has one entry per row."""

    def __init__(self, arena: Arena, prefix: str, capacity: int | None = None) -> None:
        """Start empty, with room for `capacity` rows."""
        self.arena = arena
        self.prefix = prefix
        self.base = self.tail = self.head = 0
        self.capacity = capacity or SMALLEST_CAPACITY
        self.arrays: dict[str, Array] = {}
        self.version = 0
        """Changes whenever an array or `base` does."""
        self.moving = False
        """Set while living rows, or what belongs to them, lie partly at their old places and partly at new ones."""
        self.limit: int | None = None
        """The capacity beyond which arrays do not grow, as long as there is room at all."""
        self.renumbered = 0
        """How often rows were numbered anew."""

    @property
    def position(self) -> list[int]:
        return [self.base, self.tail, self.head, self.capacity]

    def resume(self, position: Sequence[int]) -> None:
        """Go on where others were that had the same arrays."""
        self.base, self.tail, self.head, capacity = position
        whole = all(isinstance(number, int) for number in position)
        ordered = 0 <= self.base <= self.tail <= self.head <= self.base + self.capacity
        if not whole or not ordered or capacity != self.capacity or capacity & (capacity - 1):
            raise StateError(f"window {self.prefix!r} cannot have its rows at {position}")
        self.version += 1

    def __len__(self) -> int:
        return self.head - self.tail

    @property
    def width(self) -> int:
        """Bytes of one row."""
        return sum(array.itemsize for array in self.arrays.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the living rows."""
        return len(self) * self.width

    @property
    def living(self) -> dict[str, tuple[int, int]]:
        """For each array, by its name in the arena, the bytes of the living rows."""
        first, stop = self.tail - self.base, self.head - self.base
        return {
            f"{self.prefix}.{name}": (first * array.itemsize, stop * array.itemsize)
            for name, array in self.arrays.items()
        }

    def add(self, name: str, dtype: DTypeLike, fill: object = 0) -> None:
        """Add an array, `fill` for rows already there."""
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
        """Whether so many rows fit without moving the others."""
        return self.head - self.base + count <= self.capacity

    def extend(self, count: int) -> int:
        """Make room for `count` rows, move `head` past them, and return the first."""
        if not self.has_room(count):
            self._make_room(count)
        first = self.head
        self.head = first + count
        return first

    def _make_room(self, count: int) -> None:
        alive = slice(self.tail - self.base, self.head - self.base)
        kept = len(self)
        grown = self.capacity
        limit = self.limit or 0
        while kept + count > grown // 2 and (grown < limit or kept + count > min(grown, limit or kept)):
            grown *= 2
        self.moving = True
        for name, array in self.arrays.items():
            target = (
                array if grown == self.capacity else self.arena.allocate(f"{self.prefix}.{name}", array.dtype, grown)
            )
            target[:kept] = array[alive]
            self.arrays[name] = target
        self.base, self.capacity = self.tail, grown
        self.version += 1
        self.moving = False

    @property
    def is_roomy(self) -> bool:
        """Whether the arrays are far longer than they need to be."""
        return self.capacity > SMALLEST_CAPACITY and self.capacity > ROOMY * len(self)

    def keep(self, alive: BoolArray) -> None:
        """Forget the rows between tail and head that are not `alive`; the others are numbered anew, in the same order."""
        self.renumbered += 1
        span = slice(self.tail - self.base, self.head - self.base)
        places = np.flatnonzero(alive)
        kept = len(places)
        smaller = fitting(self.capacity, kept, SMALLEST_CAPACITY)
        for name, array in self.arrays.items():
            target = array
            if smaller < self.capacity:
                target = self.arrays[name] = self.arena.allocate(f"{self.prefix}.{name}", array.dtype, smaller)
            target[:kept] = array[span][places]
        self.capacity = smaller
        self.base = self.tail = self.head
        self.head += kept
        self.version += 1
