"""Compute running maxima of event times, the first live row, and the ends of count windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail._typing import ByteArray, Int64Array, UInt64Array
from dovetail.engine.kernels.compile import kernel
from dovetail.engine.kernels.index import GOLDEN

LONG_AGO = -(1 << 62)
"""A time before every event."""
FOREVER = np.int64(1 << 62)
"""A time after every event: the end of a count window that no later tuple has closed."""


@kernel
def summarize_times(ts: Int64Array) -> tuple[bool, int, int]:
    """Return whether event times are in order, the smallest and the largest; `ts` is not empty."""
    in_order = True
    smallest = largest = previous = ts[0]
    for t in ts:
        in_order &= t >= previous
        smallest = min(smallest, t)
        largest = max(largest, t)
        previous = t
    return in_order, smallest, largest


@kernel
def extend_prefix_max(ts: Int64Array, prefix_max: Int64Array, first: int, last: int, largest: int) -> None:
    """Write the running maximum of `ts` for indices `first` to `last`, starting from `largest`."""
    for index in range(first, last):
        largest = max(largest, ts[index])
        prefix_max[index] = largest


@kernel
def first_at_or_after(ts: Int64Array, first: int, last: int, bound: int) -> int:
    """Return the first index from `first` on whose event time is not below `bound`, or `last`."""
    for index in range(first, last):
        if ts[index] >= bound:
            return index
    return last


@kernel
def close_row_windows(ts: Int64Array, ends: Int64Array, first: int, stop: int, oldest: int, rows: int) -> None:
    """Write the ends of a `[ROWS n]` window: 1 us before the time of the n-th row after each row."""
    for index in range(first, stop):
        ends[index] = FOREVER
        if index - rows >= oldest:
            ends[index - rows] = ts[index] - 1


class Partitions(NamedTuple):
    """Per-row arrays that let a new row of a partition find the row that it pushes out in constant time."""

    oldest_inside: Int64Array
    """The partition's oldest row in the window when this row arrived."""
    later: Int64Array
    """The next row of the partition; -1 if there is none."""
    filled: Int64Array
    """Number of the partition's rows in the window when this row arrived."""
    null: Int64Array
    """1 if the row is in the partition of NULL."""


@kernel
def close_partition_windows(
    ts: Int64Array, ends: Int64Array, base: int, first: int, stop: int, oldest: int, rows: int, code: UInt64Array,
    oldest_inside: Int64Array, later: Int64Array, filled: Int64Array, null: Int64Array,
    starts: Int64Array, lengths: Int64Array, heap: int, data: ByteArray,
    heads: Int64Array, links: Int64Array, shift: np.uint64,
) -> None:  # fmt: skip
    """Write the ends of a `[PARTITION BY c ROWS n]` window for row numbers `first` to `stop`.

    NULL is a partition of its own. If `data` is not empty, codes are hashes and the values themselves are compared.
    """
    for row in range(first, stop):
        index = row - base
        ends[index] = FOREVER
        slot = np.int64((code[index] * GOLDEN) >> shift)
        previous = heads[slot]
        while previous >= oldest:
            other = previous - base
            same = code[other] == code[index] and null[other] == null[index]
            if same and len(data) > 0 and null[index] == 0:
                same = lengths[other] == lengths[index]
                offset = 0
                while same and offset < lengths[index]:
                    same = data[starts[other] - heap + offset] == data[starts[index] - heap + offset]
                    offset += 1
            if same:
                break
            previous = links[other]
        links[index] = heads[slot]
        heads[slot] = row
        later[index] = -1
        if previous < oldest:
            oldest_inside[index] = row
            filled[index] = 1
        else:
            before = previous - base
            later[before] = row
            oldest_inside[index] = oldest_inside[before]
            filled[index] = filled[before] + 1
        if filled[index] > rows:
            pushed_out = oldest_inside[index] - base
            ends[pushed_out] = ts[index] - 1
            oldest_inside[index] = later[pushed_out]
            filled[index] = rows
