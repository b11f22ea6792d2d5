"""Loops over event times: their order, expiry, and the ends of count windows."""

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
def survey(ts: Int64Array, watermark: int) -> tuple[int, bool, int, int]:
    """How many times lie below `watermark`, whether they are in order, the smallest and the largest (of at least one)."""
    late = 0
    in_order = True
    smallest = largest = previous = ts[0]
    for t in ts:
        late += t < watermark
        in_order &= t >= previous
        smallest = min(smallest, t)
        largest = max(largest, t)
        previous = t
    return late, in_order, smallest, largest


@kernel
def extend_prefix_max(ts: Int64Array, prefix_max: Int64Array, first: int, last: int, largest: int) -> None:
    """Write the running maximum of `ts` for places `first` to `last`, starting from `largest`."""
    for place in range(first, last):
        largest = max(largest, ts[place])
        prefix_max[place] = largest


@kernel
def first_at_or_after(ts: Int64Array, first: int, last: int, bound: int) -> int:
    """The first place from `first` on whose event time is not below `bound`; `last` if there is none."""
    for place in range(first, last):
        if ts[place] >= bound:
            return place
    return last


@kernel
def close_row_windows(ts: Int64Array, ends: Int64Array, first: int, stop: int, oldest: int, rows: int) -> None:
    """`[ROWS n]`: each new place ends the window of the n-th place before it, one microsecond before its own time."""
    for place in range(first, stop):
        ends[place] = FOREVER
        if place - rows >= oldest:
            ends[place - rows] = ts[place] - 1


class Partitions(NamedTuple):
    """What is kept per row so that each new row of a partition finds the one it pushes out in constant time."""

    oldest_inside: Int64Array
    """The partition's oldest row still in the window when this one arrived."""
    later: Int64Array
    """The next row of the partition; -1: there is none."""
    filled: Int64Array
    """Rows in the window then."""
    null: Int64Array
    """Whether the partition is that of NULL."""


@kernel
def close_partition_windows(
    ts: Int64Array, ends: Int64Array, base: int, first: int, stop: int, oldest: int, rows: int, code: UInt64Array,
    oldest_inside: Int64Array, later: Int64Array, filled: Int64Array, null: Int64Array,
    starts: Int64Array, lengths: Int64Array, heap: int, data: ByteArray,
    head: Int64Array, links: Int64Array, shift: np.uint64,
) -> None:  # fmt: skip
    """`[PARTITION BY c ROWS n]`, rows `first` to `stop` (row numbers), NULL being one partition.

    Where `data` is not empty, codes are hashes and the values themselves decide.
    """
    for row in range(first, stop):
        place = row - base
        ends[place] = FOREVER
        slot = np.int64((code[place] * GOLDEN) >> shift)
        previous = head[slot]
        while previous >= oldest:
            other = previous - base
            same = code[other] == code[place] and null[other] == null[place]
            if same and len(data) > 0 and null[place] == 0:
                same = lengths[other] == lengths[place]
                offset = 0
                while same and offset < lengths[place]:
                    same = data[starts[other] - heap + offset] == data[starts[place] - heap + offset]
                    offset += 1
            if same:
                break
            previous = links[other]
        links[place] = head[slot]
        head[slot] = row
        later[place] = -1
        if previous < oldest:
            oldest_inside[place] = row
            filled[place] = 1
        else:
            before = previous - base
            later[before] = row
            oldest_inside[place] = oldest_inside[before]
            filled[place] = filled[before] + 1
        if filled[place] > rows:
            pushed_out = oldest_inside[place] - base
            ends[pushed_out] = ts[place] - 1
            oldest_inside[place] = later[pushed_out]
            filled[place] = rows
